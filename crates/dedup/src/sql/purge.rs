//! Removing what is over, beside the work: a process that claims or marks looks every few seconds.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sqlx::{Database, Pool};
use tokio::time::Instant;

use super::{DedupConnection, statements::Statements};
use crate::DedupError;

/// How often a process looks.
const EVERY: Duration = Duration::from_secs(5);

/// So many rows in a statement: it is short, whatever the number of rows that are over.
const BATCH: i64 = 1000;

/// Knows when it is time again. Its clones share that.
#[derive(Debug, Clone, Default)]
pub(crate) struct Purge(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    runs: bool,
}

impl Purge {
    /// Removes what is over in the background, if it is time and nobody in this process is at it.
    pub(crate) fn begin_if_due<DB>(&self, pool: &Pool<DB>, statements: &Statements)
    where
        DB: Database,
        DB::Connection: DedupConnection,
    {
        {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if state.runs || state.last.is_some_and(|last| last.elapsed() < EVERY) {
                return;
            }
            *state = State { last: Some(Instant::now()), runs: true };
        }
        let (this, pool, statements) = (self.clone(), pool.clone(), statements.clone());
        tokio::spawn(async move {
            if let Err(error) = purge_all(&pool, &statements).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "failed to purge marks of processed messages");
            }
            this.0.lock().unwrap_or_else(PoisonError::into_inner).runs = false;
        });
    }
}

/// Batch by batch, until one is not full.
async fn purge_all<DB>(pool: &Pool<DB>, statements: &Statements) -> Result<(), DedupError>
where
    DB: Database,
    DB::Connection: DedupConnection,
{
    while purge(pool, statements, BATCH).await? >= BATCH.unsigned_abs() {}
    Ok(())
}

/// One batch; how many rows.
pub(crate) async fn purge<DB>(pool: &Pool<DB>, statements: &Statements, limit: i64) -> Result<u64, DedupError>
where
    DB: Database,
    DB::Connection: DedupConnection,
{
    pool.acquire().await?.purge(statements, limit).await
}
