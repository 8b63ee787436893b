//! How topics are written to, and which settings are not the user's.

use std::{collections::BTreeMap, time::Duration};

use rdkafka::{ClientConfig, error::KafkaError};

/// Settings of librdkafka that the sink's promises rest on, and what to do instead.
const OWN_SETTINGS: [(&str, &str); 13] = [
    ("bootstrap.servers", "`brokers` says it"),
    ("metadata.broker.list", "`brokers` says it"),
    ("partitioner", "`partitioner` says it"),
    ("delivery.timeout.ms", "`timeout` says it"),
    ("message.timeout.ms", "`timeout` says it"),
    ("acks", "a confirmed message is on all replicas that are in sync"),
    ("request.required.acks", "a confirmed message is on all replicas that are in sync"),
    ("enable.idempotence", "without it the messages of a key could change their order"),
    ("enable.gapless.guarantee", "one message that fails would end the producer"),
    ("transactional.id", "messages are published one by one"),
    ("allow.auto.create.topics", "a topic that does not exist is refused"),
    ("produce.offset.report", "it has no effect here"),
    ("delivery.report.only.error", "each message has an answer"),
];

/// How topics are written to.
#[derive(Clone, PartialEq, Eq)]
pub struct KafkaSinkOptions {
    /// Where the cluster is: `host:port`, several with commas between them.
    pub brokers: String,
    /// How long a message may take, from the first try to the last answer.
    pub timeout: Duration,
    /// Which partition a key is in. The default, `murmur2_random`, is that of Java's producers.
    pub partitioner: String,
    /// Settings of librdkafka, as they are: `security.protocol`, `sasl.username`, `compression.type`. Those on which the
    /// sink's promises rest are refused.
    pub settings: BTreeMap<String, String>,
}

impl KafkaSinkOptions {
    /// The default settings for this cluster; 10 s for a message.
    pub fn new(brokers: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            timeout: Duration::from_secs(10),
            partitioner: "murmur2_random".to_owned(),
            settings: BTreeMap::new(),
        }
    }

    /// Sets a setting of librdkafka.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.insert(name.into(), value.into());
        self
    }

    pub(super) fn config(&self) -> Result<ClientConfig, KafkaSinkError> {
        if self.timeout.as_millis() == 0 || i32::try_from(self.timeout.as_millis()).is_err() {
            return Err(KafkaSinkError::Timeout(self.timeout));
        }
        let mut config = ClientConfig::new();
        // A wave of messages is there at once: waiting for more of them would only be a delay.
        config.set("linger.ms", "1");
        for (name, value) in &self.settings {
            if let Some((_, why)) = OWN_SETTINGS.iter().find(|(own, _)| own == name) {
                return Err(KafkaSinkError::Setting { name: name.clone(), why });
            }
            config.set(name, value);
        }
        config
            .set("bootstrap.servers", &self.brokers)
            .set("partitioner", &self.partitioner)
            .set("delivery.timeout.ms", self.timeout.as_millis().to_string())
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("allow.auto.create.topics", "false");
        Ok(config)
    }
}

impl std::fmt::Debug for KafkaSinkOptions {
    /// Without the values of settings, which may be passwords.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { brokers, timeout, partitioner, settings } = self;
        f.debug_struct("KafkaSinkOptions")
            .field("brokers", brokers)
            .field("timeout", timeout)
            .field("partitioner", partitioner)
            .field("settings", &settings.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// Why there can be no sink.
#[derive(Debug, thiserror::Error)]
pub enum KafkaSinkError {
    /// A setting is not the user's.
    #[error("the setting {name} can not be changed: {why}")]
    Setting {
        /// Which one.
        name: String,
        /// Why, or what to do instead.
        why: &'static str,
    },
    /// The timeout is invalid.
    #[error("a timeout is at least 1ms and at most 24 days, not {0:?}")]
    Timeout(Duration),
    /// librdkafka does not accept the settings.
    #[error("the settings of the Kafka client are not acceptable")]
    Client(#[source] KafkaError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_the_promises_rest_on_are_refused() {
        for (name, _) in OWN_SETTINGS {
            let options = KafkaSinkOptions::new("localhost:9092").setting(name, "1");
            assert!(matches!(options.config(), Err(KafkaSinkError::Setting { .. })), "{name}");
        }
        let options =
            KafkaSinkOptions::new("localhost:9092").setting("compression.type", "lz4").setting("linger.ms", "9");
        let config = options.config().unwrap();
        let expected = [
            ("compression.type", "lz4"),
            ("linger.ms", "9"),
            ("partitioner", "murmur2_random"),
            ("acks", "all"),
            ("enable.idempotence", "true"),
        ];
        for (name, value) in expected {
            assert_eq!(config.get(name), Some(value), "{name}");
        }
    }

    #[test]
    fn passwords_are_not_printed() {
        let options = KafkaSinkOptions::new("localhost:9092").setting("sasl.password", "secret");
        assert!(!format!("{options:?}").contains("secret"));
    }
}
