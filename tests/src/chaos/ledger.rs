//! The ledger: what callers were promised, written when the answer came.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{sync::watch, time::timeout};

/// A run's promises. Marks are the correlation ids of submissions: one for each thing that somebody wanted done once.
#[derive(Debug, Default)]
pub struct Ledger {
    book: Mutex<Book>,
    /// Rung at every entry.
    entries: watch::Sender<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Book {
    /// The tasks that were answered 201, with their marks.
    pub accepted: HashMap<String, String>,
    /// The same tasks, in the order in which they were answered.
    pub order: Vec<String>,
    /// Results that were sent for a task, whether or not an answer came.
    pub sent: HashMap<String, HashSet<String>>,
    /// Results that a worker was told to be the accepted ones.
    pub told: HashMap<String, Vec<String>>,
    /// Tasks that a worker knows to have ended.
    pub ended: HashSet<String>,
    /// Things that must not happen, seen by callers.
    pub wrong: Vec<String>,
    /// Submissions that were refused because something is away.
    pub refused: u64,
    /// Submissions without an answer.
    pub unanswered: u64,
}

impl Ledger {
    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(&self, entry: impl FnOnce(&mut Book)) {
        entry(&mut self.book());
        self.entries.send_modify(|entries| *entries += 1);
    }

    /// Notes a 201.
    pub fn accepted(&self, task_id: &str, mark: &str) {
        self.enter(|book| match book.accepted.insert(task_id.to_owned(), mark.to_owned()) {
            None => book.order.push(task_id.to_owned()),
            Some(other) if other != mark => {
                book.wrong.push(format!("task {task_id} was given to {other} and to {mark}"));
            }
            Some(_) => {}
        });
    }

    /// Notes a result that is sent for a task, whether or not it will count.
    pub fn sent(&self, task_id: &str, result: &str) {
        self.enter(|book| {
            book.sent.entry(task_id.to_owned()).or_default().insert(result.to_owned());
        });
    }

    /// Notes a result that somebody was told to be the task's.
    pub fn seen(&self, task_id: &str, result: &str) {
        self.enter(|book| {
            book.told.entry(task_id.to_owned()).or_default().push(result.to_owned());
            book.ended.insert(task_id.to_owned());
        });
    }

    /// Notes what a worker that writes nothing down would say of each task, told by its mark.
    pub fn sent_of_each(&self, result: impl Fn(&str) -> String) {
        self.enter(|book| {
            for (task_id, mark) in &book.accepted {
                book.sent.entry(task_id.clone()).or_default().insert(result(mark));
            }
        });
    }

    /// How often tasks were done once more, as far as was noted.
    pub fn repeats(&self) -> usize {
        self.book().sent.values().map(|results| results.len() - 1).sum()
    }

    /// The task that was answered 201 as the nth one, as soon as there is one.
    pub(super) async fn nth(&self, number: usize) -> String {
        let mut entries = self.entries.subscribe();
        loop {
            if let Some(task_id) = self.book().order.get(number) {
                return task_id.clone();
            }
            // The other end is ours.
            let _ = entries.changed().await;
        }
    }

    /// How many tasks were answered 201 so far.
    pub fn tasks(&self) -> usize {
        self.book().accepted.len()
    }

    /// How many submissions were refused, and how many got no answer.
    pub fn troubles(&self) -> (u64, u64) {
        let book = self.book();
        (book.refused, book.unanswered)
    }

    /// Waits until so many more tasks have been answered 201.
    pub async fn more(&self, tasks: usize, deadline: Duration) -> Result<()> {
        let goal = self.tasks() + tasks;
        self.until(deadline, |book| book.accepted.len() >= goal)
            .await
            .with_context(|| format!("{tasks} more tasks should have been accepted within {deadline:?}"))
    }

    /// Waits until few enough accepted tasks have not ended.
    pub(super) async fn room(&self, most: usize) {
        let _ = self.until(Duration::from_secs(3600), |book| book.accepted.len() < book.ended.len() + most).await;
    }

    async fn until(&self, deadline: Duration, reached: impl Fn(&Book) -> bool) -> Result<()> {
        let mut entries = self.entries.subscribe();
        timeout(deadline, entries.wait_for(|_| reached(&self.book()))).await.context("time is up")??;
        Ok(())
    }
}
