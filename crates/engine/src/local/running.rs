//! Bookkeeping of the tasks that run in this process.

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

/// A running task.
#[derive(Debug)]
pub(super) struct Run {
    pub service: ServiceKey,
    pub attempt: u32,
    pub since: Instant,
    /// Whether it has timed out.
    pub overdue: bool,
    /// Whether its start was reported.
    pub begun: bool,
    /// Its latest progress that was not reported.
    pub progress: Option<f64>,
    pub cancel: CancellationToken,
}

/// The running tasks.
#[derive(Debug, Default)]
pub(super) struct Running {
    runs: Mutex<HashMap<TaskId, Run>>,
    /// Notified when there is something to report.
    pub bell: Notify,
}

impl Running {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<TaskId, Run>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, task_id: TaskId, run: Run) {
        let mut runs = self.lock();
        let first = runs.is_empty();
        // An earlier attempt that was taken away, and has not stopped yet.
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

/// The counts of outcomes.
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
