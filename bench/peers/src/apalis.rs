//! apalis over apalis-postgres: workers that each take a batch, run it, and write its results with one statement; it
//! has no benchmark of its own. One worker waits for each of these in turn, so there are some, with batches as its
//! documentation advises for throughput. Taking marks a task as the worker's already, so that it is not marked once
//! more when it begins (`lock_tasks`).

use std::{any::Any, ops::Range, time::Duration};

use anyhow::{Result, anyhow};
use apalis::prelude::*;
use apalis_postgres::{Config, PostgresStorage, queries::push_tasks};
use async_trait::async_trait;
use sqlx::{PgConnection, PgPool, postgres::PgPoolOptions};

use crate::{Body, Pace, Peer, ask, seen};

const QUEUE: &str = "tasks";
const CONNECTIONS: u32 = 20;
const WORKERS: usize = 4;
const BATCH: usize = 1000;
/// Beside notifications, which come when tasks are submitted.
const POLL: Duration = Duration::from_millis(20);

/// As in its own example: now and then a worker finds a task only when it is woken for this.
const HEARTBEAT: Duration = Duration::from_secs(1);

pub struct Apalis {
    pool: PgPool,
}

async fn handle(body: Body) -> Result<(), BoxDynError> {
    seen::begin(body.number);
    Ok(())
}

impl Apalis {
    pub async fn open(url: &str) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?;
        PostgresStorage::setup(&pool).await?;
        Ok(Self { pool })
    }

    fn start(&self, workers: usize, batch: usize) -> Box<dyn Any + Send> {
        let config = Config::default()
            .queue(QUEUE)
            .batch_size(batch)
            .lock_tasks(false)
            .persist_results(true)
            .heartbeat_interval(HEARTBEAT);
        for number in 0..workers {
            let backend = PostgresStorage::<Body>::new(&self.pool)
                .with_config(config.clone())
                .with_pubsub()
                .poll_with_interval(POLL);
            let worker = WorkerBuilder::new(format!("{}-{number}", std::process::id())).backend(backend).build(handle);
            tokio::spawn(async move {
                if let Err(error) = worker.run().await {
                    eprintln!("a worker ended: {error}");
                }
            });
        }
        Box::new(())
    }
}

#[async_trait]
impl Peer for Apalis {
    async fn submit(&self, numbers: Range<u64>) -> Result<()> {
        let tasks = numbers.map(|number| Ok(TaskBuilder::new(serde_json::to_vec(&Body::new(number))?).build()));
        let tasks = tasks.collect::<Result<Vec<_>>>()?;
        let mut connection = self.pool.acquire().await?;
        push_tasks(&mut *connection, QUEUE, tasks).await.map_err(|error| anyhow!("{error}"))
    }

    async fn drain(&self, pace: Pace) -> Result<Box<dyn Any + Send>> {
        Ok(self.start(pace.takers.unwrap_or(WORKERS), pace.batch.unwrap_or(BATCH)))
    }

    async fn wait(&self) -> Result<Box<dyn Any + Send>> {
        Ok(self.start(1, 10))
    }

    async fn unfinished(&self, connection: &mut PgConnection) -> Result<bool> {
        ask(connection, "SELECT EXISTS (SELECT FROM apalis.jobs WHERE done_at IS NULL)").await
    }

    async fn finished(&self, connection: &mut PgConnection) -> Result<u64> {
        let count: i64 = ask(connection, "SELECT count(*) FROM apalis.jobs WHERE status = 'Done'").await?;
        Ok(u64::try_from(count)?)
    }

    async fn fill(&self, finished: u64, connection: &mut PgConnection) -> Result<()> {
        let body = serde_json::to_string(&Body::new(0))?;
        let statement = format!(
            "INSERT INTO apalis.jobs (id, job_type, job, status, attempts, max_attempts, run_at, lock_at, done_at, priority,
                                      metadata, last_result)
             SELECT '0' || lpad(n::text, 25, '0'), '{QUEUE}', '{body}'::bytea, 'Done', 1, 25, now(), now(), now(), 0, '',
                    '{{\"Ok\":null}}'
             FROM generate_series(1, {finished}) AS n"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(connection).await?;
        Ok(())
    }
}
