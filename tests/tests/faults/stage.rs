//! The setting of a run: real engines on a real database, with a store between them that fails on purpose.

use std::{any::Any, collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use relais_broker::{RabbitMq, RabbitMqOptions};
use relais_core::{
    CallbackDelivery, CallbackSender, CallbackType, Client, NotAllowed, Reply, ReplyOutcome, Role, Store, TaskId,
};
use relais_engine::{Access, AuthOptions, CallbackOptions, CallbackSenders, Engine, EngineError, Options};
use relais_protocol::admin::Declaration;
use relais_testkit::{FaultCount, FaultPlan, Faulty, TestDatabase};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    PATIENCE, PAUSE,
    ledger::Ledger,
    world::{self, NOBODY},
};

/// Which database.
#[derive(Debug, Clone, Copy)]
pub enum Backend {
    /// A file, and one process.
    Sqlite,
    /// A server, and two processes.
    Postgres,
}

/// Who does the tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cast {
    /// Workers who claim them.
    Remote,
    /// Workers behind a broker.
    Brokered,
    /// The processes themselves, and some workers who claim them; with schedules, limits, retries and an inbox.
    InProcess,
}

/// What a run is of.
#[derive(Debug, Clone, Copy)]
pub struct Play {
    pub backend: Backend,
    pub cast: Cast,
}

/// A world of its own for one seed.
pub struct Stage {
    pub play: Play,
    /// The processes.
    pub engines: Vec<Engine>,
    /// The store without faults.
    pub underneath: Arc<dyn Store>,
    /// The stores of the processes.
    pub faulty: Vec<Arc<Faulty>>,
    /// Where the database is.
    pub url: String,
    /// Whatever must live as long as the database.
    _keep: Box<dyn Any + Send + Sync>,
}

impl Stage {
    /// Sets it up, with faults from the beginning.
    pub async fn set_up(play: Play, seed: u64, ledger: &Arc<Ledger>, broker: Option<&str>) -> Result<Self> {
        let (url, keep): (String, Box<dyn Any + Send + Sync>) = match play.backend {
            Backend::Sqlite => {
                let folder = tempfile::tempdir()?;
                (format!("sqlite:{}", folder.path().join("relais.db").display()), Box::new(folder))
            }
            Backend::Postgres => {
                let database = TestDatabase::create().await?;
                (database.url().to_owned(), Box::new(database))
            }
        };
        let options = relais_store::Options { max_connections: 5, ..relais_store::Options::default() };
        let underneath = relais_store::open(&url, &options).await?;
        underneath.migrate().await?;
        let stores = match play.backend {
            Backend::Sqlite => vec![Arc::clone(&underneath)],
            Backend::Postgres => {
                vec![relais_store::open(&url, &options).await?, relais_store::open(&url, &options).await?]
            }
        };
        let (mut faulty, mut engines) = (Vec::new(), Vec::new());
        for (number, store) in stores.into_iter().enumerate() {
            let seed = seed.wrapping_add(number as u64);
            let store =
                Faulty::new(store, FaultPlan { seed, refused: 80, unanswered: 100, broken_off: 100, only: None });
            store.switch(true);
            faulty.push(Arc::clone(&store));
            let mut options = engine_options(ledger);
            if let Some(url) = broker {
                options.dispatch.task_broker = Some(Arc::new(RabbitMq::new(url, RabbitMqOptions::default())?));
            }
            engines.push(Engine::start(store, options)?);
        }
        let declaration: Declaration = serde_json::from_value(world::of(play.cast)).context("the declaration")?;
        until_answered(|| engines[0].apply(declaration.clone(), false, false)).await.context("declare the world")?;
        for engine in &engines {
            until_answered(|| engine.refresh()).await.context("read what is declared")?;
        }
        Ok(Self { play, engines, underneath, faulty, url, _keep: keep })
    }

    /// Ends it: nothing goes on in the background while others play.
    pub async fn close(self) {
        futures::future::join_all(self.engines.into_iter().map(Engine::stop)).await;
        self.underneath.close().await;
    }

    /// From now on calls fail, or do not.
    pub fn switch(&self, faults: bool) {
        self.faulty.iter().for_each(|faulty| faulty.switch(faults));
    }

    /// What became of the calls, by verb.
    pub fn calls(&self) -> BTreeMap<&'static str, FaultCount> {
        let mut calls = BTreeMap::new();
        for (verb, count) in self.faulty.iter().flat_map(|faulty| faulty.counts()) {
            *calls.entry(verb).or_default() += count;
        }
        calls
    }

    /// What a consumer may do on a service.
    pub fn consumer(&self, engine: &Engine, client: &str, service: &str) -> Result<Access> {
        Ok(engine.insider(client, service, Role::Consume)?)
    }

    /// What a worker may do on a service.
    pub fn worker(&self, engine: &Engine, service: &str) -> Result<Access> {
        Ok(engine.insider("worker", service, Role::Work)?)
    }
}

/// Does something until the store answers.
pub async fn until_answered<T, F>(act: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T, EngineError>>,
{
    let begun = Instant::now();
    loop {
        match act().await {
            Ok(done) => return Ok(done),
            Err(EngineError::Store(_)) if begun.elapsed() < PATIENCE => tokio::time::sleep(PAUSE).await,
            Err(other) => return Err(other.into()),
        }
    }
}

fn engine_options(ledger: &Arc<Ledger>) -> Options {
    let callback_sender = Arc::new(Noting(Arc::clone(ledger)));
    Options {
        auth: AuthOptions { bcrypt_cost: 4, ..AuthOptions::default() },
        callback_senders: CallbackSenders::default().with(CallbackType::Https, callback_sender),
        callbacks: CallbackOptions {
            // A callback that a sender does not complete is sent again after three times this and a little more.
            timeout: Duration::from_millis(100),
            retries: vec![Duration::from_millis(50); 2],
            park_after: 3,
            park_first: Duration::from_millis(200),
            park_most: Duration::from_millis(200),
            give_up_after: Duration::from_millis(500),
            ..CallbackOptions::default()
        },
        ..Options::default()
    }
}

/// Writes down what it is to carry.
struct Noting(Arc<Ledger>);

#[async_trait]
impl CallbackSender for Noting {
    fn judge(&self, _: CallbackType, target: &str, _: &Client) -> Result<String, NotAllowed> {
        Ok(target.to_owned())
    }

    async fn send(&self, letter: &CallbackDelivery) -> Reply {
        let body: Value = serde_json::from_str(&letter.body).unwrap_or_default();
        let task_id = body["taskId"].as_str().or(body["batchId"].as_str()).and_then(TaskId::parse);
        if letter.target == NOBODY {
            let outcome = ReplyOutcome::Unwell { retry_after: None };
            return Reply { outcome, status: None, error: Some("nobody is there".to_owned()), answer: None };
        }
        match (task_id, body["status"].as_str()) {
            (Some(task_id), Some(status)) => {
                self.0.book().letters.entry(task_id).or_default().push(status.to_owned());
            }
            _ => self.0.wrong(format!("a callback told {body}")),
        }
        Reply { outcome: ReplyOutcome::Delivered, status: Some(200), error: None, answer: None }
    }
}
