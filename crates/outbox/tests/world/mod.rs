//! An outbox in a database of its own, and a sink that does what a test says.
#![allow(dead_code, reason = "each test file uses a part of it")]

mod sink;

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use relais_message::{RoutedMessage, Sink};
use relais_outbox::{
    Mode, Outbox, OutboxError, OutboxEvent, OutboxStore, ParkedRow, ReadRequest, Relay, RelayHandle, RelayOptions,
    RelayStats,
};
use relais_testkit::TestDatabase;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection, postgres::PgListener};
use tempfile::TempDir;
use tokio::{sync::Mutex, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use sink::TestSink;

/// For whatever should happen soon, on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

enum Connection {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

/// Whatever must live as long as the database.
enum Keep {
    Postgres(#[expect(dead_code, reason = "it is dropped last")] TestDatabase),
    Sqlite(#[expect(dead_code, reason = "it is dropped last")] TempDir),
    Nothing,
}

pub struct World {
    pub sink: Arc<TestSink>,
    pub store: Arc<dyn OutboxStore>,
    outbox: Outbox,
    connection: Mutex<Connection>,
    url: String,
    /// How relays learn of new rows.
    mode: Mode,
    _keep: Keep,
}

/// A transaction that stays open.
pub struct Open {
    connection: PgConnection,
    outbox: Outbox,
}

impl Open {
    pub async fn add(&mut self, key: &str, number: usize) -> Result<()> {
        Ok(self.outbox.add(&mut self.connection, &event(key, number, 0)?).await?)
    }

    /// Stays open for the time of a round trip.
    pub async fn idle(&mut self) -> Result<()> {
        sqlx::query("SELECT 1").execute(&mut self.connection).await?;
        Ok(())
    }

    pub async fn commit(mut self) -> Result<()> {
        sqlx::query("COMMIT").execute(&mut self.connection).await?;
        Ok(())
    }
}

impl World {
    pub async fn postgres() -> Result<Self> {
        let database = TestDatabase::create().await?;
        let url = database.url().to_owned();
        let connection = Connection::Postgres(PgConnection::connect(&url).await?);
        Self::new(url, connection, Keep::Postgres(database)).await
    }

    /// In a database that lives longer.
    pub async fn at(url: &str) -> Result<Self> {
        let connection = Connection::Postgres(PgConnection::connect(url).await?);
        Self::new(url.to_owned(), connection, Keep::Nothing).await
    }

    /// On PostgreSQL, with relays that read the log.
    pub async fn captured() -> Result<Self> {
        Ok(Self::postgres().await?.with_mode(Mode::Capture))
    }

    pub fn with_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    pub async fn sqlite() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let url = format!("sqlite:{}?mode=rwc", folder.path().join("shop.db").display());
        let mut connection = SqliteConnection::connect(&url).await?;
        sqlx::query("PRAGMA journal_mode = WAL").execute(&mut connection).await?;
        sqlx::query("PRAGMA busy_timeout = 5000").execute(&mut connection).await?;
        Self::new(url, Connection::Sqlite(connection), Keep::Sqlite(folder)).await
    }

    async fn new(url: String, connection: Connection, keep: Keep) -> Result<Self> {
        let outbox = Outbox::new("outbox")?;
        let store = relais_outbox::open(&url, &outbox).await?;
        let connection = Mutex::new(connection);
        Ok(Self { sink: Arc::default(), store, outbox, connection, url, mode: Mode::Polling, _keep: keep })
    }

    pub async fn create(&self) -> Result<()> {
        match &mut *self.connection.lock().await {
            Connection::Postgres(connection) => self.outbox.create(connection).await?,
            Connection::Sqlite(connection) => self.outbox.create(connection).await?,
        }
        Ok(())
    }

    /// The seven columns, as somebody would write them.
    pub async fn create_by_hand(&self) -> Result<()> {
        let statements = match &*self.connection.lock().await {
            Connection::Postgres(_) => [
                "CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_id uuid NOT NULL,
                     event_type varchar(200) NOT NULL, payload jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT now(),
                     published_at timestamptz, retry_count int NOT NULL DEFAULT 0)",
                "CREATE INDEX outbox_open ON outbox (created_at) WHERE published_at IS NULL",
            ],
            Connection::Sqlite(_) => [
                "CREATE TABLE outbox (id text PRIMARY KEY, aggregate_id text NOT NULL, event_type text NOT NULL,
                     payload text NOT NULL, created_at text NOT NULL DEFAULT CURRENT_TIMESTAMP, published_at text,
                     retry_count int NOT NULL DEFAULT 0)",
                "CREATE INDEX outbox_open ON outbox (created_at) WHERE published_at IS NULL",
            ],
        };
        for statement in statements {
            self.execute(statement).await?;
        }
        Ok(())
    }

    pub async fn execute(&self, statement: &str) -> Result<()> {
        let statement = AssertSqlSafe(statement.to_owned());
        match &mut *self.connection.lock().await {
            Connection::Postgres(connection) => sqlx::raw_sql(statement).execute(connection).await.map(|_| ())?,
            Connection::Sqlite(connection) => sqlx::raw_sql(statement).execute(connection).await.map(|_| ())?,
        }
        Ok(())
    }

    async fn number(&self, query: &str) -> Result<usize> {
        let query = AssertSqlSafe(query.to_owned());
        let number: i64 = match &mut *self.connection.lock().await {
            Connection::Postgres(connection) => sqlx::query_scalar(query).fetch_one(connection).await?,
            Connection::Sqlite(connection) => sqlx::query_scalar(query).fetch_one(connection).await?,
        };
        Ok(usize::try_from(number)?)
    }

    pub async fn add(&self, key: &str, number: usize) -> Result<()> {
        self.add_sized(key, number, 0).await
    }

    /// Adds an event whose payload is as large as this.
    pub async fn add_sized(&self, key: &str, number: usize, bytes: usize) -> Result<()> {
        let event = event(key, number, bytes)?;
        match &mut *self.connection.lock().await {
            Connection::Postgres(connection) => self.outbox.add(connection, &event).await?,
            Connection::Sqlite(connection) => self.outbox.add(connection, &event).await?,
        }
        Ok(())
    }

    /// Adds events in one transaction.
    pub async fn add_together(&self, key: &str, numbers: std::ops::Range<usize>) -> Result<()> {
        self.execute("BEGIN").await?;
        for number in numbers {
            self.add(key, number).await?;
        }
        self.execute("COMMIT").await
    }

    pub async fn add_and_roll_back(&self, key: &str, number: usize) -> Result<()> {
        let event = event(key, number, 0)?;
        match &mut *self.connection.lock().await {
            Connection::Postgres(connection) => {
                let mut transaction = connection.begin().await?;
                self.outbox.add(&mut *transaction, &event).await?;
                transaction.rollback().await?;
            }
            Connection::Sqlite(connection) => {
                let mut transaction = connection.begin().await?;
                self.outbox.add(&mut *transaction, &event).await?;
                transaction.rollback().await?;
            }
        }
        Ok(())
    }

    /// A connection of its own.
    pub async fn connect(&self) -> Result<PgConnection> {
        Ok(PgConnection::connect(&self.url).await?)
    }

    /// Hears what the outbox's trigger says.
    pub async fn listener(&self) -> Result<PgListener> {
        let mut listener = PgListener::connect(&self.url).await?;
        listener.listen("relais_outbox").await?;
        Ok(listener)
    }

    /// A transaction on a connection of its own.
    pub async fn begin(&self) -> Result<Open> {
        let mut connection = PgConnection::connect(&self.url).await?;
        sqlx::query("BEGIN").execute(&mut connection).await?;
        Ok(Open { connection, outbox: self.outbox.clone() })
    }

    /// The aggregate's id of a key.
    pub fn aggregate(&self, key: &str) -> String {
        aggregate(key).to_string()
    }

    pub async fn unpublished(&self) -> Result<usize> {
        self.number("SELECT count(*) FROM outbox WHERE published_at IS NULL").await
    }

    pub async fn rows(&self) -> Result<usize> {
        self.number("SELECT count(*) FROM outbox").await
    }

    pub async fn retry_count(&self, key: &str, number: usize) -> Result<usize> {
        let id = id(key, number);
        self.number(&format!("SELECT CAST(retry_count AS bigint) FROM outbox WHERE id = '{id}'")).await
    }

    /// What a relay asks for, of all partitions.
    pub fn request(&self, options: &RelayOptions) -> ReadRequest {
        ReadRequest {
            outbox: options.outbox.clone(),
            key: options.key.clone(),
            partitions: Vec::new(),
            of: options.partitions,
            rows: 100,
            bytes: 0,
            limit: options.retry.limit,
            up_to: None,
        }
    }

    pub async fn parked(&self, options: &RelayOptions) -> Result<Vec<ParkedRow>> {
        Ok(self.store.list_parked(&self.request(options)).await?)
    }

    /// A user that may capture the outbox, and nothing more.
    pub async fn user_with_rights(&self) -> Result<String> {
        let user = format!("relay_{}", Uuid::now_v7().simple());
        self.execute(&format!(
            "CREATE ROLE {user} LOGIN REPLICATION; ALTER TABLE outbox OWNER TO {user}; GRANT CREATE ON SCHEMA public TO {user};
             DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {user}', current_database()); END $$;
             GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}"
        ))
        .await?;
        Ok(user)
    }

    pub async fn drop_user(&self, user: &str) -> Result<()> {
        self.execute(&format!("REASSIGN OWNED BY {user} TO postgres; DROP OWNED BY {user}; DROP ROLE {user}")).await
    }

    /// Ends all connections that stream changes of this database.
    pub async fn end_senders(&self) -> Result<()> {
        self.execute(
            "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots
             WHERE database = current_database() AND active_pid IS NOT NULL",
        )
        .await
    }

    /// Waits until all rows are marked.
    pub async fn until_published(&self) -> Result<()> {
        self.until_none("SELECT count(*) FROM outbox WHERE published_at IS NULL").await
    }

    /// Waits until all rows are older than this, by the database's clock.
    pub async fn until_older_than(&self, age: std::time::Duration) -> Result<()> {
        let seconds = age.as_secs_f64();
        self.until_none(&format!(
            "SELECT count(*) FROM outbox WHERE created_at > clock_timestamp() - {seconds} * interval '1 second'"
        ))
        .await
    }

    /// Waits until the slot's reader has told the server that it needs nothing of the outbox any more.
    pub async fn until_slot_confirmed(&self) -> Result<()> {
        self.until_published().await?;
        self.execute("CREATE TABLE the_end AS SELECT pg_current_wal_insert_lsn() AS lsn").await?;
        self.until_none(
            "SELECT count(*) FROM pg_replication_slots, the_end
             WHERE database = current_database() AND confirmed_flush_lsn < the_end.lsn",
        )
        .await
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// How many slots the database has.
    pub async fn slots(&self) -> Result<usize> {
        self.number("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()").await
    }

    /// Waits until the database has no slot.
    pub async fn until_no_slot(&self) -> Result<()> {
        self.until_none("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()").await
    }

    async fn until_none(&self, query: &str) -> Result<()> {
        let counted = async {
            while self.number(query).await? > 0 {
                tokio::task::yield_now().await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(DEADLINE, counted).await.with_context(|| format!("0: {query}"))?
    }

    /// A relay that connects as this user.
    pub async fn relay_as(&self, user: &str, options: RelayOptions) -> Result<RunningRelay> {
        Ok(self.relay_at(&self.url.replace("postgres@", &format!("{user}@")), options).await?)
    }

    pub async fn try_relay(&self, options: RelayOptions) -> Result<RunningRelay, OutboxError> {
        self.relay_at(&self.url, options).await
    }

    /// A relay that connects by this URL.
    pub async fn relay_at(&self, url: &str, options: RelayOptions) -> Result<RunningRelay, OutboxError> {
        // Each with a connection of its own, as a process would have.
        let store = relais_outbox::open(url, &self.outbox).await?;
        self.start(store, RelayOptions { mode: self.mode, ..options }).await
    }

    /// A relay that connects by this URL and works in this mode.
    pub async fn relay_in_mode(
        &self,
        url: &str,
        mode: Mode,
        options: RelayOptions,
    ) -> Result<RunningRelay, OutboxError> {
        self.start(relais_outbox::open(url, &self.outbox).await?, RelayOptions { mode, ..options }).await
    }

    async fn start(&self, store: Arc<dyn OutboxStore>, options: RelayOptions) -> Result<RunningRelay, OutboxError> {
        self.relay_with(store, Arc::<TestSink>::clone(&self.sink), options).await
    }

    /// The outbox's database once more, with connections of its own.
    pub async fn open(&self) -> Result<Arc<dyn OutboxStore>> {
        Ok(relais_outbox::open(&self.url, &self.outbox).await?)
    }

    /// A relay with another store and sink.
    pub async fn relay_with(
        &self,
        store: Arc<dyn OutboxStore>,
        sink: Arc<dyn Sink>,
        options: RelayOptions,
    ) -> Result<RunningRelay, OutboxError> {
        let relay = Relay::new(store, sink, options).await?;
        let (stop, handle) = (CancellationToken::new(), relay.handle());
        let task = tokio::spawn(relay.run(stop.clone()));
        Ok(RunningRelay { stop, handle, task })
    }

    pub async fn relay(&self, options: RelayOptions) -> Result<RunningRelay> {
        Ok(self.try_relay(options).await?)
    }
}

/// A relay that runs.
pub struct RunningRelay {
    stop: CancellationToken,
    handle: RelayHandle,
    task: JoinHandle<()>,
}

impl RunningRelay {
    pub fn stats(&self) -> RelayStats {
        self.handle.stats()
    }

    /// Waits until it is as wanted.
    pub async fn until(&self, wanted: impl Fn(&RelayStats) -> bool) -> Result<()> {
        let waited = tokio::time::timeout(DEADLINE, self.handle.until(wanted)).await;
        waited.with_context(|| format!("the relay is not as expected: {:?}", self.stats()))
    }

    pub async fn stop(self) -> Result<()> {
        self.stop.cancel();
        tokio::time::timeout(DEADLINE, self.task).await.context("the relay stops")??;
        Ok(())
    }

    /// Ends it as a kill would: in the middle of whatever it does, without giving anything back.
    pub fn kill(self) {
        self.task.abort();
    }
}

fn aggregate(key: &str) -> Uuid {
    let mut bytes = [0; 16];
    bytes[..key.len().min(16)].copy_from_slice(&key.as_bytes()[..key.len().min(16)]);
    Uuid::from_bytes(bytes)
}

fn id(key: &str, number: usize) -> Uuid {
    let mut bytes = *aggregate(key).as_bytes();
    bytes[8..].copy_from_slice(&(number as u64 + 1).to_be_bytes());
    Uuid::from_bytes(bytes)
}

pub fn event(key: &str, number: usize, bytes: usize) -> Result<OutboxEvent> {
    // Not to be compressed to nothing.
    let filling: String = (0..bytes / 16).map(|n| format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    let payload = serde_json::json!({"key": key, "n": number, "customer": 7, "filling": filling});
    let mut event = OutboxEvent::new(aggregate(key), "order.placed", &payload)?;
    event.id = id(key, number);
    Ok(event)
}

/// The number of a message within its key.
pub fn number(outgoing: &RoutedMessage) -> usize {
    field(outgoing, "n").parse().expect("a number")
}

/// Whether a message is of this key.
pub fn is_of(outgoing: &RoutedMessage, key: &str) -> bool {
    field(outgoing, "key") == key
}

fn field(outgoing: &RoutedMessage, name: &str) -> String {
    let payload = outgoing.message.payload.as_ref().expect("a payload");
    let payload: serde_json::Value = serde_json::from_slice(payload).expect("JSON");
    match &payload[name] {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
