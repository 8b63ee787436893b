//! What workers send and are sent, the same over every transport.
//!
//! Workers in the field exist in two spellings, `taskId/messageType/hostName/errorMessage` and
//! `task_id/message_type/hostname/error_message`. Both are understood, and what is sent to a worker carries both.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::HumanDuration;

/// The most tasks that one claim can ask for.
pub const MAX_CLAIM: usize = 1000;

/// The most messages, heartbeats or returns in one call.
pub const MAX_MESSAGES: usize = 1000;

/// A worker's wish for tasks.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ClaimRequest {
    /// As many as it can use; 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub max: Option<usize>,
    /// How long to wait for the first one, e.g. `30s`; not at all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]{1,6}(d|h|m|s|ms))+$", example = "30s")]
    pub wait: Option<HumanDuration>,
    /// How long the worker may keep silent on a task before it is given to another; the service's setting if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]{1,6}(d|h|m|s|ms))+$", example = "60s")]
    pub lease: Option<HumanDuration>,
    /// The host or pod that asks; shown beside the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 255)]
    pub host_name: Option<String>,
}

/// The kinds of messages.
pub const SUBMISSION: &str = "submission";

/// The part of a submission that the worker works on.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SubmissionData {
    /// Always `submission`.
    #[serde(rename = "messageType")]
    pub message_type: String,
    /// The same, in the other spelling.
    #[serde(rename = "message_type", default)]
    pub message_type_snake: String,
    /// The arguments.
    #[schema(value_type = Object)]
    pub body: Box<RawValue>,
}

/// A task, as it is handed to a worker.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SubmissionMessage {
    /// The task's public name.
    #[serde(rename = "taskId")]
    #[schema(format = "uuid")]
    pub task_id: String,
    /// The same, in the other spelling.
    #[serde(rename = "task_id", default)]
    pub task_id_snake: String,
    /// The number of this attempt. Messages that carry it are fenced: they count only while it is the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Until when the worker may keep silent.
    #[serde(rename = "leaseExpires", default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub lease_expires: Option<String>,
    /// One id through a chain of tasks, where one was given.
    #[serde(rename = "correlationId", default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// Whose trace it is part of, where that was said: the W3C's `traceparent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// What goes with it: the W3C's `tracestate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
    /// Until when the result is of use, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub deadline: Option<String>,
    /// How long an attempt may take, in milliseconds, where a broker carries the task: nobody knows yet when it begins.
    #[serde(rename = "timeoutMs", default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How often the task had changed when a broker was given it; 0 if absent. A [`StopMessage`] says which ones it means by this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// What is to be done.
    pub data: SubmissionData,
}

impl SubmissionMessage {
    /// A submission in both spellings.
    pub fn new(task_id: String, body: Box<RawValue>) -> Self {
        Self {
            task_id_snake: task_id.clone(),
            task_id,
            attempt: None,
            lease_expires: None,
            correlation_id: None,
            traceparent: None,
            tracestate: None,
            deadline: None,
            timeout_ms: None,
            revision: None,
            data: SubmissionData {
                message_type: SUBMISSION.to_owned(),
                message_type_snake: SUBMISSION.to_owned(),
                body,
            },
        }
    }
}

/// What a claim got.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ClaimAnswer {
    /// The tasks; none if none came in time.
    pub tasks: Vec<SubmissionMessage>,
}

/// What a worker says of a task.
#[derive(Debug, Clone)]
pub enum Report {
    /// It has begun.
    Started,
    /// How far it is.
    Progress {
        /// From 0 to 100.
        progress: f64,
    },
    /// It has a result.
    Success {
        /// The result.
        response: Box<RawValue>,
    },
    /// It could not be done; why.
    Failure(FailureReport),
    /// The worker gives it back unfinished.
    Returned,
}

/// Why a task could not be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FailureReport {
    /// For people.
    pub error_message: String,
    /// A word for programs.
    pub error_kind: Option<String>,
    /// Where it happened, as the worker's language tells it.
    pub error_trace: Option<String>,
    /// Whether trying again may help; the service's policy decides if the worker does not say.
    pub retryable: Option<bool>,
    /// How long to wait before it is tried again; the service's policy decides if the worker does not say.
    pub retry_after: Option<HumanDuration>,
}

/// A message from a worker, understood.
#[derive(Debug, Clone)]
pub struct WorkerMessage {
    /// The task it speaks of.
    pub task_id: String,
    /// The attempt it speaks of, where the worker says so.
    pub attempt: Option<u32>,
    /// The host or pod that speaks, where the worker says so.
    pub host_name: Option<String>,
    /// What it says.
    pub report: Report,
}

/// Why a message could not be understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misunderstood(pub String);

/// A message from a worker as it stands on the wire. Both spellings of a name may be there; the first one wins.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct WireMessage {
    /// The task's public name.
    #[serde(rename = "taskId", default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// The same, in the other spelling.
    #[serde(rename = "task_id", default, skip_serializing_if = "Option::is_none")]
    pub task_id_snake: Option<String>,
    /// The attempt it speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// What it says.
    #[serde(default)]
    pub data: WireReport,
}

/// What a worker says of a task, as it stands on the wire.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct WireReport {
    /// `started`, `progress`, `success`, `failure` or `returned`.
    #[serde(rename = "messageType", default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "progress")]
    pub message_type: Option<String>,
    /// The same, in the other spelling.
    #[serde(rename = "message_type", default, skip_serializing_if = "Option::is_none")]
    pub message_type_snake: Option<String>,
    /// The host or pod that runs it, for `started`; with a result it stands for a `started` that was not sent.
    #[serde(rename = "hostName", default, skip_serializing_if = "Option::is_none")]
    pub host_name: Option<String>,
    /// The same, in the other spelling.
    #[serde(rename = "hostname", default, skip_serializing_if = "Option::is_none")]
    pub host_name_lower: Option<String>,
    /// progress: from 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<f64>,
    /// success: the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub response: Option<Box<RawValue>>,
    /// failure: why; a text, but any JSON is taken.
    #[serde(rename = "errorMessage", default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub error_message: Option<Box<RawValue>>,
    /// The same, in the other spelling.
    #[serde(rename = "error_message", default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub error_message_snake: Option<Box<RawValue>>,
    /// failure: false if trying again would not help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    /// failure: what kind of error it is, a word for programs.
    #[serde(rename = "errorKind", default, skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<String>,
    /// failure: where it happened, as the worker's language tells it.
    #[serde(rename = "errorTrace", default, skip_serializing_if = "Option::is_none")]
    pub error_trace: Option<String>,
    /// failure: how long to wait before it is tried again, if it is; e.g. `30s`.
    #[serde(rename = "retryAfter", default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]{1,6}(d|h|m|s|ms))+$", example = "30s")]
    pub retry_after: Option<HumanDuration>,
}

impl WireMessage {
    /// Reads either spelling.
    pub fn understand(self) -> Result<WorkerMessage, Misunderstood> {
        let missing = |what: &str| Misunderstood(format!("{what} is missing"));
        let task_id = self.task_id.or(self.task_id_snake).ok_or_else(|| missing("taskId"))?;
        let data = self.data;
        let kind = data.message_type.or(data.message_type_snake).ok_or_else(|| missing("data.messageType"))?;
        let report = match kind.as_str() {
            "started" => Report::Started,
            "returned" => Report::Returned,
            "progress" => Report::Progress { progress: data.progress.ok_or_else(|| missing("data.progress"))? },
            "success" => Report::Success { response: data.response.unwrap_or_else(|| RawValue::NULL.to_owned()) },
            "failure" => Report::Failure(FailureReport {
                error_message: data
                    .error_message
                    .or(data.error_message_snake)
                    .map(|raw| as_text(&raw))
                    .unwrap_or_default(),
                error_kind: data.error_kind,
                error_trace: data.error_trace,
                retryable: data.retryable,
                retry_after: data.retry_after,
            }),
            other => return Err(Misunderstood(format!("messageType {other:?} is unknown"))),
        };
        Ok(WorkerMessage { task_id, attempt: self.attempt, host_name: data.host_name.or(data.host_name_lower), report })
    }
}

/// An error message that is not a string is shown as the JSON it is.
fn as_text(raw: &RawValue) -> String {
    serde_json::from_str::<String>(raw.get()).unwrap_or_else(|_| raw.get().to_owned())
}

/// Messages from a worker, one or many.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MessagesRequest {
    /// The messages, at most 1000.
    #[schema(value_type = Vec<WireMessage>, min_items = 1, max_items = 1000)]
    pub messages: Vec<Box<RawValue>>,
}

/// A task and the attempt that speaks of it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct HeldTask {
    /// The task's public name.
    pub task_id: String,
    /// The attempt, as the claim gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

/// A worker is alive and still has these tasks.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct HeartbeatRequest {
    /// The tasks, at most 1000.
    #[schema(min_items = 1, max_items = 1000)]
    pub tasks: Vec<HeldTask>,
    /// How long the worker may keep silent from now on; the service's setting if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]{1,6}(d|h|m|s|ms))+$", example = "60s")]
    pub lease: Option<HumanDuration>,
}

/// A worker gives these tasks back unfinished.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ReturnRequest {
    /// The tasks, at most 1000.
    #[schema(min_items = 1, max_items = 1000)]
    pub tasks: Vec<HeldTask>,
}

/// What became of a message, a heartbeat or a return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum OutcomeKind {
    /// It was taken.
    Accepted,
    /// The task was cancelled: stop working on it.
    Cancelled,
    /// The task has already ended otherwise: the message changes nothing.
    Ended,
    /// The lease was lost, another attempt is or will be made: stop working on it.
    Lost,
    /// It says nothing new.
    Unchanged,
    /// No such task on this service.
    NotFound,
    /// It could not be understood.
    Rejected,
}

/// What became of one message, heartbeat or return.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskOutcome {
    /// The task's public name, as it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// What became of it.
    pub outcome: OutcomeKind,
    /// Why, where it was not accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A heartbeat that was accepted: until when the worker may keep silent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub lease_expires: Option<String>,
}

/// What became of each, in the same order.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct OutcomesAnswer {
    /// One per entry of the request.
    pub outcomes: Vec<TaskOutcome>,
}

/// What workers are told by way of a broker of tasks that they may have at hand: what HTTP would have answered to their next word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopMessage {
    /// At most 1000 tasks; most of them are somebody else's.
    pub outcomes: Vec<StopOutcome>,
}

/// That a task is nobody's to work on any more, as it was handed out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StopOutcome {
    /// The task's public name.
    pub task_id: String,
    /// [`Cancelled`](OutcomeKind::Cancelled), [`Ended`](OutcomeKind::Ended), or [`Lost`](OutcomeKind::Lost) if it is tried again.
    pub outcome: OutcomeKind,
    /// Meant is what was handed out with a [lower one](SubmissionMessage::revision): since then the task may have been handed out
    /// anew.
    pub revision: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revocation_names_the_outcome_of_http_and_the_revision() {
        let told = r#"{"outcomes":[{"taskId":"t","outcome":"cancelled","revision":3},{"taskId":"u","outcome":"lost","revision":1}]}"#;
        let stop: StopMessage = serde_json::from_str(told).unwrap();
        assert_eq!(stop.outcomes[1].outcome, OutcomeKind::Lost);
        assert_eq!(serde_json::to_string(&stop).unwrap(), told);
    }

    fn understand(text: &str) -> Result<WorkerMessage, Misunderstood> {
        serde_json::from_str::<WireMessage>(text).unwrap().understand()
    }

    #[test]
    fn both_spellings_are_understood_even_together() {
        for text in [
            r#"{"taskId":"t","data":{"messageType":"started","hostName":"pod-1"}}"#,
            r#"{"task_id":"t","data":{"message_type":"started","hostname":"pod-1"}}"#,
            r#"{"taskId":"t","task_id":"t","data":{"messageType":"started","message_type":"started","hostName":"pod-1","hostname":"pod-1"}}"#,
        ] {
            let message = understand(text).unwrap();
            assert_eq!(message.task_id, "t");
            assert!(matches!(message.report, Report::Started));
            assert_eq!(message.host_name.as_deref(), Some("pod-1"));
        }
    }

    #[test]
    fn an_error_message_may_be_any_json() {
        for (json, text) in
            [(r#""no\nfile""#, "no\nfile"), (r#"{"code": 7}"#, r#"{"code": 7}"#), ("12", "12"), ("null", "")]
        {
            let message =
                understand(&format!(r#"{{"task_id":"t","data":{{"message_type":"failure","error_message":{json}}}}}"#));
            let Report::Failure(failure) = message.unwrap().report else { panic!("not a failure") };
            assert_eq!(failure.error_message, text);
        }
    }

    #[test]
    fn a_response_is_carried_as_it_is() {
        let message = understand(
            r#"{"taskId":"t","data":{"messageType":"success","response":{"z":1e400,"a":9223372036854775808}}}"#,
        );
        let Report::Success { response } = message.unwrap().report else { panic!("not a success") };
        assert_eq!(response.get(), r#"{"z":1e400,"a":9223372036854775808}"#);
    }

    #[test]
    fn a_failure_says_what_is_known_of_it() {
        let message = understand(
            r#"{"taskId":"t","data":{"messageType":"failure","errorMessage":"no","retryable":true,"retryAfter":"30s",
                "errorKind":"paper","errorTrace":"tray 2"}}"#,
        );
        let Report::Failure(failure) = message.unwrap().report else { panic!("not a failure") };
        assert_eq!(
            failure,
            FailureReport {
                error_message: "no".to_owned(),
                error_kind: Some("paper".to_owned()),
                error_trace: Some("tray 2".to_owned()),
                retryable: Some(true),
                retry_after: Some(HumanDuration(std::time::Duration::from_secs(30))),
            }
        );
    }

    #[test]
    fn a_malformed_worker_message_is_refused_with_the_reason() {
        assert_eq!(understand(r#"{"data":{}}"#).unwrap_err().0, "taskId is missing");
        assert_eq!(understand(r#"{"taskId":"t"}"#).unwrap_err().0, "data.messageType is missing");
        assert_eq!(
            understand(r#"{"taskId":"t","data":{"messageType":"dance"}}"#).unwrap_err().0,
            r#"messageType "dance" is unknown"#
        );
    }
}
