//! Relais itself, in this process: an engine on the store, and a handler within it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use relais_core::Role;
use relais_engine::{Access, Engine, Handlers, Options};
use relais_protocol::consumer::SubmitRequest;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::{Notify, mpsc};

use super::{Measured, Meter};
use crate::fill::{self, Queue};

const SERVICE: &str = "bench";
const CLIENT: &str = "bench";

/// So many tasks are submitted at once before a drain.
const BATCH: u64 = 5000;

/// So many tasks run at once.
const CONCURRENCY: usize = 2000;

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
    open(url).await?.stop().await;
    fill::postgres(url, Queue::ended(finished), SERVICE, CLIENT).await
}

/// Drains so many tasks.
pub async fn drain(url: &str, tasks: u64, meter: Meter) -> Result<Measured> {
    let engine = open(url).await?;
    let mut connection = PgConnection::connect(url).await?;
    sqlx::raw_sql("SET enable_seqscan = off").execute(&mut connection).await?;
    let before = finished(&mut connection).await?;
    let access = engine.insider(CLIENT, SERVICE, Role::Consume)?;
    let mut from = 0;
    while from < tasks {
        let to = (from + BATCH).min(tasks);
        submit(&engine, &access, from..to).await?;
        from = to;
    }
    for statement in ["VACUUM ANALYZE", "CHECKPOINT"] {
        sqlx::raw_sql(statement).execute(&mut connection).await?;
    }

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
    let us = std::process::id();
    let spent = meter.read(us)?;
    let begin = Instant::now();
    let instance = engine.work(Handlers::new().on_up_to(CONCURRENCY, SERVICE, handler)).await?;
    tokio::time::timeout(PATIENCE, all.notified()).await.context("not all tasks ran")?;
    // The answer is of the moment in which it was asked for.
    let mut time = begin.elapsed();
    while unfinished(&mut connection).await? {
        ensure!(time < PATIENCE, "not all results were stored");
        tokio::time::sleep(LOOK).await;
        time = begin.elapsed();
    }
    let split = meter.read(us)?.since(spent, tasks as f64);

    let report = instance.stop().await;
    ensure!(report.done == tasks, "the instance did {report:?}");
    engine.stop().await;
    let finished = finished(&mut connection).await? - before;
    Ok(Measured { ran: ran.load(Ordering::Acquire), finished, keeps_history: true, time, split })
}

/// How long single tasks take to begin.
pub async fn pick_up(url: &str, samples: usize) -> Result<Vec<Duration>> {
    /// The first ones open connections and warm up.
    const WARM_UP: usize = 20;
    let engine = open(url).await?;
    let access = engine.insider(CLIENT, SERVICE, Role::Consume)?;
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
        submit(&engine, &access, number..number + 1).await?;
        let begin =
            tokio::time::timeout(Duration::from_secs(30), begins.recv()).await.context("a task did not begin")?;
        let (which, when) = begin.context("the worker has ended")?;
        ensure!(which == number, "task {which} began, not {number}");
        if number >= WARM_UP as u64 {
            latencies.push(when.saturating_duration_since(sent));
        }
    }
    instance.stop().await;
    engine.stop().await;
    Ok(latencies)
}

async fn open(url: &str) -> Result<Engine> {
    let store = relais_store::open(url, &relais_store::Options::default()).await?;
    store.migrate().await?;
    let engine = Engine::start(store, Options::default())?;
    let declaration = json!({
        "services": [{ "serviceName": SERVICE }],
        "clients": [{ "clientId": CLIENT, "clientSecret": "the secret of the benchmark" }],
        "authorizations": [{ "clientId": CLIENT, "serviceName": SERVICE, "roles": ["consume", "work"] }],
    });
    engine.apply(serde_json::from_value(declaration)?, false, false).await?;
    Ok(engine)
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

async fn unfinished(connection: &mut PgConnection) -> Result<bool> {
    let of = |status: u8| {
        format!(
            "EXISTS (SELECT FROM relais.task
                     WHERE service_id = (SELECT id FROM relais.service WHERE name = '{SERVICE}') AND status = {status})"
        )
    };
    let question = format!("SELECT {} OR {}", of(0), of(1));
    Ok(sqlx::query_scalar(AssertSqlSafe(question)).fetch_one(connection).await?)
}

async fn finished(connection: &mut PgConnection) -> Result<u64> {
    let count: i64 =
        sqlx::query_scalar("SELECT count(*) FROM relais.task WHERE status = 2").fetch_one(connection).await?;
    Ok(u64::try_from(count)?)
}
