//! riverqueue, as its own `riverqueue bench` runs it: 2,000 workers on one queue, 50 connections, 2 ms between two
//! fetches, a look every 20 ms. More workers (its limit is 10,000) let it take larger batches. Results are written in
//! batches of up to 5,000, which can not be set. For single tasks, a fetch may follow another after 1 ms, the least
//! that it takes; that is also how far apart its notifications are.

use std::{any::Any, convert::Infallible, future::Future, ops::Range, time::Duration};

use anyhow::Result;
use async_trait::async_trait;
use riverqueue::{
    Client, InsertOpts, Job, JobArgs, QUEUE_DEFAULT, QueueConfig, WorkContext, WorkOutcome, Worker, Workers,
    migrate::PostgresMigrator,
};
use serde::{Deserialize, Serialize};
use sqlx::{PgConnection, PgPool, postgres::PgPoolOptions};

use crate::{Body, Pace, Peer, ask, seen};

const WORKERS: usize = 2000;
const CONNECTIONS: u32 = 50;
const COOLDOWN: Duration = Duration::from_millis(2);
const POLL: Duration = Duration::from_millis(20);
/// The least that it takes between two fetches, and between two notifications.
const SHORTEST: Duration = Duration::from_millis(1);

pub struct River {
    pool: PgPool,
    /// One that only submits.
    client: Client,
}

#[derive(Clone, Debug, Deserialize, JobArgs, Serialize)]
#[river(kind = "task")]
struct Task {
    #[serde(flatten)]
    body: Body,
}

struct Handler;

impl Worker<Task> for Handler {
    type Error = Infallible;

    fn work(&self, _: WorkContext, job: Job<Task>) -> impl Future<Output = Result<WorkOutcome, Infallible>> + Send {
        seen::begin(job.args.body.number);
        std::future::ready(Ok(WorkOutcome::Complete))
    }
}

impl River {
    pub async fn open(url: &str) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?;
        PostgresMigrator::new(pool.clone()).migrate_up().await?;
        // Notifications of one who submits are as far apart as its cooldown.
        let client = Client::builder(pool.clone()).fetch_cooldown(SHORTEST).build()?;
        Ok(Self { pool, client })
    }

    async fn start(&self, queue: QueueConfig) -> Result<Box<dyn Any + Send>> {
        let mut workers = Workers::new();
        workers.add::<Task, _>(Handler)?;
        let client = Client::builder(self.pool.clone()).workers(workers).queue(QUEUE_DEFAULT, queue).build()?;
        let mut run = client.start()?;
        run.wait_ready().await?;
        Ok(Box::new(run))
    }
}

#[async_trait]
impl Peer for River {
    async fn submit(&self, numbers: Range<u64>) -> Result<()> {
        let jobs: Vec<_> = numbers.map(|number| (Task { body: Body::new(number) }, InsertOpts::default())).collect();
        self.client.insert_many(jobs).await?;
        Ok(())
    }

    async fn drain(&self, pace: Pace) -> Result<Box<dyn Any + Send>> {
        let queue = QueueConfig::new(pace.concurrency.unwrap_or(WORKERS));
        self.start(queue.with_fetch_cooldown(COOLDOWN).with_fetch_poll_interval(POLL)).await
    }

    async fn wait(&self) -> Result<Box<dyn Any + Send>> {
        self.start(QueueConfig::new(10).with_fetch_cooldown(SHORTEST).with_fetch_poll_interval(POLL)).await
    }

    async fn unfinished(&self, connection: &mut PgConnection) -> Result<bool> {
        let of = |state: &str| format!("EXISTS (SELECT FROM river_job WHERE state = '{state}')");
        ask(connection, &format!("SELECT {} OR {} OR {}", of("available"), of("running"), of("retryable"))).await
    }

    async fn finished(&self, connection: &mut PgConnection) -> Result<u64> {
        let count: i64 = ask(connection, "SELECT count(*) FROM river_job WHERE state = 'completed'").await?;
        Ok(u64::try_from(count)?)
    }

    async fn fill(&self, finished: u64, connection: &mut PgConnection) -> Result<()> {
        let body = serde_json::to_string(&Body::new(0))?;
        let statement = format!(
            "INSERT INTO river_job (state, attempt, max_attempts, attempted_at, created_at, finalized_at, scheduled_at,
                                    args, attempted_by, kind, queue)
             SELECT 'completed', 1, 25, now(), now(), now(), now(), '{body}', ARRAY['bench'], 'task', 'default'
             FROM generate_series(1, {finished})"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(connection).await?;
        Ok(())
    }
}
