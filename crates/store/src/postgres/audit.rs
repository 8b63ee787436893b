//! The audit log, on PostgreSQL.

use std::time::Duration;

use relais_core::{AuditEntry, AuditRecord};

use super::{Postgres, error, session::PgSession};
use crate::{
    audit::{Journal, JournalReader, audit_record},
    row::wide,
    session::Result,
};

impl Journal for PgSession {
    async fn insert_audit(&mut self, entries: &[AuditEntry]) -> Result<()> {
        let texts = |text: fn(&AuditEntry) -> &str| entries.iter().map(text).collect::<Vec<_>>();
        let maybe = |text: fn(&AuditEntry) -> Option<&str>| entries.iter().map(text).collect::<Vec<_>>();
        sqlx::query(
            "INSERT INTO relais.audit (actor, via, action, target, detail, error)
             SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])",
        )
        .bind(texts(|entry| &entry.actor))
        .bind(texts(|entry| &entry.via))
        .bind(texts(|entry| &entry.action))
        .bind(texts(|entry| &entry.target))
        .bind(maybe(|entry| entry.detail.as_deref()))
        .bind(maybe(|entry| entry.error.as_deref()))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn forget_audit(&mut self, older_than: Duration, limit: usize) -> Result<u64> {
        let done = sqlx::query(
            "DELETE FROM relais.audit WHERE id = ANY (ARRAY(
                 SELECT id FROM relais.audit WHERE at < now() - make_interval(secs => $1) ORDER BY at LIMIT $2
             ))",
        )
        .bind(older_than.as_secs_f64())
        .bind(wide(limit))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(done.rows_affected())
    }
}

impl JournalReader for Postgres {
    async fn audit_log(&self, before: i64, limit: usize) -> Result<Vec<AuditRecord>> {
        let rows = sqlx::query("SELECT * FROM relais.audit WHERE id < $1 ORDER BY id DESC LIMIT $2")
            .bind(before)
            .bind(wide(limit))
            .fetch_all(&mut *self.lend().await?)
            .await
            .map_err(error)?;
        rows.iter().map(audit_record).collect()
    }
}
