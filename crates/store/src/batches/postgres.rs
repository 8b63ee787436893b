//! Batches on PostgreSQL.

use std::time::Duration;

use relais_core::{Batch, BatchId, ClientKey, IdempotencyKey, NewBatch, StoreError, Submitted, TraceContext};

use crate::{
    batches::statements::{
        BatchList, BatchMoves, Batches, KnownBatch, LockedBatch, answers_text, batch, known_batch, locked_batch,
    },
    postgres::session::{PgSession, column},
    postgres::{Postgres, error},
    row::{Columns, wide},
    session::Result,
};

/// The columns that [`batch`] reads, of `g`.
macro_rules! batch_columns {
    () => {
        "g.batch_id, g.client_id, g.created, g.closed, g.ended, g.callback::text AS callback, g.correlation_id, g.trace, \
         g.pending, g.in_progress, g.success, g.failure, g.cancelled, \
         CASE WHEN g.lane IS NOT NULL AND g.ended IS NOT NULL THEN \
         (SELECT n.status FROM relais.callback n WHERE n.batch_id = g.batch_id ORDER BY n.id DESC LIMIT 1) END AS notification"
    };
}
pub(crate) use batch_columns;

impl Batches for PgSession {
    async fn note_batch_key(
        &mut self,
        client: ClientKey,
        key: &IdempotencyKey,
        batch: BatchId,
    ) -> Result<Option<KnownBatch>> {
        loop {
            let noted = sqlx::query(
                "INSERT INTO relais.batch_key (client_id, key, fingerprint, batch_id) VALUES ($1, $2, $3, $4)
                 ON CONFLICT (client_id, key) DO NOTHING",
            )
            .bind(client.0)
            .bind(&key.key)
            .bind(&key.fingerprint)
            .bind(batch.0)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
            if noted.rows_affected() > 0 {
                return Ok(None);
            }
            // A statement of its own: it sees what was committed while the first one waited.
            let row = sqlx::query(
                "SELECT batch_id, fingerprint, answers FROM relais.batch_key WHERE client_id = $1 AND key = $2",
            )
            .bind(client.0)
            .bind(&key.key)
            .fetch_optional(&mut *self.tx)
            .await
            .map_err(error)?;
            // If it is gone, it was too old, and was forgotten just now.
            if let Some(row) = row {
                return known_batch(&row).map(Some);
            }
        }
    }

    async fn forget_batch_keys(&mut self, older_than: Duration, limit: usize) -> Result<u64> {
        let done = sqlx::query(
            "DELETE FROM relais.batch_key WHERE (client_id, key) IN (
                 SELECT client_id, key FROM relais.batch_key
                 WHERE created < now() - make_interval(secs => $1)
                 ORDER BY created LIMIT $2
             )",
        )
        .bind(older_than.as_secs_f64())
        .bind(wide(limit))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(done.rows_affected())
    }

    async fn keep_batch_answers(&mut self, client: ClientKey, key: &str, answers: &[Submitted]) -> Result<()> {
        sqlx::query("UPDATE relais.batch_key SET answers = $3 WHERE client_id = $1 AND key = $2")
            .bind(client.0)
            .bind(key)
            .bind(answers_text(answers)?)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(())
    }

    async fn insert_batch(&mut self, new: &NewBatch) -> Result<()> {
        let callback = new.callback.as_ref().map(serde_json::to_string).transpose();
        sqlx::query(
            "INSERT INTO relais.batch (batch_id, client_id, callback, lane, correlation_id, trace)
             VALUES ($1, $2, $3::json, $4, $5, $6)",
        )
        .bind(new.batch_id.0)
        .bind(new.client.0)
        .bind(callback.map_err(|failure| StoreError::Failed(failure.into()))?)
        .bind(new.callback.as_ref().map(|callback| callback.lane))
        .bind(new.correlation_id.as_deref())
        .bind(new.trace.as_ref().map(TraceContext::to_text))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn lock_batches(&mut self, batches: &[BatchId]) -> Result<Vec<LockedBatch>> {
        let rows = sqlx::query(
            "SELECT batch_id, client_id, closed IS NULL AS open, correlation_id, trace FROM relais.batch
             WHERE batch_id = ANY($1) ORDER BY batch_id FOR NO KEY UPDATE",
        )
        .bind(names(batches))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        rows.iter().map(locked_batch).collect()
    }

    async fn close_batch(&mut self, batch: BatchId) -> Result<()> {
        sqlx::query("UPDATE relais.batch SET closed = clock_timestamp() WHERE batch_id = $1 AND closed IS NULL")
            .bind(batch.0)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(())
    }

    async fn count_batches(&mut self, moves: &[(BatchId, BatchMoves)]) -> Result<Vec<BatchId>> {
        if moves.len() > 1 {
            // An UPDATE promises no order.
            self.lock_batches(&column(moves, |(batch, _)| *batch)).await?;
        }
        let rows = sqlx::query(
            "UPDATE relais.batch b
             SET pending = b.pending + w.pending, in_progress = b.in_progress + w.in_progress,
                 success = b.success + w.success, failure = b.failure + w.failure, cancelled = b.cancelled + w.cancelled
             FROM ROWS FROM (
                 unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]),
                 generate_series(1, cardinality($1))
             ) AS w (batch_id, pending, in_progress, success, failure, cancelled)
             WHERE b.batch_id = ANY($1) AND b.batch_id = w.batch_id
             RETURNING b.batch_id,
                       b.closed IS NOT NULL AND b.ended IS NULL AND b.pending + b.in_progress = 0 AS complete",
        )
        .bind(column(moves, |(batch, _)| batch.0))
        .bind(column(moves, |(_, moves)| moves[0]))
        .bind(column(moves, |(_, moves)| moves[1]))
        .bind(column(moves, |(_, moves)| moves[2]))
        .bind(column(moves, |(_, moves)| moves[3]))
        .bind(column(moves, |(_, moves)| moves[4]))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        let mut complete = Vec::new();
        for row in &rows {
            if row.flag("complete")? {
                complete.push(crate::batches::statements::name(row)?);
            }
        }
        Ok(complete)
    }

    async fn end_batches(&mut self, batches: &[BatchId]) -> Result<Vec<i64>> {
        sqlx::query_scalar(
            "WITH done AS (
                 UPDATE relais.batch SET ended = clock_timestamp()
                 WHERE batch_id = ANY($1) AND ended IS NULL AND closed IS NOT NULL AND pending + in_progress = 0
                 RETURNING batch_id, client_id, lane
             ), told AS (
                 INSERT INTO relais.callback (task, service_id, client_id, event, revision, lane, chain, due, batch_id)
                 SELECT 0, 0, client_id, 5, 0, lane, false, clock_timestamp(), batch_id FROM done WHERE lane IS NOT NULL
             )
             SELECT lane FROM done WHERE lane IS NOT NULL",
        )
        .bind(names(batches))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)
    }

    async fn purge_batches(&mut self, finished: Duration, any: Duration, limit: usize) -> Result<u64> {
        // Public names begin with the time: the oldest come first.
        let done = sqlx::query(
            "WITH old AS (
                 (SELECT batch_id FROM relais.batch WHERE ended < now() - make_interval(secs => $1)
                  ORDER BY ended LIMIT $3)
                 UNION
                 SELECT batch_id FROM (SELECT batch_id, created FROM relais.batch ORDER BY batch_id LIMIT $3) b
                 WHERE created < now() - make_interval(secs => $2)
             ), gone AS (
                 DELETE FROM relais.batch WHERE batch_id = ANY(ARRAY(
                     SELECT g.batch_id FROM relais.batch g WHERE g.batch_id = ANY(ARRAY(SELECT batch_id FROM old))
                         AND NOT EXISTS (SELECT 1 FROM relais.callback b WHERE b.batch_id = g.batch_id AND b.status = 0)
                     ORDER BY g.batch_id FOR UPDATE SKIP LOCKED
                 )) RETURNING batch_id
             ), told AS (
                 DELETE FROM relais.callback WHERE batch_id = ANY(ARRAY(SELECT batch_id FROM gone)) RETURNING id
             ), tried AS (
                 DELETE FROM relais.callback_attempt WHERE callback = ANY(ARRAY(SELECT id FROM told))
             )
             SELECT * FROM gone",
        )
        .bind(finished.as_secs_f64())
        .bind(any.as_secs_f64())
        .bind(wide(limit))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(done.len() as u64)
    }
}

impl BatchList for Postgres {
    async fn find_batch(&self, id: BatchId) -> Result<Option<Batch>> {
        let row = sqlx::query(concat!("SELECT ", batch_columns!(), " FROM relais.batch g WHERE g.batch_id = $1"))
            .bind(id.0)
            .fetch_optional(&mut *self.lend().await?)
            .await
            .map_err(error)?;
        row.as_ref().map(batch).transpose()
    }

    async fn list_batches(
        &self,
        client: Option<ClientKey>,
        before: Option<BatchId>,
        limit: usize,
    ) -> Result<Vec<Batch>> {
        let before = before.map_or(uuid::Uuid::max(), |before| before.0);
        let rows = sqlx::query(if client.is_some() {
            concat!(
                "SELECT ",
                batch_columns!(),
                " FROM relais.batch g WHERE g.client_id = $1 AND g.batch_id < $2
                  ORDER BY g.client_id DESC, g.batch_id DESC LIMIT $3"
            )
        } else {
            concat!(
                "SELECT ",
                batch_columns!(),
                " FROM relais.batch g WHERE $1::integer IS NULL AND g.batch_id < $2 ORDER BY g.batch_id DESC LIMIT $3"
            )
        })
        .bind(client.map(|client| client.0))
        .bind(before)
        .bind(wide(limit))
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        rows.iter().map(batch).collect()
    }
}

fn names(batches: &[BatchId]) -> Vec<uuid::Uuid> {
    column(batches, |batch| batch.0)
}
