//! Compares what was promised with what is stored, read without faults.

mod history;
pub mod runs;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use relais_core::{
    Attempt, Batch, CallbackStatus, Condition, ServiceKey, Status, StatusCounter, Store, Task, TaskFilter, TaskId,
};
use relais_tests::chaos::Verdict;
use tokio::time::Instant;

use super::{
    PAUSE,
    ledger::{Book, Ledger},
    stage::Cast,
    world::{BY_HAND, DELIVERY_LIMIT, NOBODY},
};

/// Every task there is, with its result, which a listing does not show, and with its attempts before the last.
async fn read_all(store: &dyn Store) -> Result<(Vec<Task>, HashMap<TaskId, Vec<Attempt>>)> {
    let (mut tasks, mut past) = (Vec::new(), HashMap::new());
    for listed in list_all(store).await? {
        tasks.push(store.find_task(listed.task_id).await?.context("a task is listed and not there")?);
        past.insert(listed.task_id, store.list_attempts(listed.id).await?);
    }
    Ok((tasks, past))
}

/// Every task there is.
pub async fn list_all(store: &dyn Store) -> Result<Vec<Task>> {
    let (mut tasks, mut filter) = (Vec::new(), TaskFilter { limit: 100, ..TaskFilter::default() });
    loop {
        let page = store.list_tasks(filter.clone()).await?;
        tasks.extend(page.tasks);
        match page.next_before_id {
            Some(before) => filter.before_id = Some(before),
            None => return Ok(tasks),
        }
    }
}

/// Waits until something is so. Says so, and does not fail, if the time is up: the verdict will.
pub async fn until(most: Duration, mut so: impl AsyncFnMut() -> Result<bool>) -> Result<bool> {
    let begun = Instant::now();
    while !so().await? {
        if begun.elapsed() > most {
            return Ok(false);
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(true)
}

async fn keys(store: &dyn Store) -> Result<Vec<ServiceKey>> {
    Ok(store.declared().await?.services.values().map(|service| service.key).collect())
}

/// Waits until all that was taken in is there: what was put into the stored submissions is some time later.
pub async fn arrived(store: &dyn Store, ledger: &Ledger, most: Duration) -> Result<()> {
    let all_there = async || -> Result<bool> {
        let there: HashSet<TaskId> = list_all(store).await?.iter().map(|task| task.task_id).collect();
        Ok(ledger.book().accepted.keys().all(|task_id| there.contains(task_id)))
    };
    until(most, all_there).await?;
    Ok(())
}

/// Waits until no process is known any more: those that have ended, and those that died.
pub async fn alone(store: &dyn Store, most: Duration) -> Result<()> {
    let nobody = until(most, async || Ok(store.list_instances().await?.is_empty())).await?;
    ensure!(nobody, "processes are known that are no more: {:?}", store.list_instances().await?);
    Ok(())
}

/// Waits until no task is unfinished.
pub async fn drained(store: &dyn Store, most: Duration) -> Result<()> {
    let keys = keys(store).await?;
    let ended = async || -> Result<bool> {
        let idle = store.queue_depths(keys.clone()).await?.iter().all(|depth| depth.backlog() == 0);
        // Those that wait for others are in no queue.
        Ok(idle && list_all(store).await?.iter().all(|task| task.state.status.is_final()))
    };
    until(most, ended).await?;
    Ok(())
}

/// Waits until nothing is left to be published to a broker.
pub async fn dispatched(store: &dyn Store, most: Duration) -> Result<()> {
    let keys = keys(store).await?;
    let none =
        until(most, async || Ok(store.claim_dispatches(keys.clone(), 10, Duration::ZERO).await?.tasks.is_empty()));
    ensure!(none.await?, "what has ended is still to be published");
    Ok(())
}

/// Waits until every callback is sent.
pub async fn told(store: &dyn Store, most: Duration) -> Result<()> {
    let waits = |task: &Task| task.callback.is_some() && task.notification != Some(told_how(task));
    let untold = |batch: &Batch| batch.notification != Some(CallbackStatus::Success);
    let all = async || -> Result<bool> {
        let batches = store.list_batches(None, None, 10_000).await?;
        Ok(!list_all(store).await?.iter().any(waits) && !batches.iter().any(untold))
    };
    until(most, all).await?;
    Ok(())
}

/// What becomes of telling a task's end.
fn told_how(task: &Task) -> CallbackStatus {
    let nobody = task.callback.as_ref().is_some_and(|callback| callback.target == NOBODY);
    if nobody { CallbackStatus::Failure } else { CallbackStatus::Success }
}

/// The tasks that wait have the places from the first to the last, each one of them. Tells how many wait.
pub async fn places(store: &dyn Store, service: &str, most: Duration) -> Result<usize> {
    let key = store.declared().await?.services.get(service).context("the service is declared")?.key;
    let filter =
        TaskFilter { services: vec![key], statuses: vec![Status::Pending], limit: 1000, ..TaskFilter::default() };
    let mut places = Vec::new();
    // What silent workers had may come back meanwhile; then they are read again.
    let still = until(most, async || {
        let waiting = async || {
            let page = store.list_tasks(filter.clone()).await?;
            anyhow::Ok(page.tasks.into_iter().map(|task| task.task_id).collect::<Vec<_>>())
        };
        let before = waiting().await?;
        places.clear();
        for task_id in &before {
            places.extend(store.find_task(*task_id).await?.and_then(|task| task.position));
        }
        Ok(before == waiting().await?)
    });
    ensure!(still.await?, "the queue of {service} does not come to rest");
    places.sort_unstable();
    let number = places.len();
    ensure!(places.iter().copied().eq(1..=number as u64), "{number} tasks of {service} wait at {places:?}");
    Ok(number)
}

/// Judges a run that is over.
pub async fn judge(store: &dyn Store, cast: Cast, ledger: &Ledger, faults: u64) -> Result<Verdict> {
    let (stored, past) = read_all(store).await?;
    let mut verdict = Verdict { faults: usize::try_from(faults)?, ..Verdict::default() };
    compare_counters(store, &stored, &mut verdict).await?;
    let book = ledger.snapshot();
    verdict.tasks = book.accepted.len();
    verdict.findings.extend(book.wrong.iter().cloned());
    verdict.doubled += book.doubled.len();
    verdict.findings.extend(book.doubled.iter().cloned());

    let by_id: HashMap<_, &Task> = stored.iter().map(|task| (task.task_id, task)).collect();
    ensure!(by_id.len() == stored.len(), "a task is listed twice");
    for (task_id, mark) in book.accepted.iter().filter(|(task_id, _)| !by_id.contains_key(task_id)) {
        verdict.lost += 1;
        verdict.findings.push(format!("task {task_id} of {mark} was taken in and is not there"));
    }
    judge_batches(store, &stored, &book, &mut verdict).await?;
    let mut by_mark: BTreeMap<&str, usize> = BTreeMap::new();
    for task in &stored {
        judge_order(task, &by_id, &mut verdict);
        *by_mark.entry(task.correlation_id.as_deref().unwrap_or("none")).or_default() += 1;
        judge_task(task, &past[&task.task_id], &book, &mut verdict);
        if cast != Cast::Brokered {
            history::judge(task, &past[&task.task_id], cast, &book, &mut verdict);
        }
    }
    if cast == Cast::InProcess {
        history::judge_limits(&stored, &past, &mut verdict);
        runs::judge(store, &stored, &mut verdict).await?;
    }
    // What is done by hand is done as often as somebody says so.
    let wanted_once = |mark: &&str| !mark.starts_with(BY_HAND);
    for (mark, times) in by_mark.into_iter().filter(|(mark, times)| wanted_once(mark) && *times > 1) {
        verdict.doubled += 1;
        verdict.findings.push(format!("{mark} was wanted once and is there {times} times"));
    }
    Ok(verdict)
}

fn judge_task(task: &Task, past: &[Attempt], book: &Book, verdict: &mut Verdict) {
    let (task_id, state) = (task.task_id, &task.state);
    if !state.status.is_final() {
        verdict.stuck += 1;
        return verdict.findings.push(format!("task {task_id} is left: {state:?}"));
    }
    let told = book.told.get(&task_id).map_or(&[][..], Vec::as_slice);
    // Failures count as well that were tried again.
    let mut ends: Vec<String> =
        past.iter().filter_map(|attempt| Some(attempt.failure.as_ref()?.message.clone())).collect();
    if told.len() > ends.len() + 1 {
        verdict.doubled += 1;
        verdict.findings.push(format!("task {task_id} has more results that count than attempts: {told:?}"));
    }
    if book.revoked.contains(&task_id) {
        verdict.doubled += 1;
        verdict.findings.push(format!("task {task_id} was rolled back and is there"));
    }
    let recorded = match state.status {
        Status::Success => {
            let response = task.response.as_ref().and_then(|response| response.to_value().ok());
            response.and_then(|response| response["result"].as_str().map(str::to_owned))
        }
        Status::Failure => task.error_message.clone(),
        _ => None,
    };
    let given_up = state.status == Status::Failure && state.losses >= DELIVERY_LIMIT;
    let barred = matches!(task.error_kind.as_deref(), Some("dependency" | "expired")) && state.attempt == 0;
    let taken_away = matches!(task.error_kind.as_deref(), Some("timeout" | "crashed"));
    let ends_by_itself = state.status == Status::Cancelled || given_up && told.is_empty() || barred || taken_away;
    // What counts was sent, by whoever had the attempt with which the task ended. Behind a broker nobody knows
    // attempts.
    let sent = recorded.as_ref().is_some_and(|result| {
        let attempt = result.split('/').nth(1).unwrap_or_default();
        let held = attempt == state.attempt.to_string() && book.claimed.contains(&(task_id, state.attempt));
        (held || attempt == "-") && book.sent.get(&task_id).is_some_and(|sent| sent.contains(result))
    });
    ends.extend(recorded.clone());
    if told.iter().any(|result| !ends.contains(result)) || !sent && !ends_by_itself {
        verdict.lost += 1;
        verdict.findings.push(format!("task {task_id} has {recorded:?}, a worker was told {told:?}: {state:?}"));
    }
    if let Some(seen) = book.seen.get(&task_id).filter(|seen| **seen != state.status) {
        verdict.lost += 1;
        verdict.findings.push(format!("task {task_id} was seen {} and is {:?}", seen.as_str(), state.status));
    }
    let letters = book.letters.get(&task_id).map_or(&[][..], Vec::as_slice);
    let to_be_told = task.callback.is_some() && told_how(task) == CallbackStatus::Success;
    if to_be_told == letters.is_empty() || letters.iter().any(|end| end != state.status.as_str()) {
        verdict.lost += 1;
        verdict.findings.push(format!("of task {task_id}, which ended {:?}, was told {letters:?}", state.status));
    }
}

/// Nobody was started before what it waits for had ended, and nobody failed for another that did not.
fn judge_order(task: &Task, by_id: &HashMap<TaskId, &Task>, verdict: &mut Verdict) {
    let succeeds = task.links.when == Some(Condition::AllSucceeded);
    let mut others = task.links.after.iter().filter_map(|one| by_id.get(&one.task_id)).peekable();
    if others.peek().is_none() {
        return;
    }
    let barred = task.error_kind.as_deref() == Some("dependency");
    let wrong = |other: &&&Task| {
        // One that was given back is not started any more, and one that was too late never was.
        let started = task.state.started.filter(|_| task.state.attempt > 0);
        let early =
            started.is_some_and(|started| other.state.ended.is_none_or(|ended| history::before(started, ended)));
        early || succeeds && task.state.attempt > 0 && other.state.status != Status::Success
    };
    let found = others.clone().filter(wrong).count();
    if found > 0 || barred && others.all(|other| other.state.status == Status::Success) {
        verdict.doubled += 1;
        verdict.findings.push(format!("task {} did not wait as it was to: {:?}", task.task_id, task.links));
    }
}

/// Every batch has ended, has exact counters, and has one callback.
async fn judge_batches(store: &dyn Store, stored: &[Task], book: &Book, verdict: &mut Verdict) -> Result<()> {
    for batch in store.list_batches(None, None, 10_000).await? {
        let own = |status| {
            let own = stored.iter().filter(|task| task.links.batch == Some(batch.batch_id));
            own.filter(|task| task.state.status == status).count() as u64
        };
        let counts = &batch.counts;
        let counted = (own(Status::Success), own(Status::Failure), own(Status::Cancelled));
        if (counts.success, counts.failure, counts.cancelled) != counted || counts.total() != 3 {
            verdict.lost += 1;
            verdict.findings.push(format!("batch {} counts {counts:?}, there are {counted:?}", batch.batch_id));
        }
        let letters = book.letters.get(&TaskId(batch.batch_id.0)).map_or(0, Vec::len);
        if batch.ended.is_none() || letters == 0 {
            verdict.stuck += 1;
            verdict.findings.push(format!("batch {} is left, and was told {letters} times: {batch:?}", batch.batch_id));
        }
    }
    Ok(())
}

/// The counters that are kept with the tasks must be what counting gives.
async fn compare_counters(store: &dyn Store, stored: &[Task], verdict: &mut Verdict) -> Result<()> {
    let (declared, backlog) = (store.declared().await?, store.backlog().await?);
    for service in declared.services.values() {
        let (name, key) = (&service.name, &service.key);
        let count =
            |status| stored.iter().filter(|task| task.service == *name && task.state.status == status).count() as u64;
        for status in Status::ALL {
            let kept = backlog.counters.iter().find(|tally| tally.service == *key && tally.status == status);
            let (kept, counted) = (kept.map_or(0, StatusCounter::current), count(status));
            if kept != counted {
                let status = status.as_str();
                verdict.findings.push(format!("{kept} tasks of {name} are counted as {status}; there are {counted}"));
            }
        }
        let depth = store.queue_depths(vec![*key]).await?.pop().context("one queue has one depth")?;
        if (depth.pending, depth.in_progress) != (count(Status::Pending), count(Status::InProgress)) {
            verdict.findings.push(format!("the queue of {name} is {depth:?}"));
        }
    }
    Ok(())
}
