//! A server, a foreign database with an outbox, and a broker with a queue.

use std::{
    process::Output,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use relais_testkit::{RedisServer, TestDatabase, TestVhost};
use relais_tests::instance::{Instance, InstanceOptions, command};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool};
use url::Url;

/// For whatever should happen soon, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The password that nobody may show. The database takes any.
pub const PASSWORD: &str = "s3cret-of-the-orders-database";

/// The password of the broker's user.
pub const BROKER_PASSWORD: &str = "restricted";

/// The databases and the broker. The exchange is `shop`, and all that comes to it is led to the queue `all`.
pub struct Stage {
    pub orders: TestDatabase,
    pub broker: TestVhost,
    pub broker_url: String,
    pub folder: tempfile::TempDir,
}

impl Stage {
    pub async fn new() -> Result<Self> {
        // It fails only if there is one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (orders, broker) = tokio::try_join!(TestDatabase::create(), TestVhost::create())?;
        let broker_url = broker.url_restricted_to(".*").await?;
        broker.declare_exchange("shop", "topic").await?;
        broker.declare_queue("all").await?;
        broker.bind("shop", "all", "#").await?;
        Ok(Self { orders, broker, broker_url, folder: tempfile::tempdir()? })
    }

    /// Relais' own database: an SQLite file.
    pub fn own(&self) -> String {
        format!("sqlite:{}", self.folder.path().join("relais.db").display())
    }

    /// The foreign database, with a password.
    pub fn orders_url(&self) -> Result<String> {
        let mut url = Url::parse(self.orders.url())?;
        url.set_password(Some(PASSWORD)).map_err(|()| anyhow::anyhow!("the URL takes no password"))?;
        Ok(url.into())
    }

    /// A server that knows the URLs by their variables.
    pub fn server(&self, database: impl Into<String>) -> Result<InstanceOptions> {
        Ok(Instance::options(database)
            .env("ORDERS_DATABASE_URL", self.orders_url()?)
            .env("RABBITMQ_URL", &self.broker_url)
            .env("RELAIS_DECLARATIONS_INTERVAL", "50ms"))
    }

    /// The declaration of the outbox `orders`.
    pub fn declaration(&self) -> Result<Value> {
        Ok(json!({
            "outboxName": "orders",
            "databaseUrl": self.orders_url()?,
            "destination": "shop",
            "routingKey": "orders.{event_type}",
            "headers": {"x-source": "orders"},
            "sink": {"rabbitmq": {"url": self.broker_url}},
            "retry": {"limit": 2, "base": "10ms"},
            "pollInterval": "50ms",
            "lease": "1s",
        }))
    }

    /// Makes the table with `relais outbox init`.
    pub fn init(&self) -> Result<()> {
        let made = command()?.args(["outbox", "init", self.orders.url()]).output()?;
        ensure!(made.status.success(), "{made:?}");
        Ok(())
    }

    pub async fn pool(&self) -> Result<PgPool> {
        Ok(PgPool::connect(self.orders.url()).await?)
    }

    /// Runs statements in the foreign database.
    pub async fn sql(&self, sql: &str) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&self.pool().await?).await?;
        Ok(())
    }

    /// Writes events of one aggregate, as a program in any language would; their numbers are these.
    pub async fn insert(&self, aggregate: &str, event_type: &str, numbers: std::ops::Range<i32>) -> Result<()> {
        let sql = "INSERT INTO outbox (aggregate_id, event_type, payload, headers)
                   SELECT md5($1)::uuid, $2, jsonb_build_object('number', n), '{\"traceparent\": \"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\"}'
                   FROM generate_series($3, $4 - 1) AS n";
        sqlx::query(sql)
            .bind(aggregate)
            .bind(event_type)
            .bind(numbers.start)
            .bind(numbers.end)
            .execute(&self.pool().await?)
            .await?;
        Ok(())
    }

    /// The numbers of the next messages of the queue, once there are so many.
    pub async fn numbers(&self, count: usize) -> Result<Vec<i64>> {
        let mut numbers = Vec::new();
        let begun = Instant::now();
        while numbers.len() < count {
            ensure!(begun.elapsed() < PATIENCE, "after {PATIENCE:?} there are {numbers:?}");
            for message in self.broker.take("all", count).await? {
                let body: Value = serde_json::from_slice(&message.body)?;
                numbers.push(body["number"].as_i64().context("a number")?);
            }
        }
        Ok(numbers)
    }
}

/// A Redis server of the test's own.
pub async fn redis() -> Result<RedisServer> {
    RedisServer::start().await
}

/// What the admin API answers: the status, and `data` or the whole refusal.
pub async fn call(server: &Instance, method: &str, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
    let client = reqwest::Client::new();
    let url = format!("{}/admin/{path}", server.url());
    let mut request = client.request(method.parse()?, url);
    if let Some(body) = body {
        request = request.json(body);
    }
    let answer = request.send().await?;
    let (status, mut body) = (answer.status().as_u16(), answer.json::<Value>().await?);
    let body = if status < 300 { body["data"].take() } else { body };
    Ok((status, body))
}

/// Asks for something that must be done.
pub async fn done(server: &Instance, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
    let (status, answer) = call(server, method, path, body).await?;
    ensure!(status == 200, "{method} {path}: {status} {answer}");
    Ok(answer)
}

/// Types a command; its output.
pub fn type_in(server: &Instance, line: &str) -> Result<Output> {
    let mut command = command()?;
    command.env("RELAIS_URL", server.url()).current_dir(server.folder()).args(line.split(' '));
    command.output().context("run relais")
}

/// Types a command that must be done; its data.
pub fn typed(server: &Instance, line: &str) -> Result<String> {
    let output = type_in(server, line)?;
    ensure!(output.status.success(), "{line}: {output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Asks until it is so.
pub async fn until(what: &str, mut so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !so().await? {
        ensure!(begun.elapsed() < PATIENCE, "after {PATIENCE:?} it is not so that {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
