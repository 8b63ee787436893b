//! Declared outboxes: what the store keeps of them, and its port.
//!
//! What an outbox is made of, the store need not know: it keeps the declaration as JSON and its secrets apart. Outboxes are
//! changed like everything that is declared ([`crate::Change::Outbox`]), so that a file is applied as a whole.

use std::{fmt, time::Duration};

use async_trait::async_trait;

use crate::{Json, OutboxName, StoreError};

/// Secrets as one text. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct OutboxSecrets(String);

impl OutboxSecrets {
    /// Wraps them.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for OutboxSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OutboxSecrets(***)")
    }
}

/// A declared outbox.
#[derive(Debug, Clone, PartialEq)]
pub struct OutboxRecord {
    /// Its name.
    pub name: OutboxName,
    /// The declaration, without secrets and without whether it is paused.
    pub declaration: Json,
    /// The declaration's secrets. Encrypted in the database like signing secrets.
    pub secrets: OutboxSecrets,
    /// While it is paused, nothing is published.
    pub paused: bool,
}

/// A change of an outbox.
#[derive(Debug, Clone)]
pub enum OutboxChange {
    /// Creates or changes it.
    Put {
        /// The outbox, without whether it is paused.
        outbox: Box<OutboxRecord>,
        /// Whether it is to be paused; none leaves it as it is.
        paused: Option<bool>,
    },
    /// Pauses or resumes it.
    Pause {
        /// Its name.
        name: OutboxName,
        /// Whether it is to be paused.
        paused: bool,
    },
    /// Deletes it. Its table stays.
    Delete(OutboxName),
}

/// What a process says of a relay that it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayReport {
    /// The outbox.
    pub outbox: OutboxName,
    /// The process.
    pub process: String,
    /// In its own words.
    pub report: String,
}

/// Declared outboxes, and what processes say of the relays that they run. [`crate::DeclarationStore::declare`] changes them.
#[async_trait]
pub trait OutboxDeclarations: Send + Sync + 'static {
    /// The outboxes, in the order of their names.
    async fn list_outboxes(&self) -> Result<Vec<OutboxRecord>, StoreError>;

    /// A process reports on all its relays; what it said before is replaced, and what is too old is removed.
    async fn report_relays(&self, process: String, reports: Vec<RelayReport>) -> Result<(), StoreError>;

    /// What processes reported not longer ago than this, in the order of outboxes and processes.
    async fn list_relays(&self, within: Duration) -> Result<Vec<RelayReport>, StoreError>;
}
