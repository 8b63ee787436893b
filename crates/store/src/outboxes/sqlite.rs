//! Outboxes, on SQLite.

use std::time::Duration;

use relais_core::{Json, OutboxName, OutboxRecord, RelayReport};

use crate::{
    outboxes::statements::{OutboxReader, OutboxRows, outbox_record, outbox_secrets, relay_report},
    row::in_millis,
    session::Result,
    sqlite::session::SqliteSession,
    sqlite::{Sqlite, error},
};

impl OutboxRows for SqliteSession {
    async fn put_outbox(
        &mut self,
        name: &OutboxName,
        declaration: &Json,
        secrets: &str,
        paused: Option<bool>,
    ) -> Result<()> {
        sqlx::query(
            "INSERT INTO outbox_declaration (name, declaration, secrets, paused) VALUES (?1, ?2, ?3, coalesce(?4, 0))
             ON CONFLICT (name) DO UPDATE SET declaration = excluded.declaration, secrets = excluded.secrets,
                 paused = coalesce(?4, paused)",
        )
        .bind(name.as_str())
        .bind(declaration.get())
        .bind(secrets)
        .bind(paused)
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn pause_outbox(&mut self, name: &OutboxName, paused: bool) -> Result<bool> {
        let done = sqlx::query("UPDATE outbox_declaration SET paused = ?2 WHERE name = ?1")
            .bind(name.as_str())
            .bind(paused)
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(done.rows_affected() > 0)
    }

    async fn delete_outbox(&mut self, name: &OutboxName) -> Result<()> {
        sqlx::query("DELETE FROM outbox_declaration WHERE name = ?1")
            .bind(name.as_str())
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn list_outbox_secrets(&mut self) -> Result<Vec<(OutboxName, String)>> {
        let rows = sqlx::query("SELECT name, secrets FROM outbox_declaration ORDER BY name")
            .fetch_all(&mut *self.tx)
            .await
            .map_err(error)?;
        rows.iter().map(outbox_secrets).collect()
    }

    async fn rewrite_outbox_secrets(&mut self, name: &OutboxName, secrets: &str) -> Result<()> {
        // What is overwritten is filled with zeros.
        sqlx::query("PRAGMA secure_delete = on").execute(&mut *self.tx).await.map_err(error)?;
        sqlx::query("UPDATE outbox_declaration SET secrets = ?2 WHERE name = ?1")
            .bind(name.as_str())
            .bind(secrets)
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        sqlx::query("PRAGMA secure_delete = off").execute(&mut *self.tx).await.map_err(error)?;
        Ok(())
    }

    async fn forget_relays(&mut self, process: &str, older_than: Duration) -> Result<()> {
        sqlx::query(concat!("DELETE FROM relay_report WHERE process = ?1 OR at < ", now!(), " - ?2"))
            .bind(process)
            .bind(in_millis(older_than))
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn report_relays(&mut self, process: &str, reports: &[RelayReport]) -> Result<()> {
        for report in reports {
            sqlx::query(concat!(
                "INSERT INTO relay_report (outbox, process, report, at) VALUES (?1, ?2, ?3, ",
                now!(),
                ") ON CONFLICT (outbox, process) DO UPDATE SET report = excluded.report, at = excluded.at"
            ))
            .bind(report.outbox.as_str())
            .bind(process)
            .bind(&report.report)
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        }
        Ok(())
    }
}

impl OutboxReader for Sqlite {
    async fn list_outboxes(&self) -> Result<Vec<OutboxRecord>> {
        let rows =
            sqlx::query("SELECT * FROM outbox_declaration ORDER BY name").fetch_all(&self.read).await.map_err(error)?;
        rows.iter().map(outbox_record).collect()
    }

    async fn list_relays(&self, within: Duration) -> Result<Vec<RelayReport>> {
        let rows =
            sqlx::query(concat!("SELECT * FROM relay_report WHERE at > ", now!(), " - ?1 ORDER BY outbox, process"))
                .bind(in_millis(within))
                .fetch_all(&self.read)
                .await
                .map_err(error)?;
        rows.iter().map(relay_report).collect()
    }
}
