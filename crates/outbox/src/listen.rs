//! Wakes a relay when an outbox on PostgreSQL has new rows.
//!
//! `NOTIFY` is costly to writers: transactions that notify commit one after the other, each with its wait for the disk. So the
//! trigger notifies only while a relay waits. An advisory lock of the table tells: a relay that waits has it, or waits for it,
//! and a writer tries to share it. If that fails, the writer notifies. If it succeeds, nobody waits, and the writer keeps its
//! share until its transaction has ended: whoever begins to wait gets the lock after that, and then reads once more. A relay
//! that gets the lock notifies all others, since they may wait for it without ever getting it.
//!
//! A wake-up is a hint. If a connection is lost, relays find new rows when they poll.

use std::{sync::Arc, time::Duration};

use sqlx::{Connection as _, PgConnection, postgres::PgListener};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{sleep, sleep_until},
};

use crate::{TableName, table::CHANNEL};

type Result<T> = std::result::Result<T, sqlx::Error>;

/// How long to wait before it listens again after a connection was lost.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// How long a relay may be between two waits before writers stop to notify it.
const BETWEEN_WAITS: Duration = Duration::from_millis(100);

/// What the relay does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RelayState {
    /// It waits for new rows, and wants to be told.
    Waits,
    /// It looks whether there are new rows, or does something else for a moment.
    Looks,
    /// It has found rows: it reads again before it waits, so that nobody need tell it.
    Publishes,
}

/// Listens for new rows of one table, for one relay.
#[derive(Debug)]
pub(crate) struct RowListener {
    state: watch::Sender<RelayState>,
    heard: Arc<Notify>,
    task: JoinHandle<()>,
}

impl RowListener {
    /// Begins to listen.
    pub(crate) fn start(url: String, table: TableName) -> Self {
        let (state, states) = watch::channel(RelayState::Looks);
        let heard = Arc::new(Notify::new());
        let listening = Listening { url, table, states, heard: Arc::clone(&heard) };
        Self { state, heard, task: tokio::spawn(listening.run()) }
    }

    /// Waits until there may be new rows.
    pub(crate) async fn wait(&self) {
        self.state.send_replace(RelayState::Waits);
        let _looks_afterwards = Afterwards(&self.state);
        self.heard.notified().await;
    }

    /// The relay has found rows.
    pub(crate) fn found_rows(&self) {
        self.state.send_if_modified(|state| std::mem::replace(state, RelayState::Publishes) != RelayState::Publishes);
    }
}

impl Drop for RowListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Says that the relay waits no longer, also if its wait is broken off.
struct Afterwards<'a>(&'a watch::Sender<RelayState>);

impl Drop for Afterwards<'_> {
    fn drop(&mut self) {
        self.0.send_replace(RelayState::Looks);
    }
}

/// The task that has the connections.
struct Listening {
    url: String,
    table: TableName,
    states: watch::Receiver<RelayState>,
    heard: Arc<Notify>,
}

impl Listening {
    async fn run(mut self) {
        loop {
            if let Err(error) = self.listen().await {
                tracing::debug!(table = %self.table, %error, "does not hear of new rows for now");
            }
            // What was said meanwhile is lost.
            self.heard.notify_one();
            sleep(LISTEN_AGAIN).await;
        }
    }

    async fn listen(&mut self) -> Result<()> {
        let mut listener = PgListener::connect(&self.url).await?;
        // A connection that is lost is to be noticed here.
        listener.eager_reconnect(false);
        listener.listen(CHANNEL).await?;
        let mut lock = TableLock::connect(&self.url, self.table.clone()).await?;
        loop {
            while *self.states.borrow_and_update() != RelayState::Waits {
                tokio::select! {
                    // It may wait for the lock for long after that, and this is not said again.
                    heard = listener.try_recv() => self.hear(heard?)?,
                    changed = self.states.changed() => changed.map_err(|_| closed())?,
                }
            }
            {
                let mut taken = std::pin::pin!(lock.take());
                loop {
                    tokio::select! {
                        taken = &mut taken => break taken?,
                        heard = listener.try_recv() => self.hear(heard?)?,
                    }
                }
            }
            self.until_relay_publishes(&mut listener).await?;
            lock.release().await?;
        }
    }

    /// Wakes the relay whenever somebody notifies, until it has found rows or does not wait any more.
    async fn until_relay_publishes(&mut self, listener: &mut PgListener) -> Result<()> {
        let mut since = tokio::time::Instant::now();
        loop {
            let state = *self.states.borrow_and_update();
            if state == RelayState::Publishes {
                return Ok(());
            }
            tokio::select! {
                heard = listener.try_recv() => self.hear(heard?)?,
                changed = self.states.changed() => {
                    changed.map_err(|_| closed())?;
                    since = tokio::time::Instant::now();
                }
                () = sleep_until(since + BETWEEN_WAITS), if state == RelayState::Looks => return Ok(()),
            }
        }
    }

    fn hear(&self, notification: Option<sqlx::postgres::PgNotification>) -> Result<()> {
        let notification = notification.ok_or_else(closed)?;
        if notification.payload() == self.table.to_string() {
            self.heard.notify_one();
        }
        Ok(())
    }
}

/// The advisory lock that tells writers that a relay waits.
struct TableLock {
    connection: PgConnection,
    table: TableName,
}

impl TableLock {
    async fn connect(url: &str, table: TableName) -> Result<Self> {
        let mut connection = PgConnection::connect(url).await?;
        // While it waits for the lock its snapshot keeps the server from removing dead rows: it begins anew now and then. What it
        // commits is a notification, which no disk need have.
        let settings = "SET lock_timeout = '10s'; SET statement_timeout = 0; SET idle_session_timeout = 0;
                        SET synchronous_commit = off";
        sqlx::raw_sql(settings).execute(&mut connection).await?;
        Ok(Self { connection, table })
    }

    /// Takes the lock, then wakes all relays of the table: none has heard of what was committed before.
    async fn take(&mut self) -> Result<()> {
        loop {
            match sqlx::query(TAKE_LOCK).bind(self.table.sql()).execute(&mut self.connection).await {
                // A writer's transaction is open, or another relay waits too.
                Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("55P03") => {}
                taken => break taken.map(drop)?,
            }
        }
        let notify = sqlx::query("SELECT pg_notify($1, $2)").bind(CHANNEL).bind(self.table.to_string());
        notify.execute(&mut self.connection).await?;
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        sqlx::query("SELECT pg_advisory_unlock_all()").execute(&mut self.connection).await?;
        Ok(())
    }
}

/// The table is looked up each time: one that was made anew has another number.
const TAKE_LOCK: &str = "SELECT pg_advisory_lock(hashtext('relais_outbox'), to_regclass($1)::oid::int)";

fn closed() -> sqlx::Error {
    sqlx::Error::Io(std::io::ErrorKind::ConnectionAborted.into())
}
