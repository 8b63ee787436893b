//! A member of a consumer group: records are received, handled in any order, and committed by watermark.
//!
//! A thread of its own polls librdkafka (`poll.rs`), also while everything is paused, so that a handler that takes long does not
//! lose its partition. What is known of partitions is in `state.rs`, which knows no client; `shared.rs` carries out what it
//! says. `context.rs` is what librdkafka tells: assignments, partitions that are handed over or lost, answers to commits.
//! Records of keys that fail are kept in a topic of their own (`parking.rs`), those that fail for good in another one
//! (`dead_letters.rs`). Which record is handled when, and how often it is retried, is not decided here.

mod batch;
mod context;
mod dead_letters;
mod metrics;
mod options;
mod parking;
mod poll;
mod shared;
mod state;
mod status;
mod topics;

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rdkafka::{TopicPartitionList, consumer::Consumer as _};
use tokio::sync::{Notify, mpsc, oneshot};

pub use self::{
    batch::{KafkaBatch, StaleBatch},
    dead_letters::header as dead_letter_header,
    options::{CommitPolicy, KafkaConsumerOptions, RecordKey, StartAt},
    status::{KafkaConsumerStatus, KafkaMonitor, PartitionStatus},
};
use self::{
    metrics::ConsumerMetrics,
    shared::Shared,
    state::{Item, State},
    topics::MissingTopics,
};
use super::{
    ConsumedOffsets, KafkaProducer, KafkaRecord, KafkaSettingsError,
    client::{blocking, lock},
};

/// How long the end of a consumer may take: to write what is on its way, to commit, and to leave the group.
const CLOSING: Duration = Duration::from_secs(10);

/// A record with its receipt. Dropped without being settled, it is repeated by the next owner of its partition.
#[derive(Debug)]
pub struct KafkaDelivery {
    record: Arc<KafkaRecord>,
    assignment: u64,
    retries: u32,
}

impl KafkaDelivery {
    /// The record.
    pub fn record(&self) -> &Arc<KafkaRecord> {
        &self.record
    }

    /// How often it was retried before.
    pub fn retries(&self) -> u32 {
        self.retries
    }
}

/// What [`KafkaConsumer::receive`] has to say, after the records that came before it.
#[derive(Debug)]
pub enum KafkaEvent {
    /// Nothing but the records.
    Records,
    /// Partitions are to be handed over: what has not started is dropped, what runs is waited for, then `done` is told.
    Revoked(Partitions, oneshot::Sender<()>),
    /// Partitions are lost: to settle their records does nothing any more.
    Lost(Partitions),
    /// There will never be more.
    Closed,
}

/// Partitions that are taken away.
#[derive(Debug, Clone)]
pub struct Partitions(HashSet<u64>);

impl Partitions {
    /// Whether a record came from one of them.
    pub fn cover(&self, delivery: &KafkaDelivery) -> bool {
        self.0.contains(&delivery.assignment)
    }
}

/// A member of a consumer group.
///
/// Offsets are committed by watermark: up to the first record that is neither done nor parked. A crash repeats what was done
/// beyond that, at most [`max_uncommitted`](KafkaConsumerOptions::max_uncommitted) records of a partition.
pub struct KafkaConsumer {
    shared: Arc<Shared>,
    producer: Arc<KafkaProducer>,
    topics: Arc<MissingTopics>,
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

impl fmt::Debug for KafkaConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaConsumer").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl KafkaConsumer {
    /// Joins the group in the background; a cluster that is away is no error here. Needs a tokio runtime.
    ///
    /// # Errors
    ///
    /// If a setting is not the user's or not one of librdkafka, or a topic can not have its name.
    pub fn new(options: KafkaConsumerOptions) -> Result<Self, KafkaSettingsError> {
        let config = options.config()?;
        let admin = options.cluster.config(&BTreeMap::new(), &[])?;
        let producer = Arc::new(KafkaProducer::new(&parking::producer_options(&options))?);
        let topics = Arc::new(MissingTopics::new(admin));
        let (parking, orders) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            metrics: ConsumerMetrics::new(&options.group),
            state: Mutex::new(State::default()),
            arrived: Notify::new(),
            client: Mutex::new(None),
            parking,
            parking_open: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            trouble: Mutex::new(None),
            runtime: tokio::runtime::Handle::current(),
            partition_counts: Mutex::default(),
            last_commit: Mutex::new(Instant::now()),
            commit_due: Notify::new(),
            committing: Mutex::default(),
            assigning: tokio::sync::Mutex::default(),
            options,
        });
        let ended = poll::start(&shared, &config)?;
        tokio::spawn(shared::commit_in_time(Arc::downgrade(&shared)));
        tokio::spawn(parking::write(Arc::downgrade(&shared), Arc::clone(&producer), Arc::clone(&topics), orders));
        Ok(Self { shared, producer, topics, ended: Mutex::new(Some(ended)) })
    }

    /// Its options.
    pub fn options(&self) -> &KafkaConsumerOptions {
        &self.shared.options
    }

    /// Waits for records and appends them to `records`. Cancel-safe: if it is dropped before it returns, nothing was taken.
    pub async fn receive(&self, records: &mut VecDeque<KafkaDelivery>) -> KafkaEvent {
        loop {
            let arrived = self.shared.arrived.notified();
            if let Some(event) = self.take(records) {
                return event;
            }
            arrived.await;
        }
    }

    fn take(&self, records: &mut VecDeque<KafkaDelivery>) -> Option<KafkaEvent> {
        let mut state = lock(&self.shared.state);
        let before = records.len();
        while let Some(item) = state.queue.pop_front() {
            match item {
                Item::Delivery(delivery) => records.push_back(delivery),
                Item::Revoked(assignments, done) => return Some(KafkaEvent::Revoked(Partitions(assignments), done)),
                Item::Lost(assignments) => return Some(KafkaEvent::Lost(Partitions(assignments))),
                Item::Closed => {
                    // It is said again to whoever asks again.
                    state.queue.push_back(Item::Closed);
                    return Some(KafkaEvent::Closed);
                }
            }
        }
        (records.len() > before).then_some(KafkaEvent::Records)
    }

    /// A record waits no longer: it is being handled, or was given back.
    pub fn leave_queue(&self, delivery: &KafkaDelivery) {
        lock(&self.shared.state).waits_no_longer(&delivery.record.topic);
    }

    /// A record failed and waits to be retried for the `retries`th time. Its key is parked: the record and each later one of
    /// its key are kept in a topic of their own, and the watermark passes them.
    pub fn retry(&self, delivery: &mut KafkaDelivery, retries: u32) {
        lock(&self.shared.state).waits(&delivery.record.topic);
        if retries == delivery.retries {
            return;
        }
        delivery.retries = retries;
        Arc::make_mut(&mut delivery.record).retry_count = retries;
        self.shared.change(|state, options| state.park(&delivery.record, delivery.assignment, options));
    }

    /// A record is done, or was given back undone. The latter is not committed, and repeated by the next owner of its partition.
    pub fn settle(&self, delivery: &KafkaDelivery, done: bool) {
        self.shared.change(|state, options| state.settle(&delivery.record, delivery.assignment, done, options));
    }

    /// Keeps a record as a dead letter, however long that takes. False if the consumer is closed before.
    pub async fn dead_letter(&self, record: &KafkaRecord, error: &str, retries: u32) -> bool {
        dead_letters::write(&self.shared, &self.producer, &self.topics, record, error, retries).await
    }

    /// Commits what is done, at once.
    pub async fn commit(&self) {
        let shared = Arc::clone(&self.shared);
        // What fails is logged, and committed later.
        let _ = blocking(move || {
            shared.commit(None);
            Ok(())
        })
        .await;
    }

    /// Takes nothing new. What was taken before is still received; then comes [`KafkaEvent::Closed`].
    pub async fn stop_receiving(&self) {
        let shared = Arc::clone(&self.shared);
        let _ = blocking(move || {
            let list = {
                let mut state = lock(&shared.state);
                state.stopping = true;
                let mut list = TopicPartitionList::new();
                for (topic, partition) in state.partitions.keys() {
                    list.add_partition(topic, *partition);
                }
                list
            };
            shared.close();
            match shared.client() {
                Some(client) if list.count() > 0 => client.pause(&list),
                _ => Ok(()),
            }
        })
        .await;
    }

    /// Writes and commits what is done, and leaves the group, within 10 s.
    pub async fn close(&self) {
        self.stop_receiving().await;
        let deadline = tokio::time::Instant::now() + CLOSING;
        while self.shared.parking_open.load(Ordering::Acquire) > 0 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.shared.closing.store(true, Ordering::Release);
        let ended = lock(&self.ended).take();
        if let Some(ended) = ended
            && tokio::time::timeout_at(deadline, ended).await.is_err()
        {
            tracing::warn!(group = self.shared.options.group, "a consumer did not leave its group in time");
        }
        self.producer.close().await;
    }

    /// These records as consumed, to be committed with a transaction ([`CommitPolicy::ByTransaction`]): all records of their
    /// partitions up to the last of them. None if one of the partitions is not this member's any more.
    pub fn consumed(&self, deliveries: &[KafkaDelivery]) -> Option<ConsumedOffsets> {
        let client = self.shared.client()?;
        let state = lock(&self.shared.state);
        let mut next: BTreeMap<(&str, i32), i64> = BTreeMap::new();
        for KafkaDelivery { record, assignment, .. } in deliveries {
            let place = (Arc::clone(&record.topic), record.partition);
            state.partitions.get(&place).filter(|found| found.assignment == *assignment)?;
            let after = next.entry((&record.topic, record.partition)).or_default();
            *after = (record.offset + 1).max(*after);
        }
        drop(state);
        let offsets = next.into_iter().map(|((topic, partition), next)| (topic.to_owned(), partition, next)).collect();
        Some(ConsumedOffsets { offsets, membership: client.group_metadata()? })
    }

    /// While this is held, no partition is taken over: what is being committed is where it begins.
    pub(super) async fn hold_assignments(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.shared.assigning.lock().await
    }

    /// What it does now.
    pub fn status(&self) -> KafkaConsumerStatus {
        self.monitor().status()
    }

    /// What can be asked about it, also when it has ended.
    pub fn monitor(&self) -> KafkaMonitor {
        KafkaMonitor::new(Arc::clone(&self.shared))
    }
}

impl Drop for KafkaConsumer {
    /// Commits what is done and leaves the group, in the background. What is on its way elsewhere may be lost on the way, and is
    /// repeated then.
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        self.shared.commit_due.notify_one();
    }
}
