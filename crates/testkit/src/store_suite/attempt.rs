//! Attempts, retries, and what timers do to tasks.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use relais_core::{
    AttemptOutcome, Event, Failure, IdsChanged, Ignored, NewTask, Outcome, Priority, RetryPolicy, ServiceKey,
    ServiceLimits, Status, Store, TaskEvent, TaskId, Terms, Timestamp, UniqueKey, Wakeup, WakeupListener, When,
};

use super::{
    Harness,
    world::{
        at_once, change, claim, claim_for, client, find, json, limits, new_task, new_tasks, one_of_each, place,
        put_brokered, put_service, record, service, service_key, submit, submit_all, until_after,
    },
};

const SOON: Duration = Duration::from_millis(30);
const LATER: Duration = Duration::from_secs(3600);

/// A retry policy with this many attempts and this delay.
fn retry(limit: u32, base: Duration) -> RetryPolicy {
    RetryPolicy { limit, base, factor: 1.0, ..RetryPolicy::none() }
}

fn on(terms: Terms, service: ServiceKey, client: relais_core::ClientKey) -> Result<NewTask> {
    Ok(NewTask { terms, ..new_task(service, client)? })
}

/// Waits until a task is due, then fires the timers.
async fn come_due(store: &dyn Store, task_id: TaskId) -> Result<()> {
    let due = find(store, task_id).await?.state.due.context("it waits")?;
    until_after(store, due).await?;
    store.fire_timers(100).await?;
    ensure!(find(store, task_id).await?.state.status == Status::Pending, "its time has come");
    Ok(())
}

/// Every failure is recorded as an attempt, the task waits between attempts, and the last failure ends it.
pub async fn a_failed_task_is_retried_until_its_retry_policy_ends(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let limits = ServiceLimits { retry: retry(2, SOON), ..limits(None) };
    let (service, client) = (service(store, "resize", limits).await?, client(store, "alice").await?);
    let name = submit(store, new_task(service, client)?).await?.task_id;
    for number in 1..=3u32 {
        ensure!(claim(store, service, 1).await?.len() == 1);
        let before = store.ping().await?;
        let failure =
            Failure { trace: Some("at line 7".to_owned()), ..Failure::new(format!("no {number}")).of_kind("ink") };
        change(store, name, service, Event::failure(Some(number), failure)).await?;
        let found = find(store, name).await?;
        ensure!(found.state.failures == number && found.state.attempt == number);
        if number == 3 {
            ensure!(found.state.status == Status::Failure && found.error_message.as_deref() == Some("no 3"));
            ensure!(found.error_kind.as_deref() == Some("ink") && found.error_trace.as_deref() == Some("at line 7"));
            break;
        }
        ensure!(found.state.status == Status::Waiting && found.error_message.is_none() && found.position.is_none());
        ensure!(found.state.due.context("a date")? >= before.after(SOON), "it waits as long as it should");
        ensure!(claim(store, service, 1).await?.is_empty(), "nobody gets it meanwhile");
        let again = record(store, name, service, Event::failed(Some(number), "again")).await?;
        ensure!(again == Outcome::Ignored(Ignored::NotHeld), "{again:?}");
        come_due(store, name).await?;
        ensure!(place(store, name).await? == Some(1));
    }
    let kept = store.list_attempts(find(store, name).await?.id).await?;
    let told: Vec<_> = kept
        .iter()
        .map(|attempt| {
            (attempt.number, attempt.outcome, attempt.failure.as_ref().map(|failure| failure.message.as_str()))
        })
        .collect();
    let expected = [(1, AttemptOutcome::Failure, Some("no 1")), (2, AttemptOutcome::Failure, Some("no 2"))];
    ensure!(told == expected, "{told:?}");
    let failure = kept[0].failure.as_ref().context("a failure")?;
    ensure!(failure.kind.as_deref() == Some("ink") && failure.trace.as_deref() == Some("at line 7"));
    ensure!(kept.iter().all(|attempt| attempt.started.is_some() && attempt.ended >= attempt.started));
    ensure!(kept[0].worker_host.as_deref() == Some("host"));
    Ok(())
}

/// The retry policy of a task overrides that of its service. The worker may override both.
pub async fn the_retry_policy_comes_from_the_task_or_else_the_service(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let limits = ServiceLimits { retry: retry(5, LATER), ..limits(None) };
    let (service, client) = (service(store, "resize", limits).await?, client(store, "alice").await?);
    let own = |policy| on(Terms { retry: Some(policy), ..Terms::default() }, service, client);
    let never = RetryPolicy::none();
    let names = submit_all(store, vec![own(never)?, new_task(service, client)?, new_task(service, client)?]).await?;
    ensure!(claim(store, service, 3).await?.len() == 3);
    for name in &names[..2] {
        change(store, *name, service, Event::failed(None, "no")).await?;
    }
    let failure = Failure { retryable: Some(false), ..Failure::new("never") };
    change(store, names[2], service, Event::failure(None, failure)).await?;
    let mut statuses = Vec::new();
    for name in names {
        statuses.push(find(store, name).await?.state.status);
    }
    ensure!(statuses == [Status::Failure, Status::Waiting, Status::Failure], "{statuses:?}");
    Ok(())
}

/// A return and a lost worker are recorded as attempts and do not count as failures.
pub async fn attempts_that_were_returned_or_lost_are_recorded(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let name = submit(store, new_task(service, client)?).await?.task_id;
    claim(store, service, 1).await?;
    change(store, name, service, Event::Returned { attempt: Some(1) }).await?;
    claim_for(store, service, 1, Duration::ZERO).await?;
    store.fire_timers(10).await?;
    claim(store, service, 1).await?;
    change(store, name, service, Event::Succeeded { attempt: Some(3), response: json("1")? }).await?;
    let found = find(store, name).await?;
    ensure!(found.state.failures == 0 && found.state.attempt == 3 && found.state.losses == 1);
    let kept: Vec<_> =
        store.list_attempts(found.id).await?.into_iter().map(|attempt| (attempt.number, attempt.outcome)).collect();
    ensure!(kept == [(1, AttemptOutcome::Returned), (2, AttemptOutcome::Lost)], "{kept:?}");
    Ok(())
}

/// An ended task is retried by an operator, and its earlier attempts are kept.
pub async fn an_ended_task_can_be_retried_by_an_operator(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let names = submit_all(store, new_tasks(service, client, 4)?).await?;
    ensure!(record(store, names[0], service, Event::Revived).await? == Outcome::Ignored(Ignored::NoEffect));
    claim(store, service, 2).await?;
    ensure!(record(store, names[0], service, Event::Revived).await? == Outcome::Ignored(Ignored::NoEffect));
    change(store, names[0], service, Event::Succeeded { attempt: None, response: json("[1]")? }).await?;
    change(store, names[1], service, Event::failed(None, "no")).await?;
    change(store, names[2], service, Event::Cancelled).await?;
    for name in &names[..3] {
        change(store, *name, service, Event::Revived).await?;
        let found = find(store, *name).await?;
        ensure!(found.state.status == Status::Pending && found.state.ended.is_none() && found.state.failures == 0);
        ensure!(found.response.is_none() && found.error_message.is_none());
    }
    ensure!(place(store, names[3]).await? == Some(4), "they have their places again");
    let kept = store.list_attempts(find(store, names[0]).await?.id).await?;
    ensure!(kept.len() == 1 && kept[0].outcome == AttemptOutcome::Success && kept[0].response == Some(json("[1]")?));
    let kept = store.list_attempts(find(store, names[1]).await?.id).await?;
    ensure!(kept[0].failure.as_ref().is_some_and(|failure| failure.message == "no"));
    ensure!(store.list_attempts(find(store, names[2]).await?.id).await?.is_empty(), "nobody had it");
    let again = claim(store, service, 4).await?;
    ensure!(again.iter().map(|task| task.task_id).eq(names.iter().copied()));
    ensure!(again[0].state.attempt == 2 && again[2].state.attempt == 1, "older attempts are fenced off");
    let late = record(store, names[0], service, Event::failed(Some(1), "late")).await?;
    ensure!(late == Outcome::Ignored(Ignored::OtherAttempt(2)), "{late:?}");
    let backlog = store.backlog().await?;
    let current = |status| {
        let tally = backlog.counters.iter().find(|tally| tally.service == service && tally.status == status);
        tally.map_or(0, relais_core::StatusCounter::current)
    };
    ensure!([Status::Success, Status::Failure, Status::Cancelled].map(current) == [0, 0, 0]);
    ensure!((current(Status::Pending), current(Status::InProgress)) == (0, 4));
    Ok(())
}

/// Before it is due, a delayed task cannot be claimed but counts against the capacity. A wake-up is sent when it is
/// due.
pub async fn a_delayed_task_enters_its_queue_when_it_is_due(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = (service(store, "resize", limits(Some(4))).await?, client(store, "alice").await?);
    let recorder = Arc::new(WakeupRecorder::default());
    store.listen(Arc::clone(&recorder) as _);
    let at = |due| on(Terms { due: Some(due), ..Terms::default() }, service, client);
    let now = store.ping().await?;
    let past = When::At(Timestamp::from_millis(0));
    let tasks = vec![at(When::After(LATER))?, at(When::After(SOON))?, at(past)?, new_task(service, client)?];
    let names = submit_all(store, tasks).await?;
    let heard = recorder.take();
    let timer = heard.iter().find_map(|wakeup| wakeup.timer).context("whoever waits is told when to look")?;
    ensure!(timer >= now.after(SOON) && timer < now.after(LATER), "{timer}");
    let refused = store.submit_many(vec![new_task(service, client)?]).await?;
    ensure!(refused[0] == Err(relais_core::Refusal::ServiceFull), "those that wait need room: {refused:?}");
    let found = find(store, names[1]).await?;
    ensure!(found.state.status == Status::Waiting && found.position.is_none() && found.scheduled == found.state.due);
    ensure!(place(store, names[2]).await? == Some(1) && place(store, names[3]).await? == Some(2));
    let claimed = claim(store, service, 9).await?;
    ensure!(claimed.iter().map(|task| task.task_id).eq(names[2..].iter().copied()));

    until_after(store, timer).await?;
    let passed = store.fire_timers(10).await?;
    ensure!(passed.changed == 1 && passed.lost == 0, "{passed:?}");
    let next = passed.next.context("there is another one")?;
    ensure!(next > Duration::from_secs(60) && next <= LATER, "{next:?}");
    let woken =
        recorder.take().iter().any(|wakeup| wakeup.work == [service] && wakeup.tasks != IdsChanged::These(vec![]));
    ensure!(woken, "workers are woken");
    ensure!(claim(store, service, 9).await?.iter().map(|task| task.task_id).eq([names[1]]));
    change(store, names[0], service, Event::Cancelled).await?;
    ensure!(store.fire_timers(10).await?.changed == 0);
    Ok(())
}

/// Two processes that fire timers concurrently do not both release the task.
pub async fn concurrent_processes_fire_each_timer_once(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let due = Some(When::After(SOON));
    let tasks = (0..200).map(|_| on(Terms { due, ..Terms::default() }, service, client)).collect::<Result<_>>()?;
    let names = submit_all(store, tasks).await?;
    until_after(store, find(store, names[199]).await?.state.due.context("a date")?).await?;
    let changed = at_once(harness, 8, |store, _| async move {
        let mut changed = 0;
        loop {
            let passed = store.fire_timers(17).await?;
            changed += passed.changed;
            if passed.changed == 0 {
                return Ok(changed);
            }
        }
    })
    .await?;
    ensure!(changed.iter().sum::<usize>() == 200, "{changed:?}");
    ensure!(claim(store, service, 300).await?.len() == 200);
    Ok(())
}

/// A task that nobody starts before its expiry fails. A task that was started does not expire.
pub async fn a_task_that_expires_before_it_starts_fails(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let terms = Terms { expires: Some(SOON), ..Terms::default() };
    let waiting = Terms { due: Some(When::After(LATER)), ..terms.clone() };
    let tasks = vec![on(terms.clone(), service, client)?, on(terms, service, client)?, on(waiting, service, client)?];
    let names = submit_all(store, tasks).await?;
    ensure!(claim(store, service, 1).await?[0].task_id == names[0]);
    let expires = find(store, names[1]).await?.state.expires.context("a date")?;
    until_after(store, expires).await?;
    ensure!(store.fire_timers(10).await?.changed == 1);
    ensure!(find(store, names[0]).await?.state.status == Status::InProgress);
    let late = find(store, names[1]).await?;
    ensure!(late.state.status == Status::Failure && late.error_kind.as_deref() == Some("expired"));
    ensure!(store.list_attempts(late.id).await?.is_empty());
    ensure!(find(store, names[2]).await?.state.status == Status::Waiting, "its time counts from when it is due");
    Ok(())
}

/// An attempt past its timeout is refused as overdue, and its worker knows the deadline.
pub async fn the_worker_of_an_attempt_past_its_timeout_gets_overdue(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let limits = ServiceLimits { timeout: Some(SOON), ..limits(None) };
    let (service, client) = (service(store, "resize", limits).await?, client(store, "alice").await?);
    let own = on(Terms { timeout: Some(LATER), ..Terms::default() }, service, client)?;
    let names = submit_all(store, vec![new_task(service, client)?, own]).await?;
    let claimed = claim(store, service, 2).await?;
    let deadline = claimed[0].state.deadline.context("a deadline")?;
    ensure!(claimed[0].state.started.context("it runs")?.after(SOON) == deadline);
    until_after(store, deadline).await?;
    let renew = |attempt| Event::Renewed { attempt, lease: LATER };
    ensure!(record(store, names[0], service, renew(Some(1))).await? == Outcome::Ignored(Ignored::Overdue));
    change(store, names[1], service, renew(Some(1))).await?;
    ensure!(store.fire_timers(10).await?.changed == 0, "its worker has a while to stop by itself");
    Ok(())
}

/// Among tasks that were submitted at about the same time, the highest priority goes first.
pub async fn tasks_with_higher_priority_go_first_and_do_not_starve_others(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let step = Duration::from_secs(60);
    let task = |level| {
        let priority = Priority::new(level).context("a priority")?;
        on(Terms { priority, head_start: priority.head_start(step), ..Terms::default() }, service, client)
    };
    let levels = [4, 0, 9, 4, 7, 0, 9];
    let tasks = levels.iter().map(|level| task(*level)).collect::<Result<_>>()?;
    submit_all(store, tasks).await?;
    let claimed = claim(store, service, 5).await?;
    let order: Vec<u8> = claimed.iter().map(|task| task.priority.level()).collect();
    ensure!(order == [9, 9, 7, 4, 4], "{order:?}");
    ensure!(claimed[0].id < claimed[1].id && claimed[3].id < claimed[4].id, "those alike in their order");
    // A task of normal priority that was submitted long ago goes before all of them.
    let old = Terms { head_start: 3_600_000, ..task(0)?.terms };
    let old = submit(store, on(old, service, client)?).await?.task_id;
    ensure!(claim(store, service, 1).await?[0].task_id == old);
    Ok(())
}

/// A delayed task ranks as if it were submitted at its due time, so it does not overtake tasks submitted before that.
pub async fn a_delayed_task_does_not_overtake_tasks_submitted_before_its_due_time(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let scheduled = |wait| on(Terms { due: Some(When::After(wait)), ..Terms::default() }, service, client);
    // They were submitted in the same millisecond.
    let first = submit_all(store, vec![scheduled(LATER)?, scheduled(SOON)?, new_task(service, client)?]).await?;
    let [tomorrow, later, at_once] = first[..] else { bail!("{first:?}") };
    come_due(store, later).await?;
    let after = submit(store, new_task(service, client)?).await?.task_id;
    // A retry by an operator counts from now.
    until_after(store, find(store, after).await?.submitted).await?;
    change(store, tomorrow, service, Event::Revived).await?;
    until_after(store, store.ping().await?).await?;
    let last = submit(store, new_task(service, client)?).await?.task_id;
    let urgent = Terms { head_start: 60_000, ..Terms::default() };
    let urgent = submit(store, on(urgent, service, client)?).await?.task_id;
    let order: Vec<_> = claim(store, service, 9).await?.into_iter().map(|task| task.task_id).collect();
    ensure!(order == [urgent, at_once, later, after, tomorrow, last], "{order:?}");
    Ok(())
}

/// Concurrent submissions with one unique key create one task. The key is free when that task has ended.
pub async fn a_unique_key_allows_one_unfinished_task_at_a_time(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, alice) = one_of_each(store).await?;
    let bob = client(store, "bob").await?;
    let keyed = move |client, lasting| {
        let unique = Some(UniqueKey { key: "report 7".to_owned(), lasting });
        on(Terms { unique, ..Terms::default() }, service, client)
    };
    let answers = at_once(harness, 20, |store, _| async move {
        let answers = store.submit_many(vec![keyed(alice, None)?, keyed(alice, None)?]).await?;
        Ok(answers.into_iter().collect::<Result<Vec<_>, _>>()?)
    })
    .await?;
    let answers: Vec<_> = answers.into_iter().flatten().collect();
    ensure!(answers.iter().filter(|answer| answer.is_new()).count() == 1, "{answers:?}");
    let first = answers[0].task_id;
    ensure!(answers.iter().all(|answer| answer.task_id == first && (answer.is_new() || answer.duplicate)));
    ensure!(submit(store, keyed(bob, None)?).await?.is_new(), "other clients have keys of their own");

    change(store, first, service, Event::Cancelled).await?;
    // A task that is retried holds its unique key again.
    change(store, first, service, Event::Revived).await?;
    let twin = submit(store, keyed(alice, None)?).await?;
    ensure!(twin.duplicate && twin.task_id == first, "{twin:?}");
    change(store, first, service, Event::Cancelled).await?;
    let lasting = submit(store, keyed(alice, Some(LATER))?).await?;
    ensure!(lasting.is_new() && lasting.task_id != first);
    change(store, lasting.task_id, service, Event::Cancelled).await?;
    ensure!(submit(store, keyed(alice, None)?).await?.duplicate, "it lasts longer than its task");
    let short = submit(store, {
        let unique = Some(UniqueKey { key: "short".to_owned(), lasting: Some(SOON) });
        on(Terms { unique, ..Terms::default() }, service, alice)?
    })
    .await?;
    until_after(store, find(store, short.task_id).await?.submitted.after(SOON * 2)).await?;
    let unique = Some(UniqueKey { key: "short".to_owned(), lasting: None });
    ensure!(submit(store, on(Terms { unique, ..Terms::default() }, service, alice)?).await?.is_new());
    store.purge_keys(LATER).await?;
    ensure!(submit(store, keyed(alice, None)?).await?.duplicate, "what still counts is not forgotten");
    Ok(())
}

/// Tasks of a broker service are dispatched when they are due, and again when a retry is due.
pub async fn delayed_and_retried_broker_tasks_are_dispatched_when_they_are_due(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let limits = ServiceLimits { retry: retry(1, SOON), ..limits(None) };
    store.declare(vec![put_brokered("print", limits)?]).await?;
    let (service, client) = (service_key(store, "print").await?, client(store, "alice").await?);
    let due = Some(When::After(SOON));
    let name = submit(store, on(Terms { due, ..Terms::default() }, service, client)?).await?.task_id;
    ensure!(store.claim_dispatches(vec![service], 10, LATER).await?.tasks.is_empty(), "not yet");
    come_due(store, name).await?;
    let first = store.claim_dispatches(vec![service], 10, LATER).await?.tasks;
    ensure!(first.len() == 1 && first[0].name.task_id == name);
    // The task is published, run and failed before the publication is acknowledged.
    let delivered = Event::Delivered { worker_host: Some("pod".to_owned()), again: false, delivery_limit: 9 };
    change(store, name, service, delivered).await?;
    change(store, name, service, Event::failed(None, "no")).await?;
    come_due(store, name).await?;
    let names = first.into_iter().map(|due| due.name).collect();
    store.complete_dispatches(names, relais_core::Dispatched::Done).await?;
    let second = store.claim_dispatches(vec![service], 10, LATER).await?.tasks;
    ensure!(second.len() == 1 && second[0].request.is_some(), "what was published before is not done: {second:?}");
    Ok(())
}

/// A service that forbids retries overrides the policy of its tasks, also of those submitted earlier.
pub async fn a_service_that_forbids_retries_overrides_the_policy_of_a_task(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let of = |retry| ServiceLimits { retry, ..limits(None) };
    let paper = RetryPolicy { except_kinds: vec!["paper".to_owned()], ..RetryPolicy::none() };
    let (service, client) = (service(store, "resize", of(paper)).await?, client(store, "alice").await?);
    let own = || on(Terms { retry: Some(retry(9, SOON)), ..Terms::default() }, service, client);
    let names = submit_all(store, vec![own()?, own()?, own()?]).await?;
    claim(store, service, 3).await?;
    let jam = |kind: &str| Event::failure(None, Failure::new("jam").of_kind(kind));
    for (name, kind, status) in [(names[0], "paper", Status::Failure), (names[1], "ink", Status::Waiting)] {
        change(store, name, service, jam(kind)).await?;
        ensure!(find(store, name).await?.state.status == status, "{kind}");
    }
    store.declare(vec![put_service("resize", of(RetryPolicy::never()))?]).await?;
    change(store, names[2], service, jam("ink")).await?;
    ensure!(find(store, names[2]).await?.state.status == Status::Failure);
    Ok(())
}

/// The time limit of a retry policy starts again when an operator retries the task.
pub async fn a_retry_by_an_operator_starts_the_retry_policy_from_the_beginning(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let within = Duration::from_secs(3600);
    let limits = ServiceLimits { retry: RetryPolicy { within: Some(within), ..retry(9, SOON) }, ..limits(None) };
    let (service, client) = (service(store, "resize", limits).await?, client(store, "alice").await?);
    let name = submit(store, new_task(service, client)?).await?.task_id;
    store.advance(within + SOON).await?;
    for status in [Status::Failure, Status::Waiting] {
        claim(store, service, 1).await?;
        change(store, name, service, Event::failed(None, "no")).await?;
        let state = find(store, name).await?.state;
        ensure!(state.status == status, "{state:?}");
        if status == Status::Failure {
            change(store, name, service, Event::Revived).await?;
        }
    }
    Ok(())
}

/// An ended task cannot be retried while another task holds its unique key.
pub async fn a_retry_is_refused_while_another_task_holds_the_unique_key(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let keyed = |lasting| {
        let unique = Some(UniqueKey { key: "report 7".to_owned(), lasting });
        on(Terms { unique, ..Terms::default() }, service, client)
    };
    let revive = |task_id| record(store, task_id, service, Event::Revived);
    let taken = Outcome::Ignored(Ignored::KeyTaken);
    let old = submit(store, keyed(None)?).await?.task_id;
    change(store, old, service, Event::Cancelled).await?;
    let new = submit(store, keyed(None)?).await?.task_id;
    ensure!(revive(old).await? == taken);
    ensure!(find(store, old).await?.state.status == Status::Cancelled, "it stays as it was");
    change(store, new, service, Event::Cancelled).await?;
    // Of two concurrent retries, one succeeds.
    let event = |task_id| TaskEvent { task_id, service, client: None, event: Event::Revived };
    let outcomes = store.record_events(vec![event(old), event(new)]).await?;
    let applied = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Applied(_))).count();
    ensure!(applied == 1 && outcomes.contains(&taken), "{outcomes:?}");
    let live = if outcomes[0] == taken { new } else { old };
    ensure!(submit(store, keyed(None)?).await?.task_id == live);
    change(store, live, service, Event::Cancelled).await?;
    // A unique key with a period refuses new submissions, but does not refuse a retry of its own task.
    let lasting = submit(store, keyed(Some(LATER))?).await?.task_id;
    ensure!(revive(old).await? == taken);
    change(store, lasting, service, Event::Cancelled).await?;
    change(store, old, service, Event::Revived).await?;
    Ok(())
}

/// A purge removes the attempts and the unique key of a task. A delayed task is not old before it is due.
pub async fn a_purge_removes_attempts_and_unique_keys_with_their_task(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let unique = Some(UniqueKey { key: "report 7".to_owned(), lasting: None });
    let keyed = on(Terms { unique, ..Terms::default() }, service, client)?;
    let later = on(Terms { due: Some(When::After(LATER)), ..Terms::default() }, service, client)?;
    let later = submit(store, later).await?.task_id;
    let name = submit(store, keyed.clone()).await?.task_id;
    claim(store, service, 1).await?;
    change(store, name, service, Event::Returned { attempt: None }).await?;
    let id = find(store, name).await?.id;
    ensure!(store.list_attempts(id).await?.len() == 1);
    let (mut rule, now) = (purge_all(service), store.ping().await?);
    until_after(store, now).await?;
    loop {
        let report = store.purge_tasks(rule).await?;
        rule.cursor = report.cursor;
        if rule.cursor.is_none() {
            break;
        }
    }
    ensure!(store.find_task(name).await?.is_none() && store.list_attempts(id).await?.is_empty());
    ensure!(store.find_task(later).await?.is_some(), "its time has not come");
    let again = NewTask { task_id: TaskId::generate(), ..keyed };
    ensure!(submit(store, again).await?.is_new(), "nobody has its key");
    Ok(())
}

fn purge_all(service: ServiceKey) -> relais_core::PurgeRule {
    relais_core::PurgeRule {
        service,
        finished: Duration::ZERO,
        any: Duration::ZERO,
        dry_run: false,
        batch: 10,
        cursor: None,
    }
}

/// Collects the wake-ups that it receives.
#[derive(Default)]
struct WakeupRecorder(Mutex<Vec<Wakeup>>);

impl WakeupRecorder {
    fn take(&self) -> Vec<Wakeup> {
        std::mem::take(&mut *self.0.lock().expect("nobody panicked"))
    }
}

impl WakeupListener for WakeupRecorder {
    fn wake(&self, wakeup: &Wakeup) {
        self.0.lock().expect("nobody panicked").push(wakeup.clone());
    }
}
