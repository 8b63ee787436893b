//! Outboxes, as operators declare and are shown them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{HumanDuration, admin::SecretDeclaration};

/// How the rows of an outbox are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OutboxMode {
    /// Change capture where the database allows it, polling otherwise.
    #[default]
    Auto,
    /// The table is read again and again.
    Polling,
    /// The database's write-ahead log is read.
    Capture,
}

impl OutboxMode {
    /// Its name in a declaration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Polling => "polling",
            Self::Capture => "capture",
        }
    }
}

/// How payloads are wrapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EnvelopeName {
    /// The payload as it is.
    #[default]
    Payload,
    /// A CloudEvent: one JSON object with the payload in it.
    CloudEvents,
    /// A CloudEvent whose attributes are headers.
    #[serde(rename = "cloudevents-binary")]
    CloudEventsBinary,
}

/// How often a message is retried before it is parked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct OutboxRetryDeclaration {
    /// A message is parked after this many failed tries. Default: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// How long to wait before the second try. At most `1d`. Default: `1s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]+(d|h|m|s|ms))+$", example = "1s")]
    pub base: Option<HumanDuration>,
    /// Each wait is this many times as long as the one before. Default: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    pub factor: Option<f64>,
    /// The longest wait. At most `1d`. Default: `5m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]+(d|h|m|s|ms))+$", example = "5m")]
    pub cap: Option<HumanDuration>,
}

/// Exchanges of RabbitMQ. The destination is the exchange.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RabbitMqSinkDeclaration {
    /// Where the broker is, `amqp://user:password@host:5672/vhost`. Either the text itself, or `{env: NAME}`. It is
    /// shown without its password.
    pub url: SecretDeclaration,
}

/// Streams of Redis. The destination is the stream's key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RedisSinkDeclaration {
    /// Where the server is, `redis://user:password@host:6379/0`. Either the text itself, or `{env: NAME}`. It is shown
    /// without its password.
    pub url: SecretDeclaration,
    /// About how many entries a stream keeps; older ones are removed. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_length: Option<u64>,
}

/// Topics of Kafka. The destination is the topic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct KafkaSinkDeclaration {
    /// Brokers to begin with, `host:9092,host:9092`.
    pub brokers: String,
    /// Settings of the client, by their names in Kafka. Values are texts, or `{env: NAME}`. Those whose names contain
    /// `password` or `secret` are never shown; a setting that is absent keeps its stored secret. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = Object)]
    pub settings: BTreeMap<String, SecretDeclaration>,
}

/// HTTP endpoints. The destination is the URL.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct HttpSinkDeclaration {
    /// The secret that signs requests, like that of a client: `whsec_` and the base64 of 24 to 64 bytes. Either the text
    /// itself, or `{env: NAME}`. It is never shown. Default: an existing outbox keeps its secret, a new one needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_secret: Option<SecretDeclaration>,
}

/// The event bus of this server. The destination is the channel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct BusSinkDeclaration {}

/// Tasks of this server. The destination is the service; each message becomes one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TaskSinkDeclaration {
    /// The client that the tasks belong to. It needs the role `consume` on the services.
    pub client_id: String,
}

/// Notifications of this server, to web pages. The destination becomes their `topic`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NotificationSinkDeclaration {
    /// Who gets them. Default: each payload is a whole notification, with its own `routing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<NotificationAudienceDeclaration>,
    /// What they are for: `REALTIME`, `SYSTEM` or `NOTIFICATION`. Default: `REALTIME`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^(REALTIME|SYSTEM|NOTIFICATION)$")]
    pub kind: Option<String>,
}

/// The audience of each message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NotificationAudienceDeclaration {
    /// The type of audience.
    #[serde(rename = "type")]
    #[schema(example = "USER")]
    pub kind: String,
    /// Templates of targets, such as `{payload.after.user_id}`. One whose value is missing names nobody, one whose value is a
    /// JSON array names several. A message without any target is passed over.
    #[schema(min_items = 1)]
    pub targets: Vec<String>,
}

/// Where the messages of an outbox go: exactly one of these.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SinkDeclaration {
    /// Exchanges of RabbitMQ. Default: another sink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rabbitmq: Option<RabbitMqSinkDeclaration>,
    /// Streams of Redis. Default: another sink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redis: Option<RedisSinkDeclaration>,
    /// Topics of Kafka. Default: another sink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kafka: Option<KafkaSinkDeclaration>,
    /// HTTP endpoints. Default: another sink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSinkDeclaration>,
    /// The event bus of this server. Default: another sink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<BusSinkDeclaration>,
    /// Tasks of this server. Default: another sink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskSinkDeclaration>,
    /// Notifications of this server. Default: another sink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notifications: Option<NotificationSinkDeclaration>,
}

impl SinkDeclaration {
    /// The names of the sinks that are given, as in a declaration.
    pub fn kinds(&self) -> Vec<&'static str> {
        [
            ("rabbitmq", self.rabbitmq.is_some()),
            ("redis", self.redis.is_some()),
            ("kafka", self.kafka.is_some()),
            ("http", self.http.is_some()),
            ("bus", self.bus.is_some()),
            ("task", self.task.is_some()),
            ("notifications", self.notifications.is_some()),
        ]
        .into_iter()
        .filter_map(|(kind, given)| given.then_some(kind))
        .collect()
    }
}

/// An outbox: a table of events in any database, and where they are published.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct OutboxDeclaration {
    /// The name of the outbox, as it appears in URLs.
    pub outbox_name: String,
    /// The database that has the table, `postgres://user:password@host/database` or `sqlite:file.db`. Either the text
    /// itself, or `{env: NAME}`. It is shown without its password. A URL without a password that is otherwise the stored
    /// one keeps the stored password.
    pub database_url: SecretDeclaration,
    /// The table, `name` or `schema.name`. Default: `outbox`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// How rows are found. `polling`: the table is read every `pollInterval`, and at once where its trigger tells of new
    /// rows. `capture`: the database's write-ahead log is read. `auto`: capture where the database allows it, polling
    /// otherwise. Default: `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<OutboxMode>,
    /// A template of a message's key. Messages of one key arrive in order. Default: `{aggregate_id}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// A template of where a message goes: exchange, stream, topic, URL, channel or service. A row with a `destination`
    /// of its own goes there. Default: `outbox.event.{event_type}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// A template of RabbitMQ's routing key. Other sinks ignore it. Default: `{event_type}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing_key: Option<String>,
    /// Headers that every message gets; the values are templates. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = Object)]
    pub headers: BTreeMap<String, String>,
    /// How payloads are wrapped. `payload`: not at all. `cloudevents`: as CloudEvents 1.0, one JSON object.
    /// `cloudevents-binary`: as CloudEvents with the attributes in headers. Default: `payload`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envelope: Option<EnvelopeName>,
    /// Where messages go: exactly one of the sinks.
    pub sink: SinkDeclaration,
    /// How often a message that fails is retried before it is parked. Default: ten tries, with pauses of 1 s to 5 min.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<OutboxRetryDeclaration>,
    /// How long published rows are kept. Default: `7d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]+(d|h|m|s|ms))+$", example = "7d")]
    pub retention: Option<HumanDuration>,
    /// Whether published rows are deleted at once instead of marked. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_published: Option<bool>,
    /// How often the table is read where nothing tells of new rows. Between `10ms` and `1h`. Default: `500ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]+(d|h|m|s|ms))+$", example = "500ms")]
    pub poll_interval: Option<HumanDuration>,
    /// How many rows are published at once. Default: 500.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100_000)]
    pub batch_rows: Option<u32>,
    /// A slot for which the database keeps more bytes of WAL than this is dropped, and the outbox is polled for a while: the
    /// database's disk comes first. Default: 1073741824 (1 GiB).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1_048_576)]
    pub max_retained_wal: Option<u64>,
    /// How long the share of a process that died stays its own; then the other processes take it over. Between `1s` and
    /// `10m`. Default: `15s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]+(d|h|m|s|ms))+$", example = "15s")]
    pub lease: Option<HumanDuration>,
    /// Whether the outbox is paused: nothing is published, and its rows wait. Default: a new outbox is not paused, an
    /// existing one keeps its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// What a relay does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RelayActivity {
    /// It waits until it has a share of the work.
    #[default]
    Standby,
    /// It reads the table.
    Polling,
    /// It reads what is left in the table before it captures.
    CatchingUp,
    /// It reads the database's write-ahead log.
    Capturing,
}

impl RelayActivity {
    /// Its name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Standby => "standby",
            Self::Polling => "polling",
            Self::CatchingUp => "catching-up",
            Self::Capturing => "capturing",
        }
    }
}

/// What one process does for an outbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RelayState {
    /// The process.
    pub process: String,
    /// What it does at present.
    pub activity: RelayActivity,
    /// The partitions of keys that it has.
    pub partitions: u64,
    /// Messages that it published since it began.
    pub published: u64,
    /// Tries of it that failed since it began.
    pub failed: u64,
    /// Why it does not capture, if it should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_not_capture: Option<String>,
    /// Bytes of WAL that the database keeps for the outbox's slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retained_wal: Option<u64>,
    /// Bytes of WAL that are not confirmed yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unconfirmed_wal: Option<u64>,
    /// Why nothing goes on, if that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// An outbox, as operators see it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutboxState {
    /// As it is declared, defaults filled in, without passwords.
    #[serde(flatten)]
    pub declaration: OutboxDeclaration,
    /// The processes that publish it, in the order of their names.
    pub relays: Vec<RelayState>,
    /// Rows that are not published, counted up to 10,000; absent while nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpublished: Option<u64>,
    /// Whether there are more than were counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more_unpublished: bool,
    /// How many seconds old the oldest unpublished row is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_seconds: Option<f64>,
    /// Rows that are parked; absent while nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked: Option<u64>,
    /// Messages that these processes published since they began.
    pub published: u64,
    /// Tries of these processes that failed since they began.
    pub failed: u64,
    /// Why nothing goes on, if that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// The outboxes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct OutboxStates {
    /// In the order of their names.
    pub outboxes: Vec<OutboxState>,
}

/// An event that is not retried until an operator decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParkedEvent {
    /// The message's id: the row's `id`.
    pub id: String,
    /// Its key. Later messages of this key wait behind it.
    pub key: String,
    /// What happened.
    pub event_type: String,
    /// How often it was tried.
    pub retry_count: u32,
    /// Why the last try failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The parked events of an outbox.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParkedEvents {
    /// The outbox.
    pub outbox_name: String,
    /// The oldest first.
    pub parked: Vec<ParkedEvent>,
}

/// Which parked events to retry or to skip: some, or all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ParkedRequest {
    /// Their ids, at most 1000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
    /// All of them instead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

/// How many parked events were retried or skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParkedAnswer {
    /// How many. An id that is not parked does not count.
    pub changed: u64,
}
