//! The ledger: what callers were promised and what they saw, written when they knew.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use relais_core::{Status, TaskId};

/// A run's promises.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Book>);

/// What is written down. Marks are the correlation ids of submissions.
#[derive(Debug, Clone, Default)]
pub struct Book {
    /// The tasks that were taken in, with their marks.
    pub accepted: HashMap<TaskId, String>,
    /// Marks of submissions that have no key, and may be there although nobody was told.
    pub unkeyed: HashSet<String>,
    /// Tasks of transactions that were rolled back.
    pub revoked: HashSet<TaskId>,
    /// Attempts that a worker was given, or that a handler has begun.
    pub claimed: HashSet<(TaskId, u32)>,
    /// Tasks of the service with a window that a broker has handed out.
    pub delivered: HashSet<TaskId>,
    /// Results that were sent of a task, whether or not an answer came.
    pub sent: HashMap<TaskId, HashSet<String>>,
    /// Results that workers know to be accepted.
    pub told: HashMap<TaskId, Vec<String>>,
    /// Ends that somebody saw.
    pub seen: HashMap<TaskId, Status>,
    /// Ends that callbacks reported; of batches as well, whose names are like those of tasks.
    pub letters: HashMap<TaskId, Vec<String>>,
    /// What there should be once and is there twice.
    pub doubled: Vec<String>,
    /// What must not happen.
    pub wrong: Vec<String>,
}

impl Ledger {
    /// All that is written down.
    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same as it is now.
    pub fn snapshot(&self) -> Book {
        self.book().clone()
    }

    /// Notes a task that was taken in, as its consumer was told.
    pub fn accepted(&self, task_id: TaskId, mark: &str) {
        let mut book = self.book();
        if let Some(other) = book.accepted.insert(task_id, mark.to_owned())
            && other != mark
        {
            book.doubled.push(format!("task {task_id} was given to {other} and to {mark}"));
        }
    }

    /// Notes an attempt that a worker was given.
    pub fn claimed(&self, task_id: TaskId, attempt: u32) {
        let mut book = self.book();
        if !book.claimed.insert((task_id, attempt)) {
            book.doubled.push(format!("attempt {attempt} of task {task_id} was given out twice"));
        }
    }

    /// Notes a result before it is sent.
    pub fn sent(&self, task_id: TaskId, result: &str) {
        self.book().sent.entry(task_id).or_default().insert(result.to_owned());
    }

    /// Notes a result that counts, as its worker was told.
    pub fn told(&self, task_id: TaskId, result: &str) {
        self.book().told.entry(task_id).or_default().push(result.to_owned());
    }

    /// Notes how a task ended, as somebody was told.
    pub fn seen(&self, task_id: TaskId, status: Status) {
        let mut book = self.book();
        if let Some(other) = book.seen.insert(task_id, status)
            && other != status
        {
            book.doubled.push(format!("task {task_id} was seen to end {} and {}", other.as_str(), status.as_str()));
        }
    }

    /// Notes what must not happen.
    pub fn wrong(&self, what: String) {
        self.book().wrong.push(what);
    }
}
