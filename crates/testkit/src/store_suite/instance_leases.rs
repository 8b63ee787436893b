//! Instance leases: a task that an instance has leased belongs to it until the task ends or the instance is reaped.

use std::{collections::HashSet, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use relais_core::{
    CallbackEvent, ClaimRequest, CrashPolicy, Decision, Event, FlowLimits, Ignored, InstanceKey, InstanceStatus,
    NewInstance, NewTask, Outcome, Registration, ServiceKey, ServiceLimits, Status, Store, Task, TaskId,
};

use super::{
    Harness,
    world::{
        LONG, change, claim, client, find, json, limits, new_task, new_tasks, one_of_each, put_service, record, says,
        service, submit, submit_all,
    },
};

fn instance(name: &str, service: ServiceKey) -> NewInstance {
    NewInstance {
        name: name.to_owned(),
        host: Some("pod-1".to_owned()),
        version: "1".to_owned(),
        policy: CrashPolicy::Restart,
        silence: LONG,
        services: vec![service],
    }
}

async fn join(store: &dyn Store, new: NewInstance) -> Result<InstanceKey> {
    match store.register_instance(new).await? {
        Registration::In { key, .. } => Ok(key),
        Registration::Refused { tasks } => bail!("refused for {tasks} tasks"),
    }
}

fn request(service: ServiceKey, max: usize, instance: InstanceKey) -> ClaimRequest {
    ClaimRequest { service, max, lease: None, worker_host: Some("one".to_owned()), instance: Some(instance) }
}

async fn take(store: &dyn Store, service: ServiceKey, max: usize, instance: InstanceKey) -> Result<Vec<Task>> {
    store.claim_tasks(vec![request(service, max, instance)]).await?.tasks.pop().context("one request has one answer")
}

fn done(task: &Task, service: ServiceKey) -> Result<relais_core::TaskEvent> {
    let event = Event::Succeeded { attempt: Some(task.state.attempt), response: json("{\"n\":1}")? };
    Ok(says(task.task_id, service, event))
}

async fn all_done(store: &dyn Store, tasks: &[Task], service: ServiceKey) -> Result<Vec<Outcome>> {
    Ok(store.record_events(tasks.iter().map(|task| done(task, service)).collect::<Result<_>>()?).await?)
}

fn is_success(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Applied(state) if state.status == Status::Success)
}

/// A task that an instance leases has one attempt with all its fields, whenever that is written.
pub async fn a_task_leased_by_an_instance_is_recorded_as_one_attempt(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let names = submit_all(store, new_tasks(service, client, 30)?).await?;
    let key = join(store, instance("one", service)).await?;
    let tasks = take(store, service, 20, key).await?;
    let taken: Vec<TaskId> = tasks.iter().map(|task| task.task_id).collect();
    ensure!(taken == names[..20], "the first come first, in their order");
    ensure!(tasks.iter().all(|task| task.state.attempt == 1 && task.state.status == Status::InProgress));
    let outcomes = all_done(store, &tasks, service).await?;
    ensure!(outcomes.iter().all(is_success), "{outcomes:?}");
    for name in &taken {
        let task = find(store, *name).await?;
        ensure!(task.state.status == Status::Success && task.state.attempt == 1 && task.state.progress == 100.0);
        ensure!(task.state.worker_host.as_deref() == Some("one"));
        ensure!(task.state.started.is_some() && task.state.ended >= task.state.started);
        ensure!(task.response.as_ref().is_some_and(|response| response.get() == "{\"n\":1}"));
    }
    let depth = store.queue_depths(vec![service]).await?[0];
    ensure!((depth.pending, depth.in_progress) == (10, 0), "{depth:?}");
    let position = find(store, names[20]).await?.position;
    ensure!(position == Some(1), "later tasks have moved up: {position:?}");
    let again = all_done(store, &tasks[..1], service).await?;
    ensure!(again == [Outcome::Ignored(Ignored::Ended(Status::Success))], "a result counts once: {again:?}");
    Ok(())
}

/// A leased task is given neither to another instance nor to a worker, at any concurrency.
pub async fn a_task_leased_by_an_instance_is_given_to_nobody_else(harness: &Harness) -> Result<()> {
    let (service, client) = one_of_each(harness.store()).await?;
    submit_all(harness.store(), new_tasks(service, client, 600)?).await?;
    let mut takers = tokio::task::JoinSet::new();
    for n in 0..6 {
        let store = Arc::clone(&harness.handles[n % harness.handles.len()]);
        takers.spawn(async move {
            let mut got = Vec::new();
            if n < 2 {
                // A worker over HTTP, beside the instances.
                loop {
                    let some = claim(&*store, service, 7).await?;
                    if some.is_empty() {
                        return anyhow::Ok(got);
                    }
                    got.extend(some.into_iter().map(|task| task.task_id));
                }
            }
            let key = join(&*store, instance(&format!("taker {n}"), service)).await?;
            loop {
                let some = take(&*store, service, 13, key).await?;
                if some.is_empty() {
                    return Ok(got);
                }
                got.extend(some.iter().map(|task| task.task_id));
                if n % 2 == 0 {
                    let outcomes = all_done(&*store, &some, service).await?;
                    ensure!(outcomes.iter().all(is_success), "{outcomes:?}");
                }
            }
        });
    }
    let mut all = Vec::new();
    while let Some(got) = takers.join_next().await {
        all.extend(got??);
    }
    let different: HashSet<TaskId> = all.iter().copied().collect();
    ensure!(all.len() == different.len(), "{} of {} were handed out twice", all.len() - different.len(), all.len());
    ensure!(all.len() == 600, "all were handed out: {}", all.len());
    Ok(())
}

/// An instance with many leased tasks claims behind them, and still gets tasks that rank before them: urgent ones and
/// returned ones. Nobody gets a task twice.
pub async fn an_instance_with_many_leased_tasks_still_gets_urgent_and_returned_ones(harness: &Harness) -> Result<()> {
    const MANY: usize = 1500;
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let names = submit_all(store, new_tasks(service, client, 3 * MANY)?).await?;
    let key = join(store, instance("one", service)).await?;
    let first = take(store, service, MANY, key).await?;
    ensure!(first.iter().map(|task| task.task_id).eq(names[..MANY].iter().copied()), "the first come first");
    let back = says(first[7].task_id, service, Event::Returned { attempt: Some(1) });
    store.record_events(vec![back]).await?;
    let mut urgent = new_task(service, client)?;
    urgent.terms.head_start = 3_600_000;
    let urgent = submit(store, urgent).await?.task_id;
    let mut got: Vec<TaskId> = first.iter().map(|task| task.task_id).collect();
    let mut before = Vec::new();
    loop {
        let some = take(store, service, 100, key).await?;
        if some.is_empty() {
            break;
        }
        before.extend(some.iter().map(|task| task.task_id).filter(|id| *id == urgent || *id == first[7].task_id));
        got.extend(some.iter().map(|task| task.task_id));
    }
    ensure!(before.len() == 2, "{before:?} of the two that came to stand before the others");
    let different: HashSet<TaskId> = got.iter().copied().collect();
    ensure!(got.len() == 3 * MANY + 2 && different.len() == got.len() - 1, "{} of {}", different.len(), got.len());
    Ok(())
}

/// Submits tasks while an instance waits for some. Returns their ids, and the tasks that the instance leased.
async fn submit_for(
    store: &dyn Store,
    tasks: Vec<NewTask>,
    max: usize,
    instance: InstanceKey,
) -> Result<(Vec<TaskId>, Vec<Task>)> {
    let service = tasks.first().context("none to submit")?.service;
    let (answers, taken) = store.submit_and_claim(tasks, request(service, max, instance)).await?;
    Ok((answers.into_iter().map(|answer| Ok(answer?.task_id)).collect::<Result<_>>()?, taken))
}

/// A task that is submitted while an instance waits is leased to it alone. It does not overtake tasks that are already
/// pending.
pub async fn a_submission_for_a_waiting_instance_is_leased_in_the_same_transaction(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let (one, other) = (join(store, instance("one", service)).await?, join(store, instance("other", service)).await?);
    let (names, taken) = submit_for(store, new_tasks(service, client, 3)?, 10, one).await?;
    ensure!(taken.iter().map(|task| task.task_id).eq(names.iter().copied()), "{} were taken", taken.len());
    ensure!(taken.iter().all(|task| task.state.attempt == 1 && task.state.status == Status::InProgress));
    ensure!(claim(store, service, 5).await?.is_empty() && take(store, service, 5, other).await?.is_empty());
    let outcomes = all_done(store, &taken, service).await?;
    ensure!(outcomes.iter().all(is_success), "{outcomes:?}");
    ensure!(store.queue_depths(vec![service]).await?[0].backlog() == 0, "they have left the queue");
    let mut names = submit_all(store, new_tasks(service, client, 2)?).await?;
    let (later, mut taken) = submit_for(store, new_tasks(service, client, 1)?, 2, one).await?;
    names.extend(later);
    taken.extend(take(store, service, 10, one).await?);
    ensure!(taken.iter().map(|task| task.task_id).eq(names), "nobody was passed over");
    ensure!(all_done(store, &taken, service).await?.iter().all(is_success));
    let (_, more) = submit_for(store, new_tasks(service, client, 4)?, 3, one).await?;
    ensure!(more.len() <= 3, "no more than were asked for");
    store.deregister_instance(one).await?;
    let (_, none) = submit_for(store, new_tasks(service, client, 1)?, 10, one).await?;
    ensure!(none.is_empty(), "one that has left gets nothing");
    ensure!(take(store, service, 10, other).await?.len() == 5, "a task that nobody has leased can be claimed");
    Ok(())
}

/// If the flow is limited, the service is paused or its queue is full, the submission is as if no instance waited.
pub async fn limits_hold_for_submissions_to_a_waiting_instance(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let client = client(store, "alice").await?;
    let flow = FlowLimits { max_running: Some(1), ..FlowLimits::default() };
    let slow = service(store, "slow", ServiceLimits { flow, ..limits(None) }).await?;
    let small = service(store, "small", limits(Some(2))).await?;
    let key = join(store, NewInstance { services: vec![slow, small], ..instance("one", slow) }).await?;
    let (_, mut taken) = submit_for(store, new_tasks(slow, client, 3)?, 10, key).await?;
    taken.extend(take(store, slow, 10, key).await?);
    ensure!(taken.len() == 1, "{} run at once", taken.len());
    let (answers, _) = store.submit_and_claim(new_tasks(small, client, 3)?, request(small, 10, key)).await?;
    ensure!(answers.iter().filter(|answer| answer.is_ok()).count() == 2, "{answers:?}");
    Ok(())
}

/// A task that is submitted to a waiting instance is given to nobody else, at any concurrency.
pub async fn concurrent_submissions_to_waiting_instances_lease_each_task_once(harness: &Harness) -> Result<()> {
    const ROUNDS: usize = 40;
    let (service, client) = one_of_each(harness.store()).await?;
    let mut takers = tokio::task::JoinSet::new();
    for n in 0..6 {
        let store = Arc::clone(&harness.handles[n % harness.handles.len()]);
        takers.spawn(async move {
            let mut got = Vec::new();
            if n < 2 {
                // A worker over HTTP, beside the instances.
                for _ in 0..2 * ROUNDS {
                    got.extend(claim(&*store, service, 2).await?.into_iter().map(|task| task.task_id));
                }
                return anyhow::Ok(got);
            }
            let key = join(&*store, instance(&format!("taker {n}"), service)).await?;
            for round in 0..ROUNDS {
                let (_, mut some) = submit_for(&*store, new_tasks(service, client, 1 + round % 3)?, 5, key).await?;
                if some.is_empty() {
                    some = take(&*store, service, 2, key).await?;
                }
                got.extend(some.iter().map(|task| task.task_id));
                if n % 2 == 0 {
                    let outcomes = all_done(&*store, &some, service).await?;
                    ensure!(outcomes.iter().all(is_success), "{outcomes:?}");
                }
            }
            Ok(got)
        });
    }
    let mut all = Vec::new();
    while let Some(got) = takers.join_next().await {
        all.extend(got??);
    }
    let key = join(harness.store(), instance("last", service)).await?;
    all.extend(take(harness.store(), service, 1000, key).await?.iter().map(|task| task.task_id));
    let different: HashSet<TaskId> = all.iter().copied().collect();
    ensure!(all.len() == different.len(), "{} of {} were handed out twice", all.len() - different.len(), all.len());
    let submitted = 4 * (0..ROUNDS).map(|round| 1 + round % 3).sum::<usize>();
    ensure!(all.len() == submitted, "{} of {submitted} were handed out", all.len());
    Ok(())
}

/// A change of a leased task by anybody else wins.
pub async fn a_cancellation_of_a_leased_task_by_another_process_wins(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    submit_all(store, new_tasks(service, client, 4)?).await?;
    let key = join(store, instance("one", service)).await?;
    let tasks = take(store, service, 10, key).await?;
    let other = harness.handles.last().context("there is a handle")?;
    change(&**other, tasks[0].task_id, service, Event::Cancelled).await?;
    let kept = record(store, tasks[1].task_id, service, Event::Kept { attempt: 1 }).await?;
    ensure!(matches!(&kept, Outcome::Applied(state) if state.status == Status::InProgress), "{kept:?}");
    ensure!(find(store, tasks[1].task_id).await?.state.status == Status::InProgress, "it is said to have begun");
    change(&**other, tasks[1].task_id, service, Event::Cancelled).await?;
    let lost = record(store, tasks[1].task_id, service, Event::Kept { attempt: 1 }).await?;
    ensure!(lost == Outcome::Ignored(Ignored::Ended(Status::Cancelled)), "{lost:?}");
    let outcomes = all_done(store, &tasks, service).await?;
    let cancelled = Outcome::Ignored(Ignored::Ended(Status::Cancelled));
    ensure!(outcomes[..2] == [cancelled.clone(), cancelled], "{outcomes:?}");
    ensure!(outcomes[2..].iter().all(is_success), "the others are done all the same: {outcomes:?}");
    Ok(())
}

/// A leased task that fails or is returned can be claimed by anybody, and its attempt is recorded.
pub async fn a_leased_task_that_is_returned_can_be_claimed_by_any_worker(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    submit_all(store, new_tasks(service, client, 3)?).await?;
    let key = join(store, instance("one", service)).await?;
    let tasks = take(store, service, 10, key).await?;
    change(store, tasks[0].task_id, service, Event::Returned { attempt: Some(1) }).await?;
    change(store, tasks[1].task_id, service, Event::failed(Some(1), "no paper")).await?;
    let back = take(store, service, 10, key).await?;
    ensure!(back.len() == 1 && back[0].task_id == tasks[0].task_id, "{} came back", back.len());
    ensure!(back[0].state.attempt == 2);
    let stale = record(store, tasks[0].task_id, service, Event::Kept { attempt: 1 }).await?;
    ensure!(stale == Outcome::Ignored(Ignored::OtherAttempt(2)), "{stale:?}");
    let failed = find(store, tasks[1].task_id).await?;
    ensure!(failed.state.status == Status::Failure && failed.error_message.as_deref() == Some("no paper"));
    ensure!(failed.state.worker_host.as_deref() == Some("one") && failed.state.started.is_some());
    Ok(())
}

/// When an instance dies, its leased tasks run again, and its late messages are ignored.
pub async fn tasks_of_a_crashed_instance_run_again_and_its_late_results_are_ignored(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let names = submit_all(store, new_tasks(service, client, 6)?).await?;
    let key = join(store, NewInstance { silence: Duration::from_millis(1), ..instance("one", service) }).await?;
    let tasks = take(store, service, 6, key).await?;
    // One has ended, one has reported a heartbeat, and the others are only leased.
    ensure!(all_done(store, &tasks[..1], service).await?.iter().all(is_success));
    record(store, tasks[1].task_id, service, Event::Kept { attempt: 1 }).await?;
    let other = harness.handles.last().context("there is a handle")?;
    let reaped = loop {
        let reaped = other.reap_instances().await?;
        if reaped.instances > 0 {
            break reaped;
        }
        tokio::task::yield_now().await;
    };
    ensure!((reaped.instances, reaped.tasks) == (1, 5), "{reaped:?}");
    ensure!(store.list_instances().await?.is_empty());
    ensure!(!store.heartbeat_instance(key, LONG).await?, "it learns that it was given up");
    let key = join(&**other, instance("two", service)).await?;
    let again = take(&**other, service, 10, key).await?;
    ensure!(again.len() == 5 && again.iter().all(|task| task.state.attempt == 2 && task.state.losses == 1));
    let late = all_done(store, &tasks[1..], service).await?;
    ensure!(late.iter().all(|outcome| matches!(outcome, Outcome::Ignored(_))), "{late:?}");
    ensure!(all_done(&**other, &again, service).await?.iter().all(is_success));
    for name in names {
        ensure!(find(store, name).await?.state.status == Status::Success);
    }
    let history = store.list_attempts(find(store, tasks[2].task_id).await?.id).await?;
    ensure!(history.len() == 1 && history[0].worker_host.as_deref() == Some("one"), "{history:?}");
    Ok(())
}

/// An instance that registers under a known name replaces the one before it at once.
pub async fn an_instance_that_registers_again_replaces_its_predecessor_at_once(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    submit_all(store, new_tasks(service, client, 3)?).await?;
    let first = join(store, instance("one", service)).await?;
    let tasks = take(store, service, 3, first).await?;
    let Registration::In { key, recovered } = store.register_instance(instance("one", service)).await? else {
        bail!("it may begin")
    };
    ensure!(recovered == 3, "{recovered}");
    ensure!(take(store, service, 3, first).await?.is_empty(), "the one before gets nothing any more");
    ensure!(!store.heartbeat_instance(first, LONG).await? && store.heartbeat_instance(key, LONG).await?);
    let again = take(store, service, 3, key).await?;
    ensure!(again.len() == 3 && again.iter().all(|task| task.state.attempt == 2));
    let late = all_done(store, &tasks, service).await?;
    ensure!(late.iter().all(|outcome| !is_success(outcome)), "others have them now: {late:?}");
    ensure!(all_done(store, &again, service).await?.iter().all(is_success));
    Ok(())
}

/// With the crash policy `fail`, the leased tasks of a dead instance fail.
pub async fn crash_policy_fail_fails_the_tasks_of_a_crashed_instance(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let client = client(store, "alice").await?;
    let classic = relais_core::ServiceLimits { retry: relais_core::RetryPolicy::classic(), ..limits(None) };
    let service = service(store, "resize", classic).await?;
    let name = submit(store, new_task(service, client)?).await?.task_id;
    let one = NewInstance { policy: CrashPolicy::Fail, ..instance("one", service) };
    let key = join(store, one.clone()).await?;
    take(store, service, 1, key).await?;
    let Registration::In { recovered: 1, .. } = store.register_instance(one).await? else {
        bail!("one task was leased")
    };
    let task = find(store, name).await?;
    ensure!(task.state.status == Status::Failure && task.error_kind.as_deref() == Some("crashed"), "{task:?}");
    Ok(())
}

/// With the crash policy `refuse`, the leased tasks stay as they are and the name cannot be used, until an operator
/// resolves it.
pub async fn crash_policy_refuse_keeps_the_tasks_of_a_crashed_instance_until_resolved(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let names = submit_all(store, new_tasks(service, client, 2)?).await?;
    let strict = NewInstance { policy: CrashPolicy::Refuse, ..instance("one", service) };
    let short = NewInstance { silence: Duration::from_millis(1), ..strict.clone() };
    let key = join(store, short).await?;
    let tasks = take(store, service, 2, key).await?;
    record(store, tasks[0].task_id, service, Event::Kept { attempt: 1 }).await?;
    while store.list_instances().await?[0].status != InstanceStatus::Undecided {
        store.reap_instances().await?;
    }
    ensure!(store.list_instances().await?[0].leased == 2);
    ensure!(store.register_instance(strict.clone()).await? == Registration::Refused { tasks: 2 });
    let other = join(store, instance("two", service)).await?;
    ensure!(take(store, service, 2, other).await?.is_empty(), "nobody else gets them");
    ensure!(
        store.resolve_instance("two".to_owned(), Decision::Fail).await?.is_none(),
        "there is nothing to decide about others"
    );
    ensure!(store.resolve_instance("one".to_owned(), Decision::Restart).await? == Some(2));
    ensure!(store.resolve_instance("one".to_owned(), Decision::Restart).await?.is_none());
    ensure!(take(store, service, 2, other).await?.len() == 2);
    join(store, strict).await?;
    ensure!(names.len() == 2);
    Ok(())
}

/// An instance that deregisters returns its leased tasks. That costs an attempt only if the task had begun.
pub async fn deregistering_an_instance_returns_its_leased_tasks(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    submit_all(store, new_tasks(service, client, 3)?).await?;
    let key = join(store, instance("one", service)).await?;
    let tasks = take(store, service, 3, key).await?;
    record(store, tasks[0].task_id, service, Event::Kept { attempt: 1 }).await?;
    store.deregister_instance(key).await?;
    ensure!(store.list_instances().await?.is_empty());
    let again = claim(store, service, 3).await?;
    let attempts: Vec<u32> = again.iter().map(|task| task.state.attempt).collect();
    ensure!(attempts == [2, 1, 1], "{attempts:?}");
    ensure!(again.iter().all(|task| task.state.losses == 0 && task.state.failures == 0));
    Ok(())
}

/// Flow limits hold for leased tasks too.
pub async fn flow_limits_count_tasks_leased_by_an_instance(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let client = client(store, "alice").await?;
    let two = relais_core::FlowLimits { max_running: Some(2), ..relais_core::FlowLimits::default() };
    let service = service(store, "resize", relais_core::ServiceLimits { flow: two, ..limits(None) }).await?;
    submit_all(store, new_tasks(service, client, 5)?).await?;
    let key = join(store, instance("one", service)).await?;
    let tasks = take(store, service, 5, key).await?;
    ensure!(tasks.len() == 2, "{}", tasks.len());
    ensure!(claim(store, service, 5).await?.is_empty(), "the limits bind a worker over HTTP too");
    ensure!(all_done(store, &tasks[..1], service).await?.iter().all(is_success));
    ensure!(take(store, service, 5, key).await?.len() == 1);
    ensure!(store.lease_orphans(10).await? == 0, "a leased task is no orphan");
    Ok(())
}

/// Limits by client are declared while tasks are leased by an instance that waits for a decision: no turn of a client
/// is spent on a leased task, and claims do not look again and again.
pub async fn client_limits_skip_tasks_leased_by_an_instance(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (alice, bob) = (client(store, "alice").await?, client(store, "bob").await?);
    let by_client = FlowLimits { max_running_per_client: Some(2), ..FlowLimits::default() };
    let fair = FlowLimits { max_running: Some(4), fair_share: true, ..FlowLimits::default() };
    for (name, flow) in [("by-client", by_client), ("fair", fair)] {
        let service = service(store, name, limits(None)).await?;
        let first = submit_all(store, new_tasks(service, alice, 40)?).await?;
        let strict =
            NewInstance { policy: CrashPolicy::Refuse, silence: Duration::from_millis(1), ..instance(name, service) };
        let key = join(store, strict).await?;
        ensure!(take(store, service, 38, key).await?.len() == 38);
        let undecided = |status: InstanceStatus| status == InstanceStatus::Undecided;
        while !store.list_instances().await?.iter().any(|known| known.name == name && undecided(known.status)) {
            store.reap_instances().await?;
        }
        store.declare(vec![put_service(name, ServiceLimits { flow, ..limits(None) })?]).await?;
        let second = submit_all(store, new_tasks(service, bob, 2)?).await?;
        let request = |max| ClaimRequest { service, max, lease: None, worker_host: None, instance: None };
        let got = store.claim_tasks(vec![request(10)]).await?;
        let names: HashSet<TaskId> = got.tasks[0].iter().map(|task| task.task_id).collect();
        ensure!(names == first[38..].iter().chain(&second).copied().collect(), "{name}: {}", names.len());
        for task in &got.tasks[0] {
            change(store, task.task_id, service, Event::Succeeded { attempt: None, response: json("1")? }).await?;
        }
        let nothing = store.claim_tasks(vec![request(10)]).await?;
        ensure!(nothing.tasks[0].is_empty() && nothing.again.is_none(), "{name}: {:?}", nothing.again);

        submit_all(store, new_tasks(service, bob, 4)?).await?;
        ensure!(store.claim_tasks(vec![request(2)]).await?.tasks[0].len() == 2, "{name}: nobody else waits for them");
        ensure!(store.resolve_instance(name.to_owned(), Decision::Restart).await? == Some(38));
        ensure!(store.claim_tasks(vec![request(2)]).await?.tasks[0].len() == 2, "{name}: they are to be had again");
    }
    Ok(())
}

/// A retried task can be claimed by anybody, whatever else its instance has leased.
pub async fn a_retried_task_can_be_claimed_by_any_worker(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let other = harness.handles.last().context("there is a handle")?;
    let (service, client) = one_of_each(store).await?;
    submit_all(store, new_tasks(service, client, 3)?).await?;
    let key = join(store, instance("one", service)).await?;
    let tasks = take(store, service, 3, key).await?;
    change(store, tasks[0].task_id, service, Event::failed(Some(1), "no")).await?;
    change(&**other, tasks[0].task_id, service, Event::Revived).await?;
    // This task has begun, and that is not written yet.
    change(&**other, tasks[1].task_id, service, Event::Cancelled).await?;
    change(&**other, tasks[1].task_id, service, Event::Revived).await?;
    let again = claim(&**other, service, 5).await?;
    let attempts: Vec<u32> = again.iter().map(|task| task.state.attempt).collect();
    ensure!(attempts == [3, 3], "numbers that somebody may be at are not used again: {attempts:?}");
    let late = all_done(store, &tasks[..2], service).await?;
    ensure!(late.iter().all(|outcome| !is_success(outcome)), "{late:?}");
    ensure!(all_done(store, &tasks[2..], service).await?.iter().all(is_success));
    Ok(())
}

/// A task that was leased in time does not expire. A task that runs too long times out like any other.
pub async fn a_task_leased_by_an_instance_times_out_like_any_other(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let other = harness.handles.last().context("there is a handle")?;
    let client = client(store, "alice").await?;
    let hurried = relais_core::ServiceLimits {
        timeout: Some(Duration::from_secs(60)),
        retry: relais_core::RetryPolicy::classic(),
        ..limits(None)
    };
    let service = service(store, "resize", hurried).await?;
    let mut task = new_task(service, client)?;
    task.terms.expires = Some(Duration::from_secs(30));
    submit(store, task).await?;
    let key = join(store, instance("one", service)).await?;
    let tasks = take(store, service, 1, key).await?;
    store.advance(Duration::from_secs(31)).await?;
    other.fire_timers(10).await?;
    ensure!(find(store, tasks[0].task_id).await?.state.status == Status::InProgress, "it was taken in time");
    store.advance(Duration::from_secs(3600)).await?;
    let late = record(store, tasks[0].task_id, service, Event::Kept { attempt: 1 }).await?;
    ensure!(late == Outcome::Ignored(Ignored::Overdue), "{late:?}");
    other.fire_timers(10).await?;
    let waiting = find(store, tasks[0].task_id).await?;
    ensure!(waiting.state.status == Status::Waiting && waiting.state.failures == 1, "{waiting:?}");
    store.advance(Duration::from_secs(3600)).await?;
    other.fire_timers(10).await?;
    ensure!(claim(&**other, service, 5).await?.len() == 1, "nobody leases it any more");
    Ok(())
}

/// A leased task has the same callbacks as any other, in order.
pub async fn callbacks_of_a_task_leased_by_an_instance_are_sent_in_order(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let callback = relais_core::Callback {
        kind: relais_core::CallbackType::Https,
        target: "https://example.org/".to_owned(),
        events: vec![CallbackEvent::Started, CallbackEvent::Success],
        gzip: false,
        lane: 7,
    };
    let mut task = new_task(service, client)?;
    task.callback = Some(callback);
    submit(store, task).await?;
    let key = join(store, instance("one", service)).await?;
    let tasks = take(store, service, 1, key).await?;
    ensure!(all_done(store, &tasks, service).await?.iter().all(is_success));
    let filter = relais_core::CallbackFilter { limit: 10, ..relais_core::CallbackFilter::default() };
    let told = store.list_callbacks(filter).await?.records;
    let mut events: Vec<CallbackEvent> = told.iter().map(|callback| callback.event).collect();
    events.reverse();
    ensure!(events == [CallbackEvent::Started, CallbackEvent::Success], "{events:?}");
    Ok(())
}
