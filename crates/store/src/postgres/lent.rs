//! A connection of the pool, lent to one call.
//!
//! A peer that vanished without a word (a failover, a firewall that forgot its connections) leaves connections that are
//! open and silent for ever. A call that uses one is given up by whoever waits for it; but sqlx asks a connection that
//! comes back whether it is alive, and waits for the answer as long as it takes, so that each such connection would take
//! a place in the pool for ever. Hence here: the way back has a deadline, and one silent connection makes all of its age
//! suspect.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use sqlx::{PgConnection, PgPool, Postgres, pool::PoolConnection};
use tokio::time::timeout;

use super::error;
use crate::session::Result;

/// How long a connection that comes back may take to say that it is alive, and to roll back.
const RETURN: Duration = Duration::from_secs(2);

/// A connection that was kept for so long probably said nothing all the while.
const SILENCE: Duration = Duration::from_secs(10);

/// Which connections of the pool can be used without asking.
#[derive(Debug, Clone, Default)]
pub(super) struct Trust(Arc<Mutex<Option<Instant>>>);

impl Trust {
    /// Whether a connection of this age can be used.
    pub(super) fn covers(&self, age: Duration) -> bool {
        let lost = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lost.is_none_or(|lost| lost.elapsed() > age)
    }

    /// One was silent: others that are open now may be dead as well.
    fn lose(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

/// A connection; it goes back when this is dropped, and what was begun on it and not committed never was.
pub(super) struct Lent {
    /// There until this is dropped.
    connection: Option<PoolConnection<Postgres>>,
    trust: Trust,
    since: Instant,
    in_transaction: bool,
}

impl Lent {
    pub(super) async fn take(pool: &PgPool, trust: &Trust) -> Result<Self> {
        let connection = pool.acquire().await.map_err(error)?;
        Ok(Self { connection: Some(connection), trust: trust.clone(), since: Instant::now(), in_transaction: false })
    }

    /// Begins a transaction, with `BEGIN` or a statement that says more.
    pub(super) async fn begin(&mut self, statement: &'static str) -> Result<()> {
        // Before it is sent: it may be given up while the answer is under way.
        self.in_transaction = true;
        sqlx::raw_sql(statement).execute(&mut **self).await.map_err(error)?;
        Ok(())
    }

    pub(super) async fn commit(mut self) -> Result<()> {
        sqlx::raw_sql("COMMIT").execute(&mut *self).await.map_err(error)?;
        self.in_transaction = false;
        Ok(())
    }
}

impl Deref for Lent {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        match &self.connection {
            Some(connection) => connection,
            None => unreachable!("a connection is there until it is given back"),
        }
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut PgConnection {
        match &mut self.connection {
            Some(connection) => connection,
            None => unreachable!("a connection is there until it is given back"),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        if self.since.elapsed() > SILENCE {
            self.trust.lose();
        }
        tokio::spawn(give_back(connection, self.in_transaction, self.trust.clone()));
    }
}

/// Puts a connection back into the pool if it is alive, and closes it otherwise; its place is free either way.
async fn give_back(mut connection: PoolConnection<Postgres>, in_transaction: bool, trust: Trust) {
    if in_transaction {
        let rolled_back = timeout(RETURN, sqlx::raw_sql("ROLLBACK").execute(&mut *connection)).await;
        if !matches!(rolled_back, Ok(Ok(_))) {
            if rolled_back.is_err() {
                trust.lose();
            }
            // Not put back but dropped, which closes the socket.
            drop(connection.detach());
            return;
        }
    }
    // Given up, the connection goes with what was waiting for it.
    if timeout(RETURN, connection.return_to_pool()).await.is_err() {
        trust.lose();
    }
}
