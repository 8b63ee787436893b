//! Which tasks a listing asks for, and what it gets.

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
    /// That have this in common. Where one is given, a page may have fewer tasks than asked for, or none, and yet a next one:
    /// it looks at so many of those, not at all.
    pub link: Option<TaskLink>,
    /// Submitted at this time or later.
    pub submitted_from: Option<Timestamp>,
    /// Submitted before this time.
    pub submitted_before: Option<Timestamp>,
    /// Arrived before the task with this `id`: the cursor.
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
    /// The tasks; a listing does not place them in their queues.
    pub tasks: Vec<Task>,
    /// Where the next page begins, if there may be one.
    pub next_before_id: Option<i64>,
}
