//! What a driver says in SQL about operators: the audit log, who is signed in, and the workers
//! that processes tell each other of.

use std::{future::Future, time::Duration};

use relais_core::{AuditEntry, AuditOutcome, AuditRecord, SessionsOf};

use crate::{row::Columns, session::Result};

/// The audit log within a transaction.
pub(crate) trait OperatorRows: Send {
    /// Writes lines, in their order.
    fn write_audit(&mut self, entries: &[AuditEntry]) -> impl Future<Output = Result<()>> + Send;

    /// Writes a line of which it is not known what came of it.
    fn begin_audit(&mut self, entry: &AuditEntry) -> impl Future<Output = Result<i64>> + Send;

    /// Writes what came of it.
    fn complete_audit(&mut self, line: i64, outcome: &AuditOutcome) -> impl Future<Output = Result<()>> + Send;

    /// Takes a line back.
    fn drop_audit(&mut self, line: i64) -> impl Future<Output = Result<()>> + Send;

    /// Writes a session, which lasts so long from now on.
    fn open_session(&mut self, id: &str, operator: &str, lasts: Duration) -> impl Future<Output = Result<()>> + Send;

    /// Forgets at most `limit` sessions that have expired.
    fn forget_sessions(&mut self, limit: usize) -> impl Future<Output = Result<()>> + Send;

    /// Removes sessions; tells how many.
    fn end_sessions(&mut self, which: &SessionsOf) -> impl Future<Output = Result<u64>> + Send;

    /// Writes what a process tells of workers; removes it where it tells nothing.
    fn publish_workers(&mut self, process: &str, workers: Option<&str>) -> impl Future<Output = Result<()>> + Send;

    /// Forgets at most `limit` of what processes told that are not heard of any more.
    fn purge_published_workers(
        &mut self,
        older_than: Duration,
        limit: usize,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Forgets at most `limit` lines that are older than this; tells how many.
    fn purge_audit(&mut self, older_than: Duration, limit: usize) -> impl Future<Output = Result<u64>> + Send;
}

/// The audit log, without a transaction.
pub(crate) trait OperatorReader: Send + Sync {
    /// The lines before this one, the newest first.
    fn list_audit(&self, before: i64, limit: usize) -> impl Future<Output = Result<Vec<AuditRecord>>> + Send;

    /// What other processes told of workers, the newest first, and how many milliseconds ago.
    fn list_published_workers(
        &self,
        but: &str,
        within: Duration,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(String, i64)>>> + Send;

    /// Whether there is such a session, and it has not expired.
    fn session_is_open(&self, id: &str) -> impl Future<Output = Result<bool>> + Send;
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
        open: row.flag("open")?,
    })
}
