//! Over PostgreSQL's NOTIFY.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use relais_bus::{Bus, BusSink, BusSinkOptions, Event, Subscription, postgres::PostgresNotify};
use relais_message::Durability;
use relais_testkit::{TcpProxy, TestDatabase};
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Mutex;

use crate::{Backend, CHANNEL, OnBus};

struct OnPostgres {
    _database: TestDatabase,
    proxy: TcpProxy,
    /// Another instance, with a connection that nobody cuts.
    receiver: Bus,
    events: Mutex<Subscription>,
}

async fn harness() -> Result<OnBus<OnPostgres>> {
    let database = TestDatabase::create().await?;
    let proxy = TcpProxy::start(database.server_addr()?).await?;
    let pool = PgPoolOptions::new().max_connections(4).acquire_timeout(Duration::from_secs(3));
    let direct = PostgresNotify::new(pool.clone().connect(database.url()).await?);
    let receiver = Bus::builder().transport(direct).start().await?;
    let events = Mutex::new(receiver.subscriber(CHANNEL).capacity(10_000).stream().await?);
    let through = PostgresNotify::new(pool.connect(&database.url_via(proxy.addr())?).await?);
    let bus = Bus::builder().transport(through).start().await?;
    let options = BusSinkOptions { timeout: Duration::from_secs(3), durability: Durability::Disk };
    let sink = Arc::new(BusSink::new(bus, options));
    Ok(OnBus { sink, backend: OnPostgres { _database: database, proxy, receiver, events } })
}

#[async_trait(?Send)]
impl Backend for OnPostgres {
    async fn events(&self) -> Result<Vec<Event>> {
        // Notifications arrive in the order of their commits: behind this one there is nothing that was confirmed.
        let last = self.receiver.publish(CHANNEL, "the end").await?;
        let mut events = self.events.lock().await;
        let mut received = Vec::new();
        loop {
            let next = tokio::time::timeout(Duration::from_secs(60), events.recv());
            let event = next.await.context("the last event arrives")?.context("the bus runs")?;
            if event.id == last {
                return Ok(received);
            }
            received.push(Event::clone(&event));
        }
    }

    async fn cut(&self) -> Result<()> {
        Ok(self.proxy.cut().await?)
    }

    async fn stall(&self) -> Result<()> {
        Ok(self.proxy.stall().await?)
    }

    async fn restore(&self) -> Result<()> {
        Ok(self.proxy.restore().await?)
    }

    async fn crash(&self) -> Result<bool> {
        anyhow::bail!("notifications promise nothing, whatever the options say")
    }
}

relais_testkit::sink_suite!(harness);
