//! Notification sources, as operators declare and are shown them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::outbox::NotificationAudienceDeclaration;

/// A notification source: events that become notifications.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NotificationSourceDeclaration {
    /// The name of the source, as it appears in URLs. It is the `emitter` of its notifications, and a part of their ids.
    pub source_name: String,
    /// Events of this server's event bus. Default: another kind of source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<BusSourceDeclaration>,
    /// Records of Kafka topics. Refused for now: this version has no Kafka consumers. Default: another kind of source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kafka: Option<KafkaSourceDeclaration>,
    /// Which events are meant: templates, such as `{payload.status}`, each with the values that it may have. An event must meet
    /// all of them. Default: every event.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = Object)]
    pub when: BTreeMap<String, ConditionDeclaration>,
    /// Who gets the notifications. Default: each payload is a whole notification, with its own `routing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<NotificationAudienceDeclaration>,
    /// The payload: any JSON, whose texts are templates. A text that is one value and nothing else, such as `{payload.order}`,
    /// becomes that value; a text whose value is missing becomes null. Default: the payload of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub payload: Option<Value>,
    /// What they are for: `REALTIME`, `SYSTEM` or `NOTIFICATION`, or a template of it. Default: `REALTIME`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Who is served first under load: `LOW`, `NORMAL` or `HIGH`, or a template of it. Default: `NORMAL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
    /// What happened: `create`, `update` or `delete`, or a template of it. Default: what Debezium's envelope says, where an event
    /// is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Whether they must be acknowledged, and how they are sent again. Default: they need not be acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<NotificationRetryDeclaration>,
    /// Whether the source is paused: events are not heard, and do not become notifications later. Default: a new source is not
    /// paused, an existing one keeps its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// Events of the event bus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct BusSourceDeclaration {
    /// Channels, or patterns of channels, such as `task.*.success` or `orders.>`. At least one.
    #[schema(min_items = 1)]
    pub channels: Vec<String>,
}

/// Records of Kafka topics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct KafkaSourceDeclaration {
    /// Brokers to begin with, `host:9092,host:9092`.
    pub brokers: String,
    /// The topics.
    #[schema(min_items = 1)]
    pub topics: Vec<String>,
}

/// The values that a template may have: one, or a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ConditionDeclaration {
    /// This one.
    One(String),
    /// Any of these.
    Several(Vec<String>),
}

impl ConditionDeclaration {
    /// The values.
    pub fn values(&self) -> &[String] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Several(values) => values,
        }
    }
}

/// Whether notifications must be acknowledged, and how they are sent again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NotificationRetryDeclaration {
    /// Whether each member must acknowledge them. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack_required: Option<bool>,
    /// Whether they are sent again to those who have not. Default: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// How often they are sent again before they go to the error log. Default: 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// How the pauses grow: `FIXED`, `LINEAR` or `EXPONENTIAL`. Default: `EXPONENTIAL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<String>,
}

/// What one process does for a notification source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NotificationSourceProcess {
    /// The process.
    pub process: String,
    /// Whether it hears events.
    pub listening: bool,
    /// Events that became notifications by way of this process, since it began.
    pub emitted: u64,
    /// Events that were notifications already: another process was faster.
    pub known: u64,
    /// Events that are for nobody, or do not meet the conditions.
    pub passed_over: u64,
    /// Events that could not become notifications.
    pub failed: u64,
    /// Why the last event that failed did, or why nothing is heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// A notification source, as operators see it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotificationSourceState {
    /// As it is declared.
    #[serde(flatten)]
    pub declaration: NotificationSourceDeclaration,
    /// The processes that hear its events, in the order of their names.
    pub processes: Vec<NotificationSourceProcess>,
    /// Events that became notifications by way of these processes, since they began.
    pub emitted: u64,
    /// Events that could not, in any of these processes.
    pub failed: u64,
    /// Why nothing is heard, or why the last event that failed did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// The notification sources.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotificationSourceStates {
    /// In the order of their names.
    pub notification_sources: Vec<NotificationSourceState>,
}
