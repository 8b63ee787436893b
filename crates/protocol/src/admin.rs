//! What operators declare and are shown: the same model in a file, over the admin API and in the CLI.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

mod notification_rights;
mod tasks;

pub use self::notification_rights::{NotificationRightsDeclaration, TicketDeclaration};
pub use self::tasks::{
    AdminTaskPage, AdminTaskView, AttemptView, CancelAnswer, LinkedTask, LinkedTasks, RetryAnswer, TasksRequest,
};
use crate::{
    HumanDuration, audience::AudienceDeclaration, capture::CaptureDeclaration,
    notification_source::NotificationSourceDeclaration, outbox::OutboxDeclaration, retry::RetryDeclaration,
    schedule::ScheduleDeclaration,
};

/// How long tasks are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RetentionDeclaration {
    /// How long a task is kept after it ended. Default: the setting `purge.finished`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]+(d|h|m|s|ms))+$", example = "7d")]
    pub finished: Option<HumanDuration>,
    /// How long a task is kept after it was submitted, whatever its status. Default: the setting `purge.any`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]+(d|h|m|s|ms))+$", example = "90d")]
    pub any: Option<HumanDuration>,
}

/// How a service's tasks reach its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TransportName {
    /// Workers claim tasks from the built-in queue, over HTTP.
    Builtin,
    /// The server publishes tasks to the queue `<queueName>-in` and reads what workers report from `<queueName>-out`.
    Rabbitmq,
}

/// A kind of queue of RabbitMQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum QueueTypeName {
    /// On one node. Workers that declare plain durable queues find this kind.
    #[default]
    Classic,
    /// Replicated over several nodes, and counts deliveries.
    Quorum,
}

/// The queues of a service on the broker. A queue that exists already is used as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct QueueDeclaration {
    /// The kind of queue. `classic`: on one node, what workers that declare plain durable queues expect. `quorum`:
    /// replicated over several nodes, and counts deliveries. Default: `classic`.
    #[serde(rename = "type", default)]
    pub kind: QueueTypeName,
    /// How long a task may wait in the queue before it fails. More than `0s`, at most `30d`. Needs
    /// `broker.management_url`. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]+(d|h|m|s|ms))+$", example = "1h")]
    pub message_ttl: Option<HumanDuration>,
    /// How many tasks may wait in the queue; the others wait in the database. Needs `broker.management_url`. Default:
    /// no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_147_483_647)]
    pub max_length: Option<u32>,
}

/// How many tasks may start within a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RateLimitDeclaration {
    /// How many tasks may start within the time `per`. At most 1,000,000 a second.
    #[schema(minimum = 1, maximum = 2_147_483_647)]
    pub count: u32,
    /// The time within which `count` tasks may start. More than `0s`, at most `30d`.
    #[schema(value_type = String, pattern = "^([0-9]+(d|h|m|s|ms))+$", example = "1s")]
    pub per: HumanDuration,
    /// How many tasks may start at the same moment after a pause. Default: the value of `count`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_147_483_647)]
    pub burst: Option<u32>,
}

/// A service: one kind of task.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ServiceDeclaration {
    /// The name of the service, as it appears in URLs.
    pub service_name: String,
    /// The prefix of the service's queues on the broker, `<queueName>-in` and `<queueName>-out`. It follows the rules
    /// of names. Two services of the broker can not share one. Default: the value of `serviceName`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_name: Option<String>,
    /// How tasks reach the workers. `builtin`: workers claim tasks from the built-in queue, over HTTP. `rabbitmq`: the
    /// server publishes tasks to the queue `<queueName>-in` and reads what workers report from `<queueName>-out`.
    /// Default: `rabbitmq` if `broker.url` is set, else `builtin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<TransportName>,
    /// The settings of the queues on the broker (`transport: rabbitmq`). A queue that exists already is used as it is.
    /// Default: a classic queue without limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueDeclaration>,
    /// How many tasks of the service may wait for a worker, including those that are due later. A submission beyond that
    /// is refused with 429001. With 0, every submission is refused. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 2_147_483_647)]
    pub capacity: Option<u32>,
    /// A JSON Schema for the `body` of tasks. A submission that does not conform is refused with 400001. Default: every
    /// body is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub json_schema: Option<serde_json::Value>,
    /// Whether the service is paused: it accepts tasks, but does not hand them to workers. Default: a new service is
    /// not paused, an existing one keeps its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// How long a task stays with its worker after the last sign of life (claim, message or heartbeat). Then the task
    /// is handed to another worker. Between `1s` and `1d`. Default: `60s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]+(d|h|m|s|ms))+$", example = "60s")]
    pub lease: Option<HumanDuration>,
    /// A task fails after it has lost this many workers: a lease expired, a worker died, or the broker delivered the
    /// task again. Default: 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub delivery_limit: Option<u32>,
    /// How long tasks are kept before they are purged. Default: the settings in `[purge]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<RetentionDeclaration>,
    /// How long to wait before each retry of a callback that was not delivered: durations like `[10s, 1m, 6m]`, at most
    /// 20, of at most `7d` each. An empty list means no retries. Default: the setting `callbacks.retries`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>, example = json!(["10s", "1m", "6m"]))]
    pub callback_retries: Option<Vec<HumanDuration>>,
    /// How often a failed task is retried, unless the task has its own policy. `none`: not at all. `never`: not at all,
    /// even if the task asks for it. `classic`: 10 retries, after 1, 2, 4, … 512 minutes. Or a rule of your own, an
    /// object. Default: `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryDeclaration>,
    /// How long one attempt may take. After that the attempt fails and is taken from its worker. Between `1s` and
    /// `30d`. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]+(d|h|m|s|ms))+$", example = "10m")]
    pub timeout: Option<HumanDuration>,
    /// How much each level of `priority` counts. A task is handed out as if it had been submitted this much earlier for
    /// each level above 4, or later for each level below. At most `7d`. Default: `1m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]+(d|h|m|s|ms))+$", example = "1m")]
    pub priority_step: Option<HumanDuration>,
    /// How many tasks of the service may run at once, over all workers. With a broker it needs a `dispatchWindow`, and
    /// counts tasks that are published and unfinished. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_147_483_647)]
    pub max_running: Option<u32>,
    /// How many tasks of one client may run at once, unless the client's authorization has its own `maxRunning`. With a
    /// broker it works like `maxRunning`. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_147_483_647)]
    pub max_running_per_client: Option<u32>,
    /// How many tasks may start within a time. With a broker it needs a `dispatchWindow`, and limits how many tasks are
    /// published. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimitDeclaration>,
    /// Whether clients with waiting tasks take turns. If not, the oldest task is next (see `priorityStep`), whichever
    /// client it belongs to. With a broker it needs a `dispatchWindow`, and decides which task is published next.
    /// Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair_share: Option<bool>,
    /// How many tasks may be published to the broker and unfinished at once; the others wait in the database. Only with
    /// `transport: rabbitmq`, where `maxRunning`, `maxRunningPerClient`, `rateLimit` and `fairShare` need it. Default:
    /// no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100_000)]
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

/// A secret: the text itself, or the name of an environment variable. Only files may name variables: the program that
/// reads the file (`relais apply`, or the server) looks them up in its own environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SecretDeclaration {
    /// The secret itself.
    Plain(String),
    /// The name of an environment variable.
    Env {
        /// The name of the variable, in the environment of the program that reads the file.
        env: String,
    },
}

/// A client: a program that submits tasks or works on them.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ClientDeclaration {
    /// The name of the client: the user name of its Basic credentials.
    pub client_id: String,
    /// The secret of the client: the password of its Basic credentials, of 1 to 72 bytes. Either the text itself, or
    /// `{env: NAME}` for an environment variable. Default: a new client gets a generated secret that is shown once, an
    /// existing one keeps its secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<SecretDeclaration>,
    /// The secret that signs the client's callbacks: `whsec_` and the base64 of 24 to 64 bytes. Either the text itself,
    /// or `{env: NAME}`. After a change, the old secret also signs for one more day. Default: a new client gets a
    /// generated secret, an existing one keeps its secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_secret: Option<SecretDeclaration>,
    /// Exchanges and queues on the broker that callbacks of the type `amqp` may name; at most 100. Default: an existing
    /// client keeps its destinations, a new one has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destinations: Option<Vec<DestinationDeclaration>>,
    /// What the client may do with notifications. A right that is absent in it is taken from the client. Default: an
    /// existing client keeps its rights, a new one has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notifications: Option<NotificationRightsDeclaration>,
}

/// An exchange or a queue on the broker, for callbacks of the type `amqp`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DestinationDeclaration {
    /// The name that callbacks use for it.
    pub name: String,
    /// The exchange, of at most 255 bytes. Default: the default exchange, which reaches queues by their names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<String>,
    /// The routing key, of at most 255 bytes; with the default exchange, the name of the queue.
    pub routing_key: String,
}

/// What a client may do on a service.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AuthorizationDeclaration {
    /// The name of the client.
    pub client_id: String,
    /// The name of the service.
    pub service_name: String,
    /// What the client may do. `consume`: submit tasks and follow its own. `work`: take tasks and report on them. At
    /// least one. Default: `[consume]`.
    #[serde(default = "consume_only")]
    pub roles: Vec<RoleName>,
    /// How many tasks of this client may wait for a worker on this service. A submission beyond that is refused with
    /// 429002. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 2_147_483_647)]
    pub capacity: Option<u32>,
    /// How many tasks of this client may run on this service at once. Default: the service's `maxRunningPerClient`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_147_483_647)]
    pub max_running: Option<u32>,
    /// The weight of the client where clients take turns (`fairShare`). A client with 3 starts three tasks for each one
    /// of a client with 1. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub share: Option<u32>,
}

fn consume_only() -> Vec<RoleName> {
    vec![RoleName::Consume]
}

/// What somebody may do on a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RoleName {
    /// Submit tasks and follow its own.
    Consume,
    /// Take tasks and report on them.
    Work,
}

/// A declaration file: the services, clients, authorizations, schedules, outboxes, captures, audiences and notification sources
/// that a server has.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Declaration {
    /// The kinds of tasks that there are. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceDeclaration>,
    /// The programs that submit tasks or work on them. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<ClientDeclaration>,
    /// Which client may do what on which service. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorizations: Vec<AuthorizationDeclaration>,
    /// Tasks that are submitted again and again, at the times of a cron expression. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<ScheduleDeclaration>,
    /// Tables of events in any database that the server publishes. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outboxes: Vec<OutboxDeclaration>,
    /// Tables of any PostgreSQL whose changes the server publishes. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub captures: Vec<CaptureDeclaration>,
    /// Types of audience of your own, and who belongs to targets. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audiences: Vec<AudienceDeclaration>,
    /// Events that become notifications for web pages. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notification_sources: Vec<NotificationSourceDeclaration>,
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
    /// `service`, `client`, `authorization`, `schedule`, `outbox`, `capture`, `audience` or `notification source`.
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
    /// What it may do with notifications; absent if it may do nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notifications: Option<NotificationRightsDeclaration>,
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
