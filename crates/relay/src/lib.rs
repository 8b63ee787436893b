//! Declared outboxes, captures, audiences and notification sources in a server: checked, run, watched and operated.
//!
//! [`Outboxes`] is the application layer of outboxes. It implements the engine's port
//! ([`OutboxRelays`](relais_engine::OutboxRelays)), so that the admin API, the dashboard and declaration files reach outboxes
//! as they reach everything else. [`Outboxes::run`] keeps one relay for each declared outbox that is not paused; the operators'
//! verbs work in any process. [`Captures`] is the same for captures, and [`Sources`] for notification sources. [`Audiences`]
//! keeps the members of declared audiences what is declared.
//!
//! The folder by file: `declaration` judges what is declared and fills in the defaults, `secrets` keeps passwords apart,
//! `check` asks the database and the sink, `sink` is the port of what makes sinks, `running` is one outbox that is
//! published, `outboxes` is all of them, `report` is what processes tell each other and Prometheus, `captures` and
//! `sources` have the same for captures and notification sources, `audiences` is about members, and `supervisor` starts, stops and reports on all. What is deliberately not
//! here: any sink, and any SQL.

mod audiences;
mod captures;
mod check;
mod declaration;
mod outboxes;
mod report;
mod running;
mod secrets;
mod sink;
mod sources;
mod supervisor;

pub use audiences::Audiences;
pub use captures::Captures;
pub use outboxes::Outboxes;
pub use relais_capture::{Spool, SpoolOptions};
pub use sink::{SinkError, SinkFactory};
pub use sources::Sources;
pub use supervisor::{EventResources, RelayResources};
