//! Batches: tasks of one client that are followed together, whatever their services.
//!
//! A batch ends once: when it is closed and all its tasks have ended. A task that is retried after that is counted, and
//! the batch stays ended.

use crate::{
    BatchId, Callback, CallbackStatus, ClientKey, IdempotencyKey, Refusal, Status, Submission, Submitted, Timestamp,
    TraceContext,
};

/// A batch to be created.
#[derive(Debug, Clone)]
pub struct NewBatch {
    /// Its public name, given by the caller.
    pub batch_id: BatchId,
    /// The consumer.
    pub client: ClientKey,
    /// Whether tasks may be added later.
    pub open: bool,
    /// The callback for its end.
    pub callback: Option<Callback>,
    /// One id through a chain of tasks.
    pub correlation_id: Option<String>,
    /// The trace context that it belongs to.
    pub trace: Option<TraceContext>,
    /// Makes the call safe to repeat.
    pub idempotency: Option<IdempotencyKey>,
}

/// The answer to a call that creates a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchCreated {
    /// It was created with all its tasks.
    Taken(Vec<Submission>),
    /// It existed before, under the same idempotency key: its name, and the first answer.
    Replayed(BatchId, Vec<Submitted>),
    /// The idempotency key was used for another request.
    KeyReused,
    /// Nothing was created, because this task of it was refused.
    Refused(usize, Refusal),
}

/// How many tasks are in each status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchCounts {
    /// Pending.
    pub pending: u64,
    /// In progress.
    pub in_progress: u64,
    /// Succeeded.
    pub success: u64,
    /// Failed.
    pub failure: u64,
    /// Cancelled.
    pub cancelled: u64,
}

impl BatchCounts {
    /// The index of the counter for a status.
    pub const fn slot(status: Status) -> usize {
        match status {
            Status::Pending | Status::Waiting => 0,
            Status::InProgress => 1,
            Status::Success => 2,
            Status::Failure => 3,
            Status::Cancelled => 4,
        }
    }

    /// All tasks.
    pub const fn total(&self) -> u64 {
        self.pending + self.in_progress + self.success + self.failure + self.cancelled
    }
}

/// The state of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchStatus {
    /// Tasks may be added.
    Open,
    /// No more tasks are added, and not all have ended.
    InProgress,
    /// All its tasks have ended.
    Ended,
}

impl BatchStatus {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "OPEN",
            Self::InProgress => "IN_PROGRESS",
            Self::Ended => "ENDED",
        }
    }
}

/// A stored batch.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Its public name.
    pub batch_id: BatchId,
    /// The consumer.
    pub client: ClientKey,
    /// When it was created.
    pub created: Timestamp,
    /// When it was closed; none while it is open.
    pub closed: Option<Timestamp>,
    /// When the last of its tasks had ended.
    pub ended: Option<Timestamp>,
    /// How many of its tasks are in each status.
    pub counts: BatchCounts,
    /// The callback for its end.
    pub callback: Option<Callback>,
    /// The status of that callback.
    pub notification: Option<CallbackStatus>,
    /// One id through a chain of tasks.
    pub correlation_id: Option<String>,
    /// The trace context that it belongs to.
    pub trace: Option<TraceContext>,
}

impl Batch {
    /// Its state.
    pub const fn status(&self) -> BatchStatus {
        match (self.closed, self.ended) {
            (_, Some(_)) => BatchStatus::Ended,
            (Some(_), None) => BatchStatus::InProgress,
            (None, None) => BatchStatus::Open,
        }
    }
}
