//! Captures that run in a database of their own, and a sink that remembers what arrived.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use relais_capture::{Capture, CaptureActivity, CaptureHandle, CaptureOptions, CapturedDatabase};
use relais_message::RoutedMessage;
use relais_testkit::{MemorySink, TestDatabase};
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgPool};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

/// For whatever should happen soon, on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// What a reader of the topic would have now: the last `after` of each key.
pub fn table(arrived: &[RoutedMessage], topic: &str) -> BTreeMap<String, Value> {
    let mut rows = BTreeMap::new();
    for message in arrived.iter().filter(|message| message.destination == topic) {
        let key = message.message.key.clone().unwrap_or_default();
        match value(message) {
            Value::Null => {}
            value if value["op"] == "d" => {
                rows.remove(&key);
            }
            value if value["op"] == "t" => rows.clear(),
            value => {
                rows.insert(key, value["after"].clone());
            }
        }
    }
    rows
}

pub fn value(message: &RoutedMessage) -> Value {
    match &message.message.payload {
        Some(payload) => serde_json::from_slice(payload).expect("JSON"),
        None => Value::Null,
    }
}

pub struct World {
    pub url: String,
    pub pool: PgPool,
    pub sink: Arc<MemorySink>,
    pub options: CaptureOptions,
    _keep: Option<TestDatabase>,
}

pub struct Running {
    pub stop: CancellationToken,
    pub handle: CaptureHandle,
    pub task: JoinHandle<()>,
}

impl World {
    pub async fn new(tables: &[&str]) -> Result<Self> {
        let database = TestDatabase::create().await?;
        // Slots are of the whole server: the database's name tells them apart.
        let options = CaptureOptions::new(database.name(), tables)?;
        let url = database.url().to_owned();
        Self::with(url, options, Some(database)).await
    }

    /// On a server of the test's own.
    pub async fn at(url: &str, tables: &[&str]) -> Result<Self> {
        Self::with(url.to_owned(), CaptureOptions::new("shop", tables)?, None).await
    }

    async fn with(url: String, options: CaptureOptions, keep: Option<TestDatabase>) -> Result<Self> {
        let pool = PgPool::connect(&url).await?;
        let world = Self { url, pool, sink: Arc::default(), options, _keep: keep };
        world.execute("CREATE TABLE orders (id integer PRIMARY KEY, state text, note text)").await?;
        Ok(world)
    }

    pub async fn execute(&self, statements: &str) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&self.pool).await?;
        Ok(())
    }

    pub async fn start(&self, options: CaptureOptions) -> Result<Running> {
        self.start_at(&self.url, options).await
    }

    /// A capture that connects by this URL.
    pub async fn start_at(&self, url: &str, options: CaptureOptions) -> Result<Running> {
        let database = CapturedDatabase::connect(url).await?;
        let capture = Capture::new(database, Arc::<MemorySink>::clone(&self.sink), options);
        let (stop, handle) = (CancellationToken::new(), capture.handle());
        Ok(Running { task: tokio::spawn(capture.run(stop.clone())), stop, handle })
    }

    pub fn topic(&self) -> String {
        format!("{}.public.orders", self.options.name)
    }
}

impl Running {
    pub async fn until(&self, wanted: impl FnMut(&relais_capture::CaptureStats) -> bool) -> Result<()> {
        let waited = timeout(DEADLINE, self.handle.until(wanted)).await;
        waited.with_context(|| format!("the capture is not as expected: {:?}", self.handle.stats()))
    }

    pub async fn streams(&self) -> Result<()> {
        self.until(|stats| stats.activity == CaptureActivity::Streaming).await
    }

    pub async fn stop(self) -> Result<()> {
        self.stop.cancel();
        Ok(timeout(DEADLINE, self.task).await.context("the capture stops")??)
    }
}

/// The ids of the rows that arrived.
pub fn ids(arrived: &[RoutedMessage]) -> std::collections::HashSet<i64> {
    arrived.iter().map(|message| value(message)["after"]["id"].as_i64().unwrap_or_default()).collect()
}
