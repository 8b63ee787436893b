//! What is broken: processes of the real binary, their PostgreSQL, and the Redis that wakes them up and may have the log.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use relais_testkit::{PostgresServer, Random, RedisServer};
use relais_tests::{
    app::secret,
    chaos::Api,
    instance::{Instance, command},
};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::sync::watch;

use crate::stage::{declaration, text, until};

/// For whatever should happen soon, on a machine that runs all of it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A client that was not answered tries again when something was started again, and after this time at the latest.
const LATEST: Duration = Duration::from_millis(20);

/// The database of the emitters that write to tables.
const SHOP: &str = "shop";

/// How much is broken. The suite's run is short; `cargo xtask chaos notifications` sets the rest.
#[derive(Debug, Clone, Copy)]
pub struct Length {
    /// So many users, each with a link.
    pub users: usize,
    /// So many processes.
    pub instances: usize,
    /// So many faults.
    pub faults: usize,
    /// At least so many deliveries.
    pub deliveries: usize,
}

impl Length {
    pub fn new() -> Self {
        let set = |name: &str, usual| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
        Self {
            users: set("RELAIS_CHAOS_LINKS", 8),
            instances: set("RELAIS_CHAOS_INSTANCES", 2),
            faults: set("RELAIS_CHAOS_FAULTS", 10),
            deliveries: set("RELAIS_CHAOS_DELIVERIES", 1500),
        }
    }

    pub fn groups(&self) -> usize {
        (self.users / 50).max(2)
    }
}

/// Where notifications are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    InDatabase,
    InRedis,
}

pub fn user(number: usize) -> String {
    format!("u{number}")
}

/// Who gets a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    User(usize),
    /// Every so manieth user is in a group.
    Group(usize),
}

impl To {
    /// Somebody, or now and then many.
    pub fn random(random: &mut Random, length: Length) -> Self {
        if random.once_in(3) {
            Self::Group(random.below(length.groups()))
        } else {
            Self::User(random.below(length.users))
        }
    }

    pub fn users(self, length: Length) -> Vec<usize> {
        match self {
            Self::User(user) => vec![user],
            Self::Group(group) => (0..length.users).filter(|user| user % length.groups() == group).collect(),
        }
    }

    /// The type of audience, and the target.
    pub fn audience(self) -> (&'static str, String) {
        match self {
            Self::User(number) => ("USER", user(number)),
            Self::Group(group) => ("GROUP", format!("g{group}")),
        }
    }
}

/// The servers, as their clients know them, and what has been done so far.
#[derive(Clone)]
pub struct Servers {
    pub length: Length,
    pub shop: String,
    apis: Arc<[Api]>,
    /// Messages that were delivered to a user for the first time.
    pub delivered: watch::Sender<usize>,
    /// As many are to be delivered, of what was emitted.
    expected: Arc<AtomicUsize>,
    pub ended: watch::Sender<bool>,
    /// How often something was started again.
    restarts: watch::Sender<usize>,
}

impl Servers {
    async fn restarted(&self) {
        let mut restarts = self.restarts.subscribe();
        let _ = tokio::time::timeout(LATEST, restarts.changed()).await;
    }

    /// Asks one server or another until there is an answer with this status.
    pub async fn insist(
        &self,
        random: &mut Random,
        status: u16,
        ask: impl Fn(&Api) -> RequestBuilder,
    ) -> Result<Value> {
        let begun = Instant::now();
        loop {
            match Api::send(ask(random.pick(&self.apis))).await {
                Ok(answer) if answer.status == status => return answer.data(),
                Ok(answer) if answer.status != 503 => bail!("answered {}: {}", answer.status, answer.body),
                Ok(_) | Err(_) => ensure!(begun.elapsed() < PATIENCE, "no answer {status} within {PATIENCE:?}"),
            }
            self.restarted().await;
        }
    }

    /// Opens a stream at one server or another.
    pub async fn stream(&self, random: &mut Random, path: &str) -> Option<reqwest::Response> {
        let request = random.pick(&self.apis).request(Method::GET, path).timeout(Duration::from_secs(3600));
        match request.send().await {
            Ok(response) if response.status() == 200 => Some(response),
            Ok(_) | Err(_) => {
                self.restarted().await;
                None
            }
        }
    }

    /// A user's ticket, and a cursor.
    pub async fn enter(&self, random: &mut Random, number: usize) -> Result<(String, String)> {
        let request = json!({"user": user(number)});
        let post = |api: &Api| api.request(Method::POST, "/v1/notifications/tickets").json(&request);
        let ticket = text(&self.insist(random, 201, post).await?["ticket"]);
        let path = format!("/v1/notifications/poll?ticket={ticket}");
        let begun = self.insist(random, 200, |api| api.request(Method::GET, &path)).await?;
        Ok((ticket, text(&begun["cursor"])))
    }

    /// Counts a message, and waits while too many are under way: the last reads would go on for long.
    pub async fn pace(&self, to: To) {
        let expected = self.expected.fetch_add(to.users(self.length).len(), Ordering::Relaxed);
        let mut delivered = self.delivered.subscribe();
        let ahead = self.length.users.max(100);
        let near = delivered.wait_for(|delivered| delivered + ahead > expected);
        let _ = tokio::time::timeout(Duration::from_secs(1), near).await;
    }

    /// Waits for deliveries.
    pub async fn until_delivered(&self, count: usize) -> Result<()> {
        let mut delivered = self.delivered.subscribe();
        while *delivered.borrow_and_update() < count {
            let more = tokio::time::timeout(PATIENCE, delivered.changed());
            more.await.with_context(|| format!("{} of {count} were delivered", *self.delivered.borrow()))??;
        }
        Ok(())
    }

    /// Waits until all is delivered that was emitted.
    pub async fn until_all_delivered(&self) -> Result<()> {
        self.until_delivered(self.expected.load(Ordering::Relaxed)).await
    }

    pub fn is_over(&self) -> bool {
        *self.ended.borrow()
    }
}

/// What is broken.
pub struct World {
    kept: Kept,
    postgres: PostgresServer,
    redis: RedisServer,
    instances: Vec<Instance>,
    pub admin: Api,
    pub servers: Servers,
    /// How often what was killed.
    pub killed: BTreeMap<&'static str, usize>,
}

impl World {
    pub async fn start(length: Length, kept: Kept) -> Result<Self> {
        let (postgres, redis) = tokio::try_join!(PostgresServer::start(), RedisServer::start())?;
        let mut connection = PgConnection::connect(&postgres.url("postgres")).await?;
        for database in ["relais", SHOP] {
            sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {database}"))).execute(&mut connection).await?;
        }
        let shop = postgres.url(SHOP);
        let made = command()?.args(["outbox", "init", &shop]).output()?;
        ensure!(made.status.success(), "{made:?}");
        let mut connection = PgConnection::connect(&shop).await?;
        let table = "CREATE TABLE assignment (tag text PRIMARY KEY, person text NOT NULL)";
        sqlx::raw_sql(table).execute(&mut connection).await?;
        let mut instances = Vec::new();
        for _ in 0..length.instances {
            let store = if kept == Kept::InRedis { "redis" } else { "database" };
            let options = Instance::options(postgres.url("relais")).env("REDIS_URL", redis.url());
            let options = options.env("RELAIS_NOTIFICATIONS_STORE", store);
            instances.push(options.env("RELAIS_DECLARATIONS_INTERVAL", "50ms").start().await?);
        }
        let admins = instances.iter().map(|instance| Api::admin(instance.url())).collect::<Result<Vec<_>>>()?;
        let admin = admins[0].clone();
        admin.post("/admin/apply", &declared(&shop)).await?.data()?;
        let apis = admins.into_iter().map(|admin| admin.with("shop", &secret("shop"))).collect();
        let servers = Servers {
            length,
            shop,
            apis,
            delivered: watch::channel(0).0,
            expected: Arc::default(),
            ended: watch::channel(false).0,
            restarts: watch::channel(0).0,
        };
        for group in 0..length.groups() {
            let members = To::Group(group).users(length);
            let members: Vec<Value> = members.into_iter().map(|member| json!({"target": user(member)})).collect();
            let path = format!("/v1/audiences/GROUP/g{group}/members");
            servers.apis[0].post(&path, &json!({"members": members})).await?.data()?;
        }
        // What is written before is not captured.
        let capture = async || {
            let state = admin.get("/admin/captures/assignments").await;
            state.is_ok_and(|state| state.body["data"]["processes"].to_string().contains("streaming"))
        };
        until("the table is captured", capture).await;
        Ok(Self { kept, postgres, redis, instances, admin: admin.clone(), servers, killed: BTreeMap::new() })
    }

    /// Kills something, and starts it again.
    pub async fn fault(&mut self, number: usize, random: &mut Random) -> Result<()> {
        let what = match (number % 10, self.kept) {
            (3 | 8, Kept::InDatabase) | (3, Kept::InRedis) => {
                self.postgres.kill9()?;
                self.postgres.restart().await?;
                "PostgreSQL"
            }
            (5, Kept::InDatabase) | (1 | 2 | 5 | 6 | 8 | 9, Kept::InRedis) => {
                self.redis.kill9()?;
                self.redis.restart().await?;
                "Redis"
            }
            _ => {
                let victim = random.below(self.instances.len());
                let victim = &mut self.instances[victim];
                victim.kill9()?;
                victim.restart().await?;
                "instances"
            }
        };
        self.servers.restarts.send_modify(|restarts| *restarts += 1);
        *self.killed.entry(what).or_default() += 1;
        Ok(())
    }
}

/// Who may emit, and two tables that do.
fn declared(shop: &str) -> Value {
    let mut declared = declaration();
    declared["outboxes"] = json!([{
        "outboxName": "orders", "databaseUrl": shop, "mode": "polling", "pollInterval": "50ms", "lease": "1s",
        "retry": {"limit": 1000, "base": "10ms"}, "sink": {"notifications": {}},
    }]);
    declared["captures"] = json!([{
        "captureName": "assignments", "databaseUrl": shop, "tables": ["public.assignment"], "snapshot": "never",
        "sink": {"notifications": {"audience": {"type": "USER", "targets": ["{payload.after.person}"]}}},
    }]);
    declared
}
