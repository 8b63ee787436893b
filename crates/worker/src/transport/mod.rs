//! The port of a worker to its transport: claim tasks, report, keep leases, return tasks.
//!
//! Everything else in this crate (slots, report queue, loop) is the same for every transport. Nothing here retries,
//! except for what a lost connection makes necessary: one call is one attempt, and the caller decides whether there is
//! another.

pub(crate) mod http;
#[cfg(feature = "rabbitmq")]
pub(crate) mod rabbitmq;

use std::{fmt::Debug, time::Duration};

use async_trait::async_trait;
use relais_handler::Verdict;
use relais_protocol::{
    HumanDuration,
    worker::{HeldTask, OutcomeKind, SubmissionMessage, TaskOutcome, WireMessage, WireReport},
};
use serde_json::value::{RawValue, to_raw_value};

use crate::{CallError, slots::TaskKey};

/// A transport of a worker.
#[async_trait]
pub(crate) trait Transport: Debug + Send + Sync + 'static {
    /// Claims up to `max` tasks; waits for the first one, and returns none when the time is up. Tasks of a call that
    /// was dropped are given out again by the other side.
    async fn claim(&self, max: usize, wait: Duration) -> Result<Vec<Delivery>, CallError>;

    /// Nothing more will be claimed. A running claim ends soon; its tasks are returned.
    async fn stop_claiming(&self) {}

    /// Reports on many tasks at once; one outcome for each, in the same order. When it returns, the reports are safe,
    /// and tasks that they ended are no longer held.
    async fn report(&self, news: &[(&TaskKey, News<'_>)]) -> Result<Vec<TaskOutcome>, CallError>;

    /// Returns tasks unfinished.
    async fn give_back(&self, keys: &[TaskKey]) -> Result<Vec<TaskOutcome>, CallError>;

    /// Makes sure that all reports have arrived. The process may be gone a moment later.
    async fn close(&self) {}

    /// What keeps held tasks this worker's.
    fn keeping(&self) -> Keeping;

    /// Sends heartbeats for these tasks, where there are [leases](Keeping::Lease).
    async fn renew(&self, keys: &[TaskKey]) -> Result<Vec<TaskOutcome>, CallError>;

    /// Waits until tasks are no longer this worker's, where a [connection](Keeping::Connection) keeps them, and returns
    /// why.
    async fn revoked(&self) -> Vec<(TaskKey, OutcomeKind)> {
        std::future::pending().await
    }

    /// Whether a claimed task may begin, as far as is known.
    fn is_wanted(&self, _: &TaskKey) -> bool {
        true
    }

    /// The handlers of these revoked tasks have ended.
    fn let_go(&self, _: &[TaskKey]) {}

    /// Whether the start of a task must be reported. Over HTTP the claim says it.
    fn tells_start(&self) -> bool;

    /// Whether the other side is there, as far as the transport itself knows.
    #[cfg_attr(not(feature = "health"), expect(dead_code, reason = "only probes ask"))]
    fn is_connected(&self) -> bool {
        true
    }
}

/// What keeps tasks this worker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// Leases, with this period of heartbeats.
    Lease(Duration),
    /// The connection that brought them: with it they are lost.
    #[cfg_attr(not(feature = "rabbitmq"), expect(dead_code, reason = "only brokers do so"))]
    Connection,
}

impl Keeping {
    /// Renewed three times a lease: two may fail before anything happens.
    pub fn of(lease: Duration) -> Self {
        Self::Lease((lease / 3).max(Duration::from_millis(10)))
    }
}

/// A task that was given to this worker.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub key: TaskKey,
    pub task: SubmissionMessage,
    /// Whether another worker had it before.
    pub redelivered: bool,
}

/// A report about a task.
#[derive(Debug)]
pub(crate) enum News<'a> {
    Started,
    Progress(f64),
    /// It is returned unfinished; sent only where that is not what returns it.
    #[cfg_attr(not(feature = "rabbitmq"), expect(dead_code, reason = "only RabbitMQ needs it said"))]
    Returned,
    /// Its result; `untold` if its start was not reported.
    Verdict {
        verdict: &'a Verdict,
        untold: bool,
    },
}

fn held(keys: &[TaskKey]) -> Vec<HeldTask> {
    keys.iter().map(|key| HeldTask { task_id: key.task_id.to_string(), attempt: key.attempt }).collect()
}

/// The outcomes of calls, which are matched by their order: with one missing, all would be wrong.
fn matched(outcomes: Vec<TaskOutcome>, asked: usize) -> Result<Vec<TaskOutcome>, CallError> {
    let got = outcomes.len();
    if got == asked { Ok(outcomes) } else { Err(CallError::Outcomes { asked, got }) }
}

/// All of them went well.
#[cfg_attr(not(feature = "rabbitmq"), expect(dead_code, reason = "only RabbitMQ says nothing of single tasks"))]
fn accepted<'a>(keys: impl IntoIterator<Item = &'a TaskKey>) -> Vec<TaskOutcome> {
    keys.into_iter()
        .map(|key| TaskOutcome {
            task_id: Some(key.task_id.to_string()),
            outcome: OutcomeKind::Accepted,
            reason: None,
            lease_expires: None,
        })
        .collect()
}

/// A message as it stands on the wire. The host is said where a task's start is told.
fn wire(key: &TaskKey, news: &News<'_>, host_name: Option<&str>) -> Result<WireMessage, CallError> {
    let host = || host_name.map(str::to_owned);
    let (kind, mut data) = match news {
        News::Started => ("started", WireReport { host_name: host(), ..WireReport::default() }),
        News::Returned => ("returned", WireReport { host_name: host(), ..WireReport::default() }),
        News::Progress(progress) => ("progress", WireReport { progress: Some(*progress), ..WireReport::default() }),
        News::Verdict { verdict: Verdict::Success(response), untold } => (
            "success",
            WireReport {
                host_name: untold.then(host).flatten(),
                response: Some(response.clone()),
                ..WireReport::default()
            },
        ),
        News::Verdict { verdict: Verdict::Failure(failure), untold } => (
            "failure",
            WireReport {
                host_name: untold.then(host).flatten(),
                error_message: Some(text(&failure.message)?),
                retryable: failure.retryable,
                error_kind: failure.kind.clone(),
                error_trace: failure.trace.clone(),
                retry_after: failure.retry_after.map(HumanDuration),
                ..WireReport::default()
            },
        ),
    };
    data.message_type = Some(kind.to_owned());
    Ok(WireMessage { task_id: Some(key.task_id.to_string()), attempt: key.attempt, data, ..WireMessage::default() })
}

fn text(message: &str) -> Result<Box<RawValue>, CallError> {
    to_raw_value(message).map_err(CallError::Unwritable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use relais_handler::Failure;

    fn written(news: News<'_>) -> String {
        let key = TaskKey { task_id: "t".into(), attempt: Some(3), delivery: 7 };
        serde_json::to_string(&wire(&key, &news, Some("pod-1")).unwrap()).unwrap()
    }

    #[test]
    fn every_message_carries_its_attempt() {
        let success = Verdict::Success(RawValue::from_string(r#"{"n": 1e400}"#.to_owned()).unwrap());
        let failure = Verdict::Failure(Failure::new("no \"paper\""));
        for (news, text) in [
            (News::Started, r#"{"taskId":"t","attempt":3,"data":{"messageType":"started","hostName":"pod-1"}}"#),
            (News::Progress(12.5), r#"{"taskId":"t","attempt":3,"data":{"messageType":"progress","progress":12.5}}"#),
            (
                News::Verdict { verdict: &success, untold: false },
                r#"{"taskId":"t","attempt":3,"data":{"messageType":"success","response":{"n": 1e400}}}"#,
            ),
            (
                News::Verdict { verdict: &success, untold: true },
                r#"{"taskId":"t","attempt":3,"data":{"messageType":"success","hostName":"pod-1","response":{"n": 1e400}}}"#,
            ),
            (
                News::Verdict { verdict: &failure, untold: false },
                r#"{"taskId":"t","attempt":3,"data":{"messageType":"failure","errorMessage":"no \"paper\""}}"#,
            ),
        ] {
            assert_eq!(written(news), text);
        }
    }

    #[test]
    fn a_failure_says_what_is_known_of_it() {
        let failure = Failure {
            retryable: Some(true),
            kind: Some("paper".to_owned()),
            trace: Some("tray 2".to_owned()),
            retry_after: Some(std::time::Duration::from_secs(90)),
            ..Failure::new("no")
        };
        assert_eq!(
            written(News::Verdict { verdict: &Verdict::Failure(failure), untold: false }),
            r#"{"taskId":"t","attempt":3,"data":{"messageType":"failure","errorMessage":"no","retryable":true,"errorKind":"paper","errorTrace":"tray 2","retryAfter":"1m30s"}}"#
        );
    }
}
