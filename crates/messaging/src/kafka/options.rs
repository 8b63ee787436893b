//! How the sink writes to topics, and which settings are not the user's.

use std::time::Duration;

use rdkafka::ClientConfig;

use super::cluster::{KafkaCluster, KafkaSettingsError, OwnSetting, milliseconds};

/// Settings of librdkafka that the sink's promises rest on, and what to do instead.
const OWN_SETTINGS: [OwnSetting; 10] = [
    ("partitioner", "`partitioner` says it"),
    ("delivery.timeout.ms", "`timeout` says it"),
    ("message.timeout.ms", "`timeout` says it"),
    ("acks", "a confirmed message is on all replicas that are in sync"),
    ("request.required.acks", "a confirmed message is on all replicas that are in sync"),
    ("enable.idempotence", "without it the messages of a key could change their order"),
    ("enable.gapless.guarantee", "one message that fails would end the producer"),
    ("transactional.id", "messages are published one by one"),
    ("produce.offset.report", "it has no effect here"),
    ("delivery.report.only.error", "each message has an answer"),
];

/// Where keys are placed as Java's and kafkajs' producers place them.
pub(super) const PARTITIONER: &str = "murmur2_random";

/// How topics are written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaSinkOptions {
    /// The cluster, and how to get in.
    pub cluster: KafkaCluster,
    /// How long a message may take, from the first try to the last answer.
    pub timeout: Duration,
    /// Which partition a key is in. The default, `murmur2_random`, is that of Java's producers.
    pub partitioner: String,
}

impl KafkaSinkOptions {
    /// The default settings for this cluster; 10 s for a message.
    pub fn new(cluster: impl Into<KafkaCluster>) -> Self {
        Self { cluster: cluster.into(), timeout: Duration::from_secs(10), partitioner: PARTITIONER.to_owned() }
    }

    /// Sets a setting of librdkafka.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.cluster = self.cluster.setting(name, value);
        self
    }

    pub(super) fn config(&self) -> Result<ClientConfig, KafkaSettingsError> {
        let mut config = self.cluster.config(&std::collections::BTreeMap::new(), &[&OWN_SETTINGS])?;
        if config.get("linger.ms").is_none() {
            // A wave of messages is there at once: waiting for more of them would only be a delay.
            config.set("linger.ms", "1");
        }
        config
            .set("partitioner", &self.partitioner)
            .set("delivery.timeout.ms", milliseconds(self.timeout)?)
            .set("acks", "all")
            .set("enable.idempotence", "true");
        Ok(config)
    }
}
