//! awa on its queue storage, which is its default and the faster of its two: tasks without a deadline take its short
//! way, with claims and results in batches of 512. From 512 workers on it writes results with four writers instead of
//! one. Its own benchmark has 100 workers and looks at the queue every 50 ms, beside notifications.

use std::{any::Any, ops::Range, time::Duration};

use anyhow::Result;
use async_trait::async_trait;
use awa::{
    Client, InsertOpts, JobArgs, JobContext, JobError, JobResult, QueueConfig, QueueStorage, QueueStorageConfig,
    Worker, migrations,
};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use sqlx_for_awa::{PgPool, postgres::PgPoolOptions};

use crate::{Body, Pace, Peer, ask, seen};

const QUEUE: &str = "tasks";
const WORKERS: usize = 1024;
const CLAIMERS: usize = 1;
const BATCH: usize = 512;
const CONNECTIONS: u32 = 20;
/// What its own benchmarks look at the queue with.
const POLL: Duration = Duration::from_millis(50);
/// Finished tasks are forgotten with the slot that they are in, sixteen turns later. They are to be kept.
const TURN: Duration = Duration::from_secs(3600);
/// Its default for what is no history.
const LEASES: Duration = Duration::from_secs(1);

pub struct Awa {
    pool: PgPool,
    store: QueueStorage,
}

#[derive(Debug, Deserialize, JobArgs, Serialize)]
#[awa(kind = "task")]
struct Task {
    #[serde(flatten)]
    body: Body,
}

struct Handler;

#[async_trait]
impl Worker for Handler {
    fn kind(&self) -> &'static str {
        "task"
    }

    async fn perform(&self, context: &JobContext) -> Result<JobResult, JobError> {
        seen::begin(context.job.args["number"].as_u64().unwrap_or(u64::MAX));
        Ok(JobResult::Completed)
    }
}

impl Awa {
    pub async fn open(url: &str) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?;
        migrations::run(&pool).await?;
        let store = QueueStorage::new(QueueStorageConfig::default())?;
        store.install(&pool).await?;
        Ok(Self { pool, store })
    }

    async fn start(&self, queue: QueueConfig) -> Result<Box<dyn Any + Send>> {
        let client = Client::builder(self.pool.clone())
            .queue(QUEUE, queue)
            .queue_storage(QueueStorageConfig::default(), TURN, LEASES)
            .register_worker(Handler)
            .build()?;
        client.start().await?;
        Ok(Box::new(client))
    }
}

#[async_trait]
impl Peer for Awa {
    async fn submit(&self, numbers: Range<u64>) -> Result<()> {
        let options = InsertOpts { queue: QUEUE.to_owned(), ..InsertOpts::default() };
        let tasks = numbers.map(|number| {
            awa::insert::params_with(&Task { body: Body::new(number) }, options.clone()).map_err(anyhow::Error::from)
        });
        let tasks = tasks.collect::<Result<Vec<_>>>()?;
        if tasks.len() == 1 {
            self.store.enqueue_params_batch(&self.pool, &tasks).await?;
        } else {
            self.store.enqueue_params_copy(&self.pool, &tasks).await?;
        }
        Ok(())
    }

    async fn drain(&self, pace: Pace) -> Result<Box<dyn Any + Send>> {
        self.start(QueueConfig {
            max_workers: u32::try_from(pace.concurrency.unwrap_or(WORKERS))?,
            claimers: u16::try_from(pace.takers.unwrap_or(CLAIMERS))?,
            claim_batch_size: pace.batch.unwrap_or(BATCH),
            poll_interval: POLL,
            deadline_duration: Duration::ZERO,
            ..QueueConfig::default()
        })
        .await
    }

    async fn wait(&self) -> Result<Box<dyn Any + Send>> {
        self.start(QueueConfig {
            max_workers: 10,
            poll_interval: POLL,
            deadline_duration: Duration::ZERO,
            ..QueueConfig::default()
        })
        .await
    }

    async fn unfinished(&self, connection: &mut PgConnection) -> Result<bool> {
        let submitted: i64 = ask(connection, "SELECT count(*) FROM awa.ready_entries").await?;
        Ok(self.finished(connection).await? < u64::try_from(submitted)?)
    }

    async fn finished(&self, connection: &mut PgConnection) -> Result<u64> {
        // A row for each batch of results; single results where there was a reason.
        let question = "SELECT (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)
                             + (SELECT count(*) FROM awa.done_entries WHERE state = 'completed')";
        let count: i64 = ask(connection, &format!("SELECT ({question})::bigint")).await?;
        Ok(u64::try_from(count)?)
    }

    async fn fill(&self, finished: u64, connection: &mut PgConnection) -> Result<()> {
        // Nine tables say together that a task is finished: they are left to awa.
        seen::expect(finished, false);
        crate::submit(self, finished).await?;
        let _workers = self.drain(Pace { concurrency: None, batch: None, takers: None }).await?;
        seen::all().await;
        while self.unfinished(connection).await? {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }
}
