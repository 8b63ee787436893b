//! Transactional submissions on PostgreSQL.

use std::{collections::HashSet, time::Duration};

use relais_core::TaskId;

use crate::{
    postgres::error,
    postgres::session::{PgSession, column},
    row::wide,
    session::Result,
    submissions::statements::{Locked, SubmissionRows, stored_submission},
};

impl SubmissionRows for PgSession {
    async fn lock_submissions(&mut self, limit: usize) -> Result<Vec<Locked>> {
        let rows = sqlx::query(
            "SELECT id, task_id, service, client, request::text AS request FROM relais.submission
             WHERE refused IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED",
        )
        .bind(wide(limit))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        rows.iter().map(stored_submission).collect()
    }

    async fn known_tasks(&mut self, names: &[TaskId]) -> Result<HashSet<TaskId>> {
        let names: Vec<uuid::Uuid> = column(names, |name| name.0);
        let statement = sqlx::query_scalar("SELECT task_id FROM relais.task WHERE task_id = ANY($1)").bind(names);
        let known: Vec<uuid::Uuid> = statement.fetch_all(&mut *self.tx).await.map_err(error)?;
        Ok(known.into_iter().map(TaskId).collect())
    }

    async fn delete_submissions(&mut self, ids: &[i64]) -> Result<()> {
        let statement = sqlx::query("DELETE FROM relais.submission WHERE id = ANY($1)").bind(ids);
        statement.execute(&mut *self.tx).await.map(drop).map_err(error)
    }

    async fn refuse_submissions(&mut self, refused: &[(i64, String)]) -> Result<()> {
        sqlx::query(
            "UPDATE relais.submission i SET refused = w.why
             FROM ROWS FROM (unnest($1::bigint[], $2::text[]), generate_series(1, cardinality($1))) AS w (id, why)
             WHERE i.id = ANY($1) AND i.id = w.id",
        )
        .bind(column(refused, |(id, _)| *id))
        .bind(column(refused, |(_, why)| why.as_str()))
        .execute(&mut *self.tx)
        .await
        .map(drop)
        .map_err(error)
    }

    async fn purge_submissions(&mut self, older_than: Duration, limit: usize) -> Result<u64> {
        let done = sqlx::query(
            "DELETE FROM relais.submission WHERE id = ANY(ARRAY(
                 SELECT id FROM relais.submission WHERE refused IS NOT NULL
                     AND created < clock_timestamp() - make_interval(secs => $1) LIMIT $2
             ))",
        )
        .bind(older_than.as_secs_f64())
        .bind(wide(limit))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(done.rows_affected())
    }
}
