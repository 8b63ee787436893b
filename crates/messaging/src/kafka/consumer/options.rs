//! How a group consumes topics, and which settings are not the user's.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use rdkafka::ClientConfig;

use super::super::{
    KafkaRecord,
    client::is_topic_name,
    cluster::{KafkaCluster, KafkaSettingsError, OwnSetting, milliseconds, names},
};
use crate::offsets::FlowLimits;

/// Settings of librdkafka that a consumer's promises rest on.
const OWN_SETTINGS: [OwnSetting; 12] = [
    ("group.id", "`group` says it"),
    ("group.instance.id", "`instance_id` says it"),
    ("enable.auto.commit", "offsets are committed when records are done"),
    ("auto.commit.enable", "offsets are committed when records are done"),
    ("auto.commit.interval.ms", "`commit` says it"),
    ("enable.auto.offset.store", "offsets are committed when records are done"),
    ("auto.offset.reset", "`start` says it"),
    ("isolation.level", "`read_uncommitted` says it"),
    ("session.timeout.ms", "`session_timeout` says it"),
    ("heartbeat.interval.ms", "`heartbeat` says it"),
    ("enable.partition.eof", "the end of a partition is no record"),
    ("statistics.interval.ms", "the lag is taken from statistics"),
];

/// Where a group begins with a partition that it has never read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartAt {
    /// At its end. The place is committed at once, so that a restart skips nothing.
    #[default]
    Latest,
    /// At its beginning.
    Earliest,
}

/// When offsets are committed. But for `ByTransaction`, they are committed when partitions are handed over and at the end, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitPolicy {
    /// As soon as the watermark of a partition moves.
    Each,
    /// When [`KafkaConsumer::commit`](super::KafkaConsumer::commit) is called.
    ByHand,
    /// Never by the consumer: with the transactions of a producer
    /// ([`KafkaConsumer::consumed`](super::KafkaConsumer::consumed)).
    ByTransaction,
    /// When so many records are done, or that time has passed, whatever comes first.
    Batched {
        /// How many records.
        records: usize,
        /// How long.
        after: Duration,
    },
}

/// What orders a record, if it is not its own key.
pub type RecordKey = Arc<dyn Fn(&KafkaRecord) -> Option<String> + Send + Sync>;

/// How a group consumes topics.
#[derive(Clone)]
#[non_exhaustive]
pub struct KafkaConsumerOptions {
    /// The cluster, and how to get in.
    pub cluster: KafkaCluster,
    /// The group. Its members share the partitions.
    pub group: String,
    /// The topics.
    pub topics: Vec<String>,
    /// A name of this member that survives a restart (static membership): it gets its partitions back without a rebalance,
    /// if it is back within the session timeout.
    pub instance_id: Option<String>,
    /// Where to begin with partitions that the group has never read. At their end, unless set.
    pub start: StartAt,
    /// Also records of transactions that were not committed. Not, unless set.
    pub read_uncommitted: bool,
    /// After how long without a heartbeat a member is dead. 30 s unless set.
    pub session_timeout: Duration,
    /// How often it sends one. 3 s unless set.
    pub heartbeat: Duration,
    /// When offsets are committed. Every 1,000 records or every second, unless set.
    pub commit: CommitPolicy,
    /// How many records of a partition may be received and neither done nor parked. Then the partition is paused. 1,000
    /// unless set.
    pub max_in_flight: usize,
    /// How many records of a partition a crash may repeat at most. Then the partition is paused. 10,000 unless set.
    pub max_uncommitted: usize,
    /// How many records of a partition may be parked. Those beyond stay in flight. 1,000 unless set; 0: none is parked.
    pub max_parked: usize,
    /// How long a handler may hold up the hand-over of its partition. Then it is repeated by the next owner. 10 s unless set.
    pub revoke_timeout: Duration,
    /// Whether topics for dead letters and parked records are created where they are missing. They are, unless set.
    pub create_topics: bool,
    /// The topic for dead letters of a topic; `{topic}` stands for that. `dlq.{topic}` unless set.
    pub dead_letter_topic: String,
    /// What orders a record, if it is not its own key.
    pub key: Option<RecordKey>,
    /// Settings of librdkafka for this consumer: `fetch.min.bytes`, `partition.assignment.strategy`.
    pub settings: BTreeMap<String, String>,
}

impl KafkaConsumerOptions {
    /// A member of this group, for these topics.
    pub fn new<T: Into<String>>(
        cluster: impl Into<KafkaCluster>,
        group: impl Into<String>,
        topics: impl IntoIterator<Item = T>,
    ) -> Self {
        Self {
            cluster: cluster.into(),
            group: group.into(),
            topics: topics.into_iter().map(Into::into).collect(),
            instance_id: None,
            start: StartAt::Latest,
            read_uncommitted: false,
            session_timeout: Duration::from_secs(30),
            heartbeat: Duration::from_secs(3),
            commit: CommitPolicy::Batched { records: 1_000, after: Duration::from_secs(1) },
            max_in_flight: 1_000,
            max_uncommitted: 10_000,
            max_parked: 1_000,
            revoke_timeout: Duration::from_secs(10),
            create_topics: true,
            dead_letter_topic: "dlq.{topic}".to_owned(),
            key: None,
            settings: BTreeMap::new(),
        }
    }

    /// Sets a setting of librdkafka for this consumer.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.insert(name.into(), value.into());
        self
    }

    /// The topic for the dead letters of a topic.
    pub fn dead_letter_topic_of(&self, topic: &str) -> String {
        self.dead_letter_topic.replace("{topic}", topic)
    }

    /// Whether such a topic is one for dead letters.
    pub(crate) fn is_dead_letter_topic(&self, topic: &str) -> bool {
        let (before, behind) = self.dead_letter_topic.split_once("{topic}").unwrap_or((&self.dead_letter_topic, ""));
        topic.len() >= before.len() + behind.len() && topic.starts_with(before) && topic.ends_with(behind)
    }

    /// The topic for the parked records of a topic.
    pub fn parked_topic_of(&self, topic: &str) -> String {
        format!("parked.{}.{topic}", self.group)
    }

    pub(super) fn limits(&self) -> FlowLimits {
        FlowLimits { unfinished: self.max_in_flight.max(1), ahead: self.max_uncommitted.max(1) }
    }

    /// Whether there can be a consumer with these.
    pub(crate) fn check(&self) -> Result<(), KafkaSettingsError> {
        self.config().map(drop)
    }

    pub(super) fn config(&self) -> Result<ClientConfig, KafkaSettingsError> {
        if self.group.is_empty() || self.topics.is_empty() {
            return Err(KafkaSettingsError::Option("a consumer needs a group and a topic".to_owned()));
        }
        for topic in &self.topics {
            let more = [self.dead_letter_topic_of(topic), self.parked_topic_of(topic)];
            // The parked records of a topic are never written where nothing may be parked.
            let more = more.iter().take(if self.max_parked == 0 { 1 } else { 2 });
            if let Some(bad) = [topic].into_iter().chain(more).find(|name| !is_topic_name(name)) {
                return Err(KafkaSettingsError::Option(format!("{bad:?} is not the name of a topic")));
            }
        }
        let mut config = self.cluster.config(&self.settings, &[&OWN_SETTINGS])?;
        for (name, value) in [("partition.assignment.strategy", "cooperative-sticky"), ("queued.min.messages", "10000")]
        {
            if config.get(name).is_none() {
                config.set(name, value);
            }
        }
        if let Some(instance) = &self.instance_id {
            config.set("group.instance.id", instance);
        }
        config
            .set("group.id", &self.group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", if self.start == StartAt::Latest { "latest" } else { "earliest" })
            .set("isolation.level", if self.read_uncommitted { "read_uncommitted" } else { "read_committed" })
            .set("session.timeout.ms", milliseconds(self.session_timeout)?)
            .set("heartbeat.interval.ms", milliseconds(self.heartbeat)?)
            .set("statistics.interval.ms", "2000");
        Ok(config)
    }
}

impl fmt::Debug for KafkaConsumerOptions {
    /// Without the values of settings, which may be passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaConsumerOptions")
            .field("cluster", &self.cluster)
            .field("group", &self.group)
            .field("topics", &self.topics)
            .field("settings", &names(&self.settings))
            .finish_non_exhaustive()
    }
}
