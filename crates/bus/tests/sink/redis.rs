//! Over Redis Streams, which keep every event until all groups have it.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use redis::streams::StreamRangeReply;
use relais_bus::{Bus, BusSink, BusSinkOptions, Event, redis::RedisStreams};
use relais_message::Durability;
use relais_testkit::{RedisServer, TcpProxy};
use tokio::sync::Mutex;

use crate::{Backend, OnBus};

const STREAM: &str = "t:events";

struct OnRedis {
    server: Mutex<RedisServer>,
    proxy: TcpProxy,
}

async fn harness() -> Result<OnBus<OnRedis>> {
    let server = RedisServer::start().await?;
    let mut connection = redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
    // This group never reads, so that nothing is removed.
    redis::cmd("XGROUP").arg(&["CREATE", STREAM, "keeper", "0", "MKSTREAM"]).exec_async(&mut connection).await?;
    let proxy = TcpProxy::start(server.addr()).await?;
    let transport = RedisStreams::new(&server.url_via(proxy.addr()), "sink")?.prefix("t:");
    let bus = Bus::builder().transport(transport).start().await?;
    let options = BusSinkOptions { timeout: Duration::from_secs(3), durability: Durability::Disk };
    let sink = Arc::new(BusSink::new(bus, options));
    Ok(OnBus { sink, backend: OnRedis { server: Mutex::new(server), proxy } })
}

#[async_trait(?Send)]
impl Backend for OnRedis {
    async fn events(&self) -> Result<Vec<Event>> {
        let url = self.server.lock().await.url();
        let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        let entries: StreamRangeReply =
            redis::cmd("XRANGE").arg(STREAM).arg("-").arg("+").query_async(&mut connection).await?;
        let event = |entry: &redis::streams::StreamId| {
            let text: String = entry.get("event").context("event")?;
            Ok(Event::from_json(&text)?)
        };
        entries.ids.iter().map(event).collect()
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
        let mut server = self.server.lock().await;
        server.kill9()?;
        server.restart().await?;
        Ok(true)
    }
}

relais_testkit::sink_suite!(harness);
