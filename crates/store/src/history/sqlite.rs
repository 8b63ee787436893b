//! Attempts that are over, and unique keys, on SQLite.

use relais_core::{Attempt, NewTask, TaskId, Timestamp};

use crate::{
    history::statements::{FreedKey, History, HistoryReader, attempt, failure_of, past_host, unique_key},
    row::{Columns as _, in_millis, wide},
    session::Result,
    sqlite::session::SqliteSession,
    sqlite::{Sqlite, error},
    submit::statements::{InsertedTask, KnownKey},
};

impl HistoryReader for Sqlite {
    async fn list_attempts(&self, id: i64) -> Result<Vec<Attempt>> {
        let rows = sqlx::query("SELECT * FROM attempt WHERE task = ?1 ORDER BY number")
            .bind(id)
            .fetch_all(&self.read)
            .await
            .map_err(error)?;
        rows.iter().map(attempt).collect()
    }
}

impl History for SqliteSession {
    async fn insert_attempts(&mut self, attempts: &[(i64, Attempt)]) -> Result<()> {
        let row = |(id, attempt): &(i64, Attempt)| {
            let (message, (kind, trace)) = failure_of(attempt);
            let moments = (attempt.started.map(Timestamp::as_millis), attempt.ended.map(Timestamp::as_millis));
            let worker_host = attempt.worker_host.clone();
            (*id, attempt.number, attempt.outcome.code(), moments.0, moments.1, worker_host, message, kind, trace)
        };
        self.execute(
            "INSERT INTO attempt (task, number, outcome, started, ended, worker_host, error_message, error_kind, error_trace)
             SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7, value->>8
             FROM json_each(?1) WHERE true
             ON CONFLICT (task, number) DO UPDATE SET outcome = excluded.outcome, ended = excluded.ended,
                 worker_host = excluded.worker_host, error_message = excluded.error_message,
                 error_kind = excluded.error_kind, error_trace = excluded.error_trace",
            &attempts.iter().map(row).collect::<Vec<_>>(),
        )
        .await
    }

    async fn keep_last_attempts(&mut self, ids: &[i64]) -> Result<()> {
        self.execute(
            "INSERT INTO attempt (task, number, outcome, started, ended, worker_host, error_message, error_kind, error_trace, response)
             SELECT t.id, t.attempt, t.status - 1, t.started, t.ended, t.worker_host, t.error_message, t.error_kind, t.error_trace,
                    t.response
             FROM json_each(?1) AS w CROSS JOIN task t ON t.id = w.value
             WHERE t.status IN (2, 3, 4) AND t.attempt > 0 AND t.started IS NOT NULL
             ON CONFLICT (task, number) DO UPDATE SET outcome = excluded.outcome, ended = excluded.ended,
                 worker_host = excluded.worker_host, error_message = excluded.error_message,
                 error_kind = excluded.error_kind, error_trace = excluded.error_trace, response = excluded.response",
            ids,
        )
        .await?;
        // What is still to be told of this end is what it is now.
        self.execute(
            "UPDATE callback SET attempt = t.attempt, started = t.started, progress = t.progress, happened = t.ended
             FROM (SELECT id, attempt, started, progress, ended FROM task
                   WHERE id IN (SELECT value FROM json_each(?1)) AND status IN (2, 3, 4)) AS t
             WHERE callback.task = t.id AND callback.event >= 2 AND callback.attempt IS NULL",
            ids,
        )
        .await
    }

    async fn note_revivals(&mut self, ids: &[i64]) -> Result<()> {
        self.execute(
            concat!(
                "UPDATE task SET revived = c.now,
                     rank = rank - CASE WHEN revived IS NULL AND scheduled > c.now THEN scheduled - c.now ELSE 0 END
                 FROM (SELECT ",
                now!(),
                " AS now) AS c WHERE id IN (SELECT value FROM json_each(?1))"
            ),
            ids,
        )
        .await
    }

    async fn past_hosts(&mut self, ids: &[i64]) -> Result<Vec<(i64, String, i16)>> {
        let rows = self
            .fetch(
                "SELECT DISTINCT a.task, a.worker_host, a.outcome FROM json_each(?1) AS w
                 CROSS JOIN attempt a ON a.task = w.value WHERE a.outcome IN (2, 5) AND a.worker_host IS NOT NULL",
                ids,
            )
            .await?;
        rows.iter().map(past_host).collect()
    }

    async fn known_unique(&mut self, tasks: &[NewTask]) -> Result<Vec<KnownKey>> {
        let keyed: Vec<_> = tasks
            .iter()
            .filter_map(|task| Some((task.service.0, task.client.0, &task.terms.unique.as_ref()?.key)))
            .collect();
        if keyed.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self
            .fetch(
                concat!(
                    "SELECT k.* FROM json_each(?1) AS w CROSS JOIN unique_key k
                         ON k.service_id = w.value->>0 AND k.client_id = w.value->>1 AND k.key = w.value->>2
                     WHERE k.until IS NULL OR k.until > ",
                    now!()
                ),
                &keyed,
            )
            .await?;
        rows.iter().map(unique_key).collect()
    }

    async fn insert_unique(&mut self, tasks: &[InsertedTask]) -> Result<()> {
        let keyed: Vec<_> = tasks
            .iter()
            .filter_map(|InsertedTask { task, position, .. }| {
                let unique = task.terms.unique.as_ref()?;
                let lasting = unique.lasting.map(in_millis);
                Some((task.service.0, task.client.0, &unique.key, task.task_id.to_string(), wide(*position), lasting))
            })
            .collect();
        if keyed.is_empty() {
            return Ok(());
        }
        self.execute(
            concat!(
                "INSERT INTO unique_key (service_id, client_id, key, task_id, position, until)
                 SELECT value->>0, value->>1, value->>2, value->>3, value->>4, ",
                now!(),
                " + (value->>5) FROM json_each(?1) WHERE true
                 ON CONFLICT (service_id, client_id, key) DO UPDATE SET task_id = excluded.task_id,
                     position = excluded.position, until = excluded.until"
            ),
            &keyed,
        )
        .await
    }

    async fn retake_unique(&mut self, keys: &[FreedKey]) -> Result<()> {
        self.execute(
            concat!(
                "INSERT INTO unique_key AS u (service_id, client_id, key, task_id, position)
                 SELECT value->>0, value->>1, value->>2, value->>3, 1 FROM json_each(?1) WHERE true
                 ON CONFLICT (service_id, client_id, key) DO UPDATE SET task_id = excluded.task_id, position = 1, until = NULL
                     WHERE u.until <= ",
                now!()
            ),
            &named(keys),
        )
        .await
    }

    async fn key_taken(&mut self, keys: &[FreedKey]) -> Result<Vec<TaskId>> {
        let rows = self
            .fetch(
                concat!(
                    "SELECT w.value->>3 AS task_id FROM json_each(?1) AS w CROSS JOIN unique_key k
                         ON k.service_id = w.value->>0 AND k.client_id = w.value->>1 AND k.key = w.value->>2
                     WHERE k.task_id <> w.value->>3 AND (k.until IS NULL OR k.until > ",
                    now!(),
                    " AND EXISTS (SELECT 1 FROM task t WHERE t.task_id = k.task_id AND t.status NOT IN (2, 3, 4)))"
                ),
                &named(keys),
            )
            .await?;
        rows.iter().map(|row| row.task_id("task_id")).collect()
    }

    async fn free_unique(&mut self, keys: &[FreedKey]) -> Result<()> {
        self.execute(
            "DELETE FROM unique_key WHERE until IS NULL AND (service_id, client_id, key, task_id) IN (
                 SELECT value->>0, value->>1, value->>2, value->>3 FROM json_each(?1)
             )",
            &named(keys),
        )
        .await
    }

    async fn forget_unique(&mut self, limit: usize) -> Result<u64> {
        let done = sqlx::query(concat!(
            "DELETE FROM unique_key WHERE (service_id, client_id, key) IN (
                 SELECT service_id, client_id, key FROM unique_key WHERE until <= ",
            now!(),
            " ORDER BY until LIMIT ?1)"
        ))
        .bind(wide(limit))
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(done.rows_affected())
    }
}

fn named(keys: &[FreedKey]) -> Vec<(i32, i32, &str, String)> {
    keys.iter().map(|key| (key.service.0, key.client.0, key.key.as_str(), key.task_id.to_string())).collect()
}
