//! The store, on SQLite and on PostgreSQL.
//!
//! A feature is a folder: `tasks/`, `submit/`, `claims/`, `counters/`, `callbacks/`, `schedules/`, `instances/`, … Its
//! `mod.rs` has its port and what it does, once for all databases: lock some rows, ask `relais-core` what they become,
//! write them back, keep the counters. Its `statements.rs` says what it needs of a database, and `postgres.rs` and
//! `sqlite.rs` say that in SQL.
//!
//! `verbs.rs` is the store to which the features add their verbs. `session.rs` is what a driver is: the sum of all
//! `statements.rs`. The drivers, `postgres/` and `sqlite/`, have connections and migrations. A driver decides nothing;
//! where there is nothing to decide it may do a verb in one statement (`submit/postgres.rs`).
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let folder = tempfile::tempdir().unwrap();
//! let url = format!("sqlite:{}", folder.path().join("relais.db").display());
//! let store = relais_store::open(&url, &relais_store::Options::default()).await.unwrap();
//! store.migrate().await.unwrap();
//! assert!(store.declared().await.unwrap().services.is_empty());
//! # });
//! ```

#[macro_use]
mod sqlite;
mod audiences;
mod batches;
mod callbacks;
mod claims;
mod clock;
mod counters;
mod declarations;
mod dependencies;
mod dispatch;
mod flow;
mod history;
mod instances;
mod maintenance;
mod migrations;
mod notifications;
mod operators;
mod postgres;
mod purge;
mod pushes;
mod relays;
mod row;
mod schedules;
mod secrets;
mod session;
mod submissions;
mod submit;
mod tasks;
mod text;
mod verbs;

pub use secrets::encryption::{EncryptionKey, EncryptionKeyError};
pub use submissions::statements::{Enqueue, enqueue};

use std::{sync::Arc, time::Duration};

use relais_core::{AudienceDeclarations, RelayDeclarations, Store, StoreError};
use relais_notify::{NotificationStore, PushStore};

/// How to reach a database.
#[derive(Debug, Clone)]
pub struct Options {
    /// As many connections as may be open at once. SQLite uses one for writing besides those for reading.
    pub max_connections: u32,
    /// How long a call may wait for a connection before the store counts as unavailable.
    pub acquire_timeout: Duration,
    /// Whether processes on the same database tell each other of changes through it. Not needed where something else
    /// does.
    pub notify: bool,
    /// What signing secrets are encrypted with in the database: the first key encrypts, each of them decrypts. Without
    /// any they are stored in clear. [`migrate`](relais_core::MaintenanceStore::migrate) encrypts what is there with
    /// the first key.
    pub encryption_keys: Vec<EncryptionKey>,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_connections: 10, acquire_timeout: Duration::from_secs(5), notify: true, encryption_keys: Vec::new() }
    }
}

/// The ports of one database.
#[derive(Clone)]
pub struct Ports {
    /// Tasks and all that belongs to them.
    pub store: Arc<dyn Store>,
    /// Outboxes, captures and notification sources.
    pub relays: Arc<dyn RelayDeclarations>,
    /// What is declared of audiences.
    pub audiences: Arc<dyn AudienceDeclarations>,
    /// Notifications.
    pub notifications: Arc<dyn NotificationStore>,
    /// Web Push.
    pub pushes: Arc<dyn PushStore>,
}

impl Ports {
    fn of<D: session::Database>(verbs: verbs::Verbs<D>) -> Self {
        let verbs = Arc::new(verbs);
        Self {
            store: Arc::clone(&verbs) as _,
            relays: Arc::clone(&verbs) as _,
            audiences: Arc::clone(&verbs) as _,
            notifications: Arc::clone(&verbs) as _,
            pushes: verbs,
        }
    }
}

/// Opens the store that a URL names: `sqlite:path/to/file.db` or `postgres://…`. Its tables are made by
/// [`migrate`](relais_core::MaintenanceStore::migrate). PostgreSQL need not be up yet.
pub async fn open(url: &str, options: &Options) -> Result<Arc<dyn Store>, StoreError> {
    Ok(open_ports(url, options).await?.store)
}

/// The same, with the ports that are not part of [`Store`].
pub async fn open_ports(url: &str, options: &Options) -> Result<Ports, StoreError> {
    let keys = secrets::encryption::Keys::new(&options.encryption_keys);
    match url.split_once(':').map(|(scheme, _)| scheme) {
        Some("sqlite") => Ok(Ports::of(verbs::Verbs::new(sqlite::Sqlite::open(url, options).await?, keys))),
        Some("postgres" | "postgresql") => {
            Ok(Ports::of(verbs::Verbs::new(postgres::Postgres::open(url, options)?, keys)))
        }
        _ => Err(StoreError::Schema(
            "the database's URL must begin with sqlite: or postgres: (e.g. sqlite:relais.db)".to_owned(),
        )),
    }
}
