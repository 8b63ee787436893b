//! What operators declare and are shown: the same model in a file, over the admin API and in the CLI.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

mod tasks;

pub use self::tasks::{
    AdminTaskPage, AdminTaskView, AttemptView, CancelAnswer, LinkedTask, LinkedTasks, RetryAnswer, TasksRequest,
};
use crate::{HumanDuration, retry::RetryDeclaration, schedule::ScheduleDeclaration};

/// How long tasks are kept; what is absent is the server's setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RetentionDeclaration {
    /// After their end, e.g. `7d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "7d")]
    pub finished: Option<HumanDuration>,
    /// After their submission, whatever their status, e.g. `90d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "90d")]
    pub any: Option<HumanDuration>,
}

/// How a service's tasks reach its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TransportName {
    /// Workers take them from the built-in queue, over HTTP.
    Builtin,
    /// They are published to `<queueName>-in` of the broker, and followed from `<queueName>-out`.
    Rabbitmq,
}

/// A kind of queue of RabbitMQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum QueueTypeName {
    /// On one node; what workers find who assert plain durable queues.
    #[default]
    Classic,
    /// Replicated, and counts deliveries.
    Quorum,
}

/// The queues of a service on the broker. A queue that is there is used as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct QueueDeclaration {
    /// Which kind; `classic` if absent.
    #[serde(rename = "type", default)]
    pub kind: QueueTypeName,
    /// How long a task may wait in the queue before it fails; for ever if absent. Needs the broker's management API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1h")]
    pub message_ttl: Option<HumanDuration>,
    /// How many tasks may wait in the queue; the others wait in the database. Needs the broker's management API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_length: Option<u32>,
}

/// How many tasks may start in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RateLimitDeclaration {
    /// So many...
    pub count: u32,
    /// ...in this time, e.g. `1s`.
    #[schema(value_type = String, example = "1s")]
    pub per: HumanDuration,
    /// So many at once, after a pause; `count` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

/// A service.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ServiceDeclaration {
    /// Its name, as it stands in URLs.
    pub service_name: String,
    /// Prefix of its queues on a broker; its name if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_name: Option<String>,
    /// How its tasks reach its workers; if absent, by the broker where the server has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<TransportName>,
    /// Its queues on the broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueDeclaration>,
    /// A new task is taken only while there are fewer pending ones than this; no limit if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// A request that does not conform is refused at once; anything is taken if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub json_schema: Option<serde_json::Value>,
    /// Whether it is paused: tasks are taken in but not handed out. Left as it is if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// How long a worker may keep silent before its task is given to another; `60s` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "60s")]
    pub lease: Option<HumanDuration>,
    /// How many workers a task may lose before it fails; 20 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_limit: Option<u32>,
    /// How long its tasks are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<RetentionDeclaration>,
    /// How long to wait before each new try of a callback, e.g. `[10s, 1m, 1h, 1d]`; the server's setting if absent, none
    /// at all if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>, example = json!(["10s", "1m", "6m"]))]
    pub callback_retries: Option<Vec<HumanDuration>>,
    /// How often a task that failed is tried again: `none`, `never` (nor if a task asks for it), `classic` or a rule; `none` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryDeclaration>,
    /// How long an attempt may take before it is taken away from its worker and fails; for ever if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "10m")]
    pub timeout: Option<HumanDuration>,
    /// How much earlier a task goes for each level of its priority; `1m` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1m")]
    pub priority_step: Option<HumanDuration>,
    /// At most so many of its tasks run at once, over all workers; no limit if absent. With a broker it needs a `dispatchWindow`, and
    /// holds for what is published and unfinished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u32>,
    /// At most so many of one client's, unless its authorization says otherwise; no limit if absent. With a broker like `maxRunning`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running_per_client: Option<u32>,
    /// At most so many start in a time; no limit if absent. With a broker it needs a `dispatchWindow`, and so many are published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimitDeclaration>,
    /// Whether clients with tasks that wait take turns; if not, the oldest task is next, whosever it is. With a broker it needs a
    /// `dispatchWindow`, and is about which task is published next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair_share: Option<bool>,
    /// With a broker: at most so many of its tasks are published and unfinished at once, the others wait in the database; no
    /// limit if absent. The limits above can be set only with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_window: Option<u32>,
}

impl ServiceDeclaration {
    /// A service on which nothing is declared but its name.
    pub fn named(service_name: impl Into<String>) -> Self {
        Self {
            service_name: service_name.into(),
            queue_name: None,
            transport: None,
            queue: None,
            capacity: None,
            json_schema: None,
            paused: None,
            lease: None,
            delivery_limit: None,
            retention: None,
            callback_retries: None,
            retry: None,
            timeout: None,
            priority_step: None,
            max_running: None,
            max_running_per_client: None,
            rate_limit: None,
            fair_share: None,
            dispatch_window: None,
        }
    }
}

/// A secret: the text itself, or the environment variable of whoever reads the file.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SecretDeclaration {
    /// The text itself.
    Plain(String),
    /// The name of an environment variable of whoever reads the declaration.
    Env {
        /// The variable's name.
        env: String,
    },
}

/// A client.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ClientDeclaration {
    /// Its name: the user part of its Basic credentials.
    pub client_id: String,
    /// Its secret. If absent, a new client gets one that is shown once, and an old one keeps its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<SecretDeclaration>,
    /// What its callbacks are signed with: `whsec_` and base64. If absent, a new client gets one, and an old one keeps its
    /// own. Another one than before is used at once; the old one is used as well for a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_secret: Option<SecretDeclaration>,
    /// Where on the broker it may be told; left as it is if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destinations: Option<Vec<DestinationDeclaration>>,
}

/// An exchange or a queue of the broker, under a name of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DestinationDeclaration {
    /// The name that callbacks use.
    pub name: String,
    /// The exchange; absent for the default one, which reaches queues by their names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<String>,
    /// The routing key, or the name of the queue.
    pub routing_key: String,
}

/// What a client may do on a service.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AuthorizationDeclaration {
    /// The client.
    pub client_id: String,
    /// The service.
    pub service_name: String,
    /// `consume`, `work` or both; `consume` if absent.
    #[serde(default = "consume_only")]
    pub roles: Vec<RoleName>,
    /// A new task of this client is taken only while it has fewer pending ones there than this; no limit if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// At most so many of its tasks run there at once; the service's `maxRunningPerClient` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u32>,
    /// How much it weighs where clients take turns (`fairShare`): one with 3 starts three tasks for each one of a client
    /// with 1, which is what holds if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<u32>,
}

fn consume_only() -> Vec<RoleName> {
    vec![RoleName::Consume]
}

/// What somebody may do on a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RoleName {
    /// Submit tasks and follow one's own.
    Consume,
    /// Take tasks and report on them.
    Work,
}

/// A declaration file: what is in it is to be there, as it says.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Declaration {
    /// The services.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceDeclaration>,
    /// The clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<ClientDeclaration>,
    /// Who may do what.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorizations: Vec<AuthorizationDeclaration>,
    /// The schedules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<ScheduleDeclaration>,
}

/// What is done with a declared thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AppliedAction {
    /// It was not there.
    Created,
    /// It was different.
    Updated,
    /// It was as it should be.
    Unchanged,
    /// It was there, and not in the declaration.
    Deleted,
}

/// What was done with one declared thing.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppliedEntry {
    /// `service`, `client`, `authorization` or `schedule`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// What was done.
    pub action: AppliedAction,
    /// A generated secret. It is shown this once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<String>,
}

/// What applying a declaration did, or would do.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplyReport {
    /// One entry per declared thing.
    pub applied: Vec<AppliedEntry>,
}

/// A service, as operators see it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceState {
    /// As it is declared, defaults filled in.
    #[serde(flatten)]
    pub declaration: ServiceDeclaration,
    /// Tasks that wait.
    pub pending: u64,
    /// Tasks that are to start later: they were scheduled, or failed and are tried again.
    #[serde(default)]
    pub waiting: u64,
    /// Tasks that a worker has.
    pub in_progress: u64,
    /// Tasks that ended well, ever.
    pub success: u64,
    /// Tasks that failed, ever.
    pub failure: u64,
    /// Tasks that were cancelled, ever.
    pub cancelled: u64,
    /// When the oldest pending task was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub oldest_pending_date: Option<String>,
    /// The clients that have unfinished tasks, in the order of their names; absent in a listing, and where none has any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<ClientLoad>,
}

/// What a client has on a service, against what it may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientLoad {
    /// The client.
    pub client_id: String,
    /// Its tasks that wait.
    pub pending: u64,
    /// Its tasks that a worker has.
    pub in_progress: u64,
    /// As many as a worker may have; absent if there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u32>,
}

/// The services.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ServiceStates {
    /// In the order of their names.
    pub services: Vec<ServiceState>,
}

/// A client, as operators see it: its secret is known to nobody.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientState {
    /// Its name.
    pub client_id: String,
    /// On how many services it may do something.
    pub authorizations: usize,
    /// Where on the broker it may be told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destinations: Vec<DestinationDeclaration>,
}

/// The clients.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ClientStates {
    /// In the order of their names.
    pub clients: Vec<ClientState>,
}

/// A client's new secret.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientSecret {
    /// The client.
    pub client_id: String,
    /// The secret. It is shown this once.
    pub client_secret: String,
}

/// Who may do what.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AuthorizationStates {
    /// In the order of clients, then services.
    pub authorizations: Vec<AuthorizationDeclaration>,
}

/// Limits of a service that are to be others from now on. What is absent stays; 0 and an empty text take a limit away.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LimitsChange {
    /// How many tasks may be pending; 0 for any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// How many tasks may run at once; 0 for any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u32>,
    /// How many of one client's; 0 for any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running_per_client: Option<u32>,
    /// How many may start in a time, e.g. `100/1s`; empty for any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "100/1s")]
    pub rate_limit: Option<String>,
    /// How many may be at the broker; 0 for any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_window: Option<u32>,
}

/// What to purge.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PurgeRequest {
    /// Only count.
    #[serde(default)]
    pub dry_run: bool,
}

/// What was purged of one service, or would be.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PurgedService {
    /// The service.
    pub service: String,
    /// How many tasks.
    pub purged: u64,
    /// How long its finished tasks are kept.
    #[schema(value_type = String)]
    pub finished: HumanDuration,
    /// How long any of its tasks is kept.
    #[schema(value_type = String)]
    pub any: HumanDuration,
}

/// What was purged, or would be.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PurgeAnswer {
    /// Whether nothing was removed.
    pub dry_run: bool,
    /// One entry per service.
    pub services: Vec<PurgedService>,
}
