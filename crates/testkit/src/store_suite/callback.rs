//! Callbacks: queued in the transaction of the change, taken once, in order, and isolated from each other by lanes.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use relais_core::{
    About, Callback, CallbackAttempt, CallbackEvent, CallbackFilter, CallbackOutcome, CallbackRecord, CallbackStatus,
    CallbackType, CallbackVerdict, Change, ClientId, ClientKey, Destination, DueCallback, Event, LaneChange, PurgeRule,
    Resend, ServiceKey, Status, Store, Task, TaskId, Timestamp,
};

use super::{
    Harness,
    world::{LONG, a_moment, at_once, change, claim, claim_for, find, json, new_task, one_of_each, put_client, submit},
};

const LANE: i64 = -7;

fn callback(lane: i64, events: &[CallbackEvent]) -> Callback {
    Callback {
        kind: CallbackType::Https,
        target: "https://example.org/done".to_owned(),
        events: events.to_vec(),
        gzip: false,
        lane,
    }
}

async fn submit_with(
    store: &dyn Store,
    (service, client): (ServiceKey, ClientKey),
    callback: Callback,
) -> Result<TaskId> {
    let task = relais_core::NewTask { callback: Some(callback), ..new_task(service, client)? };
    Ok(submit(store, task).await?.task_id)
}

/// Submits a task with a callback for its end, and ends it with a success.
async fn ended(store: &dyn Store, whose: (ServiceKey, ClientKey), lane: i64) -> Result<TaskId> {
    let id = submit_with(store, whose, callback(lane, &CallbackEvent::ENDS)).await?;
    change(store, id, whose.0, succeeded()?).await?;
    Ok(id)
}

fn succeeded() -> Result<Event> {
    Ok(Event::Succeeded { attempt: None, response: json(r#"{"n":1e400}"#)? })
}

async fn due(store: &dyn Store, lane: i64, each: usize) -> Result<Vec<DueCallback>> {
    Ok(store.claim_callbacks(vec![lane], each, LONG).await?)
}

async fn one_due(store: &dyn Store, lane: i64) -> Result<DueCallback> {
    let mut due = due(store, lane, 10).await?;
    ensure!(due.len() == 1, "one is due, not {}", due.len());
    due.pop().context("one is due")
}

fn of_task(due: &DueCallback) -> Result<&Task> {
    match &due.about {
        About::Task(task) => Ok(task),
        About::Batch(batch) => anyhow::bail!("it tells of batch {}", batch.batch_id),
    }
}

fn settlement(due: &DueCallback, verdict: CallbackVerdict) -> CallbackOutcome {
    CallbackOutcome {
        row: due.record.row,
        attempt: due.record.attempts,
        chain: due.record.callback.is_chain(),
        verdict,
        tried: (verdict != CallbackVerdict::Returned).then(|| CallbackAttempt {
            number: due.record.attempts,
            at: due.now,
            duration: Duration::from_millis(12),
            status: Some(500),
            error: Some("the endpoint answered 500".to_owned()),
            answer: Some("out of order".to_owned()),
        }),
    }
}

async fn complete(store: &dyn Store, due: &DueCallback, verdict: CallbackVerdict) -> Result<()> {
    Ok(store.complete_callbacks(vec![settlement(due, verdict)], Vec::new()).await?)
}

async fn record_of(store: &dyn Store, id: TaskId) -> Result<CallbackRecord> {
    let filter = CallbackFilter { task: Some(id), limit: 10, ..CallbackFilter::default() };
    store.list_callbacks(filter).await?.records.pop().context("the task has a callback")
}

/// Covers success, failure, cancellation and a task that fails at its delivery limit. Each queues one callback.
pub async fn every_end_queues_one_callback_only_where_one_was_requested(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let whose = one_of_each(store).await?;
    let service = whose.0;
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(submit_with(store, whose, callback(LANE, &CallbackEvent::ENDS)).await?);
    }
    let silent = submit(store, new_task(service, whose.1)?).await?.task_id;
    let picky = submit_with(store, whose, callback(LANE, &[CallbackEvent::Failure])).await?;
    ensure!(due(store, LANE, 10).await?.is_empty(), "nothing has ended yet");

    change(store, ids[0], service, succeeded()?).await?;
    change(store, ids[1], service, Event::failed(None, "no")).await?;
    change(store, ids[2], service, Event::Cancelled).await?;
    change(store, silent, service, succeeded()?).await?;
    change(store, picky, service, succeeded()?).await?;
    ensure!(store.record_events(vec![super::world::says(ids[0], service, succeeded()?)]).await?.len() == 1, "too late");
    // The last task fails because its worker is lost.
    claim_for(store, service, 1, Duration::ZERO).await?;
    for _ in 0..30 {
        a_moment(store).await?;
        store.fire_timers(10).await?;
        if find(store, ids[3]).await?.state.status == Status::Failure {
            break;
        }
        claim_for(store, service, 1, Duration::ZERO).await?;
    }
    let told = due(store, LANE, 10).await?;
    let mut found: Vec<(TaskId, CallbackEvent)> =
        told.iter().map(|due| (due.record.id.task_id, due.record.event)).collect();
    let mut expected: Vec<(TaskId, CallbackEvent)> = ids
        .iter()
        .copied()
        .zip([CallbackEvent::Success, CallbackEvent::Failure, CallbackEvent::Cancelled, CallbackEvent::Failure])
        .collect();
    found.sort_unstable();
    expected.sort_unstable();
    ensure!(found == expected, "{found:?} instead of {expected:?}");
    let success = told.iter().find(|due| due.record.id.task_id == ids[0]).context("told")?;
    ensure!(of_task(success)?.response.as_ref().map(relais_core::Json::get) == Some(r#"{"n":1e400}"#), "byte for byte");
    ensure!(success.tries == 0 && success.record.attempts == 1 && success.record.callback.target.ends_with("/done"));
    Ok(())
}

/// Twelve senders take callbacks concurrently, from two processes where the driver allows it.
pub async fn concurrent_senders_never_take_the_same_callback(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let whose = one_of_each(store).await?;
    for _ in 0..60 {
        ended(store, whose, LANE).await?;
    }
    let taken = at_once(harness, 12, |store, _| async move {
        Ok(store.claim_callbacks(vec![LANE], 7, LONG).await?.into_iter().map(|due| due.record.row).collect::<Vec<_>>())
    })
    .await?;
    let mut rows: Vec<i64> = taken.into_iter().flatten().collect();
    rows.extend(due(store, LANE, 100).await?.iter().map(|due| due.record.row));
    let different: BTreeSet<i64> = rows.iter().copied().collect();
    ensure!(rows.len() == 60 && different.len() == 60, "{} handed out, {} different", rows.len(), different.len());
    Ok(())
}

/// The lease of the first sender expires, and its late answer changes nothing.
pub async fn a_callback_whose_lease_expires_is_taken_by_another_sender(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let whose = one_of_each(store).await?;
    let id = ended(store, whose, LANE).await?;
    let first = store.claim_callbacks(vec![LANE], 1, Duration::ZERO).await?.pop().context("due")?;
    a_moment(store).await?;
    let second = one_due(store, LANE).await?;
    ensure!(second.record.id == first.record.id && second.record.attempts == 2 && second.tries == 1);
    // The first sender was only slow. Its answer does not overwrite that of the second sender.
    complete(store, &first, CallbackVerdict::GivenUp).await?;
    ensure!(record_of(store, id).await?.status == CallbackStatus::Pending);
    complete(store, &second, CallbackVerdict::Delivered).await?;
    ensure!(record_of(store, id).await?.status == CallbackStatus::Success);
    ensure!(find(store, id).await?.notification == Some(CallbackStatus::Success));
    Ok(())
}

/// Covers a callback that is returned, retried, failed for good, and sent again by an operator.
pub async fn every_callback_try_is_recorded_and_decides_the_next_retry(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let whose = one_of_each(store).await?;
    let id = ended(store, whose, LANE).await?;
    ensure!(find(store, id).await?.notification == Some(CallbackStatus::Pending));
    let first = one_due(store, LANE).await?;
    complete(store, &first, CallbackVerdict::Returned).await?;
    let again = one_due(store, LANE).await?;
    ensure!(again.tries == 0 && again.record.attempts == 2, "what was given back untried does not count as a try");
    complete(store, &again, CallbackVerdict::Again(Duration::ZERO)).await?;
    a_moment(store).await?;
    let third = one_due(store, LANE).await?;
    ensure!(third.tries == 1);
    complete(store, &third, CallbackVerdict::Again(LONG)).await?;
    ensure!(due(store, LANE, 10).await?.is_empty(), "not due for an hour");
    let record = record_of(store, id).await?;
    let attempts =
        store.list_callback_attempts(vec![record.row]).await?.remove(&record.row).context("there are tries")?;
    let numbers: Vec<u32> = attempts.iter().map(|attempt| attempt.number).collect();
    ensure!(numbers == [2, 3], "{numbers:?}");
    ensure!(attempts[0].error.as_deref() == Some("the endpoint answered 500") && attempts[0].status == Some(500));
    ensure!(attempts[0].answer.as_deref() == Some("out of order") && attempts[0].duration.as_millis() == 12);
    ensure!(attempts[0].at == again.now);

    ensure!(store.resend_callbacks(Resend::One(record.id)).await?.count == 1);
    let resent = one_due(store, LANE).await?;
    ensure!(resent.tries == 0 && resent.record.attempts == 4 && resent.record.id == record.id, "under the same name");
    complete(store, &resent, CallbackVerdict::GivenUp).await?;
    ensure!(find(store, id).await?.notification == Some(CallbackStatus::Failure));
    Ok(())
}

/// Each park lasts longer than the one before, unless it reports a callback that was taken before the last park.
pub async fn a_parked_lane_sends_no_callbacks_while_other_lanes_do(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let whose = one_of_each(store).await?;
    for lane in [1, 1, 2] {
        ended(store, whose, lane).await?;
    }
    let park = LaneChange::Park { first: LONG, most: LONG * 4 };
    store.complete_callbacks(Vec::new(), vec![(1, park), (1, park)]).await?;
    let due = store.claim_callbacks(vec![1, 2], 10, LONG).await?;
    ensure!(due.len() == 1 && due[0].record.callback.lane == 2);
    let lanes = store.list_callback_lanes(None, 10).await?;
    let now = lanes.now.context("there are lanes")?;
    ensure!(lanes.heads.iter().map(|head| head.lane).eq([1, 2]));
    let rest = lanes.heads[0].parked_until.context("it is parked")?.since(now);
    ensure!(rest <= LONG, "parked once: those who were on their way say nothing new ({rest:?})");
    store.complete_callbacks(Vec::new(), vec![(1, LaneChange::Open)]).await?;
    ensure!(store.claim_callbacks(vec![1], 10, LONG).await?.len() == 2);

    let brief = LaneChange::Park { first: Duration::ZERO, most: LONG };
    store.complete_callbacks(Vec::new(), vec![(3, brief)]).await?;
    a_moment(store).await?;
    store.complete_callbacks(Vec::new(), vec![(3, park), (2, LaneChange::Wait(LONG))]).await?;
    ended(store, whose, 3).await?;
    let lanes = store.list_callback_lanes(Some(2), 10).await?;
    let rest = lanes.heads[0].parked_until.zip(lanes.now).map(|(until, now)| until.since(now));
    ensure!(rest.is_some_and(|rest| rest > LONG), "twice as long the second time: {rest:?}");
    Ok(())
}

/// Forty lanes with three callbacks each, seven per page.
pub async fn callback_lanes_are_listed_page_by_page(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let whose = one_of_each(store).await?;
    let mut tasks = Vec::new();
    for lane in (-20..20).map(|n| n * 1_000_000_007) {
        for _ in 0..3 {
            tasks.push(relais_core::NewTask {
                callback: Some(callback(lane, &CallbackEvent::ENDS)),
                ..new_task(whose.0, whose.1)?
            });
        }
    }
    let ids = super::world::submit_all(store, tasks).await?;
    let mut events = Vec::new();
    for id in ids {
        events.push(super::world::says(id, whose.0, succeeded()?));
    }
    store.record_events(events).await?;
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = store.list_callback_lanes(after, 7).await?.heads;
        let Some(last) = page.last() else { break };
        ensure!(page.len() <= 7);
        after = Some(last.lane);
        found.extend(page.iter().map(|head| head.lane));
    }
    ensure!(found == (-20..20).map(|n| n * 1_000_000_007).collect::<Vec<i64>>(), "{found:?}");
    let due = store.claim_callbacks(found, 2, LONG).await?;
    ensure!(due.len() == 80, "two of each lane, not {}", due.len());
    Ok(())
}

/// Callbacks of a task are sent one after the other, only with the latest progress, and none after the endpoint is
/// gone.
pub async fn callbacks_of_one_task_are_sent_in_order(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let whose = one_of_each(store).await?;
    let service = whose.0;
    let id = submit_with(store, whose, callback(LANE, &CallbackEvent::ALL)).await?;
    claim(store, service, 1).await?;
    let progress = |progress: f64| Event::Progressed { attempt: None, progress, lease: None };
    for n in [10.0, 20.0] {
        change(store, id, service, progress(n)).await?;
    }
    let started = one_due(store, LANE).await?;
    ensure!(started.record.event == CallbackEvent::Started && of_task(&started)?.state.progress == 0.0);
    change(store, id, service, progress(30.0)).await?;
    ensure!(due(store, LANE, 10).await?.is_empty(), "the rest waits for the first");
    complete(store, &started, CallbackVerdict::Delivered).await?;
    let middle = loop {
        // It is due a second after the progress was reported.
        let mut found = due(store, LANE, 10).await?;
        ensure!(found.len() <= 1);
        match found.pop() {
            Some(due) => break due,
            None => a_moment(store).await?,
        }
    };
    ensure!(
        middle.record.event == CallbackEvent::Progress && of_task(&middle)?.state.progress == 30.0,
        "the latest only"
    );
    ensure!(of_task(&middle)?.state.status == Status::InProgress && of_task(&middle)?.response.is_none());
    // While this callback is being sent, more progress is reported, and the task ends.
    for n in [40.0, 50.0] {
        change(store, id, service, progress(n)).await?;
    }
    change(store, id, service, succeeded()?).await?;
    ensure!(due(store, LANE, 10).await?.is_empty());
    complete(store, &middle, CallbackVerdict::GivenUp).await?;
    let end = one_due(store, LANE).await?;
    ensure!(end.record.event == CallbackEvent::Success, "progress that was overtaken is not told");
    complete(store, &end, CallbackVerdict::Delivered).await?;
    ensure!(due(store, LANE, 10).await?.is_empty());

    // After an endpoint is gone, nothing else is sent to it.
    let id = submit_with(store, whose, callback(LANE, &CallbackEvent::ALL)).await?;
    claim(store, service, 1).await?;
    let started = one_due(store, LANE).await?;
    change(store, id, service, succeeded()?).await?;
    complete(store, &started, CallbackVerdict::Gone).await?;
    ensure!(due(store, LANE, 10).await?.is_empty());
    ensure!(find(store, id).await?.notification == Some(CallbackStatus::Failure));
    let record = record_of(store, id).await?;
    let why = store.list_callback_attempts(vec![record.row]).await?;
    ensure!(why.values().flatten().any(|attempt| attempt.error.is_some()), "it says why it was not told");

    // Later changes queue no callback either.
    let id = submit_with(store, whose, callback(LANE, &CallbackEvent::ALL)).await?;
    claim(store, service, 1).await?;
    let started = one_due(store, LANE).await?;
    complete(store, &started, CallbackVerdict::Gone).await?;
    change(store, id, service, succeeded()?).await?;
    ensure!(due(store, LANE, 10).await?.is_empty());
    ensure!(find(store, id).await?.notification == Some(CallbackStatus::Failure));

    // The task is started twice: the first callback is obsolete, and the later ones do not wait for it.
    let id = submit_with(store, whose, callback(LANE, &CallbackEvent::ALL)).await?;
    let attempt = Some(claim(store, service, 1).await?[0].state.attempt);
    let started = one_due(store, LANE).await?;
    complete(store, &started, CallbackVerdict::Delivered).await?;
    change(store, id, service, progress(10.0)).await?;
    change(store, id, service, Event::Returned { attempt }).await?;
    claim(store, service, 1).await?;
    change(store, id, service, succeeded()?).await?;
    for event in [CallbackEvent::Started, CallbackEvent::Success] {
        let next = one_due(store, LANE).await?;
        ensure!(next.record.event == event, "{:?} instead of {event:?}", next.record.event);
        complete(store, &next, CallbackVerdict::Delivered).await?;
    }

    // All in one transaction.
    let id = submit_with(store, whose, callback(LANE, &CallbackEvent::ALL)).await?;
    let start = Event::Started { attempt: None, worker_host: None, lease: None };
    let events = [start, progress(5.0), progress(6.0), succeeded()?];
    store.record_events(events.map(|event| super::world::says(id, service, event)).to_vec()).await?;
    for event in [CallbackEvent::Started, CallbackEvent::Success] {
        let next = one_due(store, LANE).await?;
        ensure!(next.record.event == event, "{:?} instead of {event:?}", next.record.event);
        complete(store, &next, CallbackVerdict::Delivered).await?;
    }
    Ok(())
}

/// Twenty reports of progress make one callback, which is due a second later.
pub async fn progress_callbacks_are_delayed_and_carry_the_latest_progress(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let whose = one_of_each(store).await?;
    let id = submit_with(store, whose, callback(LANE, &[CallbackEvent::Progress, CallbackEvent::Success])).await?;
    claim(store, whose.0, 1).await?;
    let tell = async |percent: u8| {
        let event = Event::Progressed { attempt: None, progress: f64::from(percent), lease: None };
        change(store, id, whose.0, event).await
    };
    let before = store.ping().await?;
    tell(1).await?;
    let after = store.ping().await?;
    for percent in 2..=20 {
        tell(percent).await?;
    }
    let due = store.list_callback_lanes(None, 10).await?.heads.first().map(|head| head.due);
    let wait = Duration::from_secs(1);
    ensure!(due.is_some_and(|due| (before.after(wait)..=after.after(wait)).contains(&due)), "{due:?}");
    let filter = CallbackFilter { task: Some(id), limit: 50, ..CallbackFilter::default() };
    ensure!(store.list_callbacks(filter).await?.records.len() == 1, "twenty times progress is one callback");
    Ok(())
}

/// Covers filters, pages, and sending failed callbacks again.
pub async fn callbacks_are_listed_and_sent_again_by_filter(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let whose = one_of_each(store).await?;
    let other = super::world::client(store, "bob").await?;
    let mut ids = Vec::new();
    for n in 0..9 {
        let client = if n % 3 == 0 { other } else { whose.1 };
        ids.push(ended(store, (whose.0, client), n).await?);
    }
    for due in store.claim_callbacks((0..6).collect(), 1, LONG).await? {
        let verdict = if due.record.callback.lane < 4 { CallbackVerdict::GivenUp } else { CallbackVerdict::Delivered };
        complete(store, &due, verdict).await?;
    }
    let all = async |filter: CallbackFilter| -> Result<Vec<TaskId>> {
        let (mut found, mut filter) = (Vec::new(), CallbackFilter { limit: 2, ..filter });
        loop {
            let page = store.list_callbacks(filter.clone()).await?;
            found.extend(page.records.iter().map(|record| record.id.task_id));
            match page.next_before {
                Some(next) => filter.before = Some(next),
                None => return Ok(found),
            }
        }
    };
    let reversed = |wanted: &[usize]| wanted.iter().rev().map(|&n| ids[n]).collect::<Vec<_>>();
    let any = CallbackFilter::default();
    ensure!(all(any.clone()).await? == reversed(&[0, 1, 2, 3, 4, 5, 6, 7, 8]));
    let failed = CallbackFilter { status: Some(CallbackStatus::Failure), ..any.clone() };
    ensure!(all(failed.clone()).await? == reversed(&[0, 1, 2, 3]));
    ensure!(all(CallbackFilter { client: Some(other), ..failed.clone() }).await? == reversed(&[0, 3]));
    ensure!(all(CallbackFilter { status: Some(CallbackStatus::Success), ..any.clone() }).await? == reversed(&[4, 5]));
    ensure!(all(CallbackFilter { service: Some(ServiceKey(9_999)), ..any.clone() }).await?.is_empty());
    let now = store.ping().await?;
    ensure!(all(CallbackFilter { from: Some(now.after(LONG)), ..any }).await?.is_empty());

    let resend = |since, client| Resend::Failed { since, service: Some(whose.0), client, after: 0 };
    ensure!(store.resend_callbacks(resend(now.after(LONG), None)).await?.count == 0);
    ensure!(store.resend_callbacks(resend(Timestamp::from_millis(0), Some(other))).await?.count == 2);
    ensure!(all(failed).await? == reversed(&[1, 2]));
    ensure!(store.claim_callbacks(vec![0, 1, 2, 3], 9, LONG).await?.len() == 2);
    Ok(())
}

/// The lane stays parked for too long.
pub async fn a_callback_that_is_overdue_for_too_long_fails(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let whose = one_of_each(store).await?;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(ended(store, whose, LANE).await?);
    }
    ensure!(store.expire_callbacks(LANE, LONG, 10).await? == 0, "nothing is that old");
    a_moment(store).await?;
    ensure!(store.expire_callbacks(LANE + 1, Duration::ZERO, 10).await? == 0, "another lane");
    ensure!(store.expire_callbacks(LANE, Duration::ZERO, 3).await? == 3);
    ensure!(store.expire_callbacks(LANE, Duration::ZERO, 10).await? == 2);
    ensure!(due(store, LANE, 10).await?.is_empty());
    ensure!(find(store, ids[4]).await?.notification == Some(CallbackStatus::Failure));
    Ok(())
}

/// The purge skips a task whose callback is still queued, and later removes the callback with the task.
pub async fn a_task_with_an_unsent_callback_is_not_purged(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let whose = one_of_each(store).await?;
    let id = ended(store, whose, LANE).await?;
    a_moment(store).await?;
    let purge = async || -> Result<u64> {
        let (mut cursor, mut purged) = (None, 0);
        loop {
            let rule = PurgeRule {
                service: whose.0,
                finished: Duration::ZERO,
                any: Duration::ZERO,
                dry_run: false,
                batch: 10,
                cursor,
            };
            let report = store.purge_tasks(rule).await?;
            purged += report.purged;
            cursor = report.cursor;
            if cursor.is_none() {
                return Ok(purged);
            }
        }
    };
    ensure!(purge().await? == 0);
    let due = one_due(store, LANE).await?;
    complete(store, &due, CallbackVerdict::Delivered).await?;
    let row = record_of(store, id).await?.row;
    ensure!(purge().await? == 1);
    ensure!(store.list_callback_attempts(vec![row]).await?.is_empty(), "its callbacks go with it");
    let left = store.list_callbacks(CallbackFilter { limit: 10, ..CallbackFilter::default() }).await?;
    ensure!(left.records.is_empty());
    Ok(())
}

/// The callback keeps its content, whatever happens to the task afterwards.
pub async fn a_callback_keeps_the_result_it_was_queued_with_when_the_task_is_retried(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let whose = one_of_each(store).await?;
    let id = submit_with(store, whose, callback(LANE, &CallbackEvent::ENDS)).await?;
    change(store, id, whose.0, Event::failed(None, "no ink")).await?;
    let failed = find(store, id).await?;
    change(store, id, whose.0, Event::Revived).await?;
    let told = one_due(store, LANE).await?;
    ensure!(told.record.event == CallbackEvent::Failure && of_task(&told)?.state.status == Status::Failure, "{told:?}");
    ensure!(
        of_task(&told)?.error_message.as_deref() == Some("no ink") && of_task(&told)?.state.ended == failed.state.ended
    );
    ensure!(of_task(&told)?.state.started == failed.state.started && of_task(&told)?.response.is_none());
    complete(store, &told, CallbackVerdict::Again(Duration::ZERO)).await?;

    // The task ends for good, and both callbacks keep what they said.
    change(store, id, whose.0, succeeded()?).await?;
    change(store, id, whose.0, Event::Revived).await?;
    a_moment(store).await?;
    let mut told = due(store, LANE, 10).await?;
    told.sort_unstable_by_key(|due| due.record.row);
    let event = |due: &DueCallback| Ok((due.record.event, of_task(due)?.state.status));
    let events: Vec<_> = told.iter().map(event).collect::<Result<_>>()?;
    let expected = [(CallbackEvent::Failure, Status::Failure), (CallbackEvent::Success, Status::Success)];
    ensure!(events == expected, "{events:?}");
    let (failed, done) = (of_task(&told[0])?, of_task(&told[1])?);
    ensure!(failed.response.is_none() && done.response.is_some() && done.error_message.is_none());
    Ok(())
}

/// Covers rotation of signing secrets, and the destinations of a client on the broker.
pub async fn at_most_two_signing_secrets_are_valid(harness: &Harness) -> Result<()> {
    let store = harness.store();
    store.declare(vec![put_client("alice")?]).await?;
    let put = |secret: &str, unless_any| -> Result<Change> {
        Ok(Change::PutSigningSecret {
            client_id: ClientId::new("alice")?,
            secret: secret.to_owned(),
            overlap: LONG,
            unless_any,
        })
    };
    let secrets = async || -> Result<Vec<(String, bool)>> {
        let declared = store.declared().await?;
        let alice = declared.clients.get("alice").context("alice")?;
        Ok(alice.signing_secrets.iter().map(|one| (one.secret.clone(), one.expires.is_some())).collect())
    };
    let expect = |wanted: &[(&str, bool)]| wanted.iter().map(|(s, e)| ((*s).to_owned(), *e)).collect::<Vec<_>>();
    store.declare(vec![put("one", true)?, put("two", true)?]).await?;
    ensure!(secrets().await? == expect(&[("one", false)]), "it had one already");
    a_moment(store).await?;
    store.declare(vec![put("two", false)?]).await?;
    ensure!(secrets().await? == expect(&[("two", false), ("one", true)]));
    store.declare(vec![put("two", false)?]).await?;
    ensure!(secrets().await? == expect(&[("two", false), ("one", true)]), "nothing new");
    a_moment(store).await?;
    store.declare(vec![put("three", false)?]).await?;
    ensure!(secrets().await? == expect(&[("three", false), ("two", true)]));

    let destination = Destination { name: "done".to_owned(), exchange: "x".to_owned(), routing_key: "k".to_owned() };
    let client_id = ClientId::new("alice")?;
    let put = |destinations| Change::PutClient {
        client_id: client_id.clone(),
        secret_hash: None,
        destinations,
        notifications: None,
    };
    store.declare(vec![put(Some(vec![destination.clone()])), put(None)]).await?;
    ensure!(store.declared().await?.clients["alice"].destinations == [destination]);
    store.declare(vec![Change::DeleteClient(client_id), put_client("alice")?]).await?;
    ensure!(secrets().await?.is_empty() && store.declared().await?.clients["alice"].destinations.is_empty());
    Ok(())
}
