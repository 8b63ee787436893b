//! Which tasks run in this process at the moment, and how it went so far. Pure bookkeeping.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use relais_core::{ServiceKey, TaskId};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::InstanceReport;

/// One task that runs.
#[derive(Debug)]
pub(super) struct Run {
    pub service: ServiceKey,
    pub attempt: u32,
    pub since: Instant,
    /// Whether it has taken longer than it may.
    pub overdue: bool,
    /// Whether the store was told that it has begun.
    pub begun: bool,
    /// Its newest progress that was not told.
    pub progress: Option<f64>,
    pub cancel: CancellationToken,
}

/// The tasks that run.
#[derive(Debug, Default)]
pub(super) struct Running {
    runs: Mutex<HashMap<TaskId, Run>>,
    /// Rings when there is something to look at.
    pub bell: Notify,
}

impl Running {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<TaskId, Run>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, task_id: TaskId, run: Run) {
        let mut runs = self.lock();
        let first = runs.is_empty();
        // An attempt that was given up, and has not noticed yet.
        if let Some(before) = runs.insert(task_id, run) {
            before.cancel.cancel();
        }
        drop(runs);
        if first {
            self.bell.notify_one();
        }
    }

    /// A task has ended; none if it was taken away before.
    pub(super) fn end(&self, task_id: TaskId, attempt: u32) -> Option<Run> {
        let mut runs = self.lock();
        match runs.get(&task_id) {
            Some(run) if run.attempt == attempt => runs.remove(&task_id),
            _ => None,
        }
    }

    pub(super) fn progress(&self, task_id: TaskId, attempt: u32, percent: f64) {
        if let Some(run) = self.lock().get_mut(&task_id).filter(|run| run.attempt == attempt) {
            run.progress = Some(percent);
            self.bell.notify_one();
        }
    }
}

/// How it went so far.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    pub done: AtomicU64,
    pub failed: AtomicU64,
    pub returned: AtomicU64,
    pub lost: AtomicU64,
}

impl Tallies {
    pub(super) fn report(&self) -> InstanceReport {
        let read = |tally: &AtomicU64| tally.load(Ordering::Relaxed);
        InstanceReport {
            done: read(&self.done),
            failed: read(&self.failed),
            returned: read(&self.returned),
            lost: read(&self.lost),
        }
    }
}
