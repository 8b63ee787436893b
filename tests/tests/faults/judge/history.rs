//! Checks of attempts: which there were, why they were retried, how many ran at once, and how fast they started.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use relais_core::{Attempt, AttemptOutcome, Status, Task, TaskId, Timestamp};
use relais_tests::chaos::Verdict;

use crate::{
    instances::{LATER, LATER_BY, PERMANENT},
    ledger::Book,
    stage::Cast,
    world::{BURST, FEW, FREE, INTERVAL, MOST_OF_ONE, MOST_RUNNING, RETRIES, RETRY_AFTER, SLOW},
};

/// Failures that no retry policy counts.
const NOT_FAILURES: [&str; 3] = ["lost", "expired", "dependency"];

/// A start is written with the time at which its claim began to look. What ends while it looks may make room for it.
const SLACK: Duration = Duration::from_millis(300);

/// Whether something began before this moment, as far as anybody can tell.
pub fn before(started: Timestamp, moment: Timestamp) -> bool {
    started.after(SLACK) < moment
}

/// All attempts of a task that has ended. A worker may have had the last word on one that was taken away from it, and
/// that nobody else had begun.
fn all(task: &Task, past: &[Attempt]) -> Vec<Attempt> {
    let known = past.last().map_or(0, |attempt| attempt.number);
    past.iter().cloned().chain(Attempt::of(&task.state, None).filter(|last| last.number > known)).collect()
}

/// Judges the attempts of one task.
pub fn judge(task: &Task, past: &[Attempt], cast: Cast, book: &Book, verdict: &mut Verdict) {
    let (task_id, state) = (task.task_id, &task.state);
    let mut wrong = |what: String| {
        verdict.doubled += 1;
        verdict.findings.push(format!("task {task_id}: {what}: {past:?}, {state:?}"));
    };
    let attempts = all(task, past);
    if !attempts.iter().map(|attempt| attempt.number).eq(1..=state.attempt) {
        wrong("its attempts are not all there".to_owned());
    }
    // Where nothing is limited, it is not written at once that a process has a task: its end may be, meanwhile.
    let unwritten = u32::from(task.service.as_str() == FREE);
    let mut later = (state.attempt + unwritten + 1..).take(3);
    if let Some(later) = later.find(|&later| book.claimed.contains(&(task_id, later))) {
        wrong(format!("attempt {later} was made after its end"));
    }
    for (attempt, next) in attempts.iter().zip(attempts.iter().skip(1)) {
        if let Some(why) = contradiction(attempt, next, task_id, book) {
            wrong(format!("attempt {} {why}", attempt.number));
        }
    }
    let limit = if cast == Cast::InProcess { RETRIES } else { 0 };
    let retried = past.iter().filter(|attempt| attempt.outcome == AttemptOutcome::Failure).count() as u32;
    let kind = task.error_kind.as_deref().unwrap_or_default();
    let last = u32::from(state.status == Status::Failure && !NOT_FAILURES.contains(&kind));
    if retried > limit || state.failures != retried + last {
        wrong(format!("{retried} of its failures were tried again, of {limit}"));
    }
}

/// Why an attempt can not have been followed by another one.
fn contradiction(attempt: &Attempt, next: &Attempt, task_id: TaskId, book: &Book) -> Option<String> {
    let failure = match attempt.outcome {
        AttemptOutcome::Failure => attempt.failure.as_ref()?,
        AttemptOutcome::Returned | AttemptOutcome::Lost => {
            let early = next.started.zip(attempt.ended).is_none_or(|(started, ended)| before(started, ended));
            return early.then(|| "was still made when the next began".to_owned());
        }
        AttemptOutcome::Running | AttemptOutcome::Success | AttemptOutcome::Cancelled => {
            return Some("was no reason for another".to_owned());
        }
    };
    let sent = book.sent.get(&task_id).is_some_and(|sent| sent.contains(&failure.message));
    let own = failure.message.split('/').nth(1) == Some(attempt.number.to_string().as_str());
    if failure.kind.as_deref() != Some("timeout") && !(sent && own) {
        return Some(format!("failed with what nobody said: {failure:?}"));
    }
    let word = failure.message.rsplit('/').next().unwrap_or_default();
    if PERMANENT.contains(&word) {
        return Some("was not to be tried again".to_owned());
    }
    let wait = if word == LATER { LATER_BY } else { RETRY_AFTER };
    let soon = attempt.ended.zip(next.started).is_none_or(|(ended, started)| before(started, ended.after(wait)));
    soon.then(|| format!("was tried again before {wait:?}"))
}

/// No more ran at once, and none began sooner, than the services allow.
pub fn judge_limits(stored: &[Task], past: &HashMap<TaskId, Vec<Attempt>>, verdict: &mut Verdict) {
    let of = |service: &str| {
        let tasks: Vec<&Task> = stored.iter().filter(|task| task.service.as_str() == service).collect();
        tasks
            .into_iter()
            .flat_map(|task| all(task, &past[&task.task_id]).into_iter().map(move |attempt| (task, attempt)))
    };
    let mut by_client: BTreeMap<&str, Vec<Attempt>> = BTreeMap::new();
    for (task, attempt) in of(FEW) {
        by_client.entry(task.client_id.as_str()).or_default().push(attempt);
    }
    let everybody: Vec<Attempt> = by_client.values().flatten().cloned().collect();
    let each = by_client.iter().map(|(client, attempts)| (*client, attempts, MOST_OF_ONE));
    for (who, attempts, limit) in each.chain([("all", &everybody, MOST_RUNNING)]) {
        let most = most_at_once(attempts);
        if most > limit {
            verdict.doubled += 1;
            verdict.findings.push(format!("{most} tasks of {who} ran at once, of {limit}"));
        }
    }
    let mut starts: Vec<Timestamp> = of(SLOW).filter_map(|(_, attempt)| attempt.started).collect();
    starts.sort_unstable();
    if let Some((number, within)) = too_fast(&starts) {
        verdict.doubled += 1;
        verdict.findings.push(format!("{number} tasks of {SLOW} began within {within:?}"));
    }
}

/// How many attempts there were at one moment, of those that took some time.
fn most_at_once(attempts: &[Attempt]) -> usize {
    let stretches = attempts.iter().filter_map(|attempt| Some((attempt.started?.after(SLACK), attempt.ended?)));
    let stretches: Vec<_> = stretches.filter(|(started, ended)| started < ended).collect();
    let (begins, ends) =
        (stretches.iter().map(|stretch| (stretch.0, 1)), stretches.iter().map(|stretch| (stretch.1, -1)));
    let mut changes: Vec<(Timestamp, i64)> = begins.chain(ends).collect();
    // At the same moment, what ends makes room for what begins.
    changes.sort_unstable();
    let running = changes.iter().scan(0, |running, (_, change)| {
        *running += change;
        Some(*running)
    });
    usize::try_from(running.max().unwrap_or(0)).unwrap_or(0)
}

/// More starts in a time than the rate allows.
fn too_fast(starts: &[Timestamp]) -> Option<(usize, Duration)> {
    let pairs = starts.iter().enumerate().flat_map(|(first, from)| {
        starts[first..].iter().enumerate().map(move |(more, until)| (more + 1, until.since(*from)))
    });
    pairs.into_iter().find(|&(number, within)| {
        // Moments are known to the millisecond.
        let within = within + Duration::from_millis(1);
        number > BURST + usize::try_from(within.as_nanos() / INTERVAL.as_nanos()).unwrap_or(usize::MAX)
    })
}
