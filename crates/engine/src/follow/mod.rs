//! Use cases of consumers: read tasks, list them, wait for them, cancel them.

pub(crate) mod hub;
pub(crate) mod live;
pub(crate) mod views;

use std::time::Duration;

use relais_core::{
    Event, Ignored, Outcome, Page, ServiceKey, Status, Task, TaskEvent, TaskFilter, TaskId, TaskLink, Timestamp,
};
use tokio::time::Instant;

use crate::{Access, Engine, EngineError, Problem, follow::hub::Watch};

/// How often waiters look without a wake-up: no wake-up says that a position has changed.
const SWEEP: Duration = Duration::from_secs(5);

/// Which tasks to list.
#[derive(Debug, Clone, Default)]
pub struct ListQuery {
    /// In one of these; none means any.
    pub statuses: Vec<Status>,
    /// That have this in common.
    pub link: Option<TaskLink>,
    /// Submitted at this time or later.
    pub from: Option<Timestamp>,
    /// Submitted before this time.
    pub before: Option<Timestamp>,
    /// At most so many.
    pub limit: usize,
    /// Where the page before ended.
    pub cursor: Option<String>,
}

impl Engine {
    /// One of the caller's own tasks on the service.
    pub async fn task(&self, access: &Access, task_id: TaskId) -> Result<Task, EngineError> {
        let task = self.0.store.find_task(task_id).await?.ok_or(EngineError::TaskNotFound)?;
        // A task of another client is not found.
        if task.client_id != access.client.client_id || task.service != access.service.name {
            return Err(EngineError::TaskNotFound);
        }
        Ok(task)
    }

    /// Waits until one of the caller's own tasks has ended, or the time is up, and returns it.
    pub async fn wait(&self, access: &Access, task_id: TaskId, wait: Duration) -> Result<Task, EngineError> {
        let deadline = Instant::now() + wait;
        let mut following = self.follow(access, task_id).await?;
        loop {
            if following.task.state.status.is_final() || Instant::now() >= deadline {
                return Ok(following.task);
            }
            tokio::select! {
                changed = following.changed() => changed?,
                () = tokio::time::sleep_until(deadline) => return self.task(access, task_id).await,
                () = self.0.stopping.cancelled() => return Ok(following.task),
            }
        }
    }

    /// Follows a task as it changes.
    pub async fn follow(&self, access: &Access, task_id: TaskId) -> Result<Following, EngineError> {
        let task = self.task(access, task_id).await?;
        let watch = self.0.hub.watch(task.id);
        // Read again: it may have changed before it was watched.
        let task = if task.state.status.is_final() { task } else { self.task(access, task_id).await? };
        Ok(Following { engine: self.clone(), access: access.clone(), watch, task })
    }

    /// The caller's own tasks on the service, the newest first, and the cursor of the next page.
    pub async fn list(&self, access: &Access, query: ListQuery) -> Result<(Vec<Task>, Option<String>), EngineError> {
        let filter = TaskFilter { client: Some(access.client.key), ..filter(query, vec![access.service.key])? };
        Ok(paged(self.0.store.list_tasks(filter).await?))
    }

    /// Cancels a task. This is idempotent; a task that has ended otherwise cannot be cancelled.
    pub async fn cancel(&self, access: &Access, task_id: TaskId) -> Result<Task, EngineError> {
        let event = TaskEvent {
            task_id,
            service: access.service.key,
            client: Some(access.client.key),
            event: Event::Cancelled,
        };
        self.cancel_by(event).await?;
        self.task(access, task_id).await
    }

    pub(crate) async fn cancel_by(&self, event: TaskEvent) -> Result<(), EngineError> {
        match self.record_one(event).await? {
            Outcome::Applied(_) | Outcome::Ignored(Ignored::Ended(Status::Cancelled)) => Ok(()),
            Outcome::Ignored(Ignored::Ended(status)) => Err(EngineError::Ended(status)),
            Outcome::Ignored(_) | Outcome::NotFound => Err(EngineError::TaskNotFound),
        }
    }
}

/// A task that is being followed.
pub struct Following {
    engine: Engine,
    access: Access,
    watch: Watch,
    /// As it was last seen.
    pub task: Task,
}

impl Following {
    /// Returns when the task has changed. Fast changes are seen as one.
    pub async fn changed(&mut self) -> Result<(), EngineError> {
        loop {
            tokio::select! {
                () = self.watch.changed() => {}
                () = tokio::time::sleep(SWEEP) => {}
            }
            let task = self.engine.task(&self.access, self.task.task_id).await?;
            let moved = task.position != self.task.position;
            if task.state.revision != self.task.state.revision || moved {
                self.task = task;
                return Ok(());
            }
        }
    }
}

/// What a query asks of the store.
pub(crate) fn filter(query: ListQuery, services: Vec<ServiceKey>) -> Result<TaskFilter, EngineError> {
    let before_id = match query.cursor {
        Some(cursor) => Some(
            i64::from_str_radix(&cursor, 36)
                .ok()
                .filter(|id| *id > 0)
                .ok_or_else(|| EngineError::Invalid(vec![Problem::at("cursor", "is not a cursor that was given")]))?,
        ),
        None => None,
    };
    Ok(TaskFilter {
        services,
        client: None,
        statuses: query.statuses.iter().flat_map(|status| status.alike()).collect(),
        link: query.link,
        submitted_from: query.from,
        submitted_before: query.before,
        before_id,
        limit: query.limit,
    })
}

/// A page, with its cursor as text.
pub(crate) fn paged(page: Page) -> (Vec<Task>, Option<String>) {
    (page.tasks, page.next_before_id.map(base36))
}

pub(crate) fn base36(mut number: i64) -> String {
    let mut digits = Vec::new();
    while number > 0 {
        let digit = (number % 36) as u32;
        digits.push(char::from_digit(digit, 36).unwrap_or('0'));
        number /= 36;
    }
    digits.into_iter().rev().collect()
}
