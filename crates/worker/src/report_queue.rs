//! The queue of reports to the server: results, and notes (the start of a task, and its latest progress).
//!
//! Results are kept until they are taken, in order. Progress is overwritten: only the latest is sent, and none once the
//! task has succeeded; a failure carries it, because it shows how far the task came. A start waits for a moment,
//! because it is usually sent with the result. Nothing here calls the server.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use relais_handler::Verdict;
use relais_protocol::worker::MAX_MESSAGES;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::slots::TaskKey;

/// About as many bytes as one call carries, so that many results together are not refused for their size.
const BATCH_BYTES: usize = 256 * 1024;

/// A task that ends within this time reports its start with its end: one message instead of two, and one change of its
/// row.
const SHORT: Duration = Duration::from_millis(20);

fn size(verdict: &Verdict) -> usize {
    match verdict {
        Verdict::Success(response) => response.get().len(),
        Verdict::Failure(failure) => failure.message.len(),
    }
}

/// A result to be reported.
#[derive(Debug, Clone)]
pub(crate) struct QueuedReport {
    pub key: TaskKey,
    pub verdict: Verdict,
    /// The last progress, if the task failed and it may not have been reported. Sent just before the result.
    pub progress: Option<f64>,
    /// Whether the start may not have been reported.
    pub untold: bool,
    /// Whether a call with it had no answer: the server may have it already.
    pub sent_before: bool,
    /// Whether it replaces a result that the server refused.
    pub substitute: bool,
}

/// A note about a task that has not ended.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Note {
    pub started: bool,
    pub progress: Option<f64>,
}

#[derive(Debug, Default)]
struct Waiting {
    results: VecDeque<QueuedReport>,
    notes: HashMap<TaskKey, Note>,
    /// When each start was noted, in order. Some notes may be gone.
    starts: VecDeque<(Instant, TaskKey)>,
    /// Notes that are being sent: that may fail, or they may be overtaken.
    telling: HashMap<TaskKey, Note>,
}

impl Waiting {
    fn add(&mut self, key: TaskKey, note: Note) {
        if note.started {
            self.starts.push_back((Instant::now(), key.clone()));
        }
        let waiting = self.notes.entry(key).or_default();
        waiting.started |= note.started;
        waiting.progress = note.progress.or(waiting.progress);
    }

    /// When the next start must be sent.
    fn next_start(&self) -> Option<Instant> {
        self.starts.front().map(|(since, _)| *since + SHORT)
    }

    /// Starts that must be sent by now, at most so many.
    fn due_starts(&mut self, most: usize) -> Vec<(TaskKey, Note)> {
        let (now, mut due) = (Instant::now(), Vec::new());
        while due.len() < most && self.next_start().is_some_and(|at| at <= now) {
            let Some((_, key)) = self.starts.pop_front() else { break };
            if self.notes.get(&key).is_some_and(|note| note.started) {
                due.extend(self.notes.remove_entry(&key));
            }
        }
        due
    }
}

/// The queue of reports.
#[derive(Debug, Default)]
pub(crate) struct ReportQueue {
    /// Locked for moments only, never across an await.
    waiting: Mutex<Waiting>,
    results_came: Notify,
    notes_came: Notify,
    /// No more results will come.
    closing: CancellationToken,
}

impl ReportQueue {
    /// Queues the start of a task.
    pub fn put_started(&self, key: &TaskKey) {
        let mut waiting = self.lock();
        let first = waiting.starts.is_empty();
        waiting.add(key.clone(), Note { started: true, progress: None });
        drop(waiting);
        // Behind others, it is looked at when their time has come.
        if first {
            self.notes_came.notify_one();
        }
    }

    /// Queues the result of a task. Unsent notes are dropped, except for the progress of a failure.
    pub fn put_result(&self, key: TaskKey, verdict: Verdict) {
        let mut waiting = self.lock();
        let waits = waiting.notes.remove(&key).unwrap_or_default();
        let being_told = waiting.telling.get(&key).copied().unwrap_or_default();
        let untold = waits.started || being_told.started;
        let progress = match verdict {
            Verdict::Failure(_) => waits.progress.or(being_told.progress),
            Verdict::Success(_) => None,
        };
        waiting.results.push_back(QueuedReport {
            key,
            verdict,
            progress,
            untold,
            sent_before: false,
            substitute: false,
        });
        drop(waiting);
        self.results_came.notify_one();
    }

    /// Queues the progress of a task. Not-a-number is ignored, the rest is brought between 0 and 100.
    pub fn put_progress(&self, key: &TaskKey, progress: f64) {
        if !progress.is_nan() {
            self.lock().add(key.clone(), Note { started: false, progress: Some(progress.clamp(0.0, 100.0)) });
            self.notes_came.notify_one();
        }
    }

    /// A task is no longer this worker's: drops its reports.
    pub fn forget(&self, key: &TaskKey) {
        self.lock().notes.remove(key);
    }

    /// Waits for results and takes as many as go into one call, at most `limit`. None once there are no more to come.
    pub async fn take_results(&self, limit: usize) -> Option<Vec<QueuedReport>> {
        loop {
            let came = self.results_came.notified();
            let batch = self.take_batch(limit);
            if !batch.is_empty() {
                return Some(batch);
            }
            if self.closing.is_cancelled() {
                return None;
            }
            tokio::select! {
                () = came => {}
                () = self.closing.cancelled() => {}
            }
        }
    }

    /// Puts results that could not be sent back to the front.
    pub fn put_back_results(&self, batch: Vec<QueuedReport>) {
        let mut waiting = self.lock();
        for report in batch.into_iter().rev() {
            waiting.results.push_front(report);
        }
        drop(waiting);
        self.results_came.notify_one();
    }

    /// Waits for notes and takes those that go into one call. Starts are sent after a moment, progress alone only from
    /// a time on.
    pub async fn take_notes(&self, progress_from: Instant) -> Vec<(TaskKey, Note)> {
        loop {
            let came = self.notes_came.notified();
            let due = Instant::now() >= progress_from;
            let batch = self.take_notes_batch(due);
            if !batch.is_empty() {
                return batch;
            }
            let next_start = self.lock().next_start();
            tokio::select! {
                () = came => {}
                () = sleep_until(progress_from), if !due => {}
                () = sleep_until(next_start.unwrap_or(progress_from)), if next_start.is_some() => {}
            }
        }
    }

    /// The call with these notes is over.
    pub fn told_notes(&self, batch: &[(TaskKey, Note)]) {
        let mut waiting = self.lock();
        for (key, _) in batch {
            waiting.telling.remove(key);
        }
    }

    /// Puts notes that could not be sent back, unless there are newer ones. `still` says whether the task still wants
    /// them.
    pub fn put_back_notes(&self, batch: Vec<(TaskKey, Note)>, still: impl Fn(&TaskKey) -> bool) {
        let mut waiting = self.lock();
        for (key, note) in batch {
            waiting.telling.remove(&key);
            if still(&key) {
                let newer = waiting.notes.get(&key).and_then(|newer| newer.progress);
                waiting.add(key, Note { progress: newer.or(note.progress), ..note });
            }
        }
        drop(waiting);
        self.notes_came.notify_one();
    }

    /// No more results will come: the takers end when there are none left.
    pub fn close(&self) {
        self.closing.cancel();
    }

    /// Cancelled when no more results will come.
    pub fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    fn take_batch(&self, limit: usize) -> Vec<QueuedReport> {
        let mut waiting = self.lock();
        let (mut bytes, mut messages, mut count) = (0, 0, 0);
        for report in waiting.results.iter().take(limit) {
            bytes += size(&report.verdict);
            messages += 1 + usize::from(report.progress.is_some());
            if count > 0 && (bytes > BATCH_BYTES || messages > MAX_MESSAGES) {
                break;
            }
            count += 1;
        }
        waiting.results.drain(..count).collect()
    }

    fn take_notes_batch(&self, progress_too: bool) -> Vec<(TaskKey, Note)> {
        // A note can be two messages.
        const MOST: usize = MAX_MESSAGES / 2;
        let mut waiting = self.lock();
        let mut batch = waiting.due_starts(MOST);
        if progress_too || !batch.is_empty() {
            let room = MOST - batch.len();
            batch.extend(waiting.notes.extract_if(|_, note| !note.started).take(room));
        }
        waiting.telling.extend(batch.iter().cloned());
        if batch.len() == MOST {
            self.notes_came.notify_one();
        }
        batch
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing in here panics half way: what a poisoned lock guards is still good.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn key(name: &str) -> TaskKey {
        TaskKey { task_id: name.into(), attempt: Some(1), delivery: 0 }
    }

    fn failure(text: &str) -> Verdict {
        Verdict::Failure(relais_handler::Failure::new(text))
    }

    /// The notes of each task, by its name.
    async fn notes(report_queue: &ReportQueue) -> Vec<(String, Note)> {
        let mut notes: Vec<_> = report_queue.take_notes(Instant::now()).await;
        notes.sort_by(|a, b| a.0.task_id.cmp(&b.0.task_id));
        notes.into_iter().map(|(key, note)| (key.task_id.to_string(), note)).collect()
    }

    fn so_far(name: &str, percent: f64) -> (String, Note) {
        (name.to_owned(), Note { started: false, progress: Some(percent) })
    }

    fn names(batch: &[QueuedReport]) -> Vec<&str> {
        batch.iter().map(|report| &*report.key.task_id).collect()
    }

    #[tokio::test]
    async fn only_the_newest_progress_of_a_task_is_taken() {
        let report_queue = ReportQueue::default();
        for percent in 0..=1000 {
            report_queue.put_progress(&key("a"), f64::from(percent) / 10.0);
        }
        report_queue.put_progress(&key("a"), 42.0);
        report_queue.put_progress(&key("a"), f64::NAN);
        assert_eq!(notes(&report_queue).await, [so_far("a", 42.0)]);
        assert!(report_queue.take_notes_batch(true).is_empty());
    }

    fn success() -> Verdict {
        Verdict::Success(serde_json::value::RawValue::NULL.to_owned())
    }

    #[tokio::test]
    async fn a_success_replaces_the_progress_that_waits_and_a_failure_takes_it_along() {
        let report_queue = ReportQueue::default();
        report_queue.put_progress(&key("a"), 10.0);
        report_queue.put_progress(&key("b"), f64::INFINITY);
        report_queue.put_progress(&key("c"), 30.0);
        report_queue.put_result(key("a"), success());
        report_queue.put_result(key("c"), failure("no"));
        assert_eq!(notes(&report_queue).await, [so_far("b", 100.0)]);
        let results = report_queue.take_results(9).await.unwrap();
        assert_eq!(names(&results), ["a", "c"]);
        assert_eq!(results.iter().map(|report| report.progress).collect::<Vec<_>>(), [None, Some(30.0)]);
    }

    #[tokio::test]
    async fn a_failure_takes_along_progress_that_it_may_overtake() {
        let report_queue = ReportQueue::default();
        report_queue.put_progress(&key("under way"), 10.0);
        report_queue.put_progress(&key("newer"), 20.0);
        let under_way = report_queue.take_notes(Instant::now()).await;
        report_queue.put_progress(&key("newer"), 21.0);
        report_queue.put_result(key("under way"), failure("1"));
        report_queue.put_result(key("newer"), failure("2"));
        report_queue.told_notes(&under_way);
        report_queue.put_progress(&key("told"), 30.0);
        report_queue.told_notes(&report_queue.take_notes(Instant::now()).await);
        report_queue.put_result(key("told"), failure("3"));
        let progress: Vec<_> =
            report_queue.take_results(9).await.unwrap().iter().map(|report| report.progress).collect();
        assert_eq!(progress, [Some(10.0), Some(21.0), None]);
    }

    #[tokio::test]
    async fn failures_with_progress_are_two_messages_each() {
        let report_queue = ReportQueue::default();
        for n in 0..MAX_MESSAGES {
            report_queue.put_progress(&key(&n.to_string()), 1.0);
            report_queue.put_result(key(&n.to_string()), failure("no"));
        }
        assert_eq!(report_queue.take_results(usize::MAX).await.unwrap().len(), MAX_MESSAGES / 2);
        assert_eq!(report_queue.take_results(usize::MAX).await.unwrap().len(), MAX_MESSAGES / 2);
    }

    #[tokio::test]
    async fn unsent_progress_is_replaced_by_newer_progress() {
        let report_queue = ReportQueue::default();
        report_queue.put_progress(&key("a"), 10.0);
        report_queue.put_progress(&key("b"), 20.0);
        report_queue.put_progress(&key("c"), 30.0);
        let batch = report_queue.take_notes(Instant::now()).await;
        report_queue.put_progress(&key("a"), 11.0);
        report_queue.put_back_notes(batch, |task| *task != key("c"));
        assert_eq!(notes(&report_queue).await, [so_far("a", 11.0), so_far("b", 20.0)]);
    }

    #[tokio::test]
    async fn one_call_carries_at_most_what_the_server_takes() {
        let report_queue = ReportQueue::default();
        for n in 0..MAX_MESSAGES + 1 {
            report_queue.put_progress(&key(&n.to_string()), 1.0);
            report_queue.put_result(key(&format!("r{n}")), failure("no"));
        }
        assert_eq!(notes(&report_queue).await.len(), MAX_MESSAGES / 2, "each may be two messages");
        assert_eq!(notes(&report_queue).await.len(), MAX_MESSAGES / 2);
        assert_eq!(notes(&report_queue).await.len(), 1);
        assert_eq!(report_queue.take_results(usize::MAX).await.unwrap().len(), MAX_MESSAGES);
        assert_eq!(report_queue.take_results(usize::MAX).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn large_results_go_in_calls_of_their_own() {
        let report_queue = ReportQueue::default();
        for name in ["small", "large", "larger"] {
            report_queue.put_result(key(name), failure(&"x".repeat(if name == "small" { 1 } else { BATCH_BYTES })));
        }
        for name in ["small", "large", "larger"] {
            assert_eq!(names(&report_queue.take_results(9).await.unwrap()), [name]);
        }
    }

    #[tokio::test]
    async fn results_keep_their_order_and_are_all_taken_before_the_end() {
        let report_queue = ReportQueue::default();
        report_queue.put_result(key("a"), failure("1"));
        report_queue.put_result(key("b"), failure("2"));
        let batch = report_queue.take_results(9).await.unwrap();
        report_queue.put_result(key("c"), failure("3"));
        report_queue.put_back_results(batch);
        report_queue.close();
        assert_eq!(names(&report_queue.take_results(1).await.unwrap()), ["a"]);
        assert_eq!(names(&report_queue.take_results(9).await.unwrap()), ["b", "c"]);
        assert!(report_queue.take_results(9).await.is_none());
    }

    #[tokio::test]
    async fn a_start_waits_for_a_moment_and_takes_the_progress_along() {
        let report_queue = ReportQueue::default();
        let much_later = Instant::now() + std::time::Duration::from_secs(3600);
        report_queue.put_progress(&key("a"), 10.0);
        assert!(report_queue.take_notes(much_later).now_or_never().is_none());
        report_queue.put_started(&key("b"));
        assert!(report_queue.take_notes(much_later).now_or_never().is_none(), "it may be done in a moment");
        assert_eq!(report_queue.take_notes(much_later).await.len(), 2);
        assert!(report_queue.take_notes_batch(true).is_empty());
    }

    #[tokio::test]
    async fn a_result_carries_the_start_that_was_not_sent() {
        let report_queue = ReportQueue::default();
        for name in ["told", "untold", "failed to tell"] {
            report_queue.put_started(&key(name));
            if name == "told" {
                report_queue.told_notes(&report_queue.take_notes(Instant::now()).await);
            }
        }
        report_queue.put_result(key("told"), failure("1"));
        report_queue.put_result(key("untold"), failure("2"));
        let under_way = report_queue.take_notes(Instant::now()).await;
        report_queue.put_result(key("failed to tell"), failure("3"));
        report_queue.put_back_notes(under_way, |_| false);
        let untold: Vec<_> = report_queue.take_results(9).await.unwrap().iter().map(|report| report.untold).collect();
        assert_eq!(untold, [false, true, true]);
        assert!(report_queue.take_notes_batch(true).is_empty());
    }
}
