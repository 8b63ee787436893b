//! Outboxes, on PostgreSQL.

use std::time::Duration;

use relais_core::{Json, OutboxName, OutboxRecord, RelayReport};

use crate::{
    outboxes::statements::{OutboxReader, OutboxRows, outbox_record, outbox_secrets, relay_report},
    postgres::session::PgSession,
    postgres::{Postgres, error},
    session::Result,
};

impl OutboxRows for PgSession {
    async fn put_outbox(
        &mut self,
        name: &OutboxName,
        declaration: &Json,
        secrets: &str,
        paused: Option<bool>,
    ) -> Result<()> {
        sqlx::query(
            "INSERT INTO relais.outbox_declaration AS o (name, declaration, secrets, paused)
             VALUES ($1, $2, $3, coalesce($4, false))
             ON CONFLICT (name) DO UPDATE SET declaration = excluded.declaration, secrets = excluded.secrets,
                 paused = coalesce($4, o.paused)",
        )
        .bind(name.as_str())
        .bind(declaration.get())
        .bind(secrets)
        .bind(paused)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn pause_outbox(&mut self, name: &OutboxName, paused: bool) -> Result<bool> {
        let done = sqlx::query("UPDATE relais.outbox_declaration SET paused = $2 WHERE name = $1")
            .bind(name.as_str())
            .bind(paused)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(done.rows_affected() > 0)
    }

    async fn delete_outbox(&mut self, name: &OutboxName) -> Result<()> {
        sqlx::query("DELETE FROM relais.outbox_declaration WHERE name = $1")
            .bind(name.as_str())
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(())
    }

    async fn list_outbox_secrets(&mut self) -> Result<Vec<(OutboxName, String)>> {
        let rows = sqlx::query("SELECT name, secrets FROM relais.outbox_declaration ORDER BY name")
            .fetch_all(&mut *self.tx)
            .await
            .map_err(error)?;
        rows.iter().map(outbox_secrets).collect()
    }

    async fn rewrite_outbox_secrets(&mut self, name: &OutboxName, secrets: &str) -> Result<()> {
        sqlx::query("UPDATE relais.outbox_declaration SET secrets = $2 WHERE name = $1")
            .bind(name.as_str())
            .bind(secrets)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(())
    }

    async fn forget_relays(&mut self, process: &str, older_than: Duration) -> Result<()> {
        sqlx::query(
            "DELETE FROM relais.relay_report WHERE (outbox, process) IN (
                 SELECT outbox, process FROM relais.relay_report
                 WHERE process = $1 OR at < now() - make_interval(secs => $2) FOR UPDATE SKIP LOCKED
             )",
        )
        .bind(process)
        .bind(older_than.as_secs_f64())
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn report_relays(&mut self, process: &str, reports: &[RelayReport]) -> Result<()> {
        sqlx::query(
            "INSERT INTO relais.relay_report (outbox, process, report, at)
             SELECT w.outbox, $1, w.report, clock_timestamp() FROM unnest($2::text[], $3::text[]) AS w (outbox, report)
             ON CONFLICT (outbox, process) DO UPDATE SET report = excluded.report, at = excluded.at",
        )
        .bind(process)
        .bind(reports.iter().map(|report| report.outbox.as_str()).collect::<Vec<_>>())
        .bind(reports.iter().map(|report| report.report.as_str()).collect::<Vec<_>>())
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }
}

impl OutboxReader for Postgres {
    async fn list_outboxes(&self) -> Result<Vec<OutboxRecord>> {
        let rows = sqlx::query("SELECT * FROM relais.outbox_declaration ORDER BY name COLLATE \"C\"")
            .fetch_all(&mut *self.lend().await?)
            .await
            .map_err(error)?;
        rows.iter().map(outbox_record).collect()
    }

    async fn list_relays(&self, within: Duration) -> Result<Vec<RelayReport>> {
        let rows = sqlx::query(
            "SELECT * FROM relais.relay_report WHERE at > now() - make_interval(secs => $1)
             ORDER BY outbox COLLATE \"C\", process COLLATE \"C\"",
        )
        .bind(within.as_secs_f64())
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        rows.iter().map(relay_report).collect()
    }
}
