//! Dispatches: tasks that are to be published to a broker.

use std::{sync::Arc, time::Duration};

use crate::{Json, Priority, ServiceKey, TaskId, TraceContext};

/// The name of a dispatch, as its publisher knows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DispatchName {
    /// The service.
    pub service: ServiceKey,
    /// The prefix of the queue. The service may have another one by now.
    pub queue: Arc<str>,
    /// The number of the publication: a new one each time that the broker lost the task, or that the task was returned.
    pub round: i32,
    /// The task's public name.
    pub task_id: TaskId,
}

/// A published task of which nothing was heard since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedTask {
    /// The task's public name.
    pub task_id: TaskId,
    /// Whether any task of the same service is in progress.
    pub running: bool,
}

/// A dispatch that is due.
#[derive(Debug, Clone)]
pub struct DueDispatch {
    /// Its name.
    pub name: DispatchName,
    /// The arguments; none if the task has ended or was purged, so that there is nothing to publish.
    pub request: Option<Json>,
    /// One id through a chain of tasks.
    pub correlation_id: Option<String>,
    /// The trace context that it belongs to.
    pub trace: Option<TraceContext>,
    /// The priority.
    pub priority: Priority,
    /// The timeout of an attempt, if the task has one of its own.
    pub timeout: Option<Duration>,
    /// The task's revision: [revocations](crate::Revocation) before it are not about this publication.
    pub revision: u64,
}

/// The answer to a claim of dispatches.
#[derive(Debug, Clone, Default)]
pub struct ClaimedDispatches {
    /// The dispatches, in the order of publication.
    pub tasks: Vec<DueDispatch>,
    /// When to look again, where a rate limit delays tasks. Other limits send a wake-up instead.
    pub again: Option<Duration>,
}

/// The outcome of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dispatched {
    /// The broker has confirmed it, or nobody needs it any more.
    Done,
    /// It is retried by any publisher.
    Again,
}
