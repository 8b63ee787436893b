//! The mark in the handler's own transaction: mark and effect commit together, or neither does.
//!
//! There is no claim. Of two transactions with the same message one writes the mark; the other finds the message busy while
//! the first is open (on SQLite: after it has waited for as long as a statement waits), and marked once it has committed.

use std::{fmt, time::Duration};

use sqlx::{Database, Pool};

use super::{DedupConnection, DedupTable, Dialect, purge::Purge, statements::Statements};
use crate::{ClaimOutcome, DedupError, Outcome, consumer::Consumer};

/// After this time a message may be asked for again whose transaction is open.
const WAIT: Duration = Duration::from_secs(1);

/// What became of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "it says whether the message is to be processed"]
pub enum Mark {
    /// It is written in this transaction: process the message and commit.
    Written,
    /// The message was processed before, within the window.
    AlreadyDone,
    /// Somebody else is processing it.
    Busy {
        /// Ask again after this time.
        wait: Duration,
    },
}

/// Processes messages once in a database, with the mark in the handler's own transaction. Cheap to clone.
///
/// ```no_run
/// use relais_dedup::{Outcome, TransactionDedup};
///
/// # async fn example(pool: sqlx::PgPool, order: i64) -> Result<(), relais_dedup::DedupError> {
/// let dedup = TransactionDedup::new("billing")?;
/// dedup.create(&mut *pool.acquire().await?).await?;
///
/// let outcome = dedup.once(&pool, "order-7", async |transaction| {
///     sqlx::query("INSERT INTO bill (order_id) VALUES ($1)").bind(order).execute(transaction).await
/// });
/// assert!(matches!(outcome.await?, Outcome::Done(_)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TransactionDedup {
    table: DedupTable,
    consumer: Consumer,
    purge: Purge,
    postgres: Statements,
    sqlite: Statements,
}

impl fmt::Debug for TransactionDedup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, consumer, .. } = self;
        let mut shown = f.debug_struct("TransactionDedup");
        shown.field("table", table).field("consumer", &consumer.name).field("window", &consumer.window);
        shown.finish_non_exhaustive()
    }
}

impl TransactionDedup {
    /// For the consumer of this name, with a window of 24 h, in the table `relais_dedup`.
    ///
    /// # Errors
    ///
    /// If that can not be a name.
    pub fn new(consumer: &str) -> Result<Self, DedupError> {
        let (table, consumer) = (DedupTable::default(), Consumer::default().named(consumer)?);
        Ok(Self::of(table, consumer))
    }

    fn of(table: DedupTable, consumer: Consumer) -> Self {
        let statements = |dialect| Statements::new(&table, dialect);
        let (postgres, sqlite) = (statements(Dialect::Postgres), statements(Dialect::Sqlite));
        Self { table, consumer, purge: Purge::default(), postgres, sqlite }
    }

    /// In another table.
    pub fn in_table(self, table: DedupTable) -> Self {
        Self::of(table, self.consumer)
    }

    /// How long a message counts as processed.
    pub fn with_window(mut self, window: Duration) -> Self {
        self.consumer.window = window;
        self
    }

    /// What the names of metrics begin with.
    pub fn with_metrics_prefix(self, prefix: &str) -> Self {
        Self { consumer: self.consumer.with_prefix(prefix), ..self }
    }

    /// Checks that the window is longer than the longest time from a message's first delivery to its last retry.
    ///
    /// # Errors
    ///
    /// If it is not.
    pub fn check(&self, longest_retry: Duration) -> Result<(), DedupError> {
        self.consumer.check(longest_retry)
    }

    /// Makes the table, if it is not there.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn create<C: DedupConnection>(&self, connection: &mut C) -> Result<(), DedupError> {
        connection.create(&self.table).await
    }

    /// Runs the handler in a transaction with the mark, unless the message was processed within the window, or is being
    /// processed. If the handler fails, panics or is dropped, all of the transaction is rolled back.
    ///
    /// # Errors
    ///
    /// If the database fails. Then the handler did not run, or its transaction was rolled back, or (if the answer to the commit
    /// was lost) both effect and mark are there.
    pub async fn once<DB, T, E>(
        &self,
        pool: &Pool<DB>,
        id: &str,
        handler: impl AsyncFnOnce(&mut DB::Connection) -> Result<T, E>,
    ) -> Result<Outcome<T, E>, DedupError>
    where
        DB: Database,
        DB::Connection: DedupConnection,
    {
        let outcome = self.try_once(pool, id, handler).await;
        self.consumer.metrics().count(&outcome);
        self.purge.begin_if_due(pool, self.statements::<DB::Connection>());
        outcome
    }

    async fn try_once<DB, T, E>(
        &self,
        pool: &Pool<DB>,
        id: &str,
        handler: impl AsyncFnOnce(&mut DB::Connection) -> Result<T, E>,
    ) -> Result<Outcome<T, E>, DedupError>
    where
        DB: Database,
        DB::Connection: DedupConnection,
    {
        let mut transaction = match pool.begin_with(DB::Connection::BEGIN).await {
            Ok(transaction) => transaction,
            #[cfg(feature = "sqlite")]
            Err(error) if super::connection::is_busy(&error) => return Ok(Outcome::Busy { wait: WAIT }),
            Err(error) => return Err(error.into()),
        };
        let outcome = match self.mark(&mut *transaction, id).await? {
            Mark::Written => match handler(&mut *transaction).await {
                Ok(value) => {
                    transaction.commit().await?;
                    return Ok(Outcome::Done(value));
                }
                Err(error) => Outcome::Failed(error),
            },
            Mark::AlreadyDone => Outcome::AlreadyDone,
            Mark::Busy { wait } => Outcome::Busy { wait },
        };
        // Not later: until then, others find the message busy. If the answer does not come, the connection ends, and so does the
        // transaction.
        let _ = transaction.rollback().await;
        Ok(outcome)
    }

    /// Writes the mark in the transaction that `connection` is in, before the message is processed. What is not
    /// [`Mark::Written`] is not to be processed: roll back, or commit what was there before.
    ///
    /// A transaction on SQLite begins with `BEGIN IMMEDIATE`. Nothing is counted, and nothing purged: see
    /// [`purge`](Self::purge).
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn mark<C: DedupConnection>(&self, connection: &mut C, id: &str) -> Result<Mark, DedupError> {
        let (key, statements) = (self.consumer.key(id)?, self.statements::<C>());
        Ok(match connection.take(statements, &key, None, self.consumer.window, WAIT).await? {
            ClaimOutcome::Claimed => Mark::Written,
            ClaimOutcome::AlreadyDone => Mark::AlreadyDone,
            ClaimOutcome::Busy { wait } => Mark::Busy { wait },
        })
    }

    /// Removes at most `limit` claims and marks that are over; how many there were. [`once`](Self::once) does it by itself.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn purge<C: DedupConnection>(&self, connection: &mut C, limit: u32) -> Result<u64, DedupError> {
        connection.purge(self.statements::<C>(), limit.into()).await
    }

    fn statements<C: DedupConnection>(&self) -> &Statements {
        match C::DIALECT {
            Dialect::Postgres => &self.postgres,
            Dialect::Sqlite => &self.sqlite,
        }
    }
}
