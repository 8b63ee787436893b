//! Tasks: finding and listing them, and what happens to them.
//!
//! This folder has the port [`TaskStore`]. Verbs of it that belong to another feature are forwarded to that feature's
//! folder, under the same name: submitting (`submit/`), purging (`purge/`), counting (`counters/`), dependencies and
//! stored submissions.

pub(crate) mod changes;
pub(crate) mod events;
pub(crate) mod known;
pub(crate) mod list;
pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use relais_core::{
    Attempt, Backlog, CollectedSubmissions, DependenciesResolved, NewTask, Outcome, Page, PurgeReport, PurgeRule,
    QueueDepth, QueueShare, ServiceKey, StoreError, Submission, SubmissionValidator, Task, TaskEvent, TaskFilter,
    TaskId, TaskStore, TimersFired,
};

use crate::{session::Database, verbs::Verbs};

#[async_trait]
impl<D: Database> TaskStore for Verbs<D> {
    async fn submit_many(&self, tasks: Vec<NewTask>) -> Result<Vec<Submission>, StoreError> {
        self.submit(tasks, None).await.map(|(answers, _)| answers)
    }

    async fn find_task(&self, task_id: TaskId) -> Result<Option<Task>, StoreError> {
        let mut task = self.database.find_task(task_id).await?;
        if let Some(task) = task.as_mut().filter(|task| task.links.when.is_some()) {
            task.links.after = self.database.prerequisites(task.id).await?;
        }
        Ok(task)
    }

    async fn list_tasks(&self, filter: TaskFilter) -> Result<Page, StoreError> {
        self.list_tasks(filter).await
    }

    async fn count_tasks(&self, filter: TaskFilter) -> Result<u64, StoreError> {
        self.count_tasks(filter).await
    }

    async fn list_attempts(&self, id: i64) -> Result<Vec<Attempt>, StoreError> {
        self.database.list_attempts(id).await
    }

    async fn record_events(&self, events: Vec<TaskEvent>) -> Result<Vec<Outcome>, StoreError> {
        self.record_events(events).await
    }

    async fn fire_timers(&self, limit: usize) -> Result<TimersFired, StoreError> {
        self.mind_the_clock().await?;
        self.fire_timers(limit).await
    }

    async fn resolve_dependencies(&self, limit: usize) -> Result<DependenciesResolved, StoreError> {
        self.resolve_dependencies(limit).await
    }

    async fn recheck_dependencies(&self, after: i64, limit: usize) -> Result<Option<i64>, StoreError> {
        self.recheck_dependencies(after, limit).await
    }

    async fn collect_submissions(
        &self,
        limit: usize,
        validator: Arc<dyn SubmissionValidator>,
    ) -> Result<CollectedSubmissions, StoreError> {
        self.collect_submissions(limit, validator.as_ref()).await
    }

    async fn purge_tasks(&self, rule: PurgeRule) -> Result<PurgeReport, StoreError> {
        self.purge_tasks(rule).await
    }

    async fn purge_keys(&self, idempotency_age: Duration) -> Result<u64, StoreError> {
        self.purge_keys(idempotency_age).await
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        self.database.backlog().await
    }

    async fn queue_depths(&self, services: Vec<ServiceKey>) -> Result<Vec<QueueDepth>, StoreError> {
        self.database.queue_depths(&services).await
    }

    async fn queue_shares(&self, service: ServiceKey) -> Result<Vec<QueueShare>, StoreError> {
        self.database.queue_shares(service).await
    }
}
