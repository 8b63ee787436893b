//! Batches on SQLite.

use std::time::Duration;

use relais_core::{Batch, BatchId, ClientKey, IdempotencyKey, NewBatch, Submitted, TraceContext};

use crate::{
    batches::statements::{
        BatchList, BatchMoves, Batches, KnownBatch, LockedBatch, answers_text, batch, known_batch, locked_batch, name,
    },
    row::{Columns, corrupt, in_millis, wide},
    session::Result,
    sqlite::session::SqliteSession,
    sqlite::{Sqlite, error},
};

/// The columns that [`batch`] reads, of `g`.
macro_rules! batch_columns {
    () => {
        "g.batch_id, g.client_id, g.created, g.closed, g.ended, g.callback, g.correlation_id, g.trace, g.pending, \
         g.in_progress, g.success, g.failure, g.cancelled, \
         CASE WHEN g.lane IS NOT NULL AND g.ended IS NOT NULL THEN \
         (SELECT n.status FROM callback n WHERE n.batch_id = g.batch_id ORDER BY n.id DESC LIMIT 1) END AS notification"
    };
}
pub(crate) use batch_columns;

impl Batches for SqliteSession {
    async fn note_batch_key(
        &mut self,
        client: ClientKey,
        key: &IdempotencyKey,
        batch: BatchId,
    ) -> Result<Option<KnownBatch>> {
        let noted = sqlx::query(concat!(
            "INSERT INTO batch_key (client_id, key, fingerprint, batch_id, created) VALUES (?1, ?2, ?3, ?4, ",
            now!(),
            ") ON CONFLICT (client_id, key) DO NOTHING"
        ))
        .bind(client.0)
        .bind(&key.key)
        .bind(&key.fingerprint)
        .bind(batch.to_string())
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        if noted.rows_affected() > 0 {
            return Ok(None);
        }
        let row = sqlx::query("SELECT batch_id, fingerprint, answers FROM batch_key WHERE client_id = ?1 AND key = ?2")
            .bind(client.0)
            .bind(&key.key)
            .fetch_one(&mut *self.tx)
            .await
            .map_err(error)?;
        known_batch(&row).map(Some)
    }

    async fn keep_batch_answers(&mut self, client: ClientKey, key: &str, answers: &[Submitted]) -> Result<()> {
        sqlx::query("UPDATE batch_key SET answers = ?3 WHERE client_id = ?1 AND key = ?2")
            .bind(client.0)
            .bind(key)
            .bind(answers_text(answers)?)
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn forget_batch_keys(&mut self, older_than: Duration, limit: usize) -> Result<u64> {
        let done = sqlx::query(concat!(
            "DELETE FROM batch_key WHERE rowid IN (SELECT rowid FROM batch_key WHERE created < ",
            now!(),
            " - ?1 ORDER BY created LIMIT ?2)"
        ))
        .bind(in_millis(older_than))
        .bind(wide(limit))
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(done.rows_affected())
    }

    async fn insert_batch(&mut self, new: &NewBatch) -> Result<()> {
        let callback = new.callback.as_ref().map(serde_json::to_string).transpose().map_err(corrupt)?;
        sqlx::query(concat!(
            "INSERT INTO batch (batch_id, client_id, callback, lane, correlation_id, trace, created)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ",
            now!(),
            ")"
        ))
        .bind(new.batch_id.to_string())
        .bind(new.client.0)
        .bind(callback)
        .bind(new.callback.as_ref().map(|callback| callback.lane))
        .bind(new.correlation_id.as_deref())
        .bind(new.trace.as_ref().map(TraceContext::to_text))
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn lock_batches(&mut self, batches: &[BatchId]) -> Result<Vec<LockedBatch>> {
        let rows = self
            .fetch(
                "SELECT g.batch_id, g.client_id, g.closed IS NULL AS open, g.correlation_id, g.trace FROM json_each(?1) AS w
                 CROSS JOIN batch g ON g.batch_id = w.value",
                batches,
            )
            .await?;
        rows.iter().map(locked_batch).collect()
    }

    async fn close_batch(&mut self, batch: BatchId) -> Result<()> {
        sqlx::query(concat!("UPDATE batch SET closed = ", now!(), " WHERE batch_id = ?1 AND closed IS NULL"))
            .bind(batch.to_string())
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn count_batches(&mut self, moves: &[(BatchId, BatchMoves)]) -> Result<Vec<BatchId>> {
        let rows = self
            .fetch(
                "UPDATE batch SET pending = pending + (w.value->>1->>0), in_progress = in_progress + (w.value->>1->>1),
                     success = success + (w.value->>1->>2), failure = failure + (w.value->>1->>3),
                     cancelled = cancelled + (w.value->>1->>4)
                 FROM json_each(?1) AS w WHERE batch_id = w.value->>0
                 RETURNING batch_id, closed IS NOT NULL AND ended IS NULL AND pending + in_progress = 0 AS complete",
                moves,
            )
            .await?;
        let mut complete = Vec::new();
        for row in &rows {
            if row.flag("complete")? {
                complete.push(name(row)?);
            }
        }
        Ok(complete)
    }

    async fn end_batches(&mut self, batches: &[BatchId]) -> Result<Vec<i64>> {
        let over = self
            .fetch(
                concat!(
                    "UPDATE batch SET ended = ",
                    now!(),
                    " WHERE batch_id IN (SELECT value FROM json_each(?1)) AND ended IS NULL AND closed IS NOT NULL
                        AND pending + in_progress = 0 RETURNING batch_id, client_id, lane"
                ),
                batches,
            )
            .await?;
        let mut told = Vec::new();
        for row in &over {
            if let Some(lane) = row.big_if_any("lane")? {
                told.push((name(row)?, row.int("client_id")?, lane));
            }
        }
        self.execute(
            concat!(
                "INSERT INTO callback (task, service_id, client_id, event, revision, lane, chain, due, batch_id, created)
                 SELECT 0, 0, value->>1, 5, 0, value->>2, 0, ",
                now!(),
                ", value->>0, ",
                now!(),
                " FROM json_each(?1)"
            ),
            &told,
        )
        .await?;
        Ok(told.into_iter().map(|(_, _, lane)| lane).collect())
    }

    async fn purge_batches(&mut self, finished: Duration, any: Duration, limit: usize) -> Result<u64> {
        // Public names begin with the time: the oldest come first.
        let rows = sqlx::query(concat!(
            "DELETE FROM batch WHERE batch_id IN (
                 SELECT batch_id FROM (SELECT batch_id FROM batch INDEXED BY batch_by_end WHERE ended < ",
            now!(),
            " - ?1 ORDER BY ended LIMIT ?3)
                 UNION
                 SELECT batch_id FROM (SELECT batch_id, created FROM batch ORDER BY batch_id LIMIT ?3) WHERE created < ",
            now!(),
            " - ?2
             ) AND NOT EXISTS (SELECT 1 FROM callback b WHERE b.batch_id = batch.batch_id AND b.status = 0)
             RETURNING batch_id"
        ))
        .bind(in_millis(finished))
        .bind(in_millis(any))
        .bind(wide(limit))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        let gone: Vec<BatchId> = rows.iter().map(name).collect::<Result<_>>()?;
        self.execute(
            "DELETE FROM callback_attempt WHERE callback IN (
                 SELECT b.id FROM json_each(?1) AS w CROSS JOIN callback b ON b.batch_id = w.value
             )",
            &gone,
        )
        .await?;
        self.execute("DELETE FROM callback WHERE batch_id IN (SELECT value FROM json_each(?1))", &gone).await?;
        Ok(gone.len() as u64)
    }
}

impl BatchList for Sqlite {
    async fn find_batch(&self, id: BatchId) -> Result<Option<Batch>> {
        let row = sqlx::query(concat!("SELECT ", batch_columns!(), " FROM batch g WHERE g.batch_id = ?1"))
            .bind(id.to_string())
            .fetch_optional(&self.read)
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
        let rows = sqlx::query(if client.is_some() {
            concat!(
                "SELECT ",
                batch_columns!(),
                " FROM batch g INDEXED BY batch_by_client WHERE g.client_id = ?1 AND g.batch_id < ?2
                  ORDER BY g.batch_id DESC LIMIT ?3"
            )
        } else {
            concat!(
                "SELECT ",
                batch_columns!(),
                " FROM batch g WHERE ?1 IS NULL AND g.batch_id < ?2 ORDER BY g.batch_id DESC LIMIT ?3"
            )
        })
        .bind(client.map(|client| client.0))
        // No name comes after this.
        .bind(before.map_or_else(|| "g".to_owned(), |before| before.to_string()))
        .bind(wide(limit))
        .fetch_all(&self.read)
        .await
        .map_err(error)?;
        rows.iter().map(batch).collect()
    }
}
