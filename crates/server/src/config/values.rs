//! The kinds of values that settings have, where a text or a number would say too little.
//!
//! What is secret is masked wherever it is shown, `Debug` included, so that no log line or error can give it away; the
//! code that needs it asks for it by name (`expose`). Nothing here knows where a value came from.

use std::{fmt, net::SocketAddr, str::FromStr};

use relais_engine::OperatorRole;
use relais_store::EncryptionKey;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// What stands in place of a secret.
pub const MASK: &str = "***";

/// A text that is never shown.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text that is not to be shown.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "" } else { MASK })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Somebody who may look or act: `name:role:token`. Shown without the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorEntry {
    /// Who.
    pub name: String,
    /// What they may do.
    pub role: OperatorRole,
    /// By which they are known.
    pub token: Secret,
}

impl FromStr for OperatorEntry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Never with the text: it has a token in it.
        let expected = || "expected \"name:role:token\", with a role of read-only, operator or admin".to_owned();
        let mut parts = text.splitn(3, ':');
        let (Some(name), Some(role), Some(token)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(expected());
        };
        let role = OperatorRole::parse(role).ok_or_else(expected)?;
        let plain = |c: char| c.is_alphanumeric() || "-_.@".contains(c);
        let taken = ["admin", "local"].contains(&name.to_lowercase().as_str());
        if name.is_empty() || name.len() > 100 || !name.chars().all(plain) || taken {
            return Err("expected a name of letters, digits and -_.@, other than admin and local".to_owned());
        }
        if token.chars().count() < 16 {
            return Err(format!(
                "expected a token of at least 16 characters for {name}; `openssl rand -hex 32` makes one"
            ));
        }
        Ok(Self { name: name.to_owned(), role, token: Secret::new(token) })
    }
}

impl<'de> Deserialize<'de> for OperatorEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl Serialize for OperatorEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}:{}:{MASK}", self.name, self.role))
    }
}

/// Where the store is. Shown without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    /// The whole of it, password included.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether it is a SQLite file, which one process has for itself.
    pub fn is_sqlite(&self) -> bool {
        self.0.starts_with("sqlite:")
    }
}

impl FromStr for DatabaseUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = ["sqlite:", "postgres://", "postgresql://"];
        match known.iter().any(|scheme| text.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty())) {
            true => Ok(Self(text.to_owned())),
            false => Err("expected `sqlite:<file>` or `postgres://<user>:<password>@<host>/<database>`".to_owned()),
        }
    }
}

/// Where the broker is; empty if there is none. Shown without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct BrokerUrl(String);

impl BrokerUrl {
    /// The whole of it, password included.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for BrokerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.is_empty() || ["amqp://", "amqps://"].iter().any(|scheme| text.starts_with(scheme)) {
            true => Ok(Self(text.to_owned())),
            false => Err("expected `amqp://<user>:<password>@<host>:5672/<vhost>`, or amqps".to_owned()),
        }
    }
}

/// Where the broker's management API is; empty if it is not used. Shown without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct ManagementUrl(String);

impl ManagementUrl {
    /// The whole of it, password included.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for ManagementUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.is_empty() || ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme)) {
            true => Ok(Self(text.to_owned())),
            false => Err("expected `http://<user>:<password>@<host>:15672`, or https".to_owned()),
        }
    }
}

/// Where Redis is; empty if that is not said by a URL. Shown without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl(String);

impl RedisUrl {
    /// The whole of it, password included.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for RedisUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.is_empty() || ["redis://", "rediss://"].iter().any(|scheme| text.starts_with(scheme)) {
            true => Ok(Self(text.to_owned())),
            false => Err("expected `redis://<user>:<password>@<host>:6379/<database>`, or rediss for TLS".to_owned()),
        }
    }
}

/// Read from a text, shown without its password.
macro_rules! shown_without_password {
    ($($url:ident),*) => {
        $(impl fmt::Display for $url {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&mask_url(&self.0))
            }
        }

        impl fmt::Debug for $url {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.to_string())
            }
        }

        impl Serialize for $url {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $url {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        })*
    };
}

shown_without_password!(DatabaseUrl, BrokerUrl, ManagementUrl, RedisUrl);

/// The URL with its passwords masked. Works on what is not a valid URL too, and then rather masks too much.
pub fn mask_url(url: &str) -> String {
    let (start, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    // The last `@`: a password that should have been escaped may contain one.
    let rest = match rest.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((name, _)) => format!("{name}:{MASK}@{host}"),
            None => rest.to_owned(),
        },
        None => rest.to_owned(),
    };
    let Some((path, query)) = rest.split_once('?') else {
        return start + &rest;
    };
    let query: Vec<String> = query
        .split('&')
        .map(|pair| match pair.split_once('=') {
            Some((name, _)) if name.to_lowercase().contains("password") => format!("{name}={MASK}"),
            _ => pair.to_owned(),
        })
        .collect();
    format!("{start}{path}?{}", query.join("&"))
}

/// Reads where to listen, and says what was expected.
pub fn listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    String::deserialize(deserializer)?
        .parse()
        .map_err(|_| D::Error::custom("expected an address and a port, like 127.0.0.1:8080 or [::]:8080"))
}

/// Reads ports, which stand in a list of texts like all lists.
pub fn ports<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u16>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let port = |text: String| text.parse().ok().filter(|port| *port > 0);
    texts.into_iter().map(|text| port(text).ok_or_else(|| D::Error::custom("expected ports, like \"443\""))).collect()
}

/// The other way round.
pub fn show_ports<S: serde::Serializer>(ports: &[u16], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(ports.iter().map(u16::to_string))
}

/// Reads encryption keys. No error has a key in it.
pub fn encryption_keys<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<EncryptionKey>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
}

/// The other way round, without the keys.
pub fn mask_keys<S: serde::Serializer>(keys: &[EncryptionKey], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(keys.iter().map(|_| MASK))
}

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Answers HTTP.
    Api,
    /// Gives the tasks of silent workers to others.
    Rescue,
    /// Removes what is too old.
    Purge,
    /// Sends callbacks.
    Callbacks,
    /// Publishes tasks to the broker.
    Dispatch,
    /// Follows what workers say by way of the broker.
    Track,
    /// Makes the runs of schedules.
    Schedule,
    /// Publishes the outboxes.
    Relay,
    /// Sends notifications again, and purges them.
    Notifications,
    /// The old name of `callbacks`: accepted, with a warning.
    #[value(hide = true)]
    Notify,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Api,
        Self::Rescue,
        Self::Purge,
        Self::Callbacks,
        Self::Dispatch,
        Self::Track,
        Self::Schedule,
        Self::Relay,
        Self::Notifications,
    ];

    /// As it stands in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Rescue => "rescue",
            Self::Purge => "purge",
            Self::Callbacks => "callbacks",
            Self::Notify => "notify",
            Self::Dispatch => "dispatch",
            Self::Track => "track",
            Self::Schedule => "schedule",
            Self::Relay => "relay",
            Self::Notifications => "notifications",
        }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people on a terminal, for programs otherwise.
    Auto,
    /// For people.
    Human,
    /// For programs: one JSON object per line.
    Json,
}

impl LogFormat {
    /// As it stands in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Human => "human",
            Self::Json => "json",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_a_url_are_masked_wherever_they_stand() {
        for (url, shown) in [
            ("sqlite:relais.db", "sqlite:relais.db"),
            ("postgres://u@h/db", "postgres://u@h/db"),
            ("postgres://u:secret@h:5432/db", "postgres://u:***@h:5432/db"),
            ("postgres://u:se/c@ret@h/db", "postgres://u:***@h/db"),
            ("postgres://h/db?user=u&password=secret&a=b", "postgres://h/db?user=u&password=***&a=b"),
            ("u:secret@h/db", "u:***@h/db"),
        ] {
            assert_eq!(mask_url(url), shown);
        }
    }

    #[test]
    fn debug_does_not_show_secrets() {
        let url: DatabaseUrl = "postgres://u:hidden@h/db".parse().unwrap();
        let shown = format!("{:?} {:?} {url}", Secret::new("hidden"), url);
        assert!(!shown.contains("hidden"), "{shown}");
        assert_eq!(format!("{}", Secret::default()), "");
    }

    #[test]
    fn only_databases_that_there_are_are_taken() {
        for url in ["mysql://h/db", "sqlite:", "relais.db", ""] {
            assert!(url.parse::<DatabaseUrl>().is_err(), "{url}");
        }
    }
}
