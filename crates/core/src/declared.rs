//! Declarations: services, clients, and who may do what.

use std::{collections::HashMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    ClientFlow, ClientId, ClientKey, DEFAULT_PRIORITY_STEP, FlowLimits, Json, NotificationRights, RetryPolicy,
    ServiceKey, ServiceName, Timestamp,
};

/// The default lease of a worker.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(60);

/// The default delivery limit: how many workers a task may lose before it fails.
pub const DEFAULT_DELIVERY_LIMIT: u32 = 20;

/// A role of a client on a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Submits tasks and follows its own.
    Consume,
    /// Claims tasks and reports on them.
    Work,
}

impl Role {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Consume => "consume",
            Self::Work => "work",
        }
    }
}

/// The roles of one client on one service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles {
    /// May submit tasks and follow its own.
    pub consume: bool,
    /// May claim tasks and report on them.
    pub work: bool,
}

impl Roles {
    /// Whether the role is among them.
    pub const fn has(self, role: Role) -> bool {
        match role {
            Role::Consume => self.consume,
            Role::Work => self.work,
        }
    }

    /// The roles of a list.
    pub fn of(roles: &[Role]) -> Self {
        Self { consume: roles.contains(&Role::Consume), work: roles.contains(&Role::Work) }
    }

    /// The roles as a list, in the order of the names.
    pub fn to_vec(self) -> Vec<Role> {
        [Role::Consume, Role::Work].into_iter().filter(|&role| self.has(role)).collect()
    }
}

/// How long tasks are kept; none means the server's setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    /// After their end.
    pub finished: Option<Duration>,
    /// After their submission, whatever their status.
    pub any: Option<Duration>,
}

/// The transport: how the tasks of a service reach its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TaskTransport {
    /// Workers claim them from the built-in queue, over HTTP.
    #[default]
    Builtin,
    /// They are published to `<queueName>-in` of a RabbitMQ broker, and workers answer on `<queueName>-out`.
    RabbitMq,
}

impl TaskTransport {
    /// Whether tasks go to a broker and not to the built-in queue.
    pub const fn is_brokered(self) -> bool {
        match self {
            Self::Builtin => false,
            Self::RabbitMq => true,
        }
    }

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Builtin => "builtin",
            Self::RabbitMq => "rabbitmq",
        }
    }

    /// The number in the store.
    pub const fn code(self) -> i16 {
        match self {
            Self::Builtin => 0,
            Self::RabbitMq => 1,
        }
    }

    /// The transport with this number.
    pub const fn from_code(code: i16) -> Option<Self> {
        match code {
            0 => Some(Self::Builtin),
            1 => Some(Self::RabbitMq),
            _ => None,
        }
    }
}

/// The kind of queue to declare on a broker, if there is none yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueueKind {
    /// A classic queue on one node, as workers declare it without arguments.
    #[default]
    Classic,
    /// A quorum queue: replicated, and counts deliveries.
    Quorum,
}

impl QueueKind {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Quorum => "quorum",
        }
    }

    /// The number in the store.
    pub const fn code(self) -> i16 {
        match self {
            Self::Classic => 0,
            Self::Quorum => 1,
        }
    }

    /// The kind with this number.
    pub const fn from_code(code: i16) -> Option<Self> {
        match code {
            0 => Some(Self::Classic),
            1 => Some(Self::Quorum),
            _ => None,
        }
    }
}

/// The settings of a service's queues on a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueSettings {
    /// Which kind, where there is none yet.
    pub kind: QueueKind,
    /// How long a task may wait in the queue before it fails; for ever if absent.
    pub message_ttl: Option<Duration>,
    /// How many tasks may wait in the queue; the rest waits in the store.
    pub max_length: Option<u32>,
}

/// The limits of a service that operators change while it runs.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceLimits {
    /// The capacity: a new task is accepted only while there are fewer pending ones than this.
    pub capacity: Option<u32>,
    /// The default lease of a worker.
    pub lease: Duration,
    /// The delivery limit: how many workers a task may lose before it fails.
    pub delivery_limit: u32,
    /// How long its tasks are kept.
    pub retention: Retention,
    /// The backoff of callbacks; none means the server's setting.
    pub callback_retries: Option<Vec<Duration>>,
    /// The retry policy of its tasks.
    pub retry: RetryPolicy,
    /// The timeout of an attempt.
    pub timeout: Option<Duration>,
    /// The head start that each level of priority gives.
    pub priority_step: Duration,
    /// The flow limits.
    pub flow: FlowLimits,
}

impl Default for ServiceLimits {
    fn default() -> Self {
        Self {
            capacity: None,
            lease: DEFAULT_LEASE,
            delivery_limit: DEFAULT_DELIVERY_LIMIT,
            retention: Retention::default(),
            callback_retries: None,
            retry: RetryPolicy::none(),
            timeout: None,
            priority_step: DEFAULT_PRIORITY_STEP,
            flow: FlowLimits::default(),
        }
    }
}

/// A service: a named kind of work with its own queue and settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    /// Its row in the store.
    pub key: ServiceKey,
    /// Its name.
    pub name: ServiceName,
    /// Prefix of its queues on a broker.
    pub queue_name: String,
    /// How its tasks reach its workers.
    pub transport: TaskTransport,
    /// Its queues on a broker.
    pub queue: QueueSettings,
    /// The schema of requests. A request that does not conform is refused at once.
    pub json_schema: Option<Json>,
    /// While it is paused, tasks are accepted but not claimed.
    pub paused: bool,
    /// Its limits.
    pub limits: ServiceLimits,
}

/// A client: a pair of id and secret that a consumer or a worker uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Its row in the store.
    pub key: ClientKey,
    /// Its name.
    pub client_id: ClientId,
    /// The bcrypt hash of its secret.
    pub secret_hash: String,
    /// Its signing secrets, the newest first; two during a rotation.
    pub signing_secrets: Vec<SigningSecret>,
    /// Its callback destinations on the broker.
    pub destinations: Vec<Destination>,
    /// What it may do with notifications.
    pub notifications: NotificationRights,
}

/// A signing secret of callbacks.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningSecret {
    /// The text that receivers get: `whsec_` and base64.
    pub secret: String,
    /// Since when it is used.
    pub created: Timestamp,
    /// Until when it is used, if another one replaces it.
    pub expires: Option<Timestamp>,
}

impl std::fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningSecret").field("created", &self.created).field("expires", &self.expires).finish()
    }
}

/// A destination: an exchange or a queue of the broker, under a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Destination {
    /// The name that callbacks use.
    pub name: String,
    /// The exchange; the default one (empty) reaches queues by their names.
    #[serde(default)]
    pub exchange: String,
    /// The routing key, or the name of the queue.
    pub routing_key: String,
}

/// An authorization: what a client may do on a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Authorization {
    /// The client.
    pub client: ClientKey,
    /// The service.
    pub service: ServiceKey,
    /// Its roles.
    pub roles: Roles,
    /// Its capacity: a new task is accepted only while the client has fewer pending ones on the service than this.
    pub capacity: Option<u32>,
    /// Its flow limits on the service.
    pub flow: ClientFlow,
}

/// The whole declaration at one moment. Small enough to be kept in memory by every process.
#[derive(Debug, Clone, Default)]
pub struct Declared {
    /// The version: counts the changes.
    pub version: i64,
    /// The services, by name.
    pub services: HashMap<ServiceName, Arc<Service>>,
    /// The clients, by name.
    pub clients: HashMap<ClientId, Arc<Client>>,
    /// The authorizations.
    pub authorizations: HashMap<(ClientKey, ServiceKey), Authorization>,
}

impl Declared {
    /// Builds it from rows.
    pub fn new(version: i64, services: Vec<Service>, clients: Vec<Client>, authorizations: Vec<Authorization>) -> Self {
        Self {
            version,
            services: services.into_iter().map(|service| (service.name.clone(), Arc::new(service))).collect(),
            clients: clients.into_iter().map(|client| (client.client_id.clone(), Arc::new(client))).collect(),
            authorizations: authorizations.into_iter().map(|a| ((a.client, a.service), a)).collect(),
        }
    }

    /// The authorization of a client on a service; no roles if none is declared.
    pub fn roles(&self, client: ClientKey, service: ServiceKey) -> Roles {
        self.authorizations.get(&(client, service)).map(|a| a.roles).unwrap_or_default()
    }

    /// A service by its key.
    pub fn service_by_key(&self, key: ServiceKey) -> Option<&Arc<Service>> {
        self.services.values().find(|service| service.key == key)
    }

    /// A client by its key.
    pub fn client_by_key(&self, key: ClientKey) -> Option<&Arc<Client>> {
        self.clients.values().find(|client| client.key == key)
    }

    /// The services in the order of their names.
    pub fn services_by_name(&self) -> Vec<&Arc<Service>> {
        let mut services: Vec<_> = self.services.values().collect();
        services.sort_by(|a, b| a.name.cmp(&b.name));
        services
    }
}
