//! The Sink conformance suite on Redis Streams.

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use redis::streams::StreamRangeReply;
use relais_message::{Durability, Message, Sink};
use relais_messaging::redis::{RedisSink, RedisSinkOptions};
use relais_testkit::{
    RedisServer, TcpProxy,
    sink_suite::{Received, SinkHarness},
};
use tokio::sync::Mutex;

const STREAM: &str = "orders";

struct OnRedis {
    server: Mutex<RedisServer>,
    proxy: TcpProxy,
    sink: Arc<RedisSink>,
}

async fn harness() -> Result<OnRedis> {
    let server = RedisServer::start().await?;
    let mut connection = redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
    // Something else has this name: a stream can not be made of it.
    redis::cmd("SET").arg("taken").arg("1").exec_async(&mut connection).await?;
    // This user may write to streams whose names begin with `o`, and to the one that is taken.
    let user = ["SETUSER", "shop", "on", ">secret", "~o*", "~taken", "+@all"];
    redis::cmd("ACL").arg(&user).exec_async(&mut connection).await?;
    let proxy = TcpProxy::start(server.addr()).await?;
    let url = format!("redis://shop:secret@{}", proxy.addr());
    let options = RedisSinkOptions {
        timeout: Duration::from_secs(3),
        durability: Durability::Disk,
        ..RedisSinkOptions::default()
    };
    let sink = Arc::new(RedisSink::new(&url, options)?);
    Ok(OnRedis { server: Mutex::new(server), proxy, sink })
}

#[async_trait(?Send)]
impl SinkHarness for OnRedis {
    fn sink(&self) -> Arc<dyn Sink> {
        Arc::<RedisSink>::clone(&self.sink)
    }

    fn destination(&self) -> String {
        STREAM.to_owned()
    }

    fn carries_keys(&self) -> bool {
        true
    }

    async fn received(&self) -> Result<Vec<Received>> {
        let url = self.server.lock().await.url();
        let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        let entries: StreamRangeReply =
            redis::cmd("XRANGE").arg(STREAM).arg("-").arg("+").query_async(&mut connection).await?;
        let received = entries.ids.iter().map(|entry| {
            let headers: Option<String> = entry.get("headers");
            let headers: HashMap<String, String> =
                headers.map_or(Ok(HashMap::new()), |text| serde_json::from_str(&text))?;
            Ok(Received {
                id: entry.get("id").context("id")?,
                key: entry.get("key"),
                headers,
                payload: entry.get("payload").context("payload")?,
            })
        });
        received.collect()
    }

    fn missing(&self) -> Option<String> {
        // Every stream exists; but not where another type has its name.
        Some("taken".to_owned())
    }

    fn forbidden(&self) -> Option<String> {
        Some("private".to_owned())
    }

    fn enlarge(&self, _message: &mut Message) -> bool {
        // The limit of the server is 512 MB.
        false
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

    fn patience(&self) -> Duration {
        Duration::from_secs(20)
    }
}

relais_testkit::sink_suite!(harness);
