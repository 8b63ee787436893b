//! Operators, on PostgreSQL: the audit log, and who is signed in.

use std::time::Duration;

use relais_core::{AuditEntry, AuditOutcome, AuditRecord, SessionsOf};

use crate::{
    operators::statements::{OperatorReader, OperatorRows, audit_record},
    postgres::session::PgSession,
    postgres::{Postgres, error},
    row::wide,
    session::Result,
};

impl OperatorRows for PgSession {
    async fn write_audit(&mut self, entries: &[AuditEntry]) -> Result<()> {
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

    async fn begin_audit(&mut self, entry: &AuditEntry) -> Result<i64> {
        sqlx::query_scalar(
            "INSERT INTO relais.audit (actor, via, action, target, detail, error, open)
             VALUES ($1, $2, $3, $4, $5, $6, true) RETURNING id",
        )
        .bind(&entry.actor)
        .bind(&entry.via)
        .bind(&entry.action)
        .bind(&entry.target)
        .bind(&entry.detail)
        .bind(&entry.error)
        .fetch_one(&mut *self.tx)
        .await
        .map_err(error)
    }

    async fn complete_audit(&mut self, line: i64, outcome: &AuditOutcome) -> Result<()> {
        sqlx::query(
            "UPDATE relais.audit SET target = coalesce($2, target), detail = coalesce($3, detail), error = $4, open = false
             WHERE id = $1",
        )
        .bind(line)
        .bind(&outcome.target)
        .bind(&outcome.detail)
        .bind(&outcome.error)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn drop_audit(&mut self, line: i64) -> Result<()> {
        sqlx::query("DELETE FROM relais.audit WHERE id = $1 AND open")
            .bind(line)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(())
    }

    async fn open_session(&mut self, id: &str, operator: &str, lasts: Duration) -> Result<()> {
        sqlx::query(
            "INSERT INTO relais.session (id, operator, expires)
             VALUES ($1, $2, statement_timestamp() + make_interval(secs => $3))",
        )
        .bind(id)
        .bind(operator)
        .bind(lasts.as_secs_f64())
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn forget_sessions(&mut self, limit: usize) -> Result<()> {
        sqlx::query(
            "DELETE FROM relais.session WHERE id = ANY (ARRAY(
                 SELECT id FROM relais.session WHERE expires < now() ORDER BY expires LIMIT $1 FOR UPDATE SKIP LOCKED
             ))",
        )
        .bind(wide(limit))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn end_sessions(&mut self, which: &SessionsOf) -> Result<u64> {
        let query = match which {
            SessionsOf::Browser(id) => sqlx::query("DELETE FROM relais.session WHERE id = $1").bind(id),
            SessionsOf::Operator(name) => sqlx::query("DELETE FROM relais.session WHERE operator = $1").bind(name),
        };
        Ok(query.execute(&mut *self.tx).await.map_err(error)?.rows_affected())
    }

    async fn publish_workers(&mut self, process: &str, workers: Option<&str>) -> Result<()> {
        let query = match workers {
            Some(workers) => sqlx::query(
                "INSERT INTO relais.worker_registry (process, workers, at) VALUES ($1, $2, clock_timestamp())
                 ON CONFLICT (process) DO UPDATE SET workers = excluded.workers, at = excluded.at",
            )
            .bind(process)
            .bind(workers),
            None => sqlx::query("DELETE FROM relais.worker_registry WHERE process = $1").bind(process),
        };
        query.execute(&mut *self.tx).await.map_err(error)?;
        Ok(())
    }

    async fn purge_published_workers(&mut self, older_than: Duration, limit: usize) -> Result<()> {
        sqlx::query(
            "DELETE FROM relais.worker_registry WHERE process = ANY (ARRAY(
                 SELECT process FROM relais.worker_registry WHERE at < now() - make_interval(secs => $1)
                 ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED
             ))",
        )
        .bind(older_than.as_secs_f64())
        .bind(wide(limit))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn purge_audit(&mut self, older_than: Duration, limit: usize) -> Result<u64> {
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

impl OperatorReader for Postgres {
    async fn list_audit(&self, before: i64, limit: usize) -> Result<Vec<AuditRecord>> {
        let rows = sqlx::query("SELECT * FROM relais.audit WHERE id < $1 ORDER BY id DESC LIMIT $2")
            .bind(before)
            .bind(wide(limit))
            .fetch_all(&mut *self.lend().await?)
            .await
            .map_err(error)?;
        rows.iter().map(audit_record).collect()
    }

    async fn list_published_workers(&self, but: &str, within: Duration, limit: usize) -> Result<Vec<(String, i64)>> {
        sqlx::query_as(
            "SELECT workers, (extract(epoch FROM clock_timestamp() - at) * 1000)::bigint FROM relais.worker_registry
             WHERE at > now() - make_interval(secs => $2) AND process <> $1 ORDER BY at DESC LIMIT $3",
        )
        .bind(but)
        .bind(within.as_secs_f64())
        .bind(wide(limit))
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)
    }

    async fn session_is_open(&self, id: &str) -> Result<bool> {
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM relais.session WHERE id = $1 AND expires > now())")
            .bind(id)
            .fetch_one(&mut *self.lend().await?)
            .await
            .map_err(error)
    }
}
