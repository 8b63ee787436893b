//! Tasks on SQLite.

use std::time::Duration;

use relais_core::{Json, Page, Status, Task, TaskFilter, TaskId, Timestamp};
use sqlx::SqliteConnection;

use crate::{
    row::{Columns as _, unsigned, wide},
    session::Result,
    sqlite::session::SqliteSession,
    sqlite::values::{Statement, Values, array},
    sqlite::{Sqlite, error},
    tasks::statements::{Locked, LockedTask, TaskReader, TaskRows, WrittenTask, found_task, locked, locked_task, task},
};

/// The columns that [`task`] reads, except `request` and `response`. The service is joined as `s`, the client as `c`.
macro_rules! task_columns {
    () => {
        "t.id, t.task_id, t.seq, t.service_id, t.client_id, s.name AS service, c.client_id AS client, t.submitted, \
         t.scheduled, t.priority, t.correlation_id, t.error_message, t.error_kind, t.error_trace, t.callback, \
         CASE WHEN t.callback IS NOT NULL AND t.status IN (2, 3, 4) THEN (SELECT n.status FROM callback n \
         WHERE n.task = t.id AND n.event >= 2 ORDER BY n.id DESC LIMIT 1) END AS notification, \
         t.status, t.attempt, t.losses, t.failures, t.revision, t.progress, t.worker_host, t.started, t.ended, \
         t.lease_until, t.due, t.expires, t.deadline, coalesce(t.timeout_ms, s.timeout_ms) AS timeout_ms, \
         t.parent_id, t.batch_id, t.trace, t.after_when, t.followed"
    };
}
pub(crate) use task_columns;

/// The columns that [`locked_task`] reads. The service is joined as `s`. The column `retry` has the policies of the
/// task and of its service, if both have one ([`crate::history::statements::policy_of_task`]).
macro_rules! locked_columns {
    () => {
        "t.id, t.task_id, t.service_id, t.client_id, t.seq, s.delivery_limit, s.handed, t.callback, t.submitted, \
         coalesce(max(t.scheduled, t.revived), t.scheduled, t.revived) AS scheduled, t.correlation_id, t.unique_key, \
         CASE WHEN t.retry IS NULL OR s.retry IS NULL THEN coalesce(t.retry, s.retry) \
         ELSE '[' || t.retry || ',' || s.retry || ']' END AS retry, \
         t.status, t.attempt, t.losses, t.failures, t.revision, t.progress, t.worker_host, t.started, t.ended, \
         t.lease_until, t.due, t.expires, t.deadline, coalesce(t.timeout_ms, s.timeout_ms) AS timeout_ms, \
         t.parent_id, t.batch_id, t.trace, t.after_when, t.followed"
    };
}
pub(crate) use locked_columns;

/// A task, with its position if it is pending. The position tree is added up in the same statement. Each level is a sum
/// of its own: a short range of the primary key ([`relais_core::position`]).
pub(crate) const FIND_TASK: &str = concat!(
    "SELECT ",
    task_columns!(),
    ", t.request AS request, t.response AS response,
       CASE WHEN t.status = 0 THEN CAST(((t.seq >> 4) << 4) + 1
           - (SELECT coalesce(sum(d.n), 0) FROM position_tree d
              WHERE d.service_id = t.service_id AND d.level = 0
                AND d.slot >= (t.seq >> 8) << 4 AND d.slot < t.seq >> 4)
           - (SELECT coalesce(sum(d.n), 0) FROM position_tree d
              WHERE d.service_id = t.service_id AND d.level = 1
                AND d.slot >= (t.seq >> 12) << 4 AND d.slot < t.seq >> 8)
           - (SELECT coalesce(sum(d.n), 0) FROM position_tree d
              WHERE d.service_id = t.service_id AND d.level = 2
                AND d.slot >= (t.seq >> 16) << 4 AND d.slot < t.seq >> 12)
           - (SELECT coalesce(sum(d.n), 0) FROM position_tree d
              WHERE d.service_id = t.service_id AND d.level = 3
                AND d.slot >= (t.seq >> 20) << 4 AND d.slot < t.seq >> 16)
           - (SELECT coalesce(sum(d.n), 0) FROM position_tree d
              WHERE d.service_id = t.service_id AND d.level = 4
                AND d.slot >= (t.seq >> 24) << 4 AND d.slot < t.seq >> 20)
           - (SELECT coalesce(sum(d.n), 0) FROM position_tree d
              WHERE d.service_id = t.service_id AND d.level = 5
                AND d.slot >= 0 AND d.slot < t.seq >> 24)
           + (SELECT count(*) FROM (
                  SELECT seq FROM task WHERE service_id = t.service_id AND status = 0 AND id < t.id
                  ORDER BY id DESC LIMIT 16
              ) p WHERE p.seq >= (t.seq >> 4) << 4) AS bigint) END AS position
     FROM task t JOIN service s ON s.id = t.service_id JOIN client c ON c.id = t.client_id WHERE t.task_id = ?1"
);

/// Lists from one index range for each service and status, each no longer than the page.
pub(crate) const LIST_BY_SERVICE: &str = concat!(
    "SELECT ",
    task_columns!(),
    ", 'null' AS request, NULL AS response
     FROM json_each(?1) AS wanted CROSS JOIN json_each(?2) AS code
     CROSS JOIN task t ON t.id IN (
         SELECT id FROM task INDEXED BY task_by_service WHERE ?8 IS NULL
           AND service_id = wanted.value AND status = code.value AND id < ?3 AND id >= ?4
           AND submitted >= ?5 AND submitted < ?6
         ORDER BY id DESC LIMIT ?7
     )
     CROSS JOIN service s ON s.id = t.service_id CROSS JOIN client c ON c.id = t.client_id
     ORDER BY t.id DESC LIMIT ?7"
);

pub(crate) const COUNT_BY_SERVICE: &str = "
    SELECT count(*) AS counted FROM (
        SELECT 1 FROM json_each(?1) AS wanted CROSS JOIN json_each(?2) AS code CROSS JOIN task t ON t.id IN (
            SELECT id FROM task INDEXED BY task_by_service WHERE ?8 IS NULL
              AND service_id = wanted.value AND status = code.value AND id < ?3 AND id >= ?4
              AND submitted >= ?5 AND submitted < ?6
            ORDER BY id DESC LIMIT ?7
        ) LIMIT ?7
    )";

pub(crate) const LIST_BY_CLIENT: &str = concat!(
    "SELECT ",
    task_columns!(),
    ", 'null' AS request, NULL AS response
     FROM json_each(?1) AS wanted CROSS JOIN json_each(?2) AS code
     CROSS JOIN task t ON t.id IN (
         SELECT id FROM task INDEXED BY task_by_client WHERE client_id = ?8
           AND service_id = wanted.value AND status = code.value AND id < ?3 AND id >= ?4
           AND submitted >= ?5 AND submitted < ?6
         ORDER BY id DESC LIMIT ?7
     )
     CROSS JOIN service s ON s.id = t.service_id CROSS JOIN client c ON c.id = t.client_id
     ORDER BY t.id DESC LIMIT ?7"
);

pub(crate) const COUNT_BY_CLIENT: &str = "
    SELECT count(*) AS counted FROM (
        SELECT 1 FROM json_each(?1) AS wanted CROSS JOIN json_each(?2) AS code CROSS JOIN task t ON t.id IN (
            SELECT id FROM task INDEXED BY task_by_client WHERE client_id = ?8
              AND service_id = wanted.value AND status = code.value AND id < ?3 AND id >= ?4
              AND submitted >= ?5 AND submitted < ?6
            ORDER BY id DESC LIMIT ?7
        ) LIMIT ?7
    )";

/// Lists tasks of any service, status and client, in the order of the table.
pub(crate) const LIST_NEWEST: &str = concat!(
    "SELECT ",
    task_columns!(),
    ", 'null' AS request, NULL AS response
     FROM task t CROSS JOIN service s ON s.id = t.service_id CROSS JOIN client c ON c.id = t.client_id
     WHERE t.id IN (
         SELECT id FROM task WHERE id < ?3 AND id >= ?4 AND submitted >= ?5 AND submitted < ?6 AND ?8 IS NULL
         ORDER BY id DESC LIMIT ?7
     ) ORDER BY t.id DESC"
);

pub(crate) const COUNT_NEWEST: &str = "
    SELECT count(*) AS counted FROM (
        SELECT id FROM task WHERE id < ?3 AND id >= ?4 AND submitted >= ?5 AND submitted < ?6 AND ?8 IS NULL
        ORDER BY id DESC LIMIT ?7
    )";

pub(crate) const LOCK_TASKS: &str = concat!(
    "SELECT ",
    now!(),
    " AS now, ",
    locked_columns!(),
    " FROM json_each(?1) AS w CROSS JOIN task t ON t.task_id = w.value CROSS JOIN service s ON s.id = t.service_id"
);

pub(crate) const LOCK_OVERDUE: &str = concat!(
    "SELECT ",
    now!(),
    " AS now, ",
    locked_columns!(),
    " FROM task t INDEXED BY task_by_timer CROSS JOIN service s ON s.id = t.service_id
      WHERE t.timer <= ",
    now!(),
    " ORDER BY t.timer LIMIT ?1"
);

pub(crate) const WRITE_TASKS: Values = Values {
    before: "UPDATE task SET status = w.column2, attempt = w.column3, losses = w.column4, revision = w.column5,
                 progress = w.column6, worker_host = w.column7, started = w.column8, ended = w.column9,
                 lease_until = w.column10, response = w.column11, error_message = w.column12, error_kind = w.column13,
                 error_trace = w.column14, failures = w.column15, due = w.column16, expires = w.column17,
                 deadline = w.column18, timer = w.column19
             FROM (VALUES ",
    row: "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    after: ") AS w WHERE task.id = w.column1",
};

impl TaskReader for Sqlite {
    async fn find_task(&self, task_id: TaskId) -> Result<Option<Task>> {
        let row = sqlx::query(FIND_TASK).bind(task_id.to_string()).fetch_optional(&self.read).await.map_err(error)?;
        row.as_ref().map(found_task).transpose()
    }

    async fn list_tasks(&self, filter: &TaskFilter, from_id: i64) -> Result<Page> {
        let mut connection = self.read.acquire().await.map_err(error)?;
        let statement = match filter.client {
            _ if filter.is_wide() => LIST_NEWEST,
            Some(_) => LIST_BY_CLIENT,
            None => LIST_BY_SERVICE,
        };
        let listing = bind_filter(statement, filter, from_id, &mut connection).await?;
        let rows = listing.fetch_all(&mut *connection).await.map_err(error)?;
        let tasks: Vec<Task> = rows.iter().map(task).collect::<Result<_>>()?;
        let next_before_id = tasks.last().filter(|_| tasks.len() == filter.limit).map(|task| task.id);
        Ok(Page { tasks, next_before_id })
    }

    async fn count_tasks(&self, filter: &TaskFilter, from_id: i64) -> Result<u64> {
        let mut connection = self.read.acquire().await.map_err(error)?;
        let statement = match filter.client {
            _ if filter.is_wide() => COUNT_NEWEST,
            Some(_) => COUNT_BY_CLIENT,
            None => COUNT_BY_SERVICE,
        };
        let counting = bind_filter(statement, filter, from_id, &mut connection).await?;
        let counted = counting.fetch_one(&mut *connection).await.map_err(error)?.big("counted")?;
        Ok(counted.unsigned_abs().min(filter.limit as u64))
    }

    async fn first_from(&self, id: i64) -> Result<Option<(i64, Timestamp)>> {
        let row = sqlx::query("SELECT id, submitted FROM task WHERE id >= ?1 ORDER BY id LIMIT 1")
            .bind(id)
            .fetch_optional(&self.read)
            .await
            .map_err(error)?;
        row.map(|row| Ok((row.big("id")?, row.moment("submitted")?))).transpose()
    }

    async fn last_id(&self) -> Result<i64> {
        sqlx::query_scalar("SELECT coalesce(max(id), 0) FROM task").fetch_one(&self.read).await.map_err(error)
    }
}

impl TaskRows for SqliteSession {
    async fn lock_tasks(&mut self, task_ids: &[TaskId]) -> Result<Locked<LockedTask>> {
        locked(&self.fetch(LOCK_TASKS, task_ids).await?, locked_task)
    }

    async fn lock_overdue(&mut self, limit: usize) -> Result<Locked<LockedTask>> {
        let rows = sqlx::query(LOCK_OVERDUE)
            .bind(wide(limit))
            .fetch_all(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        locked(&rows, locked_task)
    }

    async fn next_timer(&mut self) -> Result<Option<Duration>> {
        let millis: Option<i64> = sqlx::query_scalar(concat!(
            "SELECT timer - ",
            now!(),
            " FROM task INDEXED BY task_by_timer WHERE timer > ",
            now!(),
            " ORDER BY timer LIMIT 1"
        ))
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(millis.map(|millis| Duration::from_millis(unsigned(millis))))
    }

    async fn write_tasks(&mut self, tasks: &[WrittenTask]) -> Result<()> {
        self.wrote = true;
        let done =
            WRITE_TASKS.execute(&mut self.tx, tasks, |statement, WrittenTask { id, state, response, failure }| {
                let failure = failure.as_ref();
                statement
                    .bind(id)
                    .bind(state.status.code())
                    .bind(state.attempt)
                    .bind(state.losses)
                    .bind(wide(state.revision))
                    .bind(state.progress)
                    .bind(state.worker_host.as_deref())
                    .bind(state.started.map(Timestamp::as_millis))
                    .bind(state.ended.map(Timestamp::as_millis))
                    .bind(state.lease_until.map(Timestamp::as_millis))
                    .bind(response.as_ref().map(Json::get))
                    .bind(failure.map(|failure| failure.message.as_str()))
                    .bind(failure.and_then(|failure| failure.kind.as_deref()))
                    .bind(failure.and_then(|failure| failure.trace.as_deref()))
                    .bind(state.failures)
                    .bind(state.due.map(Timestamp::as_millis))
                    .bind(state.expires.map(Timestamp::as_millis))
                    .bind(state.deadline.map(Timestamp::as_millis))
                    .bind(state.timer().map(Timestamp::as_millis))
            });
        done.await.map(drop).map_err(|failure| self.failed(failure))
    }
}

async fn all_services(connection: &mut SqliteConnection) -> Result<Vec<i32>> {
    sqlx::query_scalar("SELECT id FROM service").fetch_all(connection).await.map_err(error)
}

/// Binds a filter to a listing or a count.
async fn bind_filter<'q>(
    statement: &'static str,
    filter: &'q TaskFilter,
    from_id: i64,
    connection: &mut SqliteConnection,
) -> Result<Statement<'q>> {
    let services = if filter.services.is_empty() {
        all_services(connection).await?
    } else {
        filter.services.iter().map(|service| service.0).collect()
    };
    let statuses: &[Status] = if filter.statuses.is_empty() { &Status::ALL } else { &filter.statuses };
    let statuses: Vec<i16> = statuses.iter().map(|status| status.code()).collect();
    Ok(sqlx::query(statement)
        .bind(array(&services)?)
        .bind(array(&statuses)?)
        .bind(filter.before_id.unwrap_or(i64::MAX))
        .bind(from_id)
        .bind(filter.submitted_from.map_or(i64::MIN, Timestamp::as_millis))
        .bind(filter.submitted_before.map_or(i64::MAX, Timestamp::as_millis))
        .bind(wide(filter.limit))
        .bind(filter.client.map(|client| client.0)))
}
