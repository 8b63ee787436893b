//! Running the statements on a connection, in whatever transaction it is in.

use std::{sync::Arc, time::Duration};

use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use super::{DedupTable, Dialect, statements::Statements};
use crate::{ClaimOutcome, ClaimToken, DedupError, DedupKey, Hold};

impl From<sqlx::Error> for DedupError {
    fn from(error: sqlx::Error) -> Self {
        Self::store(error)
    }
}

/// A connection to a database with a table of claims and marks: `PgConnection` or `SqliteConnection`, also in a transaction.
pub trait DedupConnection: sqlx::Connection {
    /// Which SQL it speaks.
    #[doc(hidden)]
    const DIALECT: Dialect;

    /// How a transaction begins that is going to write.
    #[doc(hidden)]
    const BEGIN: &'static str;

    /// See [`TransactionDedup::create`](super::TransactionDedup::create).
    #[doc(hidden)]
    fn create(&mut self, table: &DedupTable) -> impl Future<Output = Result<(), DedupError>> + Send;

    /// Writes a claim, or a mark where there is no token. What is said of a wait that nobody knows is `wait`.
    #[doc(hidden)]
    fn take(
        &mut self,
        statements: &Statements,
        key: &DedupKey,
        token: Option<&ClaimToken>,
        time: Duration,
        wait: Duration,
    ) -> impl Future<Output = Result<ClaimOutcome, DedupError>> + Send;

    /// Inserts, or replaces what is over: `sql` says which. Whether a row was written.
    #[doc(hidden)]
    fn write(
        &mut self,
        sql: &Arc<str>,
        persistent: bool,
        key: &DedupKey,
        token: Option<&ClaimToken>,
        time: Duration,
    ) -> impl Future<Output = Result<bool, DedupError>> + Send;

    /// Whether the message has a mark (true) or a claim (false), and how many seconds are left.
    #[doc(hidden)]
    fn look(
        &mut self,
        statements: &Statements,
        key: &DedupKey,
    ) -> impl Future<Output = Result<Option<(bool, f64)>, DedupError>> + Send;

    /// Extends a claim, or turns it into a mark: `sql` says which.
    #[doc(hidden)]
    fn renew(
        &mut self,
        sql: &Arc<str>,
        key: &DedupKey,
        token: &ClaimToken,
        time: Duration,
    ) -> impl Future<Output = Result<Hold, DedupError>> + Send;

    /// Removes a claim.
    #[doc(hidden)]
    fn release(
        &mut self,
        statements: &Statements,
        key: &DedupKey,
        token: &ClaimToken,
    ) -> impl Future<Output = Result<(), DedupError>> + Send;

    /// Removes what is over; how many rows.
    #[doc(hidden)]
    fn purge(&mut self, statements: &Statements, limit: i64) -> impl Future<Output = Result<u64, DedupError>> + Send;
}

/// Whether somebody else writes to the file, and goes on for longer than a statement waits.
#[cfg(feature = "sqlite")]
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    // SQLITE_BUSY, and its kinds in the higher bytes.
    code.and_then(|code| code.parse::<u32>().ok()).is_some_and(|code| code & 0xff == 5)
}

/// The statements are the same to both databases. What is run seldom is planned each time (`persistent`): a plan that was
/// made while the table was empty would go through all of it later.
macro_rules! dedup_connection {
    ($connection:ty, $dialect:ident, $begin:literal, create: $create:ident) => {
        impl DedupConnection for $connection {
            const DIALECT: Dialect = Dialect::$dialect;
            const BEGIN: &'static str = $begin;

            async fn create(&mut self, table: &DedupTable) -> Result<(), DedupError> {
                $create(self, table).await
            }

            async fn take(
                &mut self,
                statements: &Statements,
                key: &DedupKey,
                token: Option<&ClaimToken>,
                time: Duration,
                wait: Duration,
            ) -> Result<ClaimOutcome, DedupError> {
                // Once more if what was there is removed just now.
                for _ in 0..2 {
                    if self.write(&statements.insert, true, key, token, time).await? {
                        return Ok(ClaimOutcome::Claimed);
                    }
                    match DedupConnection::look(self, statements, key).await? {
                        Some((true, left)) if left > 0.0 => return Ok(ClaimOutcome::AlreadyDone),
                        Some((false, left)) if left > 0.0 => {
                            return Ok(ClaimOutcome::Busy { wait: Duration::from_secs_f64(left) });
                        }
                        Some(_) if self.write(&statements.replace, false, key, token, time).await? => {
                            return Ok(ClaimOutcome::Claimed);
                        }
                        Some(_) | None => {}
                    }
                }
                // A transaction that is open has it.
                Ok(ClaimOutcome::Busy { wait })
            }

            async fn write(
                &mut self,
                sql: &Arc<str>,
                persistent: bool,
                key: &DedupKey,
                token: Option<&ClaimToken>,
                time: Duration,
            ) -> Result<bool, DedupError> {
                let written = sqlx::query(AssertSqlSafe(sql.clone()))
                    .persistent(persistent)
                    .bind(key.consumer())
                    .bind(key.id())
                    .bind(token.map(ClaimToken::as_str))
                    .bind(time.as_secs_f64())
                    .execute(self)
                    .await?;
                Ok(written.rows_affected() > 0)
            }

            async fn look(
                &mut self,
                statements: &Statements,
                key: &DedupKey,
            ) -> Result<Option<(bool, f64)>, DedupError> {
                let row = sqlx::query(AssertSqlSafe(statements.look.clone()))
                    .persistent(false)
                    .bind(key.consumer())
                    .bind(key.id())
                    .fetch_optional(self)
                    .await?;
                row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose()
            }

            async fn renew(
                &mut self,
                sql: &Arc<str>,
                key: &DedupKey,
                token: &ClaimToken,
                time: Duration,
            ) -> Result<Hold, DedupError> {
                let renewed = sqlx::query(AssertSqlSafe(sql.clone()))
                    .bind(key.consumer())
                    .bind(key.id())
                    .bind(token.as_str())
                    .bind(time.as_secs_f64())
                    .execute(self)
                    .await?;
                Ok(if renewed.rows_affected() > 0 { Hold::Held } else { Hold::Lost })
            }

            async fn release(
                &mut self,
                statements: &Statements,
                key: &DedupKey,
                token: &ClaimToken,
            ) -> Result<(), DedupError> {
                sqlx::query(AssertSqlSafe(statements.release.clone()))
                    .persistent(false)
                    .bind(key.consumer())
                    .bind(key.id())
                    .bind(token.as_str())
                    .execute(self)
                    .await?;
                Ok(())
            }

            async fn purge(&mut self, statements: &Statements, limit: i64) -> Result<u64, DedupError> {
                let purge = sqlx::query(AssertSqlSafe(statements.purge.clone())).persistent(false).bind(limit);
                Ok(purge.execute(self).await?.rows_affected())
            }
        }
    };
}

#[cfg(feature = "postgres")]
dedup_connection!(sqlx::PgConnection, Postgres, "BEGIN", create: create_on_postgres);
#[cfg(feature = "sqlite")]
dedup_connection!(sqlx::SqliteConnection, Sqlite, "BEGIN IMMEDIATE", create: create_on_sqlite);

#[cfg(feature = "postgres")]
async fn create_on_postgres(connection: &mut sqlx::PgConnection, table: &DedupTable) -> Result<(), DedupError> {
    // Where the table is there, nothing is locked: others write to it.
    let there = "SELECT to_regclass($1) IS NOT NULL";
    if sqlx::query_scalar(there).bind(table.sql()).fetch_one(&mut *connection).await? {
        return Ok(());
    }
    // Programs that start at once take turns.
    let mut transaction = connection.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('relais_dedup'))").execute(&mut *transaction).await?;
    for statement in table.create_statements(Dialect::Postgres) {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *transaction).await?;
    }
    Ok(transaction.commit().await?)
}

#[cfg(feature = "sqlite")]
async fn create_on_sqlite(connection: &mut sqlx::SqliteConnection, table: &DedupTable) -> Result<(), DedupError> {
    for statement in table.create_statements(Dialect::Sqlite) {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *connection).await?;
    }
    Ok(())
}
