//! What the event bus carries, and how operators look at it.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::consumer::TaskStatus;

/// What an event on `task.<service>.<what happened>` says: all of a task but its request and its result. Where an attempt ended
/// and the task goes on (`retrying`, `returned`), `attempt`, `startDate` and `workerHost` are of that one: nothing else tells of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskChanged {
    /// The task's public name.
    #[schema(format = "uuid")]
    pub task_id: String,
    /// The service, as it is spelt in URLs.
    pub service: String,
    /// The consumer; absent if it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// Where the task is in its life.
    pub status: TaskStatus,
    /// How often a worker has begun it: the number of the attempt that this is about.
    pub attempt: u32,
    /// From 0 to 100.
    pub progress: f64,
    /// Counts the changes of the task: of two events, the one with the higher number is the later one.
    pub revision: u64,
    /// When it was taken in. Absent when it just was: the event's own `timestamp` says when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub submition_date: Option<String>,
    /// When a worker began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub start_date: Option<String>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub end_date: Option<String>,
    /// The host or pod that runs it, or ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_host: Option<String>,
    /// Why it failed, for good or until it is tried again. Of a long one the beginning, with `…` at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// What kind of error it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<String>,
    /// Where it happened, as the worker's language tells it. Of a long one the beginning, with `…` at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_trace: Option<String>,
    /// One id through a chain of tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
}

/// The event bus of one process.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventBusStats {
    /// `running`, `stopping` or `stopped`.
    pub state: String,
    /// What carries events between processes; `memory` if nothing does.
    pub transport: String,
    /// Whether it runs and is connected.
    pub healthy: bool,
    /// Whether the transport is connected.
    pub connected: bool,
    /// Since when it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disconnected_since: Option<String>,
    /// Why it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How often the connection was lost.
    pub outages: u64,
    /// Since it was started.
    pub uptime_ms: u64,
    /// Events published by this process.
    pub published: u64,
    /// Times that an event was put into a subscriber's queue.
    pub delivered: u64,
    /// Times that a handler failed on an event.
    pub failed: u64,
    /// Times that an event was lost to a subscriber.
    pub dropped: u64,
    /// Events that went to the dead letters.
    pub dead_lettered: u64,
    /// Events of tasks that could not be published: the bus was away, or did not keep up.
    pub unpublished: u64,
    /// Subscriptions in this process.
    pub subscriptions: usize,
    /// Channels that were published to.
    pub channels: usize,
    /// Events that wait in subscribers' queues.
    pub queue_size: usize,
    /// Events that can wait there.
    pub queue_capacity: usize,
    /// Whether events of tasks are published: somebody, here or elsewhere, follows them.
    pub followed: bool,
}

/// The channels of the event bus.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EventChannels {
    /// In the order of their names.
    pub channels: Vec<EventChannel>,
}

/// One channel, as this process has seen it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventChannel {
    /// Its name.
    pub channel: String,
    /// Events published on it by this process.
    pub published: u64,
    /// Times that one was put into a subscriber's queue.
    pub delivered: u64,
    /// Times that a handler failed on one.
    pub failed: u64,
    /// Times that one was lost to a subscriber.
    pub dropped: u64,
    /// Times that one went to the dead letters.
    pub dead_lettered: u64,
    /// When the last one was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub last_published: Option<String>,
}

/// The subscriptions of the event bus in one process.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EventSubscriptions {
    /// The oldest first.
    pub subscriptions: Vec<EventSubscription>,
}

/// One subscription.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventSubscription {
    /// Its number in this process.
    pub id: u64,
    /// Its name; what it is subscribed to unless it has one.
    pub name: String,
    /// `stream`, `handler` or `worker`.
    pub kind: String,
    /// What it is subscribed to.
    pub patterns: Vec<String>,
    /// What happens when its queue is full: `drop`, `dead_letter` or `block`.
    pub backpressure: String,
    /// Events that wait.
    pub waiting: usize,
    /// Events that can wait.
    pub capacity: usize,
    /// Events that were put into its queue.
    pub delivered: u64,
    /// Events that its handler failed on.
    pub failed: u64,
    /// Events that were lost to it.
    pub dropped: u64,
    /// Events that went to the dead letters instead.
    pub dead_lettered: u64,
}

/// An event to be published.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PublishRequest {
    /// Where: words with dots between them, such as `orders.created`.
    #[schema(example = "orders.created")]
    pub channel: String,
    /// What: any JSON.
    #[schema(value_type = Object, example = json!({"number": 7}))]
    pub payload: Box<RawValue>,
}

/// What became of it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PublishAnswer {
    /// The event's name.
    #[schema(format = "uuid")]
    pub event_id: String,
    /// How many have it: subscribers in memory, processes over Redis; 1 over PostgreSQL, which does not count.
    pub delivered: usize,
    /// How many failed on it, or had no room.
    pub failed: usize,
    /// How long that took, in milliseconds.
    pub duration_ms: f64,
}

/// An event, as it is streamed to operators.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct StreamedEvent {
    /// Its name.
    #[schema(format = "uuid")]
    pub id: String,
    /// Where it was published.
    pub channel: String,
    /// When, by the publisher's clock.
    #[schema(format = "date-time")]
    pub timestamp: String,
    /// Which process published it.
    pub source: String,
    /// What it says.
    #[schema(value_type = Object)]
    pub payload: Box<RawValue>,
    /// What was said beside it.
    #[serde(default)]
    pub metadata: std::collections::BTreeMap<String, String>,
}
