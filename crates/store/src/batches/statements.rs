//! What a driver says in SQL about batches: [`Batches`] within a transaction, [`BatchList`] without one.

use std::{future::Future, time::Duration};

use relais_core::{Batch, BatchCounts, BatchId, ClientKey, IdempotencyKey, NewBatch, Submitted, TaskId, TraceContext};

use crate::{
    dependencies::statements::trace,
    row::{Columns, callback, client_key, corrupt, notification, unsigned},
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

/// An idempotency key that a batch was made with.
#[derive(Debug)]
pub(crate) struct KnownBatch {
    pub batch_id: BatchId,
    pub fingerprint: Vec<u8>,
    /// The first answer.
    pub answers: Vec<Submitted>,
}

/// Batches within a transaction.
pub(crate) trait Batches: Send {
    /// Notes the idempotency key of a batch that is to be made; or tells what was made with it. Whoever makes a batch
    /// with the same key at the same time waits until this transaction has ended.
    fn note_batch_key(
        &mut self,
        client: ClientKey,
        key: &IdempotencyKey,
        batch: BatchId,
    ) -> impl Future<Output = Result<Option<KnownBatch>>> + Send;

    /// Keeps what was answered to a batch that was made with a key.
    fn keep_batch_answers(
        &mut self,
        client: ClientKey,
        key: &str,
        answers: &[Submitted],
    ) -> impl Future<Output = Result<()>> + Send;

    /// Forgets at most `limit` keys of batches that are older than this; tells how many.
    fn forget_batch_keys(&mut self, older_than: Duration, limit: usize) -> impl Future<Output = Result<u64>> + Send;

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
    fn purge_batches(
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

pub(crate) fn known_batch(row: &impl Columns) -> Result<KnownBatch> {
    let answers: Vec<(String, u64, bool)> = serde_json::from_str(&row.text("answers")?).map_err(corrupt)?;
    let submitted = |(name, position, duplicate): (String, u64, bool)| {
        let task_id = TaskId::parse(&name).ok_or_else(|| corrupt(format!("task id {name}")))?;
        Ok(Submitted { task_id, position, replayed: true, duplicate })
    };
    Ok(KnownBatch {
        batch_id: name(row)?,
        fingerprint: row.bytes("fingerprint")?,
        answers: answers.into_iter().map(submitted).collect::<Result<_>>()?,
    })
}

/// What was answered, as it is kept.
pub(crate) fn answers_text(answers: &[Submitted]) -> Result<String> {
    let kept: Vec<_> =
        answers.iter().map(|answer| (answer.task_id.to_string(), answer.position, answer.duplicate)).collect();
    serde_json::to_string(&kept).map_err(corrupt)
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
