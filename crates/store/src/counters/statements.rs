//! What the counters need of a database, and how the rows are read.

use std::future::Future;

use relais_core::{
    Backlog, BatchId, ClientKey, QueueDepth, QueueShare, ServiceKey, Status, StatusCounter, Wakeup, position::Node,
};

use crate::{
    batches::statements::BatchMoves,
    row::{Columns, client_key, service_key, status, unsigned},
    session::Result,
};

/// One counter: how many tasks of a client came into a status, or left it. Client 0 stands for all clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Counter {
    pub service: ServiceKey,
    pub client: ClientKey,
    pub status: Status,
    pub departed: bool,
}

/// What a transaction adds to the counters, in the order of their keys.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    pub counts: Vec<(Counter, i64)>,
    /// Nodes of the position trees.
    pub departures: Vec<(ServiceKey, Node, i64)>,
    /// Counters of batches.
    pub batches: Vec<(BatchId, BatchMoves)>,
}

impl Accounts {
    /// Whether nothing is added.
    pub(crate) fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.departures.is_empty()
    }
}

/// Stands for all clients in a [`Counter`].
pub(crate) const ALL_CLIENTS: ClientKey = ClientKey(0);

/// Reads of the counters, which need no transaction.
pub(crate) trait CounterReader: Send + Sync {
    /// How many tasks came into each status of each service and left it, and when the oldest pending task of each
    /// service was submitted.
    fn backlog(&self) -> impl Future<Output = Result<Backlog>> + Send;

    /// How many pending and running tasks these services have, in this order.
    fn queue_depths(&self, services: &[ServiceKey]) -> impl Future<Output = Result<Vec<QueueDepth>>> + Send;

    /// The clients with unfinished tasks of a service, in the order of their keys.
    fn queue_shares(&self, service: ServiceKey) -> impl Future<Output = Result<Vec<QueueShare>>> + Send;
}

/// The counters within a transaction.
pub(crate) trait CounterRows: Send {
    /// Adds to the counters. Wakes other processes when the transaction commits. This is the last statement before the
    /// commit, since other transactions wait for these rows.
    fn account(&mut self, accounts: &Accounts, wakeup: &Wakeup) -> impl Future<Output = Result<()>> + Send;
}

pub(crate) fn status_counter(row: &impl Columns) -> Result<StatusCounter> {
    let code = row.small("status")?;
    Ok(StatusCounter {
        service: service_key(row)?,
        status: status(code)?,
        arrived: unsigned(row.big("arrived")?),
        departed: unsigned(row.big("departed")?),
    })
}

pub(crate) fn queue_depth(row: &impl Columns) -> Result<QueueDepth> {
    let now = row.moment("now")?;
    Ok(QueueDepth {
        service: service_key(row)?,
        pending: unsigned(row.big("pending")?),
        in_progress: unsigned(row.big("in_progress")?),
        oldest_pending: row.moment_if_any("submitted")?.map(|submitted| now.since(submitted)),
    })
}

pub(crate) fn queue_share(row: &impl Columns) -> Result<QueueShare> {
    Ok(QueueShare {
        client: client_key(row)?,
        pending: unsigned(row.big("pending")?),
        in_progress: unsigned(row.big("running")?),
    })
}
