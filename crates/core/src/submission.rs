//! A task to be taken in: what is to be done, and on what terms; and the answer.

use std::{sync::Arc, time::Duration};

use crate::{
    After, BatchId, Callback, ClientKey, Json, Priority, Refusal, RetryPolicy, ServiceKey, TaskId, Timestamp,
    TraceContext,
};

/// A key that a consumer chose so that it can repeat a submission without fear.
#[derive(Debug, Clone)]
pub struct IdempotencyKey {
    /// The consumer's word.
    pub key: String,
    /// A digest of the request that it stands for.
    pub fingerprint: Vec<u8>,
}

/// A moment, as a consumer says it: by the calendar, or from now on. Now is the database's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At this moment.
    At(Timestamp),
    /// After so long.
    After(Duration),
}

impl When {
    /// The moment that is meant.
    pub fn moment(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(moment) => moment,
            Self::After(wait) => now.after(wait),
        }
    }
}

/// A word of a client's, of which a service has one task at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UniqueKey {
    /// The word.
    pub key: String,
    /// For how long from the submission on; none means until the task has ended.
    pub lasting: Option<Duration>,
}

/// On what terms a task is to be done.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Terms {
    /// How urgent it is.
    pub priority: Priority,
    /// By how many milliseconds its rank comes before its submission; see [`Priority::head_start`].
    pub head_start: i64,
    /// Not to be handed out before; none means at once.
    pub due: Option<When>,
    /// Not to be started later than this after it is due.
    pub expires: Option<Duration>,
    /// How long an attempt may take; none means the service's setting.
    pub timeout: Option<Duration>,
    /// How often to try again; none means the service's setting.
    pub retry: Option<RetryPolicy>,
    /// If there is such a task already, that one is the answer.
    pub unique: Option<UniqueKey>,
    /// It was promised that it is taken, however full the queue is.
    pub promised: bool,
}

/// A task to be taken in.
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
    /// Where to tell that it has ended.
    pub callback: Option<Callback>,
    /// One id through a chain of tasks.
    pub correlation_id: Option<String>,
    /// So that it can be repeated without fear.
    pub idempotency: Option<IdempotencyKey>,
    /// On what terms it is to be done.
    pub terms: Terms,
    /// What it has to do with other tasks.
    pub links: NewLinks,
    /// Where the caller believes that it goes to a broker: who publishes it.
    pub dispatch: Option<Publisher>,
}

/// What a new task has to do with others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewLinks {
    /// The task that it is a part of.
    pub parent: Option<TaskId>,
    /// The batch that it is to belong to.
    pub batch: Option<BatchId>,
    /// Whose trace it is part of.
    pub trace: Option<TraceContext>,
    /// What it waits for. Where it has no correlation id or no trace, it gets those of the first of them.
    pub after: Option<After>,
}

/// Who publishes a new task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publisher {
    /// How long it is left to the caller, before others find it. At zero they are told at once.
    pub held: Duration,
    /// The prefix of the queue to which the caller would publish it.
    pub queue: Arc<str>,
}

/// The answer to a submission that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submitted {
    /// The task's public name.
    pub task_id: TaskId,
    /// Its place in the queue when it was taken, counted from 1.
    pub position: u64,
    /// Whether the task was there before, under the same idempotency key.
    pub replayed: bool,
    /// Whether the task was there before, under the same unique key.
    pub duplicate: bool,
}

impl Submitted {
    /// Whether the task is a new one.
    pub const fn is_new(&self) -> bool {
        !self.replayed && !self.duplicate
    }
}

/// Taken, or why not.
pub type Submission = Result<Submitted, Refusal>;
