//! Bare records to Kafka, by the same client and with the same promises: idempotent, `acks=all`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use futures::future::join_all;
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer as _},
    producer::{FutureProducer, FutureRecord},
};
use relais_testkit::KafkaServer;

use super::{PATIENCE, QUEUE, peers::BATCH, pump::Broker, streamed::StreamServer};

/// How many partitions the topic has.
const PARTITIONS: i32 = 3;

pub struct OnKafka(pub KafkaServer);

impl OnKafka {
    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.0.bootstrap_servers());
        config
    }

    fn count_now(config: &ClientConfig) -> Result<usize> {
        let consumer: BaseConsumer = config.create()?;
        let mut count = 0;
        for partition in 0..PARTITIONS {
            let (low, high) = consumer.fetch_watermarks(QUEUE, partition, PATIENCE)?;
            count += usize::try_from(high - low)?;
        }
        Ok(count)
    }
}

impl StreamServer for OnKafka {
    fn broker(&self) -> Broker {
        Broker::Kafka(self.0.bootstrap_servers())
    }

    async fn prepare(&self) -> Result<()> {
        let admin: AdminClient<DefaultClientContext> = self.config().create()?;
        let topic = NewTopic::new(QUEUE, PARTITIONS, TopicReplication::Fixed(1));
        let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
        for answer in admin.create_topics(&[topic], &options).await? {
            match answer {
                Ok(_) | Err((_, rdkafka::types::RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((topic, code)) => return Err(anyhow!("create {topic}: {code}")),
            }
        }
        Ok(())
    }

    async fn append(&self, messages: usize, body: &str) -> Result<Duration> {
        let mut config = self.config();
        config.set("enable.idempotence", "true").set("acks", "all").set("linger.ms", "1");
        let producer: FutureProducer = config.set("partitioner", "murmur2_random").create()?;
        // One before the clock runs: the first connects.
        let first = producer.send(FutureRecord::to(QUEUE).key("first").payload(body), PATIENCE);
        first.await.map_err(|(error, _)| error).context("no record is taken")?;
        let (begin, mut done) = (Instant::now(), 0);
        while done < messages {
            let batch = BATCH.min(messages - done);
            let keys: Vec<String> = (done..done + batch).map(|number| number.to_string()).collect();
            let sending =
                keys.iter().map(|key| producer.send(FutureRecord::to(QUEUE).key(key).payload(body), PATIENCE));
            for answer in join_all(sending).await {
                answer.map_err(|(error, _)| error).context("a record is not taken")?;
            }
            done += batch;
        }
        Ok(begin.elapsed())
    }

    async fn count(&self) -> Result<usize> {
        let config = self.config();
        tokio::task::spawn_blocking(move || Self::count_now(&config)).await?
    }
}
