//! How full queues are: what is counted, and what is told of it.

use std::time::Duration;

use crate::{ClientKey, ServiceKey, Status, Timestamp};

/// How many tasks of a service came into a status and left it. A task that is given back takes its departure from PENDING
/// back with it, so that arrivals there number the tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// The service.
    pub service: ServiceKey,
    /// The status.
    pub status: Status,
    /// Came into it.
    pub arrived: u64,
    /// Left it.
    pub departed: u64,
}

impl Tally {
    /// How many are in it now.
    pub const fn current(&self) -> u64 {
        self.arrived.saturating_sub(self.departed)
    }
}

/// What is to be known of all queues at a glance.
#[derive(Debug, Clone, Default)]
pub struct Backlog {
    /// The counters.
    pub tallies: Vec<Tally>,
    /// For services with pending tasks, when the oldest of those was submitted.
    pub oldest_pending: Vec<(ServiceKey, Timestamp)>,
    /// The database's time.
    pub now: Option<Timestamp>,
}

/// How full one queue is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueDepth {
    /// The service.
    pub service: ServiceKey,
    /// Tasks that wait.
    pub pending: u64,
    /// Tasks that a worker has.
    pub in_progress: u64,
    /// How long the oldest that waits has been waiting; none if none does.
    pub oldest_pending: Option<Duration>,
}

impl QueueDepth {
    /// All that is not finished.
    pub const fn backlog(&self) -> u64 {
        self.pending.saturating_add(self.in_progress)
    }
}

/// One client's part of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueShare {
    /// The client.
    pub client: ClientKey,
    /// Its tasks that wait.
    pub pending: u64,
    /// Its tasks that a worker has.
    pub in_progress: u64,
}
