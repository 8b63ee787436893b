//! Handlers of tasks: async functions from a typed body and a [`Context`] to a typed result or an error.
//!
//! `relais-worker` runs handlers for tasks over HTTP or a broker, `relais-engine` for tasks of its own process. This
//! crate is what both share: it claims no tasks and reports none.

mod context;
mod handler;
pub mod trace;

pub use context::{Context, Known, Progress};
pub use handler::{Failure, Handler, HandlerError, Return, Verdict, erase};
