//! A broker of one's own, and those who read its topics.

use std::{
    collections::HashMap,
    io::{self, Write as _},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer as _},
    message::{Headers as _, OwnedMessage},
};
use relais_message::{Message, Sink};
use relais_messaging::kafka::{KafkaSink, KafkaSinkOptions};
use relais_testkit::{
    KAFKA_VARIABLE, KafkaServer,
    sink_suite::{Received, SinkHarness},
};
use tokio::sync::Mutex;

const TOPIC: &str = "orders";

/// How long a reader waits for what must be there.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct OnKafka {
    server: Mutex<KafkaServer>,
    brokers: String,
    sink: Arc<KafkaSink>,
}

/// A harness on a broker of its own. Without a program to start, says that this test was not run.
pub async fn own_broker(test: &str) -> Result<Option<OnKafka>> {
    if !KafkaServer::is_available() {
        // Past what catches the output of tests that pass.
        writeln!(io::stderr(), "not run: {test}, because {KAFKA_VARIABLE} names no Kafka broker to start")?;
        return Ok(None);
    }
    let server = KafkaServer::start().await?;
    let brokers = server.bootstrap_servers();
    create_topic(&brokers).await?;
    let options = KafkaSinkOptions { timeout: Duration::from_secs(5), ..KafkaSinkOptions::new(&brokers) };
    let sink = Arc::new(KafkaSink::new(&options)?);
    Ok(Some(OnKafka { server: Mutex::new(server), brokers, sink }))
}

async fn create_topic(brokers: &str) -> Result<()> {
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new().set("bootstrap.servers", brokers).create()?;
    let topic = NewTopic::new(TOPIC, 3, TopicReplication::Fixed(1));
    for answer in admin.create_topics(&[topic], &AdminOptions::new().operation_timeout(Some(PATIENCE))).await? {
        answer.map_err(|(topic, code)| anyhow::anyhow!("create {topic}: {code}"))?;
    }
    Ok(())
}

/// All records of a topic. Those of a partition are in their order.
pub async fn read(brokers: &str, topic: &'static str) -> Result<Vec<OwnedMessage>> {
    let brokers = brokers.to_owned();
    tokio::task::spawn_blocking(move || {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &brokers)
            .set("group.id", "reader")
            .set("enable.auto.commit", "false")
            .create()?;
        let metadata = consumer.fetch_metadata(Some(topic), PATIENCE)?;
        let partitions = metadata.topics().first().context("the topic")?.partitions();
        let (mut from, mut left) = (TopicPartitionList::new(), HashMap::new());
        for partition in partitions.iter().map(|partition| partition.id()) {
            let (low, high) = consumer.fetch_watermarks(topic, partition, PATIENCE)?;
            if low < high {
                from.add_partition_offset(topic, partition, Offset::Beginning)?;
                left.insert(partition, high);
            }
        }
        consumer.assign(&from)?;
        let mut records = Vec::new();
        while !left.is_empty() {
            let record = consumer.poll(PATIENCE).context("the next record")??.detach();
            if left.get(&record.partition()) == Some(&(record.offset() + 1)) {
                left.remove(&record.partition());
            }
            records.push(record);
        }
        Ok(records)
    })
    .await?
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
