//! Engines with a few services, on PostgreSQL behind a proxy and on a file of SQLite.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use relais_core::{Store, TaskId};
use relais_engine::{
    Engine, TaskSink, TaskSinkOptions, Tasks,
    protocol::admin::{AuthorizationDeclaration, Declaration, RoleName, ServiceDeclaration},
};
use relais_message::{Message, Sink};
use relais_testkit::{
    OutageDatabase,
    sink_suite::{Received, SinkHarness},
};
use serde_json::json;
use sqlx::Connection as _;

pub const CLIENT: &str = "shop";
pub const SERVICE: &str = "invoices";
/// Nobody may submit to it.
pub const PRIVATE: &str = "private";
/// Has a schema.
pub const STRICT: &str = "strict";
/// Has no capacity.
pub const FULL: &str = "full";

const SOURCE: &str = "suite";

/// A sink on an engine, and the store as others see it.
pub struct OnStore {
    pub engine: Engine,
    pub store: Arc<dyn Store>,
    sink: Arc<TaskSink>,
    database: OutageDatabase,
}

/// A task, and the key that it was submitted with.
pub struct Submitted {
    pub task_id: TaskId,
    key: String,
    body: String,
    correlation_id: Option<String>,
}

pub async fn postgres() -> Result<OnStore> {
    let database = OutageDatabase::postgres().await?;
    let (through, store) = (open(&database.url_through().await?).await?, open(&database.url().await).await?);
    OnStore::start(through, store, database).await
}

pub async fn own_postgres() -> Result<OnStore> {
    alone(OutageDatabase::own_postgres().await?).await
}

pub async fn sqlite() -> Result<OnStore> {
    alone(OutageDatabase::sqlite()?).await
}

/// One store for all: two programs can not have a file.
async fn alone(database: OutageDatabase) -> Result<OnStore> {
    let store = open(&database.url().await).await?;
    OnStore::start(Arc::clone(&store), store, database).await
}

impl OnStore {
    async fn start(through: Arc<dyn Store>, store: Arc<dyn Store>, database: OutageDatabase) -> Result<Self> {
        let tasks = Tasks::builder(through).client(CLIENT).by_hand();
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        let tasks = tasks
            .service(ServiceDeclaration::named(SERVICE.to_owned()))
            .service(ServiceDeclaration { json_schema: Some(schema), ..ServiceDeclaration::named(STRICT.to_owned()) })
            .service(ServiceDeclaration { capacity: Some(0), ..ServiceDeclaration::named(FULL.to_owned()) })
            .start()
            .await?;
        let engine = tasks.engine().clone();
        let private = Declaration {
            services: vec![ServiceDeclaration::named(PRIVATE.to_owned())],
            authorizations: vec![AuthorizationDeclaration {
                client_id: CLIENT.to_owned(),
                service_name: PRIVATE.to_owned(),
                roles: vec![RoleName::Work],
                capacity: None,
                max_running: None,
                share: None,
            }],
            ..Declaration::default()
        };
        engine.apply(private, false, false).await?;
        engine.refresh().await?;
        let options = TaskSinkOptions { timeout: Duration::from_secs(3), ..TaskSinkOptions::new(CLIENT, SOURCE) };
        let sink = Arc::new(TaskSink::new(engine.clone(), options)?);
        Ok(Self { engine, store, sink, database })
    }

    /// Another engine on the same database: of another program, where the store allows that.
    pub async fn another_engine(&self) -> Result<Engine> {
        let engine = Engine::start(Arc::clone(&self.store), relais_engine::Options::default())?;
        engine.refresh().await?;
        Ok(engine)
    }

    /// All tasks, in the order of their submission.
    pub async fn tasks(&self) -> Result<Vec<Submitted>> {
        // Of a task without a key as well, which nobody should have made.
        let on_postgres = "SELECT t.task_id::text, coalesce(i.key, ''), t.request::text, t.correlation_id
                           FROM relais.task t LEFT JOIN relais.idempotency i USING (task_id) ORDER BY t.id";
        let on_sqlite = "SELECT t.task_id, coalesce(i.key, ''), t.request, t.correlation_id
                         FROM task t LEFT JOIN idempotency i USING (task_id) ORDER BY t.id";
        let url = self.database.url().await;
        let rows: Vec<(String, String, String, Option<String>)> = match url.starts_with("sqlite:") {
            true => sqlx::query_as(on_sqlite).fetch_all(&mut sqlx::SqliteConnection::connect(&url).await?).await?,
            false => sqlx::query_as(on_postgres).fetch_all(&mut sqlx::PgConnection::connect(&url).await?).await?,
        };
        let tasks = rows.into_iter().map(|(task_id, key, body, correlation_id)| {
            Ok(Submitted { task_id: TaskId::parse(&task_id).context("an id")?, key, body, correlation_id })
        });
        tasks.collect()
    }
}

async fn open(url: &str) -> Result<Arc<dyn Store>> {
    Ok(relais_store::open(url, &relais_store::Options::default()).await?)
}

#[async_trait(?Send)]
impl SinkHarness for OnStore {
    fn sink(&self) -> Arc<dyn Sink> {
        Arc::<TaskSink>::clone(&self.sink)
    }

    fn destination(&self) -> String {
        SERVICE.to_owned()
    }

    fn carries_keys(&self) -> bool {
        false
    }

    fn carries_header(&self, name: &str) -> bool {
        name == "correlation-id"
    }

    async fn received(&self) -> Result<Vec<Received>> {
        let received = self.tasks().await?.into_iter().map(|task| {
            let id = task.key.strip_prefix(&format!("message:{SOURCE}:")).context("a message's key")?.to_owned();
            let headers = task.correlation_id.map(|id| ("correlation-id".to_owned(), id)).into_iter().collect();
            Ok(Received { id, key: None, headers, payload: task.body.into_bytes() })
        });
        received.collect()
    }

    fn missing(&self) -> Option<String> {
        Some("nowhere".to_owned())
    }

    fn forbidden(&self) -> Option<String> {
        Some(PRIVATE.to_owned())
    }

    fn enlarge(&self, message: &mut Message) -> bool {
        message.payload = Some(format!(r#"{{"x":"{}"}}"#, "x".repeat(1 << 20)).into());
        true
    }

    async fn cut(&self) -> Result<()> {
        self.database.cut().await
    }

    async fn stall(&self) -> Result<()> {
        self.database.stall().await
    }

    async fn restore(&self) -> Result<()> {
        self.database.restore().await
    }

    async fn crash(&self) -> Result<bool> {
        self.database.crash().await
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(20)
    }
}
