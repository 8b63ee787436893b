//! Submissions: what a new task is, its terms, and the answer.

use std::{sync::Arc, time::Duration};

use crate::{
    After, BatchId, Callback, ClientKey, Json, Priority, Refusal, RetryPolicy, ServiceKey, TaskId, Timestamp,
    TraceContext,
};

/// An idempotency key: makes a submission safe to repeat.
#[derive(Debug, Clone)]
pub struct IdempotencyKey {
    /// The key, as the consumer chose it.
    pub key: String,
    /// A digest of the request.
    pub fingerprint: Vec<u8>,
}

/// A time in a submission: absolute, or relative to the database's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At this moment.
    At(Timestamp),
    /// After so long.
    After(Duration),
}

impl When {
    /// The absolute time.
    pub fn moment(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(moment) => moment,
            Self::After(wait) => now.after(wait),
        }
    }
}

/// A unique key: a service has at most one unfinished task of a client with this key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UniqueKey {
    /// The key.
    pub key: String,
    /// For how long from the submission on; none means until the task has ended.
    pub lasting: Option<Duration>,
}

/// The terms of a task.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Terms {
    /// The priority.
    pub priority: Priority,
    /// By how many milliseconds its rank comes before its submission; see [`Priority::head_start`].
    pub head_start: i64,
    /// The due time; none means at once.
    pub due: Option<When>,
    /// The expiry after the due time, if no worker has started it.
    pub expires: Option<Duration>,
    /// The timeout of an attempt; none means the service's setting.
    pub timeout: Option<Duration>,
    /// The retry policy; none means the service's setting.
    pub retry: Option<RetryPolicy>,
    /// The unique key. If it is taken, the answer is the existing task.
    pub unique: Option<UniqueKey>,
    /// Whether it is accepted even if the queue is full.
    pub promised: bool,
}

/// A task to be submitted.
#[derive(Debug, Clone)]
pub struct NewTask {
    /// Its public name, given by the caller.
    pub task_id: TaskId,
    /// The service.
    pub service: ServiceKey,
    /// The consumer.
    pub client: ClientKey,
    /// The arguments.
    pub request: Json,
    /// The callback.
    pub callback: Option<Callback>,
    /// One id through a chain of tasks.
    pub correlation_id: Option<String>,
    /// Makes the submission safe to repeat.
    pub idempotency: Option<IdempotencyKey>,
    /// The terms.
    pub terms: Terms,
    /// Its links to other tasks.
    pub links: NewLinks,
    /// The publisher, where the caller believes that the service uses a broker.
    pub dispatch: Option<Publisher>,
}

/// The links of a new task to others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewLinks {
    /// The parent.
    pub parent: Option<TaskId>,
    /// The batch.
    pub batch: Option<BatchId>,
    /// The trace context that it belongs to.
    pub trace: Option<TraceContext>,
    /// Its dependencies. Without a correlation id or a trace, it gets those of the first dependency.
    pub after: Option<After>,
}

/// The publisher of a new task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publisher {
    /// How long the dispatch is reserved for the caller. At zero, other publishers are woken at once.
    pub held: Duration,
    /// The prefix of the queue that the caller would publish to.
    pub queue: Arc<str>,
}

/// The answer to an accepted submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submitted {
    /// The task's public name.
    pub task_id: TaskId,
    /// Its position in the queue at submission, counted from 1.
    pub position: u64,
    /// Whether the task existed before, under the same idempotency key.
    pub replayed: bool,
    /// Whether the task existed before, under the same unique key.
    pub duplicate: bool,
}

impl Submitted {
    /// Whether the task is a new one.
    pub const fn is_new(&self) -> bool {
        !self.replayed && !self.duplicate
    }
}

/// The answer, or why the submission was refused.
pub type Submission = Result<Submitted, Refusal>;
