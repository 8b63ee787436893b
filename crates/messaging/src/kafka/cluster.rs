//! Where a cluster is and how to get in: what producers, consumers and the sink have in common.
//!
//! Settings of librdkafka are passed through as they are. Those that a promise of this module rests on are not the user's: each
//! client has a list of them, with what to do instead.

use std::{collections::BTreeMap, path::Path, time::Duration};

use rdkafka::{ClientConfig, error::KafkaError};

/// A setting of librdkafka that is not the user's, and what to do instead.
pub(super) type OwnSetting = (&'static str, &'static str);

/// Those of every client.
const OF_ALL: [OwnSetting; 3] = [
    ("bootstrap.servers", "`brokers` says it"),
    ("metadata.broker.list", "`brokers` says it"),
    ("allow.auto.create.topics", "a topic that does not exist is refused, not created"),
];

/// Longer ones do not fit into librdkafka's milliseconds.
const MAX_TIMEOUT: Duration = Duration::from_millis(i32::MAX as u64);

/// A Kafka cluster, and how to get in.
///
/// TLS and SCRAM need the feature `kafka-tls`. PLAIN works without it, but sends the password as it is: only use it with TLS.
///
/// ```
/// use relais_messaging::kafka::{KafkaCluster, Sasl};
///
/// let cluster = KafkaCluster::new("kafka-1.example.org:9093,kafka-2.example.org:9093")
///     .tls()
///     .sasl(Sasl::ScramSha512, "orders", "secret")
///     .setting("client.id", "orders-1");
/// assert!(!format!("{cluster:?}").contains("secret"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct KafkaCluster {
    /// Where the cluster is: `host:port`, several with commas between them.
    pub brokers: String,
    /// Settings of librdkafka for every client of this cluster, as they are: `security.protocol`, `ssl.ca.location`,
    /// `client.id`. Those on which promises rest are refused.
    pub settings: BTreeMap<String, String>,
}

/// How a client proves who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sasl {
    /// The password is sent as it is.
    Plain,
    /// The password is not sent. Needs the feature `kafka-tls`, since librdkafka takes its hashes from OpenSSL.
    ScramSha256,
    /// Like `ScramSha256`, with the longer hash.
    ScramSha512,
}

impl KafkaCluster {
    /// The cluster with these brokers, without encryption and passwords.
    pub fn new(brokers: impl Into<String>) -> Self {
        Self { brokers: brokers.into(), settings: BTreeMap::new() }
    }

    /// Sets a setting of librdkafka for every client of this cluster.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.insert(name.into(), value.into());
        self
    }

    /// Connects by TLS. The broker's certificate must be signed by an authority that the system trusts, or by [`ca`](Self::ca).
    pub fn tls(self) -> Self {
        let protocol = if self.settings.contains_key("sasl.mechanism") { "sasl_ssl" } else { "ssl" };
        self.setting("security.protocol", protocol)
    }

    /// The file, in PEM, of the authorities that sign the brokers' certificates.
    pub fn ca(self, file: impl AsRef<Path>) -> Self {
        let file = file.as_ref().to_string_lossy().into_owned();
        self.setting("ssl.ca.location", file)
    }

    /// Signs in with a name and a password.
    pub fn sasl(self, mechanism: Sasl, user: impl Into<String>, password: impl Into<String>) -> Self {
        let is_tls = self.settings.get("security.protocol").is_some_and(|protocol| protocol.ends_with("ssl"));
        let mechanism = match mechanism {
            Sasl::Plain => "PLAIN",
            Sasl::ScramSha256 => "SCRAM-SHA-256",
            Sasl::ScramSha512 => "SCRAM-SHA-512",
        };
        self.setting("security.protocol", if is_tls { "sasl_ssl" } else { "sasl_plaintext" })
            .setting("sasl.mechanism", mechanism)
            .setting("sasl.username", user)
            .setting("sasl.password", password)
    }

    /// The configuration of a client, with settings of its own beside the cluster's.
    pub(super) fn config(
        &self,
        settings: &BTreeMap<String, String>,
        own: &[&[OwnSetting]],
    ) -> Result<ClientConfig, KafkaSettingsError> {
        let mut config = ClientConfig::new();
        for (name, value) in self.settings.iter().chain(settings) {
            if let Some((_, why)) = OF_ALL.iter().chain(own.iter().copied().flatten()).find(|(own, _)| own == name) {
                return Err(KafkaSettingsError::Own { name: name.clone(), why });
            }
            config.set(name, value);
        }
        config.set("bootstrap.servers", &self.brokers).set("allow.auto.create.topics", "false");
        Ok(config)
    }
}

impl From<&str> for KafkaCluster {
    fn from(brokers: &str) -> Self {
        Self::new(brokers)
    }
}

impl From<String> for KafkaCluster {
    fn from(brokers: String) -> Self {
        Self::new(brokers)
    }
}

impl From<&String> for KafkaCluster {
    fn from(brokers: &String) -> Self {
        Self::new(brokers)
    }
}

impl std::fmt::Debug for KafkaCluster {
    /// Without the values of settings, which may be passwords.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { brokers, settings } = self;
        f.debug_struct("KafkaCluster").field("brokers", brokers).field("settings", &names(settings)).finish()
    }
}

/// The names of settings, which may be printed.
pub(super) fn names(settings: &BTreeMap<String, String>) -> Vec<&String> {
    settings.keys().collect()
}

/// A timeout in librdkafka's words.
pub(super) fn milliseconds(timeout: Duration) -> Result<String, KafkaSettingsError> {
    if timeout < Duration::from_millis(1) || timeout > MAX_TIMEOUT {
        return Err(KafkaSettingsError::Timeout(timeout));
    }
    Ok(timeout.as_millis().to_string())
}

/// Why there can be no client with these settings.
#[derive(Debug, thiserror::Error)]
pub enum KafkaSettingsError {
    /// A setting is not the user's.
    #[error("the setting {name} can not be changed: {why}")]
    Own {
        /// Which one.
        name: String,
        /// Why, or what to do instead.
        why: &'static str,
    },
    /// librdkafka does not know a setting, or not such a value of it. The value is not repeated: it may be a password.
    #[error("the setting {name} is not acceptable: {why}")]
    Value {
        /// Which one.
        name: String,
        /// What librdkafka says.
        why: String,
    },
    /// A timeout is invalid.
    #[error("a timeout is at least 1ms and at most 24 days, not {0:?}")]
    Timeout(Duration),
    /// An option is invalid.
    #[error("{0}")]
    Option(String),
    /// librdkafka does not accept the settings together.
    #[error("the settings of the Kafka client are not acceptable")]
    Client(#[source] KafkaError),
}

impl KafkaSettingsError {
    pub(super) fn of_client(error: KafkaError) -> Self {
        match error {
            KafkaError::ClientConfig(_, why, name, value) if value.is_empty() => Self::Value { name, why },
            KafkaError::ClientConfig(_, why, name, value) => Self::Value { name, why: why.replace(&value, "…") },
            error => Self::Client(error),
        }
    }
}
