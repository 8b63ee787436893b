//! A worker's metrics, through the `metrics` facade. Install the recorder before workers start.

use metrics::{Counter, Gauge, Histogram, Unit, counter, gauge, histogram};

/// What is reported for each push worker.
#[derive(Clone)]
pub(crate) struct WorkerMetrics {
    pub(crate) processed: Counter,
    pub(crate) errors: Counter,
    pub(crate) queue_size: Gauge,
    pub(crate) duration: Histogram,
}

impl WorkerMetrics {
    pub(crate) fn new(prefix: &str, worker: &str) -> Self {
        let [processed, errors, queue_size, duration] =
            ["processed_total", "errors_total", "queue_size", "duration_seconds"]
                .map(|name| format!("{prefix}push_worker_{name}"));
        metrics::describe_counter!(processed.clone(), "Messages that a worker has handled successfully.");
        metrics::describe_counter!(errors.clone(), "Times that a worker's handler failed.");
        metrics::describe_gauge!(queue_size.clone(), "Messages that wait for a worker.");
        metrics::describe_histogram!(duration.clone(), Unit::Seconds, "How long a worker's handler took.");
        let worker = worker.to_owned();
        Self {
            processed: counter!(processed, "worker" => worker.clone()),
            errors: counter!(errors, "worker" => worker.clone()),
            queue_size: gauge!(queue_size, "worker" => worker.clone()),
            duration: histogram!(duration, "worker" => worker),
        }
    }
}
