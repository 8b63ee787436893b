//! The context of a task that came by a transport.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use relais_handler::{
    Context, Known, Progress,
    trace::{self, Trail},
};
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::{report_queue::ReportQueue, slots::TaskKey, transport::Delivery};

/// Queues a task's progress to be reported.
struct ProgressReports {
    key: TaskKey,
    report_queue: Arc<ReportQueue>,
}

impl Progress for ProgressReports {
    fn progress(&self, percent: f64) {
        self.report_queue.put_progress(&self.key, percent);
    }
}

/// Makes a task's span part of its trace, and continues the trace from that span. Must be called before anything is
/// done within the span.
pub(crate) fn go_on(delivery: &mut Delivery, span: &Span) {
    let task = &mut delivery.task;
    let told = Trail { traceparent: task.traceparent.take(), tracestate: task.tracestate.take() };
    let trail = trace::go_on(span, told);
    (task.traceparent, task.tracestate) = (trail.traceparent, trail.tracestate);
}

/// The context of a task that begins now, with this time limit.
pub(crate) fn context(
    delivery: &Delivery,
    limit: Option<Duration>,
    cancel: CancellationToken,
    report_queue: Arc<ReportQueue>,
) -> Context {
    let told = delivery.task.deadline.as_ref().and_then(|time| time.parse::<Timestamp>().ok()).map(SystemTime::from);
    let own = limit.and_then(|limit| SystemTime::now().checked_add(limit));
    let known = Known {
        task_id: delivery.key.task_id.clone(),
        attempt: delivery.key.attempt,
        redelivered: delivery.redelivered,
        correlation_id: delivery.task.correlation_id.clone(),
        traceparent: delivery.task.traceparent.clone(),
        tracestate: delivery.task.tracestate.clone(),
        deadline: told.into_iter().chain(own).min(),
    };
    Context::new(known, cancel, Arc::new(ProgressReports { key: delivery.key.clone(), report_queue }))
}

/// The context of a task that nobody submitted and that can be cancelled, and where its progress goes.
#[cfg(test)]
pub(crate) fn cancelled_by(cancel: CancellationToken) -> (Context, Arc<ReportQueue>) {
    let body = serde_json::value::RawValue::NULL.to_owned();
    let task = relais_protocol::worker::SubmissionMessage::new("t".to_owned(), body);
    let key = TaskKey { task_id: "t".into(), attempt: Some(1), delivery: 0 };
    let report_queue = Arc::default();
    (context(&Delivery { key, task, redelivered: false }, None, cancel, Arc::clone(&report_queue)), report_queue)
}

#[cfg(test)]
mod tests {
    use relais_protocol::worker::SubmissionMessage;

    use super::*;

    #[test]
    fn a_deadline_is_a_time_and_nonsense_is_none() {
        for (text, seconds) in [("2030-01-01T12:00:00.500Z", Some(1_893_499_200)), ("soon", None)] {
            let task: SubmissionMessage = serde_json::from_str(&format!(
                r#"{{"taskId":"t","deadline":"{text}","data":{{"messageType":"submission","body":{{}}}}}}"#
            ))
            .unwrap();
            let key = TaskKey { task_id: "t".into(), attempt: None, delivery: 1 };
            let delivery = Delivery { key, task, redelivered: true };
            let context = context(&delivery, None, CancellationToken::new(), Arc::default());
            let since = context.deadline().map(|time| time.duration_since(SystemTime::UNIX_EPOCH).unwrap());
            assert_eq!(since, seconds.map(|seconds| Duration::from_millis(seconds * 1000 + 500)));
            assert!(context.redelivered());
        }
    }

    #[test]
    fn a_task_that_may_take_so_long_has_its_deadline_from_when_it_begins() {
        for (told, limit) in [(None, 60), (Some("2000-01-01T00:00:00Z"), 60), (None, u64::MAX)] {
            let body = serde_json::value::RawValue::NULL.to_owned();
            let mut task = SubmissionMessage::new("t".to_owned(), body);
            task.deadline = told.map(str::to_owned);
            let key = TaskKey { task_id: "t".into(), attempt: None, delivery: 1 };
            let delivery = Delivery { key, task, redelivered: false };
            let begun = SystemTime::now();
            let limit = Duration::from_secs(limit);
            let context = context(&delivery, Some(limit), CancellationToken::new(), Arc::default());
            match (told, begun.checked_add(limit), context.deadline()) {
                (None, Some(earliest), Some(deadline)) => assert!(deadline >= earliest),
                (None, None, deadline) => assert_eq!(deadline, None, "there is no such time"),
                (Some(_), _, Some(deadline)) => assert!(deadline < begun, "the earlier one counts"),
                (_, _, None) => panic!("there is no deadline"),
            }
        }
    }
}
