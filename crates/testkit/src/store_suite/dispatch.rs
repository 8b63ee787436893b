//! Dispatch: tasks of services whose transport is a broker.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, ensure};
use relais_core::{
    Change, ClientKey, DispatchName, Dispatched, DueDispatch, Event, Failure, FlowLimits, IdempotencyKey, Ignored,
    NewTask, Outcome, PublishedTask, Publisher, ServiceKey, ServiceLimits, Status, Store, TaskEvent, TaskId,
};

use super::{
    Harness,
    world::{
        LONG, change, claim, client, find, json, limits, new_task, new_tasks, put_brokered, put_service, service_key,
        submit, submit_all,
    },
};

/// Declares a service whose transport is a broker, and a client.
async fn brokered(store: &dyn Store, limits: ServiceLimits) -> Result<(ServiceKey, ClientKey)> {
    store.declare(vec![put_brokered("resize", limits)?]).await?;
    Ok((service_key(store, "resize").await?, client(store, "alice").await?))
}

/// Takes what can be published now, with a long lease.
async fn take(store: &dyn Store, service: ServiceKey, most: usize) -> Result<Vec<DueDispatch>> {
    Ok(store.claim_dispatches(vec![service], most, LONG).await?.tasks)
}

fn names(due: &[DueDispatch]) -> Vec<TaskId> {
    due.iter().map(|due| due.name.task_id).collect()
}

async fn acknowledge(store: &dyn Store, service: ServiceKey, tasks: &[TaskId], outcome: Dispatched) -> Result<()> {
    let name = |task_id: &TaskId| dispatch_name(service, *task_id);
    Ok(store.complete_dispatches(tasks.iter().map(name).collect(), outcome).await?)
}

/// The name of a dispatch as its submitter knows it.
fn dispatch_name(service: ServiceKey, task_id: TaskId) -> DispatchName {
    DispatchName { service, queue: "resize".into(), round: 0, task_id }
}

fn publisher(held: Duration) -> Option<Publisher> {
    Some(Publisher { held, queue: "resize".into() })
}

/// The oldest dispatch comes first, with all that a worker needs.
pub async fn a_dispatch_is_taken_by_one_publisher_until_it_is_acknowledged(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = brokered(store, limits(None)).await?;
    let mut tasks = new_tasks(service, client, 50)?;
    tasks[0].request = json(r#"{"n": 12345678901234567890}"#)?;
    tasks[0].correlation_id = Some("chain".to_owned());
    let all = submit_all(store, tasks).await?;

    let mut takers = tokio::task::JoinSet::new();
    for i in 0..4 {
        let store = std::sync::Arc::clone(&harness.handles[i % harness.handles.len()]);
        takers.spawn(async move { store.claim_dispatches(vec![service], 20, LONG).await });
    }
    let mut taken = Vec::new();
    while let Some(some) = takers.join_next().await {
        taken.extend(some??.tasks);
    }
    let mut found = names(&taken);
    found.extend(names(&take(store, service, 100).await?));
    let distinct: BTreeSet<TaskId> = found.iter().copied().collect();
    ensure!(found.len() == 50 && distinct.len() == 50, "each was found once: {} {}", found.len(), distinct.len());
    let first = taken.iter().find(|due| due.name.task_id == all[0]);
    if let Some(first) = first {
        ensure!(first.request.as_ref().map(relais_core::Json::get) == Some(r#"{"n": 12345678901234567890}"#));
        ensure!(first.correlation_id.as_deref() == Some("chain"));
    }
    ensure!(take(store, service, 100).await?.is_empty(), "a publisher has taken them");

    acknowledge(store, service, &all[10..], Dispatched::Done).await?;
    acknowledge(store, service, &all[..10], Dispatched::Again).await?;
    let again = take(store, service, 100).await?;
    ensure!(names(&again) == all[..10], "those that are to be tried again, in their order");
    acknowledge(store, service, &all, Dispatched::Done).await?;
    acknowledge(store, service, &all, Dispatched::Again).await?;
    ensure!(take(store, service, 100).await?.is_empty(), "what is done stays done");
    Ok(())
}

/// A task without a dispatch row counts as published.
pub async fn the_oldest_published_task_of_a_service_is_known(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = brokered(store, limits(None)).await?;
    ensure!(store.oldest_published(service).await?.is_none(), "there is nothing");
    let all = submit_all(store, new_tasks(service, client, 5)?).await?;
    ensure!(store.oldest_published(service).await?.is_none(), "all are still to be published");
    let at_broker = |task_id, running| Some(PublishedTask { task_id, running });
    let due = take(store, service, 2).await?;
    ensure!(store.oldest_published(service).await?.is_none(), "somebody is about to");
    store.complete_dispatches(due.into_iter().map(|due| due.name).collect(), Dispatched::Done).await?;
    ensure!(store.oldest_published(service).await? == at_broker(all[0], false));
    change(store, all[0], service, Event::Started { attempt: None, worker_host: None, lease: None }).await?;
    ensure!(store.oldest_published(service).await? == at_broker(all[1], true));
    change(store, all[1], service, Event::Cancelled).await?;
    ensure!(store.oldest_published(service).await?.is_none(), "the others are still to be published");
    change(store, all[0], service, Event::Cancelled).await?;

    // With a window, the tasks that have a place in it count.
    let flow = FlowLimits { dispatch_window: Some(1), ..FlowLimits::default() };
    store.declare(vec![put_brokered("resize", ServiceLimits { flow, ..limits(None) })?]).await?;
    store.declared().await?;
    while store.refill_dispatches(10).await? {}
    ensure!(store.oldest_published(service).await?.is_none(), "none has a place");
    let due = take(store, service, 10).await?;
    ensure!(names(&due) == all[2..3], "one has");
    ensure!(store.oldest_published(service).await?.is_none(), "somebody is about to publish it");
    store.complete_dispatches(due.into_iter().map(|due| due.name).collect(), Dispatched::Done).await?;
    ensure!(store.oldest_published(service).await? == at_broker(all[2], false));
    Ok(())
}

/// When the submitter dies, or a publisher that took the dispatch falls silent, another publisher takes it.
pub async fn a_dispatch_is_reserved_for_its_submitter_until_a_lease_expires(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = brokered(store, limits(None)).await?;
    let held = NewTask { dispatch: publisher(LONG), ..new_task(service, client)? };
    let anybodys = NewTask { dispatch: publisher(Duration::ZERO), ..new_task(service, client)? };
    let held = submit(store, held).await?.task_id;
    let anybodys = submit(store, anybodys).await?.task_id;
    let due = store.claim_dispatches(vec![service], 10, Duration::ZERO).await?.tasks;
    ensure!(names(&due) == [anybodys], "the other one is its caller's");
    ensure!(names(&take(store, service, 10).await?) == [anybodys], "whoever took it was silent for too long");
    acknowledge(store, service, &[held], Dispatched::Again).await?;
    ensure!(names(&take(store, service, 10).await?) == [held], "its caller gave it up");
    Ok(())
}

/// The dispatch row of an ended task is returned without arguments, so that the publisher removes it.
pub async fn an_ended_task_is_not_dispatched(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = brokered(store, limits(None)).await?;
    let all = submit_all(store, new_tasks(service, client, 3)?).await?;
    change(store, all[1], service, Event::Cancelled).await?;
    let due = take(store, service, 10).await?;
    ensure!(names(&due) == all);
    ensure!(due.iter().map(|due| due.request.is_some()).collect::<Vec<_>>() == [true, false, true]);
    Ok(())
}

/// A task has one transport at a time.
pub async fn broker_tasks_are_never_claimed_and_other_tasks_never_dispatched(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = brokered(store, limits(None)).await?;
    store.declare(vec![put_service("print", limits(None))?]).await?;
    let print = service_key(store, "print").await?;
    let carried = submit_all(store, new_tasks(service, client, 2)?).await?;
    // The store decides, whatever the caller believes.
    let believed = NewTask { dispatch: publisher(Duration::ZERO), ..new_task(print, client)? };
    let claimed = submit(store, believed).await?.task_id;
    ensure!(claim(store, service, 10).await?.is_empty());
    ensure!(claim(store, print, 10).await?[0].task_id == claimed);
    ensure!(names(&store.claim_dispatches(vec![print, service], 10, LONG).await?.tasks) == carried);
    Ok(())
}

/// Covers a plain submission, one under a capacity, and one with an idempotency key.
pub async fn every_way_of_submission_writes_a_dispatch_row(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = brokered(store, limits(None)).await?;
    let mut all = submit_all(store, new_tasks(service, client, 2)?).await?;
    let key = IdempotencyKey { key: "once".to_owned(), fingerprint: b"a".to_vec() };
    let keyed = NewTask { idempotency: Some(key), ..new_task(service, client)? };
    all.push(submit(store, keyed.clone()).await?.task_id);
    ensure!(submit(store, keyed).await?.replayed, "a replay is not dispatched again");
    store.declare(vec![put_brokered("resize", limits(Some(5)))?]).await?;
    let answers = store.submit_many(new_tasks(service, client, 4)?).await?;
    all.extend(answers.iter().flatten().map(|submitted| submitted.task_id));
    ensure!(all.len() == 5, "two were refused");
    ensure!(names(&take(store, service, 10).await?) == all);
    Ok(())
}

/// A task that its worker returns to the broker stays at the broker.
pub async fn a_returned_task_is_dispatched_again_unless_the_broker_has_it(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = brokered(store, limits(None)).await?;
    let all = submit_all(store, new_tasks(service, client, 2)?).await?;
    acknowledge(store, service, &all, Dispatched::Done).await?;
    let started = || Event::Delivered { worker_host: Some("a".to_owned()), again: false, delivery_limit: 9 };
    for task in &all {
        change(store, *task, service, started()).await?;
    }
    change(store, all[0], service, Event::Returned { attempt: None }).await?;
    change(store, all[1], service, Event::GivenBack { worker_host: Some("a".to_owned()) }).await?;
    for task in &all {
        ensure!(find(store, *task).await?.state.status == Status::Pending);
    }
    ensure!(names(&take(store, service, 10).await?) == all[..1]);
    Ok(())
}

/// Every unfinished task is dispatched once, running or not. Tasks submitted later are not.
pub async fn tasks_lost_by_the_broker_are_dispatched_again_in_batches(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = brokered(store, limits(None)).await?;
    let all = submit_all(store, new_tasks(service, client, 25)?).await?;
    acknowledge(store, service, &all, Dispatched::Done).await?;
    ensure!(!store.refill_dispatches(10).await?, "nothing is lost");
    let started = Event::Delivered { worker_host: None, again: false, delivery_limit: 9 };
    change(store, all[3], service, started).await?;
    change(store, all[4], service, Event::failed(None, "no")).await?;
    store.redispatch_service(service).await?;
    let later = submit_all(store, new_tasks(service, client, 1)?).await?;
    acknowledge(store, service, &later, Dispatched::Done).await?;
    let mut batches = 0;
    while store.refill_dispatches(10).await? {
        batches += 1;
        ensure!(batches <= 3, "24 in batches of 10");
    }
    let due = names(&take(store, service, 100).await?);
    let expected: Vec<TaskId> = all.iter().copied().filter(|task| *task != all[4]).collect();
    ensure!(due == expected, "{} instead of {}", due.len(), expected.len());
    Ok(())
}

/// An acknowledgement that arrives after the queue was lost is about a publication to the old queue.
pub async fn an_acknowledgement_from_before_a_lost_queue_keeps_the_new_dispatch(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = brokered(store, limits(None)).await?;
    let held = NewTask { dispatch: publisher(LONG), ..new_task(service, client)? };
    let lost = submit(store, held).await?.task_id;
    // The task is published, the broker loses its queue, and only then the publication is acknowledged.
    store.redispatch_service(service).await?;
    while store.refill_dispatches(10).await? {}
    acknowledge(store, service, &[lost], Dispatched::Done).await?;
    let due = take(store, service, 10).await?;
    ensure!(names(&due) == [lost], "it is to be published again");
    store.complete_dispatches(due.into_iter().map(|due| due.name).collect(), Dispatched::Done).await?;
    ensure!(take(store, service, 10).await?.is_empty(), "now it is done");

    // The same holds for a publication to a queue that the service no longer uses.
    let old = NewTask { dispatch: publisher(Duration::ZERO), ..new_task(service, client)? };
    let old = submit(store, old).await?.task_id;
    let renamed = DispatchName { queue: "images".into(), ..dispatch_name(service, old) };
    store.complete_dispatches(vec![renamed], Dispatched::Done).await?;
    let due = take(store, service, 10).await?;
    ensure!(names(&due) == [old] && &*due[0].name.queue == "resize", "and whoever takes it learns the right one");
    Ok(())
}

/// The publisher does not know whether its acknowledgement arrived, so it repeats it. Meanwhile the broker lost the
/// task, or the task was returned.
pub async fn a_duplicate_acknowledgement_does_not_remove_a_later_dispatch(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = brokered(store, limits(None)).await?;
    let task = submit(store, new_task(service, client)?).await?.task_id;
    let first = take(store, service, 10).await?;
    let done = |due: &[DueDispatch]| {
        let names = due.iter().map(|due| due.name.clone()).collect();
        store.complete_dispatches(names, Dispatched::Done)
    };
    done(&first).await?;
    store.redispatch_service(service).await?;
    while store.refill_dispatches(10).await? {}
    done(&first).await?;
    let second = take(store, service, 10).await?;
    ensure!(names(&second) == [task], "it is to be published again");
    done(&second).await?;
    change(store, task, service, Event::Started { attempt: None, worker_host: None, lease: None }).await?;
    change(store, task, service, Event::Returned { attempt: None }).await?;
    done(&first).await?;
    done(&second).await?;
    let third = take(store, service, 10).await?;
    ensure!(names(&third) == [task], "it came back, and is to be published again");
    done(&third).await?;
    store.complete_dispatches(third.into_iter().map(|due| due.name).collect(), Dispatched::Again).await?;
    ensure!(take(store, service, 10).await?.is_empty(), "now it is done");
    Ok(())
}

/// Pending tasks move to the new transport. A running task stays with its worker, under a lease after the change.
pub async fn a_service_can_change_its_transport_to_a_broker_and_back(harness: &Harness) -> Result<()> {
    let store = harness.store();
    store.declare(vec![put_service("resize", limits(None))?]).await?;
    let service = service_key(store, "resize").await?;
    let client = client(store, "alice").await?;
    let all = submit_all(store, new_tasks(service, client, 5)?).await?;
    claim(store, service, 1).await?;
    store.declare(vec![put_brokered("resize", limits(None))?]).await?;
    while store.refill_dispatches(10).await? {}
    ensure!(names(&take(store, service, 10).await?) == all[1..]);
    // Declaring the same transport again publishes nothing twice.
    store.declare(vec![put_brokered("resize", limits(Some(100)))?]).await?;
    ensure!(!store.refill_dispatches(10).await?);
    let started = Event::Delivered { worker_host: None, again: false, delivery_limit: 9 };
    change(store, all[4], service, started).await?;
    ensure!(find(store, all[4]).await?.state.lease_until.is_none(), "the broker watches its worker");
    store.declare(vec![put_service("resize", limits(None))?]).await?;
    ensure!(store.lease_orphans(10).await? == 1 && store.lease_orphans(10).await? == 0);
    ensure!(find(store, all[4]).await?.state.lease_until.is_some(), "nobody would notice that its worker is gone");
    ensure!(claim(store, service, 10).await?.len() == 3);
    ensure!(take(store, service, 10).await?.is_empty());
    Ok(())
}

/// All unfinished tasks are dispatched to the new queue, because nobody consumes the old one.
pub async fn tasks_in_a_renamed_queue_are_dispatched_again(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = brokered(store, limits(None)).await?;
    let all = submit_all(store, new_tasks(service, client, 3)?).await?;
    acknowledge(store, service, &all, Dispatched::Done).await?;
    change(store, all[1], service, Event::Delivered { worker_host: None, again: false, delivery_limit: 9 }).await?;
    let mut moved = put_brokered("resize", limits(None))?;
    if let Change::PutService { queue_name, .. } = &mut moved {
        "elsewhere".clone_into(queue_name);
    }
    store.declare(vec![moved.clone()]).await?;
    while store.refill_dispatches(10).await? {}
    ensure!(names(&take(store, service, 10).await?) == all);
    acknowledge(store, service, &all, Dispatched::Done).await?;
    store.declare(vec![moved]).await?;
    ensure!(!store.refill_dispatches(10).await?, "declared once more, it is the same");
    Ok(())
}

/// Each new start without an end counts as a loss. A duplicate of the same start does not.
pub async fn a_broker_task_fails_at_its_delivery_limit_of_lost_workers(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = brokered(store, limits(None)).await?;
    let task = submit(store, new_task(service, client)?).await?.task_id;
    let delivered =
        |host: &str, again| Event::Delivered { worker_host: Some(host.to_owned()), again, delivery_limit: 3 };
    for (host, again, attempt, losses) in
        [("a", false, 1, 0), ("a", true, 1, 0), ("b", false, 2, 1), ("b", false, 3, 2)]
    {
        super::world::record(store, task, service, delivered(host, again)).await?;
        let state = find(store, task).await?.state;
        ensure!(state.status == Status::InProgress && state.worker_host.as_deref() == Some(host));
        ensure!((state.attempt, state.losses) == (attempt, losses), "{} {}", state.attempt, state.losses);
    }
    change(store, task, service, delivered("c", false)).await?;
    let found = find(store, task).await?;
    ensure!(found.state.status == Status::Failure && found.state.losses == 3);
    ensure!(found.error_message.is_some_and(|message| message.contains('3')), "it says why");
    Ok(())
}

/// A failure of a worker that was replaced changes nothing. A failure of a worker that never reported its start counts,
/// because nobody else can have the task.
pub async fn a_late_failure_of_a_lost_worker_does_not_fail_the_next_attempt(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = brokered(store, limits(None)).await?;
    let started = |host: &str| Event::Delivered { worker_host: Some(host.to_owned()), again: false, delivery_limit: 9 };
    let failed = |host: &str| Event::Failed {
        attempt: None,
        failure: Failure::new(host),
        again_after: None,
        again: false,
        worker_host: Some(host.to_owned()),
        replaced: false,
    };
    let lost = Outcome::Ignored(Ignored::NotHeld);
    for at_once in [false, true] {
        let task_id = submit(store, new_task(service, client)?).await?.task_id;
        let event = |event| TaskEvent { task_id, service, client: None, event };
        change(store, task_id, service, started("a")).await?;
        // The start is known from an earlier call, or from the same call.
        let outcome = if at_once {
            store.record_events(vec![event(started("b")), event(failed("a"))]).await?.pop()
        } else {
            change(store, task_id, service, started("b")).await?;
            store.record_events(vec![event(failed("a"))]).await?.pop()
        };
        ensure!(outcome.as_ref() == Some(&lost), "{outcome:?}");
        let state = find(store, task_id).await?.state;
        ensure!(state.status == Status::InProgress && state.worker_host.as_deref() == Some("b"), "{state:?}");
        change(store, task_id, service, failed(if at_once { "b" } else { "c" })).await?;
        let found = find(store, task_id).await?;
        ensure!(found.state.status == Status::Failure && found.state.failures == 1, "{found:?}");
        ensure!(found.state.worker_host == found.error_message, "it says who failed: {found:?}");
    }
    // Nobody has the task: a worker may report a failure without having reported a start.
    let task_id = submit(store, new_task(service, client)?).await?.task_id;
    change(store, task_id, service, failed("a")).await?;
    let state = find(store, task_id).await?.state;
    ensure!((state.status, state.attempt, state.worker_host.as_deref()) == (Status::Failure, 1, Some("a")));
    Ok(())
}
