//! Tasks on their way to a broker, as a store hands them out.

use std::{sync::Arc, time::Duration};

use crate::{Json, Priority, ServiceKey, TaskId, TraceContext};

/// A task that is to be published, as whoever does so knows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DispatchName {
    /// The service.
    pub service: ServiceKey,
    /// The prefix of the queue. A service may get another one meanwhile.
    pub queue: Arc<str>,
    /// Which publication it is about: another one each time that the broker has lost it, or that it came back.
    pub round: i32,
    /// The task's public name.
    pub task_id: TaskId,
}

/// A task that was dispatched to a broker, and of which nothing was heard since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedTask {
    /// The task's public name.
    pub task_id: TaskId,
    /// Whether a worker has any task of the same service.
    pub running: bool,
}

/// A task that is to be dispatched to a broker.
#[derive(Debug, Clone)]
pub struct DueDispatch {
    /// What it is called.
    pub name: DispatchName,
    /// The arguments; none if the task has ended, or is gone: there is nothing to be dispatched any more.
    pub request: Option<Json>,
    /// One id through a chain of tasks.
    pub correlation_id: Option<String>,
    /// Whose trace it is part of.
    pub trace: Option<TraceContext>,
    /// How urgent it is.
    pub priority: Priority,
    /// How long an attempt may take, if the task says so itself.
    pub timeout: Option<Duration>,
    /// The task's revision: what was [revoked](crate::Revocation) before it is not meant by that.
    pub revision: u64,
}

/// What is to be published.
#[derive(Debug, Clone, Default)]
pub struct ClaimedDispatches {
    /// The tasks, in the order in which they are to be published.
    pub tasks: Vec<DueDispatch>,
    /// When to look again, where a rate holds tasks back. Whatever else does wakes those who publish.
    pub again: Option<Duration>,
}

/// What became of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dispatched {
    /// The broker has it, or nobody needs it any more.
    Done,
    /// It is to be tried again, by anybody.
    Again,
}
