//! One transaction on SQLite. It is the only one that writes, so nothing is locked row by row. What is said in it is in
//! the folders of the features.

use std::{sync::Arc, time::Duration};

use relais_core::StoreError;
use sqlx::{SqlitePool, SqliteTransaction, sqlite::SqliteRow};

use crate::{
    row::in_millis,
    session::{Result, Session},
    sqlite::error,
    sqlite::proof::Proof,
    sqlite::values::{Statement, array},
};

/// One transaction.
pub(crate) struct SqliteSession {
    pub(crate) tx: SqliteTransaction<'static>,
    pub(crate) proof: Arc<Proof>,
    /// Whether it has written something: only that shows that writes are taken.
    pub(crate) wrote: bool,
}

impl SqliteSession {
    pub(crate) async fn begin(pool: &SqlitePool, proof: &Arc<Proof>) -> Result<Self> {
        let tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(|failure| {
            proof.note(false);
            error(failure)
        })?;
        Ok(Self { tx, proof: Arc::clone(proof), wrote: false })
    }

    /// Writes something that nobody reads.
    pub(crate) async fn touch(&mut self) -> Result<()> {
        self.wrote = true;
        sqlx::query(concat!(
            "INSERT INTO chore (name, begun) VALUES ('ping', ",
            now!(),
            ") ON CONFLICT (name) DO UPDATE SET begun = excluded.begun"
        ))
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    /// What a failure means; and that from now on only a write shows that writes are taken.
    pub(crate) fn failed(&self, failure: sqlx::Error) -> StoreError {
        self.proof.note(false);
        error(failure)
    }

    /// Executes a statement; tells how many rows it changed.
    pub(crate) async fn change(&mut self, statement: Statement<'_>) -> Result<u64> {
        let done = statement.execute(&mut *self.tx).await;
        done.map(|done| done.rows_affected()).map_err(|failure| self.failed(failure))
    }

    /// Reads the rows of a statement.
    pub(crate) async fn rows(&mut self, statement: Statement<'_>) -> Result<Vec<SqliteRow>> {
        let rows = statement.fetch_all(&mut *self.tx).await;
        rows.map_err(|failure| self.failed(failure))
    }

    /// Executes a statement over a batch.
    pub(crate) async fn execute<T: serde::Serialize>(&mut self, statement: &'static str, batch: &[T]) -> Result<()> {
        let done = sqlx::query(statement).bind(array(batch)?).execute(&mut *self.tx).await;
        done.map(drop).map_err(|failure| self.failed(failure))
    }

    /// Reads rows over a batch.
    pub(crate) async fn fetch<T: serde::Serialize>(
        &mut self,
        statement: &'static str,
        batch: &[T],
    ) -> Result<Vec<SqliteRow>> {
        let rows = sqlx::query(statement).bind(array(batch)?).fetch_all(&mut *self.tx).await;
        rows.map_err(|failure| self.failed(failure))
    }
}

impl Session for SqliteSession {
    async fn take_turn(&mut self, chore: &str, period: Duration) -> Result<bool> {
        let done = sqlx::query(concat!(
            "INSERT INTO chore (name, begun) VALUES (?1, ",
            now!(),
            ") ON CONFLICT (name) DO UPDATE SET begun = excluded.begun WHERE begun <= excluded.begun - ?2"
        ))
        .bind(chore)
        .bind(in_millis(period))
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(done.rows_affected() > 0)
    }

    /// There are no other processes.
    async fn commit(self) -> Result<()> {
        let done = self.tx.commit().await;
        if self.wrote || done.is_err() {
            self.proof.note(done.is_ok());
        }
        done.map_err(error)
    }
}
