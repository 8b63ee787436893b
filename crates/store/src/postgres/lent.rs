//! A connection of the pool, lent to one call.
//!
//! A peer that vanished without a word (a failover, a firewall that forgot its connections) leaves connections that are
//! open and silent for ever. A call that uses one is given up by whoever waits for it; but sqlx asks a connection that
//! comes back whether it is alive, and waits for the answer as long as it takes, so that each such connection would
//! take a place in the pool for ever. Hence here: the way back has a deadline, and one silent connection makes all of
//! its age suspect.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use sqlx::{PgConnection, PgPool, Postgres, pool::PoolConnection};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::error;
use crate::session::Result;

/// How long a connection that comes back may take to say that it is alive, and to roll back.
const RETURN: Duration = Duration::from_secs(2);

/// After so long without a call, a connection is asked again.
const FRESH: Duration = Duration::from_secs(30);

/// A connection that was kept for so long probably said nothing all the while.
const SILENCE: Duration = Duration::from_secs(10);

/// Which connections of the pool can be used without asking.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trust(Arc<Mutex<Option<Instant>>>);

impl Trust {
    /// Whether a connection of this age can be used.
    pub(crate) fn covers(&self, age: Duration) -> bool {
        let lost = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lost.is_none_or(|lost| lost.elapsed() > age)
    }

    /// One was silent: others that are open now may be dead as well.
    fn lose(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

/// Connections that did their last call well, ready for the next one. Going back to the pool would cost a round trip,
/// since it asks whether they are alive; they just said so.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    shelf: Arc<Mutex<Shelf>>,
    /// One for each connection that may be open. Calls queue here and not at the pool, which does not see what is kept.
    turns: Arc<Semaphore>,
    patience: Duration,
}

#[derive(Debug, Default)]
struct Shelf {
    closed: bool,
    connections: Vec<(PoolConnection<Postgres>, Instant)>,
}

impl Kept {
    /// For a pool of so many connections, whose callers wait so long for one.
    pub(crate) fn new(connections: u32, patience: Duration) -> Self {
        Self { shelf: Arc::default(), turns: Arc::new(Semaphore::new(connections as usize)), patience }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn turn(&self) -> Result<OwnedSemaphorePermit> {
        match timeout(self.patience, Arc::clone(&self.turns).acquire_owned()).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) => Err(error(sqlx::Error::PoolClosed)),
            Err(_) => Err(error(sqlx::Error::PoolTimedOut)),
        }
    }

    /// The one that was used last, if it can be used without asking.
    fn pop(&self, trust: &Trust) -> Option<PoolConnection<Postgres>> {
        loop {
            let (connection, kept) = self.shelf().connections.pop()?;
            if kept.elapsed() < FRESH && trust.covers(kept.elapsed()) {
                return Some(connection);
            }
            tokio::spawn(give_back(connection, false, trust.clone()));
        }
    }

    fn push(&self, connection: PoolConnection<Postgres>) {
        let mut shelf = self.shelf();
        if !shelf.closed {
            shelf.connections.push((connection, Instant::now()));
        }
    }

    /// Gives all back, and keeps none from now on.
    pub(crate) fn close(&self) {
        let mut shelf = self.shelf();
        shelf.closed = true;
        shelf.connections.clear();
        self.turns.close();
    }
}

/// A connection; it goes back when this is dropped, and what was begun on it and not committed never was.
pub(crate) struct Lent {
    /// There until this is dropped.
    connection: Option<PoolConnection<Postgres>>,
    trust: Trust,
    kept: Kept,
    since: Instant,
    in_transaction: bool,
    /// Dropped last: whoever is next finds the connection on the shelf.
    _turn: OwnedSemaphorePermit,
}

impl Lent {
    pub(crate) async fn take(pool: &PgPool, trust: &Trust, kept: &Kept) -> Result<Self> {
        let turn = kept.turn().await?;
        let connection = match kept.pop(trust) {
            Some(connection) => connection,
            None => pool.acquire().await.map_err(error)?,
        };
        let (trust, kept) = (trust.clone(), kept.clone());
        Ok(Self {
            connection: Some(connection),
            trust,
            kept,
            since: Instant::now(),
            in_transaction: false,
            _turn: turn,
        })
    }

    /// The call went well: the connection is ready for the next one as it is.
    pub(crate) fn keep(mut self) {
        if let Some(connection) = self.connection.take() {
            self.kept.push(connection);
        }
    }

    /// Begins a transaction, with `BEGIN` or a statement that says more.
    pub(crate) async fn begin(&mut self, statement: &'static str) -> Result<()> {
        // Before it is sent: it may be given up while the answer is under way.
        self.in_transaction = true;
        sqlx::raw_sql(statement).execute(&mut **self).await.map_err(error)?;
        Ok(())
    }

    pub(crate) async fn commit(mut self) -> Result<()> {
        sqlx::raw_sql("COMMIT").execute(&mut *self).await.map_err(error)?;
        self.in_transaction = false;
        self.keep();
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
