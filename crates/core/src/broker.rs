//! The port to a message broker that delivers tasks to workers and returns their messages.
//!
//! A task broker knows queues and bytes. What to publish, when, and what a message means is decided by the engine. A
//! message may be delivered twice, and a message of a worker may be anything.

use async_trait::async_trait;

use crate::{Priority, QueueSettings, TaskId, TraceContext};

/// Errors of a task broker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskBrokerError {
    /// The broker is away, blocked or too slow. It is unknown whether the message was published.
    #[error("the broker is away: {0}")]
    Away(String),
    /// The queue does not exist. The message was not published.
    #[error("there is no queue {0}")]
    NoQueue(String),
    /// The message is larger than the broker allows. It was not published.
    #[error("the broker does not take such a message: {0}")]
    Unacceptable(String),
    /// The broker refused the message: the queue is full, or it is not allowed. It was not published.
    #[error("the broker refused: {0}")]
    Refused(String),
}

/// The state of the connection to the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskBrokerState {
    /// It accepts messages.
    Up,
    /// It accepts none for now.
    Blocked(String),
    /// There is no connection.
    Away(String),
}

/// The queues of one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mailbox {
    /// The prefix: tasks go to `<name>-in`, workers answer on `<name>-out`.
    pub name: String,
    /// The settings of the queues to declare, if there are none yet.
    pub settings: QueueSettings,
    /// The delivery limit.
    pub delivery_limit: u32,
}

impl Mailbox {
    /// The queue of tasks, by the prefix.
    pub fn tasks_of(name: &str) -> String {
        format!("{name}-in")
    }

    /// The queue of tasks.
    pub fn tasks(&self) -> String {
        Self::tasks_of(&self.name)
    }

    /// The queue of workers' messages.
    pub fn reports(&self) -> String {
        format!("{}-out", self.name)
    }

    /// The queue of tasks that no worker takes.
    pub fn refused_tasks(&self) -> String {
        format!("{}-in.rejected", self.name)
    }

    /// The exchange for revocations. It is a fanout: every worker that listens receives them.
    pub fn control(&self) -> String {
        format!("{}-control", self.name)
    }

    /// The queue of dead letters.
    pub fn rejected(&self) -> String {
        format!("{}-out.rejected", self.name)
    }
}

/// The observed state of a service's queue of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueSight {
    /// It is missing, or was recreated: its messages are lost.
    Missing,
    /// It exists.
    There {
        /// How many tasks wait in it.
        waiting: u64,
        /// How many are delivered and unacknowledged; none if that is unknown.
        handed_out: Option<u64>,
        /// How many workers consume it.
        workers: u64,
    },
}

impl QueueSight {
    /// Whether the broker has no task of the service, neither in the queue nor at a worker. None if that is unknown. It
    /// is known if it is known whether a worker has started any.
    pub fn is_bare(self, running: bool) -> Option<bool> {
        match self {
            Self::Missing | Self::There { waiting: 1.., .. } => Some(false),
            Self::There { handed_out: Some(tasks), .. } => Some(tasks == 0),
            // A worker with prefetched tasks runs one of them.
            Self::There { workers, .. } => (workers == 0 || !running).then_some(true),
        }
    }
}

/// A message to be published: a task on its way to a worker.
#[derive(Debug, Clone)]
pub struct OutgoingMessage {
    /// The task's public name.
    pub task_id: TaskId,
    /// The queue.
    pub queue: String,
    /// The message.
    pub body: Vec<u8>,
    /// One id through a chain of tasks.
    pub correlation_id: Option<String>,
    /// The trace context that it belongs to.
    pub trace: Option<TraceContext>,
    /// The priority, for queues that support it.
    pub priority: Priority,
}

/// Which of a service's queues to consume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Messages of workers.
    Reports,
    /// Tasks that no worker takes: rejected, expired, or delivered too often.
    RefusedTasks,
}

/// A message that was consumed.
#[derive(Debug, Clone)]
pub struct Incoming {
    /// Its number in the order of delivery.
    pub tag: u64,
    /// The message.
    pub body: Vec<u8>,
    /// Whether it may be a redelivery.
    pub redelivered: bool,
    /// Why it was dead-lettered, if the broker says so.
    pub reason: Option<String>,
}

/// A consumer of one queue. Dropping it returns what was not acknowledged.
#[async_trait]
pub trait TaskConsumer: Send {
    /// Waits for messages and returns those that are there, at most `max`.
    async fn next(&mut self, max: usize) -> Result<Vec<Incoming>, TaskBrokerError>;

    /// Acknowledges all messages up to this one.
    async fn done(&mut self, through: u64) -> Result<(), TaskBrokerError>;
}

/// A message that cannot be understood, and why.
#[derive(Debug, Clone)]
pub struct Rejected {
    /// The message, unchanged.
    pub body: Vec<u8>,
    /// The reason.
    pub reason: String,
}

/// A dead letter: a message that could not be understood and was set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its name.
    pub id: String,
    /// The reason.
    pub reason: String,
    /// When, as RFC 3339; empty if it is not known.
    pub at: String,
    /// The message.
    pub body: Vec<u8>,
}

/// The port to a message broker.
#[async_trait]
pub trait TaskBroker: Send + Sync + 'static {
    /// The state of the connection.
    fn state(&self) -> TaskBrokerState;

    /// Returns when the broker accepts messages.
    async fn until_up(&self);

    /// Returns when the broker does not accept messages.
    async fn until_down(&self);

    /// Observes the queue of a service's tasks.
    async fn look(&self, mailbox: &Mailbox) -> Result<QueueSight, TaskBrokerError>;

    /// Declares a service's queues: the one for tasks only if it is `missing`, because the caller must know that its
    /// messages are lost.
    async fn prepare(&self, mailbox: &Mailbox, missing: bool) -> Result<(), TaskBrokerError>;

    /// Publishes tasks in order, and returns the outcome of each.
    async fn send(&self, messages: Vec<OutgoingMessage>) -> Vec<Result<(), TaskBrokerError>>;

    /// Broadcasts a text to all workers of a service that listen now.
    async fn announce(&self, mailbox: &Mailbox, body: Vec<u8>) -> Result<(), TaskBrokerError>;

    /// Consumes a queue, which is declared if need be, with at most `ahead` prefetched messages; none if this broker
    /// has no such queue. Declares no other queue: a missing queue of tasks must be noticed, because its messages are
    /// lost.
    async fn follow(
        &self,
        mailbox: &Mailbox,
        side: Side,
        ahead: u16,
    ) -> Result<Option<Box<dyn TaskConsumer>>, TaskBrokerError>;

    /// Stores dead letters, where an operator can see them.
    async fn set_aside(&self, mailbox: &Mailbox, rejected: Vec<Rejected>) -> Result<(), TaskBrokerError>;

    /// Lists dead letters, the oldest first, at most `limit`.
    async fn dead_letters(&self, mailbox: &Mailbox, limit: usize) -> Result<Vec<DeadLetter>, TaskBrokerError>;

    /// Replays dead letters: puts those with these ids, or all, back into their queue. Returns how many.
    async fn replay(&self, mailbox: &Mailbox, ids: Option<Vec<String>>) -> Result<u64, TaskBrokerError>;

    /// Discards dead letters: those with these ids, or all. Returns how many.
    async fn discard(&self, mailbox: &Mailbox, ids: Option<Vec<String>>) -> Result<u64, TaskBrokerError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_queue_is_empty_only_if_no_worker_can_have_a_task() {
        let there = |waiting, handed_out, workers| QueueSight::There { waiting, handed_out, workers };
        for (sight, running, bare) in [
            (QueueSight::Missing, false, Some(false)),
            (there(1, None, 0), false, Some(false)),
            (there(0, Some(1), 0), false, Some(false)),
            (there(0, Some(0), 5), true, Some(true)),
            (there(0, None, 0), true, Some(true)),
            (there(0, None, 5), false, Some(true)),
            (there(0, None, 5), true, None),
        ] {
            assert_eq!(sight.is_bare(running), bare, "{sight:?}, {running}");
        }
    }
}
