//! What a driver says in SQL about outboxes, captures and notification sources. Secrets are texts to it; what they are in clear,
//! [`crate::secrets::encryption`] knows.

use std::{future::Future, time::Duration};

use relais_core::{Json, RelayKind, RelayName, RelayRecord, RelayReport, RelaySecrets};

use crate::{
    row::{Columns, corrupt},
    session::Result,
};

/// The tables of a kind.
pub(crate) struct RelayTables {
    /// What is declared.
    pub(crate) declarations: &'static str,
    /// What processes say...
    pub(crate) reports: &'static str,
    /// ...of what this column names.
    pub(crate) name: &'static str,
}

pub(crate) const fn tables(kind: RelayKind) -> RelayTables {
    match kind {
        RelayKind::Outbox => {
            RelayTables { declarations: "outbox_declaration", reports: "relay_report", name: "outbox" }
        }
        RelayKind::Capture => {
            RelayTables { declarations: "capture_declaration", reports: "capture_report", name: "capture" }
        }
        RelayKind::NotificationSource => RelayTables {
            declarations: "notification_source_declaration",
            reports: "notification_source_report",
            name: "source",
        },
    }
}

/// Outboxes, captures and notification sources within a transaction.
pub(crate) trait RelayRows: Send {
    /// Writes what is declared. Without `paused` it stays as it is, and a new one is not paused.
    fn put_relay(
        &mut self,
        kind: RelayKind,
        name: &RelayName,
        declaration: &Json,
        secrets: &str,
        paused: Option<bool>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Pauses or resumes one; whether there is one.
    fn pause_relay(
        &mut self,
        kind: RelayKind,
        name: &RelayName,
        paused: bool,
    ) -> impl Future<Output = Result<bool>> + Send;

    fn delete_relay(&mut self, kind: RelayKind, name: &RelayName) -> impl Future<Output = Result<()>> + Send;

    /// The secrets of all of a kind, as they are stored.
    fn list_relay_secrets(&mut self, kind: RelayKind) -> impl Future<Output = Result<Vec<(RelayName, String)>>> + Send;

    /// Writes the secrets of one anew.
    fn rewrite_relay_secrets(
        &mut self,
        kind: RelayKind,
        name: &RelayName,
        secrets: &str,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Removes what a process said, and what others said longer ago than this.
    fn forget_reports(
        &mut self,
        kind: RelayKind,
        process: &str,
        older_than: Duration,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Writes what a process says.
    fn write_reports(
        &mut self,
        kind: RelayKind,
        process: &str,
        reports: &[RelayReport],
    ) -> impl Future<Output = Result<()>> + Send;
}

/// The same, without a transaction.
pub(crate) trait RelayReader: Send + Sync {
    /// In the order of their names, with the secrets as they are stored.
    fn list_relays(&self, kind: RelayKind) -> impl Future<Output = Result<Vec<RelayRecord>>> + Send;

    /// What processes said not longer ago than this, in the order of names and processes.
    fn list_reports(&self, kind: RelayKind, within: Duration) -> impl Future<Output = Result<Vec<RelayReport>>> + Send;
}

pub(crate) fn relay_record(kind: RelayKind, row: &impl Columns) -> Result<RelayRecord> {
    Ok(RelayRecord {
        kind,
        name: relay_name(row, "name")?,
        declaration: Json::parse(row.text("declaration")?).map_err(corrupt)?,
        secrets: RelaySecrets::new(row.text("secrets")?),
        paused: row.flag("paused")?,
    })
}

pub(crate) fn relay_report(kind: RelayKind, row: &impl Columns) -> Result<RelayReport> {
    Ok(RelayReport {
        name: relay_name(row, tables(kind).name)?,
        process: row.text("process")?,
        report: row.text("report")?,
    })
}

pub(crate) fn relay_secrets(row: &impl Columns) -> Result<(RelayName, String)> {
    Ok((relay_name(row, "name")?, row.text("secrets")?))
}

fn relay_name(row: &impl Columns, column: &str) -> Result<RelayName> {
    RelayName::new(row.text(column)?).map_err(corrupt)
}
