//! Dead letters that are looked at, sent back to the topic they came from, or given up.
//!
//! How far a topic of dead letters was dealt with is the committed offset of a group of its own, so it is known to everybody and
//! survives. A letter is sent back in a transaction together with that offset: once, whatever is killed.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use rdkafka::{
    Message as _, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    error::{KafkaError, KafkaResult},
};

use super::{
    ConsumedOffsets, KafkaCluster, KafkaRecord, KafkaSettingsError, NewRecord, ProduceError, TransactionError,
    TransactionOptions, TransactionalProducer,
    client::{Logging, blocking},
    consumer::dead_letter_header as header,
};

type Reader = BaseConsumer<Logging>;

/// How long the cluster may take to answer one question.
const ASKING: Duration = Duration::from_secs(20);

/// A dead letter, and what its headers say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The record as it is in the topic of dead letters.
    pub record: KafkaRecord,
    /// The topic that it came from.
    pub topic: String,
    /// Its partition there.
    pub partition: i32,
    /// Its offset there.
    pub offset: i64,
    /// Why it failed.
    pub error: String,
    /// How often it was retried.
    pub retries: u32,
    /// The group that failed.
    pub consumer: String,
}

/// Why dead letters were not dealt with.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A setting is wrong.
    #[error(transparent)]
    Settings(#[from] KafkaSettingsError),
    /// They can not be read.
    #[error("the dead letters in {topic} can not be read")]
    Read {
        /// The topic of dead letters.
        topic: String,
        /// Why.
        source: KafkaError,
    },
    /// This is not a dead letter of Relais.
    #[error("the record at {partition}/{offset} is no dead letter: {missing} is missing")]
    NoDeadLetter {
        /// Its partition in the topic of dead letters.
        partition: i32,
        /// Its offset there.
        offset: i64,
        /// The header that it lacks.
        missing: &'static str,
    },
    /// The value was too large to be kept: it stands where the record came from.
    #[error("the value of the dead letter was left out; the record is at {topic}/{partition}/{offset}")]
    ValueLeftOut {
        /// The topic that it came from.
        topic: String,
        /// Its partition.
        partition: i32,
        /// Its offset.
        offset: i64,
    },
    /// The topic that it came from does not take it.
    #[error(transparent)]
    Produce(#[from] ProduceError),
    /// The transaction did not succeed.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
}

/// A topic of dead letters.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let letters = relais_messaging::kafka::DeadLetters::new("localhost:9092", "dlq.orders");
/// for letter in letters.list(10).await? {
///     println!("{}/{}: {}", letter.partition, letter.offset, letter.error);
/// }
/// let sent = letters.replay(100).await?; // To the topic they came from.
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct DeadLetters {
    cluster: KafkaCluster,
    topic: String,
}

impl DeadLetters {
    /// The dead letters in this topic.
    pub fn new(cluster: impl Into<KafkaCluster>, topic: impl Into<String>) -> Self {
        Self { cluster: cluster.into(), topic: topic.into() }
    }

    /// The first ones that were not dealt with, at most so many.
    ///
    /// # Errors
    ///
    /// If they can not be read, or are no dead letters.
    pub async fn list(&self, limit: usize) -> Result<Vec<DeadLetter>, ReplayError> {
        let (_, records) = self.read(limit).await?;
        records.into_iter().map(DeadLetter::try_from).collect()
    }

    /// Sends the first ones, at most so many, back to the topics they came from, with their key, value, time and headers, but
    /// without those of a dead letter. All of them or none. How many.
    ///
    /// # Errors
    ///
    /// If that does not work for one of them. Two that replay the same topic at the same time fence each other.
    pub async fn replay(&self, limit: usize) -> Result<usize, ReplayError> {
        self.settle(limit, |letter| {
            let DeadLetter { record, topic, partition, offset, .. } = letter;
            if record.header(header::VALUE_LEFT_OUT).is_some() {
                return Err(ReplayError::ValueLeftOut { topic, partition, offset });
            }
            let mut again = record.copy_to(&topic);
            again.headers.retain(|(name, _)| !header::ALL.contains(&name.as_str()));
            Ok(Some(again))
        })
        .await
    }

    /// Gives up the first ones, at most so many. They stay in their topic, and are not listed any more. How many.
    ///
    /// # Errors
    ///
    /// If they can not be read, or the brokers do not answer.
    pub async fn discard(&self, limit: usize) -> Result<usize, ReplayError> {
        self.settle(limit, |_| Ok(None)).await
    }

    async fn settle(
        &self,
        limit: usize,
        again: impl Fn(DeadLetter) -> Result<Option<NewRecord>, ReplayError>,
    ) -> Result<usize, ReplayError> {
        let (reader, records) = self.read(limit).await?;
        let mut next: BTreeMap<i32, i64> = BTreeMap::new();
        for record in &records {
            next.insert(record.partition, record.offset + 1);
        }
        let count = records.len();
        if count == 0 {
            return Ok(0);
        }
        let letters = records.into_iter().map(DeadLetter::try_from).collect::<Result<Vec<_>, _>>()?;
        let again =
            letters.into_iter().filter_map(|letter| again(letter).transpose()).collect::<Result<Vec<_>, _>>()?;
        let options = TransactionOptions::new(self.cluster.clone(), self.group());
        let mut producer = TransactionalProducer::new(&options).await?;
        let mut transaction = producer.begin().await?;
        if let Err(error) = transaction.send_all(again).await {
            transaction.abort().await?;
            return Err(error.into());
        }
        let membership = reader.group_metadata().ok_or_else(|| self.unreadable(KafkaError::Canceled))?;
        let offsets = next.into_iter().map(|(partition, next)| (self.topic.clone(), partition, next)).collect();
        transaction.send_offsets(ConsumedOffsets { offsets, membership }).await?;
        transaction.commit().await?;
        producer.close().await;
        let _ = blocking(move || {
            drop(reader);
            Ok(())
        })
        .await;
        Ok(count)
    }

    /// The group whose offset says how far the letters were dealt with; also the name of the producer that sends them back.
    fn group(&self) -> String {
        format!("replay.{}", self.topic)
    }

    fn unreadable(&self, source: KafkaError) -> ReplayError {
        ReplayError::Read { topic: self.topic.clone(), source }
    }

    async fn read(&self, limit: usize) -> Result<(Reader, Vec<KafkaRecord>), ReplayError> {
        let mut config = self.cluster.config(&BTreeMap::new(), &[])?;
        config
            .set("group.id", self.group())
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            .set("isolation.level", "read_committed");
        let reader: Reader = config.create_with_context(Logging).map_err(KafkaSettingsError::of_client)?;
        let topic = self.topic.clone();
        let read = blocking(move || {
            let records = read_first(&reader, &topic, limit)?;
            Ok((reader, records))
        });
        read.await.map_err(|source| self.unreadable(source))
    }
}

/// The first records behind the committed offsets, partition by partition.
fn read_first(reader: &Reader, topic: &str, limit: usize) -> KafkaResult<Vec<KafkaRecord>> {
    let metadata = reader.fetch_metadata(Some(topic), ASKING)?;
    let found = metadata.topics().iter().find(|found| found.name() == topic && found.error().is_none());
    let mut partitions = TopicPartitionList::new();
    for partition in found.map_or(&[][..], |found| found.partitions()) {
        partitions.add_partition(topic, partition.id());
    }
    let committed = reader.committed_offsets(partitions, ASKING)?;
    let (mut from, mut open) = (TopicPartitionList::new(), HashMap::new());
    for element in committed.elements() {
        let (low, high) = reader.fetch_watermarks(topic, element.partition(), ASKING)?;
        let next = element.offset().to_raw().filter(|next| *next >= low).unwrap_or(low);
        if next < high {
            from.add_partition_offset(topic, element.partition(), Offset::Offset(next))?;
            open.insert(element.partition(), high);
        }
    }
    reader.assign(&from)?;
    let name: Arc<str> = topic.into();
    let mut records = Vec::new();
    while records.len() < limit && !open.is_empty() {
        match reader.poll(ASKING) {
            Some(Ok(message)) => {
                if open.get(&message.partition()).is_some_and(|high| message.offset() + 1 >= *high) {
                    open.remove(&message.partition());
                }
                records.push(KafkaRecord::read(Arc::clone(&name), &message));
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => drop(open.remove(&partition)),
            Some(Err(error)) => return Err(error),
            None => return Err(KafkaError::NoMessageReceived),
        }
    }
    Ok(records)
}

impl TryFrom<KafkaRecord> for DeadLetter {
    type Error = ReplayError;

    fn try_from(record: KafkaRecord) -> Result<Self, ReplayError> {
        let text = |missing: &'static str| {
            let value = record.header(missing).and_then(|value| std::str::from_utf8(value).ok());
            let (partition, offset) = (record.partition, record.offset);
            value.map(str::to_owned).ok_or(ReplayError::NoDeadLetter { partition, offset, missing })
        };
        let number = |name: &'static str| {
            let (partition, offset) = (record.partition, record.offset);
            text(name)?.parse::<i64>().map_err(|_| ReplayError::NoDeadLetter { partition, offset, missing: name })
        };
        Ok(Self {
            topic: text(header::TOPIC)?,
            partition: i32::try_from(number(header::PARTITION)?).unwrap_or(-1),
            offset: number(header::OFFSET)?,
            error: text(header::ERROR)?,
            retries: u32::try_from(number(header::RETRIES)?).unwrap_or(0),
            consumer: text(header::CONSUMER)?,
            record,
        })
    }
}
