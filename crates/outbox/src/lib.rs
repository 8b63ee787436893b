//! The transactional outbox: a fact is published if and only if the transaction that made it commits.
//!
//! A program writes one row in its own transaction, in any language or with [`Outbox::add`]. A [`Relay`] reads what is
//! unpublished and hands it to a [`Sink`](relais_message::Sink), in order per aggregate. It can run inside the program or in
//! the `relais` binary; many relays share the work.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use relais_message::Sink;
//! use relais_outbox::{Outbox, OutboxEvent, Relay, RelayOptions};
//!
//! # async fn example(sink: Arc<dyn Sink>, url: &str, order: uuid::Uuid) -> Result<(), Box<dyn std::error::Error>> {
//! let outbox = Outbox::new("outbox")?;
//! let pool = sqlx::PgPool::connect(url).await?;
//! outbox.create(&mut *pool.acquire().await?).await?;       // Or: relais outbox init
//!
//! let mut transaction = pool.begin().await?;
//! sqlx::query("INSERT INTO orders …").execute(&mut *transaction).await?;
//! outbox.add(&mut *transaction, &OutboxEvent::new(order, "order.placed", &serde_json::json!({"order": order}))?).await?;
//! transaction.commit().await?;
//!
//! let store = relais_outbox::open(url, &outbox).await?;
//! let relay = Relay::new(store, sink, RelayOptions::new("orders")?).await?;
//! relay.run(tokio_util::sync::CancellationToken::new()).await;
//! # Ok(())
//! # }
//! ```
//!
//! The folder by file: `table` has the columns and the DDL, `add` the insert, `init` makes it by URL, `store` the port of what
//! a relay does in the outbox's database, `postgres` (with `rows`) and `sqlite` its drivers, `listen` how a relay is woken,
//! `options` and `stats` what goes in and comes out of a relay, `relay` its loop, `publish` what it does with rows,
//! `preparation`, `capture` and `source` how rows come from the log. What is deliberately not here: any sink.

mod add;
mod capture;
mod error;
mod init;
mod listen;
mod marking;
mod options;
mod postgres;
mod preparation;
mod publish;
mod relay;
mod rows;
mod source;
mod sqlite;
mod stats;
mod store;
mod table;

pub use add::{AddEvent, Outbox, OutboxEvent};
pub use error::OutboxError;
pub use init::{init, ping};
pub use options::{CaptureOptions, Mode, RelayOptions, Retry};
pub use postgres::PostgresOutbox;
pub use relais_capture::{Spool, SpoolOptions};
pub use relay::Relay;
pub use source::CaptureSource;
pub use sqlite::SqliteOutbox;
pub use stats::{Activity, RelayHandle, RelayStats};
pub use store::{
    FailedKey, FailedRow, OutboxBacklog, OutboxRow, OutboxStore, ParkedRow, PartitionLeases, ReadRequest, RelayIntent,
};
pub use table::{AggregateId, Dialect, FIELDS, Layout, TableName, create_statements};

use std::sync::Arc;

/// Opens the outbox in the database that a URL names: `postgres://…` or `sqlite:file.db`.
pub async fn open(url: &str, outbox: &Outbox) -> Result<Arc<dyn OutboxStore>, OutboxError> {
    match url.split_once(':').map(|(scheme, _)| scheme) {
        Some("postgres" | "postgresql") => Ok(Arc::new(PostgresOutbox::connect(url, outbox.table().clone()).await?)),
        Some("sqlite") => Ok(Arc::new(SqliteOutbox::connect(url, outbox.table().clone()).await?)),
        _ => Err(OutboxError::Url),
    }
}

/// Drops what capture made in the outbox's database, if it made something: a slot that nobody reads keeps the server from
/// removing WAL. A relay that comes back makes it anew.
pub async fn drop_slot(store: &dyn OutboxStore, options: &RelayOptions) -> Result<(), OutboxError> {
    match store.capture_source().await {
        Ok(Some(source)) => source.forget(options).await,
        // No slot can have been made.
        Ok(None) | Err(OutboxError::ReplicationUrl(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// What the outbox's database lacks to be captured, and what to do; nothing is changed.
pub async fn capture_lacks(store: &dyn OutboxStore, options: &RelayOptions) -> Result<Vec<String>, OutboxError> {
    match store.capture_source().await? {
        Some(source) => source.lacks(options).await,
        None => Ok(vec![OutboxError::NoCapture.to_string()]),
    }
}
