//! The order services of `examples/outbox`, run as they are: orders that are placed, one that is rolled back, and one
//! whose service is killed before its commit. Exactly those that were committed are published.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use redis::streams::StreamRangeReply;
use relais_testkit::{ServerProcess, TestDatabase};
use relais_tests::{
    instance::{Instance, command},
    prepared,
};
use serde_json::{Value, json};
use sqlx::{
    Connection as _, PgConnection, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteConnection as Sqlite},
};
use tempfile::TempDir;

use crate::stage::{PATIENCE, redis, until};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/outbox")
}

/// The database of an order service.
enum Shop {
    Sqlite(PathBuf),
    Postgres(TestDatabase),
}

/// A connection that keeps everybody else from a commit while it lives.
#[expect(dead_code, reason = "they are there to be closed")]
enum Held {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Shop {
    fn url(&self) -> String {
        match self {
            Self::Sqlite(file) => format!("sqlite:{}", file.display()),
            Self::Postgres(database) => database.url().to_owned(),
        }
    }

    /// The texts that a query finds, in order.
    async fn texts(&self, query: &'static str) -> Result<Vec<String>> {
        let mut texts: Vec<String> = match self {
            Self::Sqlite(_) => sqlx::query_scalar(query).fetch_all(&mut Sqlite::connect(&self.url()).await?).await?,
            Self::Postgres(_) => {
                sqlx::query_scalar(query).fetch_all(&mut PgConnection::connect(&self.url()).await?).await?
            }
        };
        texts.sort_unstable();
        Ok(texts)
    }

    /// Keeps orders from being committed.
    async fn hold_commits(&self) -> Result<Held> {
        Ok(match self {
            // A commit waits for readers.
            Self::Sqlite(_) => {
                let mut reader = Sqlite::connect(&self.url()).await?;
                sqlx::raw_sql("BEGIN; SELECT count(*) FROM orders").execute(&mut reader).await?;
                Held::Sqlite(reader)
            }
            Self::Postgres(_) => {
                let mut locker = PgConnection::connect(&self.url()).await?;
                sqlx::raw_sql("BEGIN; LOCK TABLE outbox IN SHARE MODE").execute(&mut locker).await?;
                Held::Postgres(locker)
            }
        })
    }

    /// Waits until somebody has begun to write and can not commit.
    async fn somebody_is_held(&self) -> Result<()> {
        match self {
            Self::Sqlite(file) => {
                let options = SqliteConnectOptions::new().filename(file).busy_timeout(std::time::Duration::ZERO);
                until("somebody writes", async || {
                    let mut other = Sqlite::connect_with(&options).await?;
                    Ok(sqlx::raw_sql("BEGIN IMMEDIATE; ROLLBACK").execute(&mut other).await.is_err())
                })
                .await
            }
            Self::Postgres(_) => {
                let mut other = PgConnection::connect(&self.url()).await?;
                let waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'outbox'::regclass AND NOT granted)";
                until("somebody waits for the outbox", async || {
                    Ok(sqlx::query_scalar::<_, bool>(waits).fetch_one(&mut other).await?)
                })
                .await
            }
        }
    }
}

/// An order service that runs.
struct Service {
    process: ServerProcess,
    url: String,
}

impl Service {
    async fn start(program: impl Fn() -> Result<Command>, shop: &Shop) -> Result<Self> {
        let mut command = program()?;
        command.env("ORDERS_DATABASE_URL", shop.url()).env("PORT", "0");
        let mut process = ServerProcess::spawn_command(command)?;
        let begun = Instant::now();
        loop {
            if let Some(port) = process.stdout()?.strip_prefix("listening on ").and_then(|port| port.strip_suffix('\n'))
            {
                return Ok(Self { url: format!("http://127.0.0.1:{port}/orders"), process });
            }
            ensure!(process.is_running()? && begun.elapsed() < PATIENCE, "it does not listen: {}", process.stderr()?);
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    /// Orders some tea: the status, and what is said.
    async fn order(&self, quantity: i64) -> Result<(u16, Value)> {
        order(&self.url, quantity).await
    }

    /// Orders some tea; the order's id.
    async fn placed(&self, quantity: i64) -> Result<String> {
        let (status, said) = self.order(quantity).await?;
        ensure!(status == 201, "{status} {said}\n{}", self.process.stderr()?);
        Ok(said["order"].as_str().context("an order")?.to_owned())
    }
}

async fn order(url: &str, quantity: i64) -> Result<(u16, Value)> {
    let order = json!({"item": "tea", "quantity": quantity});
    let answer = reqwest::Client::new().post(url).json(&order).send().await?;
    Ok((answer.status().as_u16(), answer.json().await?))
}

/// The orders that the messages of the stream tell of, in the order of their ids.
async fn published(redis: &str) -> Result<Vec<String>> {
    let mut connection = redis::Client::open(redis)?.get_multiplexed_async_connection().await?;
    let entries: StreamRangeReply =
        redis::cmd("XRANGE").arg("orders.placed").arg("-").arg("+").query_async(&mut connection).await?;
    let mut orders = Vec::new();
    for entry in entries.ids {
        let payload: String = entry.get("payload").context("a payload")?;
        let payload: Value = serde_json::from_str(&payload)?;
        let order = payload["order"].as_str().context("an order")?.to_owned();
        ensure!(payload["item"] == "tea" && entry.get::<String>("key").as_ref() == Some(&order), "{payload}");
        orders.push(order);
    }
    orders.sort_unstable();
    Ok(orders)
}

async fn publishes_exactly_what_it_commits(program: impl Fn() -> Result<Command>, shop: Shop) -> Result<()> {
    // It fails only if there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (own, redis) = (tempfile::tempdir()?, redis().await?);
    let made = command()?.args(["outbox", "init", &shop.url()]).output()?;
    ensure!(made.status.success(), "{made:?}");

    let mut service = Service::start(&program, &shop).await?;
    let mut committed = vec![service.placed(2).await?];
    let (status, said) = service.order(9).await?;
    ensure!((status, &said) == (409, &json!({"error": "sold out"})), "{status} {said}");
    ensure!(service.order(-1).await?.0 == 400, "nobody can order less than nothing");

    // Killed with an order and its event written, and not committed.
    let held = shop.hold_commits().await?;
    let url = service.url.clone();
    let lost = tokio::spawn(async move { order(&url, 1).await });
    shop.somebody_is_held().await?;
    service.process.kill9()?;
    ensure!(lost.await?.is_err(), "the order was answered, although it could not be committed");
    drop(held);

    // With the relay away, then with the relay there.
    let service = Service::start(&program, &shop).await?;
    committed.push(service.placed(3).await?);
    let server = Instance::options(format!("sqlite:{}", own.path().join("relais.db").display()))
        .env("ORDERS_DATABASE_URL", shop.url())
        .env("ORDERS_REDIS_URL", redis.url())
        .arg("--declarations")
        .arg(folder().join("outboxes.yaml").display().to_string())
        .start()
        .await?;
    committed.push(service.placed(4).await?);

    committed.sort_unstable();
    let redis = redis.url();
    until("all are published", async || {
        let left = "SELECT CAST(id AS text) FROM outbox WHERE published_at IS NULL";
        Ok(shop.texts(left).await?.is_empty() && published(&redis).await?.len() >= committed.len())
    })
    .await?;
    assert_eq!(published(&redis).await?, committed, "published, and answered with 201");
    assert_eq!(shop.texts("SELECT id FROM orders").await?, committed, "stored, and answered with 201");
    assert_eq!(shop.texts("SELECT CAST(quantity AS text) FROM stock").await?, ["1"], "2, 3 and 4 of 10 are sold");
    drop(server);
    Ok(())
}

/// The example in TypeScript, checked and compiled. Newer versions of Node run it as it is, if its types can be erased.
fn compiled() -> Result<(TempDir, PathBuf)> {
    let (built, modules) = (tempfile::tempdir()?, prepared::javascript()?.join("node_modules"));
    fs::copy(folder().join("orders.mts"), built.path().join("orders.mts"))?;
    std::os::unix::fs::symlink(&modules, built.path().join("node_modules"))?;
    let options = "--strict --noUnusedLocals --noUncheckedIndexedAccess --erasableSyntaxOnly --verbatimModuleSyntax \
                   --target es2022 --module nodenext --types node orders.mts";
    let mut tsc = Command::new("node");
    tsc.arg(modules.join("typescript/bin/tsc")).args(options.split_whitespace()).current_dir(built.path());
    let output = tsc.output().context("it needs node")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let program = built.path().join("orders.mjs");
    Ok((built, program))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_service_in_python_publishes_what_it_commits_to_sqlite() -> Result<()> {
    let folder_of_shop = tempfile::tempdir()?;
    let shop = Shop::Sqlite(folder_of_shop.path().join("shop.db"));
    let python = || {
        let mut command = Command::new("python3");
        // Without the packages that the machine happens to have: it needs none.
        command.arg("-S").arg(folder().join("orders.py"));
        Ok(command)
    };
    publishes_exactly_what_it_commits(python, shop).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_service_in_python_publishes_what_it_commits_to_postgres() -> Result<()> {
    let python = || {
        let mut command = Command::new(prepared::python()?);
        command.arg(folder().join("orders.py"));
        Ok(command)
    };
    publishes_exactly_what_it_commits(python, Shop::Postgres(TestDatabase::create().await?)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_service_in_typescript_publishes_what_it_commits() -> Result<()> {
    let (_built, program) = compiled()?;
    let node = || {
        let mut command = Command::new("node");
        command.arg(&program);
        Ok(command)
    };
    publishes_exactly_what_it_commits(node, Shop::Postgres(TestDatabase::create().await?)).await
}

#[test]
fn the_guide_shows_the_examples_as_they_are() -> Result<()> {
    let guide = fs::read_to_string(folder().join("../../docs/guides/outbox.md"))?;
    for (file, language) in [("orders.py", "python"), ("orders.mts", "typescript")] {
        let begin = format!("<!-- examples/outbox/{file} -->\n```{language}\n");
        let after = guide.split_once(&begin).with_context(|| format!("the guide does not show {file}"))?.1;
        let shown = after.split_once("```\n<!-- end -->\n").context("it does not end")?.0;
        let code = fs::read_to_string(folder().join(file))?;
        ensure!(code.contains(shown), "copy what {file} has into docs/guides/outbox.md, or the other way round");
    }
    Ok(())
}
