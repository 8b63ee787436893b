//! What operators see of the broker: how it is, and the messages that were set aside.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How the broker is.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BrokerView {
    /// `none`, `up`, `blocked` or `away`.
    #[schema(example = "up")]
    pub state: String,
    /// Why, if it is not up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The services whose tasks it carries.
    pub services: Vec<String>,
    /// Those whose queue is empty while tasks wait that were published to it: purged, or dropped by a policy.
    /// `POST /admin/services/{service}/redispatch` publishes them again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
}

/// A message of a worker that could not be understood.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterView {
    /// Its name.
    pub id: String,
    /// The service whose workers sent it.
    pub service: String,
    /// Why it was set aside.
    pub reason: String,
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub date: Option<String>,
    /// How long it is, in bytes.
    pub bytes: usize,
    /// What it says; what is not UTF-8 is replaced. A list shows the beginning only.
    pub message: String,
}

/// Messages that were set aside.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetters {
    /// The oldest first, service by service.
    pub dead_letters: Vec<DeadLetterView>,
}

/// Which of a service's dead letters are meant.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LettersRequest {
    /// Those with these names; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 1000)]
    pub ids: Option<Vec<String>>,
}

/// How many dead letters were meant.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
pub struct LettersAnswer {
    /// So many.
    pub count: u64,
}
