//! The Sink conformance suite on RabbitMQ.

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::Result;
use async_trait::async_trait;
use relais_message::{Message, Sink};
use relais_messaging::rabbitmq::{Broker, BrokerOptions, HeaderValue, Queue, QueueKind, RabbitMqSink};
use relais_testkit::{
    RabbitMqServer, TcpProxy, TestVhost,
    sink_suite::{Received, SinkHarness},
};
use tokio::sync::Mutex;

const QUEUE: &str = "orders";

struct OnRabbitMq {
    /// One that can be killed; none where the tests share one.
    server: Option<Mutex<RabbitMqServer>>,
    vhost: TestVhost,
    proxy: TcpProxy,
    sink: Arc<RabbitMqSink>,
}

async fn harness() -> Result<OnRabbitMq> {
    on(TestVhost::create().await?, None).await
}

async fn own_node() -> Result<OnRabbitMq> {
    let server = RabbitMqServer::start().await?;
    on(server.vhost().await?, Some(server)).await
}

async fn on(vhost: TestVhost, server: Option<RabbitMqServer>) -> Result<OnRabbitMq> {
    let proxy = TcpProxy::start(vhost.server_addr()?).await?;
    let direct = Broker::new(vhost.url(), BrokerOptions::default())?;
    direct.declare(&Queue { name: QUEUE.to_owned(), kind: QueueKind::Classic }).await?;
    vhost.bind("amq.topic", QUEUE, "order.#").await?;
    let options = BrokerOptions { publish_timeout: Duration::from_secs(3), ..BrokerOptions::default() };
    let sink = Arc::new(RabbitMqSink::new(Broker::new(&vhost.url_via(proxy.addr())?, options)?));
    Ok(OnRabbitMq { server: server.map(Mutex::new), vhost, proxy, sink })
}

#[async_trait(?Send)]
impl SinkHarness for OnRabbitMq {
    fn sink(&self) -> Arc<dyn Sink> {
        Arc::<RabbitMqSink>::clone(&self.sink)
    }

    fn destination(&self) -> String {
        "amq.topic".to_owned()
    }

    fn carries_keys(&self) -> bool {
        true
    }

    async fn received(&self) -> Result<Vec<Received>> {
        let mut browser = Broker::new(self.vhost.url(), BrokerOptions::default())?.browse(QUEUE).await?;
        let mut received = Vec::new();
        while let Some(delivery) = browser.next().await? {
            let text = |value: &HeaderValue| match value {
                HeaderValue::Text(text) => text.clone(),
                other => format!("{other:?}"),
            };
            let mut headers: HashMap<String, String> =
                delivery.headers.iter().map(|(name, value)| (name.clone(), text(value))).collect();
            let key = headers.remove("key");
            let id = delivery.message_id.clone().unwrap_or_default();
            received.push(Received { id, key, headers, payload: delivery.body });
        }
        Ok(received)
    }

    fn missing(&self) -> Option<String> {
        Some("nowhere".to_owned())
    }

    fn forbidden(&self) -> Option<String> {
        // An exchange that the broker keeps for itself.
        Some("amq.rabbitmq.trace".to_owned())
    }

    fn enlarge(&self, message: &mut Message) -> bool {
        message.headers.set("x", "x".repeat(100_000));
        true
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
        let Some(server) = &self.server else { return Ok(false) };
        let mut server = server.lock().await;
        // Which queues there are is written down late, and a kill would lose a queue of this second with all that is in it.
        server.write_down().await?;
        server.kill9()?;
        server.restart().await?;
        Ok(true)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(20)
    }
}

relais_testkit::sink_suite!(harness, crash: own_node);
