//! Reads that need no transaction of their own, on connections that cannot write.

use std::time::Duration;

use relais_core::{
    Attempt, Backlog, Declared, InstanceRecord, Page, QueueDepth, QueueShare, ServiceKey, Status, Task, TaskFilter,
    TaskId, Timestamp,
};
use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use super::{
    Sqlite,
    batch::{Statement, array},
    error,
    session::SqliteSession,
};
use crate::{
    clock::statements::Reading,
    place::place_column,
    row::{
        Columns, attempt, authorization, clients as clients_of, corrupt, found_task, plain_columns, queue_depth,
        queue_share, service, tally, task, wide,
    },
    session::{Database, Heard, Result, Session},
};

/// The columns that [`crate::row::state`] and [`crate::dependencies::statements::links`] read, with the service joined as `s`.
macro_rules! state_columns {
    () => {
        concat!(
            "t.status, t.attempt, t.losses, t.failures, t.revision, t.progress, t.worker_host, t.started, t.ended, t.lease_until, ",
            "t.due, t.expires, t.deadline, coalesce(t.timeout_ms, s.timeout_ms) AS timeout_ms, ",
            "t.parent_id, t.batch_id, t.trace, t.after_when, t.followed"
        )
    };
}
pub(crate) use state_columns;

/// The columns that [`crate::row::locked_pending`] reads but for `now` and `retry`, with service and client joined as `s` and
/// `c`. What has not ended has no result.
macro_rules! pending_columns {
    () => {
        concat!(
            "s.lease_ms, s.delivery_limit, s.handed, t.rank, t.unique_key, t.id, t.task_id, t.seq, t.service_id, t.client_id, ",
            "s.name AS service, c.client_id AS client, t.submitted, t.scheduled, t.priority, t.correlation_id, t.callback, ",
            "t.request, ",
            crate::sqlite::read::state_columns!()
        )
    };
}
pub(crate) use pending_columns;

/// The columns that [`task`] reads, with the names of service and client joined as `s` and `c`.
macro_rules! task_columns {
    ($request:literal, $response:literal) => {
        concat!(
            "t.id, t.task_id, t.seq, t.service_id, t.client_id, s.name AS service, c.client_id AS client, t.submitted, ",
            "t.scheduled, t.priority, t.correlation_id, t.error_message, t.error_kind, t.error_trace, t.callback, ",
            "CASE WHEN t.callback IS NOT NULL AND t.status IN (2, 3, 4) THEN (SELECT n.status FROM callback n ",
            "WHERE n.task = t.id AND n.event >= 2 ORDER BY n.id DESC LIMIT 1) END AS notification, ",
            $request,
            " AS request, ",
            $response,
            " AS response, ",
            crate::sqlite::read::state_columns!()
        )
    };
}
pub(crate) use task_columns;

/// The ids of a listing: one index range for each service and status, each no longer than the page.
macro_rules! ranges {
    ($range:literal) => {
        concat!(
            "SELECT id FROM task INDEXED BY ",
            $range,
            " AND service_id = wanted.value AND status = code.value AND id < ?3 AND id >= ?4
                    AND submitted >= ?5 AND submitted < ?6
                  ORDER BY id DESC LIMIT ?7"
        )
    };
}

/// A listing: the newest of them all.
macro_rules! listing {
    ($range:literal) => {
        concat!(
            "SELECT ",
            task_columns!("'null'", "NULL"),
            " FROM json_each(?1) AS wanted CROSS JOIN json_each(?2) AS code
              CROSS JOIN task t ON t.id IN (",
            ranges!($range),
            ")
              CROSS JOIN service s ON s.id = t.service_id CROSS JOIN client c ON c.id = t.client_id
              ORDER BY t.id DESC LIMIT ?7"
        )
    };
}

/// How many such a listing would have, up to the limit.
macro_rules! counting {
    ($range:literal) => {
        concat!(
            "SELECT count(*) AS counted FROM (
                 SELECT 1 FROM json_each(?1) AS wanted CROSS JOIN json_each(?2) AS code CROSS JOIN task t ON t.id IN (",
            ranges!($range),
            ") LIMIT ?7)"
        )
    };
}

/// What is of any service, in any status and of any client: the tasks themselves are in this order.
macro_rules! newest {
    () => {
        "SELECT id FROM task WHERE id < ?3 AND id >= ?4 AND submitted >= ?5 AND submitted < ?6 AND ?8 IS NULL
         ORDER BY id DESC LIMIT ?7"
    };
}

pub(crate) const LIST_BY_SERVICE: &str = listing!("task_by_service WHERE ?8 IS NULL");
pub(crate) const LIST_BY_CLIENT: &str = listing!("task_by_client WHERE client_id = ?8");
pub(crate) const LIST_NEWEST: &str = concat!(
    "SELECT ",
    task_columns!("'null'", "NULL"),
    " FROM task t CROSS JOIN service s ON s.id = t.service_id CROSS JOIN client c ON c.id = t.client_id
      WHERE t.id IN (",
    newest!(),
    ") ORDER BY t.id DESC"
);
pub(crate) const COUNT_NEWEST: &str = concat!("SELECT count(*) AS counted FROM (", newest!(), ")");
pub(crate) const COUNT_BY_SERVICE: &str = counting!("task_by_service WHERE ?8 IS NULL");
pub(crate) const COUNT_BY_CLIENT: &str = counting!("task_by_client WHERE client_id = ?8");

pub(crate) const FIND_TASK: &str = concat!(
    "SELECT ",
    task_columns!("t.request", "t.response"),
    ", ",
    place_column!(
        "departure",
        "SELECT seq FROM task WHERE service_id = t.service_id AND status = 0 AND id < t.id ORDER BY id DESC LIMIT 16"
    ),
    " FROM task t JOIN service s ON s.id = t.service_id JOIN client c ON c.id = t.client_id WHERE t.task_id = ?1"
);

pub(crate) const OLDEST_PENDING: &str = "
    SELECT s.id, t.submitted FROM service s CROSS JOIN task t
        ON t.id = (SELECT id FROM task WHERE service_id = s.id AND status = 0 ORDER BY id LIMIT 1)";

pub(crate) const QUEUE_DEPTHS: &str = concat!(
    "SELECT s.value AS service_id,
            (SELECT coalesce(sum(CASE WHEN departed THEN -n ELSE n END), 0) FROM tally
             WHERE service_id = s.value AND client_id = 0 AND status = 0) AS pending,
            (SELECT coalesce(sum(CASE WHEN departed THEN -n ELSE n END), 0) FROM tally
             WHERE service_id = s.value AND client_id = 0 AND status = 1) AS in_progress,
            (SELECT submitted FROM task WHERE service_id = s.value AND status = 0 ORDER BY id LIMIT 1) AS submitted, ",
    now!(),
    " AS now FROM json_each(?1) AS s ORDER BY s.key"
);

impl Database for Sqlite {
    type Session = SqliteSession;
    const ONE_WRITER: bool = true;

    async fn read_clock(&self) -> Result<Reading> {
        self.clock().await
    }

    async fn begin(&self) -> Result<SqliteSession> {
        SqliteSession::begin(&self.write, &self.proof).await
    }

    async fn find_task(&self, task_id: TaskId) -> Result<Option<Task>> {
        let row = sqlx::query(FIND_TASK).bind(task_id.to_string()).fetch_optional(&self.read).await.map_err(error)?;
        row.as_ref().map(found_task).transpose()
    }

    async fn attempts(&self, id: i64) -> Result<Vec<Attempt>> {
        let rows = sqlx::query("SELECT * FROM attempt WHERE task = ?1 ORDER BY number")
            .bind(id)
            .fetch_all(&self.read)
            .await
            .map_err(error)?;
        rows.iter().map(attempt).collect()
    }

    async fn list_tasks(&self, filter: &TaskFilter, from_id: i64) -> Result<Page> {
        let mut connection = self.read.acquire().await.map_err(error)?;
        let statement = match filter.client {
            _ if filter.is_wide() => LIST_NEWEST,
            Some(_) => LIST_BY_CLIENT,
            None => LIST_BY_SERVICE,
        };
        let listing = bound(statement, filter, from_id, &mut connection).await?;
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
        let counting = bound(statement, filter, from_id, &mut connection).await?;
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

    async fn backlog(&self) -> Result<Backlog> {
        // One snapshot for all three.
        let mut tx = self.read.begin().await.map_err(error)?;
        let tallies = sqlx::query(
            "SELECT service_id, status, coalesce(sum(n) FILTER (WHERE NOT departed), 0) AS arrived,
                    coalesce(sum(n) FILTER (WHERE departed), 0) AS departed
             FROM tally WHERE client_id = 0 GROUP BY service_id, status",
        )
        .fetch_all(&mut *tx)
        .await
        .map_err(error)?;
        let oldest = sqlx::query(OLDEST_PENDING).fetch_all(&mut *tx).await.map_err(error)?;
        let now = clock(&mut tx).await?;
        tx.commit().await.map_err(error)?;
        Ok(Backlog {
            tallies: tallies.iter().map(tally).collect::<Result<_>>()?,
            oldest_pending: oldest
                .iter()
                .map(|row| Ok((ServiceKey(row.int("id")?), row.moment("submitted")?)))
                .collect::<Result<_>>()?,
            now: Some(now),
        })
    }

    async fn queue_depths(&self, services: &[ServiceKey]) -> Result<Vec<QueueDepth>> {
        let rows = sqlx::query(QUEUE_DEPTHS)
            .bind(array(&services.iter().map(|service| service.0).collect::<Vec<_>>())?)
            .fetch_all(&self.read)
            .await
            .map_err(error)?;
        rows.iter().map(queue_depth).collect()
    }

    async fn queue_shares(&self, service: ServiceKey) -> Result<Vec<QueueShare>> {
        let rows = sqlx::query(
            "SELECT client_id, sum(CASE WHEN status = 0 THEN iif(departed, -n, n) ELSE 0 END) AS pending,
                    sum(CASE WHEN status = 1 THEN iif(departed, -n, n) ELSE 0 END) AS running
             FROM tally WHERE service_id = ?1 AND client_id > 0 GROUP BY client_id
             HAVING pending > 0 OR running > 0 ORDER BY client_id",
        )
        .bind(service.0)
        .fetch_all(&self.read)
        .await
        .map_err(error)?;
        rows.iter().map(queue_share).collect()
    }

    async fn instances(&self) -> Result<Vec<InstanceRecord>> {
        self.read_instances().await
    }

    async fn declared(&self) -> Result<Declared> {
        // One snapshot for all four.
        let mut tx = self.read.begin().await.map_err(error)?;
        let version: i64 =
            sqlx::query_scalar("SELECT version FROM declared").fetch_one(&mut *tx).await.map_err(error)?;
        let services = sqlx::query("SELECT *, json_schema AS schema_text FROM service WHERE NOT deleted")
            .fetch_all(&mut *tx)
            .await
            .map_err(error)?;
        let clients = sqlx::query("SELECT * FROM client WHERE NOT deleted").fetch_all(&mut *tx).await.map_err(error)?;
        let secrets = sqlx::query(concat!(
            "SELECT * FROM signing_secret WHERE expires IS NULL OR expires > ",
            now!(),
            " ORDER BY created DESC"
        ))
        .fetch_all(&mut *tx)
        .await
        .map_err(error)?;
        let authorizations = sqlx::query("SELECT * FROM authorization").fetch_all(&mut *tx).await.map_err(error)?;
        tx.commit().await.map_err(error)?;
        Ok(Declared::new(
            version,
            services.iter().map(service).collect::<Result<_>>()?,
            clients_of(&clients, &secrets)?,
            authorizations.iter().map(authorization).collect::<Result<_>>()?,
        ))
    }

    async fn declared_version(&self) -> Result<i64> {
        sqlx::query_scalar("SELECT version FROM declared").fetch_one(&self.read).await.map_err(error)
    }

    async fn ping(&self) -> Result<Timestamp> {
        if !self.proof.is_fresh() {
            // Nothing shows that a write is taken but a write.
            let mut session = self.begin().await?;
            session.touch().await?;
            session.commit().await?;
        }
        let mut connection = self.read.acquire().await.map_err(error)?;
        clock(&mut connection).await
    }

    async fn advance(&self, by: Duration) -> Result<()> {
        self.move_back(by).await
    }

    async fn migrate(&self) -> Result<usize> {
        self.migrate_all().await
    }

    async fn wipe_overwritten(&self, clear_text: bool) -> Result<()> {
        self.wipe(clear_text).await
    }

    /// Nobody else has the file open.
    async fn hear(&self, _: &(dyn Fn(Heard<'_>) + Send + Sync)) {
        std::future::pending().await
    }

    async fn close(&self) {
        self.close_all().await;
    }
}

async fn clock(connection: &mut SqliteConnection) -> Result<Timestamp> {
    let now = sqlx::query_scalar(concat!("SELECT ", now!())).fetch_one(connection).await.map_err(error)?;
    Ok(Timestamp::from_millis(now))
}

async fn all_services(connection: &mut SqliteConnection) -> Result<Vec<i32>> {
    sqlx::query_scalar("SELECT id FROM service").fetch_all(connection).await.map_err(error)
}

/// A column of a row.
fn get<'r, T>(row: &'r SqliteRow, column: &str) -> Result<T>
where
    T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    row.try_get(column).map_err(error)
}

impl Columns for SqliteRow {
    plain_columns!();

    fn moment(&self, column: &str) -> Result<Timestamp> {
        Ok(Timestamp::from_millis(get(self, column)?))
    }

    fn moment_if_any(&self, column: &str) -> Result<Option<Timestamp>> {
        Ok(get::<Option<i64>>(self, column)?.map(Timestamp::from_millis))
    }

    fn task_id(&self, column: &str) -> Result<TaskId> {
        let text: &str = get(self, column)?;
        TaskId::parse(text).ok_or_else(|| corrupt(format!("task id {text}")))
    }

    fn task_id_if_any(&self, column: &str) -> Result<Option<TaskId>> {
        let text: Option<&str> = get(self, column)?;
        text.map(|text| TaskId::parse(text).ok_or_else(|| corrupt(format!("task id {text}")))).transpose()
    }
}

/// A listing or a count, with what the filter says bound to it.
async fn bound<'q>(
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
