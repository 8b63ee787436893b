//! Callbacks, as consumers ask for them and as consumers and operators are shown them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::HumanDuration;

/// Where the server reports what happens with a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct CallbackRequest {
    /// The type of callback: `https`, `http` (if the setting `callbacks.allow_http` is on), `amqp` (if the server has a
    /// broker) or `notification` (to web pages).
    #[serde(rename = "type")]
    #[schema(example = "https")]
    pub kind: String,
    /// The URL of the receiver. For the types `https` and `http`, which need it. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "https://example.org/done")]
    pub url: Option<String>,
    /// The name of one of the client's `destinations`. For the type `amqp`, which needs it. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// Who is notified. For the type `notification`, which needs it, and for which the client needs the right `emit`.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<CallbackAudience>,
    /// Which events are reported: any of `started`, `progress`, `success`, `failure`, `cancelled`. Default: `[success,
    /// failure, cancelled]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<String>>,
    /// `gzip` to compress the body. Default: the body is sent uncompressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<String>,
}

/// An audience of notifications: targets of one type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CallbackAudience {
    /// `USER`, or another type of audience.
    #[serde(rename = "type")]
    #[schema(example = "USER")]
    pub kind: String,
    /// The targets.
    #[schema(min_items = 1, example = json!(["ann"]))]
    pub targets: Vec<String>,
}

/// One try to tell.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CallbackAttemptView {
    /// Counted from 1.
    pub number: u32,
    /// When it began.
    #[schema(format = "date-time")]
    pub date: String,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// The answer's HTTP status, where there was an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why it did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The first bytes of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

/// A callback.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CallbackView {
    /// Its name: the `webhook-id` that the receiver sees, the same however often it is sent.
    pub callback_id: String,
    /// The task.
    #[schema(format = "uuid")]
    pub task_id: String,
    /// The task's service.
    pub service: String,
    /// The task's client.
    pub client_id: String,
    /// What is told: `started`, `progress`, `success`, `failure` or `cancelled`.
    pub event: String,
    /// `PENDING`, `SUCCESS` or `FAILURE`.
    pub notification_status: String,
    /// The kind of callback.
    #[serde(rename = "type")]
    pub kind: String,
    /// The URL, or the name of the destination.
    pub target: String,
    /// How many times it was taken up to be sent.
    pub attempts: u32,
    /// When it came to be.
    #[schema(format = "date-time")]
    pub created_date: String,
    /// When it is to be sent next. Absent once it has ended, and while it waits for the one before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub next_attempt_date: Option<String>,
    /// When it was told, or given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub end_date: Option<String>,
    /// The tries; absent in a listing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tries: Option<Vec<CallbackAttemptView>>,
}

/// A page of callbacks, the newest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CallbackPageView {
    /// The callbacks. There may be none, and yet a next page: a page looks at so many, not at all.
    pub callbacks: Vec<CallbackView>,
    /// Give this as `cursor` to get the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Which callbacks to send again.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RedeliverRequest {
    /// All that failed since then.
    #[schema(format = "date-time")]
    pub failed_since: String,
    /// Only of this service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Only of this client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
}

/// How many callbacks will be sent again.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
pub struct RedeliverAnswer {
    /// So many.
    pub redelivered: u64,
}

/// A secret that callbacks are signed with.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SigningSecretView {
    /// `whsec_` and base64, as libraries for Standard Webhooks take it.
    pub secret: String,
    /// Since when it is used.
    #[schema(format = "date-time")]
    pub created_date: String,
    /// Until when it is used as well, once another one has replaced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub expires_date: Option<String>,
}

/// What a client's callbacks are signed with.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SigningSecrets {
    /// The client.
    pub client_id: String,
    /// The newest first; two while one replaces the other.
    pub secrets: Vec<SigningSecretView>,
}

/// A new secret to sign with.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RotateSigningRequest {
    /// How long the old one is used as well; `24h` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "24h")]
    pub overlap: Option<HumanDuration>,
}
