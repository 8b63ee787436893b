//! The audit log: written as it comes, forgotten in small batches.

use std::time::Duration;

use relais_core::{AuditEntry, AuditPage, StoreError};

use super::Verbs;
use crate::{
    audit::Journal as _,
    session::{Database, Session as _},
};

/// So many lines are forgotten in one transaction.
const BATCH: usize = 1000;

impl<D: Database> Verbs<D> {
    pub(super) async fn write_down(&self, entries: Vec<AuditEntry>) -> Result<(), StoreError> {
        let entries: Vec<AuditEntry> = entries.into_iter().map(AuditEntry::tidied).collect();
        let mut session = self.database.begin().await?;
        session.insert_audit(&entries).await?;
        session.commit().await
    }

    pub(super) async fn read_log(&self, before: Option<i64>, limit: usize) -> Result<AuditPage, StoreError> {
        let records = self.database.audit_log(before.unwrap_or(i64::MAX), limit).await?;
        let next_before = records.last().filter(|_| records.len() == limit).map(|record| record.id);
        Ok(AuditPage { records, next_before })
    }

    pub(super) async fn forget_log(&self, older_than: Duration) -> Result<u64, StoreError> {
        let mut forgotten = 0;
        loop {
            let mut session = self.database.begin().await?;
            let some = session.forget_audit(older_than, BATCH).await?;
            session.commit().await?;
            forgotten += some;
            if some < BATCH as u64 {
                return Ok(forgotten);
            }
        }
    }
}
