//! graphile_worker, as its own benchmark `perf_test` runs it: a local queue of 5,000 tasks, 500 at once, results
//! written together after 5 ms, a look every 5 ms. It deletes what is done, so there is no history to keep. For single
//! tasks it has no local queue, which its documentation calls a trade of latency for throughput, and relies on
//! notifications, its default.

use std::{any::Any, ops::Range, time::Duration};

use anyhow::Result;
use async_trait::async_trait;
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, WorkerContext, WorkerOptions,
    WorkerUtils,
};
use serde::{Deserialize, Serialize};
use sqlx::{PgConnection, PgPool, postgres::PgPoolOptions};

use crate::{Body, Pace, Peer, ask, seen};

const SCHEMA: &str = "graphile_worker";
const CONNECTIONS: u32 = 100;
const WORKERS: usize = 500;
const LOCAL: usize = 5000;
const QUEUES: usize = 1;
const POLL: Duration = Duration::from_millis(5);
const TOGETHER: Duration = Duration::from_millis(5);

pub struct Graphile {
    pool: PgPool,
    utils: WorkerUtils,
}

#[derive(Debug, Deserialize, Serialize)]
struct Task {
    #[serde(flatten)]
    body: Body,
}

impl TaskHandler for Task {
    const IDENTIFIER: &'static str = "task";

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        seen::begin(self.body.number);
        Ok::<(), String>(())
    }
}

impl Graphile {
    pub async fn open(url: &str) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?;
        let utils = WorkerUtils::new(pool.clone(), SCHEMA);
        utils.migrate().await?;
        Ok(Self { pool, utils })
    }

    async fn start(&self, options: WorkerOptions) -> Result<Box<dyn Any + Send>> {
        let options = options.schema(SCHEMA).pg_pool(self.pool.clone()).define_job::<Task>();
        let worker = options.listen_os_shutdown_signals(false).init().await?;
        Ok(Box::new(tokio::spawn(async move { worker.run().await })))
    }
}

#[async_trait]
impl Peer for Graphile {
    async fn submit(&self, numbers: Range<u64>) -> Result<()> {
        let tasks = numbers.map(|number| {
            let payload = serde_json::to_value(Body::new(number))?;
            Ok(RawJobSpec { identifier: Task::IDENTIFIER.to_owned(), payload, spec: JobSpec::default() })
        });
        let tasks = tasks.collect::<Result<Vec<_>>>()?;
        if let [task] = &tasks[..] {
            self.utils.add_raw_job(&task.identifier, &task.payload, JobSpec::default()).await?;
        } else {
            self.utils.add_raw_jobs(&tasks).await?;
        }
        Ok(())
    }

    async fn drain(&self, pace: Pace) -> Result<Box<dyn Any + Send>> {
        let local = LocalQueueConfig::default()
            .with_size(pace.batch.unwrap_or(LOCAL))
            .with_queue_count(pace.takers.unwrap_or(QUEUES));
        let options = WorkerOptions::default()
            .concurrency(pace.concurrency.unwrap_or(WORKERS))
            .poll_interval(POLL)
            .complete_job_batch_delay(TOGETHER)
            .local_queue(local);
        self.start(options).await
    }

    async fn wait(&self) -> Result<Box<dyn Any + Send>> {
        // A local queue would be one more stop on the way.
        self.start(WorkerOptions::default().concurrency(4)).await
    }

    async fn unfinished(&self, connection: &mut PgConnection) -> Result<bool> {
        ask(connection, "SELECT EXISTS (SELECT FROM graphile_worker._private_jobs)").await
    }

    async fn finished(&self, _: &mut PgConnection) -> Result<u64> {
        Ok(0)
    }

    fn keeps_history(&self) -> bool {
        false
    }

    async fn fill(&self, _: u64, _: &mut PgConnection) -> Result<()> {
        Ok(())
    }
}
