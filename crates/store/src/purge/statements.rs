//! What a driver says in SQL about removing what is too old, and what the rows mean.

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
    /// Tasks that a purge is to look at, in the order of arrival, without locking them. Those not old enough to matter
    /// end the scan.
    fn scan_for_purge(&mut self, scan: &PurgeScan) -> impl Future<Output = Result<Vec<PurgeCandidate>>> + Send;

    /// Removes those of the tasks that are still in this status, that nobody has locked and of which nothing is to be
    /// told any more, and that nobody waits for, with their callbacks; tells which.
    fn delete_tasks(&mut self, ids: &[i64], status: Status) -> impl Future<Output = Result<Vec<i64>>> + Send;

    /// Forgets at most `limit` idempotency keys that are older than this; tells how many.
    fn forget_keys(&mut self, older_than: Duration, limit: usize) -> impl Future<Output = Result<u64>> + Send;

    /// The services that have counters, and the number of the first task of each that is not finished (or would be
    /// next).
    fn queue_floors(&mut self) -> impl Future<Output = Result<Vec<(ServiceKey, i64)>>> + Send;

    /// Drops nodes of a level that no place depends on any more, among its first `limit` slots; tells how many.
    fn drop_departures(
        &mut self,
        service: ServiceKey,
        level: i16,
        before_slot: i64,
        limit: usize,
    ) -> impl Future<Output = Result<u64>> + Send;
}

/// The candidates up to the first that is too young to matter: tasks are numbered in the order of their submission, so
/// those behind it are too young as well.
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

/// The unique keys of tasks that are gone.
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

/// Those of the tasks that are gone which waited for others.
pub(crate) fn waited_for_others(rows: &[impl Columns]) -> Result<Vec<i64>> {
    let mut waited = Vec::new();
    for row in rows {
        if row.small_if_any("after_when")?.is_some() {
            waited.push(row.big("id")?);
        }
    }
    Ok(waited)
}
