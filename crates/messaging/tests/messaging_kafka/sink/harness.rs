//! The sink on a broker of its own, and what its topic got.

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use rdkafka::{Message as _, message::Headers as _};
use relais_message::{Message, Sink};
use relais_messaging::kafka::{KafkaSink, KafkaSinkOptions};
use relais_testkit::{
    KafkaServer,
    sink_suite::{Received, SinkHarness},
};
use tokio::sync::Mutex;

use crate::broker::{self, create_topic, read};

const TOPIC: &str = "orders";

pub struct OnKafka {
    server: Mutex<KafkaServer>,
    brokers: String,
    sink: Arc<KafkaSink>,
}

/// A harness on a broker of its own, where there is one.
pub async fn own_broker(test: &str) -> Result<Option<OnKafka>> {
    let Some(server) = broker::start(test).await? else { return Ok(None) };
    let brokers = server.bootstrap_servers();
    create_topic(&brokers, TOPIC, 3).await?;
    let options = KafkaSinkOptions { timeout: Duration::from_secs(5), ..KafkaSinkOptions::new(&brokers) };
    let sink = Arc::new(KafkaSink::new(&options)?);
    Ok(Some(OnKafka { server: Mutex::new(server), brokers, sink }))
}

#[async_trait(?Send)]
impl SinkHarness for OnKafka {
    fn sink(&self) -> Arc<dyn Sink> {
        Arc::<KafkaSink>::clone(&self.sink)
    }

    fn destination(&self) -> String {
        TOPIC.to_owned()
    }

    fn carries_keys(&self) -> bool {
        true
    }

    async fn received(&self) -> Result<Vec<Received>> {
        let records = read(&self.brokers, TOPIC).await?;
        let received = records.iter().map(|record| {
            let mut headers = HashMap::new();
            for header in record.headers().context("headers")?.iter() {
                let value = std::str::from_utf8(header.value.context("a value")?)?;
                ensure!(headers.insert(header.key.to_owned(), value.to_owned()).is_none(), "{} twice", header.key);
            }
            let key = record.key().map(|key| String::from_utf8(key.to_vec())).transpose()?;
            let payload = record.payload().context("a value")?.to_vec();
            Ok(Received { id: headers.remove("id").context("id")?, key, headers, payload })
        });
        received.collect()
    }

    fn missing(&self) -> Option<String> {
        Some("nowhere".to_owned())
    }

    fn forbidden(&self) -> Option<String> {
        // Users and their rights are tried on the mock.
        None
    }

    fn enlarge(&self, message: &mut Message) -> bool {
        message.payload = Some(vec![b'x'; 2_000_000].into());
        true
    }

    // The broker tells its clients its own address: a proxy in front of it would be left aside.
    async fn cut(&self) -> Result<()> {
        self.server.lock().await.kill9()
    }

    async fn stall(&self) -> Result<()> {
        self.server.lock().await.pause()
    }

    async fn restore(&self) -> Result<()> {
        let mut server = self.server.lock().await;
        if server.is_paused() { server.resume() } else { server.restart().await }
    }

    async fn crash(&self) -> Result<bool> {
        self.cut().await?;
        self.restore().await?;
        Ok(true)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(20)
    }
}
