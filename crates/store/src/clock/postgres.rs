//! The clock, on PostgreSQL.

use crate::{
    clock::statements::{Clock, ClockReader, Reading, reading},
    postgres::session::PgSession,
    postgres::{Postgres, error},
    session::Result,
};

const READ: &str = "SELECT clock_timestamp() AS now, stepped FROM relais.clock";

/// What is counted in durations. A task that waits for the date that it was asked for stays as it is.
const MOVE_ALONG: [&str; 7] = [
    "UPDATE relais.task SET lease_until = lease_until + w.by, deadline = deadline + w.by, expires = expires + w.by, due = due + w.by,
         timer = timer + w.by
     FROM (SELECT make_interval(secs => $1 / 1000.0) AS by) w
     WHERE id = ANY(ARRAY(
         SELECT id FROM relais.task WHERE timer IS NOT NULL AND NOT (status + 0 = 5 AND failures = 0)
         ORDER BY id + 0 FOR NO KEY UPDATE
     ))",
    "UPDATE relais.instance SET seen = seen + make_interval(secs => $1 / 1000.0), until = until + make_interval(secs => $1 / 1000.0)",
    "UPDATE relais.dispatch SET due = due + make_interval(secs => $1 / 1000.0)",
    "UPDATE relais.callback SET due = due + make_interval(secs => $1 / 1000.0) WHERE due IS NOT NULL",
    "UPDATE relais.unique_key SET until = until + make_interval(secs => $1 / 1000.0) WHERE until IS NOT NULL",
    "UPDATE relais.idempotency SET created = created + make_interval(secs => $1 / 1000.0)",
    "UPDATE relais.batch_key SET created = created + make_interval(secs => $1 / 1000.0)",
];

impl ClockReader for Postgres {
    async fn read_clock(&self) -> Result<Reading> {
        let mut lent = self.lend().await?;
        let row = sqlx::query(READ).fetch_one(&mut *lent).await.map_err(error)?;
        lent.keep();
        reading(&row)
    }
}

impl Clock for PgSession {
    async fn read_clock(&mut self) -> Result<Reading> {
        reading(&sqlx::query(READ).fetch_one(&mut *self.tx).await.map_err(error)?)
    }

    async fn step_clock(&mut self, known: i64, by: i64) -> Result<bool> {
        let noted = sqlx::query("UPDATE relais.clock SET stepped = stepped + $2 WHERE stepped = $1")
            .bind(known)
            .bind(by)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        if noted.rows_affected() == 0 {
            return Ok(false);
        }
        for statement in MOVE_ALONG {
            sqlx::query(statement).bind(by).execute(&mut *self.tx).await.map_err(error)?;
        }
        Ok(true)
    }
}
