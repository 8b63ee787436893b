//! What waits to be told to the server: results, and the newest progress of each task.
//!
//! Results are kept until somebody takes them, in order. Progress is a value that is overwritten: however often a handler
//! tells it, only the newest is sent, and none once the task has its result. Nothing here talks to the server.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use relais_protocol::worker::MAX_MESSAGES;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::slots::TaskKey;

/// About as much as one call carries, so that many results together are not refused for their size.
const BATCH_BYTES: usize = 256 * 1024;

/// How a task ended.
#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    Success(Box<RawValue>),
    Failure(String),
}

impl Verdict {
    fn size(&self) -> usize {
        match self {
            Self::Success(response) => response.get().len(),
            Self::Failure(message) => message.len(),
        }
    }
}

/// A result on its way.
#[derive(Debug, Clone)]
pub(crate) struct Parcel {
    pub key: TaskKey,
    pub verdict: Verdict,
    /// A call with it had no answer: the server may have it already.
    pub sent_before: bool,
    /// It stands for a result that the server did not want.
    pub substitute: bool,
}

#[derive(Debug, Default)]
struct Waiting {
    results: VecDeque<Parcel>,
    progress: HashMap<TaskKey, f64>,
}

/// What waits to be told.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Locked for moments only, never across an await.
    waiting: Mutex<Waiting>,
    results_came: Notify,
    progress_came: Notify,
    /// No more results will come.
    closing: CancellationToken,
}

impl Outbox {
    /// A task has ended.
    pub fn put_result(&self, key: TaskKey, verdict: Verdict) {
        let mut waiting = self.lock();
        waiting.progress.remove(&key);
        waiting.results.push_back(Parcel { key, verdict, sent_before: false, substitute: false });
        drop(waiting);
        self.results_came.notify_one();
    }

    /// A task is so far. What is not a number is ignored, the rest brought between 0 and 100.
    pub fn put_progress(&self, key: &TaskKey, progress: f64) {
        if !progress.is_nan() {
            self.lock().progress.insert(key.clone(), progress.clamp(0.0, 100.0));
            self.progress_came.notify_one();
        }
    }

    /// Waits for results and takes as many as go into one call, at most `limit`. None once there are no more to come.
    pub async fn take_results(&self, limit: usize) -> Option<Vec<Parcel>> {
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

    /// Results that could not be told go back to the front.
    pub fn put_back_results(&self, batch: Vec<Parcel>) {
        let mut waiting = self.lock();
        for parcel in batch.into_iter().rev() {
            waiting.results.push_front(parcel);
        }
        drop(waiting);
        self.results_came.notify_one();
    }

    /// Waits for progress and takes what goes into one call.
    pub async fn take_progress(&self) -> Vec<(TaskKey, f64)> {
        loop {
            let came = self.progress_came.notified();
            let batch = self.take_progress_batch();
            if !batch.is_empty() {
                return batch;
            }
            came.await;
        }
    }

    /// Progress that could not be told waits again, unless there is newer. `still` says whether a task wants it at all.
    pub fn put_back_progress(&self, batch: Vec<(TaskKey, f64)>, still: impl Fn(&TaskKey) -> bool) {
        let mut waiting = self.lock();
        for (key, progress) in batch.into_iter().filter(|(key, _)| still(key)) {
            waiting.progress.entry(key).or_insert(progress);
        }
        drop(waiting);
        self.progress_came.notify_one();
    }

    /// No more results will come: the takers end when there are none left.
    pub fn close(&self) {
        self.closing.cancel();
    }

    /// Cancelled when no more results will come.
    pub fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    fn take_batch(&self, limit: usize) -> Vec<Parcel> {
        let mut waiting = self.lock();
        let mut bytes = 0;
        let mut count = 0;
        for parcel in waiting.results.iter().take(limit.min(MAX_MESSAGES)) {
            bytes += parcel.verdict.size();
            if count > 0 && bytes > BATCH_BYTES {
                break;
            }
            count += 1;
        }
        waiting.results.drain(..count).collect()
    }

    fn take_progress_batch(&self) -> Vec<(TaskKey, f64)> {
        let mut waiting = self.lock();
        let batch = waiting.progress.extract_if(|_, _| true).take(MAX_MESSAGES).collect();
        if !waiting.progress.is_empty() {
            self.progress_came.notify_one();
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
    use super::*;

    fn key(name: &str) -> TaskKey {
        TaskKey { task_id: name.into(), attempt: Some(1) }
    }

    fn failure(text: &str) -> Verdict {
        Verdict::Failure(text.to_owned())
    }

    fn names(batch: &[Parcel]) -> Vec<&str> {
        batch.iter().map(|parcel| &*parcel.key.task_id).collect()
    }

    #[tokio::test]
    async fn only_the_newest_progress_of_a_task_is_taken() {
        let outbox = Outbox::default();
        for percent in 0..=1000 {
            outbox.put_progress(&key("a"), f64::from(percent) / 10.0);
        }
        outbox.put_progress(&key("a"), 42.0);
        outbox.put_progress(&key("a"), f64::NAN);
        assert_eq!(outbox.take_progress().await, [(key("a"), 42.0)]);
        assert!(outbox.take_progress_batch().is_empty());
    }

    #[tokio::test]
    async fn a_result_replaces_the_progress_that_waits() {
        let outbox = Outbox::default();
        outbox.put_progress(&key("a"), 10.0);
        outbox.put_progress(&key("b"), f64::INFINITY);
        outbox.put_result(key("a"), failure("no"));
        assert_eq!(outbox.take_progress().await, [(key("b"), 100.0)]);
        assert_eq!(names(&outbox.take_results(9).await.unwrap()), ["a"]);
    }

    #[tokio::test]
    async fn progress_that_was_not_told_gives_way_to_newer() {
        let outbox = Outbox::default();
        outbox.put_progress(&key("a"), 10.0);
        outbox.put_progress(&key("b"), 20.0);
        outbox.put_progress(&key("c"), 30.0);
        let batch = outbox.take_progress().await;
        outbox.put_progress(&key("a"), 11.0);
        outbox.put_back_progress(batch, |task| *task != key("c"));
        let mut batch = outbox.take_progress().await;
        batch.sort_by(|a, b| a.1.total_cmp(&b.1));
        assert_eq!(batch, [(key("a"), 11.0), (key("b"), 20.0)]);
    }

    #[tokio::test]
    async fn one_call_carries_at_most_what_the_server_takes() {
        let outbox = Outbox::default();
        for n in 0..MAX_MESSAGES + 1 {
            outbox.put_progress(&key(&n.to_string()), 1.0);
            outbox.put_result(key(&format!("r{n}")), failure("no"));
        }
        assert_eq!(outbox.take_progress().await.len(), MAX_MESSAGES);
        assert_eq!(outbox.take_progress().await.len(), 1);
        assert_eq!(outbox.take_results(usize::MAX).await.unwrap().len(), MAX_MESSAGES);
        assert_eq!(outbox.take_results(usize::MAX).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn large_results_go_in_calls_of_their_own() {
        let outbox = Outbox::default();
        for name in ["small", "large", "larger"] {
            outbox.put_result(key(name), failure(&"x".repeat(if name == "small" { 1 } else { BATCH_BYTES })));
        }
        for name in ["small", "large", "larger"] {
            assert_eq!(names(&outbox.take_results(9).await.unwrap()), [name]);
        }
    }

    #[tokio::test]
    async fn results_keep_their_order_and_are_all_taken_before_the_end() {
        let outbox = Outbox::default();
        outbox.put_result(key("a"), failure("1"));
        outbox.put_result(key("b"), failure("2"));
        let batch = outbox.take_results(9).await.unwrap();
        outbox.put_result(key("c"), failure("3"));
        outbox.put_back_results(batch);
        outbox.close();
        assert_eq!(names(&outbox.take_results(1).await.unwrap()), ["a"]);
        assert_eq!(names(&outbox.take_results(9).await.unwrap()), ["b", "c"]);
        assert!(outbox.take_results(9).await.is_none());
    }
}
