//! A worker's numbers while it runs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::Serialize;

use crate::{ConsumerMonitor, PushWorkerReport, WorkerSubscription};

/// Where a worker is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// It takes messages.
    Running,
    /// It takes no more and finishes what it has.
    Stopping,
    /// It has ended.
    Stopped,
}

/// When a worker works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum WorkerSchedule {
    /// Whenever there is a message.
    #[serde(rename = "PUSH")]
    Push,
}

/// A worker's numbers. As JSON it has exactly these keys.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Where it is in its life.
    pub state: WorkerState,
    /// When it works: always `"PUSH"`.
    pub schedule: WorkerSchedule,
    /// Times that the handler succeeded.
    pub execution_count: u64,
    /// Times that it failed.
    pub errors_count: u64,
    /// When it last ended, well or not; RFC 3339.
    pub last_execution: Option<String>,
    /// Channels and patterns, queues or topics.
    pub channels: Vec<String>,
    /// How many messages at the same time.
    pub concurrency: usize,
    /// Messages that wait, those for their next try included.
    pub queue_size: usize,
    /// Messages that can wait.
    pub queue_capacity: usize,
    /// Since it was started.
    pub uptime_ms: u64,
    /// How long the handler takes, on average over all executions, failures included.
    pub avg_duration_ms: f64,
    /// Successes per second, on average since the start.
    pub throughput_per_sec: f64,
    /// What it is subscribed to, and how many messages of each wait.
    pub subscriptions: Vec<WorkerSubscription>,
}

/// The counters behind [`WorkerStats`].
pub(crate) struct WorkerProgress {
    state: AtomicU8,
    processed: AtomicU64,
    errors: AtomicU64,
    dead_lettered: AtomicU64,
    dropped: AtomicU64,
    /// Handlers that run, and those of them that run for too long.
    pub(crate) running: AtomicUsize,
    pub(crate) slow: AtomicUsize,
    nanos: AtomicU64,
    last: AtomicI64,
    started: Instant,
}

impl WorkerProgress {
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU8::new(WorkerState::Running as u8),
            processed: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            dead_lettered: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            running: AtomicUsize::new(0),
            slow: AtomicUsize::new(0),
            nanos: AtomicU64::new(0),
            last: AtomicI64::new(i64::MIN),
            started: Instant::now(),
        }
    }

    pub(crate) fn enter(&self, state: WorkerState) {
        self.state.store(state as u8, Ordering::Release);
    }

    pub(crate) fn state(&self) -> WorkerState {
        match self.state.load(Ordering::Acquire) {
            0 => WorkerState::Running,
            1 => WorkerState::Stopping,
            _ => WorkerState::Stopped,
        }
    }

    pub(crate) fn executed(&self, took: Duration, well: bool) {
        let count = if well { &self.processed } else { &self.errors };
        count.fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.last.store(Timestamp::now().as_millisecond(), Ordering::Relaxed);
    }

    pub(crate) fn dead_lettered(&self) {
        self.dead_lettered.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn report<M>(&self, left: Vec<Arc<M>>) -> PushWorkerReport<M> {
        PushWorkerReport {
            processed: self.processed.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            dead_lettered: self.dead_lettered.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            left,
        }
    }

    pub(crate) fn stats(&self, concurrency: usize, monitor: &dyn ConsumerMonitor) -> WorkerStats {
        let processed = self.processed.load(Ordering::Relaxed);
        let errors = self.errors.load(Ordering::Relaxed);
        let last = self.last.load(Ordering::Relaxed);
        let uptime = self.started.elapsed();
        let nanos = self.nanos.load(Ordering::Relaxed);
        let per = |amount: f64, of: f64| if of > 0.0 { amount / of } else { 0.0 };
        WorkerStats {
            state: self.state(),
            schedule: WorkerSchedule::Push,
            execution_count: processed,
            errors_count: errors,
            // Milliseconds, UTC.
            last_execution: Timestamp::from_millisecond(last).ok().map(|at| format!("{at:.3}")),
            channels: monitor.channels(),
            concurrency,
            queue_size: monitor.queue_size(),
            queue_capacity: monitor.queue_capacity(),
            uptime_ms: u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX),
            avg_duration_ms: per(nanos as f64 / 1e6, (processed + errors) as f64),
            throughput_per_sec: per(processed as f64, uptime.as_secs_f64()),
            subscriptions: monitor.subscriptions(),
        }
    }
}
