//! Dependencies between tasks.

use anyhow::{Context, Result, ensure};
use relais_core::{
    After, ClaimRequest, ClientKey, Condition, CrashPolicy, Event, NewInstance, NewLinks, NewTask, PurgeRule, Refusal,
    Registration, ServiceKey, Status, Store, TaskFilter, TaskId, TaskLink, Terms, TraceContext, UniqueKey, When,
};
use std::time::Duration;

use super::{
    Harness,
    world::{
        DEADLINE, LONG, a_moment, at_once, change, claim, client, filter, find, json, limits, list_all, new_task,
        new_tasks, one_of_each, put_brokered, says, service, service_key, submit, submit_all, until_after,
    },
};

const CONTEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

pub(super) fn after(task: NewTask, others: &[TaskId], when: Condition) -> NewTask {
    let after = Some(After { tasks: others.to_vec(), when });
    NewTask { links: NewLinks { after, ..task.links.clone() }, ..task }
}

fn succeeded() -> Result<Event> {
    Ok(Event::Succeeded { attempt: None, response: json("{}")? })
}

/// Resolves all dependencies of ended tasks, until there is nothing left to do.
pub(super) async fn resolve_all(store: &dyn Store) -> Result<usize> {
    let (mut changed, start) = (0, std::time::Instant::now());
    loop {
        let resolved = store.resolve_dependencies(500).await?;
        changed += resolved.changed;
        if !resolved.more {
            return Ok(changed);
        }
        ensure!(start.elapsed() < DEADLINE, "there is always more to tell");
    }
}

async fn status(store: &dyn Store, id: TaskId) -> Result<Status> {
    Ok(find(store, id).await?.state.status)
}

/// A dependent task is released when its condition is met, and not before.
pub async fn a_task_waits_until_the_condition_of_its_dependency_is_met(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let firsts = submit_all(store, vec![new_task(service, client)?, new_task(service, client)?]).await?;
    let mut waiting = Vec::new();
    for when in Condition::ALL {
        waiting.push(submit(store, after(new_task(service, client)?, &firsts, when)).await?.task_id);
    }
    for &id in &waiting {
        let task = find(store, id).await?;
        ensure!(task.state.is_blocked() && task.position.is_none(), "{:?}", task.state);
        let names: Vec<TaskId> = task.links.after.iter().map(|one| one.task_id).collect();
        ensure!(names == firsts && task.links.after.iter().all(|one| one.ended.is_none()), "{:?}", task.links);
    }
    ensure!(claim(store, service, 10).await?.len() == 2, "nobody gets what waits");

    change(store, firsts[0], service, succeeded()?).await?;
    resolve_all(store).await?;
    let found = [status(store, waiting[0]).await?, status(store, waiting[1]).await?, status(store, waiting[2]).await?];
    ensure!(found == [Status::Waiting, Status::Waiting, Status::Pending], "one has ended: {found:?}");
    change(store, firsts[1], service, Event::failed(None, "no")).await?;
    resolve_all(store).await?;
    let failed = find(store, waiting[0]).await?;
    ensure!(failed.state.status == Status::Failure && failed.error_kind.as_deref() == Some("dependency"), "{failed:?}");
    ensure!(failed.error_message.clone().context("why")?.contains(&firsts[1].to_string()), "{failed:?}");
    ensure!(status(store, waiting[1]).await? == Status::Pending, "both have ended");
    let claimed: Vec<TaskId> = claim(store, service, 10).await?.iter().map(|task| task.task_id).collect();
    ensure!(claimed == [waiting[1], waiting[2]], "{claimed:?}");
    let ends: Vec<_> = find(store, waiting[1]).await?.links.after.iter().map(|one| one.ended).collect();
    ensure!(ends == [Some(Status::Success), Some(Status::Failure)], "{ends:?}");
    Ok(())
}

/// A dependency on a task that has already ended is resolved at submission.
pub async fn a_dependency_on_an_ended_task_is_resolved_at_submission(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let ids = submit_all(store, vec![new_task(service, client)?, new_task(service, client)?]).await?;
    change(store, ids[0], service, succeeded()?).await?;
    change(store, ids[1], service, Event::Cancelled).await?;
    for (others, when, expected) in [
        (vec![ids[0]], Condition::AllSucceeded, Status::Pending),
        (ids.clone(), Condition::AllEnded, Status::Pending),
        (ids.clone(), Condition::AllSucceeded, Status::Failure),
    ] {
        let id = submit(store, after(new_task(service, client)?, &others, when)).await?.task_id;
        resolve_all(store).await?;
        ensure!(status(store, id).await? == expected, "{others:?} {when:?}");
    }
    Ok(())
}

/// A failure fails the dependents step by step to the end of the chain.
pub async fn a_failure_fails_all_dependents_down_the_chain(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let mut chain = vec![submit(store, new_task(service, client)?).await?.task_id];
    for _ in 0..30 {
        let last = *chain.last().context("the last")?;
        chain.push(submit(store, after(new_task(service, client)?, &[last], Condition::AllSucceeded)).await?.task_id);
    }
    let after_all = after(new_task(service, client)?, &[chain[30]], Condition::AllEnded);
    let after_all = submit(store, after_all).await?.task_id;
    change(store, chain[0], service, Event::failed(None, "no")).await?;
    resolve_all(store).await?;
    for pair in chain.windows(2) {
        let task = find(store, pair[1]).await?;
        ensure!(task.state.status == Status::Failure, "{:?}", task.state);
        ensure!(task.error_message.context("why")?.contains(&pair[0].to_string()), "each names the one before");
    }
    ensure!(status(store, after_all).await? == Status::Pending, "one that waits for any end goes on");
    ensure!(!store.resolve_dependencies(500).await?.more, "nothing is left to tell");
    Ok(())
}

/// Many tasks depend on one task and are released in portions.
pub async fn many_dependents_of_one_task_are_released_in_portions(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let first = submit(store, new_task(service, client)?).await?.task_id;
    let waiting = (0..120).map(|_| Ok(after(new_task(service, client)?, &[first], Condition::AllSucceeded)));
    let waiting = submit_all(store, waiting.collect::<Result<_>>()?).await?;
    change(store, first, service, succeeded()?).await?;
    let mut rounds = 0;
    while store.resolve_dependencies(50).await?.more {
        rounds += 1;
        ensure!(rounds < 20, "there is always more to tell");
    }
    ensure!(rounds >= 2, "not all in one transaction");
    ensure!(claim(store, service, 200).await?.len() == waiting.len(), "all of them go on");
    Ok(())
}

/// A task may depend on earlier tasks of the same call. If one is refused, its dependents are refused too.
pub async fn tasks_of_one_submission_can_depend_on_each_other(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (resize, alice) = one_of_each(store).await?;
    let full = service(store, "full", limits(Some(0))).await?;
    let first = NewTask { correlation_id: Some("c".to_owned()), ..new_task(resize, alice)? };
    let second = after(new_task(resize, alice)?, &[first.task_id], Condition::AllSucceeded);
    let third = after(new_task(resize, alice)?, &[first.task_id, second.task_id], Condition::AllSucceeded);
    let refused = new_task(full, alice)?;
    let fourth = after(new_task(resize, alice)?, &[refused.task_id], Condition::AllEnded);
    let names = [first.task_id, second.task_id, third.task_id];
    let answers = store.submit_many(vec![first, second, third, refused, fourth]).await?;
    ensure!(answers[3] == Err(Refusal::ServiceFull) && answers[4] == Err(Refusal::PrerequisiteNotFound), "{answers:?}");
    ensure!(answers[..3].iter().all(Result::is_ok), "{answers:?}");
    for name in names {
        let claimed: Vec<TaskId> = claim(store, resize, 10).await?.iter().map(|task| task.task_id).collect();
        ensure!(claimed == [name], "one after the other: {claimed:?}");
        change(store, name, resize, succeeded()?).await?;
        resolve_all(store).await?;
    }
    ensure!(find(store, names[2]).await?.correlation_id.as_deref() == Some("c"), "it goes with the chain");

    // An existing task with the same key takes the place of a duplicate.
    let unique = Some(UniqueKey { key: "k".to_owned(), lasting: None });
    let keyed = || {
        Ok::<_, anyhow::Error>(NewTask {
            terms: Terms { unique: unique.clone(), ..Terms::default() },
            ..new_task(resize, alice)?
        })
    };
    let there = submit(store, keyed()?).await?.task_id;
    let double = keyed()?;
    let waits = after(new_task(resize, alice)?, &[double.task_id], Condition::AllSucceeded);
    let waits_for = waits.task_id;
    submit_all(store, vec![double, waits]).await?;
    ensure!(find(store, waits_for).await?.links.after[0].task_id == there, "it waits for the one that is there");
    change(store, there, resize, succeeded()?).await?;
    resolve_all(store).await?;
    ensure!(status(store, waits_for).await? == Status::Pending, "and goes on with it");
    Ok(())
}

/// A dependency on a task that does not exist, or that belongs to another client, is refused.
pub async fn a_dependency_on_a_missing_or_foreign_task_is_refused(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, alice) = one_of_each(store).await?;
    let bob = client(store, "bob").await?;
    let alices = submit(store, new_task(service, alice)?).await?.task_id;
    for (who, other) in [(bob, alices), (alice, TaskId::generate())] {
        let task = after(new_task(service, who)?, &[other], Condition::AnyEnded);
        ensure!(store.submit_many(vec![task]).await? == [Err(Refusal::PrerequisiteNotFound)], "{who:?}");
    }
    // The result is the same in one transaction with other submissions.
    let bobs = new_task(service, bob)?;
    let thief = after(new_task(service, alice)?, &[bobs.task_id], Condition::AnyEnded);
    let answers = store.submit_many(vec![bobs, thief]).await?;
    ensure!(answers[0].is_ok() && answers[1] == Err(Refusal::PrerequisiteNotFound), "{answers:?}");
    Ok(())
}

/// Whichever commits first, no dependent task waits for ever, and none is released too early.
pub async fn concurrent_ends_and_submissions_leave_no_dependent_waiting(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let mut dependents = Vec::new();
    for _ in 0..8 {
        let firsts = submit_all(store, vec![new_task(service, client)?, new_task(service, client)?]).await?;
        let names = at_once(harness, 12, move |store, i| {
            let firsts = firsts.clone();
            async move {
                let store = &*store;
                if i < 2 {
                    change(store, firsts[i], service, succeeded()?).await?;
                    return Ok(None);
                }
                if i % 3 == 0 {
                    store.resolve_dependencies(3).await?;
                }
                let task = after(new_task(service, client)?, &firsts, Condition::AllSucceeded);
                Ok(Some(submit(store, task).await?.task_id))
            }
        });
        dependents.extend(names.await?.into_iter().flatten());
    }
    let resolved = at_once(harness, 4, |store, _| async move { resolve_all(&*store).await });
    resolved.await?;
    resolve_all(store).await?;
    for id in dependents {
        ensure!(status(store, id).await? == Status::Pending, "it waits for ever: {id}");
    }
    Ok(())
}

/// Two transactions concurrently end the dependencies of a third task, and tasks that depend on each other across them.
pub async fn concurrent_ends_of_dependencies_do_not_deadlock(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    // Task 2 depends on 1, 3 on 2, and so on. Each is ended by some process, in batches that overlap backwards.
    for _ in 0..6 {
        let mut tasks = vec![new_task(service, client)?];
        for i in 0..19 {
            let before: Vec<TaskId> = tasks.iter().rev().take(1 + i % 3).map(|task| task.task_id).collect();
            tasks.push(after(new_task(service, client)?, &before, Condition::AllEnded));
        }
        let ids = submit_all(store, tasks).await?;
        let all = ids.clone();
        let done = at_once(harness, 16, move |store, i| {
            let ids = ids.clone();
            async move {
                let some = ids.iter().skip(i % 5).step_by(1 + i % 4).copied();
                let events: Vec<_> = some.map(|id| says(id, service, Event::Cancelled)).collect();
                store.record_events(events).await?;
                store.resolve_dependencies(7).await?;
                Ok(())
            }
        });
        done.await?;
        resolve_all(store).await?;
        for id in all {
            ensure!(status(store, id).await?.is_final(), "all were given up");
        }
    }
    Ok(())
}

/// A dependent task is released no earlier than its due time, and expires as it should.
pub async fn a_dependent_task_keeps_its_due_time_and_its_expiry(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let first = submit(store, new_task(service, client)?).await?.task_id;
    let terms = |due: Option<Duration>, expires: Option<Duration>| Terms {
        due: due.map(When::After),
        expires,
        ..Terms::default()
    };
    let wait = Duration::from_millis(300);
    let mut ids = Vec::new();
    for terms in [terms(Some(wait), None), terms(Some(LONG), None), terms(None, Some(Duration::from_millis(1)))] {
        let task = NewTask { terms, ..new_task(service, client)? };
        ids.push(submit(store, after(task, &[first], Condition::AllSucceeded)).await?.task_id);
    }
    let scheduled = find(store, ids[0]).await?.scheduled.context("for when it was asked")?;
    until_after(store, find(store, ids[2]).await?.submitted.after(Duration::from_millis(2))).await?;
    store.fire_timers(100).await?;
    ensure!(find(store, ids[2]).await?.error_kind.as_deref() == Some("expired"), "nobody started it in time");
    change(store, first, service, succeeded()?).await?;
    resolve_all(store).await?;
    let later = find(store, ids[1]).await?;
    ensure!(later.state.status == Status::Waiting && later.state.due == later.scheduled, "its time has not come");
    until_after(store, scheduled).await?;
    store.fire_timers(100).await?;
    ensure!(status(store, ids[0]).await? == Status::Pending, "its time has come");
    ensure!(status(store, ids[2]).await? == Status::Failure, "what has failed has failed");
    Ok(())
}

/// A retry by an operator starts the task now, whatever it depended on and however that ended.
pub async fn a_retry_by_an_operator_ignores_dependencies(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let firsts = submit_all(store, vec![new_task(service, client)?, new_task(service, client)?]).await?;
    let blocked = submit(store, after(new_task(service, client)?, &firsts, Condition::AllSucceeded)).await?.task_id;
    let barred = submit(store, after(new_task(service, client)?, &firsts, Condition::AllSucceeded)).await?.task_id;
    change(store, blocked, service, Event::Revived).await?;
    ensure!(status(store, blocked).await? == Status::Pending, "now");
    change(store, firsts[0], service, Event::failed(None, "no")).await?;
    resolve_all(store).await?;
    ensure!(status(store, blocked).await? == Status::Pending, "it hears of nothing any more");
    ensure!(status(store, barred).await? == Status::Failure, "the other does");
    change(store, barred, service, Event::Revived).await?;
    change(store, firsts[1], service, succeeded()?).await?;
    resolve_all(store).await?;
    ensure!(status(store, barred).await? == Status::Pending, "what ends later does not bar it again");
    // A dependency that is retried and ends differently changes nothing for dependents that were already released.
    change(store, firsts[0], service, Event::Revived).await?;
    change(store, firsts[0], service, succeeded()?).await?;
    resolve_all(store).await?;
    ensure!(find(store, barred).await?.links.after[0].ended == Some(Status::Failure), "the first end counts");
    Ok(())
}

/// A purge keeps tasks that others depend on, and a dependency that disappeared without an end is noticed.
pub async fn a_task_with_unfinished_dependents_is_not_purged(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let first = submit(store, new_task(service, client)?).await?.task_id;
    let other = submit(store, new_task(service, client)?).await?.task_id;
    let waits = submit(store, after(new_task(service, client)?, &[first], Condition::AllSucceeded)).await?.task_id;
    a_moment(store).await?;
    let purge = async || -> Result<u64> {
        let (mut purged, mut cursor) = (0, None);
        loop {
            let (finished, any) = (Duration::ZERO, Duration::ZERO);
            let rule = PurgeRule { service, finished, any, dry_run: false, batch: 100, cursor };
            let report = store.purge_tasks(rule).await?;
            purged += report.purged;
            cursor = report.cursor;
            if cursor.is_none() {
                return Ok(purged);
            }
        }
    };
    // All are too old. The purge removes the dependent task first, and its dependency the next time.
    purge().await?;
    ensure!(
        store.find_task(other).await?.is_none() && store.find_task(waits).await?.is_none(),
        "what nobody waits for"
    );
    purge().await?;
    ensure!(store.find_task(first).await?.is_none(), "nobody waits for it any more");

    let first = submit(store, new_task(service, client)?).await?.task_id;
    let waits = submit(store, after(new_task(service, client)?, &[first], Condition::AllEnded)).await?.task_id;
    change(store, first, service, succeeded()?).await?;
    a_moment(store).await?;
    let rule = PurgeRule { service, finished: Duration::ZERO, any: LONG, dry_run: false, batch: 100, cursor: None };
    store.purge_tasks(rule).await?;
    ensure!(store.find_task(first).await?.is_some(), "nobody was told of its end yet");
    resolve_all(store).await?;
    ensure!(status(store, waits).await? == Status::Pending, "now they were");
    store.purge_tasks(rule).await?;
    ensure!(store.find_task(first).await?.is_none(), "and it can go");
    ensure!(find(store, waits).await?.links.after[0].task_id == first, "what it waited for is still known");
    Ok(())
}

/// The sweep resolves an end whose wake-up was lost.
pub async fn the_sweep_finds_an_end_whose_dependents_were_not_released(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let firsts = submit_all(store, vec![new_task(service, client)?, new_task(service, client)?]).await?;
    let waits = submit(store, after(new_task(service, client)?, &firsts, Condition::AnyEnded)).await?.task_id;
    change(store, firsts[0], service, succeeded()?).await?;
    resolve_all(store).await?;
    ensure!(status(store, waits).await? == Status::Pending, "one is enough");
    // The other dependency is still open. This end releases nobody, and is recorded all the same.
    change(store, firsts[1], service, succeeded()?).await?;
    let mut from = 0;
    while let Some(next) = store.recheck_dependencies(from, 1).await? {
        from = next;
    }
    resolve_all(store).await?;
    ensure!(find(store, waits).await?.links.after.iter().all(|one| one.ended.is_some()), "all are resolved");
    ensure!(store.recheck_dependencies(0, 10).await?.is_none(), "nothing is left to look at");
    Ok(())
}

/// A task that an instance has leased, and has not written to, can be depended on. Its dependents are released once.
pub async fn a_dependency_on_a_task_leased_by_an_instance_is_released(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let first = submit_all(store, new_tasks(service, client, 3)?).await?;
    let instance = NewInstance {
        name: "one".to_owned(),
        host: None,
        version: "1".to_owned(),
        policy: CrashPolicy::Restart,
        silence: LONG,
        services: vec![service],
    };
    let Registration::In { key, .. } = store.register_instance(instance).await? else { anyhow::bail!("it may join") };
    let request = ClaimRequest { service, max: 3, lease: None, worker_host: None, instance: Some(key) };
    let taken = store.claim_tasks(vec![request]).await?.tasks.pop().context("one request has one answer")?;
    ensure!(taken.len() == 3, "{taken:?}");
    let waits = submit(store, after(new_task(service, client)?, &first[..2], Condition::AllSucceeded)).await?.task_id;
    let both = submit(store, after(new_task(service, client)?, &first[..1], Condition::AllEnded)).await?.task_id;
    for task in &taken {
        let event = Event::Succeeded { attempt: Some(task.state.attempt), response: json("{}")? };
        change(store, task.task_id, service, event).await?;
        ensure!(find(store, task.task_id).await?.state.attempt == 1, "at the first try");
    }
    resolve_all(store).await?;
    for id in [waits, both] {
        ensure!(status(store, id).await? == Status::Pending, "those who wait are told");
    }
    Ok(())
}

/// A dependent task is published when it enters its queue, and not before.
pub async fn a_dependent_broker_task_is_dispatched_when_it_is_released(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    store.declare(vec![put_brokered("print", limits(None))?]).await?;
    let print = service_key(store, "print").await?;
    let first = submit(store, new_task(service, client)?).await?.task_id;
    let trace = TraceContext::parse(CONTEXT, None);
    let waits = after(new_task(print, client)?, &[first], Condition::AllSucceeded);
    let waits = NewTask { links: NewLinks { trace: trace.clone(), ..waits.links.clone() }, ..waits };
    let id = submit(store, waits).await?.task_id;
    ensure!(store.claim_dispatches(vec![print], 10, LONG).await?.tasks.is_empty(), "not before");
    change(store, first, service, succeeded()?).await?;
    resolve_all(store).await?;
    let due = store.claim_dispatches(vec![print], 10, LONG).await?.tasks;
    ensure!(due.len() == 1 && due[0].name.task_id == id && due[0].trace == trace, "{due:?}");
    Ok(())
}

/// A chain keeps its correlation id, its trace and its parents, and lists find it by them.
pub async fn tasks_of_a_chain_share_correlation_and_trace_and_are_listed_together(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (resize, alice) = one_of_each(store).await?;
    let (print, bob) = (service(store, "print", limits(None)).await?, client(store, "bob").await?);
    let trace = TraceContext::parse(CONTEXT, Some("a=1"));
    let told = |service: ServiceKey, client: ClientKey, parent: Option<TaskId>| {
        Ok::<_, anyhow::Error>(NewTask {
            correlation_id: Some("order-1".to_owned()),
            links: NewLinks { parent, trace: trace.clone(), ..NewLinks::default() },
            ..new_task(service, client)?
        })
    };
    let first = submit(store, told(resize, alice, None)?).await?.task_id;
    let child = submit(store, told(print, alice, Some(first))?).await?.task_id;
    let bobs = submit(store, told(resize, bob, Some(first))?).await?.task_id;
    submit(store, new_task(resize, alice)?).await?;
    let chained = submit(store, after(new_task(resize, alice)?, &[first], Condition::AllEnded)).await?.task_id;
    for id in [first, child, bobs, chained] {
        let task = find(store, id).await?;
        ensure!(task.correlation_id.as_deref() == Some("order-1") && task.links.trace == trace, "{:?}", task.links);
    }
    ensure!(find(store, child).await?.links.parent == Some(first), "its parent");
    let claimed = claim(store, resize, 1).await?;
    ensure!(claimed[0].links.trace == trace, "workers are told");
    let correlated =
        |client| TaskFilter { link: Some(TaskLink::Correlation("order-1".to_owned())), client, ..filter(2) };
    let names = async |filter: TaskFilter| -> Result<Vec<TaskId>> {
        Ok(list_all(store, filter).await?.iter().map(|task| task.task_id).collect())
    };
    ensure!(names(correlated(Some(alice))).await? == [chained, child, first], "the newest first, one's own");
    ensure!(names(correlated(None)).await? == [chained, bobs, child, first], "all of them");
    let parts = TaskFilter { link: Some(TaskLink::Parent(first)), ..filter(10) };
    ensure!(names(parts.clone()).await? == [bobs, child], "its parts");
    let waiting = TaskFilter { link: Some(TaskLink::After(first)), ..filter(1) };
    let also = submit(store, after(new_task(print, alice)?, &[first], Condition::AllEnded)).await?.task_id;
    ensure!(names(waiting.clone()).await? == [also, chained], "those who wait for it, page by page");
    ensure!(names(TaskFilter { services: vec![print], ..waiting.clone() }).await? == [also], "on one service");
    ensure!(names(TaskFilter { client: Some(bob), ..waiting.clone() }).await?.is_empty(), "none of bob's");
    ensure!(names(TaskFilter { link: Some(TaskLink::After(also)), ..filter(10) }).await?.is_empty(), "nobody");
    ensure!(names(TaskFilter { services: vec![print], ..parts.clone() }).await? == [child], "of one service");
    let running = TaskFilter { statuses: vec![Status::InProgress], ..correlated(None) };
    ensure!(names(running).await? == [first], "in one status");
    let nobody = TaskFilter { link: Some(TaskLink::Correlation("order".to_owned())), ..filter(10) };
    ensure!(names(nobody).await?.is_empty(), "not by a part of the id");
    Ok(())
}
