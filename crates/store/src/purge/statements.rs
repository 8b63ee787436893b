//! What purges need of a database, and how the rows are read.

use std::{future::Future, time::Duration};

use relais_core::{BatchId, ClientKey, ServiceKey, Status};

use crate::{
    dependencies::statements::batch_of,
    history::statements::FreedKey,
    row::{Columns, client_key, service_key},
    session::Result,
};

/// Which tasks may be purged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PurgeScan {
    pub service: ServiceKey,
    pub status: Status,
    pub after_id: i64,
    pub finished: Duration,
    pub any: Duration,
    pub batch: usize,
}

/// A task that a purge looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PurgeCandidate {
    pub id: i64,
    pub client: ClientKey,
    pub seq: i64,
    pub too_old: bool,
    pub batch: Option<BatchId>,
}

/// Purges within a transaction.
pub(crate) trait PurgeRows: Send {
    /// Reads tasks in the order of their arrival, without locking them. The scan ends at the first task that is too
    /// young.
    fn scan_for_purge(&mut self, scan: &PurgeScan) -> impl Future<Output = Result<Vec<PurgeCandidate>>> + Send;

    /// Removes tasks with their attempts and callbacks; tells which. A task stays if its status has changed, if
    /// somebody has locked it, if a callback is still to be sent, or if unfinished tasks depend on it.
    fn delete_tasks(&mut self, ids: &[i64], status: Status) -> impl Future<Output = Result<Vec<i64>>> + Send;

    /// Removes at most `limit` idempotency keys that are older than this; tells how many.
    fn forget_keys(&mut self, older_than: Duration, limit: usize) -> impl Future<Output = Result<u64>> + Send;

    /// The services that have counters, each with the number of its first unfinished task, or of the next task.
    fn queue_floors(&mut self) -> impl Future<Output = Result<Vec<(ServiceKey, i64)>>> + Send;

    /// Removes nodes of a level of the position tree before `before_slot`, among its first `limit` slots; tells how
    /// many.
    fn drop_departures(
        &mut self,
        service: ServiceKey,
        level: i16,
        before_slot: i64,
        limit: usize,
    ) -> impl Future<Output = Result<u64>> + Send;
}

/// Reads candidates up to the first task that is too young. Tasks are numbered in the order of submission, so those
/// after it are too young as well.
pub(crate) fn purge_candidates(rows: &[impl Columns]) -> Result<Vec<PurgeCandidate>> {
    let mut candidates = Vec::with_capacity(rows.len());
    for row in rows {
        if !row.flag("matters")? {
            break;
        }
        candidates.push(PurgeCandidate {
            id: row.big("id")?,
            client: client_key(row)?,
            seq: row.big("seq")?,
            too_old: row.flag_if_any("too_old")?.unwrap_or(false),
            batch: batch_of(row)?,
        });
    }
    Ok(candidates)
}

/// The unique keys of removed tasks.
pub(crate) fn freed_keys(rows: &[impl Columns]) -> Result<Vec<FreedKey>> {
    let mut freed = Vec::new();
    for row in rows {
        if let Some(key) = row.text_if_any("unique_key")? {
            let (service, client, task_id) = (service_key(row)?, client_key(row)?, row.task_id("task_id")?);
            freed.push(FreedKey { service, client, key, task_id });
        }
    }
    Ok(freed)
}

/// The removed tasks that depended on others.
pub(crate) fn waited_for_others(rows: &[impl Columns]) -> Result<Vec<i64>> {
    let mut waited = Vec::new();
    for row in rows {
        if row.small_if_any("after_when")?.is_some() {
            waited.push(row.big("id")?);
        }
    }
    Ok(waited)
}
