//! Batches, as consumers make them and as consumers and operators are shown them.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::{
    callback::CallbackRequest,
    consumer::{SubmitAnswer, SubmitRequest},
};

/// The most tasks that a batch can be made with.
pub const MAX_BATCH: usize = 1000;

/// A batch to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NewBatchRequest {
    /// The tasks, each with its `service`; at least one unless the batch is open, and at most 1000.
    #[serde(default)]
    #[schema(value_type = Vec<SubmitRequest>, max_items = 1000)]
    pub tasks: Vec<Box<RawValue>>,
    /// Where to tell that the batch has ended: once, with what a poll of it says.
    #[serde(default)]
    pub callback: Option<CallbackRequest>,
    /// One id through a chain of tasks; tasks of the batch that have none get it. At most 200 characters.
    #[serde(default)]
    #[schema(max_length = 200)]
    pub correlation_id: Option<String>,
    /// Whether tasks may be added later, by submissions that name the batch; it ends only after it was closed.
    #[serde(default)]
    pub open: bool,
}

/// The answer to a batch that was made.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewBatchAnswer {
    /// The batch's public name.
    #[schema(format = "uuid")]
    pub batch_id: String,
    /// One answer for each task, in the same order.
    pub tasks: Vec<SubmitAnswer>,
}

/// Where a batch is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum BatchStatusName {
    /// Tasks may be added.
    Open,
    /// It was closed, and not all of its tasks have ended.
    InProgress,
    /// All of its tasks have ended.
    Ended,
}

/// A batch, as its consumer sees it, and as its callback tells of it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BatchView {
    /// The batch's public name.
    #[schema(format = "uuid")]
    pub batch_id: String,
    /// Where it is in its life.
    pub status: BatchStatusName,
    /// All its tasks.
    pub total: u64,
    /// Those that wait.
    pub pending: u64,
    /// Those that a worker has.
    pub in_progress: u64,
    /// Those that ended well.
    pub success: u64,
    /// Those that ended badly.
    pub failure: u64,
    /// Those that were given up, or purged before they ended.
    pub cancelled: u64,
    /// When it was made.
    #[schema(format = "date-time")]
    pub submition_date: String,
    /// When it was closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub close_date: Option<String>,
    /// When the last of its tasks had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub end_date: Option<String>,
    /// One id through a chain of tasks, where one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
}

/// Some batches, the newest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BatchPage {
    /// The batches.
    pub batches: Vec<BatchView>,
    /// Give this as `cursor` to get the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A batch, as operators see it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdminBatchView {
    /// The consumer.
    pub client_id: String,
    /// What became of its callback, where it has one and has ended: PENDING, SUCCESS or FAILURE.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notification_status: Option<String>,
    /// The batch.
    pub batch: BatchView,
}

/// Some batches, the newest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdminBatchPage {
    /// The batches.
    pub batches: Vec<AdminBatchView>,
    /// Give this as `cursor` to get the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
