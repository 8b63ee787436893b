//! Declared outboxes and captures in a server: checked, run, watched and operated.
//!
//! [`Outboxes`] is the application layer of outboxes. It implements the engine's port
//! ([`OutboxRelays`](relais_engine::OutboxRelays)), so that the admin API, the dashboard and declaration files reach outboxes
//! as they reach everything else. [`Outboxes::run`] keeps one relay for each declared outbox that is not paused; the operators'
//! verbs work in any process. [`Captures`] is the same for captures.
//!
//! The folder by file: `declaration` judges what is declared and fills in the defaults, `secrets` keeps passwords apart,
//! `check` asks the database and the sink, `sink` is the port of what makes sinks, `running` is one outbox that is
//! published, `outboxes` is all of them, `report` is what processes tell each other and Prometheus, `captures` has the same for
//! captures, and `supervisor` starts, stops and reports on both. What is deliberately not
//! here: any sink, and any SQL.

mod captures;
mod check;
mod declaration;
mod outboxes;
mod report;
mod running;
mod secrets;
mod sink;
mod supervisor;

pub use captures::Captures;
pub use outboxes::Outboxes;
pub use relais_capture::{Spool, SpoolOptions};
pub use sink::{SinkError, SinkFactory};
pub use supervisor::RelayResources;
