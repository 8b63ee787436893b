//! What a handler knows of its task beside the body, and what it can say while it works.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::{outbox::Outbox, slots::TaskKey};

/// One attempt at one task, as its handler sees it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Context {
    key: TaskKey,
    correlation_id: Option<Arc<str>>,
    cancel: CancellationToken,
    outbox: Arc<Outbox>,
}

impl Context {
    pub(crate) fn new(
        key: TaskKey,
        correlation_id: Option<String>,
        cancel: CancellationToken,
        outbox: Arc<Outbox>,
    ) -> Self {
        Self { key, correlation_id: correlation_id.map(Arc::from), cancel, outbox }
    }

    /// The task's public name.
    pub fn task_id(&self) -> &str {
        &self.key.task_id
    }

    /// The number of this attempt, counted from 1; none where the transport knows none (over HTTP it always does).
    pub fn attempt(&self) -> Option<u32> {
        self.key.attempt
    }

    /// One id through a chain of tasks, where the consumer gave one.
    pub fn correlation_id(&self) -> Option<&str> {
        self.correlation_id.as_deref()
    }

    /// Tells how far the task is, from 0 to 100. Never waits: call it as often as you like, the newest value is sent when
    /// the server is ready for it.
    pub fn progress(&self, percent: f64) {
        if !self.cancel.is_cancelled() {
            self.outbox.put_progress(&self.key, percent);
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
}
