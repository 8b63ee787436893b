//! The port to a message broker that carries tasks to workers and brings back what they say.
//!
//! A task broker knows queues and bytes. What is to be carried, when, and what a message means is decided above it; what is
//! carried may arrive twice, and what comes back may be anything.

use async_trait::async_trait;

use crate::{Priority, QueueSettings, TaskId, TraceContext};

/// Why something could not be carried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskBrokerError {
    /// The broker is away, blocked or too slow. Nobody knows whether it was carried.
    #[error("the broker is away: {0}")]
    Away(String),
    /// There is no such queue. It was not carried.
    #[error("there is no queue {0}")]
    NoQueue(String),
    /// The broker will never take it: it is larger than the broker allows. It was not carried.
    #[error("the broker does not take such a message: {0}")]
    Unacceptable(String),
    /// The broker refused it: the queue is full, or it is not allowed. It was not carried.
    #[error("the broker refused: {0}")]
    Refused(String),
}

/// How the broker is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskBrokerState {
    /// It takes messages.
    Up,
    /// It takes none for now.
    Blocked(String),
    /// There is no connection.
    Away(String),
}

/// The queues of one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mailbox {
    /// The prefix: tasks go to `<name>-in`, what workers say comes from `<name>-out`.
    pub name: String,
    /// What they are to be like, where there are none yet.
    pub settings: QueueSettings,
    /// How often a task may be delivered.
    pub delivery_limit: u32,
}

impl Mailbox {
    /// Where tasks go, by the prefix.
    pub fn tasks_of(name: &str) -> String {
        format!("{name}-in")
    }

    /// Where tasks go.
    pub fn tasks(&self) -> String {
        Self::tasks_of(&self.name)
    }

    /// Where workers' messages come from.
    pub fn reports(&self) -> String {
        format!("{}-out", self.name)
    }

    /// Where tasks end that no worker takes.
    pub fn refused_tasks(&self) -> String {
        format!("{}-in.rejected", self.name)
    }

    /// Where workers are told of tasks that they may have at hand. Not a queue: everybody who listens hears it.
    pub fn control(&self) -> String {
        format!("{}-control", self.name)
    }

    /// Where messages are set aside that can not be understood.
    pub fn rejected(&self) -> String {
        format!("{}-out.rejected", self.name)
    }
}

/// What is seen of the queue of a service's tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueSight {
    /// There is none, or another one than there was: whatever was in it is lost.
    Missing,
    /// It is there.
    There {
        /// So many tasks wait in it.
        waiting: u64,
        /// So many are with workers; none if that can not be seen.
        handed_out: Option<u64>,
        /// So many workers listen.
        workers: u64,
    },
}

impl QueueSight {
    /// Whether the broker has no task of the service: not in the queue, nor with a worker. None if that can not be seen; it can if
    /// it is known whether a worker has begun with any.
    pub fn is_bare(self, running: bool) -> Option<bool> {
        match self {
            Self::Missing | Self::There { waiting: 1.., .. } => Some(false),
            Self::There { handed_out: Some(tasks), .. } => Some(tasks == 0),
            // A worker that has tasks ahead is busy with one of them.
            Self::There { workers, .. } => (workers == 0 || !running).then_some(true),
        }
    }
}

/// A task on its way to a worker.
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
    /// Whose trace it is part of.
    pub trace: Option<TraceContext>,
    /// How urgent it is, for queues that care.
    pub priority: Priority,
}

/// Which of a service's queues is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// What workers say.
    Reports,
    /// Tasks that no worker takes: rejected, expired, or delivered too often.
    RefusedTasks,
}

/// A message from a queue.
#[derive(Debug, Clone)]
pub struct Incoming {
    /// Its place in the follower's order.
    pub tag: u64,
    /// The message.
    pub body: Vec<u8>,
    /// Whether it may have been seen before.
    pub redelivered: bool,
    /// Why it is here, where the broker says so.
    pub reason: Option<String>,
}

/// Follows one queue. Dropped, it gives back what was not done.
#[async_trait]
pub trait TaskConsumer: Send {
    /// Waits for messages, and takes what else is there, at most `max`.
    async fn next(&mut self, max: usize) -> Result<Vec<Incoming>, TaskBrokerError>;

    /// All messages up to this one are done with.
    async fn done(&mut self, through: u64) -> Result<(), TaskBrokerError>;
}

/// A message that can not be understood, and why.
#[derive(Debug, Clone)]
pub struct Rejected {
    /// As it was.
    pub body: Vec<u8>,
    /// Why it was set aside.
    pub reason: String,
}

/// A message that was set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its name.
    pub id: String,
    /// Why it was set aside.
    pub reason: String,
    /// When, as RFC 3339; empty if it is not known.
    pub at: String,
    /// The message.
    pub body: Vec<u8>,
}

/// Carries tasks to workers, and brings back what they say.
#[async_trait]
pub trait TaskBroker: Send + Sync + 'static {
    /// How the broker is.
    fn state(&self) -> TaskBrokerState;

    /// Returns when the broker takes messages.
    async fn until_up(&self);

    /// Returns when the broker does not take messages.
    async fn until_down(&self);

    /// Looks at the queue of a service's tasks.
    async fn look(&self, mailbox: &Mailbox) -> Result<QueueSight, TaskBrokerError>;

    /// Makes sure that a service's queues are there: the one for tasks only if it is `missing`, since whoever makes it must know
    /// what was in it.
    async fn prepare(&self, mailbox: &Mailbox, missing: bool) -> Result<(), TaskBrokerError>;

    /// Sends tasks, in their order, and tells what became of each.
    async fn send(&self, consignments: Vec<OutgoingMessage>) -> Vec<Result<(), TaskBrokerError>>;

    /// Tells all workers of a service something at once: those who listen now, and nobody later.
    async fn announce(&self, mailbox: &Mailbox, body: Vec<u8>) -> Result<(), TaskBrokerError>;

    /// Follows a queue, which is made if need be, with at most `ahead` messages in hand; none if this broker has no such
    /// queue. Makes no other: a queue of tasks that is gone must be found missing, or nobody knows what was in it.
    async fn follow(
        &self,
        mailbox: &Mailbox,
        side: Side,
        ahead: u16,
    ) -> Result<Option<Box<dyn TaskConsumer>>, TaskBrokerError>;

    /// Sets messages aside where an operator can see them.
    async fn set_aside(&self, mailbox: &Mailbox, rejected: Vec<Rejected>) -> Result<(), TaskBrokerError>;

    /// The messages that were set aside, the oldest first, at most `limit`.
    async fn dead_letters(&self, mailbox: &Mailbox, limit: usize) -> Result<Vec<DeadLetter>, TaskBrokerError>;

    /// Puts messages that were set aside back where they came from: those with these names, or all. Tells how many.
    async fn replay(&self, mailbox: &Mailbox, ids: Option<Vec<String>>) -> Result<u64, TaskBrokerError>;

    /// Forgets messages that were set aside: those with these names, or all. Tells how many.
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
