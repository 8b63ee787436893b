//! Where a run takes place: real engines on a real database, with a store between them that fails on purpose.

use std::{any::Any, collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use async_trait::async_trait;
use relais_core::{CallbackType, Client, Courier, Letter, NotAllowed, Reply, ReplyOutcome, Role, Store, TaskId};
use relais_engine::{Access, AuthOptions, CallbackOptions, Couriers, Engine, Options};
use relais_testkit::{FaultPlan, Faulty, TestDatabase};
use relais_transport::{RabbitMq, RabbitMqOptions};
use serde_json::{Value, json};

use super::ledger::Ledger;

/// A service without a limit, and one that is soon full, unless a broker has them.
pub const SERVICES: [&str; 2] = ["resize", "ocr"];

/// After so many losses a task fails.
pub const DELIVERY_LIMIT: u32 = 6;

/// Which database.
#[derive(Debug, Clone, Copy)]
pub enum Backend {
    /// A file, and one process.
    Sqlite,
    /// A server, and two processes.
    Postgres,
    /// The same, with a broker.
    Brokered,
}

/// A world of its own for one seed.
pub struct Stage {
    /// The processes.
    pub engines: Vec<Engine>,
    /// The store without faults.
    pub underneath: Arc<dyn Store>,
    /// Where the database is.
    pub url: String,
    faulty: Vec<Arc<Faulty>>,
    /// Whatever must live as long as the database.
    _keep: Box<dyn Any + Send + Sync>,
}

impl Stage {
    /// Sets it up, without faults at first.
    pub async fn set_up(backend: Backend, seed: u64, ledger: &Arc<Ledger>, broker: Option<&str>) -> Result<Self> {
        let (url, keep): (String, Box<dyn Any + Send + Sync>) = match backend {
            Backend::Sqlite => {
                let folder = tempfile::tempdir()?;
                (format!("sqlite:{}", folder.path().join("relais.db").display()), Box::new(folder))
            }
            Backend::Postgres | Backend::Brokered => {
                let database = TestDatabase::create().await?;
                (database.url().to_owned(), Box::new(database))
            }
        };
        let options = relais_store::Options { max_connections: 5, ..relais_store::Options::default() };
        let underneath = relais_store::open(&url, &options).await?;
        underneath.migrate().await?;
        let stores = match backend {
            Backend::Sqlite => vec![Arc::clone(&underneath)],
            Backend::Postgres | Backend::Brokered => {
                vec![relais_store::open(&url, &options).await?, relais_store::open(&url, &options).await?]
            }
        };
        let (mut faulty, mut engines) = (Vec::new(), Vec::new());
        for (number, store) in stores.into_iter().enumerate() {
            let seed = seed.wrapping_add(number as u64);
            let store = Faulty::new(store, FaultPlan { seed, refused: 80, unanswered: 100, broken_off: 100 });
            faulty.push(Arc::clone(&store));
            let mut options = engine_options(ledger);
            if let Some(url) = broker {
                options.dispatch.carrier = Some(Arc::new(RabbitMq::new(url, RabbitMqOptions::default())?));
            }
            engines.push(Engine::start(store, options)?);
        }
        let transport = if broker.is_some() { "rabbitmq" } else { "builtin" };
        let declaration = serde_json::from_value(world(transport)).context("the declaration does not parse")?;
        engines[0].apply(declaration, false, false).await?;
        for engine in &engines {
            engine.refresh().await?;
        }
        Ok(Self { engines, underneath, url, faulty, _keep: keep })
    }

    /// From now on calls fail, or do not.
    pub fn switch(&self, faults: bool) {
        self.faulty.iter().for_each(|faulty| faulty.switch(faults));
    }

    /// How many calls failed, by verb.
    pub fn faults(&self) -> BTreeMap<&'static str, u64> {
        let mut faults = BTreeMap::new();
        for (verb, count) in self.faulty.iter().flat_map(|faulty| faulty.counts()) {
            *faults.entry(verb).or_default() += count.faults();
        }
        faults
    }

    /// What a consumer may do on a service.
    pub fn consumer(&self, engine: &Engine, service: &str) -> Result<Access> {
        Ok(engine.insider("alice", service, Role::Consume)?)
    }

    /// What a worker may do on a service.
    pub fn worker(&self, engine: &Engine, service: &str) -> Result<Access> {
        Ok(engine.insider("worker", service, Role::Work)?)
    }
}

fn engine_options(ledger: &Arc<Ledger>) -> Options {
    let courier = Arc::new(Noting(Arc::clone(ledger)));
    Options {
        auth: AuthOptions { bcrypt_cost: 4, ..AuthOptions::default() },
        couriers: Couriers::default().with(CallbackType::Https, courier),
        // What a sender does not settle is sent again after three times this and a little more.
        callbacks: CallbackOptions { timeout: Duration::from_millis(100), ..CallbackOptions::default() },
        ..Options::default()
    }
}

fn world(transport: &str) -> Value {
    let may =
        |client: &str, service: &str, role: &str| json!({"clientId": client, "serviceName": service, "roles": [role]});
    let limited = |service: &str| json!({"serviceName": service, "transport": transport, "lease": "1s", "deliveryLimit": DELIVERY_LIMIT});
    let mut services = SERVICES.map(limited);
    // Behind a broker, what nobody knows to be taken waits for so long that a full queue would be all there is.
    if transport == "builtin" {
        services[1]["capacity"] = json!(8);
    }
    json!({
        "services": services,
        "clients": [{"clientId": "alice", "clientSecret": "alice's"}, {"clientId": "worker", "clientSecret": "worker's"}],
        "authorizations": [
            may("alice", SERVICES[0], "consume"),
            may("alice", SERVICES[1], "consume"),
            may("worker", SERVICES[0], "work"),
            may("worker", SERVICES[1], "work"),
        ],
    })
}

/// Writes down what it is to carry.
struct Noting(Arc<Ledger>);

#[async_trait]
impl Courier for Noting {
    fn judge(&self, _: CallbackType, target: &str, _: &Client) -> Result<String, NotAllowed> {
        Ok(target.to_owned())
    }

    async fn carry(&self, letter: &Letter) -> Reply {
        let body: Value = serde_json::from_str(&letter.body).unwrap_or_default();
        let task_id = body["taskId"].as_str().or(body["batchId"].as_str()).and_then(TaskId::parse);
        match (task_id, body["status"].as_str()) {
            (Some(task_id), Some(status)) => {
                self.0.book().letters.entry(task_id).or_default().push(status.to_owned());
            }
            _ => self.0.wrong(format!("a callback told {body}")),
        }
        Reply { outcome: ReplyOutcome::Delivered, status: Some(200), error: None, answer: None }
    }
}
