//! The task, as the store keeps it and everyone sees it.

use serde::{Deserialize, Serialize};

use crate::{
    BatchId, Callback, CallbackStatus, ClientId, Condition, Json, Prerequisite, Priority, ServiceName, State, TaskId,
    Timestamp, TraceContext,
};

/// Where a task is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// Waiting for a worker.
    Pending,
    /// A worker has it.
    InProgress,
    /// It ended well; there is a response.
    Success,
    /// It ended badly; there is an error message.
    Failure,
    /// Its consumer, or an operator, gave it up.
    Cancelled,
    /// Pending, but not to be handed out yet: it was scheduled, it failed and is tried again, or it waits for other tasks. On the
    /// wire it is PENDING; only the queue knows it apart.
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

    /// All that have the same name on the wire.
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

    /// Whether nothing can change it any more.
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
    /// Where it is in its life.
    pub state: State,
    /// The arguments.
    pub request: Json,
    /// The worker's result.
    pub response: Option<Json>,
    /// Why it failed.
    pub error_message: Option<String>,
    /// What kind of failure it was, a word for programs.
    pub error_kind: Option<String>,
    /// Where it happened, as the worker's language tells it.
    pub error_trace: Option<String>,
    /// How urgent it is.
    pub priority: Priority,
    /// Where to tell what becomes of it.
    pub callback: Option<Callback>,
    /// What became of telling its end, where that is to be told.
    pub notification: Option<CallbackStatus>,
    /// One id through a chain of tasks.
    pub correlation_id: Option<String>,
    /// When it was taken in.
    pub submitted: Timestamp,
    /// For when it was asked, if not for at once.
    pub scheduled: Option<Timestamp>,
    /// Its place in its service's queue, counted from 1, while it is pending and where it was asked for.
    pub position: Option<u64>,
    /// What it has to do with other tasks.
    pub links: Links,
}

/// What a task has to do with others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Links {
    /// The task that it is a part of.
    pub parent: Option<TaskId>,
    /// The batch that it belongs to.
    pub batch: Option<BatchId>,
    /// Whose trace it is part of.
    pub trace: Option<TraceContext>,
    /// When it need not wait for others any more, if it was to wait for any.
    pub when: Option<Condition>,
    /// Those that it was to wait for; read for one task, not for a list of them.
    pub after: Vec<Prerequisite>,
}
