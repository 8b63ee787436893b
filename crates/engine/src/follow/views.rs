//! Tasks as consumers and operators see them. Which fields there are depends on the status.

use std::time::Instant;

use relais_core::{Attempt, Failure, Priority, Status, Task, Timestamp};
use relais_protocol::{
    admin::{AdminTaskView, AttemptView},
    consumer::{TaskStatus, TaskView},
};

use crate::{Engine, submit::links::after_view};

impl Engine {
    /// A task as its consumer sees it, with an estimate of when it may start.
    pub fn view(&self, task: &Task) -> TaskView {
        let estimate = || {
            let service = self.snapshot().ok()?.declared.services.get(&task.service)?.key;
            self.0.pace.estimate(service, task.position?, Instant::now())
        };
        TaskView { estimated_start_date: estimate().map(text), ..task_view(task) }
    }
}

/// A task as its consumer sees it.
pub fn task_view(task: &Task) -> TaskView {
    let state = &task.state;
    let begun = !matches!(state.status, Status::Pending | Status::Waiting);
    let retried = state.status == Status::Waiting && state.attempt > 0;
    TaskView {
        task_id: task.task_id.to_string(),
        status: task_status(state.status),
        task_position: task.position.filter(|_| !begun),
        estimated_start_date: None,
        submition_date: text(task.submitted),
        scheduled_date: task.scheduled.map(text),
        retry_date: state.due.filter(|_| retried).map(text),
        priority: (task.priority != Priority::default()).then(|| task.priority.level()),
        start_date: state.started.map(text),
        end_date: state.ended.map(text),
        progress: begun.then_some(state.progress),
        response: task.response.as_ref().map(|response| response.as_raw().to_owned()),
        error_message: task.error_message.clone(),
        error_kind: task.error_kind.clone(),
        correlation_id: task.correlation_id.clone(),
        parent_id: task.links.parent.map(|parent| parent.to_string()),
        batch_id: task.links.batch.map(|batch| batch.to_string()),
        after: after_view(task),
    }
}

/// A status, as it is on the wire.
pub(crate) fn task_status(status: Status) -> TaskStatus {
    match status {
        Status::Pending | Status::Waiting => TaskStatus::Pending,
        Status::InProgress => TaskStatus::InProgress,
        Status::Success => TaskStatus::Success,
        Status::Failure => TaskStatus::Failure,
        Status::Cancelled => TaskStatus::Cancelled,
    }
}

/// A task as operators see it; the request only where it was read.
pub fn admin_task_view(task: &Task, with_request: bool) -> AdminTaskView {
    AdminTaskView {
        id: task.id,
        service: task.service.to_string(),
        client_id: task.client_id.to_string(),
        attempt: task.state.attempt,
        losses: task.state.losses,
        failures: task.state.failures,
        worker_host: task.state.worker_host.clone(),
        lease_expires: task.state.lease_until.map(text),
        deadline: task.state.deadline.map(text),
        attempts: None,
        children: None,
        waited_for_by: None,
        notification_status: task.notification.map(|status| status.as_str().to_owned()),
        traceparent: task.links.trace.as_ref().map(|trace| trace.traceparent().to_owned()),
        tracestate: task.links.trace.as_ref().and_then(|trace| trace.tracestate()).map(str::to_owned),
        request: with_request.then(|| task.request.as_raw().to_owned()),
        task: task_view(task),
    }
}

/// All attempts of a task: those before, and the one that it tells of itself.
pub(crate) fn attempt_views(task: &Task, before: Vec<Attempt>) -> Vec<AttemptView> {
    let failure = task.error_message.clone().map(|message| Failure {
        kind: task.error_kind.clone(),
        trace: task.error_trace.clone(),
        ..Failure::new(message)
    });
    let last = Attempt::of(&task.state, failure);
    // A result that came late is of an attempt that had been given up.
    let before = before.into_iter().filter(|attempt| last.as_ref().is_none_or(|last| last.number != attempt.number));
    before.collect::<Vec<_>>().into_iter().chain(last.clone()).map(attempt_view).collect()
}

fn attempt_view(attempt: Attempt) -> AttemptView {
    let Failure { message, kind, trace, .. } = attempt.failure.clone().unwrap_or_default();
    AttemptView {
        number: attempt.number,
        outcome: attempt.outcome.as_str().to_owned(),
        start_date: attempt.started.map(text),
        end_date: attempt.ended.map(text),
        worker_host: attempt.worker_host,
        error_message: attempt.failure.is_some().then_some(message),
        error_kind: kind,
        error_trace: trace,
    }
}

pub(crate) fn text(moment: Timestamp) -> String {
    moment.to_string()
}
