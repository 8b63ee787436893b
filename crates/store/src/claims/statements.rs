//! What claims need of a database, and how the rows are read.

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

/// A locked pending task, with everything that its worker gets.
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
    /// Its place in the queue.
    pub(crate) fn position(&self) -> (i64, i64) {
        (self.rank, self.locked.id)
    }
}

impl Locked<LockedPending> {
    /// The place of the last task in the queue.
    pub(crate) fn last(&self) -> (i64, i64) {
        self.rows.iter().map(LockedPending::position).max().unwrap_or((i64::MIN, 0))
    }
}

/// What is written of a task that is not locked.
#[derive(Debug)]
pub(crate) struct UnlockedTask {
    /// The revision that it must still have.
    pub known: u64,
    pub written: WrittenTask,
}

/// A claim in two statements, each in a transaction of its own. It succeeds if nobody else claims at the same time.
pub(crate) trait UnlockedClaims: Send + Sync {
    /// Reads pending tasks of a service, in the order in which claims get them, without locking. None if the flow of
    /// the service is limited, or if the database gains nothing by it.
    fn pending_unlocked(
        &self,
        _service: ServiceKey,
        _limit: usize,
    ) -> impl Future<Output = Result<Option<Locked<LockedPending>>>> + Send {
        std::future::ready(Ok(None))
    }

    /// Writes tasks of a service that are not locked, and the counters, in one statement and a transaction of its own.
    /// False, and nothing is written, if one of them has changed meanwhile, or if the flow of the service is limited
    /// now.
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
    /// Locks the first pending tasks of a service that is not paused, passing over those that others have locked. None
    /// if the flow of the service is limited, unless the caller has looked at that (`counted`).
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

/// The same as [`locked_pending`], for a caller that knows the names of the service and of the clients.
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

/// Locked pending tasks of a service whose rows say also whether its flow is limited. There is one row without a task
/// if there are no tasks. None if the flow is limited and the caller has not looked at that.
pub(crate) fn locked_unless_limited(rows: &[impl Columns], counted: bool) -> Result<Option<Locked<LockedPending>>> {
    match rows {
        [row, ..] if !counted && flow_kind(row)? != FlowKind::Free => Ok(None),
        [row] if row.big_if_any("id")?.is_none() => {
            Ok(Some(Locked { now: Timestamp::from_millis(0), rows: Vec::new() }))
        }
        rows => locked(rows, locked_pending).map(Some),
    }
}
