//! The store of claims and marks on a pool of connections.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{Database, Pool};

use super::{DedupConnection, DedupTable, purge::Purge, statements::Statements};
use crate::{ClaimOutcome, ClaimToken, DedupError, DedupKey, DedupStore, Hold};

/// Claims and marks in a table. Each is a statement, which commits by itself.
///
/// What is over is removed in the background every few seconds, as long as something is claimed. Cheap to clone.
#[derive(Debug)]
pub struct SqlDedup<DB: Database> {
    pool: Pool<DB>,
    table: DedupTable,
    statements: Statements,
    purge: Purge,
}

impl<DB: Database> Clone for SqlDedup<DB> {
    fn clone(&self) -> Self {
        let Self { pool, table, statements, purge } = self;
        Self { pool: pool.clone(), table: table.clone(), statements: statements.clone(), purge: purge.clone() }
    }
}

impl<DB: Database> SqlDedup<DB>
where
    DB::Connection: DedupConnection,
{
    /// In the table `relais_dedup`.
    pub fn new(pool: Pool<DB>) -> Self {
        Self::in_table(pool, DedupTable::default())
    }

    /// In another table.
    pub fn in_table(pool: Pool<DB>, table: DedupTable) -> Self {
        let statements = Statements::new(&table, DB::Connection::DIALECT);
        Self { pool, table, statements, purge: Purge::default() }
    }

    /// Makes the table, if it is not there. [`DedupTable::create_statements`] has the statements, to run them by hand.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn create(&self) -> Result<(), DedupError> {
        self.pool.acquire().await?.create(&self.table).await
    }

    /// Removes at most `limit` claims and marks that are over; how many there were.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn purge(&self, limit: u32) -> Result<u64, DedupError> {
        super::purge::purge(&self.pool, &self.statements, limit.into()).await
    }
}

#[async_trait]
impl<DB: Database> DedupStore for SqlDedup<DB>
where
    DB::Connection: DedupConnection,
{
    async fn claim(&self, key: &DedupKey, token: &ClaimToken, claim: Duration) -> Result<ClaimOutcome, DedupError> {
        self.purge.begin_if_due(&self.pool, &self.statements);
        self.pool.acquire().await?.take(&self.statements, key, Some(token), claim, claim).await
    }

    async fn extend(&self, key: &DedupKey, token: &ClaimToken, claim: Duration) -> Result<Hold, DedupError> {
        self.pool.acquire().await?.renew(&self.statements.extend, key, token, claim).await
    }

    async fn mark(&self, key: &DedupKey, token: &ClaimToken, window: Duration) -> Result<Hold, DedupError> {
        self.pool.acquire().await?.renew(&self.statements.mark, key, token, window).await
    }

    async fn release(&self, key: &DedupKey, token: &ClaimToken) -> Result<(), DedupError> {
        self.pool.acquire().await?.release(&self.statements, key, token).await
    }

    async fn is_marked(&self, key: &DedupKey) -> Result<bool, DedupError> {
        let found = self.pool.acquire().await?.look(&self.statements, key).await?;
        Ok(found.is_some_and(|(is_mark, left)| is_mark && left > 0.0))
    }
}
