//! Operators, on SQLite: the audit log, and who is signed in.

use std::time::Duration;

use relais_core::{AuditEntry, AuditOutcome, AuditRecord, SessionsOf};

use crate::{
    operators::statements::{OperatorReader, OperatorRows, audit_record},
    row::wide,
    session::Result,
    sqlite::session::SqliteSession,
    sqlite::{Sqlite, error},
};

pub(crate) const LOG: &str = "SELECT * FROM audit WHERE id < ?1 ORDER BY id DESC LIMIT ?2";

pub(crate) const FORGET: &str = concat!(
    "DELETE FROM audit WHERE id IN (SELECT id FROM audit INDEXED BY audit_by_age WHERE at < ",
    now!(),
    " - ?1 ORDER BY at LIMIT ?2)"
);

pub(crate) const FORGET_SESSIONS: &str = concat!(
    "DELETE FROM session WHERE id IN (SELECT id FROM session INDEXED BY session_by_end WHERE expires < ",
    now!(),
    " ORDER BY expires LIMIT ?1)"
);

pub(crate) const SESSION_IS_OPEN: &str =
    concat!("SELECT EXISTS (SELECT 1 FROM session WHERE id = ?1 AND expires > ", now!(), ")");

pub(crate) const PURGE_PUBLISHED_WORKERS: &str = concat!(
    "DELETE FROM worker_registry WHERE process IN (SELECT process FROM worker_registry INDEXED BY worker_registry_by_age WHERE at < ",
    now!(),
    " - ?1 ORDER BY at LIMIT ?2)"
);

pub(crate) const PUBLISHED_WORKERS: &str = concat!(
    "SELECT workers, ",
    now!(),
    " - at FROM worker_registry INDEXED BY worker_registry_by_age WHERE at > ",
    now!(),
    " - ?2 AND process <> ?1 ORDER BY at DESC LIMIT ?3"
);

impl OperatorRows for SqliteSession {
    async fn write_audit(&mut self, entries: &[AuditEntry]) -> Result<()> {
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

    async fn begin_audit(&mut self, entry: &AuditEntry) -> Result<i64> {
        sqlx::query_scalar(concat!(
            "INSERT INTO audit (at, actor, via, action, target, detail, error, open) VALUES (",
            now!(),
            ", ?1, ?2, ?3, ?4, ?5, ?6, 1) RETURNING id"
        ))
        .bind(&entry.actor)
        .bind(&entry.via)
        .bind(&entry.action)
        .bind(&entry.target)
        .bind(&entry.detail)
        .bind(&entry.error)
        .fetch_one(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))
    }

    async fn complete_audit(&mut self, line: i64, outcome: &AuditOutcome) -> Result<()> {
        sqlx::query(
            "UPDATE audit SET target = coalesce(?2, target), detail = coalesce(?3, detail), error = ?4, open = 0
             WHERE id = ?1",
        )
        .bind(line)
        .bind(&outcome.target)
        .bind(&outcome.detail)
        .bind(&outcome.error)
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn drop_audit(&mut self, line: i64) -> Result<()> {
        sqlx::query("DELETE FROM audit WHERE id = ?1 AND open = 1")
            .bind(line)
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn open_session(&mut self, id: &str, operator: &str, lasts: Duration) -> Result<()> {
        sqlx::query(concat!("INSERT INTO session (id, operator, expires) VALUES (?1, ?2, ", now!(), " + ?3)"))
            .bind(id)
            .bind(operator)
            .bind(millis(lasts))
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn forget_sessions(&mut self, limit: usize) -> Result<()> {
        sqlx::query(FORGET_SESSIONS)
            .bind(wide(limit))
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn end_sessions(&mut self, which: &SessionsOf) -> Result<u64> {
        let query = match which {
            SessionsOf::Browser(id) => sqlx::query("DELETE FROM session WHERE id = ?1").bind(id),
            SessionsOf::Operator(name) => sqlx::query("DELETE FROM session WHERE operator = ?1").bind(name),
        };
        let done = query.execute(&mut *self.tx).await.map_err(|failure| self.failed(failure))?;
        Ok(done.rows_affected())
    }

    async fn publish_workers(&mut self, process: &str, workers: Option<&str>) -> Result<()> {
        let query = match workers {
            Some(workers) => sqlx::query(concat!(
                "INSERT INTO worker_registry (process, workers, at) VALUES (?1, ?2, ",
                now!(),
                ") ON CONFLICT (process) DO UPDATE SET workers = excluded.workers, at = excluded.at"
            ))
            .bind(process)
            .bind(workers),
            None => sqlx::query("DELETE FROM worker_registry WHERE process = ?1").bind(process),
        };
        query.execute(&mut *self.tx).await.map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn purge_published_workers(&mut self, older_than: Duration, limit: usize) -> Result<()> {
        sqlx::query(PURGE_PUBLISHED_WORKERS)
            .bind(millis(older_than))
            .bind(wide(limit))
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn purge_audit(&mut self, older_than: Duration, limit: usize) -> Result<u64> {
        let done = sqlx::query(FORGET)
            .bind(millis(older_than))
            .bind(wide(limit))
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(done.rows_affected())
    }
}

impl OperatorReader for Sqlite {
    async fn list_audit(&self, before: i64, limit: usize) -> Result<Vec<AuditRecord>> {
        let rows = sqlx::query(LOG).bind(before).bind(wide(limit)).fetch_all(&self.read).await.map_err(error)?;
        rows.iter().map(audit_record).collect()
    }

    async fn list_published_workers(&self, but: &str, within: Duration, limit: usize) -> Result<Vec<(String, i64)>> {
        sqlx::query_as(PUBLISHED_WORKERS)
            .bind(but)
            .bind(millis(within))
            .bind(wide(limit))
            .fetch_all(&self.read)
            .await
            .map_err(error)
    }

    async fn session_is_open(&self, id: &str) -> Result<bool> {
        sqlx::query_scalar(SESSION_IS_OPEN).bind(id).fetch_one(&self.read).await.map_err(error)
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
