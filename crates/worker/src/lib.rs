//! The worker library of Relais in Rust: claims tasks of one service, runs them, and reports on them.
//!
//! A [`Worker`] takes tasks [over HTTP](Worker::builder) or from RabbitMQ (`Worker::rabbitmq`, feature `rabbitmq`, on
//! by default), runs a handler for each, keeps their leases, and reports progress and results until the server has
//! them. The handler is the same on both, and in a process that has the engine itself (`relais-engine`,
//! `Engine::work`). Tasks run *at least once*: a worker that loses its lease is replaced, and its late reports are
//! refused by the number of its attempt. So a handler should do no harm when it runs twice for the same task.
//!
//! With the feature `command`, any program is a handler: `command::CommandRunner`. With `health`, a worker answers its
//! orchestrator's probes. `docs/guides/workers.md` says which transport is for what.
//!
//! A [`Client`] is the consumer's side, kept thin: submit, wait, read, cancel, list, and create batches.
//!
//! What this crate deliberately does not do: decide on retries (the service's policy does), keep anything on disk (the
//! server gives a task of a dead worker to another one), or stop a handler that does not want to stop, before the end
//! of the grace period. The protocol is described in `docs/guides/worker-http.md`, for workers in any language.
//!
//! ```no_run
//! use relais_worker::{Context, HandlerError, Worker};
//! use serde::{Deserialize, Serialize};
//! use tokio_util::sync::CancellationToken;
//!
//! #[derive(Deserialize)]
//! struct Order {
//!     pages: u32,
//! }
//!
//! #[derive(Serialize)]
//! struct Printed {
//!     sheets: u32,
//! }
//!
//! async fn print(order: Order, context: Context) -> Result<Printed, HandlerError> {
//!     if order.pages == 0 {
//!         return Err(HandlerError::new("there is nothing to print"));
//!     }
//!     for page in 0..order.pages {
//!         if context.is_cancelled() {
//!             return Err(HandlerError::new("stopped")); // Nobody reads it: the task is no longer ours.
//!         }
//!         tokio::time::sleep(std::time::Duration::from_millis(200)).await;
//!         context.progress(100.0 * f64::from(page + 1) / f64::from(order.pages));
//!     }
//!     Ok(Printed { sheets: order.pages.div_ceil(2) })
//! }
//!
//! # async fn example() -> Result<(), relais_worker::WorkerError> {
//! let shutdown = CancellationToken::new(); // Cancel it at SIGTERM.
//! let worker = Worker::builder("http://127.0.0.1:8080", "printer", "secret", "print").concurrency(4).build()?;
//! let report = worker.run(print, shutdown).await?;
//! tracing::info!(done = report.done, failed = report.failed, "stopped");
//! # Ok(())
//! # }
//! ```

mod again;
mod backoff;
mod batch;
mod client;
#[cfg(all(feature = "command", unix))]
pub mod command;
mod context;
mod environment;
mod error;
#[cfg(feature = "health")]
mod health;
mod heartbeat;
mod http;
mod report_queue;
mod reporter;
mod run;
mod slots;
mod transport;
mod worker;

pub use batch::{BatchTask, NewBatch};
pub use client::{Client, SubmitOptions, TaskQuery};
pub use error::{CallError, WorkerError};
pub use relais_handler::{Context, HandlerError, trace};
pub use relais_protocol as protocol;
pub use worker::{Worker, WorkerBuilder, WorkerReport};
