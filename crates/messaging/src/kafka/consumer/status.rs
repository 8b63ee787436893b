//! What a consumer does now, for whoever looks at it.

use std::sync::atomic::Ordering;

use super::shared::Shared;
use crate::kafka::client::lock;

/// What a consumer does now.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KafkaConsumerStatus {
    /// The group.
    pub group: String,
    /// Whether it has joined the group, and nothing is wrong.
    pub healthy: bool,
    /// What is wrong for now.
    pub trouble: Option<String>,
    /// Records that were received and are not being handled yet.
    pub waiting: usize,
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

pub(super) fn status(shared: &Shared) -> KafkaConsumerStatus {
    let trouble = lock(&shared.trouble).clone();
    let state = lock(&shared.state);
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
        healthy: trouble.is_none() && shared.joined.load(Ordering::Acquire) && !state.closed,
        trouble,
        waiting: state.waiting,
        partitions,
    }
}
