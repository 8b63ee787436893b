//! PostgreSQL that can not be reached: cut off, silent, and gone without a word.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use relais_testkit::{TcpProxy, TestDatabase};
use relais_tests::{
    chaos::{Api, Load, LoadOptions, consumer, declare, judge, wait_until_drained},
    instance::Instance,
};
use serde_json::json;

const LEASE: &str = "2s";
const DRAIN: Duration = Duration::from_secs(20);

/// The store gives up after 15 s, and whoever waits behind another call after 17: an answer must be there soon after.
const ANSWER: Duration = Duration::from_secs(27);

/// How long the way back may take once the network is there again.
const RECOVERY: Duration = Duration::from_secs(20);

/// The same when nobody is told: first the calls under way have to be given up.
const RECOVERY_UNTOLD: Duration = Duration::from_secs(30);

struct World {
    // Held for the test: gone with it.
    _database: TestDatabase,
    proxy: TcpProxy,
    server: Instance,
    load: Load,
}

impl World {
    async fn start() -> Result<Self> {
        Self::start_with(10).await
    }

    async fn start_with(connections: u32) -> Result<Self> {
        let database = TestDatabase::create().await?;
        let proxy = TcpProxy::start(database.server_addr()?).await?;
        let server = Instance::options(database.url_via(proxy.addr())?)
            .env("RELAIS_DATABASE_MAX_CONNECTIONS", connections.to_string())
            .start()
            .await?;
        declare(&server.url(), LEASE).await?;
        let load = Load::start(&[server.url()], LoadOptions { single: 2, keyed: 2, ..LoadOptions::default() })?;
        load.ledger().more(100, RECOVERY).await?;
        Ok(Self { _database: database, proxy, server, load })
    }

    /// Submissions are refused with a number and in time, and the server says that it is not ready.
    async fn is_away(&self) -> Result<()> {
        let submission = json!({"body": {"mark": "probe"}, "correlationId": "probe"});
        let (consumer, admin) = (consumer(&self.server.url())?, Api::admin(self.server.url())?);
        // The first may have slipped through before the fault was felt; what was stored is not refused.
        let begun = Instant::now();
        let answers = tokio::join!(consumer.post("/v1/services/chaos/tasks", &submission), admin.get("/readyz"));
        let took = begun.elapsed();
        let (refusal, readiness) = (answers.0?, answers.1?);
        assert_eq!((refusal.status, refusal.number()), (503, 503_001), "{}", refusal.body);
        assert_eq!((readiness.status, readiness.number()), (503, 503_001), "{}", readiness.body);
        assert!(took < ANSWER, "the answer took {took:?}");
        assert_eq!(admin.get("/healthz").await?.status, 200, "it is alive all the same");
        Ok(())
    }

    async fn comes_back(&self, deadline: Duration) -> Result<Duration> {
        let begun = Instant::now();
        self.load.ledger().more(100, deadline).await.context("the server should work again by itself")?;
        assert_eq!(Api::admin(self.server.url())?.get("/readyz").await?.status, 200);
        Ok(begun.elapsed())
    }

    async fn verdict(mut self, name: &str, faults: usize) -> Result<()> {
        self.load.stop_consumers().await?;
        wait_until_drained(&self.server.url(), DRAIN).await?;
        let ledger = self.load.stop().await?;
        judge(&self.server.url(), &ledger, faults).await?.report(name)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_to_postgresql_is_reported_and_survived() -> Result<()> {
    let world = World::start().await?;
    world.proxy.cut().await?;
    world.is_away().await?;
    world.proxy.restore().await?;
    let took = world.comes_back(RECOVERY).await?;
    println!("PostgreSQL cut off: 100 tasks accepted {took:?} after it was back");
    world.verdict("PostgreSQL cut off", 1).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_postgresql_is_reported_and_survived() -> Result<()> {
    let world = World::start().await?;
    world.proxy.stall().await?;
    world.is_away().await?;
    world.proxy.restore().await?;
    let took = world.comes_back(RECOVERY).await?;
    println!("PostgreSQL silent: 100 tasks accepted {took:?} after it was back");
    world.verdict("PostgreSQL silent", 1).await
}

/// A failover, or a firewall that forgot its connections: those that were open stay silent for ever, new ones work. The
/// database still believes in the old ones too, and in the locks that they hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silently_dead_connections_do_not_exhaust_the_pool() -> Result<()> {
    // As many as are in use at once: were their places not freed, there would be none left.
    let world = World::start_with(5).await?;
    world.proxy.abandon().await?;
    let took = world.comes_back(RECOVERY_UNTOLD).await?;
    println!("PostgreSQL gone without a word: 100 tasks accepted {took:?} after that");
    world.verdict("PostgreSQL gone without a word", 1).await
}
