//! A consumer's numbers, by group and topic: labels of which there are few.

use std::collections::BTreeMap;

use metrics::{Counter, Gauge, Unit, counter, gauge};

use super::{KafkaConsumerOptions, state::State};

pub(super) struct ConsumerMetrics {
    pub(super) commits: Counter,
    pub(super) commit_errors: Counter,
    pub(super) assigned: Counter,
    pub(super) revoked: Counter,
    pub(super) lost: Counter,
    partitions: Gauge,
    paused: Gauge,
    parked_keys: Gauge,
    parked_records: Gauge,
}

impl ConsumerMetrics {
    pub(super) fn new(group: &str) -> Self {
        describe();
        let group = || group.to_owned();
        let rebalances =
            |kind: &'static str| counter!("kafka_consumer_rebalances_total", "group" => group(), "kind" => kind);
        Self {
            commits: counter!("kafka_consumer_commits_total", "group" => group()),
            commit_errors: counter!("kafka_consumer_commit_errors_total", "group" => group()),
            assigned: rebalances("assigned"),
            revoked: rebalances("revoked"),
            lost: rebalances("lost"),
            partitions: gauge!("kafka_consumer_partitions", "group" => group()),
            paused: gauge!("kafka_consumer_paused_partitions", "group" => group()),
            parked_keys: gauge!("kafka_consumer_parked_keys", "group" => group()),
            parked_records: gauge!("kafka_consumer_parked_records", "group" => group()),
        }
    }

    /// What is true now.
    pub(super) fn report(&self, state: &State, options: &KafkaConsumerOptions) {
        let all = || state.partitions.values();
        self.partitions.set(all().count() as f64);
        self.paused.set(all().filter(|assigned| assigned.flow.is_paused()).count() as f64);
        self.parked_keys.set(all().map(|assigned| assigned.parked.keys()).sum::<usize>() as f64);
        self.parked_records.set(all().map(|assigned| assigned.parked.len()).sum::<usize>() as f64);
        let mut lags: BTreeMap<&str, i64> = options.topics.iter().map(|topic| (topic.as_str(), 0)).collect();
        for ((topic, _), assigned) in &state.partitions {
            if let Some(lag) = lags.get_mut(&**topic) {
                *lag += assigned.lag().unwrap_or(0);
            }
        }
        for (topic, lag) in lags {
            let labels = [("group", options.group.clone()), ("topic", topic.to_owned())];
            gauge!("kafka_consumer_lag", &labels).set(lag as f64);
        }
    }
}

fn describe() {
    metrics::describe_gauge!(
        "kafka_consumer_lag",
        Unit::Count,
        "Records of a topic that a group has not done, in the partitions of this process"
    );
    metrics::describe_gauge!("kafka_consumer_partitions", Unit::Count, "Partitions of this process");
    metrics::describe_gauge!(
        "kafka_consumer_paused_partitions",
        Unit::Count,
        "Partitions that are paused because they have enough in flight"
    );
    metrics::describe_gauge!("kafka_consumer_parked_keys", Unit::Count, "Keys that failed and are retried");
    metrics::describe_gauge!("kafka_consumer_parked_records", Unit::Count, "Records of parked keys");
    metrics::describe_counter!("kafka_consumer_commits_total", Unit::Count, "Commits of offsets");
    metrics::describe_counter!("kafka_consumer_commit_errors_total", Unit::Count, "Commits of offsets that failed");
    metrics::describe_counter!(
        "kafka_consumer_rebalances_total",
        Unit::Count,
        "Partitions assigned, handed over or lost"
    );
}
