//! Handing tasks out.

use std::{collections::HashSet, time::Duration};

use anyhow::{Result, ensure};
use relais_core::{Change, Event, Outcome, PurgeRule, ServiceLimits, Status, TaskId};

use super::{
    Harness,
    world::{at_once, claim, client, find, limits, name, new_tasks, one_of_each, record, service, submit_all, wish},
};

/// Many claimers, from two processes where there can be two.
pub async fn claimers_at_once_never_share_a_task(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let names = submit_all(store, new_tasks(service, client, 200)?).await?;
    let claimed = at_once(harness, 40, |store, _| async move {
        let mut claimed = Vec::new();
        loop {
            let some = claim(&*store, service, 3).await?;
            if some.is_empty() {
                return Ok(claimed);
            }
            claimed.extend(some.into_iter().map(|task| task.task_id));
        }
    })
    .await?
    .concat();
    // A claimer that passes over what others have locked may find nothing and leave; what it left is still there.
    let rest = claim(store, service, 200).await?.into_iter().map(|task| task.task_id);
    let all: Vec<TaskId> = claimed.into_iter().chain(rest).collect();
    let different: HashSet<TaskId> = all.iter().copied().collect();
    ensure!(different.len() == all.len(), "{} tasks were handed out twice", all.len() - different.len());
    ensure!(different == names.into_iter().collect(), "all were handed out");
    Ok(())
}

/// Across calls, and among the requests of one call.
pub async fn the_oldest_are_handed_out_first_whoever_asks(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (resize, alice) = one_of_each(store).await?;
    let (rotate, bob) = (service(store, "rotate", limits(None)).await?, client(store, "bob").await?);
    let mut names = Vec::new();
    for who in [alice, bob, alice] {
        names.extend(submit_all(store, new_tasks(resize, who, 2)?).await?);
    }
    let other = submit_all(store, new_tasks(rotate, bob, 1)?).await?;

    let answers = store
        .claim(vec![wish(resize, 1, None), wish(rotate, 5, None), wish(resize, 0, None), wish(resize, 3, None)])
        .await?
        .tasks;
    let claimed: Vec<Vec<TaskId>> =
        answers.iter().map(|tasks| tasks.iter().map(|task| task.task_id).collect()).collect();
    ensure!(claimed == [names[..1].to_vec(), other, Vec::new(), names[1..4].to_vec()], "{claimed:?}");
    let first = &answers[0][0];
    ensure!(first.state.status == Status::InProgress && first.state.attempt == 1);
    ensure!(first.state.worker_host.as_deref() == Some("host") && first.state.started.is_some());
    ensure!(find(store, names[0]).await?.state == first.state, "what was told is what is stored");

    let rest: Vec<TaskId> = claim(store, resize, 100).await?.into_iter().map(|task| task.task_id).collect();
    ensure!(rest == names[4..]);
    ensure!(claim(store, resize, 100).await?.is_empty());
    ensure!(store.claim(Vec::new()).await?.tasks.is_empty());
    Ok(())
}

/// Right after somebody looked at them and changed nothing, or only counted them.
pub async fn what_was_left_as_it_was_can_be_claimed_at_once(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let names = submit_all(store, new_tasks(service, client, 20)?).await?;
    for &id in &names {
        let late = Event::Returned { attempt: Some(7) };
        ensure!(matches!(record(store, id, service, late).await?, Outcome::Ignored(_)));
        let rule = PurgeRule {
            service,
            finished: Duration::ZERO,
            any: Duration::ZERO,
            dry_run: true,
            batch: 100,
            cursor: Some((Status::Pending, 0)),
        };
        store.purge(rule).await?;
        let claimed = claim(store, service, 1).await?;
        ensure!(claimed.iter().map(|task| task.task_id).eq([id]), "{claimed:?}");
    }
    Ok(())
}

/// Paused, a service takes in and hands out nothing.
pub async fn a_paused_service_hands_out_nothing_until_it_goes_on(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let pause = |paused| -> Result<Vec<Change>> { Ok(vec![Change::PauseService { name: name("resize")?, paused }]) };
    store.declare(pause(true)?).await?;
    submit_all(store, new_tasks(service, client, 2)?).await?;
    ensure!(claim(store, service, 10).await?.is_empty());
    store.declare(pause(false)?).await?;
    ensure!(claim(store, service, 10).await?.len() == 2);
    Ok(())
}

/// Told by the difference between start and lease.
pub async fn the_lease_is_the_requests_or_else_the_services(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let of_service = Duration::from_millis(90_500);
    let service = service(store, "resize", ServiceLimits { lease: of_service, ..limits(None) }).await?;
    let client = client(store, "alice").await?;
    submit_all(store, new_tasks(service, client, 2)?).await?;
    let of_request = Duration::from_millis(7_250);
    let answers = store.claim(vec![wish(service, 1, None), wish(service, 1, Some(of_request))]).await?.tasks;
    for (tasks, lease) in answers.iter().zip([of_service, of_request]) {
        let state = find(store, tasks[0].task_id).await?.state;
        let (started, until) = (state.started.expect("started"), state.lease_until.expect("a lease"));
        ensure!(until.since(started) == lease, "{:?} instead of {lease:?}", until.since(started));
    }
    Ok(())
}
