//! What librdkafka tells a consumer, and what it does then. All of it is called by the thread that polls.

use std::sync::{Arc, Weak};

use rdkafka::{
    ClientContext, Offset, Statistics, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, Consumer as _, ConsumerContext, RebalanceProtocol},
    error::{KafkaError, KafkaResult},
    types::RDKafkaRespErr,
};

use super::{
    StartAt, parking,
    shared::{Shared, parked_from},
    state::Place,
};
use crate::kafka::client::{lock, log, log_error};

/// How long the cluster may take to say where a partition begins. Then librdkafka asks by itself, for as long as it takes.
const ASKING: std::time::Duration = std::time::Duration::from_secs(5);

pub(super) struct GroupContext(pub(super) Weak<Shared>);

impl ClientContext for GroupContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        log_error(&error, reason);
    }

    fn stats(&self, statistics: Statistics) {
        let Some(shared) = self.0.upgrade() else { return };
        let mut state = lock(&shared.state);
        for (name, topic) in &statistics.topics {
            for (number, partition) in &topic.partitions {
                let end = if shared.options.read_uncommitted { partition.hi_offset } else { partition.ls_offset };
                let place = (state.topic(name), *number);
                if let Some(assigned) = state.partitions.get_mut(&place).filter(|_| end >= 0) {
                    assigned.end = Some(end);
                }
            }
        }
        shared.metrics.report(&state, &shared.options);
    }
}

impl ConsumerContext for GroupContext {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, error: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let cooperative = matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative);
        let Some(shared) = self.0.upgrade() else {
            let _ = if cooperative { consumer.incremental_unassign(list) } else { consumer.unassign() };
            return;
        };
        let places: Vec<Place> = {
            let mut state = lock(&shared.state);
            list.elements().iter().map(|element| (state.topic(element.topic()), element.partition())).collect()
        };
        let group = &*shared.options.group;
        let changed = match error {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => {
                tracing::info!(group, ?places, "partitions were assigned");
                assign(&shared, consumer, &places, list, cooperative)
            }
            _ => {
                if consumer.assignment_lost() {
                    shared.metrics.lost.increment(1);
                    shared.lose(&places);
                } else {
                    tracing::info!(group, ?places, "partitions are handed over");
                    shared.metrics.revoked.increment(1);
                    shared.hand_over(&places);
                }
                if cooperative { consumer.incremental_unassign(list) } else { consumer.unassign() }
            }
        };
        if let Err(error) = changed {
            tracing::error!(group, %error, ?places, "a rebalance was not carried out");
        }
    }
}

/// Takes over partitions: finds where they begin, and holds them until what is parked of them is loaded.
fn assign(
    shared: &Arc<Shared>,
    consumer: &BaseConsumer<GroupContext>,
    places: &[Place],
    list: &mut TopicPartitionList,
    cooperative: bool,
) -> KafkaResult<()> {
    shared.metrics.assigned.increment(1);
    let _turn = shared.begin_assigning();
    let begun = begin(shared, consumer, list);
    if let Err(error) = &begun {
        tracing::warn!(group = shared.options.group, %error, "the committed offsets are not known yet");
    }
    let parked = parking::topics_with_parked_records(shared, consumer, places);
    let (mut held, mut loads) = (TopicPartitionList::new(), Vec::new());
    for (element, place) in list.elements().iter().zip(places) {
        let assignment = parking::new_assignment();
        let start = element.offset().to_raw().filter(|offset| *offset >= 0);
        let committed = begun.as_ref().ok().and_then(|begun| begun.get(place));
        let hold = parked.contains(&place.0);
        lock(&shared.state).assign(place.clone(), assignment, start, committed.is_some(), hold);
        if hold {
            held.add_partition(&place.0, place.1);
            let from = committed.and_then(|metadata| parked_from(metadata));
            loads.push(parking::Load { place: place.clone(), assignment, from, before: start });
        }
    }
    if cooperative {
        consumer.incremental_assign(list)?
    } else {
        consumer.assign(list)?
    }
    // No record is read before this thread polls again.
    if lock(&shared.state).stopping {
        consumer.pause(list)?;
    } else if held.count() > 0 {
        consumer.pause(&held)?;
    }
    if !loads.is_empty() {
        let shared = Arc::clone(shared);
        shared.runtime.clone().spawn_blocking(move || parking::load(&shared, loads));
    }
    shared.trouble(None);
    Ok(())
}

/// Writes into the list where each partition begins. The metadata of those with a committed offset.
fn begin(
    shared: &Shared,
    consumer: &BaseConsumer<GroupContext>,
    list: &mut TopicPartitionList,
) -> KafkaResult<std::collections::HashMap<Place, String>> {
    let committed = consumer.committed_offsets(list.clone(), ASKING)?;
    let mut found = std::collections::HashMap::new();
    for mut element in list.elements() {
        let known = committed.find_partition(element.topic(), element.partition());
        // An offset that is not known is not one that is not there: a transaction may be about to decide it.
        known.as_ref().map_or(Ok(()), |known| known.error())?;
        if let Some(known) = known.filter(|known| matches!(known.offset(), Offset::Offset(_))) {
            element.set_offset(known.offset())?;
            let place = (lock(&shared.state).topic(element.topic()), element.partition());
            found.insert(place, known.metadata().to_owned());
            continue;
        }
        let (low, high) = consumer.fetch_watermarks(element.topic(), element.partition(), ASKING)?;
        let is_new = is_new(shared, consumer, element.topic(), element.partition())?;
        if is_new {
            tracing::warn!(
                topic = element.topic(),
                partition = element.partition(),
                "a topic has more partitions than before"
            );
        }
        let start = if is_new || shared.options.start == StartAt::Earliest { low } else { high };
        element.set_offset(Offset::Offset(start))?;
    }
    Ok(found)
}

/// Whether a partition was added while this consumer ran: what was written to it before it was found is not to be skipped.
fn is_new(shared: &Shared, consumer: &BaseConsumer<GroupContext>, topic: &str, partition: i32) -> KafkaResult<bool> {
    if let Some(count) = lock(&shared.partition_counts).get(topic) {
        return Ok(usize::try_from(partition).is_ok_and(|partition| partition >= *count));
    }
    let metadata = consumer.fetch_metadata(Some(topic), ASKING)?;
    let count = metadata.topics().first().map_or(0, |topic| topic.partitions().len());
    lock(&shared.partition_counts).insert(topic.to_owned(), count);
    Ok(false)
}
