//! A producer of records, idempotent unless told otherwise.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use rdkafka::{
    ClientConfig,
    error::{KafkaError, RDKafkaErrorCode},
    producer::{DeliveryFuture, Producer as _},
};

use super::{
    NewRecord,
    client::{BadTopic, KnownTopics, Producer, ReplaceableProducer, blocking, is_refusal, is_topic_gone},
    cluster::{KafkaCluster, KafkaSettingsError, OwnSetting, milliseconds, names},
    options::PARTITIONER,
};

/// Settings of librdkafka that a producer's promises rest on.
pub(super) const OWN_SETTINGS: [OwnSetting; 14] = [
    ("partitioner", "`partitioner` says it"),
    ("retries", "`retries` says it"),
    ("message.send.max.retries", "`retries` says it"),
    ("compression.type", "`compression` says it"),
    ("compression.codec", "`compression` says it"),
    ("delivery.timeout.ms", "`timeout` says it"),
    ("message.timeout.ms", "`timeout` says it"),
    ("acks", "`acks` says it"),
    ("request.required.acks", "`acks` says it"),
    ("enable.idempotence", "`acks` says it"),
    ("enable.gapless.guarantee", "one record that fails would end the producer"),
    ("transactional.id", "a `TransactionalProducer` has transactions"),
    ("produce.offset.report", "each record has an answer"),
    ("delivery.report.only.error", "each record has an answer"),
];

const MAX_IN_FLIGHT: &str = "max.in.flight.requests.per.connection";

/// When a record counts as delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Acks {
    /// When all replicas have it that are in sync (the topic's `min.insync.replicas` says how many these must be). The producer
    /// is idempotent: what it retries arrives once, and in order.
    #[default]
    All,
    /// When the leader has it, in memory. Records are lost where the leader dies before others have copied them, although they
    /// were confirmed. What is retried may arrive twice, and behind later records.
    Leader,
    /// When it was sent. Nobody says that it arrived: a broker that is away or refuses loses records in silence.
    None,
}

/// How a producer writes.
#[derive(Clone, PartialEq, Eq)]
pub struct ProducerOptions {
    /// The cluster, and how to get in.
    pub cluster: KafkaCluster,
    /// When a record counts as delivered.
    pub acks: Acks,
    /// How long a record may take, from the first try to the last answer. 30 s unless set.
    pub timeout: Duration,
    /// How often a record is retried. 10 unless set, after 100 ms, 200 ms and so on, at most 1 s.
    pub retries: u32,
    /// How batches are compressed. Not at all, unless set.
    pub compression: Compression,
    /// Which partition a key is in. The default, `murmur2_random`, is that of Java's and kafkajs' producers.
    pub partitioner: String,
    /// Settings of librdkafka for this producer: `linger.ms`, `batch.size`, `queue.buffering.max.messages`.
    pub settings: BTreeMap<String, String>,
}

/// How batches of records are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// gzip: small and slow.
    Gzip,
    /// Snappy: fast.
    Snappy,
    /// LZ4: fast.
    Lz4,
    /// Zstandard: small and fast. A program that wants it turns on the feature `zstd` of `rdkafka`.
    Zstd,
}

impl ProducerOptions {
    /// An idempotent producer for this cluster.
    pub fn new(cluster: impl Into<KafkaCluster>) -> Self {
        Self {
            cluster: cluster.into(),
            acks: Acks::All,
            timeout: Duration::from_secs(30),
            retries: 10,
            compression: Compression::None,
            partitioner: PARTITIONER.to_owned(),
            settings: BTreeMap::new(),
        }
    }

    /// Sets a setting of librdkafka for this producer.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.insert(name.into(), value.into());
        self
    }

    pub(super) fn config(&self) -> Result<ClientConfig, KafkaSettingsError> {
        let mut config = self.cluster.config(&self.settings, &[&OWN_SETTINGS])?;
        let defaults =
            [("max.in.flight", "5"), ("retry.backoff.ms", "100"), ("retry.backoff.max.ms", "1000"), ("linger.ms", "5")];
        for (name, value) in defaults {
            // The first one has a second name.
            let is_set = config.get(name).is_some() || (name == "max.in.flight" && config.get(MAX_IN_FLIGHT).is_some());
            if !is_set {
                config.set(name, value);
            }
        }
        config
            .set("partitioner", &self.partitioner)
            .set("delivery.timeout.ms", milliseconds(self.timeout)?)
            .set("message.send.max.retries", self.retries.to_string())
            .set(
                "acks",
                match self.acks {
                    Acks::All => "all",
                    Acks::Leader => "1",
                    Acks::None => "0",
                },
            )
            .set("enable.idempotence", (self.acks == Acks::All).to_string())
            .set(
                "compression.type",
                match self.compression {
                    Compression::None => "none",
                    Compression::Gzip => "gzip",
                    Compression::Snappy => "snappy",
                    Compression::Lz4 => "lz4",
                    Compression::Zstd => "zstd",
                },
            );
        Ok(config)
    }
}

impl std::fmt::Debug for ProducerOptions {
    /// Without the values of settings, which may be passwords.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProducerOptions")
            .field("cluster", &self.cluster)
            .field("acks", &self.acks)
            .field("timeout", &self.timeout)
            .field("settings", &names(&self.settings))
            .finish_non_exhaustive()
    }
}

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// The partition of the topic.
    pub partition: i32,
    /// Its place in the partition. None with [`Acks::None`]: nobody said it.
    pub offset: Option<i64>,
}

/// Why a record was not delivered, as far as anybody knows.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ProduceError {
    /// Certainly not stored, and a retry will not help: the topic is missing, the record too large or not allowed.
    #[error("the record for the topic {topic} was refused: {why}")]
    Refused {
        /// The topic.
        topic: String,
        /// What the broker or the client says.
        why: String,
    },
    /// The brokers did not answer in time: it may have been stored.
    #[error("nobody knows whether the record for the topic {topic} was stored")]
    Unknown {
        /// The topic.
        topic: String,
        /// What happened.
        #[source]
        source: KafkaError,
    },
    /// The producer is closed.
    #[error("the producer is closed")]
    Closed,
}

impl ProduceError {
    pub(super) fn new(topic: &str, source: KafkaError) -> Self {
        if is_refusal(&source) {
            return Self::Refused { topic: topic.to_owned(), why: source.to_string() };
        }
        Self::Unknown { topic: topic.to_owned(), source }
    }
}

/// Writes records to topics.
///
/// With [`Acks::All`], the default, a record that is confirmed is stored once, on all replicas in sync, whatever was retried.
/// Records of a partition are in the order of the calls, but for one case: a record that fails for good does not hold up those
/// that were called after it. Who must not have that waits for each record of a key (the [sink](super::KafkaSink) does).
///
/// A producer that can not go on without a gap or a repeat is replaced by a new one. Topics are not created.
///
/// ```no_run
/// use relais_messaging::kafka::{KafkaProducer, NewRecord, ProducerOptions};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let producer = KafkaProducer::new(&ProducerOptions::new("localhost:9092"))?;
/// let record = NewRecord::new("orders", r#"{"order":7}"#).with_key("o-7").with_header("event-type", "order.placed");
/// let delivered = producer.send(record).await?;
/// println!("partition {}, offset {:?}", delivered.partition, delivered.offset);
/// # Ok(())
/// # }
/// ```
pub struct KafkaProducer {
    timeout: Duration,
    producer: ReplaceableProducer,
    topics: KnownTopics,
    closed: AtomicBool,
}

impl std::fmt::Debug for KafkaProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaProducer").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl KafkaProducer {
    /// A producer on a cluster. Connects in the background; a cluster that is away is no error here.
    ///
    /// # Errors
    ///
    /// If a setting is not the user's, or not one of librdkafka.
    pub fn new(options: &ProducerOptions) -> Result<Self, KafkaSettingsError> {
        Ok(Self {
            timeout: options.timeout,
            producer: ReplaceableProducer::new(options.config()?)?,
            topics: KnownTopics::default(),
            closed: AtomicBool::new(false),
        })
    }

    /// Writes a record, and waits until it is delivered.
    ///
    /// # Errors
    ///
    /// If it was refused, or nobody said in time that it was stored.
    pub async fn send(&self, record: NewRecord) -> Result<Delivered, ProduceError> {
        let mut answers = self.send_all(vec![record]).await;
        answers.pop().unwrap_or(Err(ProduceError::Closed))
    }

    /// Writes records, all at once and in this order, and says of each whether it is delivered.
    pub async fn send_all(&self, records: Vec<NewRecord>) -> Vec<Result<Delivered, ProduceError>> {
        if self.closed.load(Ordering::Acquire) {
            return records.iter().map(|_| Err(ProduceError::Closed)).collect();
        }
        let producer = match self.producer.get() {
            Ok(producer) => producer,
            Err(error) => {
                return records.iter().map(|record| Err(ProduceError::new(&record.topic, error.clone()))).collect();
            }
        };
        let mut sent = Vec::with_capacity(records.len());
        for record in &records {
            sent.push(self.enqueue(&producer, record).await);
        }
        let answers = stream::iter(sent.into_iter().zip(&records)).then(|(sent, record)| async {
            let error = match sent?.await {
                Ok(Ok(delivery)) => {
                    let offset = Some(delivery.offset).filter(|offset| *offset >= 0);
                    return Ok(Delivered { partition: delivery.partition, offset });
                }
                Ok(Err((error, _))) => error,
                Err(_) => KafkaError::Canceled,
            };
            if is_topic_gone(&error) {
                self.topics.forget(&record.topic);
            }
            Err(ProduceError::new(&record.topic, error))
        });
        let answers = answers.collect().await;
        self.producer.replace_if_broken(producer).await;
        answers
    }

    async fn enqueue(&self, producer: &Producer, record: &NewRecord) -> Result<DeliveryFuture, ProduceError> {
        if !self.topics.contains(&record.topic) {
            let looked_up = self.topics.look_up(producer, &record.topic, self.timeout).await;
            looked_up.map_err(|bad| bad_topic(&record.topic, bad))?;
        }
        enqueue(producer, record, self.timeout).await
    }

    /// Waits until what was sent is delivered or has failed.
    ///
    /// # Errors
    ///
    /// If that takes longer than the timeout of a record.
    pub async fn flush(&self) -> Result<(), KafkaError> {
        let (producer, limit) = (self.producer.get()?, self.timeout);
        blocking(move || producer.flush(limit)).await
    }

    /// Delivers what was sent, and lets go of the connections. Later records are refused.
    pub async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // Whoever sent them is told what became of the records.
        let _ = self.flush().await;
        self.producer.close().await;
    }
}

pub(super) fn bad_topic(topic: &str, bad: BadTopic) -> ProduceError {
    match bad {
        BadTopic::Name(why) => ProduceError::Refused { topic: topic.to_owned(), why },
        BadTopic::Code(code) => ProduceError::new(topic, KafkaError::MessageProduction(code)),
        BadTopic::Unknown(source) => ProduceError::Unknown { topic: topic.to_owned(), source },
    }
}

/// Gives a record to librdkafka, and waits while that has no room.
pub(super) async fn enqueue(
    producer: &Producer,
    record: &NewRecord,
    limit: Duration,
) -> Result<DeliveryFuture, ProduceError> {
    let deadline = tokio::time::Instant::now() + limit;
    let Some(mut outgoing) = record.as_future_record() else {
        let why = "the name of a header has a zero byte in it".to_owned();
        return Err(ProduceError::Refused { topic: record.topic.clone(), why });
    };
    loop {
        match producer.send_result(outgoing) {
            Ok(delivery) => return Ok(delivery),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), again))
                if tokio::time::Instant::now() < deadline =>
            {
                outgoing = again;
                // librdkafka says nothing when there is room again.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err((error, _)) => return Err(ProduceError::new(&record.topic, error)),
        }
    }
}
