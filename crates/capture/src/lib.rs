//! Change capture from PostgreSQL's write-ahead log (WAL).
//!
//! [`ChangeStream`] reads a logical replication slot with `pgoutput`, the plugin that every PostgreSQL has, and gives
//! committed changes in the order of their commits. [`Slot`] and [`Publication`] make and watch what it needs on the
//! server; [`check`] says beforehand what is missing.
//!
//! [`Capture`] does it all: it captures tables with Debezium's envelope into a [`Sink`](relais_message::Sink), resumes
//! where the sink has confirmed, and reads what is there at the beginning beside the stream.
//!
//! The folder by file: `address` reads URLs, `tls`, `channel_binding` and `connection` speak the protocol, `pgoutput`
//! decodes, `stream` and `reader` put changes into batches, `spool` keeps open transactions on disk, `slot` and `publication` look after
//! the server, `check` looks before anything is changed, `model` says what a change is, `debezium` writes it as
//! Debezium's records; `catalog` knows types, `snapshot` reads tables, `progress` keeps how far a capture is, and
//! `capture` with `follow` is the loop. What is deliberately not here: any sink. See docs/adr/0026 for why the client
//! is our own.

mod address;
mod capture;
mod catalog;
mod channel_binding;
mod check;
mod connection;
mod database;
pub mod debezium;
mod error;
mod follow;
pub mod model;
mod pgoutput;
mod progress;
mod publication;
mod reader;
mod slot;
mod snapshot;
mod spool;
mod stats;
mod stream;
mod tls;

pub use address::Address;
pub use capture::Capture;
pub use catalog::{ColumnRules, PublishedTable};
pub use check::{Lack, Wanted, check};
pub use connection::{ReplicationConnection, SystemIdentity, format_lsn, parse_lsn};
pub use database::{CaptureOptions, CapturedDatabase, ROUTE_FIELDS};
pub use error::CaptureError;
pub use model::{Column, Mask, Operation, Row, SnapshotPlace, Source, Table, TypeKind, Value};
pub use pgoutput::{Relation, RelationColumn};
pub use progress::CaptureProgress;
pub use publication::Publication;
pub use slot::{NewSlot, Slot, SlotState, wal_end};
pub use spool::{Spool, SpoolOptions};
pub use stats::{CaptureActivity, CaptureHandle, CaptureStats};
pub use stream::{
    Change, ChangeBatch, ChangeStream, LogicalMessage, StreamEvent, StreamOptions, StreamPosition, Transaction,
};
