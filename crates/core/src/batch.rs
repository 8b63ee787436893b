//! Batches: tasks of one client that are followed as one, whatever services they are for.
//!
//! A batch ends once: when it is closed and none of its tasks is unfinished any more. A task that is done once more after that
//! is counted as it goes, and the batch stays ended.

use crate::{
    BatchId, Callback, CallbackStatus, ClientKey, IdempotencyKey, Refusal, Status, Submission, Submitted, Timestamp,
    TraceContext,
};

/// A batch to be made.
#[derive(Debug, Clone)]
pub struct NewBatch {
    /// Its public name, given by the caller.
    pub batch_id: BatchId,
    /// The consumer.
    pub client: ClientKey,
    /// Whether tasks may be added later.
    pub open: bool,
    /// Where to tell that it has ended.
    pub callback: Option<Callback>,
    /// One id through a chain of tasks.
    pub correlation_id: Option<String>,
    /// Whose trace it is part of.
    pub trace: Option<TraceContext>,
    /// So that the call can be repeated.
    pub idempotency: Option<IdempotencyKey>,
}

/// What became of a batch that was to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchCreated {
    /// It is there, with all its tasks.
    Taken(Vec<Submission>),
    /// It was there before, under the same idempotency key: its name, and the first answer.
    Replayed(BatchId, Vec<Submitted>),
    /// The idempotency key was used for another request.
    KeyReused,
    /// Nothing was taken, because this task of it was refused.
    Refused(usize, Refusal),
}

/// How many tasks are in each status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchCounts {
    /// Not started.
    pub pending: u64,
    /// A worker has them.
    pub in_progress: u64,
    /// Ended well.
    pub success: u64,
    /// Ended badly.
    pub failure: u64,
    /// Given up.
    pub cancelled: u64,
}

impl BatchCounts {
    /// Which of the counters stands for a status.
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

/// Where a batch is in its life.
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

/// A batch, as it is kept.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Its public name.
    pub batch_id: BatchId,
    /// The consumer.
    pub client: ClientKey,
    /// When it was made.
    pub created: Timestamp,
    /// When it was closed; none while it is open.
    pub closed: Option<Timestamp>,
    /// When the last of its tasks had ended.
    pub ended: Option<Timestamp>,
    /// How its tasks are.
    pub counts: BatchCounts,
    /// Where to tell that it has ended.
    pub callback: Option<Callback>,
    /// What became of telling it.
    pub notification: Option<CallbackStatus>,
    /// One id through a chain of tasks.
    pub correlation_id: Option<String>,
    /// Whose trace it is part of.
    pub trace: Option<TraceContext>,
}

impl Batch {
    /// Where it is in its life.
    pub const fn status(&self) -> BatchStatus {
        match (self.closed, self.ended) {
            (_, Some(_)) => BatchStatus::Ended,
            (Some(_), None) => BatchStatus::InProgress,
            (None, None) => BatchStatus::Open,
        }
    }
}
