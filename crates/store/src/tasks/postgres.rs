//! Tasks on PostgreSQL.

use std::time::Duration;

use relais_core::{Json, Page, Status, Task, TaskFilter, TaskId, Timestamp};
use sqlx::{PgConnection, postgres::PgRow};

use crate::{
    postgres::session::{PgSession, column},
    postgres::{Postgres, Statement, error, to_sql},
    row::{Columns as _, signed, wide},
    session::Result,
    tasks::statements::{Locked, LockedTask, TaskReader, TaskRows, WrittenTask, found_task, locked, locked_task, task},
};

/// The columns that [`task`] reads, except `request` and `response`. The service is joined as `s`, the client as `c`.
macro_rules! task_columns {
    () => {
        "t.id, t.task_id, t.seq, t.service_id, t.client_id, s.name AS service, c.client_id AS client, t.submitted, \
         t.scheduled, t.priority, t.correlation_id, t.error_message, t.error_kind, t.error_trace, \
         t.callback::text AS callback, \
         CASE WHEN t.callback IS NOT NULL AND t.status IN (2, 3, 4) THEN (SELECT n.status FROM relais.callback n \
         WHERE n.task = t.id AND n.event >= 2 ORDER BY n.id + 0 DESC LIMIT 1) END AS notification, \
         t.status, t.revision, t.due, t.expires, coalesce(t.timeout_ms, s.timeout_ms) AS timeout_ms, t.attempt, \
         t.losses, t.failures, t.progress, t.worker_host, t.started, t.ended, t.lease_until, t.deadline, \
         t.parent_id, t.batch_id, t.trace, t.after_when"
    };
}
pub(crate) use task_columns;

/// The columns that [`locked_task`] reads. The service is joined as `s`. The column `retry` has the policies of the
/// task and of its service, if both have one ([`crate::history::statements::policy_of_task`]).
macro_rules! locked_columns {
    () => {
        "t.id, t.task_id, t.service_id, t.client_id, t.seq, s.delivery_limit, s.handed, t.callback::text AS callback, \
         t.submitted, greatest(t.scheduled, t.revived) AS scheduled, t.correlation_id, t.unique_key, \
         CASE WHEN t.retry IS NULL OR s.retry IS NULL THEN coalesce(t.retry, s.retry) \
         ELSE '[' || t.retry || ',' || s.retry || ']' END AS retry, \
         t.status, t.revision, t.due, t.expires, coalesce(t.timeout_ms, s.timeout_ms) AS timeout_ms, t.attempt, \
         t.losses, t.failures, t.progress, t.worker_host, t.started, t.ended, t.lease_until, t.deadline, \
         t.batch_id, t.followed, t.after_when"
    };
}
pub(crate) use locked_columns;

/// A task, with its position if it is pending. The position tree is added up in the same statement, so that a poll is
/// one round trip. Each level is a sum of its own: a short range of the primary key, whatever the planner guesses
/// ([`relais_core::position`]).
///
/// The last sum counts up to 16 pending tasks that came before. They are found by the whole row, which only one index
/// has: with a bound on `id` alone, another plan would read all tasks before it. Only the limit ends the scan, so tasks
/// of other queues are left out afterwards.
const FIND_TASK: &str = concat!(
    "SELECT ",
    task_columns!(),
    ", t.request::text AS request, t.response::text AS response,
       CASE WHEN t.status = 0 THEN CAST(((t.seq >> 4) << 4) + 1
           - (SELECT coalesce(sum(d.n), 0) FROM relais.position_tree d
              WHERE d.service_id = t.service_id AND d.level = 0
                AND d.slot >= (t.seq >> 8) << 4 AND d.slot < t.seq >> 4)
           - (SELECT coalesce(sum(d.n), 0) FROM relais.position_tree d
              WHERE d.service_id = t.service_id AND d.level = 1
                AND d.slot >= (t.seq >> 12) << 4 AND d.slot < t.seq >> 8)
           - (SELECT coalesce(sum(d.n), 0) FROM relais.position_tree d
              WHERE d.service_id = t.service_id AND d.level = 2
                AND d.slot >= (t.seq >> 16) << 4 AND d.slot < t.seq >> 12)
           - (SELECT coalesce(sum(d.n), 0) FROM relais.position_tree d
              WHERE d.service_id = t.service_id AND d.level = 3
                AND d.slot >= (t.seq >> 20) << 4 AND d.slot < t.seq >> 16)
           - (SELECT coalesce(sum(d.n), 0) FROM relais.position_tree d
              WHERE d.service_id = t.service_id AND d.level = 4
                AND d.slot >= (t.seq >> 24) << 4 AND d.slot < t.seq >> 20)
           - (SELECT coalesce(sum(d.n), 0) FROM relais.position_tree d
              WHERE d.service_id = t.service_id AND d.level = 5
                AND d.slot >= 0 AND d.slot < t.seq >> 24)
           + (SELECT count(*) FROM (
                  SELECT i.seq FROM (
                      SELECT service_id, status, seq FROM relais.task
                      WHERE service_id IS NOT NULL AND (service_id, status, id) < (t.service_id, 0::smallint, t.id)
                      ORDER BY service_id DESC, status DESC, id DESC LIMIT 16
                  ) i WHERE i.service_id = t.service_id AND i.status = 0
              ) p WHERE p.seq >= (t.seq >> 4) << 4) AS bigint) END AS position
     FROM relais.task t
     CROSS JOIN LATERAL (SELECT * FROM relais.service WHERE id = t.service_id OFFSET 0) s
     CROSS JOIN LATERAL (SELECT * FROM relais.client WHERE id = t.client_id OFFSET 0) c
     WHERE t.task_id = $1"
);

/// Lists from one index range for each service and status. No filter makes it look at more than a page of each. The
/// columns that begin the index come first in the condition and in the order.
const LIST_BY_SERVICE: &str = concat!(
    "SELECT ",
    task_columns!(),
    ", 'null'::text AS request, NULL::text AS response
     FROM unnest(coalesce($1::integer[], (SELECT array_agg(id) FROM relais.service))) AS wanted (service_id)
     CROSS JOIN unnest($2::smallint[]) AS status (code)
     CROSS JOIN LATERAL (
         SELECT * FROM relais.task
         WHERE service_id = wanted.service_id AND status BETWEEN status.code AND status.code
           AND id >= $4 AND id < $3 AND submitted >= $5 AND submitted < $6
         ORDER BY service_id DESC, status DESC, id DESC LIMIT $7
     ) t
     CROSS JOIN LATERAL (SELECT * FROM relais.service WHERE id = t.service_id OFFSET 0) s
     CROSS JOIN LATERAL (SELECT * FROM relais.client WHERE id = t.client_id OFFSET 0) c
     WHERE $8::integer IS NULL
     ORDER BY t.id DESC LIMIT $7"
);

const COUNT_BY_SERVICE: &str = "
    SELECT count(*) FROM (
        SELECT 1
        FROM unnest(coalesce($1::integer[], (SELECT array_agg(id) FROM relais.service))) AS wanted (service_id)
        CROSS JOIN unnest($2::smallint[]) AS status (code)
        CROSS JOIN LATERAL (
            SELECT id FROM relais.task
            WHERE service_id = wanted.service_id AND status BETWEEN status.code AND status.code
              AND id >= $4 AND id < $3 AND submitted >= $5 AND submitted < $6
            ORDER BY service_id DESC, status DESC, id DESC LIMIT $7
        ) t
        WHERE $8::integer IS NULL
        LIMIT $7
    ) AS counted";

const LIST_BY_CLIENT: &str = concat!(
    "SELECT ",
    task_columns!(),
    ", 'null'::text AS request, NULL::text AS response
     FROM unnest(coalesce($1::integer[], (SELECT array_agg(id) FROM relais.service))) AS wanted (service_id)
     CROSS JOIN unnest($2::smallint[]) AS status (code)
     CROSS JOIN LATERAL (
         SELECT * FROM relais.task
         WHERE client_id = $8 AND service_id = wanted.service_id AND status BETWEEN status.code AND status.code
           AND id >= $4 AND id < $3 AND submitted >= $5 AND submitted < $6
         ORDER BY client_id DESC, service_id DESC, status DESC, id DESC LIMIT $7
     ) t
     CROSS JOIN LATERAL (SELECT * FROM relais.service WHERE id = t.service_id OFFSET 0) s
     CROSS JOIN LATERAL (SELECT * FROM relais.client WHERE id = t.client_id OFFSET 0) c
     ORDER BY t.id DESC LIMIT $7"
);

const COUNT_BY_CLIENT: &str = "
    SELECT count(*) FROM (
        SELECT 1
        FROM unnest(coalesce($1::integer[], (SELECT array_agg(id) FROM relais.service))) AS wanted (service_id)
        CROSS JOIN unnest($2::smallint[]) AS status (code)
        CROSS JOIN LATERAL (
            SELECT id FROM relais.task
            WHERE client_id = $8 AND service_id = wanted.service_id AND status BETWEEN status.code AND status.code
              AND id >= $4 AND id < $3 AND submitted >= $5 AND submitted < $6
            ORDER BY client_id DESC, service_id DESC, status DESC, id DESC LIMIT $7
        ) t
        LIMIT $7
    ) AS counted";

/// Lists tasks of any service, status and client, in the order of the table. The parameters that are not needed are
/// named all the same, so that all listings take the same ones.
const LIST_NEWEST: &str = concat!(
    "SELECT ",
    task_columns!(),
    ", 'null'::text AS request, NULL::text AS response
     FROM (
         SELECT * FROM relais.task WHERE id >= $4 AND id < $3 AND submitted >= $5 AND submitted < $6
           AND $1::integer[] IS NULL AND $2::smallint[] IS NOT NULL AND $8::integer IS NULL
         ORDER BY id DESC LIMIT $7
     ) t
     CROSS JOIN LATERAL (SELECT * FROM relais.service WHERE id = t.service_id OFFSET 0) s
     CROSS JOIN LATERAL (SELECT * FROM relais.client WHERE id = t.client_id OFFSET 0) c
     ORDER BY t.id DESC"
);

const COUNT_NEWEST: &str = "
    SELECT count(*) FROM (
        SELECT id FROM relais.task WHERE id >= $4 AND id < $3 AND submitted >= $5 AND submitted < $6
          AND $1::integer[] IS NULL AND $2::smallint[] IS NOT NULL AND $8::integer IS NULL
        ORDER BY id DESC LIMIT $7
    ) AS counted";

/// Writes what tasks became; [`bind_tasks`] binds $1 to $19.
const WRITE_TASKS: &str = "
    UPDATE relais.task t
    SET status = w.status, attempt = w.attempt, losses = w.losses, revision = w.revision,
        progress = w.progress, worker_host = w.worker_host, started = w.started, ended = w.ended,
        lease_until = w.lease_until, response = w.response::json, error_message = w.error_message,
        error_kind = w.error_kind, error_trace = w.error_trace, failures = w.failures, due = w.due,
        expires = w.expires, deadline = w.deadline, timer = w.timer
    FROM ROWS FROM (
        unnest($1::bigint[], $2::smallint[], $3::integer[], $4::integer[], $5::bigint[], $6::double precision[],
               $7::text[], $8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::text[], $12::text[],
               $13::text[], $14::text[], $15::integer[], $16::timestamptz[], $17::timestamptz[], $18::timestamptz[],
               $19::timestamptz[]),
        generate_series(1, cardinality($1))
    ) AS w (id, status, attempt, losses, revision, progress, worker_host, started, ended, lease_until,
            response, error_message, error_kind, error_trace, failures, due, expires, deadline, timer)
    WHERE t.id = ANY($1) AND t.id = w.id";

impl TaskReader for Postgres {
    async fn find_task(&self, task_id: TaskId) -> Result<Option<Task>> {
        let mut lent = self.lend().await?;
        let row = sqlx::query(FIND_TASK).bind(task_id.0).fetch_optional(&mut *lent).await.map_err(error)?;
        lent.keep();
        row.as_ref().map(found_task).transpose()
    }

    async fn list_tasks(&self, filter: &TaskFilter, from_id: i64) -> Result<Page> {
        let statement = match filter.client {
            _ if filter.is_wide() => LIST_NEWEST,
            Some(_) => LIST_BY_CLIENT,
            None => LIST_BY_SERVICE,
        };
        let listing = bind_filter(statement, filter, from_id);
        let rows: Vec<PgRow> = listing.fetch_all(&mut *self.lend().await?).await.map_err(error)?;
        let tasks: Vec<Task> = rows.iter().map(task).collect::<Result<_>>()?;
        let next_before_id = tasks.last().filter(|_| tasks.len() == filter.limit).map(|task| task.id);
        Ok(Page { tasks, next_before_id })
    }

    async fn count_tasks(&self, filter: &TaskFilter, from_id: i64) -> Result<u64> {
        let statement = match filter.client {
            _ if filter.is_wide() => COUNT_NEWEST,
            Some(_) => COUNT_BY_CLIENT,
            None => COUNT_BY_SERVICE,
        };
        let counting = bind_filter(statement, filter, from_id);
        let row = counting.fetch_one(&mut *self.lend().await?).await.map_err(error)?;
        let counted: i64 = sqlx::Row::try_get(&row, 0).map_err(error)?;
        Ok(counted.unsigned_abs())
    }

    async fn first_from(&self, id: i64) -> Result<Option<(i64, Timestamp)>> {
        let row = sqlx::query("SELECT id, submitted FROM relais.task WHERE id >= $1 ORDER BY id LIMIT 1")
            .bind(id)
            .fetch_optional(&mut *self.lend().await?)
            .await
            .map_err(error)?;
        row.map(|row| Ok((row.big("id")?, row.moment("submitted")?))).transpose()
    }

    async fn last_id(&self) -> Result<i64> {
        sqlx::query_scalar("SELECT coalesce(max(id), 0) FROM relais.task")
            .fetch_one(&mut *self.lend().await?)
            .await
            .map_err(error)
    }
}

impl TaskRows for PgSession {
    async fn lock_tasks(&mut self, task_ids: &[TaskId]) -> Result<Locked<LockedTask>> {
        lock_tasks(&mut self.tx, task_ids).await
    }

    async fn lock_overdue(&mut self, limit: usize) -> Result<Locked<LockedTask>> {
        let rows = sqlx::query(concat!(
            "SELECT clock_timestamp() AS now, ",
            locked_columns!(),
            " FROM relais.task t
              CROSS JOIN LATERAL (SELECT * FROM relais.service WHERE id = t.service_id OFFSET 0) s
              WHERE t.timer <= statement_timestamp()
              ORDER BY t.timer LIMIT $1
              FOR NO KEY UPDATE OF t SKIP LOCKED"
        ))
        .bind(wide(limit))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        locked(&rows, locked_task)
    }

    async fn next_timer(&mut self) -> Result<Option<Duration>> {
        let seconds: Option<f64> = sqlx::query_scalar(
            "SELECT greatest(extract(epoch FROM timer - clock_timestamp()), 0)::double precision
             FROM relais.task WHERE timer > statement_timestamp() ORDER BY timer LIMIT 1",
        )
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)))
    }

    async fn write_tasks(&mut self, tasks: &[WrittenTask]) -> Result<()> {
        write_tasks(&mut self.tx, tasks).await
    }
}

/// Locks tasks, without their payloads.
pub(crate) async fn lock_tasks(connection: &mut PgConnection, task_ids: &[TaskId]) -> Result<Locked<LockedTask>> {
    let rows = sqlx::query(concat!(
        "SELECT clock_timestamp() AS now, ",
        locked_columns!(),
        " FROM relais.task t
          CROSS JOIN LATERAL (SELECT * FROM relais.service WHERE id = t.service_id OFFSET 0) s
          WHERE t.task_id = ANY($1) ORDER BY t.id + 0 FOR NO KEY UPDATE OF t"
    ))
    .bind(column(task_ids, |task_id| task_id.0))
    .fetch_all(connection)
    .await
    .map_err(error)?;
    locked(&rows, locked_task)
}

/// Writes what locked tasks became.
pub(crate) async fn write_tasks(connection: &mut PgConnection, tasks: &[WrittenTask]) -> Result<()> {
    let tasks: Vec<&WrittenTask> = tasks.iter().collect();
    bind_tasks(sqlx::query(WRITE_TASKS), &tasks).execute(connection).await.map_err(error)?;
    Ok(())
}

/// Binds what tasks became, as $1 to $19.
pub(crate) fn bind_tasks<'q>(statement: Statement<'q>, tasks: &[&'q WrittenTask]) -> Statement<'q> {
    statement
        .bind(column(tasks, |task| task.id))
        .bind(column(tasks, |task| task.state.status.code()))
        .bind(column(tasks, |task| signed(task.state.attempt)))
        .bind(column(tasks, |task| signed(task.state.losses)))
        .bind(column(tasks, |task| wide(task.state.revision)))
        .bind(column(tasks, |task| task.state.progress))
        .bind(column(tasks, |&task| task.state.worker_host.as_deref()))
        .bind(column(tasks, |task| task.state.started.map(to_sql)))
        .bind(column(tasks, |task| task.state.ended.map(to_sql)))
        .bind(column(tasks, |task| task.state.lease_until.map(to_sql)))
        .bind(column(tasks, |&task| task.response.as_ref().map(Json::get)))
        .bind(column(tasks, |&task| task.failure.as_ref().map(|failure| failure.message.as_str())))
        .bind(column(tasks, |&task| task.failure.as_ref().and_then(|failure| failure.kind.as_deref())))
        .bind(column(tasks, |&task| task.failure.as_ref().and_then(|failure| failure.trace.as_deref())))
        .bind(column(tasks, |task| signed(task.state.failures)))
        .bind(column(tasks, |task| task.state.due.map(to_sql)))
        .bind(column(tasks, |task| task.state.expires.map(to_sql)))
        .bind(column(tasks, |task| task.state.deadline.map(to_sql)))
        .bind(column(tasks, |task| task.state.timer().map(to_sql)))
}

/// Binds a filter to a listing or a count.
fn bind_filter<'q>(statement: &'static str, filter: &'q TaskFilter, from_id: i64) -> Statement<'q> {
    let services: Option<Vec<i32>> =
        (!filter.services.is_empty()).then(|| filter.services.iter().map(|service| service.0).collect());
    let statuses: &[Status] = if filter.statuses.is_empty() { &Status::ALL } else { &filter.statuses };
    sqlx::query(statement)
        .bind(services)
        .bind(statuses.iter().map(|status| status.code()).collect::<Vec<_>>())
        .bind(filter.before_id.unwrap_or(i64::MAX))
        .bind(from_id)
        .bind(to_sql(filter.submitted_from.unwrap_or(Timestamp::from_millis(0))))
        .bind(to_sql(filter.submitted_before.unwrap_or(Timestamp::from_millis(i64::MAX))))
        .bind(wide(filter.limit))
        .bind(filter.client.map(|client| client.0))
}
