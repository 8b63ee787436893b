//! Batches: making them, closing them, and noticing that they have ended.

pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use std::time::Duration;

use async_trait::async_trait;
use relais_core::{
    Batch, BatchCreated, BatchId, BatchStore, ClientKey, NewBatch, NewTask, StoreError, Submitted, Wakeup,
};

use crate::{
    batches::statements::{BatchMoves, Batches as _},
    counters::ledger::Ledger,
    session::{Database, Session as _},
    submit::Taken,
    text,
    verbs::Verbs,
};

#[async_trait]
impl<D: Database> BatchStore for Verbs<D> {
    /// Makes a batch with its tasks, in a transaction of its own: all or nothing.
    async fn create_batch(&self, mut batch: NewBatch, mut tasks: Vec<NewTask>) -> Result<BatchCreated, StoreError> {
        batch.correlation_id.iter_mut().for_each(text::without_nul);
        batch.idempotency.iter_mut().for_each(|given| text::without_nul(&mut given.key));
        tasks.iter_mut().for_each(text::submission);
        let mut session = self.database.begin().await?;
        if let Some(given) = &batch.idempotency
            // First: whoever waits here has nothing that anybody waits for.
            && let Some(known) = session.note_batch_key(batch.client, given, batch.batch_id).await?
        {
            return Ok(match known.fingerprint == given.fingerprint {
                true => BatchCreated::Replayed(known.batch_id, known.answers),
                false => BatchCreated::KeyReused,
            });
        }
        // Open at first, whatever it is to be: its tasks are still to be added.
        session.insert_batch(&batch).await?;
        let mut taken = if tasks.is_empty() { Taken::default() } else { Self::take_in(&mut session, tasks).await? };
        if let Some((place, refusal)) = taken.refusal() {
            // The transaction is dropped, and never was.
            return Ok(BatchCreated::Refused(place, refusal));
        }
        let answers = taken.answers.clone();
        let taken_in = answers.iter().flatten().any(|submitted| submitted.is_new());
        if !batch.open {
            session.close_batch(batch.batch_id).await?;
            if !taken_in {
                // All its tasks were there before, under keys of theirs: none of them is its own.
                taken.callbacks = session.end_batches(&[batch.batch_id]).await?;
            }
        }
        if let Some(given) = &batch.idempotency {
            let answers: Vec<Submitted> = answers.iter().flatten().copied().collect();
            session.keep_batch_answers(batch.client, &given.key, &answers).await?;
        }
        self.finish_taken(session, taken).await?;
        Ok(BatchCreated::Taken(answers))
    }

    async fn find_batch(&self, batch_id: BatchId) -> Result<Option<Batch>, StoreError> {
        self.database.find_batch(batch_id).await
    }

    async fn list_batches(
        &self,
        client: Option<ClientKey>,
        before: Option<BatchId>,
        limit: usize,
    ) -> Result<Vec<Batch>, StoreError> {
        self.database.list_batches(client, before, limit).await
    }

    /// Takes no more tasks into a batch.
    async fn close_batch(&self, batch: BatchId) -> Result<(), StoreError> {
        let mut session = self.database.begin().await?;
        session.lock_batches(&[batch]).await?;
        session.close_batch(batch).await?;
        let callbacks = session.end_batches(&[batch]).await?;
        self.finish(session, Ledger::default(), Wakeup { callbacks, ..Wakeup::default() }).await
    }

    async fn purge_batches(&self, finished: Duration, any: Duration, limit: usize) -> Result<u64, StoreError> {
        let mut session = self.database.begin().await?;
        let gone = session.purge_batches(finished, any, limit).await?;
        session.commit().await?;
        Ok(gone)
    }
}

impl<D: Database> Verbs<D> {
    /// Adds to the counters of batches; tells in which lanes there is something to be told.
    pub(crate) async fn count_batches(
        session: &mut D::Session,
        moves: &[(BatchId, BatchMoves)],
    ) -> Result<Vec<i64>, StoreError> {
        let complete = session.count_batches(moves).await?;
        if complete.is_empty() { Ok(Vec::new()) } else { session.end_batches(&complete).await }
    }
}
