//! Batches: exact counters, one end, one callback.

use anyhow::{Context, Result, ensure};
use relais_core::{
    About, Batch, BatchCreated, BatchId, Callback, CallbackAttempt, CallbackEvent, CallbackFilter, CallbackId,
    CallbackOutcome, CallbackStatus, CallbackType, CallbackVerdict, ClientKey, Condition, Event, IdempotencyKey,
    NewBatch, NewLinks, NewTask, PurgeRule, Refusal, Resend, ServiceKey, Status, Store, Submitted, TaskFilter, TaskId,
    TaskLink, Terms, UniqueKey,
};
use std::{sync::Arc, time::Duration};

use super::{
    Harness,
    dependency::{after, resolve_all},
    world::{
        LONG, a_moment, at_once, change, claim, client, filter, json, limits, list_all, new_task, new_tasks,
        one_of_each, service, submit,
    },
};

const LANE: i64 = 77;

fn new_batch(client: ClientKey, open: bool) -> NewBatch {
    NewBatch {
        batch_id: BatchId::generate(),
        client,
        open,
        callback: Some(Callback {
            kind: CallbackType::Https,
            target: "https://example.org/done".to_owned(),
            events: vec![CallbackEvent::BatchEnded],
            gzip: false,
            lane: LANE,
        }),
        correlation_id: Some("b".to_owned()),
        trace: None,
        idempotency: None,
    }
}

fn of(batch: BatchId, task: NewTask) -> NewTask {
    NewTask { links: NewLinks { batch: Some(batch), ..task.links.clone() }, ..task }
}

/// Creates a batch of this many tasks, and returns their ids.
async fn made(store: &dyn Store, batch: NewBatch, service: ServiceKey, tasks: usize) -> Result<(BatchId, Vec<TaskId>)> {
    let (id, client) = (batch.batch_id, batch.client);
    let tasks: Vec<NewTask> = new_tasks(service, client, tasks)?.into_iter().map(|task| of(id, task)).collect();
    match store.create_batch(batch, tasks).await? {
        BatchCreated::Taken(answers) => {
            Ok((id, answers.into_iter().map(|answer| Ok(answer?.task_id)).collect::<Result<_>>()?))
        }
        other => anyhow::bail!("it was not made: {other:?}"),
    }
}

async fn found(store: &dyn Store, id: BatchId) -> Result<Batch> {
    store.find_batch(id).await?.context("the batch is there")
}

async fn counts(store: &dyn Store, id: BatchId) -> Result<[u64; 5]> {
    let counts = found(store, id).await?.counts;
    Ok([counts.pending, counts.in_progress, counts.success, counts.failure, counts.cancelled])
}

fn succeeded() -> Result<Event> {
    Ok(Event::Succeeded { attempt: None, response: json("{}")? })
}

/// Takes the due callbacks of batches once and acknowledges them.
async fn told(store: &dyn Store) -> Result<Vec<Batch>> {
    let mut told = Vec::new();
    for due in store.claim_callbacks(vec![LANE], 100, LONG).await? {
        let About::Batch(batch) = due.about else { anyhow::bail!("it tells of a batch") };
        ensure!(
            due.record.event == CallbackEvent::BatchEnded && due.record.id.task_id.0 == batch.batch_id.0,
            "its name"
        );
        let tried = CallbackAttempt {
            number: due.record.attempts,
            at: due.now,
            duration: Duration::ZERO,
            status: Some(200),
            error: None,
            answer: None,
        };
        let (row, attempt) = (due.record.row, due.record.attempts);
        let settlement =
            CallbackOutcome { row, attempt, chain: false, verdict: CallbackVerdict::Delivered, tried: Some(tried) };
        store.complete_callbacks(vec![settlement], Vec::new()).await?;
        told.push(*batch);
    }
    Ok(told)
}

/// The counters follow every change, and one callback is queued when all tasks have ended.
pub async fn a_batch_ends_with_its_last_task_and_its_callback_is_sent_once(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let (batch, ids) = made(store, new_batch(client, false), service, 4).await?;
    ensure!(counts(store, batch).await? == [4, 0, 0, 0, 0], "all wait");
    submit(store, new_task(service, client)?).await?;
    claim(store, service, 2).await?;
    ensure!(counts(store, batch).await? == [2, 2, 0, 0, 0], "two run");
    change(store, ids[0], service, Event::Returned { attempt: None }).await?;
    ensure!(counts(store, batch).await? == [3, 1, 0, 0, 0], "one came back");
    change(store, ids[0], service, succeeded()?).await?;
    change(store, ids[1], service, Event::failed(None, "no")).await?;
    change(store, ids[2], service, Event::Cancelled).await?;
    ensure!(counts(store, batch).await? == [1, 0, 1, 1, 1] && told(store).await?.is_empty(), "one is left");
    change(store, ids[3], service, succeeded()?).await?;
    let told_of = told(store).await?;
    ensure!(told_of.len() == 1 && told_of[0].batch_id == batch && told_of[0].ended.is_some(), "{told_of:?}");
    ensure!(told_of[0].counts.total() == 4, "with all its counters");
    let ended = found(store, batch).await?;
    ensure!(ended.notification == Some(CallbackStatus::Success), "what became of telling it is known");

    // A retry after the end is counted, and the batch stays ended.
    change(store, ids[1], service, Event::Revived).await?;
    ensure!(counts(store, batch).await? == [1, 0, 2, 0, 1], "it is counted");
    change(store, ids[1], service, succeeded()?).await?;
    ensure!(told(store).await?.is_empty() && found(store, batch).await?.ended == ended.ended, "a batch ends once");

    // The callback of a batch is listed and sent again like any other.
    let id = CallbackId { task_id: TaskId(batch.0), revision: 0 };
    let by_name = CallbackFilter { task: Some(id.task_id), limit: 10, ..CallbackFilter::default() };
    ensure!(store.list_callbacks(by_name).await?.records.len() == 1, "by its name");
    let all = CallbackFilter { limit: 10, ..CallbackFilter::default() };
    ensure!(store.list_callbacks(all).await?.records.iter().any(|record| record.id == id), "among all");
    ensure!(store.resend_callbacks(Resend::One(id)).await?.count == 1 && told(store).await?.len() == 1, "again");
    Ok(())
}

/// Several processes end the last tasks concurrently.
pub async fn concurrent_ends_end_a_batch_once(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(made(store, new_batch(client, false), service, 16).await?);
    }
    let ids: Vec<TaskId> = all.iter().flat_map(|(_, ids)| ids.clone()).collect();
    let done = at_once(harness, 12, move |store, i| {
        let some: Vec<TaskId> = ids.iter().skip(i % 6).step_by(6).copied().collect();
        async move {
            let events = some.into_iter().map(|id| super::world::says(id, service, Event::Cancelled));
            store.record_events(events.collect()).await?;
            Ok(())
        }
    });
    done.await?;
    for (batch, _) in &all {
        ensure!(counts(store, *batch).await? == [0, 0, 0, 0, 16], "all are counted once");
    }
    ensure!(told(store).await?.len() == 3, "each is told once");
    Ok(())
}

/// If one task is refused, none is created.
pub async fn a_batch_is_accepted_whole_or_not_at_all(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let client = client(store, "alice").await?;
    let small = service(store, "small", limits(Some(3))).await?;
    let batch = new_batch(client, false);
    let id = batch.batch_id;
    let tasks: Vec<NewTask> = new_tasks(small, client, 4)?.into_iter().map(|task| of(id, task)).collect();
    ensure!(store.create_batch(batch, tasks).await? == BatchCreated::Refused(3, Refusal::ServiceFull), "one too many");
    ensure!(
        store.find_batch(id).await?.is_none() && list_all(store, filter(10)).await?.is_empty(),
        "nothing was taken"
    );
    let (id, _) = made(store, new_batch(client, false), small, 3).await?;
    ensure!(counts(store, id).await? == [3, 0, 0, 0, 0], "as many as there is room for");
    Ok(())
}

/// A repeated call, also a concurrent one, gets the existing batch.
pub async fn a_batch_repeated_with_its_idempotency_key_is_the_same_batch(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, alice) = one_of_each(store).await?;
    let bob = client(store, "bob").await?;
    let keyed = |client: ClientKey, fingerprint: u8| {
        let idempotency = Some(IdempotencyKey { key: "album\u{0}7".to_owned(), fingerprint: vec![fingerprint] });
        NewBatch { idempotency, ..new_batch(client, false) }
    };
    let make = move |store: Arc<dyn Store>, client: ClientKey, batch: NewBatch| async move {
        let tasks = new_tasks(service, client, 3)?.into_iter().map(|task| of(batch.batch_id, task)).collect();
        Ok::<_, anyhow::Error>((batch.batch_id, store.create_batch(batch, tasks).await?))
    };
    let all = at_once(harness, 8, move |store, _| make(store, alice, keyed(alice, 1))).await?;
    let mut first = None;
    for (id, made) in &all {
        if let BatchCreated::Taken(answers) = made {
            ensure!(first.is_none(), "it is made once");
            first = Some((*id, answers.iter().map(|answer| Ok((*answer)?)).collect::<Result<Vec<_>>>()?));
        }
    }
    let (id, answers) = first.context("somebody made it")?;
    let again: Vec<Submitted> = answers.iter().map(|answer| Submitted { replayed: true, ..*answer }).collect();
    let replayed = BatchCreated::Replayed(id, again);
    ensure!(all.iter().filter(|(_, made)| *made == replayed).count() == 7, "{all:?}");
    ensure!(counts(store, id).await? == [3, 0, 0, 0, 0] && list_all(store, filter(10)).await?.len() == 3);

    // The answer is the same after the tasks have ended, and differs for another request or another client.
    for answer in &answers {
        change(store, answer.task_id, service, succeeded()?).await?;
    }
    let shared = Arc::clone(&harness.handles[0]);
    ensure!(make(Arc::clone(&shared), alice, keyed(alice, 1)).await?.1 == replayed);
    ensure!(make(Arc::clone(&shared), alice, keyed(alice, 2)).await?.1 == BatchCreated::KeyReused);
    ensure!(matches!(make(Arc::clone(&shared), bob, keyed(bob, 1)).await?.1, BatchCreated::Taken(_)));

    // A refused batch does not use up its idempotency key, and old keys are purged.
    let small = super::world::service(store, "small", limits(Some(0))).await?;
    let batch = NewBatch {
        idempotency: Some(IdempotencyKey { key: "full".to_owned(), fingerprint: vec![1] }),
        ..new_batch(alice, false)
    };
    let task = of(batch.batch_id, new_task(small, alice)?);
    ensure!(store.create_batch(batch.clone(), vec![task]).await? == BatchCreated::Refused(0, Refusal::ServiceFull));
    let task = of(batch.batch_id, new_task(service, alice)?);
    ensure!(matches!(store.create_batch(batch, vec![task]).await?, BatchCreated::Taken(_)));
    a_moment(store).await?;
    ensure!(
        store.purge_keys(LONG).await? == 0 && store.purge_keys(Duration::ZERO).await? == 3,
        "three keys are forgotten"
    );
    ensure!(matches!(make(shared, alice, keyed(alice, 2)).await?.1, BatchCreated::Taken(_)));
    Ok(())
}

/// Only its owner can add tasks to an open batch, until it is closed.
pub async fn an_open_batch_accepts_tasks_until_it_is_closed(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, alice) = one_of_each(store).await?;
    let bob = client(store, "bob").await?;
    let (batch, ids) = made(store, new_batch(alice, true), service, 1).await?;
    change(store, ids[0], service, succeeded()?).await?;
    ensure!(found(store, batch).await?.ended.is_none(), "it is open");
    let late = submit(store, of(batch, new_task(service, alice)?)).await?.task_id;
    let thief = store.submit_many(vec![of(batch, new_task(service, bob)?)]).await?;
    ensure!(thief == [Err(Refusal::BatchNotFound)], "somebody else's batch is none");
    let task = super::world::find(store, late).await?;
    ensure!(task.links.batch == Some(batch) && task.correlation_id.as_deref() == Some("b"), "{:?}", task.links);
    store.close_batch(batch).await?;
    let closed = found(store, batch).await?.closed.context("it is closed")?;
    store.close_batch(batch).await?;
    ensure!(found(store, batch).await?.closed == Some(closed), "once");
    let late_one = store.submit_many(vec![of(batch, new_task(service, alice)?)]).await?;
    ensure!(late_one == [Err(Refusal::BatchClosed)], "{late_one:?}");
    change(store, late, service, succeeded()?).await?;
    ensure!(told(store).await?.len() == 1, "now it has ended");

    let (empty, _) = made(store, new_batch(alice, true), service, 0).await?;
    store.close_batch(empty).await?;
    ensure!(told(store).await?.len() == 1 && found(store, empty).await?.ended.is_some(), "nothing is left of none");
    let unknown = store.submit_many(vec![of(BatchId::generate(), new_task(service, alice)?)]).await?;
    ensure!(unknown == [Err(Refusal::BatchNotFound)], "{unknown:?}");
    Ok(())
}

/// Submissions and the close run concurrently: every accepted task is counted, and the batch ends after the last one.
pub async fn concurrent_close_and_submission_to_a_batch_lose_no_task(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    for _ in 0..5 {
        let (batch, _) = made(store, new_batch(client, true), service, 0).await?;
        let taken = at_once(harness, 12, move |store, i| async move {
            if i == 6 {
                store.close_batch(batch).await?;
                return Ok(0);
            }
            let answer = store.submit_many(vec![of(batch, new_task(service, client)?)]).await?.pop();
            Ok(usize::from(answer.context("an answer")?.is_ok()))
        });
        let taken: usize = taken.await?.into_iter().sum();
        ensure!(found(store, batch).await?.counts.total() == taken as u64, "all that were taken are counted");
        let tasks = TaskFilter { link: Some(TaskLink::Batch(batch)), ..filter(50) };
        for task in list_all(store, tasks).await? {
            change(store, task.task_id, service, succeeded()?).await?;
        }
        ensure!(told(store).await?.len() == 1, "it has ended, once");
    }
    Ok(())
}

/// A dependent task that fails because another failed is counted like any other end.
pub async fn a_batch_ends_with_the_dependents_that_fail_in_a_chain(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let batch = new_batch(client, false);
    let id = batch.batch_id;
    let first = of(id, new_task(service, client)?);
    let second = after(of(id, new_task(service, client)?), &[first.task_id], Condition::AllSucceeded);
    let third = after(of(id, new_task(service, client)?), &[second.task_id], Condition::AllSucceeded);
    let name = first.task_id;
    ensure!(
        matches!(store.create_batch(batch, vec![first, second, third]).await?, BatchCreated::Taken(_)),
        "it is taken"
    );
    ensure!(counts(store, id).await? == [3, 0, 0, 0, 0], "those that wait are pending");
    change(store, name, service, Event::failed(None, "no")).await?;
    resolve_all(store).await?;
    ensure!(counts(store, id).await? == [0, 0, 0, 3, 0] && told(store).await?.len() == 1, "all have failed");

    // A task that existed before does not belong to the batch, so the batch does not wait for it.
    let unique = || Terms { unique: Some(UniqueKey { key: "k".to_owned(), lasting: None }), ..Terms::default() };
    submit(store, NewTask { terms: unique(), ..new_task(service, client)? }).await?;
    let batch = new_batch(client, false);
    let double = of(batch.batch_id, NewTask { terms: unique(), ..new_task(service, client)? });
    let id = batch.batch_id;
    ensure!(matches!(store.create_batch(batch, vec![double]).await?, BatchCreated::Taken(_)), "it is taken");
    ensure!(found(store, id).await?.ended.is_some() && told(store).await?.len() == 1, "it has ended at once");
    Ok(())
}

/// A purge of tasks ends their batch, and old batches are purged after their callbacks were sent.
pub async fn old_batches_are_purged_and_purged_tasks_count_as_cancelled(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let (batch, _) = made(store, new_batch(client, false), service, 2).await?;
    a_moment(store).await?;
    let mut cursor = Some((Status::Pending, 0));
    while cursor.is_some() {
        let rule =
            PurgeRule { service, finished: Duration::ZERO, any: Duration::ZERO, dry_run: false, batch: 1, cursor };
        cursor = store.purge_tasks(rule).await?.cursor;
    }
    ensure!(counts(store, batch).await? == [0, 0, 0, 0, 2], "as if they had been given up");
    a_moment(store).await?;
    ensure!(store.purge_batches(Duration::ZERO, LONG, 10).await? == 0, "its end is still to be told");
    ensure!(told(store).await?.len() == 1, "it is told");
    ensure!(store.purge_batches(LONG, LONG, 10).await? == 0, "it is not too old");
    ensure!(store.purge_batches(Duration::ZERO, LONG, 10).await? == 1, "now it is");
    ensure!(store.find_batch(batch).await?.is_none(), "it is gone");

    let mut made_now = Vec::new();
    for _ in 0..3 {
        made_now.push(made(store, new_batch(client, true), service, 0).await?.0);
    }
    let page = store.list_batches(Some(client), None, 2).await?;
    let names: Vec<BatchId> = page.iter().map(|batch| batch.batch_id).collect();
    ensure!(names == [made_now[2], made_now[1]], "the newest first");
    let rest = store.list_batches(None, Some(made_now[1]), 10).await?;
    ensure!(rest.len() == 1 && rest[0].batch_id == made_now[0], "page by page");
    a_moment(store).await?;
    ensure!(store.purge_batches(LONG, Duration::ZERO, 10).await? == 3, "any that is too old");
    Ok(())
}
