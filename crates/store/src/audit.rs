//! What a driver says in SQL about the audit log.

use std::{future::Future, time::Duration};

use relais_core::{AuditEntry, AuditRecord};

use crate::{row::Columns, session::Result};

/// The audit log within a transaction.
pub(crate) trait Journal: Send {
    /// Writes lines, in their order.
    fn insert_audit(&mut self, entries: &[AuditEntry]) -> impl Future<Output = Result<()>> + Send;

    /// Forgets at most `limit` lines that are older than this; tells how many.
    fn forget_audit(&mut self, older_than: Duration, limit: usize) -> impl Future<Output = Result<u64>> + Send;
}

/// The audit log, without a transaction.
pub(crate) trait JournalReader: Send + Sync {
    /// The lines before this one, the newest first.
    fn audit_log(&self, before: i64, limit: usize) -> impl Future<Output = Result<Vec<AuditRecord>>> + Send;
}

pub(crate) fn audit_record(row: &impl Columns) -> Result<AuditRecord> {
    Ok(AuditRecord {
        id: row.big("id")?,
        at: row.moment("at")?,
        entry: AuditEntry {
            actor: row.text("actor")?,
            via: row.text("via")?,
            action: row.text("action")?,
            target: row.text("target")?,
            detail: row.text_if_any("detail")?,
            error: row.text_if_any("error")?,
        },
    })
}
