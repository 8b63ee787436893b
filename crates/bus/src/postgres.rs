//! Many instances that share only a PostgreSQL database, by NOTIFY.
//!
//! Like Redis Pub/Sub: every instance that is connected gets every event; one that was not is told that it may have
//! missed some. Made for wake-ups and small events at a modest rate: PostgreSQL delivers notifications one commit after
//! the other.
//!
//! A notification holds less than 8000 bytes. An event that is larger is refused, or, with
//! [`PostgresNotify::large_events`], put into a table, and the notification says where: at the price of a row, and of a
//! query in every instance. Such rows are removed an hour later by those who write new ones.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, PgPool, postgres::PgListener};
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinHandle},
    time::timeout,
};
use uuid::Uuid;

use crate::{BusError, Event, Features, Inbox, Transport, backoff::Backoff, deliver::chain};

/// PostgreSQL refuses a notification of 8000 bytes.
const LIMIT: usize = 7999;

/// How long PostgreSQL may take. A pool would wait for a server that is away, longer than a publisher should.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a notification begins with that says where the event is. An event itself begins with a brace.
const REFERENCE: &str = "event:";

/// The transport. Confirmations count 1: PostgreSQL has it.
#[derive(Debug)]
pub struct PostgresNotify {
    pool: PgPool,
    channel: Arc<str>,
    by_reference: bool,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
    abort: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

impl PostgresNotify {
    /// Over the database of this pool. One of its connections is taken to listen.
    pub fn new(pool: PgPool) -> Self {
        Self { pool, channel: "relais_bus".into(), by_reference: false, running: Mutex::default() }
    }

    /// The name of the channel in PostgreSQL, and the beginning of the table's; `relais_bus` unless set. Buses with
    /// different names do not hear each other.
    ///
    /// # Errors
    ///
    /// If it is not made of at most 50 lower-case letters, digits and underscores.
    pub fn channel(mut self, name: &str) -> Result<Self, BusError> {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if name.is_empty() || name.len() > 50 || !name.chars().all(fits) {
            return Err(BusError::Setting("a channel in PostgreSQL is a-z, 0-9 and _, at most 50 of them"));
        }
        self.channel = name.into();
        Ok(self)
    }

    /// Puts events that are too large for a notification into the table `<channel>_event`, which is made at the start.
    /// Every instance must have the same setting.
    #[must_use]
    pub fn large_events(mut self) -> Self {
        self.by_reference = true;
        self
    }

    async fn make_table(&self) -> Result<(), BusError> {
        let failed = |error| BusError::transport("make the table of large events", error);
        let channel = &self.channel;
        let mut transaction = self.pool.begin().await.map_err(failed)?;
        // IF NOT EXISTS is no help to two instances that start at the same moment.
        let lock = sqlx::query("SELECT pg_advisory_xact_lock(hashtext($1))").bind(&**channel);
        lock.execute(&mut *transaction).await.map_err(failed)?;
        let table = format!(
            "CREATE TABLE IF NOT EXISTS {channel}_event (id uuid PRIMARY KEY, event text NOT NULL, \
                 created_at timestamptz NOT NULL DEFAULT now()); \
             CREATE INDEX IF NOT EXISTS {channel}_event_created_at ON {channel}_event (created_at)"
        );
        sqlx::raw_sql(AssertSqlSafe(table)).execute(&mut *transaction).await.map_err(failed)?;
        transaction.commit().await.map_err(failed)
    }
}

#[async_trait]
impl Transport for PostgresNotify {
    fn name(&self) -> &'static str {
        "postgresql notify"
    }

    fn features(&self) -> Features {
        Features {
            at_least_once: false,
            shares_work: false,
            counts_receivers: false,
            in_process_payloads: false,
            keeps_dead_letters: false,
            catches_up: false,
            max_event_bytes: (!self.by_reference).then_some(LIMIT),
        }
    }

    async fn start(&self, inbox: Inbox) -> Result<(), BusError> {
        if self.by_reference {
            self.make_table().await?;
        }
        let reader = Reader { pool: self.pool.clone(), channel: Arc::clone(&self.channel), inbox };
        let listener = reader.listen().await.map_err(|error| BusError::transport("listen", error))?;
        let (stop, stopping) = watch::channel(false);
        let task = tokio::spawn(reader.run(listener, stopping));
        let running = Running { stop, abort: task.abort_handle(), task: Some(task) };
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(running);
        Ok(())
    }

    async fn stop(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut running) = running {
            running.stop.send_replace(true);
            if let Some(task) = running.task.take() {
                // It ends by a panic only, of which there is nothing left to tell.
                let _ = task.await;
            }
        }
    }

    /// In one statement, unless one of them is too large for a notification.
    async fn publish_all(&self, events: &[Event]) -> Result<(), BusError> {
        let texts: Vec<String> = events.iter().map(Event::to_json).collect::<Result<_, _>>()?;
        if texts.iter().any(|text| text.len() > LIMIT) {
            for event in events {
                self.publish(event).await?;
            }
            return Ok(());
        }
        let send = sqlx::query("SELECT pg_notify($1, text) FROM unnest($2::text[]) AS text");
        match timeout(PATIENCE, send.bind(&*self.channel).bind(texts).execute(&self.pool)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(BusError::transport("publish", error)),
            Err(late) => Err(BusError::transport("publish", late)),
        }
    }

    async fn publish(&self, event: &Event) -> Result<usize, BusError> {
        let text = event.to_json()?;
        let channel = &self.channel;
        let sent = if text.len() <= LIMIT {
            let send = sqlx::query("SELECT pg_notify($1, $2)").bind(&**channel).bind(text);
            timeout(PATIENCE, send.execute(&self.pool)).await
        } else if self.by_reference {
            // One statement: the row is there for whoever hears of it, and those that are too old go, wherever nobody
            // else is removing them.
            let statement = format!(
                "WITH kept AS (INSERT INTO {channel}_event (id, event) VALUES ($2, $3) RETURNING id), \
                      old AS (DELETE FROM {channel}_event WHERE id IN (SELECT id FROM {channel}_event \
                              WHERE created_at < now() - interval '1 hour' ORDER BY created_at LIMIT 10 \
                              FOR UPDATE SKIP LOCKED)) \
                 SELECT pg_notify($1, $4 || id) FROM kept"
            );
            // Not the event's id: a replayed event may be here twice.
            let row = crate::id::new(jiff::Timestamp::now());
            let send = sqlx::query(AssertSqlSafe(statement)).bind(&**channel).bind(row).bind(text).bind(REFERENCE);
            timeout(PATIENCE, send.execute(&self.pool)).await
        } else {
            return Err(BusError::TooLarge { size: text.len(), limit: LIMIT });
        };
        match sent {
            Ok(Ok(_)) => Ok(1),
            Ok(Err(error)) => Err(BusError::transport("publish", error)),
            Err(late) => Err(BusError::transport("publish", late)),
        }
    }
}

/// Listens, and delivers what it hears.
struct Reader {
    pool: PgPool,
    channel: Arc<str>,
    inbox: Inbox,
}

impl Reader {
    async fn listen(&self) -> Result<PgListener, sqlx::Error> {
        let mut listener = PgListener::connect_with(&self.pool).await?;
        // A lost connection is told of before there is a new one.
        listener.eager_reconnect(false);
        listener.listen(&self.channel).await?;
        Ok(listener)
    }

    async fn run(self, mut listener: PgListener, mut stop: watch::Receiver<bool>) {
        loop {
            let heard = tokio::select! {
                heard = listener.try_recv() => heard,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            let error = match heard {
                Ok(Some(notification)) => {
                    tokio::select! {
                        () = self.deliver(notification.payload()) => {}
                        _ = stop.wait_for(|stop| *stop) => return,
                    }
                    continue;
                }
                Ok(None) => BusError::transport("stay connected", "the connection was closed"),
                Err(error) => BusError::transport("listen", error),
            };
            self.inbox.disconnected(&error).await;
            let mut backoff = Backoff::default();
            listener = loop {
                tokio::select! {
                    () = backoff.wait() => {}
                    _ = stop.wait_for(|stop| *stop) => return,
                }
                if let Ok(Ok(listener)) = timeout(PATIENCE, self.listen()).await {
                    break listener;
                }
            };
            self.inbox.connected(true).await;
        }
    }

    async fn deliver(&self, payload: &str) {
        let kept = match payload.strip_prefix(REFERENCE) {
            Some(id) => self.fetch(id).await.map(Some),
            None => Ok(None),
        };
        let event = kept.and_then(|kept| Event::from_json(kept.as_deref().unwrap_or(payload)));
        match event {
            Ok(event) => self.inbox.deliver(event).await,
            Err(error) => tracing::error!(error = chain(&error), "an event could not be read; ignored"),
        }
    }

    async fn fetch(&self, id: &str) -> Result<String, BusError> {
        let failed = |error: sqlx::Error| BusError::transport("fetch a large event", error);
        let id: Uuid = id.parse().map_err(|error| BusError::transport("read the place of a large event", error))?;
        let statement = format!("SELECT event FROM {}_event WHERE id = $1", self.channel);
        sqlx::query_scalar(AssertSqlSafe(statement)).bind(id).fetch_one(&self.pool).await.map_err(failed)
    }
}
