//! Outboxes, captures and notification sources, on PostgreSQL.

use std::time::Duration;

use relais_core::{Json, RelayKind, RelayName, RelayRecord, RelayReport};
use sqlx::AssertSqlSafe;

use crate::{
    postgres::session::PgSession,
    postgres::{Postgres, error},
    relays::statements::{RelayReader, RelayRows, RelayTables, relay_record, relay_report, relay_secrets, tables},
    session::Result,
};

impl RelayRows for PgSession {
    async fn put_relay(
        &mut self,
        kind: RelayKind,
        name: &RelayName,
        declaration: &Json,
        secrets: &str,
        paused: Option<bool>,
    ) -> Result<()> {
        let RelayTables { declarations, .. } = tables(kind);
        sqlx::query(AssertSqlSafe(format!(
            "INSERT INTO relais.{declarations} AS o (name, declaration, secrets, paused)
             VALUES ($1, $2, $3, coalesce($4, false))
             ON CONFLICT (name) DO UPDATE SET declaration = excluded.declaration, secrets = excluded.secrets,
                 paused = coalesce($4, o.paused)"
        )))
        .bind(name.as_str())
        .bind(declaration.get())
        .bind(secrets)
        .bind(paused)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn pause_relay(&mut self, kind: RelayKind, name: &RelayName, paused: bool) -> Result<bool> {
        let RelayTables { declarations, .. } = tables(kind);
        let done = sqlx::query(AssertSqlSafe(format!("UPDATE relais.{declarations} SET paused = $2 WHERE name = $1")))
            .bind(name.as_str())
            .bind(paused)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(done.rows_affected() > 0)
    }

    async fn delete_relay(&mut self, kind: RelayKind, name: &RelayName) -> Result<()> {
        let RelayTables { declarations, .. } = tables(kind);
        sqlx::query(AssertSqlSafe(format!("DELETE FROM relais.{declarations} WHERE name = $1")))
            .bind(name.as_str())
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(())
    }

    async fn list_relay_secrets(&mut self, kind: RelayKind) -> Result<Vec<(RelayName, String)>> {
        let RelayTables { declarations, .. } = tables(kind);
        let rows = sqlx::query(AssertSqlSafe(format!("SELECT name, secrets FROM relais.{declarations} ORDER BY name")))
            .fetch_all(&mut *self.tx)
            .await
            .map_err(error)?;
        rows.iter().map(relay_secrets).collect()
    }

    async fn rewrite_relay_secrets(&mut self, kind: RelayKind, name: &RelayName, secrets: &str) -> Result<()> {
        let RelayTables { declarations, .. } = tables(kind);
        sqlx::query(AssertSqlSafe(format!("UPDATE relais.{declarations} SET secrets = $2 WHERE name = $1")))
            .bind(name.as_str())
            .bind(secrets)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(())
    }

    async fn forget_reports(&mut self, kind: RelayKind, process: &str, older_than: Duration) -> Result<()> {
        let RelayTables { reports, name, .. } = tables(kind);
        sqlx::query(AssertSqlSafe(format!(
            "DELETE FROM relais.{reports} WHERE ({name}, process) IN (
                 SELECT {name}, process FROM relais.{reports}
                 WHERE process = $1 OR at < now() - make_interval(secs => $2) FOR UPDATE SKIP LOCKED
             )"
        )))
        .bind(process)
        .bind(older_than.as_secs_f64())
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn write_reports(&mut self, kind: RelayKind, process: &str, said: &[RelayReport]) -> Result<()> {
        let RelayTables { reports, name, .. } = tables(kind);
        sqlx::query(AssertSqlSafe(format!(
            "INSERT INTO relais.{reports} ({name}, process, report, at)
             SELECT w.{name}, $1, w.report, clock_timestamp() FROM unnest($2::text[], $3::text[]) AS w ({name}, report)
             ON CONFLICT ({name}, process) DO UPDATE SET report = excluded.report, at = excluded.at"
        )))
        .bind(process)
        .bind(said.iter().map(|report| report.name.as_str()).collect::<Vec<_>>())
        .bind(said.iter().map(|report| report.report.as_str()).collect::<Vec<_>>())
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }
}

impl RelayReader for Postgres {
    async fn list_relays(&self, kind: RelayKind) -> Result<Vec<RelayRecord>> {
        let RelayTables { declarations, .. } = tables(kind);
        let rows =
            sqlx::query(AssertSqlSafe(format!("SELECT * FROM relais.{declarations} ORDER BY name COLLATE \"C\"")))
                .fetch_all(&mut *self.lend().await?)
                .await
                .map_err(error)?;
        rows.iter().map(|row| relay_record(kind, row)).collect()
    }

    async fn list_reports(&self, kind: RelayKind, within: Duration) -> Result<Vec<RelayReport>> {
        let RelayTables { reports, name, .. } = tables(kind);
        let rows = sqlx::query(AssertSqlSafe(format!(
            "SELECT * FROM relais.{reports} WHERE at > now() - make_interval(secs => $1)
             ORDER BY {name} COLLATE \"C\", process COLLATE \"C\""
        )))
        .bind(within.as_secs_f64())
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        rows.iter().map(|row| relay_report(kind, row)).collect()
    }
}
