//! Transactional submissions on SQLite.

use std::{collections::HashSet, time::Duration};

use relais_core::TaskId;

use crate::{
    row::{Columns as _, in_millis, wide},
    session::Result,
    sqlite::session::SqliteSession,
    submissions::statements::{Locked, SubmissionRows, stored_submission},
};

impl SubmissionRows for SqliteSession {
    async fn lock_submissions(&mut self, limit: usize) -> Result<Vec<Locked>> {
        let rows = sqlx::query("SELECT * FROM submission WHERE refused IS NULL ORDER BY id LIMIT ?1")
            .bind(wide(limit))
            .fetch_all(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        rows.iter().map(stored_submission).collect()
    }

    async fn known_tasks(&mut self, names: &[TaskId]) -> Result<HashSet<TaskId>> {
        let rows = self
            .fetch("SELECT t.task_id FROM json_each(?1) AS w CROSS JOIN task t ON t.task_id = w.value", names)
            .await?;
        rows.iter().map(|row| row.task_id("task_id")).collect()
    }

    async fn delete_submissions(&mut self, ids: &[i64]) -> Result<()> {
        self.execute("DELETE FROM submission WHERE id IN (SELECT value FROM json_each(?1))", ids).await
    }

    async fn refuse_submissions(&mut self, refused: &[(i64, String)]) -> Result<()> {
        self.execute(
            "UPDATE submission SET refused = w.why FROM (SELECT value->>0 AS id, value->>1 AS why FROM json_each(?1)) AS w
             WHERE submission.id = w.id",
            refused,
        )
        .await
    }

    async fn purge_submissions(&mut self, older_than: Duration, limit: usize) -> Result<u64> {
        let done = sqlx::query(concat!(
            "DELETE FROM submission WHERE id IN (
                 SELECT id FROM submission WHERE refused IS NOT NULL AND created < ",
            now!(),
            " - ?1 LIMIT ?2)"
        ))
        .bind(in_millis(older_than))
        .bind(wide(limit))
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(done.rows_affected())
    }
}
