//! Parked records: written to a topic of their own before the watermark passes them, and read from there by the next owner of
//! their partition.
//!
//! The topic has the partitions of the original one. An entry's key names the record; a tombstone says that it is done. What
//! stands there counts only for records in front of the committed offset: the others come from their own topic again. So an
//! entry that was written too late, by an owner that had lost the partition, does no harm.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    error::{KafkaError, KafkaResult},
};
use tokio::sync::mpsc;

use super::{
    KafkaConsumerOptions,
    context::GroupContext,
    shared::Shared,
    state::{ParkingOrder, Place},
    topics::MissingTopics,
};
use crate::{
    kafka::{KafkaProducer, KafkaRecord, NewRecord, ProduceError, ProducerOptions, client::Logging, client::lock},
    offsets::EntryId,
};

const KEY: &str = "relais-parked-key";
const NO_VALUE: &str = "relais-parked-without-value";
const RETRIES: &str = "relais-parked-retries";
const OWN: [&str; 3] = [KEY, NO_VALUE, RETRIES];

/// How many are written at once.
const AT_ONCE: usize = 100;

/// How long the cluster may take to answer one question.
const ASKING: Duration = Duration::from_secs(10);

/// The longest pause between two tries.
const LONGEST: Duration = Duration::from_secs(10);

/// A partition whose parked records are to be loaded.
pub(super) struct Load {
    pub(super) place: Place,
    pub(super) assignment: u64,
    /// Where in the topic of parked records they begin, if the offset says so.
    pub(super) from: Option<i64>,
    /// The committed offset: records in front of it were parked, others will be read.
    pub(super) before: Option<i64>,
}

/// A name for the time in which a partition is ours.
pub(super) fn new_assignment() -> u64 {
    // Without random numbers there is no other program that works either; a clock is better than nothing.
    getrandom::u64().unwrap_or_else(|_| {
        std::time::UNIX_EPOCH.elapsed().map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    })
}

/// The entry of a record.
fn entry(record: &KafkaRecord, id: EntryId, topic: &str) -> NewRecord {
    let mut entry = NewRecord { partition: Some(record.partition), ..record.copy_to(topic) };
    entry.key = Some(id.to_key().into());
    if let Some(key) = &record.key {
        entry.headers.push((KEY.to_owned(), Some(key.clone())));
    }
    if record.value.is_none() {
        // An entry without a value would be a tombstone.
        entry.value = Some(Bytes::new());
        entry.headers.push((NO_VALUE.to_owned(), None));
    }
    entry.headers.push((RETRIES.to_owned(), Some(record.retry_count.to_string().into())));
    entry
}

/// The record of an entry.
fn parked_record(mut entry: KafkaRecord, topic: &Arc<str>, id: EntryId) -> KafkaRecord {
    entry.key = entry.header(KEY).map(Bytes::copy_from_slice);
    if entry.headers.iter().any(|(name, _)| name == NO_VALUE) {
        entry.value = None;
    }
    let retries = entry.header(RETRIES).and_then(|retries| std::str::from_utf8(retries).ok()?.parse().ok());
    entry.retry_count = retries.unwrap_or(0);
    entry.headers.retain(|(name, _)| !OWN.contains(&name.as_str()));
    KafkaRecord { topic: Arc::clone(topic), offset: id.offset, ..entry }
}

/// Those topics of these partitions for which there is a topic of parked records. If nobody knows, it may be there.
pub(super) fn topics_with_parked_records(
    shared: &Shared,
    consumer: &BaseConsumer<GroupContext>,
    places: &[Place],
) -> HashSet<Arc<str>> {
    if shared.options.max_parked == 0 {
        return HashSet::new();
    }
    let topics: HashSet<Arc<str>> = places.iter().map(|(topic, _)| Arc::clone(topic)).collect();
    topics.into_iter().filter(|topic| partitions(shared, consumer, topic).is_none_or(|count| count > 0)).collect()
}

/// How many partitions the topic of parked records has; 0 where there is none, none if nobody says.
fn partitions(shared: &Shared, consumer: &BaseConsumer<GroupContext>, topic: &str) -> Option<i32> {
    let name = shared.options.parked_topic_of(topic);
    let metadata = consumer.fetch_metadata(Some(&name), ASKING).ok()?;
    let found = metadata.topics().iter().find(|found| found.name() == name && found.error().is_none());
    Some(found.map_or(0, |found| i32::try_from(found.partitions().len()).unwrap_or(i32::MAX)))
}

/// Loads what is parked, for as long as that takes, and lets go of the partitions.
pub(super) fn load(shared: &Arc<Shared>, mut loads: Vec<Load>) {
    let mut pause = Duration::from_millis(100);
    while !loads.is_empty() && !shared.closing.load(Ordering::Acquire) {
        loads.retain(|load| match load_one(shared, load) {
            Ok(Some((records, end))) => {
                shared.change(|state, options| state.load(&load.place, load.assignment, records, end, options));
                false
            }
            Ok(None) => false,
            Err(error) => {
                shared.trouble(Some(format!("the parked records of {:?} can not be read: {error}", load.place)));
                true
            }
        });
        if loads.is_empty() {
            shared.trouble(None);
            return;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST);
    }
}

type Loaded = (Vec<(KafkaRecord, Vec<(EntryId, i64)>)>, i64);

/// What is parked of a partition, and where the topic ends. None if the partition is not ours any more.
fn load_one(shared: &Shared, load: &Load) -> KafkaResult<Option<Loaded>> {
    let Some(client) = shared.client() else { return Ok(None) };
    let is_ours = |state: &super::state::State| {
        state.partitions.get(&load.place).is_some_and(|found| found.assignment == load.assignment)
    };
    if !is_ours(&lock(&shared.state)) {
        return Ok(None);
    }
    let (topic, partition) = &load.place;
    let name = shared.options.parked_topic_of(topic);
    let known = partitions(shared, &client, topic).ok_or(KafkaError::NoMessageReceived)?;
    // Without an offset that is committed, nothing was passed.
    let Some(before) = load.before.filter(|_| known > *partition) else { return Ok(Some((Vec::new(), 0))) };
    let (low, high) = client.fetch_watermarks(&name, *partition, ASKING)?;
    let from = load.from.unwrap_or(low).max(low);
    let mut found: BTreeMap<EntryId, (i64, KafkaRecord)> = BTreeMap::new();
    read(&shared.options, &name, *partition, from, high, |record| {
        let Some(id) = record.key.as_deref().and_then(EntryId::from_key).filter(|id| id.offset < before) else {
            return;
        };
        if record.value.is_some() {
            found.insert(id, (record.offset, record));
        } else {
            found.remove(&id);
        }
    })?;
    let mut records: Vec<(KafkaRecord, Vec<(EntryId, i64)>)> = Vec::new();
    for (id, (kept, record)) in found {
        match records.last_mut().filter(|(last, _)| last.offset == id.offset) {
            Some((_, entries)) => entries.push((id, kept)),
            None => records.push((parked_record(record, topic, id), vec![(id, kept)])),
        }
    }
    Ok(Some((records, high)))
}

/// Reads a part of a partition.
fn read(
    options: &KafkaConsumerOptions,
    topic: &str,
    partition: i32,
    from: i64,
    to: i64,
    mut each: impl FnMut(KafkaRecord),
) -> KafkaResult<()> {
    if from >= to {
        return Ok(());
    }
    let mut config: ClientConfig =
        options.cluster.config(&BTreeMap::new(), &[]).map_err(|error| KafkaError::ClientCreation(error.to_string()))?;
    // It is in no group: a name is needed to read at all.
    config.set("group.id", &options.group).set("enable.auto.commit", "false").set("enable.partition.eof", "true");
    let reader: BaseConsumer<Logging> = config.create_with_context(Logging)?;
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, partition, Offset::Offset(from))?;
    reader.assign(&list)?;
    let name: Arc<str> = topic.into();
    loop {
        match reader.poll(ASKING) {
            Some(Ok(message)) => {
                let last = message.offset() + 1 >= to;
                each(KafkaRecord::read(Arc::clone(&name), &message));
                if last {
                    return Ok(());
                }
            }
            // The last ones were compacted.
            Some(Err(KafkaError::PartitionEOF(_))) => return Ok(()),
            Some(Err(error)) => return Err(error),
            None => return Err(KafkaError::NoMessageReceived),
        }
    }
}

/// Carries out parking orders, until the consumer is gone.
pub(super) async fn write(
    shared: Weak<Shared>,
    producer: Arc<KafkaProducer>,
    topics: Arc<MissingTopics>,
    mut orders: mpsc::UnboundedReceiver<ParkingOrder>,
) {
    let mut batch = Vec::new();
    while orders.recv_many(&mut batch, AT_ONCE).await > 0 {
        let mut pause = Duration::from_millis(100);
        while !batch.is_empty() {
            let Some(shared) = shared.upgrade() else { return };
            batch = write_batch(&shared, &producer, &topics, std::mem::take(&mut batch)).await;
            if !batch.is_empty() {
                // The watermark waits with the records that could not be written.
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST);
            }
        }
    }
}

/// Writes what is still ours. Returns what could not be written.
async fn write_batch(
    shared: &Arc<Shared>,
    producer: &KafkaProducer,
    topics: &MissingTopics,
    orders: Vec<ParkingOrder>,
) -> Vec<ParkingOrder> {
    let (ours, others): (Vec<_>, Vec<_>) = {
        let state = lock(&shared.state);
        let is_ours = |order: &ParkingOrder| match order {
            ParkingOrder::Keep { place, id, .. } => {
                state.partitions.get(place).is_some_and(|found| found.assignment == id.assignment)
            }
            // It is done, whoever has the partition now.
            ParkingOrder::Remove { .. } => true,
        };
        orders.into_iter().partition(is_ours)
    };
    finished(shared, others.len());
    let records = ours.iter().map(|order| match order {
        ParkingOrder::Keep { place, id, record } => entry(record, *id, &shared.options.parked_topic_of(&place.0)),
        ParkingOrder::Remove { place, id } => {
            NewRecord::tombstone(shared.options.parked_topic_of(&place.0), id.to_key()).with_partition(place.1)
        }
    });
    let answers = producer.send_all(records.collect()).await;
    let mut again = Vec::new();
    for (order, answer) in ours.into_iter().zip(answers) {
        let place = match &order {
            ParkingOrder::Keep { place, .. } | ParkingOrder::Remove { place, .. } => place,
        };
        match answer {
            Ok(delivered) => {
                if let ParkingOrder::Keep { id, .. } = &order {
                    let kept = delivered.offset.unwrap_or(0);
                    shared.change(|state, options| state.kept(place, *id, kept, options));
                }
                finished(shared, 1);
            }
            Err(ProduceError::Closed) => finished(shared, 1),
            Err(error) => {
                if matches!(error, ProduceError::Refused { .. }) && shared.options.create_topics {
                    topics.create_parked(shared, &place.0).await;
                }
                if shared.closing.load(Ordering::Acquire) {
                    finished(shared, 1);
                    continue;
                }
                let group = &*shared.options.group;
                let why = crate::kafka::client::chain(&error);
                tracing::warn!(group, ?place, why, "a parked record could not be written; it is tried again");
                again.push(order);
            }
        }
    }
    again
}

fn finished(shared: &Shared, orders: usize) {
    shared.parking_open.fetch_sub(orders as u64, Ordering::AcqRel);
}

/// The settings of the producer of parked records and dead letters.
pub(super) fn producer_options(options: &KafkaConsumerOptions) -> ProducerOptions {
    ProducerOptions { timeout: ASKING, ..ProducerOptions::new(options.cluster.clone()) }.setting("linger.ms", "1")
}
