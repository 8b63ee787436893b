//! Tasks that wait for others, and what tasks have in common, on PostgreSQL.

use relais_core::{ClientKey, Prerequisite, Status, Task, TaskId, TaskLink};

use crate::{
    dependencies::statements::{
        Dependencies, Edge, LinkRow, Linked, LockedPrerequisite, NewDependency, edge, ending, linked_task,
        locked_prerequisite, prerequisite,
    },
    postgres::session::{PgSession, column},
    postgres::{Postgres, error},
    row::{Columns, wide},
    session::Result,
    tasks::postgres::{locked_columns, task_columns},
    tasks::statements::{Locked, LockedTask, locked, locked_task, task},
};

impl Dependencies for PgSession {
    async fn lock_prerequisites(&mut self, tasks: &[TaskId], clients: &[ClientKey]) -> Result<Vec<LockedPrerequisite>> {
        let rows = sqlx::query(
            "SELECT id, task_id, client_id, status, followed, correlation_id, trace FROM relais.task
             WHERE task_id = ANY($1) AND client_id + 0 = ANY($2) ORDER BY id + 0 FOR NO KEY UPDATE",
        )
        .bind(names(tasks))
        .bind(column(clients, |client| client.0))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        rows.iter().map(locked_prerequisite).collect()
    }

    async fn follow(&mut self, tasks: &[TaskId]) -> Result<()> {
        sqlx::query("UPDATE relais.task SET followed = true, revision = revision + 1 WHERE task_id = ANY($1)")
            .bind(names(tasks))
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(())
    }

    async fn insert_dependencies(&mut self, new: &[NewDependency]) -> Result<()> {
        sqlx::query(
            "INSERT INTO relais.dependency (task, prerequisite, prerequisite_id, outcome)
             SELECT d.id, p.id, w.prerequisite, w.outcome
             FROM unnest($1::uuid[], $2::uuid[], $3::smallint[]) AS w (task, prerequisite, outcome)
             CROSS JOIN LATERAL (SELECT id FROM relais.task WHERE task_id = w.task OFFSET 0) d
             CROSS JOIN LATERAL (SELECT id FROM relais.task WHERE task_id = w.prerequisite OFFSET 0) p
             ORDER BY d.id, p.id",
        )
        .bind(column(new, |one| one.task.0))
        .bind(column(new, |one| one.prerequisite.0))
        .bind(column(new, |one| one.outcome.map(Status::code)))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn note_endings(&mut self, ended: &[(i64, Status)]) -> Result<()> {
        sqlx::query(
            "INSERT INTO relais.ending (task, status)
             SELECT * FROM unnest($1::bigint[], $2::smallint[]) AS w (task, status) ORDER BY task
             ON CONFLICT DO NOTHING",
        )
        .bind(column(ended, |(task, _)| *task))
        .bind(column(ended, |(_, status)| status.code()))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn hold_endings(&mut self, limit: usize) -> Result<Vec<(i64, Status)>> {
        let rows = sqlx::query("SELECT task, status FROM relais.ending ORDER BY task LIMIT $1 FOR UPDATE SKIP LOCKED")
            .bind(wide(limit))
            .fetch_all(&mut *self.tx)
            .await
            .map_err(error)?;
        rows.iter().map(ending).collect()
    }

    async fn open_edges(&mut self, prerequisites: &[i64], limit: usize) -> Result<Vec<Edge>> {
        let rows = sqlx::query(
            "SELECT d.task, d.prerequisite FROM unnest($1::bigint[]) AS w (prerequisite)
             CROSS JOIN LATERAL (
                 SELECT task, prerequisite FROM relais.dependency
                 WHERE prerequisite = w.prerequisite AND outcome IS NULL
                 ORDER BY prerequisite, task LIMIT $2
             ) d LIMIT $2",
        )
        .bind(prerequisites)
        .bind(wide(limit))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        rows.iter().map(edge).collect()
    }

    async fn lock_rows(&mut self, ids: &[i64]) -> Result<Locked<LockedTask>> {
        let rows = sqlx::query(concat!(
            "SELECT clock_timestamp() AS now, ",
            locked_columns!(),
            " FROM relais.task t
              CROSS JOIN LATERAL (SELECT * FROM relais.service WHERE id = t.service_id OFFSET 0) s
              WHERE t.id = ANY($1) ORDER BY t.id + 0 FOR NO KEY UPDATE OF t"
        ))
        .bind(ids)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        locked(&rows, locked_task)
    }

    async fn close_edges(&mut self, edges: &[(Edge, Status)]) -> Result<()> {
        sqlx::query(
            "UPDATE relais.dependency d SET outcome = w.status
             FROM ROWS FROM (unnest($1::bigint[], $2::bigint[], $3::smallint[]), generate_series(1, cardinality($1)))
                  AS w (task, prerequisite, status)
             WHERE d.task = ANY($1) AND d.task = w.task AND d.prerequisite = w.prerequisite AND d.outcome IS NULL",
        )
        .bind(column(edges, |(edge, _)| edge.task))
        .bind(column(edges, |(edge, _)| edge.prerequisite))
        .bind(column(edges, |(_, status)| status.code()))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn prerequisites_of(&mut self, tasks: &[i64]) -> Result<Vec<(i64, Prerequisite)>> {
        let rows = sqlx::query(
            "SELECT task, prerequisite_id, outcome FROM relais.dependency WHERE task = ANY($1)
             ORDER BY task, prerequisite",
        )
        .bind(tasks)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        rows.iter().map(|row| Ok((row.big("task")?, prerequisite(row)?))).collect()
    }

    async fn drop_endings(&mut self, tasks: &[i64]) -> Result<()> {
        sqlx::query("DELETE FROM relais.ending WHERE task = ANY($1)")
            .bind(tasks)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(())
    }

    async fn find_endings(&mut self, from: i64, limit: usize) -> Result<Option<i64>> {
        // One that is gone without an end counts as given up.
        sqlx::query_scalar(
            "WITH looked AS (
                 SELECT DISTINCT prerequisite FROM (
                     SELECT prerequisite FROM relais.dependency WHERE outcome IS NULL AND prerequisite >= $1
                     ORDER BY prerequisite, task LIMIT $2
                 ) d
             ), noted AS (
                 INSERT INTO relais.ending (task, status)
                 SELECT l.prerequisite, coalesce(t.status, 4) FROM looked l
                 LEFT JOIN LATERAL (SELECT status FROM relais.task WHERE id = l.prerequisite OFFSET 0) t ON true
                 WHERE t.status IS NULL OR t.status IN (2, 3, 4)
                 ON CONFLICT DO NOTHING
             )
             SELECT max(prerequisite) FROM looked",
        )
        .bind(from)
        .bind(wide(limit))
        .fetch_one(&mut *self.tx)
        .await
        .map_err(error)
    }
}

/// Tasks that have something in common: one index range for each client, no longer than what is looked at.
const BY_CORRELATION: &str = "
    SELECT t.id, t.service_id, t.status, t.submitted
    FROM (SELECT id FROM relais.client WHERE $2::integer IS NULL OR id = $2) c
    CROSS JOIN LATERAL (
        SELECT id, service_id, client_id, status, submitted FROM relais.task
        WHERE client_id = c.id AND correlation_id BETWEEN $1 AND $1 AND id < $3
        ORDER BY client_id DESC, correlation_id DESC, id DESC LIMIT $4
    ) t
    WHERE $2::integer IS NULL OR t.client_id = $2 ORDER BY t.id DESC LIMIT $4";

const BY_PARENT: &str = "
    SELECT t.id, t.service_id, t.status, t.submitted
    FROM (SELECT id FROM relais.client WHERE $2::integer IS NULL OR id = $2) c
    CROSS JOIN LATERAL (
        SELECT id, service_id, client_id, status, submitted FROM relais.task
        WHERE client_id = c.id AND parent_id BETWEEN $1 AND $1 AND id < $3
        ORDER BY client_id DESC, parent_id DESC, id DESC LIMIT $4
    ) t
    WHERE $2::integer IS NULL OR t.client_id = $2 ORDER BY t.id DESC LIMIT $4";

const BY_BATCH: &str = "
    SELECT t.id, t.service_id, t.status, t.submitted
    FROM (SELECT 1) c
    CROSS JOIN LATERAL (
        SELECT id, service_id, client_id, status, submitted FROM relais.task
        WHERE batch_id BETWEEN $1 AND $1 AND id < $3
        ORDER BY batch_id DESC, id DESC LIMIT $4
    ) t
    WHERE $2::integer IS NULL OR t.client_id = $2 ORDER BY t.id DESC LIMIT $4";

/// Those who wait for a task: the open end of one index range, then each by its row.
const AFTER: &str = "SELECT t.id, t.service_id, t.status, t.submitted
     FROM (SELECT id FROM relais.task WHERE task_id = $1 OFFSET 0) p
     CROSS JOIN LATERAL (
         SELECT task FROM relais.dependency WHERE prerequisite = p.id AND outcome IS NULL AND task < $3
         ORDER BY prerequisite DESC, task DESC LIMIT $4
     ) d
     CROSS JOIN LATERAL (
         SELECT id, service_id, client_id, status, submitted FROM relais.task WHERE id = d.task OFFSET 0
     ) t
     WHERE $2::integer IS NULL OR t.client_id = $2 ORDER BY t.id DESC LIMIT $4";

impl Linked for Postgres {
    async fn prerequisites(&self, task: i64) -> Result<Vec<Prerequisite>> {
        let rows = sqlx::query(
            "SELECT prerequisite_id, outcome FROM relais.dependency WHERE task = $1 ORDER BY task, prerequisite",
        )
        .bind(task)
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        rows.iter().map(prerequisite).collect()
    }

    async fn linked(
        &self,
        link: &TaskLink,
        client: Option<ClientKey>,
        before: i64,
        limit: usize,
    ) -> Result<Vec<LinkRow>> {
        let query = match link {
            TaskLink::Correlation(id) => sqlx::query(BY_CORRELATION).bind(id.as_str()),
            TaskLink::Parent(TaskId(id)) => sqlx::query(BY_PARENT).bind(*id),
            TaskLink::Batch(batch) => sqlx::query(BY_BATCH).bind(batch.0),
            TaskLink::After(TaskId(id)) => sqlx::query(AFTER).bind(*id),
        };
        let rows = query
            .bind(client.map(|client| client.0))
            .bind(before)
            .bind(wide(limit))
            .fetch_all(&mut *self.lend().await?)
            .await
            .map_err(error)?;
        rows.iter().map(linked_task).collect()
    }

    async fn tasks_by_row(&self, ids: &[i64]) -> Result<Vec<Task>> {
        let rows = sqlx::query(concat!(
            "SELECT ",
            task_columns!(),
            ", 'null'::text AS request, NULL::text AS response
              FROM relais.task t
              CROSS JOIN LATERAL (SELECT * FROM relais.service WHERE id = t.service_id OFFSET 0) s
              CROSS JOIN LATERAL (SELECT * FROM relais.client WHERE id = t.client_id OFFSET 0) c
              WHERE t.id = ANY($1) ORDER BY t.id + 0 DESC"
        ))
        .bind(ids)
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        rows.iter().map(task).collect()
    }
}

fn names(tasks: &[TaskId]) -> Vec<uuid::Uuid> {
    column(tasks, |task| task.0)
}
