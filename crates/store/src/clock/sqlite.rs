//! The clock, on SQLite: that of the machine.

use crate::{
    clock::statements::{Clock, ClockReader, Reading, reading},
    session::Result,
    sqlite::session::SqliteSession,
    sqlite::{Sqlite, error},
};

const READ: &str = concat!("SELECT ", now!(), " AS now, stepped FROM clock");

/// What is counted in durations. A task that waits for the date that it was asked for stays as it is, and so does what
/// is due as late as can be.
const MOVE_ALONG: [&str; 7] = [
    "UPDATE task SET lease_until = lease_until + ?1, deadline = deadline + ?1, expires = expires + ?1, due = due + ?1,
         timer = timer + ?1 WHERE timer IS NOT NULL AND NOT (status = 5 AND failures = 0)",
    "UPDATE instance SET seen = seen + ?1, until = until + ?1",
    "UPDATE dispatch SET due = due + ?1 WHERE due < 9000000000000000",
    "UPDATE callback SET due = due + ?1 WHERE due IS NOT NULL",
    "UPDATE unique_key SET until = until + ?1 WHERE until IS NOT NULL",
    "UPDATE idempotency SET created = created + ?1",
    "UPDATE batch_key SET created = created + ?1",
];

impl ClockReader for Sqlite {
    async fn read_clock(&self) -> Result<Reading> {
        reading(&sqlx::query(READ).fetch_one(&self.read).await.map_err(error)?)
    }
}

impl Clock for SqliteSession {
    async fn read_clock(&mut self) -> Result<Reading> {
        let row = sqlx::query(READ).fetch_one(&mut *self.tx).await.map_err(|failure| self.failed(failure))?;
        reading(&row)
    }

    async fn step_clock(&mut self, known: i64, by: i64) -> Result<bool> {
        let noted = sqlx::query("UPDATE clock SET stepped = stepped + ?2 WHERE stepped = ?1").bind(known).bind(by);
        let noted = noted.execute(&mut *self.tx).await.map_err(|failure| self.failed(failure))?;
        if noted.rows_affected() == 0 {
            return Ok(false);
        }
        for statement in MOVE_ALONG {
            sqlx::query(statement).bind(by).execute(&mut *self.tx).await.map_err(|failure| self.failed(failure))?;
        }
        Ok(true)
    }
}
