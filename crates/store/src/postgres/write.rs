//! Writing what tasks become, and the counters: each by itself within a transaction, or all of it in one statement that is a
//! transaction of its own.

use relais_core::{Json, ServiceKey, Wakeup, wakeup};
use sqlx::{
    PgConnection,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::{
    CHANNEL, Postgres, error,
    read::in_order,
    session::{column, pending_tasks},
    to_sql,
};
use crate::{
    row::{locked_unless_limited, signed, wide},
    session::{Accounts, Locked, LockedPending, Result, UnlockedTask, WrittenTask},
};

pub(crate) type Statement<'q> = Query<'q, sqlx::Postgres, PgArguments>;

/// Rows `w` of which a table is to be written, from arrays as they are bound; `$1` are their keys. To whom their number is
/// unknown, an array is ten rows, few enough to go through all of them for each row of the table, and a series is a thousand.
macro_rules! written_rows {
    ($($arrays:expr),*) => {
        concat!("ROWS FROM (unnest(", $($arrays,)* "), generate_series(1, cardinality($1)))")
    };
}
pub(crate) use written_rows;

/// What tasks become: $1 to $19 are the columns of [`bind_tasks`]. `also` is a further condition on a task `t` and its new row `w`.
macro_rules! update_tasks {
    ($more_columns:literal, $more_names:literal, $also:literal) => {
        concat!(
            "UPDATE relais.task t
             SET status = w.status, attempt = w.attempt, losses = w.losses, revision = w.revision,
                 progress = w.progress, worker_host = w.worker_host, started = w.started, ended = w.ended,
                 lease_until = w.lease_until, response = w.response::json, error_message = w.error_message,
                 error_kind = w.error_kind, error_trace = w.error_trace, failures = w.failures, due = w.due,
                 expires = w.expires, deadline = w.deadline, timer = w.timer
             FROM ",
            written_rows!(
                "$1::bigint[], $2::smallint[], $3::integer[], $4::integer[], $5::bigint[], $6::double precision[],
                 $7::text[], $8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::text[], $12::text[],
                 $13::text[], $14::text[], $15::integer[], $16::timestamptz[], $17::timestamptz[], $18::timestamptz[],
                 $19::timestamptz[]",
                $more_columns
            ),
            " AS w (id, status, attempt, losses, revision, progress, worker_host, started, ended, lease_until,
                     response, error_message, error_kind, error_trace, failures, due, expires, deadline, timer",
            $more_names,
            ") WHERE t.id = ANY($1) AND t.id = w.id",
            $also
        )
    };
}

/// Two parts of a statement that add to the counters. Which of its parts runs first is PostgreSQL's choice, but always the
/// same one: whoever writes to either table beside other writers does it by this.
macro_rules! add_to_counters {
    ($departures:literal, $counts:literal) => {
        concat!(
            "departed AS (
                 INSERT INTO relais.departure AS d (service_id, level, slot, n)
                 SELECT * FROM unnest(",
            $departures,
            ") ON CONFLICT (service_id, level, slot) DO UPDATE SET n = d.n + excluded.n
             ), counted AS (
                 INSERT INTO relais.tally AS t (service_id, client_id, status, departed, n)
                 SELECT * FROM unnest(",
            $counts,
            ") ON CONFLICT (service_id, client_id, status, departed) DO UPDATE SET n = t.n + excluded.n
             )"
        )
    };
}

fn bind_tasks<'q>(statement: Statement<'q>, tasks: &[&'q WrittenTask]) -> Statement<'q> {
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

fn bind_accounts<'q>(statement: Statement<'q>, accounts: &Accounts, payload: Option<String>) -> Statement<'q> {
    let (counts, departures) = (&accounts.counts, &accounts.departures);
    statement
        .bind(column(departures, |(service, ..)| service.0))
        .bind(column(departures, |(_, node, _)| node.level))
        .bind(column(departures, |(_, node, _)| node.slot))
        .bind(column(departures, |&(.., n)| n))
        .bind(column(counts, |(counter, _)| counter.service.0))
        .bind(column(counts, |(counter, _)| counter.client.0))
        .bind(column(counts, |(counter, _)| counter.status.code()))
        .bind(column(counts, |(counter, _)| counter.departed))
        .bind(column(counts, |&(_, n)| n))
        .bind(CHANNEL)
        .bind(payload)
}

/// Writes what tasks become that are locked.
pub(crate) async fn tasks(connection: &mut PgConnection, tasks: &[WrittenTask]) -> Result<()> {
    let tasks: Vec<&WrittenTask> = tasks.iter().collect();
    let statement = bind_tasks(sqlx::query(update_tasks!("", "", "")), &tasks);
    statement.execute(connection).await.map_err(error)?;
    Ok(())
}

/// Adds to the counters, and tells other processes. All in one statement: it is one round trip, made while others wait for
/// these rows.
pub(crate) async fn accounts(
    connection: &mut PgConnection,
    accounts: &Accounts,
    payload: Option<String>,
) -> Result<()> {
    let statement = sqlx::query(concat!(
        "WITH ",
        add_to_counters!(
            "$1::integer[], $2::smallint[], $3::bigint[], $4::bigint[]",
            "$5::integer[], $6::integer[], $7::smallint[], $8::boolean[], $9::bigint[]"
        ),
        " SELECT pg_notify($10, $11::text) WHERE $11 IS NOT NULL"
    ));
    bind_accounts(statement, accounts, payload).execute(connection).await.map_err(error)?;
    Ok(())
}

/// Pending tasks of a service as a claim would lock them.
pub(crate) async fn pending_unlocked(
    connection: &mut PgConnection,
    service: ServiceKey,
    limit: usize,
) -> Result<Vec<PgRow>> {
    let pending = sqlx::query(pending_tasks!("")).bind(service.0).bind(wide(limit)).bind(false);
    pending.fetch_all(connection).await.map_err(error)
}

/// The code of a division by zero.
const DIVISION_BY_ZERO: &str = "22012";

/// Writes what tasks become that are not locked, and the counters. A statement can not take itself back but by failing: where a task
/// has changed, it divides by nothing.
pub(crate) async fn unlocked(
    connection: &mut PgConnection,
    service: ServiceKey,
    tasks: &[UnlockedTask],
    accounts: &Accounts,
    payload: Option<String>,
) -> Result<bool> {
    let statement = sqlx::query(concat!(
        "WITH written AS (",
        update_tasks!(
            ", $20::bigint[]",
            ", known",
            " AND t.revision = w.known AND (SELECT flow = 0 FROM relais.service WHERE id = $21) RETURNING t.id"
        ),
        "), ",
        add_to_counters!(
            "$22::integer[], $23::smallint[], $24::bigint[], $25::bigint[]",
            "$26::integer[], $27::integer[], $28::smallint[], $29::boolean[], $30::bigint[]"
        ),
        " SELECT 1 / (CASE WHEN (SELECT count(*) FROM written) = cardinality($1) THEN 1 ELSE 0 END) AS all_of_them,
                 CASE WHEN $32::text IS NOT NULL THEN pg_notify($31, $32)::text END AS told"
    ));
    let written: Vec<&WrittenTask> = tasks.iter().map(|task| &task.written).collect();
    let statement = bind_tasks(statement, &written).bind(column(tasks, |task| wide(task.known))).bind(service.0);
    match bind_accounts(statement, accounts, payload).execute(connection).await {
        Ok(_) => Ok(true),
        Err(sqlx::Error::Database(failure)) if failure.code().as_deref() == Some(DIVISION_BY_ZERO) => Ok(false),
        Err(failure) => Err(error(failure)),
    }
}

impl Postgres {
    /// Pending tasks as a claim would lock them.
    pub(crate) async fn read_pending(
        &self,
        service: ServiceKey,
        limit: usize,
    ) -> Result<Option<Locked<LockedPending>>> {
        let mut lent = self.lend().await?;
        let rows = pending_unlocked(&mut lent, service, limit).await?;
        lent.keep();
        locked_unless_limited(&in_order(&rows), false)
    }

    /// Writes what tasks become that are not locked, if all of them are what they were, and the flow of their service is not
    /// limited.
    pub(crate) async fn write_in_one_statement(
        &self,
        service: ServiceKey,
        tasks: &[UnlockedTask],
        accounts: &Accounts,
        wakeup: &Wakeup,
    ) -> Result<bool> {
        let payload = self.tells_as().filter(|_| !wakeup.is_empty()).map(|origin| wakeup::encode(origin, wakeup));
        let mut lent = self.lend().await?;
        let done = unlocked(&mut lent, service, tasks, accounts, payload).await?;
        lent.keep();
        Ok(done)
    }
}
