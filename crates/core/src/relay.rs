//! Declared outboxes, captures and notification sources: what the store keeps of them, and its port. The server runs a relay for
//! each.
//!
//! What one is made of, the store need not know: it keeps the declaration as JSON and its secrets apart. They
//! are changed like everything that is declared ([`crate::Change::Relay`]), so that a file is applied as a whole.

use std::{fmt, time::Duration};

use async_trait::async_trait;

use crate::{Json, RelayName, StoreError};

/// Where the messages of a relay come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RelayKind {
    /// The table of an outbox.
    Outbox,
    /// Changes of tables.
    Capture,
    /// Events that become notifications.
    NotificationSource,
}

impl RelayKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Outbox, Self::Capture, Self::NotificationSource];

    /// What it is called.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Outbox => "outbox",
            Self::Capture => "capture",
            Self::NotificationSource => "notification source",
        }
    }
}

impl fmt::Display for RelayKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Secrets as one text. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct RelaySecrets(String);

impl RelaySecrets {
    /// Wraps them.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for RelaySecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RelaySecrets(***)")
    }
}

/// A declared outbox, capture or notification source.
#[derive(Debug, Clone, PartialEq)]
pub struct RelayRecord {
    /// Which of them it is.
    pub kind: RelayKind,
    /// Its name. Those of different kinds may have the same.
    pub name: RelayName,
    /// The declaration, without secrets and without whether it is paused.
    pub declaration: Json,
    /// The declaration's secrets. Encrypted in the database like signing secrets.
    pub secrets: RelaySecrets,
    /// While it is paused, nothing is published.
    pub paused: bool,
}

/// A change of an outbox, a capture or a notification source.
#[derive(Debug, Clone)]
pub enum RelayChange {
    /// Creates or changes it.
    Put {
        /// What it is to be, without whether it is paused.
        relay: Box<RelayRecord>,
        /// Whether it is to be paused; none leaves it as it is.
        paused: Option<bool>,
    },
    /// Pauses or resumes it.
    Pause {
        /// What it is.
        kind: RelayKind,
        /// Its name.
        name: RelayName,
        /// Whether it is to be paused.
        paused: bool,
    },
    /// Deletes it. Its tables stay.
    Delete(RelayKind, RelayName),
}

/// What a process says of a relay that it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayReport {
    /// What it reports on.
    pub name: RelayName,
    /// The process.
    pub process: String,
    /// In its own words.
    pub report: String,
}

/// Declared outboxes, captures and notification sources, and what processes say of the relays that they run.
/// [`crate::DeclarationStore::declare`] changes them.
#[async_trait]
pub trait RelayDeclarations: Send + Sync + 'static {
    /// Those of a kind, in the order of their names.
    async fn list_relays(&self, kind: RelayKind) -> Result<Vec<RelayRecord>, StoreError>;

    /// A process reports on all its relays of a kind; what it said before is replaced, and what is too old is removed.
    async fn report_relays(
        &self,
        kind: RelayKind,
        process: String,
        reports: Vec<RelayReport>,
    ) -> Result<(), StoreError>;

    /// What processes reported not longer ago than this, in the order of names and processes.
    async fn list_reports(&self, kind: RelayKind, within: Duration) -> Result<Vec<RelayReport>, StoreError>;
}
