//! Filters and pages of task lists.

use crate::{ClientKey, ServiceKey, Status, Task, TaskLink, Timestamp};

/// Which tasks to list.
#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    /// Of these services; none means of all.
    pub services: Vec<ServiceKey>,
    /// Of this client.
    pub client: Option<ClientKey>,
    /// In one of these; none means any.
    pub statuses: Vec<Status>,
    /// What the tasks have in common. With this filter a page reads a bounded number of rows, so it may have fewer
    /// tasks than asked for, or none, and a next page.
    pub link: Option<TaskLink>,
    /// Submitted at this time or later.
    pub submitted_from: Option<Timestamp>,
    /// Submitted before this time.
    pub submitted_before: Option<Timestamp>,
    /// Submitted before the task with this `id`: the cursor.
    pub before_id: Option<i64>,
    /// At most so many.
    pub limit: usize,
}

impl TaskFilter {
    /// Whether tasks of any service, of any client and in any status are asked for.
    pub fn is_wide(&self) -> bool {
        self.services.is_empty() && self.client.is_none() && self.statuses.is_empty()
    }
}

/// A page of tasks, the newest first.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The tasks, without positions.
    pub tasks: Vec<Task>,
    /// Where the next page begins, if there may be one.
    pub next_before_id: Option<i64>,
}
