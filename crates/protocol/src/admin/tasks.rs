//! Tasks, as operators look at them and act on many.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::consumer::{TaskStatus, TaskView};

/// A task, as operators see it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdminTaskView {
    /// Order of arrival.
    pub id: i64,
    /// The service.
    pub service: String,
    /// The consumer.
    pub client_id: String,
    /// The number of the current attempt.
    pub attempt: u32,
    /// How many workers lost it without a word.
    pub losses: u32,
    /// How many attempts failed.
    #[serde(default)]
    pub failures: u32,
    /// The host or pod that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_host: Option<String>,
    /// Until when its worker may keep silent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub lease_expires: Option<String>,
    /// When its attempt has taken too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub deadline: Option<String>,
    /// Its attempts, in their order; absent in a listing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<Vec<AttemptView>>,
    /// The tasks that name it as their parent, the newest first; absent if none does, and in a listing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children: Option<LinkedTasks>,
    /// The tasks that wait for it, the newest first; absent if none does, and in a listing. One that was told of its end
    /// waits no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_for_by: Option<LinkedTasks>,
    /// What became of telling its end, where that is to be told: `PENDING`, `SUCCESS` or `FAILURE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notification_status: Option<String>,
    /// Whose trace it is part of, where that was said: the W3C's `traceparent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// What goes with it: the W3C's `tracestate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
    /// The arguments; absent in a listing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub request: Option<Box<RawValue>>,
    /// What its consumer sees.
    pub task: TaskView,
}

/// Tasks that have to do with another one: the first 20 of them.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LinkedTasks {
    /// The tasks.
    pub tasks: Vec<LinkedTask>,
    /// Whether there are more: `GET /admin/tasks` lists them all.
    pub more: bool,
}

/// A task that has to do with another one.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LinkedTask {
    /// Its public name.
    pub task_id: String,
    /// Its service.
    pub service: String,
    /// Where it is.
    pub status: TaskStatus,
}

/// One execution of a task.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttemptView {
    /// Counted from 1.
    pub number: u32,
    /// `running`, `success`, `failure`, `cancelled`, `returned` (the worker gave it back) or `lost` (it was not heard of again).
    pub outcome: String,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub start_date: Option<String>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub end_date: Option<String>,
    /// The host or pod that ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_host: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// What kind of error it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<String>,
    /// Where it happened, as the worker's language tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_trace: Option<String>,
}

/// Which tasks to do once more, or to give up.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TasksRequest {
    /// These; at most 1000. With them, nothing else is said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 1000)]
    pub tasks: Vec<String>,
    /// Or those of this service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Of this client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// With this `correlationId`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// In one of these statuses. If absent: to be done once more, `FAILURE`; to be given up, `PENDING` and `IN_PROGRESS`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statuses: Vec<TaskStatus>,
    /// Submitted at this time or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub from: Option<String>,
    /// Submitted before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub before: Option<String>,
    /// Where the answer before left off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Only count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// What a wish to give tasks up came to.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CancelAnswer {
    /// So many are given up, or would be.
    pub cancelled: u64,
    /// So many were passed over: they had ended, or are gone.
    pub passed_over: u64,
    /// Give this as `cursor` to go on; absent when all were looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// What a wish to do tasks once more came to.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetryAnswer {
    /// So many are done once more, or would be.
    pub retried: u64,
    /// So many were passed over: they wait or run already, or are gone.
    pub passed_over: u64,
    /// Give this as `cursor` to go on; absent when all were looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A page of tasks, the newest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdminTaskPage {
    /// The tasks.
    pub tasks: Vec<AdminTaskView>,
    /// Give this as `cursor` to get the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
