//! Claims on PostgreSQL.

use relais_core::{ServiceKey, Wakeup, wakeup};
use sqlx::{PgConnection, postgres::PgRow};

use crate::{
    claims::statements::{ClaimRows, LockedPending, UnlockedClaims, UnlockedTask, locked_unless_limited},
    counters::postgres::bind_accounts,
    counters::statements::Accounts,
    postgres::row::in_order,
    postgres::session::{PgSession, column},
    postgres::{Postgres, error},
    row::wide,
    session::Result,
    tasks::postgres::bind_tasks,
    tasks::statements::{Locked, WrittenTask},
};

/// The columns that [`crate::claims::statements::named_pending`] reads, except `now`, in the order in which it reads
/// them. The service is joined as `s`. `$retry` is the retry policy, as far as it is needed.
macro_rules! pending_columns {
    ($retry:literal) => {
        concat!(
            "s.name AS service, s.lease_ms, t.rank, t.id, t.task_id, t.service_id, t.client_id, t.seq, s.delivery_limit, ",
            "t.status, t.revision, t.due, t.expires, coalesce(t.timeout_ms, s.timeout_ms) AS timeout_ms, t.attempt, ",
            "t.losses, t.failures, t.progress, t.worker_host, t.started, t.ended, t.lease_until, t.deadline, ",
            "t.callback::text AS callback, t.submitted, t.scheduled, t.correlation_id, ",
            $retry,
            " AS retry, t.unique_key, s.handed, t.batch_id, t.followed, t.after_when, ",
            "t.request::text AS request, t.priority, t.parent_id, t.trace"
        )
    };
}
pub(crate) use pending_columns;

/// Locks up to $2 pending tasks of the service $1, in the order in which claims get them, passing over those that
/// others have locked. The column `flow` says whether the flow of the service is limited; if it is, there are no tasks
/// unless $3. Asking for that first would cost services without limits a statement.
const LOCK_PENDING: &str = concat!(
    "SELECT f.flow, t.* FROM relais.service f LEFT JOIN LATERAL (
         SELECT clock_timestamp() AS now, c.client_id AS client, ",
    pending_columns!("NULL"),
    "    FROM (
             SELECT * FROM relais.task
             WHERE queue_id = $1 AND (
                 SELECT NOT paused AND NOT deleted AND transport = 0 AND (flow = 0 OR $3)
                 FROM relais.service WHERE id = $1
             )
             ORDER BY queue_id, rank, id LIMIT $2
             FOR NO KEY UPDATE SKIP LOCKED
         ) t
         CROSS JOIN LATERAL (SELECT * FROM relais.service WHERE id = t.service_id OFFSET 0) s
         CROSS JOIN LATERAL (SELECT * FROM relais.client WHERE id = t.client_id OFFSET 0) c
     ) t ON true WHERE f.id = $1 ORDER BY t.rank, t.id"
);

/// The same as [`LOCK_PENDING`], without locking.
const PENDING_UNLOCKED: &str = concat!(
    "SELECT f.flow, t.* FROM relais.service f LEFT JOIN LATERAL (
         SELECT clock_timestamp() AS now, c.client_id AS client, ",
    pending_columns!("NULL"),
    "    FROM (
             SELECT * FROM relais.task
             WHERE queue_id = $1 AND (
                 SELECT NOT paused AND NOT deleted AND transport = 0 AND (flow = 0 OR $3)
                 FROM relais.service WHERE id = $1
             )
             ORDER BY queue_id, rank, id LIMIT $2
         ) t
         CROSS JOIN LATERAL (SELECT * FROM relais.service WHERE id = t.service_id OFFSET 0) s
         CROSS JOIN LATERAL (SELECT * FROM relais.client WHERE id = t.client_id OFFSET 0) c
     ) t ON true WHERE f.id = $1 ORDER BY t.rank, t.id"
);

/// Writes tasks (like `WRITE_TASKS` in `tasks/postgres.rs`) and counters (like `ACCOUNT` in `counters/postgres.rs`), if
/// all tasks have the revisions $20 and the flow of the service $21 is not limited. A statement can undo itself only by
/// failing: if a task has changed, it divides by zero.
const WRITE_UNLOCKED: &str = "
    WITH written AS (
        UPDATE relais.task t
        SET status = w.status, attempt = w.attempt, losses = w.losses, revision = w.revision,
            progress = w.progress, worker_host = w.worker_host, started = w.started, ended = w.ended,
            lease_until = w.lease_until, response = w.response::json, error_message = w.error_message,
            error_kind = w.error_kind, error_trace = w.error_trace, failures = w.failures, due = w.due,
            expires = w.expires, deadline = w.deadline, timer = w.timer
        FROM ROWS FROM (
            unnest($1::bigint[], $2::smallint[], $3::integer[], $4::integer[], $5::bigint[], $6::double precision[],
                   $7::text[], $8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::text[], $12::text[],
                   $13::text[], $14::text[], $15::integer[], $16::timestamptz[], $17::timestamptz[],
                   $18::timestamptz[], $19::timestamptz[], $20::bigint[]),
            generate_series(1, cardinality($1))
        ) AS w (id, status, attempt, losses, revision, progress, worker_host, started, ended, lease_until,
                response, error_message, error_kind, error_trace, failures, due, expires, deadline, timer, known)
        WHERE t.id = ANY($1) AND t.id = w.id AND t.revision = w.known
          AND (SELECT flow = 0 FROM relais.service WHERE id = $21)
        RETURNING t.id
    ), departed AS (
        INSERT INTO relais.position_tree AS d (service_id, level, slot, n)
        SELECT * FROM unnest($22::integer[], $23::smallint[], $24::bigint[], $25::bigint[])
        ON CONFLICT (service_id, level, slot) DO UPDATE SET n = d.n + excluded.n
    ), counted AS (
        INSERT INTO relais.counter AS t (service_id, client_id, status, departed, n)
        SELECT * FROM unnest($26::integer[], $27::integer[], $28::smallint[], $29::boolean[], $30::bigint[])
        ON CONFLICT (service_id, client_id, status, departed) DO UPDATE SET n = t.n + excluded.n
    )
    SELECT 1 / (CASE WHEN (SELECT count(*) FROM written) = cardinality($1) THEN 1 ELSE 0 END) AS all_of_them,
           CASE WHEN $32::text IS NOT NULL THEN pg_notify($31, $32)::text END AS told";

/// The SQLSTATE of a division by zero.
const DIVISION_BY_ZERO: &str = "22012";

impl UnlockedClaims for Postgres {
    async fn pending_unlocked(&self, service: ServiceKey, limit: usize) -> Result<Option<Locked<LockedPending>>> {
        let mut lent = self.lend().await?;
        let rows = pending_unlocked(&mut lent, service, limit).await?;
        lent.keep();
        locked_unless_limited(&in_order(&rows), false)
    }

    async fn write_unlocked(
        &self,
        service: ServiceKey,
        tasks: &[UnlockedTask],
        accounts: &Accounts,
        wakeup: &Wakeup,
    ) -> Result<bool> {
        let payload = self.tells_as().filter(|_| !wakeup.is_empty()).map(|origin| wakeup::encode(origin, wakeup));
        let mut lent = self.lend().await?;
        let done = write_unlocked(&mut lent, service, tasks, accounts, payload).await?;
        lent.keep();
        Ok(done)
    }
}

impl ClaimRows for PgSession {
    async fn lock_pending(
        &mut self,
        service: ServiceKey,
        limit: usize,
        counted: bool,
    ) -> Result<Option<Locked<LockedPending>>> {
        lock_pending(&mut self.tx, service, limit, counted).await
    }
}

/// Locks pending tasks, passing over what others have locked.
pub(crate) async fn lock_pending(
    connection: &mut PgConnection,
    service: ServiceKey,
    limit: usize,
    counted: bool,
) -> Result<Option<Locked<LockedPending>>> {
    let pending = sqlx::query(LOCK_PENDING).bind(service.0).bind(wide(limit)).bind(counted);
    let rows = pending.fetch_all(connection).await.map_err(error)?;
    locked_unless_limited(&in_order(&rows), counted)
}

/// Reads pending tasks of a service without locking them.
pub(crate) async fn pending_unlocked(
    connection: &mut PgConnection,
    service: ServiceKey,
    limit: usize,
) -> Result<Vec<PgRow>> {
    let pending = sqlx::query(PENDING_UNLOCKED).bind(service.0).bind(wide(limit)).bind(false);
    pending.fetch_all(connection).await.map_err(error)
}

/// Writes tasks that are not locked, and the counters; false if one has changed or the flow is limited.
pub(crate) async fn write_unlocked(
    connection: &mut PgConnection,
    service: ServiceKey,
    tasks: &[UnlockedTask],
    accounts: &Accounts,
    payload: Option<String>,
) -> Result<bool> {
    let written: Vec<&WrittenTask> = tasks.iter().map(|task| &task.written).collect();
    let statement = bind_tasks(sqlx::query(WRITE_UNLOCKED), &written);
    let statement = statement.bind(column(tasks, |task| wide(task.known))).bind(service.0);
    match bind_accounts(statement, accounts, payload).execute(connection).await {
        Ok(_) => Ok(true),
        Err(sqlx::Error::Database(failure)) if failure.code().as_deref() == Some(DIVISION_BY_ZERO) => Ok(false),
        Err(failure) => Err(error(failure)),
    }
}
