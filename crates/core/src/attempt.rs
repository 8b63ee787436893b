//! The executions of a task.
//!
//! The current attempt, or the last one of a task that has ended, is told by the task itself. Those before it are kept beside
//! it, so that a task that is done at once, as most are, costs nothing more.

use crate::{Failure, Json, State, Status, Timestamp};

/// What became of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttemptOutcome {
    /// It is under way.
    Running,
    /// There is a result.
    Success,
    /// The worker could not do it, or took too long.
    Failure,
    /// The task was given up meanwhile.
    Cancelled,
    /// The worker gave it back unfinished.
    Returned,
    /// The worker was not heard of again.
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

/// One execution of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// Counted from 1.
    pub number: u32,
    /// When it began.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// What became of it.
    pub outcome: AttemptOutcome,
    /// The host or pod that ran it.
    pub worker_host: Option<String>,
    /// Why it failed.
    pub failure: Option<Failure>,
    /// Its result, where another attempt was asked for all the same.
    pub response: Option<Json>,
}

impl Attempt {
    /// The attempt that a state tells of, with what else is known; none if there was none so far, or if it waits for the next.
    pub fn of(state: &State, failure: Option<Failure>) -> Option<Self> {
        let outcome = match state.status {
            Status::Pending | Status::Waiting => return None,
            Status::InProgress => AttemptOutcome::Running,
            Status::Success => AttemptOutcome::Success,
            Status::Failure => AttemptOutcome::Failure,
            Status::Cancelled => AttemptOutcome::Cancelled,
        };
        // Given up, or too late, before anybody had it.
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
