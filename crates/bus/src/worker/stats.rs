//! A worker's numbers while it runs.

use std::{
    sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::Serialize;

use crate::{channels::rfc3339, stats::elapsed_ms};

/// Where a worker is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// It takes events.
    Running,
    /// It takes no more and finishes what it has.
    Stopping,
    /// It has ended.
    Stopped,
}

/// A worker's numbers. As JSON it has exactly these keys.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Where it is in its life.
    pub state: WorkerState,
    /// Times that the handler was run, retries included.
    pub execution_count: u64,
    /// Times that it failed.
    pub errors_count: u64,
    /// When it was last run, RFC 3339.
    pub last_execution: Option<String>,
    /// Channels and patterns.
    pub channels: Vec<String>,
    /// How many events at the same time.
    pub concurrency: usize,
    /// Events that wait, those for their next try included.
    pub queue_size: usize,
    /// Events that can wait.
    pub queue_capacity: usize,
    /// Since it was started.
    pub uptime_ms: u64,
    /// How long the handler takes, on average over all executions.
    pub avg_duration_ms: f64,
    /// Executions per second, on average since the start.
    pub throughput_per_sec: f64,
    /// How many channels and patterns those are.
    pub subscriptions: usize,
}

/// The counters behind [`WorkerStats`].
pub(crate) struct WorkerProgress {
    state: AtomicU8,
    pub(crate) executions: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) dead_lettered: AtomicU64,
    nanos: AtomicU64,
    last: AtomicI64,
    started: Instant,
}

impl WorkerProgress {
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU8::new(0),
            executions: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            dead_lettered: AtomicU64::new(0),
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
        self.executions.fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.last.store(Timestamp::now().as_millisecond(), Ordering::Relaxed);
        if !well {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn stats(&self, channels: Vec<String>, concurrency: usize, queue: (usize, usize)) -> WorkerStats {
        let executions = self.executions.load(Ordering::Relaxed);
        let last = self.last.load(Ordering::Relaxed);
        let seconds = self.started.elapsed().as_secs_f64();
        let nanos = self.nanos.load(Ordering::Relaxed);
        let average = if executions == 0 { 0.0 } else { nanos as f64 / executions as f64 / 1e6 };
        WorkerStats {
            state: self.state(),
            execution_count: executions,
            errors_count: self.errors.load(Ordering::Relaxed),
            last_execution: Timestamp::from_millisecond(last).ok().filter(|_| executions > 0).map(rfc3339),
            subscriptions: channels.len(),
            channels,
            concurrency,
            queue_size: queue.0,
            queue_capacity: queue.1,
            uptime_ms: elapsed_ms(self.started),
            avg_duration_ms: average,
            throughput_per_sec: if seconds > 0.0 { executions as f64 / seconds } else { 0.0 },
        }
    }
}
