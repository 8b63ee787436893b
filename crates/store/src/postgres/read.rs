//! Reads that need no transaction.

use std::{cell::Cell, time::Duration};

use relais_core::{
    Attempt, Backlog, Declared, InstanceRecord, NewTask, Page, QueueDepth, QueueShare, ServiceKey, StoreError, Task,
    TaskFilter, TaskId, Timestamp, Wakeup,
};
use sqlx::{Column as _, ColumnIndex as _, Row as _, postgres::PgRow};

use super::{Postgres, TEXTS, error, from_sql, session::PgSession};
use crate::{
    clock::statements::Reading,
    instances::statements::{Leased, Taker},
    place::place_column,
    row::{
        Columns, attempt, authorization, clients as clients_of, found_task, plain_columns, queue_depth, queue_share,
        service, tally,
    },
    session::{Accounts, Database, Heard, Locked, LockedPending, Result, UnlockedTask},
};

/// The columns that [`state`] reads, with the service joined as `s`.
macro_rules! state_columns {
    () => {
        concat!(
            "t.status, t.revision, t.due, t.expires, coalesce(t.timeout_ms, s.timeout_ms) AS timeout_ms, t.attempt, t.losses, t.failures, ",
            "t.progress, t.worker_host, t.started, t.ended, t.lease_until, t.deadline"
        )
    };
}
pub(crate) use state_columns;

/// The service of a task `t`, as `s`: looked up for each of the tasks. Registration in any other way, a plan may begin with the services,
/// and go through all tasks of each.
macro_rules! with_service {
    () => {
        " CROSS JOIN LATERAL (SELECT * FROM relais.service WHERE id = t.service_id OFFSET 0) s "
    };
}
pub(crate) use with_service;

/// The service of a task `t` as `s`, and its client as `c`.
macro_rules! with_names {
    () => {
        concat!(
            crate::postgres::read::with_service!(),
            "CROSS JOIN LATERAL (SELECT * FROM relais.client WHERE id = t.client_id OFFSET 0) c "
        )
    };
}
pub(crate) use with_names;

/// The columns that [`crate::row::named_pending`] reads but for `now`, in the order in which it reads them, with the service
/// joined as `s`. What has not ended has no result.
macro_rules! pending_columns {
    ($retry:literal) => {
        concat!(
            "s.name AS service, s.lease_ms, t.rank, t.id, t.task_id, t.service_id, t.client_id, t.seq, s.delivery_limit, ",
            crate::postgres::read::state_columns!(),
            ", t.callback::text AS callback, t.submitted, t.scheduled, t.correlation_id, ",
            $retry,
            " AS retry, t.unique_key, s.handed, t.batch_id, ",
            "t.followed, t.after_when, t.request::text AS request, t.priority, t.parent_id, t.trace"
        )
    };
}
pub(crate) use pending_columns;

/// The columns that [`task`] reads, with the names of service and client joined as `s` and `c`.
macro_rules! task_columns {
    ($request:literal, $response:literal) => {
        concat!(
            "t.id, t.task_id, t.seq, t.service_id, t.client_id, s.name AS service, c.client_id AS client, t.submitted, ",
            "t.scheduled, t.priority, t.correlation_id, t.error_message, t.error_kind, t.error_trace, t.callback::text AS callback, ",
            "CASE WHEN t.callback IS NOT NULL AND t.status IN (2, 3, 4) THEN (SELECT n.status FROM relais.callback n ",
            "WHERE n.task = t.id AND n.event >= 2 ORDER BY n.id + 0 DESC LIMIT 1) END AS notification, ",
            $request,
            "::text AS request, ",
            $response,
            "::text AS response, ",
            crate::postgres::read::state_columns!(),
            ", t.parent_id, t.batch_id, t.trace, t.after_when"
        )
    };
}
pub(crate) use task_columns;

impl Database for Postgres {
    type Session = PgSession;
    const ONE_WRITER: bool = false;

    async fn read_clock(&self) -> Result<Reading> {
        self.clock().await
    }

    async fn begin(&self) -> Result<PgSession> {
        PgSession::begin(self.lend().await?, self.tells_as(), self.names.clone()).await
    }

    async fn submit_unlimited(
        &self,
        tasks: &[NewTask],
        wakeup: &Wakeup,
        taker: Option<&Taker>,
    ) -> Result<Option<(u64, Option<Leased>)>> {
        self.submit_in_one_statement(tasks, wakeup, taker).await
    }

    async fn pending_unlocked(&self, service: ServiceKey, limit: usize) -> Result<Option<Locked<LockedPending>>> {
        self.read_pending(service, limit).await
    }

    async fn write_unlocked(
        &self,
        service: ServiceKey,
        tasks: &[UnlockedTask],
        accounts: &Accounts,
        wakeup: &Wakeup,
    ) -> Result<bool> {
        self.write_in_one_statement(service, tasks, accounts, wakeup).await
    }

    async fn take_at_once(&self, service: ServiceKey, taker: &Taker) -> Result<Option<Leased>> {
        self.take_unlocked(service, taker).await
    }

    async fn find_task(&self, task_id: TaskId) -> Result<Option<Task>> {
        let mut lent = self.lend().await?;
        let row = sqlx::query(concat!(
            "SELECT ",
            task_columns!("t.request", "t.response"),
            ", ",
            place_column!(
                "relais.departure",
                // By the whole row, which only one index has: with a bound on `id` alone, another plan would read all before it.
                // Nothing says where to end but the number, so what is not of this queue is left out afterwards.
                "SELECT i.seq FROM (
                     SELECT service_id, status, seq FROM relais.task
                     WHERE service_id IS NOT NULL AND (service_id, status, id) < (t.service_id, 0::smallint, t.id)
                     ORDER BY service_id DESC, status DESC, id DESC LIMIT 16
                 ) i WHERE i.service_id = t.service_id AND i.status = 0"
            ),
            " FROM relais.task t",
            with_names!(),
            "WHERE t.task_id = $1"
        ))
        .bind(task_id.0)
        .fetch_optional(&mut *lent)
        .await
        .map_err(error)?;
        lent.keep();
        row.as_ref().map(found_task).transpose()
    }

    async fn attempts(&self, id: i64) -> Result<Vec<Attempt>> {
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

    async fn list_tasks(&self, filter: &TaskFilter, from_id: i64) -> Result<Page> {
        self.list(filter, from_id).await
    }

    async fn count_tasks(&self, filter: &TaskFilter, from_id: i64) -> Result<u64> {
        self.count(filter, from_id).await
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

    async fn backlog(&self) -> Result<Backlog> {
        let rows = sqlx::query(
            "SELECT service_id, status, coalesce(sum(n) FILTER (WHERE NOT departed), 0)::bigint AS arrived,
                    coalesce(sum(n) FILTER (WHERE departed), 0)::bigint AS departed
             FROM relais.tally WHERE client_id = 0 GROUP BY service_id, status",
        )
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        let tallies = rows.iter().map(tally).collect::<Result<_>>()?;
        let rows = sqlx::query(
            "SELECT s.id, t.submitted FROM relais.service s CROSS JOIN LATERAL (
                 SELECT submitted FROM relais.task
                 WHERE service_id = s.id AND status BETWEEN 0 AND 0
                 ORDER BY service_id, status, id LIMIT 1
             ) t",
        )
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        let oldest_pending =
            rows.iter().map(|row| Ok((ServiceKey(row.int("id")?), row.moment("submitted")?))).collect::<Result<_>>()?;
        let now = self.ping().await?;
        Ok(Backlog { tallies, oldest_pending, now: Some(now) })
    }

    async fn queue_depths(&self, services: &[ServiceKey]) -> Result<Vec<QueueDepth>> {
        let rows = sqlx::query(
            "SELECT s.id AS service_id, c.pending, c.in_progress, t.submitted, clock_timestamp() AS now
             FROM unnest($1::integer[]) WITH ORDINALITY AS s (id, place)
             CROSS JOIN LATERAL (
                 SELECT coalesce(sum(CASE WHEN departed THEN -n ELSE n END) FILTER (WHERE status = 0), 0)::bigint AS pending,
                        coalesce(sum(CASE WHEN departed THEN -n ELSE n END) FILTER (WHERE status = 1), 0)::bigint AS in_progress
                 FROM relais.tally WHERE service_id = s.id AND client_id = 0
             ) c
             LEFT JOIN LATERAL (
                 SELECT submitted FROM relais.task
                 WHERE service_id = s.id AND status BETWEEN 0 AND 0
                 ORDER BY service_id, status, id LIMIT 1
             ) t ON true
             ORDER BY s.place",
        )
        .bind(services.iter().map(|service| service.0).collect::<Vec<_>>())
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        rows.iter().map(queue_depth).collect()
    }

    async fn queue_shares(&self, service: ServiceKey) -> Result<Vec<QueueShare>> {
        let rows = sqlx::query(
            "SELECT * FROM (
                 SELECT client_id,
                        coalesce(sum(CASE WHEN departed THEN -n ELSE n END) FILTER (WHERE status = 0), 0)::bigint AS pending,
                        coalesce(sum(CASE WHEN departed THEN -n ELSE n END) FILTER (WHERE status = 1), 0)::bigint AS running
                 FROM relais.tally WHERE service_id = $1 AND client_id > 0 GROUP BY client_id
             ) c
             WHERE pending > 0 OR running > 0 ORDER BY client_id",
        )
        .bind(service.0)
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        rows.iter().map(queue_share).collect()
    }

    async fn instances(&self) -> Result<Vec<InstanceRecord>> {
        self.read_instances().await
    }

    async fn declared(&self) -> Result<Declared> {
        // One snapshot for all four.
        let mut tx = self.lend().await?;
        tx.begin("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        let version: i64 =
            sqlx::query_scalar("SELECT version FROM relais.declared").fetch_one(&mut *tx).await.map_err(error)?;
        let services = sqlx::query("SELECT *, json_schema::text AS schema_text FROM relais.service WHERE NOT deleted")
            .fetch_all(&mut *tx)
            .await
            .map_err(error)?;
        let clients =
            sqlx::query("SELECT * FROM relais.client WHERE NOT deleted").fetch_all(&mut *tx).await.map_err(error)?;
        let secrets = sqlx::query(
            "SELECT * FROM relais.signing_secret WHERE expires IS NULL OR expires > now() ORDER BY created DESC",
        )
        .fetch_all(&mut *tx)
        .await
        .map_err(error)?;
        let authorizations =
            sqlx::query("SELECT * FROM relais.authorization").fetch_all(&mut *tx).await.map_err(error)?;
        tx.commit().await?;
        Ok(Declared::new(
            version,
            services.iter().map(service).collect::<Result<_>>()?,
            clients_of(&clients, &secrets)?,
            authorizations.iter().map(authorization).collect::<Result<_>>()?,
        ))
    }

    async fn declared_version(&self) -> Result<i64> {
        sqlx::query_scalar("SELECT version FROM relais.declared")
            .fetch_one(&mut *self.lend().await?)
            .await
            .map_err(error)
    }

    async fn ping(&self) -> Result<Timestamp> {
        let row = sqlx::query("SELECT clock_timestamp() AS now, pg_is_in_recovery() AS standby")
            .fetch_one(&mut *self.lend().await?)
            .await
            .map_err(error)?;
        if row.flag("standby")? {
            return Err(StoreError::Unavailable("the server is a standby: it takes no writes".into()));
        }
        row.moment("now")
    }

    async fn advance(&self, by: Duration) -> Result<()> {
        self.move_back(by).await
    }

    async fn migrate(&self) -> Result<usize> {
        self.migrate_all().await
    }

    async fn hear(&self, heard: &(dyn Fn(Heard<'_>) + Send + Sync)) {
        self.hear_all(heard).await;
    }

    async fn tell(&self, texts: &[String]) -> Result<()> {
        let mut lent = self.lend().await?;
        sqlx::query("SELECT pg_notify($1, text) FROM unnest($2::text[]) AS text")
            .bind(TEXTS)
            .bind(texts)
            .execute(&mut *lent)
            .await
            .map_err(error)?;
        lent.keep();
        Ok(())
    }

    async fn close(&self) {
        self.kept.close();
        self.pool.close().await;
    }
}

/// A row whose columns are found by their names.
trait Named {
    fn get<'r, T>(&'r self, column: &str) -> Result<T>
    where
        T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>;
}

impl Named for PgRow {
    fn get<'r, T>(&'r self, column: &str) -> Result<T>
    where
        T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        self.try_get(column).map_err(error)
    }
}

/// A row of which each column is asked for after the one before it, as a rule: then no name has to be looked up. Of a thousand
/// rows with forty columns, that is a good part of what it takes to read them.
pub(crate) struct InOrder<'a> {
    row: &'a PgRow,
    next: Cell<usize>,
}

/// The same rows, to be read in the order of their columns.
pub(crate) fn in_order(rows: &[PgRow]) -> Vec<InOrder<'_>> {
    rows.iter().map(|row| InOrder { row, next: Cell::new(0) }).collect()
}

/// One column of rows that are alike.
pub(crate) fn ints(rows: &[PgRow], column: &str) -> Result<Vec<i32>> {
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let at = column.index(first).map_err(error)?;
    rows.iter().map(|row| row.try_get(at).map_err(error)).collect()
}

impl Named for InOrder<'_> {
    fn get<'r, T>(&'r self, column: &str) -> Result<T>
    where
        T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        let next = self.next.get();
        let at = match self.row.columns().get(next) {
            Some(found) if found.name() == column => next,
            _ => column.index(self.row).map_err(error)?,
        };
        self.next.set(at + 1);
        self.row.try_get(at).map_err(error)
    }
}

fn get<'r, T>(row: &'r impl Named, column: &str) -> Result<T>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    row.get(column)
}

impl<R: Named> Columns for R {
    plain_columns!();

    fn moment(&self, column: &str) -> Result<Timestamp> {
        Ok(from_sql(get(self, column)?))
    }

    fn moment_if_any(&self, column: &str) -> Result<Option<Timestamp>> {
        Ok(get::<Option<jiff_sqlx::Timestamp>>(self, column)?.map(from_sql))
    }

    fn task_id(&self, column: &str) -> Result<TaskId> {
        Ok(TaskId(get(self, column)?))
    }

    fn task_id_if_any(&self, column: &str) -> Result<Option<TaskId>> {
        Ok(get::<Option<uuid::Uuid>>(self, column)?.map(TaskId))
    }
}
