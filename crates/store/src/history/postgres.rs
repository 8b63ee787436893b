//! Attempts that are over, and unique keys, on PostgreSQL.

use relais_core::{Attempt, NewTask, TaskId};

use crate::{
    history::statements::{FreedKey, History, HistoryReader, attempt, failure_of, past_host, unique_key},
    postgres::session::{PgSession, column},
    postgres::{Postgres, error, to_sql},
    row::{Columns as _, signed, wide},
    session::Result,
    submit::statements::{InsertedTask, KnownKey},
};

impl HistoryReader for Postgres {
    async fn list_attempts(&self, id: i64) -> Result<Vec<Attempt>> {
        let rows = sqlx::query(
            "SELECT number, outcome, started, ended, worker_host, error_message, error_kind, error_trace,
                    response::text AS response
             FROM relais.attempt WHERE task = $1 ORDER BY task, number",
        )
        .bind(id)
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        rows.iter().map(attempt).collect()
    }
}

impl History for PgSession {
    async fn insert_attempts(&mut self, attempts: &[(i64, Attempt)]) -> Result<()> {
        let (messages, (kinds, traces)): (Vec<_>, (Vec<_>, Vec<_>)) =
            attempts.iter().map(|(_, attempt)| failure_of(attempt)).unzip();
        sqlx::query(
            "INSERT INTO relais.attempt (task, number, outcome, started, ended, worker_host, error_message, error_kind, error_trace)
             SELECT * FROM unnest($1::bigint[], $2::integer[], $3::smallint[], $4::timestamptz[], $5::timestamptz[], $6::text[],
                                  $7::text[], $8::text[], $9::text[])
             ON CONFLICT (task, number) DO UPDATE SET outcome = excluded.outcome, ended = excluded.ended,
                 worker_host = excluded.worker_host, error_message = excluded.error_message,
                 error_kind = excluded.error_kind, error_trace = excluded.error_trace",
        )
        .bind(column(attempts, |(id, _)| *id))
        .bind(column(attempts, |(_, attempt)| signed(attempt.number)))
        .bind(column(attempts, |(_, attempt)| attempt.outcome.code()))
        .bind(column(attempts, |(_, attempt)| attempt.started.map(to_sql)))
        .bind(column(attempts, |(_, attempt)| attempt.ended.map(to_sql)))
        .bind(column(attempts, |(_, attempt)| attempt.worker_host.as_deref()))
        .bind(messages)
        .bind(kinds)
        .bind(traces)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn keep_last_attempts(&mut self, ids: &[i64]) -> Result<()> {
        sqlx::query(
            "INSERT INTO relais.attempt (task, number, outcome, started, ended, worker_host, error_message, error_kind, error_trace,
                                         response)
             SELECT id, attempt, status - 1, started, ended, worker_host, error_message, error_kind, error_trace, response
             FROM relais.task WHERE id = ANY($1) AND status IN (2, 3, 4) AND attempt > 0 AND started IS NOT NULL
             ON CONFLICT (task, number) DO UPDATE SET outcome = excluded.outcome, ended = excluded.ended,
                 worker_host = excluded.worker_host, error_message = excluded.error_message,
                 error_kind = excluded.error_kind, error_trace = excluded.error_trace, response = excluded.response",
        )
        .bind(ids)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        // What is still to be told of this end is what it is now.
        sqlx::query(
            "UPDATE relais.callback b SET attempt = t.attempt, started = t.started, progress = t.progress, happened = t.ended
             FROM relais.task t
             WHERE t.id = ANY($1) AND t.status IN (2, 3, 4) AND b.task = ANY($1) AND b.task = t.id AND b.event >= 2
                   AND b.attempt IS NULL",
        )
        .bind(ids)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn note_revivals(&mut self, ids: &[i64]) -> Result<()> {
        sqlx::query(
            "UPDATE relais.task SET revived = c.now, rank = rank - CASE WHEN revived IS NULL AND scheduled > c.now
                 THEN (extract(epoch FROM scheduled - c.now) * 1000)::bigint ELSE 0 END
             FROM (SELECT clock_timestamp() AS now OFFSET 0) c WHERE id = ANY($1)",
        )
        .bind(ids)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn past_hosts(&mut self, ids: &[i64]) -> Result<Vec<(i64, String, i16)>> {
        let rows = sqlx::query(
            "SELECT DISTINCT task, worker_host, outcome FROM relais.attempt
             WHERE task = ANY($1) AND outcome IN (2, 5) AND worker_host IS NOT NULL",
        )
        .bind(ids)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        rows.iter().map(past_host).collect()
    }

    async fn known_unique(&mut self, tasks: &[NewTask]) -> Result<Vec<KnownKey>> {
        let keyed: Vec<_> = tasks.iter().filter_map(|task| Some((task, task.terms.unique.as_ref()?))).collect();
        if keyed.is_empty() {
            return Ok(Vec::new());
        }
        let rows = sqlx::query(
            "SELECT k.* FROM unnest($1::integer[], $2::integer[], $3::text[]) AS w (service_id, client_id, key)
             CROSS JOIN LATERAL (
                 SELECT * FROM relais.unique_key u
                 WHERE u.service_id = w.service_id AND u.client_id = w.client_id AND u.key = w.key
                   AND (u.until IS NULL OR u.until > clock_timestamp()) OFFSET 0
             ) k",
        )
        .bind(column(&keyed, |(task, _)| task.service.0))
        .bind(column(&keyed, |(task, _)| task.client.0))
        .bind(column(&keyed, |(_, unique)| unique.key.as_str()))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        rows.iter().map(unique_key).collect()
    }

    async fn insert_unique(&mut self, tasks: &[InsertedTask]) -> Result<()> {
        let keyed: Vec<_> =
            tasks.iter().filter_map(|inserted| Some((inserted, inserted.task.terms.unique.as_ref()?))).collect();
        if keyed.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "INSERT INTO relais.unique_key (service_id, client_id, key, task_id, position, until)
             SELECT w.service_id, w.client_id, w.key, w.task_id, w.position,
                    clock_timestamp() + make_interval(secs => w.lasting)
             FROM unnest($1::integer[], $2::integer[], $3::text[], $4::uuid[], $5::bigint[], $6::double precision[])
                  AS w (service_id, client_id, key, task_id, position, lasting)
             ORDER BY w.service_id, w.client_id, w.key
             ON CONFLICT (service_id, client_id, key) DO UPDATE SET task_id = excluded.task_id,
                 position = excluded.position, until = excluded.until",
        )
        .bind(column(&keyed, |(inserted, _)| inserted.task.service.0))
        .bind(column(&keyed, |(inserted, _)| inserted.task.client.0))
        .bind(column(&keyed, |(_, unique)| unique.key.as_str()))
        .bind(column(&keyed, |(inserted, _)| inserted.task.task_id.0))
        .bind(column(&keyed, |(inserted, _)| wide(inserted.position)))
        .bind(column(&keyed, |(_, unique)| unique.lasting.map(|lasting| lasting.as_secs_f64())))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn retake_unique(&mut self, keys: &[FreedKey]) -> Result<()> {
        sqlx::query(
            "INSERT INTO relais.unique_key AS u (service_id, client_id, key, task_id, position)
             SELECT DISTINCT ON (w.service_id, w.client_id, w.key) w.service_id, w.client_id, w.key, w.task_id, 1
             FROM unnest($1::integer[], $2::integer[], $3::text[], $4::uuid[]) AS w (service_id, client_id, key, task_id)
             ORDER BY w.service_id, w.client_id, w.key
             ON CONFLICT (service_id, client_id, key) DO UPDATE SET task_id = excluded.task_id, position = 1, until = NULL
                 WHERE u.until <= clock_timestamp()",
        )
        .bind(column(keys, |key| key.service.0))
        .bind(column(keys, |key| key.client.0))
        .bind(column(keys, |key| key.key.as_str()))
        .bind(column(keys, |key| key.task_id.0))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn key_taken(&mut self, keys: &[FreedKey]) -> Result<Vec<TaskId>> {
        let rows = sqlx::query(
            "SELECT w.task_id FROM unnest($1::integer[], $2::integer[], $3::text[], $4::uuid[])
                 AS w (service_id, client_id, key, task_id)
             CROSS JOIN LATERAL (
                 SELECT task_id, until FROM relais.unique_key u
                 WHERE u.service_id = w.service_id AND u.client_id = w.client_id AND u.key = w.key OFFSET 0
             ) k
             WHERE k.task_id <> w.task_id AND (k.until IS NULL OR k.until > clock_timestamp() AND EXISTS (
                 SELECT FROM relais.task t WHERE t.task_id = k.task_id AND t.status NOT IN (2, 3, 4)))",
        )
        .bind(column(keys, |key| key.service.0))
        .bind(column(keys, |key| key.client.0))
        .bind(column(keys, |key| key.key.as_str()))
        .bind(column(keys, |key| key.task_id.0))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        rows.iter().map(|row| row.task_id("task_id")).collect()
    }

    async fn free_unique(&mut self, keys: &[FreedKey]) -> Result<()> {
        sqlx::query(
            "DELETE FROM relais.unique_key WHERE ctid = ANY(ARRAY(
                 SELECT k.ctid FROM unnest($1::integer[], $2::integer[], $3::text[], $4::uuid[])
                     AS w (service_id, client_id, key, task_id)
                 CROSS JOIN LATERAL (
                     SELECT ctid FROM relais.unique_key u
                     WHERE u.service_id = w.service_id AND u.client_id = w.client_id AND u.key = w.key
                       AND u.task_id = w.task_id AND u.until IS NULL FOR UPDATE
                 ) k
             ))",
        )
        .bind(column(keys, |freed| freed.service.0))
        .bind(column(keys, |freed| freed.client.0))
        .bind(column(keys, |freed| freed.key.as_str()))
        .bind(column(keys, |freed| freed.task_id.0))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn forget_unique(&mut self, limit: usize) -> Result<u64> {
        let done = sqlx::query(
            "DELETE FROM relais.unique_key WHERE ctid = ANY(ARRAY(
                 SELECT ctid FROM relais.unique_key WHERE until <= statement_timestamp() ORDER BY until LIMIT $1
                 FOR UPDATE SKIP LOCKED
             ))",
        )
        .bind(wide(limit))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(done.rows_affected())
    }
}
