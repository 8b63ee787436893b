//! Counters and backlogs of queues.

use std::time::Duration;

use crate::{ClientKey, ServiceKey, Status, Timestamp};

/// How many tasks of a service came into a status and left it. A return undoes the count of leaving PENDING, so that
/// the number of arrivals in PENDING numbers the tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusCounter {
    /// The service.
    pub service: ServiceKey,
    /// The status.
    pub status: Status,
    /// How many came into it.
    pub arrived: u64,
    /// How many left it.
    pub departed: u64,
}

impl StatusCounter {
    /// How many are in it now.
    pub const fn current(&self) -> u64 {
        self.arrived.saturating_sub(self.departed)
    }
}

/// The counters of all queues at one moment.
#[derive(Debug, Clone, Default)]
pub struct Backlog {
    /// The counters.
    pub counters: Vec<StatusCounter>,
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
    /// Pending tasks.
    pub pending: u64,
    /// Tasks in progress.
    pub in_progress: u64,
    /// How long the oldest pending task has waited; none if none is pending.
    pub oldest_pending: Option<Duration>,
}

impl QueueDepth {
    /// The backlog: all unfinished tasks.
    pub const fn backlog(&self) -> u64 {
        self.pending.saturating_add(self.in_progress)
    }
}

/// One client's part of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueShare {
    /// The client.
    pub client: ClientKey,
    /// Its pending tasks.
    pub pending: u64,
    /// Its tasks in progress.
    pub in_progress: u64,
}
