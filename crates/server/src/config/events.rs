//! The settings of the event bus and of Redis, and the environment variables that other programs know them by.

use relais_protocol::HumanDuration;
use reqwest::Url;
use serde::{Deserialize, Serialize};

use super::{
    Config,
    values::{RedisUrl, Secret},
};

/// Variables that are settings under another name than ours, as deployments have them already.
pub const ALIASES: [(&str, &str); 11] = [
    ("EVENTBUS_ENABLED", "events.enabled"),
    ("EVENTBUS_MODE", "events.mode"),
    ("EVENTBUS_QUEUE_CAPACITY", "events.queue_capacity"),
    ("EVENTBUS_OFFER_TIMEOUT", "events.offer_timeout"),
    ("REDIS_URL", "redis.url"),
    ("REDIS_HOST", "redis.host"),
    ("REDIS_PORT", "redis.port"),
    ("REDIS_USERNAME", "redis.username"),
    ("REDIS_PASSWORD", "redis.password"),
    ("REDIS_DB", "redis.db"),
    ("REDIS_TLS", "redis.tls"),
];

/// What a variable says in our words; none if it is not meant for us.
pub fn alias_value(key: &str, text: &str) -> Option<String> {
    match key {
        // Elsewhere a number is in milliseconds.
        "events.offer_timeout" if text.trim().parse::<u64>().is_ok() => Some(format!("{}ms", text.trim())),
        _ if is_service_link(key, text) => None,
        _ => Some(text.to_owned()),
    }
}

/// Kubernetes gives pods `REDIS_PORT=tcp://10.0.0.1:6379` if there is a service called `redis`, and `RELAIS_REDIS_PORT` for
/// one called `relais-redis`.
pub fn is_service_link(key: &str, text: &str) -> bool {
    key == "redis.port" && text.starts_with("tcp://")
}

/// The event bus.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsConfig {
    /// Whether there is one.
    pub enabled: bool,
    /// What carries events between processes.
    pub mode: EventsMode,
    /// How many events can wait for a subscriber.
    pub queue_capacity: usize,
    /// How long a full queue is waited for.
    pub offer_timeout: HumanDuration,
    /// When tasks' events are published.
    pub publish: EventsPublish,
    /// What the bus's metrics begin with.
    pub metrics_prefix: String,
}

/// What carries events between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventsMode {
    /// Redis if one is given, else the database if it is PostgreSQL, else nothing.
    Auto,
    /// Nothing: they stay in the process.
    InMemory,
    /// The database, which is PostgreSQL.
    Postgres,
    /// Redis.
    Redis,
}

/// When tasks' events are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventsPublish {
    /// While somebody follows them.
    Followed,
    /// Always.
    Always,
}

/// A Redis server.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedisConfig {
    /// Where it is; empty: the other settings say.
    pub url: RedisUrl,
    /// Its host; empty: there is none.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The user.
    pub username: String,
    /// The password.
    pub password: Secret,
    /// The number of the database.
    pub db: u32,
    /// Whether it is spoken to over TLS.
    pub tls: bool,
}

impl RedisConfig {
    /// Whether one is given.
    pub fn is_given(&self) -> bool {
        !self.url.is_empty() || !self.host.is_empty()
    }

    /// Where it is; on this machine if nothing is given.
    pub fn address(&self) -> Result<RedisUrl, String> {
        if !self.url.is_empty() {
            return Ok(self.url.clone());
        }
        let host = if self.host.is_empty() { "127.0.0.1" } else { &self.host };
        let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() };
        let scheme = if self.tls { "rediss" } else { "redis" };
        let wrong = || format!("redis.host is {host:?}, which is not a host's name");
        let mut url = Url::parse(&format!("{scheme}://{host}:{}/{}", self.port, self.db)).map_err(|_| wrong())?;
        if url.path() != format!("/{}", self.db) || !url.username().is_empty() {
            return Err(wrong());
        }
        url.set_username(&self.username).map_err(|()| wrong())?;
        let password = (!self.password.is_empty()).then(|| self.password.expose());
        url.set_password(password).map_err(|()| wrong())?;
        url.as_str().parse()
    }
}

impl Config {
    /// What carries events between processes, decided; an error if that can not be.
    pub fn events_mode(&self) -> Result<EventsMode, String> {
        let sqlite = self.database.url.is_sqlite();
        match self.events.mode {
            EventsMode::Auto if self.redis.is_given() => Ok(EventsMode::Redis),
            EventsMode::Auto if sqlite => Ok(EventsMode::InMemory),
            EventsMode::Auto => Ok(EventsMode::Postgres),
            EventsMode::Postgres if sqlite => Err("events.mode is postgres, but the database is SQLite; use \
                                                   in_memory, or redis"
                .to_owned()),
            mode => Ok(mode),
        }
    }

    /// Checks what a type can not say.
    pub(super) fn check_events(&self) -> Result<(), String> {
        let Self { events, redis, .. } = self;
        if events.queue_capacity == 0 {
            return Err("expected at least 1".to_owned());
        }
        if events.offer_timeout.0.as_secs() > 60 {
            return Err("expected at most 60s".to_owned());
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        if !events.metrics_prefix.chars().all(fits) || events.metrics_prefix.starts_with(|c: char| c.is_ascii_digit()) {
            return Err("expected letters, digits and underscores, such as relais_".to_owned());
        }
        if redis.port == 0 {
            return Err("expected a port".to_owned());
        }
        if redis.host.contains(['/', '@', '?', '#', ' ']) {
            return Err("expected a host's name; a URL is for redis.url".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Origin, load, show};

    fn with(variables: &[(&str, &str)]) -> Config {
        load(None, variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())), &[]).unwrap()
    }

    fn refused(variables: &[(&str, &str)]) -> String {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        load(None, variables, &[]).expect_err("should have been refused").to_string()
    }

    #[test]
    fn usual_variables_are_settings_and_ours_win() {
        let config = with(&[
            ("EVENTBUS_ENABLED", "false"),
            ("EVENTBUS_MODE", "redis"),
            ("EVENTBUS_QUEUE_CAPACITY", "500"),
            ("EVENTBUS_OFFER_TIMEOUT", "250"),
            ("REDIS_HOST", "cache"),
            ("REDIS_PORT", "6380"),
            ("REDIS_USERNAME", "relais"),
            ("REDIS_PASSWORD", "s3:c/r@t"),
            ("REDIS_DB", "3"),
            ("REDIS_TLS", "true"),
            ("RELAIS_EVENTS_QUEUE_CAPACITY", "700"),
        ]);
        assert!(!config.events.enabled);
        assert_eq!((config.events.mode, config.events.queue_capacity), (EventsMode::Redis, 700));
        assert_eq!(config.events.offer_timeout.0.as_millis(), 250);
        assert_eq!(config.redis.address().unwrap().expose(), "rediss://relais:s3%3Ac%2Fr%40t@cache:6380/3");
        assert_eq!(config.origins.of("redis.host"), Some(&Origin::Variable("REDIS_HOST".to_owned())));
        let ours = Origin::Variable("RELAIS_EVENTS_QUEUE_CAPACITY".to_owned());
        assert_eq!(config.origins.of("events.queue_capacity"), Some(&ours));
        let text = show(&config).unwrap();
        assert!(text.contains("mode = \"redis\"  # EVENTBUS_MODE\n"), "{text}");
        assert!(text.contains("queue_capacity = 700  # RELAIS_EVENTS_QUEUE_CAPACITY\n"), "{text}");
        assert!(text.contains("password = \"***\"  # REDIS_PASSWORD\n") && !text.contains("s3"), "{text}");
    }

    #[test]
    fn a_service_called_redis_is_no_port() {
        let config = with(&[("REDIS_PORT", "tcp://10.0.0.1:6379"), ("RELAIS_REDIS_PORT", "tcp://10.0.0.1:6379")]);
        assert_eq!(config.redis.port, 6379);
        assert!(!config.redis.is_given());
        assert_eq!(config.origins.of("redis.port"), None);
    }

    #[test]
    fn the_mode_follows_from_what_there_is() {
        let postgres = ("RELAIS_DATABASE_URL", "postgres://h/d");
        for (variables, expected) in [
            (&[][..], EventsMode::InMemory),
            (&[postgres], EventsMode::Postgres),
            (&[postgres, ("REDIS_HOST", "cache")], EventsMode::Redis),
            (&[("REDIS_URL", "redis://cache/")], EventsMode::Redis),
            (&[postgres, ("REDIS_HOST", "cache"), ("EVENTBUS_MODE", "postgres")], EventsMode::Postgres),
            (&[postgres, ("EVENTBUS_MODE", "in_memory")], EventsMode::InMemory),
            (&[("EVENTBUS_MODE", "redis")], EventsMode::Redis),
        ] {
            assert_eq!(with(variables).events_mode(), Ok(expected), "{variables:?}");
        }
        assert!(with(&[("EVENTBUS_MODE", "postgres")]).events_mode().unwrap_err().contains("SQLite"));
        assert_eq!(with(&[("EVENTBUS_MODE", "redis")]).redis.address().unwrap().expose(), "redis://127.0.0.1:6379/0");
        assert_eq!(with(&[("REDIS_HOST", "::1")]).redis.address().unwrap().expose(), "redis://[::1]:6379/0");
    }

    #[test]
    fn an_invalid_event_setting_is_refused_by_its_name() {
        for (variable, value, said) in [
            ("EVENTBUS_MODE", "kafka", "`events.mode` = \"kafka\" (EVENTBUS_MODE): "),
            ("EVENTBUS_QUEUE_CAPACITY", "0", "expected at least 1"),
            ("EVENTBUS_OFFER_TIMEOUT", "soon", "(EVENTBUS_OFFER_TIMEOUT)"),
            ("REDIS_PORT", "0", "expected a port"),
            ("REDIS_HOST", "redis://h", "a URL is for redis.url"),
            ("REDIS_URL", "http://u:hidden@h", "expected `redis://"),
            ("RELAIS_EVENTS_METRICS_PREFIX", "a-b", "such as relais_"),
        ] {
            let text = refused(&[(variable, value)]);
            assert!(text.contains(said) && text.contains(variable) && !text.contains("hidden"), "{text}");
        }
    }
}
