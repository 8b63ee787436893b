//! What a drain costs besides time: processor time of the engine's process and of PostgreSQL, and what is written
//! ahead.

use anyhow::Result;
use sqlx::{Connection, PgConnection};

use crate::cpu::{self, Split};

/// Reads what was spent on a PostgreSQL server, and in a process that uses it.
#[derive(Debug)]
pub struct Meter {
    /// PostgreSQL's first process.
    database: u32,
    url: String,
}

/// What was spent so far, or for one task.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spent {
    /// The engine's process as `server`, and PostgreSQL.
    pub split: Split,
    /// Bytes of the write-ahead log.
    pub wal: f64,
}

impl Spent {
    /// What was spent since `before`, for one of the `done` tasks.
    pub fn since(self, before: Self, done: f64) -> Self {
        Self { split: self.split.since(before.split, done), wal: (self.wal - before.wal) / done.max(1.0) }
    }
}

impl Meter {
    /// Of the server with this first process, which is asked at this address.
    pub fn new(database: u32, url: String) -> Self {
        Self { database, url }
    }

    /// What the server and this process have spent so far.
    pub async fn read(&self, engine: u32) -> Result<Spent> {
        let mut connection = PgConnection::connect(&self.url).await?;
        let wal = sqlx::query_scalar("SELECT (pg_current_wal_insert_lsn() - '0/0')::double precision")
            .fetch_one(&mut connection)
            .await?;
        connection.close().await?;
        let database = cpu::of_family(self.database)?;
        Ok(Spent { split: Split { database, ..of_process(engine)? }, wal })
    }
}

/// What a process has spent so far.
pub fn of_process(engine: u32) -> Result<Split> {
    Ok(Split { server: cpu::of_process(engine)?, ..Split::default() })
}
