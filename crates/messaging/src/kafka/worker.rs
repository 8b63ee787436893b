//! Push workers on Kafka topics: the consumer as what feeds them, and typed keys and values.

use std::{borrow::Cow, collections::VecDeque, fmt, sync::Arc};

use relais_push_worker::{
    BoxError, Consumer, ConsumerFeatures, ConsumerMonitor, FailedMessage, Handler, Incoming, InitializeError, Order,
    PushWorker, Pushed, Revoked, Settled, SubscriberError, WorkerSettings, WorkerSubscription, handler,
};
use serde::de::DeserializeOwned;

use super::{
    KafkaConsumer, KafkaConsumerOptions, KafkaDelivery, KafkaEvent, KafkaMonitor, KafkaRecord, KafkaSettingsError,
};

/// A push worker on Kafka topics.
///
/// Handlers run side by side, those of a key one after the other ([`Order::Key`], unless set). A failing record is retried after
/// 2, 4 and 8 s while its key is parked, and is a dead letter then. Offsets are committed behind it all, as [`KafkaConsumer`]
/// says.
///
/// ```no_run
/// use relais_messaging::kafka::{Codec, KafkaConsumerOptions, KafkaPushWorker, TypedRecord};
///
/// #[derive(serde::Deserialize)]
/// struct Order {
///     total: u64,
/// }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let topics = KafkaConsumerOptions::new("localhost:9092", "invoices", ["orders"]);
/// let worker = KafkaPushWorker::builder("invoices")
///     .concurrency(64)
///     .start_typed(topics, Codec::text(), Codec::json(), |order: TypedRecord<String, Order>| async move {
///         match (&order.key, &order.value) {
///             (Some(key), Some(order)) => println!("{key}: {}", order.total),
///             (_, None) => println!("gone"), // A tombstone.
///             (None, _) => {}
///         }
///         Ok(())
///     })
///     .await?;
/// worker.stop().await; // Finishes what runs, commits, leaves the group.
/// # Ok(())
/// # }
/// ```
pub type KafkaPushWorker = PushWorker<KafkaRecord>;

/// Why a push worker does not start.
#[derive(Debug, thiserror::Error)]
pub enum KafkaWorkerError {
    /// The `initialize` hook refused.
    #[error(transparent)]
    Initialize(#[from] InitializeError),
    /// A setting is wrong.
    #[error(transparent)]
    Settings(#[from] KafkaSettingsError),
}

impl Pushed for KafkaRecord {
    type Builder = KafkaPushWorkerBuilder;

    fn push_worker(name: String) -> KafkaPushWorkerBuilder {
        WorkerSettings::new(name).order(Order::Key).into()
    }
}

/// The settings of a [`KafkaPushWorker`].
#[derive(Debug, Clone)]
#[must_use]
pub struct KafkaPushWorkerBuilder {
    worker: WorkerSettings<KafkaRecord>,
}

impl From<WorkerSettings<KafkaRecord>> for KafkaPushWorkerBuilder {
    fn from(worker: WorkerSettings<KafkaRecord>) -> Self {
        Self { worker }
    }
}

impl KafkaPushWorkerBuilder {
    relais_push_worker::worker_settings!(KafkaRecord, worker);

    /// Starts the worker. It joins the group in the background.
    ///
    /// # Errors
    ///
    /// If a setting is wrong, or the `initialize` hook refuses.
    pub async fn start<H, F>(self, topics: KafkaConsumerOptions, handle: H) -> Result<KafkaPushWorker, KafkaWorkerError>
    where
        H: Fn(Arc<KafkaRecord>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), SubscriberError>> + Send + 'static,
    {
        self.launch(topics, handler(handle)).await.map(|(worker, _)| worker)
    }

    /// The same with keys and values of one type each. A record that is not of these types is a dead letter at once.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn start_typed<K, V, H, F>(
        self,
        topics: KafkaConsumerOptions,
        keys: Codec<K>,
        values: Codec<V>,
        handle: H,
    ) -> Result<KafkaPushWorker, KafkaWorkerError>
    where
        K: Send + Sync + 'static,
        V: Send + Sync + 'static,
        H: Fn(TypedRecord<K, V>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), SubscriberError>> + Send + 'static,
    {
        let typed = handler(move |record: Arc<KafkaRecord>| {
            let decoded = TypedRecord::decode(record, &keys, &values).map_err(SubscriberError::fatal).map(&handle);
            async move { decoded?.await }
        });
        self.launch(topics, typed).await.map(|(worker, _)| worker)
    }

    /// Like [`start`](Self::start), with what can be asked about the consumer: its partitions, their lag, what is parked.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn launch(
        self,
        mut topics: KafkaConsumerOptions,
        handler: Handler<KafkaRecord>,
    ) -> Result<(KafkaPushWorker, KafkaMonitor), KafkaWorkerError> {
        // What is parked with a record is what would have to wait for it.
        match (self.worker.order, &self.worker.key) {
            (Order::None, _) => topics.key = Some(Arc::new(|_| None)),
            (Order::Key, Some(key)) => topics.key = Some(Arc::clone(key)),
            _ => {}
        }
        let mut monitor = None;
        let consumer = async {
            let consumer = KafkaConsumer::new(topics)?;
            monitor = Some(consumer.monitor());
            Ok::<_, KafkaWorkerError>(consumer)
        };
        let worker = self.worker.start(consumer, handler).await?;
        let monitor = monitor.ok_or_else(|| KafkaSettingsError::Option("there is no consumer".to_owned()))?;
        Ok((worker, monitor))
    }
}

/// How bytes become a value.
pub struct Codec<T>(Decode<T>);

type Decode<T> = Arc<dyn Fn(&[u8]) -> Result<T, BoxError> + Send + Sync>;

impl<T> Codec<T> {
    /// By a function: for Avro, Protobuf, or whatever there is.
    pub fn new(decode: impl Fn(&[u8]) -> Result<T, BoxError> + Send + Sync + 'static) -> Self {
        Self(Arc::new(decode))
    }
}

impl<T: DeserializeOwned> Codec<T> {
    /// JSON.
    pub fn json() -> Self {
        Self::new(|bytes| Ok(serde_json::from_slice(bytes)?))
    }
}

impl Codec<String> {
    /// Text in UTF-8.
    pub fn text() -> Self {
        Self::new(|bytes| Ok(std::str::from_utf8(bytes)?.to_owned()))
    }
}

impl Codec<Vec<u8>> {
    /// The bytes as they are.
    pub fn bytes() -> Self {
        Self::new(|bytes| Ok(bytes.to_vec()))
    }
}

impl<T> Clone for Codec<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Codec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Codec").finish_non_exhaustive()
    }
}

/// A record with its key and value.
#[derive(Debug, Clone)]
pub struct TypedRecord<K, V> {
    /// The record as it was read.
    pub record: Arc<KafkaRecord>,
    /// What it is about.
    pub key: Option<K>,
    /// What it says. None is a tombstone.
    pub value: Option<V>,
}

/// A record is not of the type that a handler wants.
#[derive(Debug, thiserror::Error)]
#[error("the record's {part} can not be decoded")]
pub struct DecodeError {
    part: &'static str,
    #[source]
    source: BoxError,
}

impl<K, V> TypedRecord<K, V> {
    fn decode(record: Arc<KafkaRecord>, keys: &Codec<K>, values: &Codec<V>) -> Result<Self, DecodeError> {
        let key = record.key.as_deref().map(|key| (keys.0)(key)).transpose();
        let key = key.map_err(|source| DecodeError { part: "key", source })?;
        let value = record.value.as_deref().map(|value| (values.0)(value)).transpose();
        let value = value.map_err(|source| DecodeError { part: "value", source })?;
        Ok(Self { record, key, value })
    }
}

impl Consumer for KafkaConsumer {
    type Message = KafkaRecord;
    type Delivery = KafkaDelivery;

    fn features(&self) -> ConsumerFeatures {
        ConsumerFeatures {
            redelivers: true,
            shares_work: true,
            keeps_order: true,
            retries_at_broker: false,
            has_partitions: true,
            keeps_dead_letters: true,
        }
    }

    fn monitor(&self) -> Arc<dyn ConsumerMonitor> {
        Arc::new(self.monitor())
    }

    async fn receive(&self, batch: &mut VecDeque<KafkaDelivery>) -> Incoming<KafkaDelivery> {
        match self.receive(batch).await {
            KafkaEvent::Records => Incoming::Deliveries,
            KafkaEvent::Revoked(partitions, done) => {
                let (revoked, told) = Revoked::new(move |delivery| partitions.cover(delivery));
                tokio::spawn(async move {
                    // A worker that is gone has nothing running. Who waited may have lost patience.
                    let _ = told.await;
                    let _ = done.send(());
                });
                Incoming::Revoked(revoked)
            }
            KafkaEvent::Lost(partitions) => Incoming::Lost(Box::new(move |delivery| partitions.cover(delivery))),
            KafkaEvent::Closed => Incoming::Closed,
        }
    }

    fn message(&self, delivery: &KafkaDelivery) -> Arc<KafkaRecord> {
        Arc::clone(delivery.record())
    }

    fn id<'a>(&self, record: &'a KafkaRecord) -> Cow<'a, str> {
        // What was published twice has one id, in a header.
        match record.header("id").and_then(|id| std::str::from_utf8(id).ok()) {
            Some(id) => id.into(),
            None => format!("{}/{}/{}", record.topic, record.partition, record.offset).into(),
        }
    }

    fn channel<'a>(&self, record: &'a KafkaRecord) -> &'a str {
        &record.topic
    }

    fn lane(&self, delivery: &KafkaDelivery, order: Order) -> Option<Arc<str>> {
        let record = delivery.record();
        match order {
            Order::None => None,
            Order::Channel => Some(Arc::clone(&record.topic)),
            // Keys that are no text and look alike wait for each other, which does no harm.
            Order::Key => record.key.as_deref().map(|key| String::from_utf8_lossy(key).into()),
        }
    }

    fn retries(&self, delivery: &KafkaDelivery) -> u32 {
        delivery.retries()
    }

    fn leave_queue(&self, delivery: &KafkaDelivery) {
        self.leave_queue(delivery);
    }

    fn rejoin_queue(&self, delivery: &mut KafkaDelivery, retries: u32) {
        self.retry(delivery, retries);
    }

    fn settle(&self, delivery: KafkaDelivery, settled: Settled) {
        let done = match settled {
            Settled::Done | Settled::DeadLettered | Settled::Dropped | Settled::Retried => true,
            Settled::Failed | Settled::Left => false,
        };
        self.settle(&delivery, done);
    }

    async fn dead_letter(&self, failed: &FailedMessage<'_, KafkaRecord>) -> Result<bool, BoxError> {
        if self.options().is_dead_letter_topic(&failed.message.topic) {
            // It is one, and stays where it is.
            return Ok(false);
        }
        if self.dead_letter(failed.message, &failed.error.to_string(), failed.retries).await {
            return Ok(true);
        }
        Err("the consumer was closed before the dead letter was written".into())
    }

    async fn stop_receiving(&self) {
        self.stop_receiving().await;
    }

    async fn close(&self) {
        self.close().await;
    }
}

impl ConsumerMonitor for KafkaMonitor {
    fn channels(&self) -> Vec<String> {
        self.status().waiting.into_keys().collect()
    }

    fn queue_size(&self) -> usize {
        self.waiting()
    }

    fn queue_capacity(&self) -> usize {
        self.capacity()
    }

    fn subscriptions(&self) -> Vec<WorkerSubscription> {
        let status = self.status();
        let of_topic = |(topic, pending): (String, usize)| WorkerSubscription {
            id: format!("{}/{topic}", status.group),
            channel: topic,
            pending,
        };
        status.waiting.into_iter().map(of_topic).collect()
    }

    fn is_healthy(&self) -> bool {
        self.is_healthy()
    }
}
