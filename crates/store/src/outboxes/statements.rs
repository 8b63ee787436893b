//! What a driver says in SQL about outboxes. Secrets are texts to it; what they are in clear,
//! [`crate::secrets::encryption`] knows.

use std::{future::Future, time::Duration};

use relais_core::{Json, OutboxName, OutboxRecord, OutboxSecrets, RelayReport};

use crate::{
    row::{Columns, corrupt},
    session::Result,
};

/// Outboxes within a transaction.
pub(crate) trait OutboxRows: Send {
    /// Writes what is declared of an outbox. Without `paused` it stays as it is, and a new one is not paused.
    fn put_outbox(
        &mut self,
        name: &OutboxName,
        declaration: &Json,
        secrets: &str,
        paused: Option<bool>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Pauses or resumes an outbox; whether there is one.
    fn pause_outbox(&mut self, name: &OutboxName, paused: bool) -> impl Future<Output = Result<bool>> + Send;

    fn delete_outbox(&mut self, name: &OutboxName) -> impl Future<Output = Result<()>> + Send;

    /// The secrets of all outboxes, as they are stored.
    fn list_outbox_secrets(&mut self) -> impl Future<Output = Result<Vec<(OutboxName, String)>>> + Send;

    /// Writes the secrets of an outbox anew.
    fn rewrite_outbox_secrets(&mut self, name: &OutboxName, secrets: &str) -> impl Future<Output = Result<()>> + Send;

    /// Removes what a process said, and what others said longer ago than this.
    fn forget_relays(&mut self, process: &str, older_than: Duration) -> impl Future<Output = Result<()>> + Send;

    /// Writes what a process says.
    fn report_relays(&mut self, process: &str, reports: &[RelayReport]) -> impl Future<Output = Result<()>> + Send;
}

/// Outboxes, without a transaction.
pub(crate) trait OutboxReader: Send + Sync {
    /// In the order of their names, with the secrets as they are stored.
    fn list_outboxes(&self) -> impl Future<Output = Result<Vec<OutboxRecord>>> + Send;

    /// What processes said not longer ago than this, in the order of outboxes and processes.
    fn list_relays(&self, within: Duration) -> impl Future<Output = Result<Vec<RelayReport>>> + Send;
}

pub(crate) fn outbox_record(row: &impl Columns) -> Result<OutboxRecord> {
    Ok(OutboxRecord {
        name: outbox_name(row, "name")?,
        declaration: Json::parse(row.text("declaration")?).map_err(corrupt)?,
        secrets: OutboxSecrets::new(row.text("secrets")?),
        paused: row.flag("paused")?,
    })
}

pub(crate) fn relay_report(row: &impl Columns) -> Result<RelayReport> {
    Ok(RelayReport { outbox: outbox_name(row, "outbox")?, process: row.text("process")?, report: row.text("report")? })
}

pub(crate) fn outbox_secrets(row: &impl Columns) -> Result<(OutboxName, String)> {
    Ok((outbox_name(row, "name")?, row.text("secrets")?))
}

fn outbox_name(row: &impl Columns, column: &str) -> Result<OutboxName> {
    OutboxName::new(row.text(column)?).map_err(corrupt)
}
