//! Relais itself, in this process: an engine on the store, and a handler within it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use relais_core::{Role, Store};
use relais_engine::{Access, Engine, Handlers, Options};
use relais_protocol::consumer::SubmitRequest;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::{Connection, PgConnection, SqliteConnection};
use tokio::sync::{Notify, mpsc};

use super::{
    Measured,
    meter::{Meter, Spent, of_process},
};
use crate::fill::{self, Queue};

const SERVICE: &str = "bench";
const CLIENT: &str = "bench";

/// So many tasks are submitted at once before a drain.
const BATCH: u64 = 5000;

/// So many tasks run at once, unless it is said otherwise.
pub const CONCURRENCY: usize = 2000;

/// How often the database is asked whether the last results are stored, once every task has run.
const LOOK: Duration = Duration::from_millis(2);

/// How long a drain may take.
const PATIENCE: Duration = Duration::from_secs(900);

/// The same that the tasks of the others carry.
#[derive(Debug, Deserialize, Serialize)]
struct Body {
    number: u64,
    name: String,
}

/// Makes so many finished tasks.
pub async fn fill(url: &str, finished: u64) -> Result<()> {
    Relais::open(url, Options::default()).await?.engine.stop().await;
    // Of the size of those that are drained: what is smaller would be strewn over the gaps that larger ones leave on
    // their pages.
    let queue = Queue::ended(finished, r#"{"number":100000,"name":"a task of the benchmark"}"#, "null");
    if is_file(url) {
        return fill::sqlite(url, queue, SERVICE, CLIENT).await;
    }
    fill::postgres(url, queue, SERVICE, CLIENT).await
}

/// Submits so many tasks, and drains them. On PostgreSQL a meter is read.
pub async fn drain(url: &str, tasks: u64, concurrency: usize, meter: Option<&Meter>) -> Result<Measured> {
    let relais = Relais::open(url, Options::default()).await?;
    let before = finished(url).await?;
    relais.submit_many(tasks).await?;
    if !is_file(url) {
        let mut connection = PgConnection::connect(url).await?;
        for statement in ["VACUUM ANALYZE", "CHECKPOINT"] {
            sqlx::raw_sql(statement).execute(&mut connection).await?;
        }
        connection.close().await?;
    }
    let us = std::process::id();
    let read = async || match meter {
        Some(meter) => meter.read(us).await,
        None => Ok(Spent { split: of_process(us)?, wal: 0.0 }),
    };
    let spent = read().await?;
    let (ran, time) = relais.drain(tasks, concurrency).await?;
    let spent = read().await?.since(spent, tasks as f64);
    relais.engine.stop().await;
    Ok(Measured { ran, finished: finished(url).await? - before, keeps_history: true, time, spent })
}

/// An engine with a service.
pub struct Relais {
    /// The engine.
    pub engine: Engine,
    store: Arc<dyn Store>,
}

impl Relais {
    /// On this database, with these settings.
    pub async fn open(url: &str, options: Options) -> Result<Self> {
        let store = relais_store::open(url, &relais_store::Options::default()).await?;
        store.migrate().await?;
        let engine = Engine::start(Arc::clone(&store), options)?;
        let declaration = json!({
            "services": [{ "serviceName": SERVICE }],
            "clients": [{ "clientId": CLIENT, "clientSecret": "the secret of the benchmark" }],
            "authorizations": [{ "clientId": CLIENT, "serviceName": SERVICE, "roles": ["consume", "work"] }],
        });
        engine.apply(serde_json::from_value(declaration)?, false, false).await?;
        Ok(Self { engine, store })
    }

    fn access(&self) -> Result<Access> {
        Ok(self.engine.insider(CLIENT, SERVICE, Role::Consume)?)
    }

    /// Submits so many tasks.
    pub async fn submit_many(&self, tasks: u64) -> Result<()> {
        let access = self.access()?;
        let mut from = 0;
        while from < tasks {
            let to = (from + BATCH).min(tasks);
            submit(&self.engine, &access, from..to).await?;
            from = to;
        }
        Ok(())
    }

    /// Does all tasks that wait, so many: how many ran, and the time until the last result was stored.
    pub async fn drain(&self, tasks: u64, concurrency: usize) -> Result<(u64, Duration)> {
        let (ran, all) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
        let handler = {
            let (ran, all) = (Arc::clone(&ran), Arc::clone(&all));
            move |_: Body, _| {
                if ran.fetch_add(1, Ordering::AcqRel) + 1 == tasks {
                    all.notify_one();
                }
                std::future::ready(Ok::<(), String>(()))
            }
        };
        let service = self.access()?.service.key;
        let begin = Instant::now();
        let instance = self.engine.work(Handlers::new().on_up_to(concurrency, SERVICE, handler)).await?;
        tokio::time::timeout(PATIENCE, all.notified()).await.context("not all tasks ran")?;
        // The answer is of the moment in which it was asked for.
        let mut time = begin.elapsed();
        while self.store.queue_depths(vec![service]).await?.iter().any(|depth| depth.backlog() > 0) {
            ensure!(time < PATIENCE, "not all results were stored");
            tokio::time::sleep(LOOK).await;
            time = begin.elapsed();
        }
        let report = instance.stop().await;
        ensure!(report.done == tasks, "the instance did {report:?}");
        Ok((ran.load(Ordering::Acquire), time))
    }
}

fn is_file(url: &str) -> bool {
    url.starts_with("sqlite:")
}

/// How long single tasks take to begin.
pub async fn pick_up(url: &str, samples: usize) -> Result<Vec<Duration>> {
    /// The first ones open connections and warm up.
    const WARM_UP: usize = 20;
    let relais = Relais::open(url, Options::default()).await?;
    let (engine, access) = (&relais.engine, relais.access()?);
    let (begun, mut begins) = mpsc::unbounded_channel();
    let handler = move |body: Body, _| {
        let _ = begun.send((body.number, Instant::now()));
        std::future::ready(Ok::<(), String>(()))
    };
    let instance = engine.work(Handlers::new().on_up_to(4, SERVICE, handler)).await?;
    let mut latencies = Vec::with_capacity(samples);
    for number in 0..(samples + WARM_UP) as u64 {
        // The worker has to be waiting again, in no step with anything else.
        tokio::time::sleep(Duration::from_millis(10 + number * 7 % 13)).await;
        let sent = Instant::now();
        submit(engine, &access, number..number + 1).await?;
        let begin =
            tokio::time::timeout(Duration::from_secs(30), begins.recv()).await.context("a task did not begin")?;
        let (which, when) = begin.context("the worker has ended")?;
        ensure!(which == number, "task {which} began, not {number}");
        if number >= WARM_UP as u64 {
            latencies.push(when.saturating_duration_since(sent));
        }
    }
    instance.stop().await;
    relais.engine.stop().await;
    Ok(latencies)
}

async fn submit(engine: &Engine, access: &Access, numbers: std::ops::Range<u64>) -> Result<()> {
    let request = |number| {
        let body = Body { number, name: "a task of the benchmark".to_owned() };
        Ok(serde_json::from_value::<SubmitRequest>(json!({ "body": body }))?)
    };
    if numbers.end - numbers.start == 1 {
        engine.submit(access, request(numbers.start)?, None).await?;
        return Ok(());
    }
    for answer in engine.submit_batch(access, numbers.map(request).collect::<Result<_>>()?).await? {
        answer?;
    }
    Ok(())
}

/// How many tasks have succeeded, counted one by one.
async fn finished(url: &str) -> Result<u64> {
    let count: i64 = if is_file(url) {
        let mut connection = SqliteConnection::connect(url).await?;
        sqlx::query_scalar("SELECT count(*) FROM task WHERE status = 2").fetch_one(&mut connection).await?
    } else {
        let mut connection = PgConnection::connect(url).await?;
        sqlx::query_scalar("SELECT count(*) FROM relais.task WHERE status = 2").fetch_one(&mut connection).await?
    };
    Ok(u64::try_from(count)?)
}
