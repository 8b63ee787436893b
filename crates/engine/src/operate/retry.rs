//! Retries of one task by its consumer or an operator.

use relais_core::{Event, Ignored, Outcome, ServiceKey, TaskEvent, TaskId};
use relais_protocol::admin::AdminTaskView;

use crate::{Access, Engine, EngineError};

impl Engine {
    /// Retries one of the caller's own tasks.
    pub async fn retry(&self, access: &Access, task_id: TaskId) -> Result<relais_core::Task, EngineError> {
        let (service, client) = (access.service.key, Some(access.client.key));
        self.revive(TaskEvent { task_id, service, client, event: Event::Revived }).await?;
        self.task(access, task_id).await
    }

    /// Retries any task.
    pub async fn admin_retry(&self, task_id: TaskId) -> Result<AdminTaskView, EngineError> {
        let service = self.service_of(task_id).await?;
        self.revive(TaskEvent { task_id, service, client: None, event: Event::Revived }).await?;
        self.admin_task(task_id).await
    }

    /// The service of any task.
    pub(crate) async fn service_of(&self, task_id: TaskId) -> Result<ServiceKey, EngineError> {
        let task = self.0.store.find_task(task_id).await?.ok_or(EngineError::TaskNotFound)?;
        let snapshot = self.snapshot()?;
        Ok(snapshot.declared.services.get(&task.service).ok_or(EngineError::ServiceNotFound)?.key)
    }

    async fn revive(&self, event: TaskEvent) -> Result<(), EngineError> {
        match self.record_one(event).await? {
            Outcome::Applied(_) => Ok(()),
            Outcome::Ignored(Ignored::NoEffect) => {
                Err(EngineError::Conflict("the task has not ended: it waits for a worker, or runs".to_owned()))
            }
            Outcome::Ignored(ignored @ Ignored::KeyTaken) => Err(EngineError::Conflict(ignored.to_string())),
            Outcome::Ignored(_) | Outcome::NotFound => Err(EngineError::TaskNotFound),
        }
    }
}
