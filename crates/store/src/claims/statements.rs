//! What a driver says in SQL about claims, and what the rows mean.

use std::{future::Future, time::Duration};

use relais_core::{ClientId, ClientKey, Links, ServiceKey, ServiceName, Task, Timestamp, Wakeup};

use crate::{
    counters::statements::Accounts,
    dependencies::statements::trace,
    flow::statements::{FlowKind, flow_kind},
    row::{Columns, client_name, millis, priority, request, service_name},
    session::Result,
    tasks::statements::{Locked, LockedTask, WrittenTask, locked, locked_task},
};

/// A pending task that was locked, with all that its worker gets.
#[derive(Debug)]
pub(crate) struct LockedPending {
    pub locked: LockedTask,
    pub task: Task,
    /// The lease that the service grants.
    pub lease: Duration,
    /// Its rank: the order in which claims get tasks.
    pub rank: i64,
}

impl LockedPending {
    /// Where it stands in its queue.
    pub(crate) fn position(&self) -> (i64, i64) {
        (self.rank, self.locked.id)
    }
}

impl Locked<LockedPending> {
    /// Where the last one stands.
    pub(crate) fn last(&self) -> (i64, i64) {
        self.rows.iter().map(LockedPending::position).max().unwrap_or((i64::MIN, 0))
    }
}

/// What a task is to become that was not locked.
#[derive(Debug)]
pub(crate) struct UnlockedTask {
    /// What its revision was.
    pub known: u64,
    pub written: WrittenTask,
}

/// A claim in two statements, each a transaction of its own, where nobody else claims at the same time.
pub(crate) trait UnlockedClaims: Send + Sync {
    /// Pending tasks of a service whose flow is not limited, in the order in which claims get them; not locked. None if
    /// it is limited, or if the database gains nothing by it.
    fn pending_unlocked(
        &self,
        _service: ServiceKey,
        _limit: usize,
    ) -> impl Future<Output = Result<Option<Locked<LockedPending>>>> + Send {
        std::future::ready(Ok(None))
    }

    /// Writes what tasks of a service become that were not locked, and the counters, in one statement and a transaction
    /// of its own. False, and nothing is written, if one is not any more what it was known to be, or the service's flow
    /// is limited now.
    fn write_unlocked(
        &self,
        _service: ServiceKey,
        _tasks: &[UnlockedTask],
        _accounts: &Accounts,
        _wakeup: &Wakeup,
    ) -> impl Future<Output = Result<bool>> + Send {
        std::future::ready(Ok(false))
    }
}

/// Claims within a transaction.
pub(crate) trait ClaimRows: Send {
    /// Locks the oldest pending tasks of a service that is not paused, passing over those that others have locked. None
    /// if its flow is limited, unless that was looked at (`counted`).
    fn lock_pending(
        &mut self,
        service: ServiceKey,
        limit: usize,
        counted: bool,
    ) -> impl Future<Output = Result<Option<Locked<LockedPending>>>> + Send;
}

pub(crate) fn locked_pending(row: &impl Columns) -> Result<LockedPending> {
    let client = client_name(row)?;
    named_pending(row, service_name(row)?, |_| Ok(client))
}

/// The same, where the names of the service and of clients are known. What has not ended has no result, and what is
/// read of the task is read once.
pub(crate) fn named_pending(
    row: &impl Columns,
    service: ServiceName,
    client_name: impl FnOnce(ClientKey) -> Result<ClientId>,
) -> Result<LockedPending> {
    let (lease, rank) = (millis(row.big("lease_ms")?), row.big("rank")?);
    let locked = locked_task(row)?;
    let task = Task {
        id: locked.id,
        task_id: locked.task_id,
        client_id: client_name(locked.client)?,
        service,
        state: locked.state.clone(),
        request: request(row)?,
        response: None,
        error_message: None,
        error_kind: None,
        error_trace: None,
        priority: priority(row.small_if_any("priority")?),
        callback: locked.callback.clone(),
        notification: None,
        correlation_id: locked.correlation_id.clone(),
        submitted: locked.submitted,
        scheduled: locked.scheduled,
        position: None,
        links: Links {
            parent: row.task_id_if_any("parent_id")?,
            batch: locked.batch,
            trace: trace(row)?,
            when: locked.when,
            after: Vec::new(),
        },
    };
    Ok(LockedPending { locked, task, lease, rank })
}

/// The same, of a service that tells how its flow is limited, in a row of its own if there are no tasks: none if it is,
/// and nobody has looked at that.
pub(crate) fn locked_unless_limited(rows: &[impl Columns], counted: bool) -> Result<Option<Locked<LockedPending>>> {
    match rows {
        [row, ..] if !counted && flow_kind(row)? != FlowKind::Free => Ok(None),
        [row] if row.big_if_any("id")?.is_none() => {
            Ok(Some(Locked { now: Timestamp::from_millis(0), rows: Vec::new() }))
        }
        rows => locked(rows, locked_pending).map(Some),
    }
}
