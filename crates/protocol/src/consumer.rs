//! What consumers send and are sent.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::{ErrorBody, HumanDuration, callback::CallbackRequest, retry::RetryDeclaration};

/// A task to be done.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SubmitRequest {
    /// The arguments: a JSON object that conforms to the service's schema.
    #[schema(value_type = Object, example = json!({"sleep": 2, "mustSucceed": true}))]
    pub body: Box<RawValue>,
    /// Where to tell what becomes of the task.
    #[serde(default)]
    pub callback: Option<CallbackRequest>,
    /// One id through a chain of tasks; at most 200 characters.
    #[serde(default)]
    #[schema(max_length = 200)]
    pub correlation_id: Option<String>,
    /// How urgent it is, from 0 to 9; 4 if absent. More urgent ones go first, and none waits for ever.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 9)]
    pub priority: Option<u8>,
    /// Not to be started before this time.
    #[serde(default)]
    #[schema(format = "date-time")]
    pub scheduled_date: Option<String>,
    /// Not to be started before so long from now, e.g. `10m`; instead of a date.
    #[serde(default)]
    #[schema(value_type = Option<String>, pattern = "^([0-9]{1,6}(d|h|m|s|ms))+$", example = "10m")]
    pub delay: Option<HumanDuration>,
    /// If no worker has started it so long after it was to start, it fails; e.g. `1h`.
    #[serde(default)]
    #[schema(value_type = Option<String>, pattern = "^([0-9]{1,6}(d|h|m|s|ms))+$", example = "1h")]
    pub expires_after: Option<HumanDuration>,
    /// How long an attempt may take; the service's setting if absent.
    #[serde(default)]
    #[schema(value_type = Option<String>, pattern = "^([0-9]{1,6}(d|h|m|s|ms))+$", example = "5m")]
    pub timeout: Option<HumanDuration>,
    /// How often to try again if it fails: `none`, `classic` or a rule; the service's setting if absent.
    #[serde(default)]
    pub retry: Option<RetryDeclaration>,
    /// If you have a task with this key on the service that has not ended, that one is the answer, and no new one is made; at
    /// most 200 characters.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 200)]
    pub unique_key: Option<String>,
    /// With `uniqueKey`: for so long after the submission, whether that task has ended or not; e.g. `1d`.
    #[serde(default)]
    #[schema(value_type = Option<String>, pattern = "^([0-9]{1,6}(d|h|m|s|ms))+$", example = "1d")]
    pub unique_for: Option<HumanDuration>,
    /// What it waits for: it is not started before.
    #[serde(default)]
    pub after: Option<AfterRequest>,
    /// The task that it is a part of: one of yours, or one that you are working on. It gets that one's correlation id and trace,
    /// unless it has its own.
    #[serde(default)]
    #[schema(format = "uuid")]
    pub parent_id: Option<String>,
    /// The open batch that it is to belong to.
    #[serde(default)]
    #[schema(format = "uuid")]
    pub batch_id: Option<String>,
    /// Among many tasks that are submitted in one call: a word by which later ones can wait for this one.
    #[serde(default, rename = "ref")]
    #[schema(min_length = 1, max_length = 100)]
    pub reference: Option<String>,
    /// In a batch: the service. Elsewhere the address says it.
    #[serde(default)]
    pub service: Option<String>,
    /// Whose trace it is part of, as the headers say it.
    #[serde(skip)]
    #[schema(ignore)]
    pub trace: TraceHeaders,
}

/// The headers of a W3C trace context, as they came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceHeaders {
    /// `traceparent`.
    pub traceparent: Option<String>,
    /// `tracestate`.
    pub tracestate: Option<String>,
}

/// What a task waits for.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AfterRequest {
    /// These tasks of yours, of any service; with `refs`, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub tasks: Vec<String>,
    /// Among many tasks that are submitted in one call: those before it with these words as `ref`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub refs: Vec<String>,
    /// When it need not wait any more; `allSucceeded` if absent.
    #[serde(default)]
    pub when: AfterWhen,
}

/// When a task need not wait for others any more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum AfterWhen {
    /// All of them ended well. When one ends otherwise, it fails, with `errorKind` `dependency`.
    #[default]
    AllSucceeded,
    /// All of them ended, however they did.
    AllEnded,
    /// One of them ended, however it did.
    AnyEnded,
}

/// What a task waits for, or waited for.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AfterView {
    /// The tasks.
    pub tasks: Vec<PrerequisiteView>,
    /// When it need not wait any more.
    pub when: AfterWhen,
}

/// A task that another one waits for.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrerequisiteView {
    /// Its public name.
    #[schema(format = "uuid")]
    pub task_id: String,
    /// How it ended, as far as the other was told; absent while it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<TaskStatus>,
}

impl SubmitRequest {
    /// A submission on the service's terms.
    pub fn new(body: Box<RawValue>) -> Self {
        Self {
            body,
            callback: None,
            correlation_id: None,
            priority: None,
            scheduled_date: None,
            delay: None,
            expires_after: None,
            timeout: None,
            retry: None,
            unique_key: None,
            unique_for: None,
            after: None,
            parent_id: None,
            batch_id: None,
            reference: None,
            service: None,
            trace: TraceHeaders::default(),
        }
    }
}

/// The answer to a submission.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubmitAnswer {
    /// The task's public name.
    #[schema(format = "uuid")]
    pub task_id: String,
    /// Its place in its service's queue, counted from 1.
    #[schema(minimum = 1)]
    pub task_position: u64,
    /// When it may start, judging by the last minutes. Absent when nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub estimated_start_date: Option<String>,
    /// True if this is a task that was there before, with the same `uniqueKey`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

/// Many tasks to be done.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct BatchRequest {
    /// The tasks, at most 1000.
    #[schema(value_type = Vec<SubmitRequest>, min_items = 1, max_items = 1000)]
    pub tasks: Vec<Box<RawValue>>,
}

/// What became of one task of a batch: like the answer to a single submission.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(tag = "status", rename_all = "lowercase")]
pub enum BatchEntry {
    /// It was taken.
    Success {
        /// The answer.
        data: SubmitAnswer,
    },
    /// It was refused.
    Error {
        /// Why.
        error: ErrorBody,
    },
}

/// What became of a batch.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BatchAnswer {
    /// One entry per task, in the same order.
    pub tasks: Vec<BatchEntry>,
}

/// How full a service's queue is.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BacklogView {
    /// Tasks that wait for a worker.
    pub queued: u64,
    /// Tasks that a worker has.
    pub running: u64,
    /// Both together: what workers are needed for.
    pub backlog: u64,
    /// How long the oldest task that waits has been waiting; 0 if none does.
    #[schema(minimum = 0)]
    pub oldest_pending_seconds: f64,
}

/// Where a task is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum TaskStatus {
    /// Waiting for a worker.
    Pending,
    /// A worker has it.
    InProgress,
    /// It ended well.
    Success,
    /// It ended badly.
    Failure,
    /// It was given up.
    Cancelled,
}

impl TaskStatus {
    /// Whether nothing can change it any more.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Success | Self::Failure | Self::Cancelled)
    }
}

/// A task, as its consumer sees it. Which fields there are depends on the status.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskView {
    /// The task's public name.
    #[schema(format = "uuid")]
    pub task_id: String,
    /// Where it is in its life.
    pub status: TaskStatus,
    /// PENDING: its place in its service's queue, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub task_position: Option<u64>,
    /// PENDING: when it may start, judging by the last minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub estimated_start_date: Option<String>,
    /// When it was taken in.
    #[schema(format = "date-time")]
    pub submition_date: String,
    /// For when it was asked, if not for at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub scheduled_date: Option<String>,
    /// PENDING after a failure: when it is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub retry_date: Option<String>,
    /// How urgent it is, where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 9)]
    pub priority: Option<u8>,
    /// When a worker started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub start_date: Option<String>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub end_date: Option<String>,
    /// From 0 to 100, as the worker reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 100)]
    pub progress: Option<f64>,
    /// SUCCESS: the worker's result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub response: Option<Box<RawValue>>,
    /// FAILURE: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// FAILURE: what kind of error it was, where that is known: a word for programs. `timeout`, `expired`, `lost` and `dependency`
    /// are ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<String>,
    /// One id through a chain of tasks, where one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// The task that it is a part of, where one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "uuid")]
    pub parent_id: Option<String>,
    /// The batch that it belongs to, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "uuid")]
    pub batch_id: Option<String>,
    /// What it waits for, or waited for; in a poll only, not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<AfterView>,
}

/// A page of tasks, the newest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskPage {
    /// The tasks.
    pub tasks: Vec<TaskView>,
    /// Give this as `cursor` to get the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A service that the caller may use.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceView {
    /// Its name.
    pub service_name: String,
    /// What the caller may do on it: `consume`, `work`.
    pub roles: Vec<String>,
    /// Whether it is paused: tasks are taken in but not handed out.
    pub paused: bool,
    /// What a request's body must conform to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub json_schema: Option<Box<RawValue>>,
}

/// The services that the caller may use.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ServiceList {
    /// In the order of their names.
    pub services: Vec<ServiceView>,
}

/// How long a `?wait=` may be.
pub const MAX_WAIT: HumanDuration = HumanDuration(std::time::Duration::from_secs(120));
