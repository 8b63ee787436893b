//! A worker to be, on whatever transport: what all of them can be told, and what all of them tell in the end.

use std::time::Duration;

use anyhow::Result;
use relais_engine::{Engine, Handlers, InstanceOptions, InstanceReport};
use relais_worker::{Context, HandlerError, WorkerBuilder, WorkerReport};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::SERVICE;

/// A worker to be.
pub enum Hired {
    /// Of the worker library.
    Elsewhere(WorkerBuilder),
    /// Of the engine itself.
    InProcess { engine: Engine, options: InstanceOptions, concurrency: usize },
}

impl From<WorkerBuilder> for Hired {
    fn from(builder: WorkerBuilder) -> Self {
        Self::Elsewhere(builder)
    }
}

impl Hired {
    pub fn in_process(engine: &Engine, name: &str) -> Self {
        let options = InstanceOptions {
            name: Some(name.to_owned()),
            silence: Duration::from_secs(1),
            ..InstanceOptions::default()
        };
        Self::InProcess { engine: engine.clone(), options, concurrency: 1 }
    }

    pub fn concurrency(self, number: usize) -> Self {
        self.told(|builder| builder.concurrency(number), |_, concurrency| *concurrency = number)
    }

    pub fn once(self) -> Self {
        self.told(|builder| builder.once(true), |options, _| options.once = true)
    }

    pub fn grace(self, time: Duration) -> Self {
        self.told(|builder| builder.grace(time), |options, _| options.grace = time)
    }

    pub fn stop_limit(self, time: Duration) -> Self {
        self.told(|builder| builder.stop_limit(time), |options, _| options.stop_limit = time)
    }

    fn told(
        mut self,
        elsewhere: impl FnOnce(WorkerBuilder) -> WorkerBuilder,
        here: impl FnOnce(&mut InstanceOptions, &mut usize),
    ) -> Self {
        match &mut self {
            Self::Elsewhere(builder) => return Self::Elsewhere(elsewhere(builder.clone())),
            Self::InProcess { options, concurrency, .. } => here(options, concurrency),
        }
        self
    }

    /// Does tasks until it is told to stop. The handler is the same everywhere.
    pub async fn run<B, H, F>(self, handler: H, shutdown: CancellationToken) -> Result<Report>
    where
        H: Fn(B, Context) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Value, HandlerError>> + Send + 'static,
        B: DeserializeOwned + Send + 'static,
    {
        match self {
            Self::Elsewhere(builder) => Ok(builder.build()?.run(handler, shutdown).await?.into()),
            Self::InProcess { engine, options, concurrency } => {
                let handlers = Handlers::new().options(options).on_up_to(concurrency, SERVICE, handler);
                let instance = engine.work(handlers).await?;
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    () = instance.finished() => {}
                }
                Ok(instance.stop().await.into())
            }
        }
    }
}

/// What a worker did.
#[derive(Debug)]
pub struct Report {
    pub done: u64,
    pub failed: u64,
    pub returned: u64,
    pub lost: u64,
    pub unsent: u64,
}

impl From<WorkerReport> for Report {
    fn from(report: WorkerReport) -> Self {
        let WorkerReport { done, failed, returned, lost, unsent, .. } = report;
        Self { done, failed, returned, lost, unsent }
    }
}

impl From<InstanceReport> for Report {
    fn from(report: InstanceReport) -> Self {
        let InstanceReport { done, failed, returned, lost, .. } = report;
        // What could not be written would be in hand still, and the store is in the same process.
        Self { done, failed, returned, lost, unsent: 0 }
    }
}
