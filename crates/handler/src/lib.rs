//! What a handler of tasks is, wherever it runs: an async function from a typed body and a [`Context`] to a typed result or
//! an error.
//!
//! `relais-worker` runs handlers for tasks that come over HTTP or by way of a broker, `relais-engine` for tasks of its own
//! process. This crate is what both share, and nothing else: it takes no tasks and reports none.

mod context;
mod handler;
pub mod trace;

pub use context::{Context, Known, Progress};
pub use handler::{Failure, Handler, HandlerError, Return, Verdict, erase};
