//! The server's configuration: `relais.default.toml` says what there is, this module gives it types.
//!
//! The default file is the list of known keys: a setting that is not in it does not exist, and its value there says of
//! which type it is. [`load()`] puts file, environment and flags on top. What is declared at run time (services, clients,
//! authorizations) is not configuration and is not here.

mod error;
mod events;
mod load;
mod notifications;
mod show;
mod values;
mod warnings;

use std::net::SocketAddr;

use relais_engine::{Credentials, CredentialsError, OperatorRole};
use relais_http::TrustedProxies;
use relais_messaging::rabbitmq::BrokerOptions;
use relais_protocol::{HumanDuration, consumer::MAX_WAIT};
use relais_store::EncryptionKey;
use serde::{Deserialize, Serialize};

pub use self::{
    error::{ConfigError, Origin, Origins},
    events::{EventsConfig, EventsMode, EventsPublish, RedisConfig},
    load::{Setting, environment, load},
    notifications::{NotificationsConfig, NotificationsStore},
    show::show,
    values::{BrokerUrl, DatabaseUrl, LogFormat, ManagementUrl, OperatorEntry, Role, Secret},
    warnings::warnings,
};

/// The annotated default configuration, as `relais config default` prints it.
pub const DEFAULT: &str = include_str!("relais.default.toml");

/// Everything that can be set. The default file explains each field.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The HTTP server.
    pub server: ServerConfig,
    /// The store.
    pub database: DatabaseConfig,
    /// The admin API's credentials.
    pub admin: AdminConfig,
    /// The file of services, clients, authorizations and schedules.
    pub declarations: DeclarationsConfig,
    /// The message broker.
    pub broker: BrokerConfig,
    /// How callbacks are sent, and where they may go.
    pub callbacks: CallbacksConfig,
    /// The event bus.
    pub events: EventsConfig,
    /// A Redis server.
    pub redis: RedisConfig,
    /// What consumers may ask for.
    pub tasks: TasksConfig,
    /// How long tasks are kept.
    pub purge: PurgeConfig,
    /// How writes are put together.
    pub batching: BatchingConfig,
    /// How clients are verified.
    pub auth: AuthConfig,
    /// How bodies are judged by their services' schemas.
    pub validation: ValidationConfig,
    /// What is logged.
    pub log: LogConfig,
    /// Where traces go.
    pub telemetry: TelemetryConfig,
    /// How outboxes and captures are read.
    pub relay: RelayConfig,
    /// Notifications to web pages.
    pub notifications: NotificationsConfig,
    /// KEDA's external scaler.
    pub scaler: ScalerConfig,
    /// Where each setting came from.
    #[serde(skip)]
    pub origins: Origins,
}

/// The HTTP server.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Where it listens.
    #[serde(deserialize_with = "values::listen")]
    pub listen: SocketAddr,
    /// What this process is called among those on the database; empty for a name of its own.
    pub name: String,
    /// What this process does.
    pub roles: Vec<Role>,
    /// The largest request body.
    pub max_body_bytes: usize,
    /// How long a request may take to arrive.
    pub request_timeout: HumanDuration,
    /// How long requests under way may go on when the server stops.
    pub shutdown_grace: HumanDuration,
    /// How long a connection is kept between two requests.
    pub idle_timeout: HumanDuration,
    /// How long a part of an answer may wait to be read.
    pub write_timeout: HumanDuration,
    /// How many connections are served at once.
    pub max_connections: usize,
    /// How many of those from one address.
    pub max_connections_per_peer: usize,
    /// How many requests of one client are answered at once.
    pub max_requests_per_client: usize,
    /// Reverse proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<String>,
}

impl ServerConfig {
    /// Whether this process has the role.
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&role) || role == Role::Callbacks && self.roles.contains(&Role::Notify)
    }
}

/// The store.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatabaseConfig {
    /// Where it is.
    pub url: DatabaseUrl,
    /// How many connections at most.
    pub max_connections: u32,
    /// Whether the schema is brought up to date at the start.
    pub migrate: bool,
    /// How long to wait for a connection.
    pub acquire_timeout: HumanDuration,
    /// What signing secrets are encrypted with, read from `encryption_keys_file` where that is set; empty: they are not.
    #[serde(deserialize_with = "values::encryption_keys", serialize_with = "values::mask_keys")]
    pub encryption_keys: Vec<EncryptionKey>,
    /// The file they were read from.
    pub encryption_keys_file: String,
}

/// The admin API's credentials.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdminConfig {
    /// The bearer token, read from `token_file` where that is set; empty: loopback only.
    pub token: Secret,
    /// The file it was read from.
    pub token_file: String,
    /// Others who may look or act.
    pub operators: Vec<OperatorEntry>,
    /// Whether there is a dashboard.
    pub dashboard: bool,
    /// How long a session lasts.
    pub session: HumanDuration,
    /// How long it is known what operators did.
    pub audit_age: HumanDuration,
}

impl AdminConfig {
    /// Whether nobody has a token.
    pub fn is_without_token(&self) -> bool {
        self.token.is_empty() && self.operators.is_empty()
    }

    /// All who have a token. What [`load()`] returns has no two of them alike.
    pub fn credentials(&self) -> Result<Credentials, CredentialsError> {
        let first = match self.token.is_empty() {
            true => Credentials::default(),
            false => Credentials::default().with("admin", OperatorRole::Admin, self.token.expose())?,
        };
        self.operators.iter().try_fold(first, |all, one| all.with(&one.name, one.role, one.token.expose()))
    }
}

/// The file of services, clients, authorizations and schedules.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeclarationsConfig {
    /// Its path; empty if there is none.
    pub file: String,
    /// Whether what is not in it is deleted.
    pub prune: bool,
    /// How often it is looked at.
    pub interval: HumanDuration,
}

/// The message broker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrokerConfig {
    /// Where it is; empty: there is none.
    pub url: BrokerUrl,
    /// Where its management API is; empty: no policies are set.
    pub management_url: ManagementUrl,
    /// How many messages of each service's workers are prefetched at most.
    pub prefetch: u16,
    /// A file of root certificates.
    pub root_certificates: String,
}

impl BrokerConfig {
    /// How it is connected to.
    pub fn options(&self) -> BrokerOptions {
        let certificates = &self.root_certificates;
        BrokerOptions {
            root_certificates: (!certificates.is_empty()).then(|| certificates.into()),
            ..BrokerOptions::default()
        }
    }
}

/// How callbacks are sent, and where they may go.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallbacksConfig {
    /// How long to wait before each new try.
    pub retries: Vec<HumanDuration>,
    /// One deadline for the whole exchange.
    pub timeout: HumanDuration,
    /// How many are sent at once.
    pub at_once: usize,
    /// How many of those to one endpoint for one client.
    pub per_endpoint: usize,
    /// After so many failures in a row an endpoint is left alone.
    pub park_after: u32,
    /// For so long, the first time.
    pub park_first: HumanDuration,
    /// For so long at most.
    pub park_most: HumanDuration,
    /// What has waited for so long is given up.
    pub give_up_after: HumanDuration,
    /// Whether they may go to http:// URLs too.
    pub allow_http: bool,
    /// Hosts that may be called whatever their address.
    pub allow_hosts: Vec<String>,
    /// Networks that may be called.
    pub allow_networks: Vec<String>,
    /// The ports that may be called.
    #[serde(deserialize_with = "values::ports", serialize_with = "values::show_ports")]
    pub ports: Vec<u16>,
    /// A file of root certificates that are trusted besides the system's.
    pub root_certificates: String,
}

/// What consumers may ask for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TasksConfig {
    /// The longest `?wait=`.
    pub max_wait: HumanDuration,
    /// How long an Idempotency-Key is remembered.
    pub idempotency_age: HumanDuration,
}

/// How long tasks are kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PurgeConfig {
    /// How often old tasks are removed.
    pub every: HumanDuration,
    /// How long a task is kept after its end.
    pub finished: HumanDuration,
    /// How long any task is kept after its submission.
    pub any: HumanDuration,
    /// How many are removed in one transaction.
    pub batch: u32,
}

/// How writes are put together.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchingConfig {
    /// How many in one transaction.
    pub max_batch: usize,
    /// How many may wait.
    pub queue: usize,
    /// How many transactions at once.
    pub in_flight: usize,
}

/// How clients are verified.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthConfig {
    /// How many verified clients are remembered.
    pub cache_size: usize,
    /// For how long after their last use.
    pub cache_ttl: HumanDuration,
    /// For how long at most, however often they are used.
    pub cache_max_age: HumanDuration,
    /// The cost of new secrets.
    pub bcrypt_cost: u32,
    /// How many bcrypts at once.
    pub bcrypt_parallel: usize,
}

/// How bodies are judged by their services' schemas.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValidationConfig {
    /// How many requests at once.
    pub parallel: usize,
    /// How long one may take, the wait for its turn included.
    pub timeout: HumanDuration,
    /// How many may wait.
    pub waiting: usize,
    /// How many of those of one client.
    pub waiting_per_client: usize,
}

/// What is logged.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// How the lines look.
    pub format: LogFormat,
    /// Which lines there are.
    pub level: String,
}

/// Where traces go.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TelemetryConfig {
    /// The OTLP endpoint; empty: nowhere.
    pub otlp_endpoint: String,
    /// The name under which they are found.
    pub service_name: String,
}

/// How outboxes and captures are read.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayConfig {
    /// Where large transactions wait for their commit; empty: in the database.
    pub spool_dir: String,
    /// How many bytes may wait there.
    pub spool_max_bytes: u64,
}

/// KEDA's external scaler.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScalerConfig {
    /// Where it listens; empty: nowhere.
    pub listen: String,
    /// The file of its certificate; empty: no TLS.
    pub certificate: String,
    /// The file of the key to it.
    pub key: String,
}

impl Config {
    /// Checks what a type can not say. The error is what was expected instead.
    ///
    /// Each rule looks at one setting: [`load()`] tries settings one by one, to know which of them was refused. What must
    /// not be together is refused when all are put together; what is only risky together is for [`warnings()`].
    fn check(&self) -> Result<(), String> {
        let at_least = |least: usize, values: &[usize]| match values.iter().all(|value| *value >= least) {
            true => Ok(()),
            false => Err(format!("expected at least {least}")),
        };
        let lasting = |values: &[HumanDuration]| match values.iter().all(|value| !value.0.is_zero()) {
            true => Ok(()),
            false => Err("expected a duration above zero".to_owned()),
        };
        let Self {
            server,
            database,
            admin,
            declarations,
            tasks,
            purge,
            batching,
            auth,
            validation,
            log,
            telemetry,
            callbacks,
            relay,
            notifications,
            scaler,
            ..
        } = self;
        if server.roles.is_empty() {
            return Err(format!("expected at least one of {}", Role::ALL.map(Role::name).join(", ")));
        }
        at_least(1024, &[server.max_body_bytes])?;
        at_least(1, &[server.max_connections, database.max_connections as usize, purge.batch as usize])?;
        at_least(1, &[server.max_connections_per_peer, server.max_requests_per_client])?;
        at_least(1, &[batching.max_batch, batching.queue, batching.in_flight, auth.bcrypt_parallel])?;
        if relay.spool_max_bytes < 1024 * 1024 {
            return Err("expected at least 1048576".to_owned());
        }
        notifications.check()?;
        at_least(1, &[validation.parallel, validation.waiting, validation.waiting_per_client])?;
        lasting(&[server.idle_timeout, server.write_timeout, validation.timeout])?;
        TrustedProxies::parse(&server.trusted_proxies).map_err(|error| format!("expected something else: {error}"))?;
        lasting(&[server.request_timeout, database.acquire_timeout, declarations.interval, tasks.idempotency_age])?;
        lasting(&[tasks.max_wait, purge.every, purge.finished, purge.any])?;
        lasting(&[callbacks.timeout, callbacks.park_first, callbacks.park_most, callbacks.give_up_after])?;
        at_least(1, &[callbacks.at_once, callbacks.per_endpoint, callbacks.park_after as usize])?;
        if callbacks.timeout.0.as_secs() > 300 {
            return Err("expected at most 5m".to_owned());
        }
        if callbacks.retries.len() > relais_engine::MAX_RETRIES
            || callbacks.retries.iter().any(|wait| wait.0.as_secs() > 7 * 86_400)
        {
            return Err(format!("expected at most {} durations, of at most 7d each", relais_engine::MAX_RETRIES));
        }
        relais_callback::guard::Guard::new(
            callbacks.allow_http,
            &callbacks.allow_hosts,
            &callbacks.allow_networks,
            &callbacks.ports,
        )
        .map_err(|error| format!("expected something else: {error}"))?;
        if tasks.max_wait > MAX_WAIT {
            return Err(format!("expected at most {}s", MAX_WAIT.0.as_secs()));
        }
        if !(4..=20).contains(&auth.bcrypt_cost) {
            return Err("expected 4 to 20".to_owned());
        }
        admin.credentials().map_err(|error| error.to_string())?;
        self.check_events()?;
        crate::logging::check_level(&log.level)?;
        if !scaler.listen.is_empty() && scaler.listen.parse::<SocketAddr>().is_err() {
            return Err("expected an address and a port, like 0.0.0.0:9090".to_owned());
        }
        let endpoint = &telemetry.otlp_endpoint;
        if !endpoint.is_empty() && !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
            return Err("expected a URL like http://localhost:4318".to_owned());
        }
        Ok(())
    }
}
