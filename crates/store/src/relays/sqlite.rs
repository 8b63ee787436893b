//! Outboxes, captures and notification sources, on SQLite.

use std::time::Duration;

use relais_core::{Json, RelayKind, RelayName, RelayRecord, RelayReport};
use sqlx::AssertSqlSafe;

use crate::{
    relays::statements::{RelayReader, RelayRows, RelayTables, relay_record, relay_report, relay_secrets, tables},
    row::in_millis,
    session::Result,
    sqlite::session::SqliteSession,
    sqlite::{Sqlite, error},
};

impl RelayRows for SqliteSession {
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
            "INSERT INTO {declarations} (name, declaration, secrets, paused) VALUES (?1, ?2, ?3, coalesce(?4, 0))
             ON CONFLICT (name) DO UPDATE SET declaration = excluded.declaration, secrets = excluded.secrets,
                 paused = coalesce(?4, paused)"
        )))
        .bind(name.as_str())
        .bind(declaration.get())
        .bind(secrets)
        .bind(paused)
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn pause_relay(&mut self, kind: RelayKind, name: &RelayName, paused: bool) -> Result<bool> {
        let RelayTables { declarations, .. } = tables(kind);
        let done = sqlx::query(AssertSqlSafe(format!("UPDATE {declarations} SET paused = ?2 WHERE name = ?1")))
            .bind(name.as_str())
            .bind(paused)
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(done.rows_affected() > 0)
    }

    async fn delete_relay(&mut self, kind: RelayKind, name: &RelayName) -> Result<()> {
        let RelayTables { declarations, .. } = tables(kind);
        sqlx::query(AssertSqlSafe(format!("DELETE FROM {declarations} WHERE name = ?1")))
            .bind(name.as_str())
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn list_relay_secrets(&mut self, kind: RelayKind) -> Result<Vec<(RelayName, String)>> {
        let RelayTables { declarations, .. } = tables(kind);
        let rows = sqlx::query(AssertSqlSafe(format!("SELECT name, secrets FROM {declarations} ORDER BY name")))
            .fetch_all(&mut *self.tx)
            .await
            .map_err(error)?;
        rows.iter().map(relay_secrets).collect()
    }

    async fn rewrite_relay_secrets(&mut self, kind: RelayKind, name: &RelayName, secrets: &str) -> Result<()> {
        let RelayTables { declarations, .. } = tables(kind);
        // What is overwritten is filled with zeros.
        sqlx::query("PRAGMA secure_delete = on").execute(&mut *self.tx).await.map_err(error)?;
        sqlx::query(AssertSqlSafe(format!("UPDATE {declarations} SET secrets = ?2 WHERE name = ?1")))
            .bind(name.as_str())
            .bind(secrets)
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        sqlx::query("PRAGMA secure_delete = off").execute(&mut *self.tx).await.map_err(error)?;
        Ok(())
    }

    async fn forget_reports(&mut self, kind: RelayKind, process: &str, older_than: Duration) -> Result<()> {
        let RelayTables { reports, .. } = tables(kind);
        let statement =
            format!(concat!("DELETE FROM {reports} WHERE process = ?1 OR at < ", now!(), " - ?2"), reports = reports);
        sqlx::query(AssertSqlSafe(statement))
            .bind(process)
            .bind(in_millis(older_than))
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn write_reports(&mut self, kind: RelayKind, process: &str, said: &[RelayReport]) -> Result<()> {
        let RelayTables { reports, name, .. } = tables(kind);
        let statement = format!(
            concat!(
                "INSERT INTO {reports} ({name}, process, report, at) VALUES (?1, ?2, ?3, ",
                now!(),
                ") ON CONFLICT ({name}, process) DO UPDATE SET report = excluded.report, at = excluded.at"
            ),
            reports = reports,
            name = name
        );
        for report in said {
            sqlx::query(AssertSqlSafe(statement.clone()))
                .bind(report.name.as_str())
                .bind(process)
                .bind(&report.report)
                .execute(&mut *self.tx)
                .await
                .map_err(|failure| self.failed(failure))?;
        }
        Ok(())
    }
}

impl RelayReader for Sqlite {
    async fn list_relays(&self, kind: RelayKind) -> Result<Vec<RelayRecord>> {
        let RelayTables { declarations, .. } = tables(kind);
        let rows = sqlx::query(AssertSqlSafe(format!("SELECT * FROM {declarations} ORDER BY name")))
            .fetch_all(&self.read)
            .await
            .map_err(error)?;
        rows.iter().map(|row| relay_record(kind, row)).collect()
    }

    async fn list_reports(&self, kind: RelayKind, within: Duration) -> Result<Vec<RelayReport>> {
        let RelayTables { reports, name, .. } = tables(kind);
        let statement = format!(
            concat!("SELECT * FROM {reports} WHERE at > ", now!(), " - ?1 ORDER BY {name}, process"),
            reports = reports,
            name = name
        );
        let rows =
            sqlx::query(AssertSqlSafe(statement)).bind(in_millis(within)).fetch_all(&self.read).await.map_err(error)?;
        rows.iter().map(|row| relay_report(kind, row)).collect()
    }
}
