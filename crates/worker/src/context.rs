//! What a handler knows of its task beside the body, and what it can say while it works.

use std::{sync::Arc, time::SystemTime};

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::{outbox::Outbox, slots::TaskKey, transport::Delivery};

/// One attempt at one task, as its handler sees it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Context {
    task: Arc<Known>,
    cancel: CancellationToken,
    outbox: Arc<Outbox>,
}

/// What is known of the task.
#[derive(Debug)]
struct Known {
    key: TaskKey,
    redelivered: bool,
    correlation_id: Option<String>,
    deadline: Option<SystemTime>,
}

impl Context {
    pub(crate) fn new(delivery: &Delivery, cancel: CancellationToken, outbox: Arc<Outbox>) -> Self {
        let deadline = delivery.task.deadline.as_ref().and_then(|time| time.parse::<Timestamp>().ok());
        let task = Known {
            key: delivery.key.clone(),
            redelivered: delivery.redelivered,
            correlation_id: delivery.task.correlation_id.clone(),
            deadline: deadline.map(SystemTime::from),
        };
        Self { task: Arc::new(task), cancel, outbox }
    }

    /// The task's public name.
    pub fn task_id(&self) -> &str {
        &self.task.key.task_id
    }

    /// The number of this attempt, counted from 1; none where the transport knows none (over HTTP it always does).
    pub fn attempt(&self) -> Option<u32> {
        self.task.key.attempt
    }

    /// Whether somebody had the task before, who may have done some of it.
    pub fn redelivered(&self) -> bool {
        self.task.redelivered
    }

    /// One id through a chain of tasks, where the consumer gave one.
    pub fn correlation_id(&self) -> Option<&str> {
        self.task.correlation_id.as_deref()
    }

    /// Until when the result is of use, where the submission says so.
    pub fn deadline(&self) -> Option<SystemTime> {
        self.task.deadline
    }

    /// Tells how far the task is, from 0 to 100. Never waits: call it as often as you like, the newest value is sent when
    /// the server is ready for it.
    pub fn progress(&self, percent: f64) {
        if !self.cancel.is_cancelled() {
            self.outbox.put_progress(&self.task.key, percent);
        }
    }

    /// Whether to stop: the task was cancelled, handed to another worker, or the worker is stopping and its grace period
    /// is over. Whatever the handler returns from then on is not reported.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Waits until it is time to stop, see [`Context::is_cancelled`].
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// One of a task that nobody submitted.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        Self::cancelled_by(CancellationToken::new()).0
    }

    /// One whose task can be cancelled, and where its progress goes.
    #[cfg(test)]
    pub(crate) fn cancelled_by(cancel: CancellationToken) -> (Self, Arc<Outbox>) {
        let body = serde_json::value::RawValue::NULL.to_owned();
        let task = relais_protocol::worker::SubmissionMessage::new("t".to_owned(), body);
        let key = TaskKey { task_id: "t".into(), attempt: Some(1), delivery: 0 };
        let outbox = Arc::default();
        (Self::new(&Delivery { key, task, redelivered: false }, cancel, Arc::clone(&outbox)), outbox)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use relais_protocol::worker::SubmissionMessage;

    use super::*;

    #[test]
    fn a_deadline_is_a_time_and_nonsense_is_none() {
        for (text, seconds) in [("2030-01-01T12:00:00.500Z", Some(1_893_499_200)), ("soon", None)] {
            let task: SubmissionMessage = serde_json::from_str(&format!(
                r#"{{"taskId":"t","deadline":"{text}","data":{{"messageType":"submission","body":{{}}}}}}"#
            ))
            .unwrap();
            let key = TaskKey { task_id: "t".into(), attempt: None, delivery: 1 };
            let delivery = Delivery { key, task, redelivered: true };
            let context = Context::new(&delivery, CancellationToken::new(), Arc::default());
            let since = context.deadline().map(|time| time.duration_since(SystemTime::UNIX_EPOCH).unwrap());
            assert_eq!(since, seconds.map(|seconds| Duration::from_millis(seconds * 1000 + 500)));
            assert!(context.redelivered());
        }
    }
}
