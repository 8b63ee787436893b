//! What every client of librdkafka here shares: its log, a place for a producer that may have to be replaced, and questions that
//! block, asked on a thread that may wait.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rdkafka::{
    ClientContext,
    config::{ClientConfig, RDKafkaLogLevel},
    consumer::ConsumerContext,
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
    producer::{FutureProducer, Producer as _},
};

use super::cluster::KafkaSettingsError;

/// The longest name of a topic.
pub(super) const MAX_TOPIC: usize = 249;

/// A producer whose answers are futures.
pub(super) type Producer = FutureProducer<Logging>;

/// What librdkafka says goes where everything else goes.
#[derive(Clone)]
pub(super) struct Logging;

impl ClientContext for Logging {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        log_error(&error, reason);
    }
}

impl ConsumerContext for Logging {}

pub(super) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Debug => tracing::debug!(facility, message, "librdkafka"),
        RDKafkaLogLevel::Info | RDKafkaLogLevel::Notice => tracing::info!(facility, message, "librdkafka"),
        // It is told to whoever publishes; here it is one of many tries.
        _ => tracing::warn!(facility, message, "librdkafka"),
    }
}

pub(super) fn log_error(error: &KafkaError, reason: &str) {
    tracing::warn!(%error, reason, "librdkafka");
}

/// A producer, and another one when that has given up.
pub(super) struct ReplaceableProducer {
    config: ClientConfig,
    place: Mutex<Option<Producer>>,
}

impl ReplaceableProducer {
    /// Connects in the background; a cluster that is away is no error here.
    pub(super) fn new(config: ClientConfig) -> Result<Self, KafkaSettingsError> {
        let producer = config.create_with_context(Logging).map_err(KafkaSettingsError::of_client)?;
        Ok(Self { config, place: Mutex::new(Some(producer)) })
    }

    pub(super) fn get(&self) -> KafkaResult<Producer> {
        let mut place = lock(&self.place);
        if let Some(producer) = place.as_ref() {
            return Ok(producer.clone());
        }
        let producer: Producer = self.config.create_with_context(Logging)?;
        Ok(place.insert(producer).clone())
    }

    /// An idempotent producer that can not go on without a gap or a repeat says so once, and is of no use after that.
    pub(super) async fn replace_if_broken(&self, producer: Producer) {
        let Some((code, why)) = producer.client().fatal_error() else { return };
        tracing::warn!(%code, why, "the Kafka producer has given up; another one takes its place");
        {
            let mut place = lock(&self.place);
            // Another call may have replaced it before.
            let _broken = place.take_if(|current| current.client().fatal_error().is_some());
        }
        release(producer).await;
    }

    pub(super) async fn close(&self) {
        let producer = lock(&self.place).take();
        if let Some(producer) = producer {
            release(producer).await;
        }
    }
}

/// Lets go of a producer on a thread that may wait: the last one to do so waits for its threads.
pub(super) async fn release(producer: Producer) {
    // A panic in there has nothing to tell.
    let _ = tokio::task::spawn_blocking(move || drop(producer)).await;
}

/// Runs what blocks on a thread that may wait.
pub(super) async fn blocking<T: Send + 'static>(
    ask: impl FnOnce() -> KafkaResult<T> + Send + 'static,
) -> KafkaResult<T> {
    tokio::task::spawn_blocking(ask).await.unwrap_or(Err(KafkaError::Canceled))
}

/// Why a topic can not be written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BadTopic {
    /// This is not the name of a topic.
    Name(String),
    /// The cluster says what is wrong with it.
    Code(RDKafkaErrorCode),
    /// The cluster did not answer.
    Unknown(KafkaError),
}

/// Topics that are known to exist. One that is deleted is found out when it is written to.
#[derive(Default)]
pub(super) struct KnownTopics(Mutex<HashSet<String>>);

impl KnownTopics {
    pub(super) fn contains(&self, topic: &str) -> bool {
        lock(&self.0).contains(topic)
    }

    pub(super) fn forget(&self, topic: &str) {
        lock(&self.0).remove(topic);
    }

    /// Asks the cluster for a topic that is not known yet. A producer would wait for one that does not exist, or create it.
    pub(super) async fn look_up(&self, producer: &Producer, topic: &str, limit: Duration) -> Result<(), BadTopic> {
        if !is_topic_name(topic) {
            return Err(BadTopic::Name(format!("{topic:?} is not the name of a topic")));
        }
        let (producer, name) = (producer.clone(), topic.to_owned());
        let answer = blocking(move || {
            let metadata = producer.client().fetch_metadata(Some(&name), limit)?;
            let found = metadata.topics().iter().find(|found| found.name() == name);
            Ok(found.and_then(|found| found.error()).map(RDKafkaErrorCode::from))
        });
        match answer.await {
            // It exists, and will have a leader soon.
            Ok(None | Some(RDKafkaErrorCode::LeaderNotAvailable)) => {
                lock(&self.0).insert(topic.to_owned());
                Ok(())
            }
            Ok(Some(code)) => Err(BadTopic::Code(code)),
            Err(error) => Err(BadTopic::Unknown(error)),
        }
    }
}

/// Whether a topic can have this name.
pub(super) fn is_topic_name(topic: &str) -> bool {
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=MAX_TOPIC).contains(&topic.len()) && topic.chars().all(valid)
}

/// Whether the broker says that the topic or the partition does not exist.
pub(super) fn is_topic_gone(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        error.rdkafka_error_code(),
        Some(Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition)
    )
}

/// Whether the error is certain: what the broker or the client says about a record. Anything else leaves open whether the
/// record was stored.
pub(super) fn is_refusal(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
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
    )
}

/// A lock whose holder may have panicked: what it guards is whole at every moment.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error with what is underneath, for a log.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
