//! Tasks as consumers and operators see them. Which fields there are depends on the status.

use std::time::Instant;

use relais_core::{Status, Task, Timestamp};
use relais_protocol::{
    admin::AdminTaskView,
    consumer::{TaskStatus, TaskView},
};

use crate::Engine;

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
    let begun = state.status != Status::Pending;
    TaskView {
        task_id: task.task_id.to_string(),
        status: match state.status {
            Status::Pending => TaskStatus::Pending,
            Status::InProgress => TaskStatus::InProgress,
            Status::Success => TaskStatus::Success,
            Status::Failure => TaskStatus::Failure,
            Status::Cancelled => TaskStatus::Cancelled,
        },
        task_position: task.position.filter(|_| !begun),
        estimated_start_date: None,
        submition_date: text(task.submitted),
        start_date: state.started.map(text),
        end_date: state.ended.map(text),
        progress: begun.then_some(state.progress),
        response: task.response.as_ref().map(|response| response.as_raw().to_owned()),
        error_message: task.error_message.clone(),
        correlation_id: task.correlation_id.clone(),
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
        worker_host: task.state.worker_host.clone(),
        lease_expires: task.state.lease_until.map(text),
        notification_status: task.notification.map(|status| status.as_str().to_owned()),
        request: with_request.then(|| task.request.as_raw().to_owned()),
        task: task_view(task),
    }
}

pub(crate) fn text(moment: Timestamp) -> String {
    moment.to_string()
}
