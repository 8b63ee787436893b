//! A Kafka topic as a sink: an idempotent producer, `acks=all`, one message of a key at a time.
//!
//! The idempotent producer keeps order while it retries. But a batch of records that the broker refuses for good (one of them
//! is larger than the topic allows) is left out, and the next batch goes on without it. A later message of a key would
//! arrive before the earlier one, so it is sent only when that is confirmed.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures::{StreamExt as _, future::join_all, stream};
use rdkafka::{
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::FutureRecord,
};
use relais_message::{Durability, Message, PublishOutcome, RoutedMessage, Sink, header, in_waves};

use super::{
    KafkaSettingsError, KafkaSinkOptions,
    client::{BadTopic, KnownTopics, Producer, ReplaceableProducer, is_refusal, is_topic_gone},
};

/// How many topics are looked up at once.
const LOOKUPS: usize = 8;

/// Publishes to topics: the destination is the topic, and the message's key is the record's.
///
/// The record has the headers `id`, `event-type`, `content-type` and all of the message's. Its timestamp is the message's time. A
/// tombstone is a record without a value.
///
/// A message is confirmed when all replicas have it that are in sync: how many these must be is the topic's
/// `min.insync.replicas`. Topics are not created: a message to a topic that does not exist is refused. So is one that is too
/// large for the client, the topic or the broker, and one that the user may not write. A call ends within three times the timeout.
pub struct KafkaSink {
    timeout: Duration,
    producer: ReplaceableProducer,
    topics: KnownTopics,
    closed: AtomicBool,
}

impl std::fmt::Debug for KafkaSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaSink").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl KafkaSink {
    /// A sink on a cluster. Connects in the background; a cluster that is away is no error here.
    pub fn new(options: &KafkaSinkOptions) -> Result<Self, KafkaSettingsError> {
        Ok(Self {
            timeout: options.timeout,
            producer: ReplaceableProducer::new(options.config()?)?,
            topics: KnownTopics::default(),
            closed: AtomicBool::new(false),
        })
    }

    async fn wave(&self, wave: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        let producer = match self.producer.get() {
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
                self.topics.forget(&outgoing.destination);
            }
            outcomes.push(answer.map_or_else(|error| outcome(&error), |()| PublishOutcome::Confirmed));
        }
        self.producer.replace_if_broken(producer).await;
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
        let topics = wave.iter().map(|outgoing| &outgoing.destination);
        let unknown: HashSet<String> = topics.filter(|topic| !self.topics.contains(topic)).cloned().collect();
        let looked_up = stream::iter(unknown).map(|topic| async move {
            let bad = self.topics.look_up(producer, &topic, self.timeout).await.err()?;
            let outcome = match bad {
                BadTopic::Name(why) => PublishOutcome::Refused(why),
                BadTopic::Code(code) => outcome(&KafkaError::MessageProduction(code)),
                BadTopic::Unknown(error) => {
                    PublishOutcome::Unknown(format!("the topic could not be looked up: {error}"))
                }
            };
            Some((topic, outcome))
        });
        looked_up.buffer_unordered(LOOKUPS).filter_map(std::future::ready).collect().await
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
        self.producer.close().await;
    }
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

fn outcome(error: &KafkaError) -> PublishOutcome {
    if is_refusal(error) {
        PublishOutcome::Refused(error.to_string())
    } else {
        PublishOutcome::Unknown(error.to_string())
    }
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
