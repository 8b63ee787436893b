//! The task, as the store keeps it and the API shows it.

use serde::{Deserialize, Serialize};

use crate::{
    BatchId, Callback, CallbackStatus, ClientId, Condition, Json, Prerequisite, Priority, ServiceName, State, TaskId,
    Timestamp, TraceContext,
};

/// The status of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// Pending.
    Pending,
    /// In progress at a worker.
    InProgress,
    /// Succeeded, with a response.
    Success,
    /// Failed, with an error message.
    Failure,
    /// Cancelled by its consumer or an operator.
    Cancelled,
    /// Pending, but not in the queue yet: it is delayed, waits for a retry, or has dependencies. On the wire it is
    /// PENDING.
    Waiting,
}

impl Status {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::InProgress, Self::Success, Self::Failure, Self::Cancelled, Self::Waiting];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending | Self::Waiting => "PENDING",
            Self::InProgress => "IN_PROGRESS",
            Self::Success => "SUCCESS",
            Self::Failure => "FAILURE",
            Self::Cancelled => "CANCELLED",
        }
    }

    /// Reads the name on the wire.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// All statuses with the same name on the wire.
    pub fn alike(self) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |other| other.as_str() == self.as_str())
    }

    /// The number that stands for it in a row.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// Reads the number that stands for it in a row.
    pub fn from_code(code: i16) -> Option<Self> {
        usize::try_from(code).ok().and_then(|index| Self::ALL.get(index).copied())
    }

    /// Whether the task has ended.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Success | Self::Failure | Self::Cancelled)
    }
}

/// A task.
#[derive(Debug, Clone)]
pub struct Task {
    /// Order of arrival.
    pub id: i64,
    /// Its public name.
    pub task_id: TaskId,
    /// The consumer.
    pub client_id: ClientId,
    /// The service it is for.
    pub service: ServiceName,
    /// Its state.
    pub state: State,
    /// The arguments.
    pub request: Json,
    /// The worker's result.
    pub response: Option<Json>,
    /// Why it failed.
    pub error_message: Option<String>,
    /// The kind of failure: a word for programs.
    pub error_kind: Option<String>,
    /// Where it happened: a stack trace of the worker's language.
    pub error_trace: Option<String>,
    /// The priority.
    pub priority: Priority,
    /// The callback.
    pub callback: Option<Callback>,
    /// The status of the callback for its end, if one is requested.
    pub notification: Option<CallbackStatus>,
    /// One id through a chain of tasks.
    pub correlation_id: Option<String>,
    /// When it was submitted.
    pub submitted: Timestamp,
    /// Its due time, if it was delayed.
    pub scheduled: Option<Timestamp>,
    /// Its position in its queue, counted from 1, while it is pending and if it was asked for.
    pub position: Option<u64>,
    /// Its links to other tasks.
    pub links: Links,
}

/// The links of a task to others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Links {
    /// The parent.
    pub parent: Option<TaskId>,
    /// The batch.
    pub batch: Option<BatchId>,
    /// The trace context that it belongs to.
    pub trace: Option<TraceContext>,
    /// The condition of its dependencies, if it has any.
    pub when: Option<Condition>,
    /// Its dependencies; read for one task, not for a list.
    pub after: Vec<Prerequisite>,
}
