//! Attempts: the executions of a task.
//!
//! The state of a task describes its current or last attempt. Earlier attempts are stored separately, so that a task
//! that succeeds at once, as most do, costs nothing more.

use crate::{Failure, Json, State, Status, Timestamp};

/// The outcome of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttemptOutcome {
    /// It is running.
    Running,
    /// It succeeded.
    Success,
    /// It failed or timed out.
    Failure,
    /// The task was cancelled meanwhile.
    Cancelled,
    /// The worker returned the task unfinished.
    Returned,
    /// The worker was lost.
    Lost,
}

impl AttemptOutcome {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 6] =
        [Self::Running, Self::Success, Self::Failure, Self::Cancelled, Self::Returned, Self::Lost];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Cancelled => "cancelled",
            Self::Returned => "returned",
            Self::Lost => "lost",
        }
    }

    /// The number that stands for it in a row.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// Reads the number that stands for it in a row.
    pub fn from_code(code: i16) -> Option<Self> {
        usize::try_from(code).ok().and_then(|index| Self::ALL.get(index).copied())
    }
}

/// One attempt: one execution of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// Counted from 1.
    pub number: u32,
    /// When it began.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// The outcome.
    pub outcome: AttemptOutcome,
    /// The host or pod that ran it.
    pub worker_host: Option<String>,
    /// Why it failed.
    pub failure: Option<Failure>,
    /// The result of an attempt that succeeded before the task was retried.
    pub response: Option<Json>,
}

impl Attempt {
    /// The attempt that a state describes; none if the task has had none so far, or waits for the next one.
    pub fn of(state: &State, failure: Option<Failure>) -> Option<Self> {
        let outcome = match state.status {
            Status::Pending | Status::Waiting => return None,
            Status::InProgress => AttemptOutcome::Running,
            Status::Success => AttemptOutcome::Success,
            Status::Failure => AttemptOutcome::Failure,
            Status::Cancelled => AttemptOutcome::Cancelled,
        };
        // Cancelled or expired before a worker had it.
        if state.attempt == 0 || state.started.is_none() {
            return None;
        }
        Some(Self {
            number: state.attempt,
            started: state.started,
            ended: state.ended,
            outcome,
            worker_host: state.worker_host.clone(),
            failure: failure.filter(|_| outcome == AttemptOutcome::Failure),
            response: None,
        })
    }
}
