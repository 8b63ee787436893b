//! Messages of workers and consumers about tasks.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use relais_core::{Event, Ignored, Outcome, Status, TaskEvent};

use super::{
    Harness,
    world::{
        LONG, at_once, change, claim, claim_for, client, find, json, limits, new_task, one_of_each, record, says,
        service, submit,
    },
};

fn succeeded(attempt: Option<u32>, response: &str) -> Result<Event> {
    Ok(Event::Succeeded { attempt, response: json(response)? })
}

fn failed(attempt: Option<u32>) -> Event {
    Event::failed(attempt, "no such file")
}

/// The first result stays, whatever arrives later.
pub async fn a_task_has_at_most_one_result(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let id = submit(store, new_task(service, client)?).await?.task_id;
    claim(store, service, 1).await?;
    change(store, id, service, succeeded(Some(1), "1")?).await?;
    let ended = find(store, id).await?;
    ensure!(ended.state.status == Status::Success && ended.state.progress == 100.0 && ended.state.ended.is_some());
    for late in [
        succeeded(Some(1), "2")?,
        succeeded(None, "2")?,
        failed(None),
        Event::Cancelled,
        Event::Returned { attempt: None },
    ] {
        let outcome = record(store, id, service, late).await?;
        ensure!(outcome == Outcome::Ignored(Ignored::Ended(Status::Success)), "{outcome:?}");
    }
    let found = find(store, id).await?;
    ensure!(found.state == ended.state && found.response == Some(json("1")?) && found.error_message.is_none());
    Ok(())
}

/// The number of the attempt decides.
pub async fn fencing_ignores_messages_of_a_replaced_worker(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let id = submit(store, new_task(service, client)?).await?.task_id;
    ensure!(claim_for(store, service, 1, Duration::ZERO).await?[0].state.attempt == 1);
    ensure!(store.fire_timers(10).await?.lost == 1);
    let returned = find(store, id).await?;
    ensure!(returned.state.status == Status::Pending && returned.position == Some(1));
    ensure!(claim(store, service, 1).await?[0].state.attempt == 2);
    for stale in [
        succeeded(Some(1), "1")?,
        failed(Some(1)),
        Event::Progressed { attempt: Some(1), progress: 50.0, lease: None },
        Event::Renewed { attempt: Some(1), lease: LONG },
        Event::Returned { attempt: Some(1) },
        Event::Started { attempt: Some(1), worker_host: Some("old".to_owned()), lease: None },
    ] {
        let outcome = record(store, id, service, stale).await?;
        ensure!(outcome == Outcome::Ignored(Ignored::OtherAttempt(2)), "{outcome:?}");
    }
    change(store, id, service, succeeded(Some(2), "\"new\"")?).await?;
    ensure!(find(store, id).await?.response == Some(json("\"new\"")?));
    Ok(())
}

/// Several events of one task are mixed with those of others.
pub async fn events_of_one_call_are_applied_in_order(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let one = submit(store, new_task(service, client)?).await?.task_id;
    let two = submit(store, new_task(service, client)?).await?.task_id;
    let outcomes = store
        .record_events(vec![
            says(one, service, Event::Started { attempt: None, worker_host: Some("h".to_owned()), lease: None }),
            says(two, service, Event::Cancelled),
            says(one, service, Event::Progressed { attempt: None, progress: 12.345678901234567, lease: None }),
            says(one, service, Event::Returned { attempt: Some(1) }),
            says(one, service, Event::Started { attempt: None, worker_host: None, lease: None }),
            says(two, service, succeeded(None, "1")?),
            says(one, service, Event::Progressed { attempt: Some(2), progress: 0.1 + 0.2, lease: None }),
        ])
        .await?;
    ensure!(outcomes.len() == 7 && outcomes[5] == Outcome::Ignored(Ignored::Ended(Status::Cancelled)), "{outcomes:?}");
    let found = find(store, one).await?;
    ensure!(outcomes[6] == Outcome::Applied(found.state.clone()), "{outcomes:?} and {:?}", found.state);
    ensure!(found.state.attempt == 2 && found.state.revision == 5 && found.state.progress == 0.1 + 0.2);
    ensure!(find(store, two).await?.state.status == Status::Cancelled);
    ensure!(store.record_events(Vec::new()).await?.is_empty());
    Ok(())
}

/// Covers another service, another client, and a task that does not exist.
pub async fn events_for_tasks_of_another_service_or_client_are_refused(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (resize, alice) = one_of_each(store).await?;
    let (rotate, bob) = (service(store, "rotate", limits(None)).await?, client(store, "bob").await?);
    let id = submit(store, new_task(resize, alice)?).await?.task_id;
    let cancel = |service, client| TaskEvent { task_id: id, service, client, event: Event::Cancelled };
    let unknown = TaskEvent { task_id: relais_core::TaskId::generate(), ..cancel(resize, None) };
    let outcomes = store
        .record_events(vec![cancel(rotate, None), cancel(resize, Some(bob)), cancel(rotate, Some(alice)), unknown])
        .await?;
    ensure!(outcomes.iter().all(|outcome| *outcome == Outcome::NotFound), "{outcomes:?}");
    ensure!(find(store, id).await?.state.status == Status::Pending);
    let outcome = store.record_events(vec![cancel(resize, Some(alice))]).await?.pop().context("an outcome")?;
    ensure!(matches!(outcome, Outcome::Applied(_)), "{outcome:?}");
    Ok(())
}

/// Many callers end the same tasks concurrently, in batches of different orders.
pub async fn concurrent_results_of_one_task_leave_exactly_one(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let names = super::world::submit_all(store, super::world::new_tasks(service, client, 20)?).await?;
    let applied: usize = at_once(harness, 16, |store, i| {
        let mut names = names.clone();
        names.rotate_left(i);
        if i % 2 == 0 {
            names.reverse();
        }
        async move {
            let mut events = Vec::new();
            for id in names {
                events.push(says(id, service, succeeded(None, &i.to_string())?));
            }
            let outcomes = store.record_events(events).await?;
            Ok(outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Applied(_))).count())
        }
    })
    .await?
    .into_iter()
    .sum();
    ensure!(applied == names.len(), "{} results for {} tasks", applied, names.len());
    Ok(())
}

/// A heartbeat does not change the revision, so nobody is woken.
pub async fn a_heartbeat_extends_the_lease_and_wakes_nobody(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let id = submit(store, new_task(service, client)?).await?.task_id;
    claim_for(store, service, 1, Duration::ZERO).await?;
    let before = find(store, id).await?.state;
    change(store, id, service, Event::Renewed { attempt: Some(1), lease: LONG }).await?;
    let after = find(store, id).await?.state;
    ensure!(after.revision == before.revision && after.lease_until > before.lease_until);
    ensure!(store.fire_timers(10).await?.lost == 0);
    Ok(())
}
