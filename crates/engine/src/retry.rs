//! Doing tasks once more, by hand: one, some, or all that match.

use relais_core::{Event, Ignored, Outcome, ServiceKey, Status, TaskEvent, TaskFilter, TaskId, Timestamp};
use relais_protocol::{
    admin::{AdminTaskView, RetryAnswer, RetryRequest},
    consumer::TaskStatus,
};

use crate::{
    Access, Engine, EngineError, Problem,
    follow::{ListQuery, filter, paged},
};

/// So many are looked at in one call.
const BATCH: usize = 500;

/// So many may be named in one call.
const MOST_NAMED: usize = 1000;

impl Engine {
    /// Does one of the caller's own tasks once more.
    pub async fn retry(&self, access: &Access, task_id: TaskId) -> Result<relais_core::Task, EngineError> {
        let (service, client) = (access.service.key, Some(access.client.key));
        self.revive(TaskEvent { task_id, service, client, event: Event::Revived }).await?;
        self.task(access, task_id).await
    }

    /// Does any task once more.
    pub async fn admin_retry(&self, task_id: TaskId) -> Result<AdminTaskView, EngineError> {
        let service = self.service_of(task_id).await?;
        self.revive(TaskEvent { task_id, service, client: None, event: Event::Revived }).await?;
        self.admin_task(task_id).await
    }

    /// Does many tasks once more: those that are named, or a batch of those that match.
    pub async fn admin_retry_many(&self, request: RetryRequest) -> Result<RetryAnswer, EngineError> {
        let invalid = |path: &str, message: &str| Err(EngineError::Invalid(vec![Problem::at(path, message)]));
        if !request.tasks.is_empty() {
            if request.tasks.len() > MOST_NAMED {
                return invalid("/tasks", "must be at most 1000");
            }
            return self.retry_named(&request.tasks, request.dry_run).await;
        }
        if request.service.is_none() && request.client_id.is_none() {
            return invalid("/service", "is needed, or clientId, or tasks");
        }
        let date = |path: &str, given: Option<&String>| match given.map(|text| Timestamp::parse(text)) {
            Some(None) => {
                Err(EngineError::Invalid(vec![Problem::at(path, "must be a date like 2026-01-31T08:30:00Z")]))
            }
            date => Ok(date.flatten()),
        };
        let mut statuses = Vec::new();
        for status in &request.statuses {
            statuses.push(match status {
                TaskStatus::Success => Status::Success,
                TaskStatus::Failure => Status::Failure,
                TaskStatus::Cancelled => Status::Cancelled,
                TaskStatus::Pending | TaskStatus::InProgress => {
                    return invalid("/statuses", "must be SUCCESS, FAILURE or CANCELLED");
                }
            });
        }
        if statuses.is_empty() {
            statuses.push(Status::Failure);
        }
        let query = ListQuery {
            statuses,
            link: None,
            from: date("/from", request.from.as_ref())?,
            before: date("/before", request.before.as_ref())?,
            limit: BATCH,
            cursor: request.cursor,
        };
        let found = self.found(request.service.as_deref(), request.client_id.as_deref(), query)?;
        let snapshot = self.snapshot()?;
        let (tasks, next_cursor) = paged(self.0.store.list_tasks(found).await?);
        let events = tasks.iter().filter_map(|task| {
            let service = snapshot.declared.services.get(&task.service)?.key;
            Some(TaskEvent { task_id: task.task_id, service, client: None, event: Event::Revived })
        });
        let (events, looked) = (events.collect::<Vec<_>>(), tasks.len() as u64);
        let retried = if request.dry_run { events.len() as u64 } else { self.revive_all(events).await? };
        Ok(RetryAnswer { retried, passed_over: looked - retried, next_cursor })
    }

    async fn retry_named(&self, names: &[String], dry_run: bool) -> Result<RetryAnswer, EngineError> {
        let mut events = Vec::new();
        for name in names {
            let Some(task_id) = TaskId::parse(name) else { continue };
            let Some(task) = self.0.store.find_task(task_id).await? else { continue };
            let snapshot = self.snapshot()?;
            let Some(service) = snapshot.declared.services.get(&task.service) else { continue };
            if task.state.status.is_final() || task.state.status == Status::Waiting {
                events.push(TaskEvent { task_id, service: service.key, client: None, event: Event::Revived });
            }
        }
        let retried = if dry_run { events.len() as u64 } else { self.revive_all(events).await? };
        Ok(RetryAnswer { retried, passed_over: names.len() as u64 - retried, next_cursor: None })
    }

    /// What a query asks of the store, of these or of all.
    pub(crate) fn found(
        &self,
        service: Option<&str>,
        client_id: Option<&str>,
        query: ListQuery,
    ) -> Result<TaskFilter, EngineError> {
        let snapshot = self.snapshot()?;
        let declared = &snapshot.declared;
        let services = match service {
            Some(name) => vec![declared.services.get(name).ok_or(EngineError::ServiceNotFound)?.key],
            None => Vec::new(),
        };
        let client = match client_id {
            Some(id) => Some(declared.clients.get(id).ok_or(EngineError::ClientNotFound)?.key),
            None => None,
        };
        Ok(TaskFilter { client, ..filter(query, services)? })
    }

    /// The service of any task.
    pub(crate) async fn service_of(&self, task_id: TaskId) -> Result<ServiceKey, EngineError> {
        let task = self.0.store.find_task(task_id).await?.ok_or(EngineError::TaskNotFound)?;
        let snapshot = self.snapshot()?;
        Ok(snapshot.declared.services.get(&task.service).ok_or(EngineError::ServiceNotFound)?.key)
    }

    async fn revive_all(&self, events: Vec<TaskEvent>) -> Result<u64, EngineError> {
        if events.is_empty() {
            return Ok(0);
        }
        let outcomes = self.record_all(events).await?;
        let revived = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Applied(_))).count() as u64;
        metrics::counter!("relais_tasks_retried_by_hand_total").increment(revived);
        Ok(revived)
    }

    async fn revive(&self, event: TaskEvent) -> Result<(), EngineError> {
        match self.record_one(event).await? {
            Outcome::Applied(_) => Ok(()),
            Outcome::Ignored(Ignored::NoEffect) => {
                Err(EngineError::Conflict("the task has not ended: it waits for a worker, or runs".to_owned()))
            }
            Outcome::Ignored(_) | Outcome::NotFound => Err(EngineError::TaskNotFound),
        }
    }
}
