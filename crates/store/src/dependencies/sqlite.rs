//! Tasks that wait for others, and what tasks have in common, on SQLite.

use relais_core::{ClientKey, Prerequisite, Status, Task, TaskId, TaskLink};

use crate::{
    dependencies::statements::{
        Dependencies, Edge, LinkRow, Linked, LockedPrerequisite, NewDependency, edge, ending, linked_task,
        locked_prerequisite, prerequisite,
    },
    row::{Columns, wide},
    session::Result,
    sqlite::session::SqliteSession,
    sqlite::values::array,
    sqlite::{Sqlite, error},
    tasks::sqlite::{locked_columns, task_columns},
    tasks::statements::{Locked, LockedTask, locked, locked_task, task},
};

pub(crate) const LOCK_ROWS: &str = concat!(
    "SELECT ",
    now!(),
    " AS now, ",
    locked_columns!(),
    " FROM json_each(?1) AS w CROSS JOIN task t ON t.id = w.value CROSS JOIN service s ON s.id = t.service_id"
);

pub(crate) const OPEN_EDGES: &str = "
    SELECT d.task, d.prerequisite FROM json_each(?1) AS w
    CROSS JOIN dependency d INDEXED BY dependency_open ON d.prerequisite = w.value AND d.outcome IS NULL LIMIT ?2";

pub(crate) const OPEN_PREREQUISITES: &str = "
    SELECT prerequisite FROM dependency INDEXED BY dependency_open
    WHERE outcome IS NULL AND prerequisite >= ?1 ORDER BY prerequisite LIMIT ?2";

impl Dependencies for SqliteSession {
    async fn lock_prerequisites(&mut self, tasks: &[TaskId], clients: &[ClientKey]) -> Result<Vec<LockedPrerequisite>> {
        let rows = self
            .fetch(
                "SELECT t.id, t.task_id, t.client_id, t.status, t.followed, t.correlation_id, t.trace
                 FROM json_each(?1) AS w CROSS JOIN task t ON t.task_id = w.value",
                tasks,
            )
            .await?;
        let found: Vec<LockedPrerequisite> = rows.iter().map(locked_prerequisite).collect::<Result<_>>()?;
        Ok(found.into_iter().filter(|one| clients.contains(&one.client)).collect())
    }

    async fn follow(&mut self, tasks: &[TaskId]) -> Result<()> {
        self.execute(
            "UPDATE task SET followed = 1, revision = revision + 1 WHERE task_id IN (SELECT value FROM json_each(?1))",
            tasks,
        )
        .await
    }

    async fn insert_dependencies(&mut self, new: &[NewDependency]) -> Result<()> {
        let rows: Vec<_> = new.iter().map(|one| (one.task, one.prerequisite, one.outcome.map(Status::code))).collect();
        self.execute(
            "INSERT INTO dependency (task, prerequisite, prerequisite_id, outcome)
             SELECT (SELECT id FROM task WHERE task_id = value->>0), (SELECT id FROM task WHERE task_id = value->>1),
                    value->>1, value->>2
             FROM json_each(?1)",
            &rows,
        )
        .await
    }

    async fn note_endings(&mut self, ended: &[(i64, Status)]) -> Result<()> {
        let rows: Vec<_> = ended.iter().map(|(task, status)| (task, status.code())).collect();
        self.execute(
            "INSERT INTO ending (task, status) SELECT value->>0, value->>1 FROM json_each(?1) WHERE true
             ON CONFLICT DO NOTHING",
            &rows,
        )
        .await
    }

    async fn hold_endings(&mut self, limit: usize) -> Result<Vec<(i64, Status)>> {
        let rows = sqlx::query("SELECT task, status FROM ending ORDER BY task LIMIT ?1")
            .bind(wide(limit))
            .fetch_all(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        rows.iter().map(ending).collect()
    }

    async fn open_edges(&mut self, prerequisites: &[i64], limit: usize) -> Result<Vec<Edge>> {
        let rows = sqlx::query(OPEN_EDGES)
            .bind(array(prerequisites)?)
            .bind(wide(limit))
            .fetch_all(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        rows.iter().map(edge).collect()
    }

    async fn lock_rows(&mut self, ids: &[i64]) -> Result<Locked<LockedTask>> {
        locked(&self.fetch(LOCK_ROWS, ids).await?, locked_task)
    }

    async fn close_edges(&mut self, edges: &[(Edge, Status)]) -> Result<()> {
        let rows: Vec<_> = edges.iter().map(|(edge, status)| (edge.task, edge.prerequisite, status.code())).collect();
        self.execute(
            "UPDATE dependency SET outcome = w.value->>2 FROM json_each(?1) AS w
             WHERE task = w.value->>0 AND prerequisite = w.value->>1 AND outcome IS NULL",
            &rows,
        )
        .await
    }

    async fn prerequisites_of(&mut self, tasks: &[i64]) -> Result<Vec<(i64, Prerequisite)>> {
        let rows = self
            .fetch(
                "SELECT d.task, d.prerequisite_id, d.outcome FROM json_each(?1) AS w
                 CROSS JOIN dependency d ON d.task = w.value ORDER BY d.task, d.prerequisite",
                tasks,
            )
            .await?;
        rows.iter().map(|row| Ok((row.big("task")?, prerequisite(row)?))).collect()
    }

    async fn drop_endings(&mut self, tasks: &[i64]) -> Result<()> {
        self.execute("DELETE FROM ending WHERE task IN (SELECT value FROM json_each(?1))", tasks).await
    }

    async fn find_endings(&mut self, from: i64, limit: usize) -> Result<Option<i64>> {
        let looked: Vec<i64> = sqlx::query_scalar(OPEN_PREREQUISITES)
            .bind(from)
            .bind(wide(limit))
            .fetch_all(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        // One that is gone without an end counts as given up.
        self.execute(
            "INSERT INTO ending (task, status)
             SELECT w.value, coalesce(t.status, 4) FROM json_each(?1) AS w LEFT JOIN task t ON t.id = w.value
             WHERE t.status IS NULL OR t.status IN (2, 3, 4) ON CONFLICT DO NOTHING",
            &looked,
        )
        .await?;
        Ok(looked.last().copied())
    }
}

/// Tasks that have something in common: one index range for each client, no longer than what is looked at.
pub(crate) const BY_CORRELATION: &str = "
    SELECT t.id, t.service_id, t.status, t.submitted
    FROM (SELECT id FROM client WHERE ?2 IS NULL OR id = ?2) AS wanted CROSS JOIN task t ON t.id IN (
        SELECT id FROM task INDEXED BY task_by_correlation
        WHERE client_id = wanted.id AND correlation_id = ?1 AND id < ?3
        ORDER BY id DESC LIMIT ?4
    ) WHERE ?2 IS NULL OR t.client_id = ?2 ORDER BY t.id DESC LIMIT ?4";

pub(crate) const BY_PARENT: &str = "
    SELECT t.id, t.service_id, t.status, t.submitted
    FROM (SELECT id FROM client WHERE ?2 IS NULL OR id = ?2) AS wanted CROSS JOIN task t ON t.id IN (
        SELECT id FROM task INDEXED BY task_by_parent
        WHERE client_id = wanted.id AND parent_id = ?1 AND id < ?3
        ORDER BY id DESC LIMIT ?4
    ) WHERE ?2 IS NULL OR t.client_id = ?2 ORDER BY t.id DESC LIMIT ?4";

pub(crate) const BY_BATCH: &str = "
    SELECT t.id, t.service_id, t.status, t.submitted
    FROM (SELECT 1) AS wanted CROSS JOIN task t ON t.id IN (
        SELECT id FROM task INDEXED BY task_by_batch
        WHERE batch_id = ?1 AND id < ?3
        ORDER BY id DESC LIMIT ?4
    ) WHERE ?2 IS NULL OR t.client_id = ?2 ORDER BY t.id DESC LIMIT ?4";

/// Those who wait for a task.
pub(crate) const AFTER: &str = "SELECT t.id, t.service_id, t.status, t.submitted FROM task t WHERE t.id IN (
         SELECT task FROM dependency INDEXED BY dependency_open
         WHERE prerequisite = (SELECT id FROM task WHERE task_id = ?1) AND outcome IS NULL AND task < ?3
         ORDER BY task DESC LIMIT ?4
     ) AND (?2 IS NULL OR t.client_id = ?2) ORDER BY t.id DESC LIMIT ?4";

impl Linked for Sqlite {
    async fn prerequisites(&self, task: i64) -> Result<Vec<Prerequisite>> {
        let rows = sqlx::query("SELECT prerequisite_id, outcome FROM dependency WHERE task = ?1 ORDER BY prerequisite")
            .bind(task)
            .fetch_all(&self.read)
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
            TaskLink::Correlation(id) => sqlx::query(BY_CORRELATION).bind(id.clone()),
            TaskLink::Parent(id) => sqlx::query(BY_PARENT).bind(id.to_string()),
            TaskLink::Batch(id) => sqlx::query(BY_BATCH).bind(id.to_string()),
            TaskLink::After(id) => sqlx::query(AFTER).bind(id.to_string()),
        };
        let rows = query
            .bind(client.map(|client| client.0))
            .bind(before)
            .bind(wide(limit))
            .fetch_all(&self.read)
            .await
            .map_err(error)?;
        rows.iter().map(linked_task).collect()
    }

    async fn tasks_by_row(&self, ids: &[i64]) -> Result<Vec<Task>> {
        let rows = sqlx::query(concat!(
            "SELECT ",
            task_columns!(),
            ", 'null' AS request, NULL AS response
              FROM json_each(?1) AS w CROSS JOIN task t ON t.id = w.value
              CROSS JOIN service s ON s.id = t.service_id CROSS JOIN client c ON c.id = t.client_id ORDER BY t.id DESC"
        ))
        .bind(array(ids)?)
        .fetch_all(&self.read)
        .await
        .map_err(error)?;
        rows.iter().map(task).collect()
    }
}
