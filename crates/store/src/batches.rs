//! What a driver says in SQL about batches: [`Batches`] within a transaction, [`BatchList`] without one.

use std::{future::Future, time::Duration};

use relais_core::{Batch, BatchCounts, BatchId, ClientKey, NewBatch, TaskId, TraceContext};

use crate::{
    dependency::trace,
    row::{Columns, callback, client_key, notification, unsigned},
    session::Result,
};

/// What a transaction adds to the counters of a batch, in the order of [`BatchCounts::slot`].
pub(crate) type BatchMoves = [i64; 5];

/// A batch that was locked.
#[derive(Debug, Clone)]
pub(crate) struct LockedBatch {
    pub batch_id: BatchId,
    pub client: ClientKey,
    /// Whether it takes more tasks.
    pub open: bool,
    pub correlation_id: Option<String>,
    pub trace: Option<TraceContext>,
}

/// Batches within a transaction.
pub(crate) trait Batches: Send {
    /// Inserts a batch that is open and has no tasks.
    fn insert_batch(&mut self, batch: &NewBatch) -> impl Future<Output = Result<()>> + Send;

    /// Locks batches, in the order of their names.
    fn lock_batches(&mut self, batches: &[BatchId]) -> impl Future<Output = Result<Vec<LockedBatch>>> + Send;

    /// Closes a batch that is open.
    fn close_batch(&mut self, batch: BatchId) -> impl Future<Output = Result<()>> + Send;

    /// Adds to the counters of batches, which are in the order of their names; tells which of them have ended by that.
    fn count_batches(&mut self, moves: &[(BatchId, BatchMoves)]) -> impl Future<Output = Result<Vec<BatchId>>> + Send;

    /// Ends batches that have not, and keeps what is to be told of it; tells in which lanes.
    fn end_batches(&mut self, batches: &[BatchId]) -> impl Future<Output = Result<Vec<i64>>> + Send;

    /// Removes at most so many batches that are too old, with their callbacks; tells how many.
    fn delete_batches(
        &mut self,
        finished: Duration,
        any: Duration,
        limit: usize,
    ) -> impl Future<Output = Result<u64>> + Send;
}

/// Batches, without a transaction.
pub(crate) trait BatchList: Send + Sync {
    fn find_batch(&self, batch: BatchId) -> impl Future<Output = Result<Option<Batch>>> + Send;

    /// The newest first.
    fn list_batches(
        &self,
        client: Option<ClientKey>,
        before: Option<BatchId>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Batch>>> + Send;
}

pub(crate) fn batch(row: &impl Columns) -> Result<Batch> {
    let count = |column: &str| Ok::<_, relais_core::StoreError>(unsigned(row.big(column)?));
    Ok(Batch {
        batch_id: name(row)?,
        client: client_key(row)?,
        created: row.moment("created")?,
        closed: row.moment_if_any("closed")?,
        ended: row.moment_if_any("ended")?,
        counts: BatchCounts {
            pending: count("pending")?,
            in_progress: count("in_progress")?,
            success: count("success")?,
            failure: count("failure")?,
            cancelled: count("cancelled")?,
        },
        callback: callback(row)?,
        notification: row.small_if_any("notification")?.map(notification).transpose()?,
        correlation_id: row.text_if_any("correlation_id")?,
        trace: trace(row)?,
    })
}

pub(crate) fn locked_batch(row: &impl Columns) -> Result<LockedBatch> {
    Ok(LockedBatch {
        batch_id: name(row)?,
        client: client_key(row)?,
        open: row.flag("open")?,
        correlation_id: row.text_if_any("correlation_id")?,
        trace: trace(row)?,
    })
}

/// A batch's public name.
pub(crate) fn name(row: &impl Columns) -> Result<BatchId> {
    let TaskId(id) = row.task_id("batch_id")?;
    Ok(BatchId(id))
}
