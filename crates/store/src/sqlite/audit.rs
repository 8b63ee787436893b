//! The audit log, on SQLite.

use std::time::Duration;

use relais_core::{AuditEntry, AuditRecord};

use super::{Sqlite, error, session::SqliteSession};
use crate::{
    audit::{Journal, JournalReader, audit_record},
    row::wide,
    session::Result,
};

pub(super) const LOG: &str = "SELECT * FROM audit WHERE id < ?1 ORDER BY id DESC LIMIT ?2";

pub(super) const FORGET: &str = concat!(
    "DELETE FROM audit WHERE id IN (SELECT id FROM audit INDEXED BY audit_by_age WHERE at < ",
    now!(),
    " - ?1 ORDER BY at LIMIT ?2)"
);

impl Journal for SqliteSession {
    async fn insert_audit(&mut self, entries: &[AuditEntry]) -> Result<()> {
        for entry in entries {
            sqlx::query(concat!(
                "INSERT INTO audit (at, actor, via, action, target, detail, error) VALUES (",
                now!(),
                ", ?1, ?2, ?3, ?4, ?5, ?6)"
            ))
            .bind(&entry.actor)
            .bind(&entry.via)
            .bind(&entry.action)
            .bind(&entry.target)
            .bind(&entry.detail)
            .bind(&entry.error)
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        }
        Ok(())
    }

    async fn forget_audit(&mut self, older_than: Duration, limit: usize) -> Result<u64> {
        let done = sqlx::query(FORGET)
            .bind(i64::try_from(older_than.as_millis()).unwrap_or(i64::MAX))
            .bind(wide(limit))
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(done.rows_affected())
    }
}

impl JournalReader for Sqlite {
    async fn audit_log(&self, before: i64, limit: usize) -> Result<Vec<AuditRecord>> {
        let rows = sqlx::query(LOG).bind(before).bind(wide(limit)).fetch_all(&self.read).await.map_err(error)?;
        rows.iter().map(audit_record).collect()
    }
}
