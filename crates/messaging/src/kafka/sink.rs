//! A Kafka topic as a sink: an idempotent producer, `acks=all`, one message of a key at a time.
//!
//! The idempotent producer keeps order while it retries. But a batch of records that the broker refuses for good (one of them
//! is larger than the topic allows) is left out, and the next batch goes on without it. A later message of a key would
//! arrive before the earlier one, so it is sent only when that is confirmed.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures::{StreamExt as _, future::join_all, stream};
use rdkafka::{
    ClientContext,
    config::{ClientConfig, RDKafkaLogLevel},
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord, Producer as _},
};
use relais_message::{Durability, Message, PublishOutcome, RoutedMessage, Sink, header, in_waves};

use super::{KafkaSinkError, KafkaSinkOptions};

/// How many topics are looked up at once.
const LOOKUPS: usize = 8;

/// The longest name of a topic.
const MAX_TOPIC: usize = 249;

/// Publishes to topics: the destination is the topic, and the message's key is the record's.
///
/// The record has the headers `id`, `event-type`, `content-type` and all of the message's. Its timestamp is the message's time. A
/// tombstone is a record without a value.
///
/// A message is confirmed when all replicas have it that are in sync: how many these must be is the topic's
/// `min.insync.replicas`. Topics are not created: a message to a topic that does not exist is refused. So is one that is too
/// large for the client, the topic or the broker, and one that the user may not write. A call ends within three times the timeout.
pub struct KafkaSink {
    config: ClientConfig,
    timeout: Duration,
    producer: Mutex<Option<Producer>>,
    /// Topics that exist. One that is deleted is found out when it is written to.
    topics: Mutex<HashSet<String>>,
    closed: AtomicBool,
}

type Producer = FutureProducer<Logging>;

impl std::fmt::Debug for KafkaSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaSink").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl KafkaSink {
    /// A sink on a cluster. Connects in the background; a cluster that is away is no error here.
    pub fn new(options: &KafkaSinkOptions) -> Result<Self, KafkaSinkError> {
        let config = options.config()?;
        let producer = config.create_with_context(Logging).map_err(KafkaSinkError::Client)?;
        Ok(Self {
            config,
            timeout: options.timeout,
            producer: Mutex::new(Some(producer)),
            topics: Mutex::default(),
            closed: AtomicBool::new(false),
        })
    }

    fn producer(&self) -> KafkaResult<Producer> {
        let mut place = self.producer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(producer) = place.as_ref() {
            return Ok(producer.clone());
        }
        let producer: Producer = self.config.create_with_context(Logging)?;
        Ok(place.insert(producer).clone())
    }

    /// An idempotent producer that can not go on without a gap or a repeat says so once, and is of no use after that.
    async fn replace_if_broken(&self, producer: Producer) {
        let Some((code, why)) = producer.client().fatal_error() else { return };
        tracing::warn!(%code, why, "the Kafka producer has given up; another one takes its place");
        {
            let mut place = self.producer.lock().unwrap_or_else(PoisonError::into_inner);
            // Another call may have replaced it before.
            let _broken = place.take_if(|current| current.client().fatal_error().is_some());
        }
        release(producer).await;
    }

    async fn wave(&self, wave: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        let producer = match self.producer() {
            Ok(producer) => producer,
            Err(error) => return vec![PublishOutcome::Unknown(error.to_string()); wave.len()],
        };
        let begun = Instant::now();
        let bad = self.bad_topics(&producer, &wave).await;
        let sending = wave.iter().map(|outgoing| async {
            // librdkafka ends a header's name there.
            if outgoing.message.headers.iter().any(|(name, _)| name.contains('\0')) {
                return Err(PublishOutcome::Refused("the name of a header has a zero byte in it".to_owned()));
            }
            match bad.get(&outgoing.destination) {
                Some(outcome) => Err(outcome.clone()),
                None => Ok(self.send(&producer, outgoing).await),
            }
        });
        let answers = join_all(sending).await;
        let together = answers.iter().filter(|answer| answer.is_ok()).count() > 1;
        let mut outcomes = Vec::with_capacity(wave.len());
        for (answer, outgoing) in answers.into_iter().zip(&wave) {
            let answer = match answer {
                // The broker refuses a batch of records as a whole: each alone shows which one it is.
                Ok(Err(error)) if together && is_of_batch(&error) && begun.elapsed() < self.timeout => {
                    self.send(&producer, outgoing).await
                }
                Ok(answer) => answer,
                Err(outcome) => {
                    outcomes.push(outcome);
                    continue;
                }
            };
            if answer.as_ref().is_err_and(is_topic_gone) {
                self.topics.lock().unwrap_or_else(PoisonError::into_inner).remove(&outgoing.destination);
            }
            outcomes.push(answer.map_or_else(|error| outcome(&error), |()| PublishOutcome::Confirmed));
        }
        self.replace_if_broken(producer).await;
        outcomes
    }

    async fn send(&self, producer: &Producer, outgoing: &RoutedMessage) -> KafkaResult<()> {
        let RoutedMessage { destination, message, .. } = outgoing;
        let mut record = FutureRecord::<str, [u8]>::to(destination)
            .headers(headers(message))
            .timestamp(message.time.as_millisecond());
        record.key = message.key.as_deref();
        record.payload = message.payload.as_deref();
        producer.send(record, self.timeout).await.map(drop).map_err(|(error, _)| error)
    }

    /// Those of a wave's topics that can not be written to, and why.
    async fn bad_topics(&self, producer: &Producer, wave: &[RoutedMessage]) -> HashMap<String, PublishOutcome> {
        let unknown: HashSet<String> = {
            let known = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
            let topics = wave.iter().map(|outgoing| &outgoing.destination);
            topics.filter(|topic| !known.contains(*topic)).cloned().collect()
        };
        let looked_up = stream::iter(unknown).map(|topic| async move {
            let answer = self.look_up(producer, &topic).await;
            (topic, answer)
        });
        let looked_up: Vec<_> = looked_up.buffer_unordered(LOOKUPS).collect().await;
        let mut known = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bad = HashMap::new();
        for (topic, answer) in looked_up {
            match answer {
                Ok(()) => drop(known.insert(topic)),
                Err(outcome) => drop(bad.insert(topic, outcome)),
            }
        }
        bad
    }

    /// Asks the cluster for a topic. A producer would wait for one that does not exist, or create it.
    async fn look_up(&self, producer: &Producer, topic: &str) -> Result<(), PublishOutcome> {
        let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if !(1..=MAX_TOPIC).contains(&topic.len()) || !topic.chars().all(valid) {
            return Err(PublishOutcome::Refused(format!("{topic:?} is not the name of a topic")));
        }
        let (producer, name, limit) = (producer.clone(), topic.to_owned(), self.timeout);
        let asking = tokio::task::spawn_blocking(move || {
            let metadata = producer.client().fetch_metadata(Some(&name), limit)?;
            let found = metadata.topics().iter().find(|found| found.name() == name);
            Ok(found.and_then(|found| found.error()).map(RDKafkaErrorCode::from))
        });
        let answer: KafkaResult<_> = asking.await.unwrap_or(Err(KafkaError::Canceled));
        match answer {
            // It exists, and will have a leader soon.
            Ok(None | Some(RDKafkaErrorCode::LeaderNotAvailable)) => Ok(()),
            Ok(Some(code)) => Err(outcome(&KafkaError::MessageProduction(code))),
            Err(error) => Err(PublishOutcome::Unknown(format!("the topic could not be looked up: {error}"))),
        }
    }
}

#[async_trait]
impl Sink for KafkaSink {
    fn durability(&self) -> Durability {
        Durability::Replicated
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        if self.closed.load(Ordering::Acquire) {
            return vec![PublishOutcome::Refused("the sink is closed".to_owned()); batch.len()];
        }
        in_waves(batch, self.timeout, |wave| self.wave(wave)).await
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let producer = self.producer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(producer) = producer {
            release(producer).await;
        }
    }
}

/// Lets go of a producer on a thread that may wait: the last one to do so waits for its threads.
async fn release(producer: Producer) {
    // A panic in there has nothing to tell.
    let _ = tokio::task::spawn_blocking(move || drop(producer)).await;
}

fn headers(message: &Message) -> OwnedHeaders {
    let own = [
        ("id", message.id.as_str()),
        (header::EVENT_TYPE, message.event_type.as_str()),
        ("content-type", message.content_type.as_str()),
    ];
    let own = own.into_iter().filter(|(_, value)| !value.is_empty());
    let others = message.headers.iter().filter(|(name, _)| !own.clone().any(|(known, _)| known == *name));
    let all = own.clone().chain(others);
    all.fold(OwnedHeaders::new(), |headers, (key, value)| headers.insert(Header { key, value: Some(value) }))
}

/// What the broker or the client says about a record is certain; anything else leaves open whether it was stored.
fn outcome(error: &KafkaError) -> PublishOutcome {
    use RDKafkaErrorCode as Code;
    let refused = matches!(
        error.rdkafka_error_code(),
        Some(
            Code::MessageSizeTooLarge
                | Code::MessageBatchTooLarge
                | Code::InvalidMessage
                | Code::InvalidRecord
                | Code::InvalidTimestamp
                | Code::InvalidTopic
                | Code::PolicyViolation
                | Code::UnknownPartition
                | Code::UnknownTopic
                | Code::UnknownTopicOrPartition
                | Code::TopicAuthorizationFailed
                | Code::ClusterAuthorizationFailed
        )
    );
    if refused { PublishOutcome::Refused(error.to_string()) } else { PublishOutcome::Unknown(error.to_string()) }
}

/// Whether the broker may mean another record of the same batch.
fn is_of_batch(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        error.rdkafka_error_code(),
        Some(
            Code::MessageSizeTooLarge
                | Code::MessageBatchTooLarge
                | Code::InvalidMessage
                | Code::InvalidRecord
                | Code::InvalidTimestamp
                | Code::PolicyViolation
        )
    )
}

fn is_topic_gone(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(error.rdkafka_error_code(), Some(Code::UnknownTopic | Code::UnknownTopicOrPartition))
}

/// What librdkafka says goes where everything else goes.
#[derive(Clone)]
struct Logging;

impl ClientContext for Logging {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Debug => tracing::debug!(facility, message, "librdkafka"),
            RDKafkaLogLevel::Info | RDKafkaLogLevel::Notice => tracing::info!(facility, message, "librdkafka"),
            // It is told to whoever publishes; here it is one of many tries.
            _ => tracing::warn!(facility, message, "librdkafka"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::warn!(%error, reason, "librdkafka");
    }
}
