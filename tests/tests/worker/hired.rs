//! A worker under test, on any transport: its settings, and its report.

use std::time::Duration;

use anyhow::Result;
use relais_engine::{Engine, Handlers, InstanceOptions, InstanceReport};
use relais_worker::{Context, WorkerBuilder, WorkerReport};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    LEASE, SERVICE,
    foreign::Foreign,
    stage::{Order, Stage},
};

/// A worker to be.
pub enum Hired {
    /// Of the worker library.
    Elsewhere(WorkerBuilder),
    /// Of the engine itself.
    InProcess { engine: Engine, options: InstanceOptions, concurrency: usize },
    /// Of a library in another language.
    Foreign(Foreign),
}

impl From<WorkerBuilder> for Hired {
    fn from(builder: WorkerBuilder) -> Self {
        Self::Elsewhere(builder)
    }
}

impl Hired {
    pub fn in_process(engine: &Engine, name: &str) -> Self {
        let options = InstanceOptions { name: Some(name.to_owned()), silence: LEASE, ..InstanceOptions::default() };
        Self::InProcess { engine: engine.clone(), options, concurrency: 1 }
    }

    /// How long it may keep silent before others get its tasks; three times as often it hears what the server wants.
    pub fn lease(self, time: Duration) -> Self {
        let foreign = ("lease", json!(time.as_secs()));
        self.told(|builder| builder.lease(time), |options, _| options.silence = time, foreign)
    }

    pub fn concurrency(self, number: usize) -> Self {
        let foreign = ("concurrency", json!(number));
        self.told(|builder| builder.concurrency(number), |_, concurrency| *concurrency = number, foreign)
    }

    pub fn once(self) -> Self {
        self.told(|builder| builder.once(true), |options, _| options.once = true, ("once", json!(true)))
    }

    pub fn grace(self, time: Duration) -> Self {
        let foreign = ("grace", json!(time.as_secs_f64()));
        self.told(|builder| builder.grace(time), |options, _| options.grace = time, foreign)
    }

    /// Other languages have one that can not be set: a second or three.
    pub fn stop_limit(self, time: Duration) -> Self {
        let foreign = ("stopLimit", json!(null));
        self.told(|builder| builder.stop_limit(time), |options, _| options.stop_limit = time, foreign)
    }

    fn told(
        self,
        elsewhere: impl FnOnce(WorkerBuilder) -> WorkerBuilder,
        here: impl FnOnce(&mut InstanceOptions, &mut usize),
        (name, value): (&str, Value),
    ) -> Self {
        match self {
            Self::Elsewhere(builder) => Self::Elsewhere(elsewhere(builder)),
            Self::InProcess { engine, mut options, mut concurrency } => {
                here(&mut options, &mut concurrency);
                Self::InProcess { engine, options, concurrency }
            }
            Self::Foreign(foreign) => Self::Foreign(foreign.told(name, value)),
        }
    }

    /// Does tasks until it is told to stop. The handler does the same everywhere.
    pub async fn run(self, stage: Stage, shutdown: CancellationToken) -> Result<Report> {
        let theirs = stage.clone();
        let handler = move |order: Order, context: Context| stage.clone().play(order, context);
        match self {
            Self::Foreign(foreign) => foreign.run(theirs, shutdown).await,
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
#[derive(Debug, Deserialize)]
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
        // A result that could not be written would still be leased, and the store is in the same process.
        Self { done, failed, returned, lost, unsent: 0 }
    }
}
