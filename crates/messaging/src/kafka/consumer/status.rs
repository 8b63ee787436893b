//! What a consumer does now, for whoever looks at it.

use std::{collections::BTreeMap, sync::Arc};

use super::shared::Shared;
use crate::kafka::client::lock;

/// What a consumer does now.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KafkaConsumerStatus {
    /// The group.
    pub group: String,
    /// Whether it runs, and nothing is wrong.
    pub healthy: bool,
    /// What is wrong for now.
    pub trouble: Option<String>,
    /// Records that were received and are not being handled yet, by topic.
    pub waiting: BTreeMap<String, usize>,
    /// Its partitions, by topic and number.
    pub partitions: Vec<PartitionStatus>,
}

/// What is known of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionStatus {
    /// The topic.
    pub topic: String,
    /// Its number.
    pub partition: i32,
    /// The offset to begin with next time: everything before it is done or parked.
    pub watermark: Option<i64>,
    /// The offset that the group has, as far as this member knows.
    pub committed: Option<i64>,
    /// How many offsets are between the watermark and the end of the partition. As old as 2 s.
    pub lag: Option<i64>,
    /// Records that were received and are neither done nor parked.
    pub in_flight: usize,
    /// Whether it is paused because it has enough in flight.
    pub paused: bool,
    /// Whether its parked records are still being loaded.
    pub loading: bool,
    /// Keys that failed and are retried.
    pub parked_keys: usize,
    /// Their records.
    pub parked_records: usize,
}

impl KafkaConsumerStatus {
    /// The lag of all partitions together, as far as it is known.
    pub fn lag(&self) -> i64 {
        self.partitions.iter().filter_map(|partition| partition.lag).sum()
    }
}

/// What can be asked about a consumer, also when it has ended.
#[derive(Debug, Clone)]
pub struct KafkaMonitor(Arc<Shared>);

impl KafkaMonitor {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// What the consumer does now.
    pub fn status(&self) -> KafkaConsumerStatus {
        status(&self.0)
    }

    /// How many records were received and are not being handled yet.
    pub fn waiting(&self) -> usize {
        lock(&self.0.state).waiting.values().sum()
    }

    /// Whether the consumer runs, and nothing is wrong.
    pub fn is_healthy(&self) -> bool {
        lock(&self.0.trouble).is_none() && !lock(&self.0.state).closed
    }

    /// How many records can wait: of each partition, as many as may be in flight.
    pub fn capacity(&self) -> usize {
        lock(&self.0.state).partitions.len().max(1).saturating_mul(self.0.options.max_in_flight.max(1))
    }
}

fn status(shared: &Shared) -> KafkaConsumerStatus {
    let trouble = lock(&shared.trouble).clone();
    let state = lock(&shared.state);
    let waiting = |topic: &String| (topic.clone(), state.waiting.get(topic.as_str()).copied().unwrap_or(0));
    let waiting = shared.options.topics.iter().map(waiting).collect();
    let mut partitions: Vec<_> = state
        .partitions
        .iter()
        .map(|((topic, partition), assigned)| PartitionStatus {
            topic: topic.to_string(),
            partition: *partition,
            watermark: assigned.watermark.committable(),
            committed: assigned.committed,
            lag: assigned.lag(),
            in_flight: assigned.watermark.unfinished(),
            paused: assigned.flow.is_paused(),
            loading: assigned.flow.is_held(),
            parked_keys: assigned.parked.keys(),
            parked_records: assigned.parked.len(),
        })
        .collect();
    partitions.sort_by(|one, other| (&one.topic, one.partition).cmp(&(&other.topic, other.partition)));
    KafkaConsumerStatus {
        group: shared.options.group.clone(),
        healthy: trouble.is_none() && !state.closed,
        trouble,
        waiting,
        partitions,
    }
}
