//! Brokers and clusters of a test's own, and a reader of their topics.

use std::{
    collections::HashMap,
    io::{self, Write as _},
    time::Duration,
};

use anyhow::{Context as _, Result};
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer as _},
    message::OwnedMessage,
    mocking::MockCluster,
    producer::DefaultProducerContext,
};
use relais_testkit::{KAFKA_VARIABLE, KafkaServer};

/// The topic of most tests.
pub const TOPIC: &str = "orders";

/// How long a reader waits for what must be there.
const PATIENCE: Duration = Duration::from_secs(30);

/// A cluster of librdkafka's own.
pub type Mock = MockCluster<'static, DefaultProducerContext>;

/// With [`TOPIC`], of this many partitions.
pub fn mock(partitions: i32) -> Mock {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(TOPIC, partitions, 1).unwrap();
    cluster
}

/// A broker of the test's own. Without a program to start, says that this test was not run.
pub async fn start(test: &str) -> Result<Option<KafkaServer>> {
    if !KafkaServer::is_available() {
        // Past what catches the output of tests that pass.
        writeln!(io::stderr(), "not run: {test}, because {KAFKA_VARIABLE} names no Kafka broker to start")?;
        return Ok(None);
    }
    Ok(Some(KafkaServer::start().await?))
}

/// A broker, or the end of the test.
macro_rules! broker_or_return {
    ($test:literal) => {
        match $crate::broker::start($test).await? {
            Some(server) => server,
            None => return Ok(()),
        }
    };
}
pub(crate) use broker_or_return;

pub async fn create_topic(brokers: &str, topic: &str, partitions: i32) -> Result<()> {
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new().set("bootstrap.servers", brokers).create()?;
    let topic = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
    for answer in admin.create_topics(&[topic], &AdminOptions::new().operation_timeout(Some(PATIENCE))).await? {
        answer.map_err(|(topic, code)| anyhow::anyhow!("create {topic}: {code}"))?;
    }
    Ok(())
}

/// All records of a topic that were committed. Those of a partition are in their order.
pub async fn read(brokers: &str, topic: &str) -> Result<Vec<OwnedMessage>> {
    let (brokers, topic) = (brokers.to_owned(), topic.to_owned());
    tokio::task::spawn_blocking(move || {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &brokers)
            .set("group.id", "reader")
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            .create()?;
        let metadata = consumer.fetch_metadata(Some(&topic), PATIENCE)?;
        let partitions = metadata.topics().first().context("the topic")?.partitions();
        let (mut from, mut left) = (TopicPartitionList::new(), HashMap::new());
        for partition in partitions.iter().map(|partition| partition.id()) {
            let (low, high) = consumer.fetch_watermarks(&topic, partition, PATIENCE)?;
            if low < high {
                from.add_partition_offset(&topic, partition, Offset::Beginning)?;
                left.insert(partition, high);
            }
        }
        consumer.assign(&from)?;
        let mut records = Vec::new();
        while !left.is_empty() {
            match consumer.poll(PATIENCE).context("the next record")? {
                Ok(record) => {
                    let record = record.detach();
                    if left.get(&record.partition()) == Some(&(record.offset() + 1)) {
                        left.remove(&record.partition());
                    }
                    records.push(record);
                }
                // The last one is the marker of a transaction, or was aborted.
                Err(rdkafka::error::KafkaError::PartitionEOF(partition)) => drop(left.remove(&partition)),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(records)
    })
    .await?
}
