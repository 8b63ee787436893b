//! Transactions: records of several topics and partitions, and offsets that were consumed, all of it or nothing.
//!
//! Only consumers with `isolation.level=read_committed` are spared what was aborted. librdkafka's calls about transactions block;
//! they run on threads that may wait, one at a time.

use std::{collections::BTreeMap, time::Duration};

use futures::FutureExt as _;
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    consumer::ConsumerGroupMetadata,
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
    producer::{DeliveryFuture, Producer as _},
};

use super::{
    NewRecord, ProduceError,
    client::{KnownTopics, Logging, Producer, blocking, release},
    cluster::{KafkaCluster, KafkaSettingsError, OwnSetting, milliseconds, names},
    options::PARTITIONER,
    producer::{OWN_SETTINGS, bad_topic, enqueue},
};

/// Beside those of every producer.
const OF_TRANSACTIONS: [OwnSetting; 1] = [("transaction.timeout.ms", "`timeout` says it")];

/// A transaction is over before the broker ends it.
const MARGIN: Duration = Duration::from_millis(100);

/// How a producer of transactions writes.
#[derive(Clone, PartialEq, Eq)]
pub struct TransactionOptions {
    /// The cluster, and how to get in.
    pub cluster: KafkaCluster,
    /// The name of the producer. Who starts with the same name takes over: the one before is fenced, and what it had not
    /// committed is aborted. Two that run side by side need two names.
    pub transactional_id: String,
    /// How long a transaction may take; then the broker aborts it. Each call waits at most this long. 60 s unless set.
    pub timeout: Duration,
    /// Settings of librdkafka for this producer.
    pub settings: BTreeMap<String, String>,
}

impl TransactionOptions {
    /// Transactions on this cluster, under this name.
    pub fn new(cluster: impl Into<KafkaCluster>, transactional_id: impl Into<String>) -> Self {
        Self {
            cluster: cluster.into(),
            transactional_id: transactional_id.into(),
            timeout: Duration::from_secs(60),
            settings: BTreeMap::new(),
        }
    }

    /// Sets a setting of librdkafka for this producer.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.insert(name.into(), value.into());
        self
    }

    /// Whether there can be a producer with these.
    pub(super) fn check(&self) -> Result<(), KafkaSettingsError> {
        self.config().map(drop)
    }

    fn config(&self) -> Result<ClientConfig, KafkaSettingsError> {
        if self.transactional_id.is_empty() {
            return Err(KafkaSettingsError::Option("a producer of transactions needs a name".to_owned()));
        }
        // Compression is like any other setting here.
        let own: Vec<OwnSetting> =
            OWN_SETTINGS.iter().filter(|(name, _)| !name.starts_with("compression")).copied().collect();
        let mut config = self.cluster.config(&self.settings, &[&own, &OF_TRANSACTIONS])?;
        let timeout = milliseconds(self.timeout)?;
        config
            .set("partitioner", PARTITIONER)
            .set("transactional.id", &self.transactional_id)
            .set("transaction.timeout.ms", &timeout)
            .set("delivery.timeout.ms", &timeout)
            .set("enable.idempotence", "true")
            .set("acks", "all");
        Ok(config)
    }
}

impl std::fmt::Debug for TransactionOptions {
    /// Without the values of settings, which may be passwords.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionOptions")
            .field("cluster", &self.cluster)
            .field("transactional_id", &self.transactional_id)
            .field("timeout", &self.timeout)
            .field("settings", &names(&self.settings))
            .finish()
    }
}

/// What became of a transaction that was not committed, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum TransactionError {
    /// The settings are wrong.
    #[error(transparent)]
    Settings(#[from] KafkaSettingsError),
    /// Another producer has started under the same name. This process must stop using this one: whatever it does now is
    /// done by the other one too. A transaction that was being committed was committed or aborted.
    #[error("another producer has taken over the transactional id {transactional_id}")]
    Fenced {
        /// The name of both.
        transactional_id: String,
        /// What the broker said.
        source: KafkaError,
    },
    /// Nothing of the transaction will be seen. It may be tried again as a whole, with the same producer. After a record that
    /// a broker refused, the next transaction may be aborted too.
    #[error("the transaction was aborted")]
    Aborted(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Nobody knows whether the transaction was committed: the brokers did not answer, or not clearly. A new producer of the same name ends it
    /// one way or the other; the committed offsets of the group, if they were part of it, say which.
    #[error("nobody knows whether the transaction was committed")]
    Uncertain(#[source] KafkaError),
    /// The producer can not go on. A transaction that was being committed was committed or aborted, any other one is not
    /// seen. A new one of the same name may be made.
    #[error("the producer of transactions can not go on")]
    Fatal(#[source] KafkaError),
    /// The brokers did not answer, or the topic of a record is wrong, before anything was decided. Nothing was committed.
    #[error("the brokers do not answer to the producer of transactions")]
    Away(#[source] KafkaError),
}

/// Offsets that were consumed, to be committed with a transaction: the next to read of each partition, and the membership in
/// the group that they were read with. A member that has lost its partitions meanwhile is refused.
pub struct ConsumedOffsets {
    /// Topic, partition, next offset.
    pub offsets: Vec<(String, i32, i64)>,
    /// The membership.
    pub membership: ConsumerGroupMetadata,
}

impl std::fmt::Debug for ConsumedOffsets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConsumedOffsets").field("offsets", &self.offsets).finish_non_exhaustive()
    }
}

/// Writes transactions, one after the other.
///
/// ```no_run
/// use relais_messaging::kafka::{NewRecord, TransactionOptions, TransactionalProducer};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let options = TransactionOptions::new("localhost:9092", "orders-to-invoices-1");
/// let mut producer = TransactionalProducer::new(&options).await?;
/// let mut transaction = producer.begin().await?;
/// transaction.send(NewRecord::new("invoices", "{}").with_key("o-7")).await?;
/// transaction.send(NewRecord::new("audit", "{}").with_key("o-7")).await?;
/// transaction.commit().await?; // Both are there, or an error says that none is.
/// # Ok(())
/// # }
/// ```
pub struct TransactionalProducer {
    producer: Producer,
    topics: KnownTopics,
    transactional_id: String,
    timeout: Duration,
    /// A transaction was left open: the next one begins with its end.
    open: bool,
    /// What has ended this producer.
    ended: Option<Ended>,
}

#[derive(Clone)]
enum Ended {
    Fenced(KafkaError),
    Fatal(KafkaError),
}

impl std::fmt::Debug for TransactionalProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionalProducer")
            .field("transactional_id", &self.transactional_id)
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

impl TransactionalProducer {
    /// Takes over the name: producers of the same name are fenced, and what they had not committed is aborted.
    ///
    /// # Errors
    ///
    /// If a setting is wrong, or the cluster does not answer within the timeout.
    pub async fn new(options: &TransactionOptions) -> Result<Self, TransactionError> {
        let config = options.config()?;
        let producer: Producer = config.create_with_context(Logging).map_err(KafkaSettingsError::of_client)?;
        let mut this = Self {
            producer,
            topics: KnownTopics::default(),
            transactional_id: options.transactional_id.clone(),
            timeout: options.timeout,
            open: false,
            ended: None,
        };
        let limit = options.timeout;
        let begun = this.call(move |producer| producer.init_transactions(limit)).await;
        begun.map_err(|error| this.error(error, TransactionError::Away))?;
        Ok(this)
    }

    /// The name.
    pub fn transactional_id(&self) -> &str {
        &self.transactional_id
    }

    /// Begins a transaction. One that was left open is aborted first.
    ///
    /// # Errors
    ///
    /// If this producer is fenced or can not go on, or the brokers do not answer.
    pub async fn begin(&mut self) -> Result<Transaction<'_>, TransactionError> {
        self.check()?;
        if self.open {
            self.abort().await?;
        }
        let begun = self.call(|producer| producer.begin_transaction()).await;
        begun.map_err(|error| self.error(error, TransactionError::Away))?;
        self.open = true;
        let deadline = tokio::time::Instant::now() + self.timeout.saturating_sub(MARGIN);
        Ok(Transaction { owner: self, sent: Vec::new(), deadline })
    }

    /// Lets go of the connections. A transaction that is open is aborted.
    pub async fn close(mut self) {
        if self.open && self.ended.is_none() {
            // The broker aborts it later, if this does not.
            let _ = self.abort().await;
        }
        release(self.producer).await;
    }

    async fn abort(&mut self) -> Result<(), TransactionError> {
        let limit = self.timeout;
        let aborted = self.call(move |producer| producer.abort_transaction(limit)).await;
        aborted.map_err(|error| self.error(error, TransactionError::Away))?;
        self.open = false;
        Ok(())
    }

    fn check(&self) -> Result<(), TransactionError> {
        match &self.ended {
            None => Ok(()),
            Some(Ended::Fenced(source)) => Err(self.fenced(source.clone())),
            Some(Ended::Fatal(source)) => Err(TransactionError::Fatal(source.clone())),
        }
    }

    fn fenced(&self, source: KafkaError) -> TransactionError {
        TransactionError::Fenced { transactional_id: self.transactional_id.clone(), source }
    }

    /// What has ended this producer, by what librdkafka says.
    fn check_fatal(&mut self) -> Option<TransactionError> {
        let (code, _) = self.producer.client().fatal_error()?;
        Some(self.error(KafkaError::Global(code), TransactionError::Fatal))
    }

    /// What an error means for this producer; `otherwise` if it can go on.
    fn error(&mut self, error: KafkaError, otherwise: impl FnOnce(KafkaError) -> TransactionError) -> TransactionError {
        let fatal = self.producer.client().fatal_error();
        let codes = [error.rdkafka_error_code(), fatal.as_ref().map(|(code, _)| *code)];
        if codes.into_iter().flatten().any(is_fencing) {
            self.ended = Some(Ended::Fenced(error.clone()));
            return self.fenced(error);
        }
        if fatal.is_some() || matches!(&error, KafkaError::Transaction(inner) if inner.is_fatal()) {
            self.ended = Some(Ended::Fatal(error.clone()));
            return TransactionError::Fatal(error);
        }
        otherwise(error)
    }

    /// Asks librdkafka on a thread that may wait, again as long as it says that this is of use.
    async fn call(&self, ask: impl Fn(&Producer) -> KafkaResult<()> + Send + 'static) -> KafkaResult<()> {
        let (producer, deadline) = (self.producer.clone(), std::time::Instant::now() + self.timeout);
        blocking(move || {
            loop {
                match ask(&producer) {
                    // It has waited for the brokers itself: this does not turn fast.
                    Err(KafkaError::Transaction(error))
                        if error.is_retriable() && std::time::Instant::now() < deadline => {}
                    answer => return answer,
                }
            }
        })
        .await
    }
}

fn is_fencing(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(code, Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch)
}

/// A transaction that is open. Dropped, it is aborted before the next one begins, or by the broker at its timeout.
#[derive(Debug)]
#[must_use = "it is aborted unless it is committed"]
pub struct Transaction<'a> {
    owner: &'a mut TransactionalProducer,
    sent: Vec<(String, DeliveryOf)>,
    deadline: tokio::time::Instant,
}

struct DeliveryOf(DeliveryFuture);

impl std::fmt::Debug for DeliveryOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DeliveryOf")
    }
}

impl Transaction<'_> {
    /// Adds a record. That it was delivered is known when the transaction is committed.
    ///
    /// # Errors
    ///
    /// If the record can not be written: abort, or go on without it.
    pub async fn send(&mut self, record: NewRecord) -> Result<(), ProduceError> {
        let limit = self.deadline.saturating_duration_since(tokio::time::Instant::now());
        let Self { owner: TransactionalProducer { producer, topics, .. }, .. } = self;
        if !topics.contains(&record.topic) {
            let looked_up = topics.look_up(producer, &record.topic, limit).await;
            looked_up.map_err(|bad| bad_topic(&record.topic, bad))?;
        }
        let delivery = enqueue(producer, &record, limit).await?;
        self.sent.push((record.topic, DeliveryOf(delivery)));
        Ok(())
    }

    /// Adds records, in this order.
    ///
    /// # Errors
    ///
    /// With the first record that can not be written.
    pub async fn send_all(&mut self, records: Vec<NewRecord>) -> Result<(), ProduceError> {
        for record in records {
            self.send(record).await?;
        }
        Ok(())
    }

    /// Adds offsets that were consumed: they are committed with the records, or not at all.
    ///
    /// # Errors
    ///
    /// If the member has lost its partitions, this producer is fenced, or the brokers do not answer. The transaction is aborted.
    pub async fn send_offsets(&mut self, consumed: ConsumedOffsets) -> Result<(), TransactionError> {
        let mut list = TopicPartitionList::new();
        for (topic, partition, next) in &consumed.offsets {
            if let Err(error) = list.add_partition_offset(topic, *partition, Offset::Offset(*next)) {
                return Err(self.failed(error).await);
            }
        }
        let limit = self.owner.timeout;
        let membership = consumed.membership;
        let sent =
            self.owner.call(move |producer| producer.send_offsets_to_transaction(&list, &membership, limit)).await;
        match sent {
            Ok(()) => Ok(()),
            Err(error) => Err(self.failed(error).await),
        }
    }

    /// Ends the transaction: all of it is there, or the error says what became of it.
    ///
    /// # Errors
    ///
    /// [`Aborted`](TransactionError::Aborted) if a record could not be delivered, and so on: see [`TransactionError`].
    pub async fn commit(mut self) -> Result<(), TransactionError> {
        let limit = self.owner.timeout;
        let flushed = self.owner.call(move |producer| producer.flush(limit)).await;
        if let Some(why) = self.undelivered() {
            return Err(self.failed(why).await);
        }
        if let Err(error) = flushed {
            return Err(self.failed(error).await);
        }
        let committed = self.owner.call(move |producer| producer.commit_transaction(limit)).await;
        let Err(error) = committed else {
            self.owner.open = false;
            return Ok(());
        };
        // The broker may have committed it and not been able to say so. What it answers to a retry is no proof.
        let error = self.owner.error(error, TransactionError::Uncertain);
        if let TransactionError::Uncertain(source) = &error {
            self.owner.ended = Some(Ended::Fatal(source.clone()));
        }
        Err(error)
    }

    /// Ends the transaction: nothing of it will be seen.
    ///
    /// # Errors
    ///
    /// If this producer is fenced or can not go on, or the brokers do not answer. The broker aborts the transaction then.
    pub async fn abort(self) -> Result<(), TransactionError> {
        self.owner.abort().await
    }

    /// Why a record was not delivered, if one was not.
    fn undelivered(&mut self) -> Option<ProduceError> {
        let mut deliveries = self.sent.drain(..);
        deliveries.find_map(|(topic, delivery)| match delivery.0.now_or_never() {
            Some(Ok(Err((why, _)))) => Some(ProduceError::new(&topic, why)),
            _ => None,
        })
    }

    /// Aborts, and says why.
    async fn failed(&mut self, why: impl Into<Failure>) -> TransactionError {
        let error = match why.into() {
            Failure::Client(error) => self.owner.error(error, |error| TransactionError::Aborted(Box::new(error))),
            Failure::Record(error) => match self.owner.check_fatal() {
                Some(fatal) => fatal,
                None => TransactionError::Aborted(Box::new(error)),
            },
        };
        if !matches!(error, TransactionError::Aborted(_)) {
            return error;
        }
        match self.owner.abort().await {
            Ok(()) => error,
            Err(worse) => worse,
        }
    }
}

/// Why a transaction is aborted.
enum Failure {
    Client(KafkaError),
    Record(ProduceError),
}

impl From<KafkaError> for Failure {
    fn from(error: KafkaError) -> Self {
        Self::Client(error)
    }
}

impl From<ProduceError> for Failure {
    fn from(error: ProduceError) -> Self {
        Self::Record(error)
    }
}
