//! The context of a handler: facts of its task, progress, and cancellation.

use std::{fmt, sync::Arc, time::SystemTime};

use tokio_util::sync::CancellationToken;

/// What is known of a task when its handler begins.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// The task's public name.
    pub task_id: Arc<str>,
    /// The number of this attempt, where the transport knows it.
    pub attempt: Option<u32>,
    /// Whether somebody had the task before.
    pub redelivered: bool,
    /// One id through a chain of tasks.
    pub correlation_id: Option<String>,
    /// Whose trace it is part of: the W3C's `traceparent`.
    pub traceparent: Option<String>,
    /// What goes with it: the W3C's `tracestate`.
    pub tracestate: Option<String>,
    /// Until when the result is of use.
    pub deadline: Option<SystemTime>,
}

/// Where progress goes. It must return at once.
pub trait Progress: Send + Sync {
    /// The task is so far, from 0 to 100.
    fn progress(&self, percent: f64);
}

impl<F: Fn(f64) + Send + Sync> Progress for F {
    fn progress(&self, percent: f64) {
        self(percent);
    }
}

/// One attempt at one task, as its handler sees it. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    task: Arc<Known>,
    cancel: CancellationToken,
    progress: Arc<dyn Progress>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("task", &self.task).field("cancelled", &self.is_cancelled()).finish()
    }
}

impl Context {
    /// The context of a task that begins; for whoever runs handlers.
    pub fn new(task: Known, cancel: CancellationToken, progress: Arc<dyn Progress>) -> Self {
        Self { task: Arc::new(task), cancel, progress }
    }

    /// The task's public name.
    pub fn task_id(&self) -> &str {
        &self.task.task_id
    }

    /// The number of this attempt, counted from 1; none where the transport knows none (over HTTP and in process it
    /// always does).
    pub fn attempt(&self) -> Option<u32> {
        self.task.attempt
    }

    /// Whether somebody had the task before, who may have done some of it.
    pub fn redelivered(&self) -> bool {
        self.task.redelivered
    }

    /// One id through a chain of tasks, where one was given.
    pub fn correlation_id(&self) -> Option<&str> {
        self.task.correlation_id.as_deref()
    }

    /// Whose trace the task is part of, where that is known: the W3C's `traceparent`.
    pub fn traceparent(&self) -> Option<&str> {
        self.task.traceparent.as_deref()
    }

    /// What goes with it: the W3C's `tracestate`.
    pub fn tracestate(&self) -> Option<&str> {
        self.task.tracestate.as_deref()
    }

    /// Until when the result is of use, where the submission says so.
    pub fn deadline(&self) -> Option<SystemTime> {
        self.task.deadline
    }

    /// Tells how far the task is, from 0 to 100. Never waits: call it as often as you like, the newest value is sent
    /// when the server is ready for it.
    pub fn progress(&self, percent: f64) {
        if !self.cancel.is_cancelled() {
            self.progress.progress(percent);
        }
    }

    /// Whether to stop: the task was cancelled, handed to another worker, or the worker is stopping and its grace
    /// period is over. Whatever the handler returns from then on is not reported.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Waits until it is time to stop, see [`Context::is_cancelled`].
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }
}
