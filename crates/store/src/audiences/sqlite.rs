//! Declared audiences, on SQLite.

use relais_core::{AudienceChange, AudienceRecord, DeclaredAudience};

use crate::{
    audiences::statements::{AudienceReader, AudienceRows, audience_record, members_text, target},
    session::Result,
    sqlite::session::SqliteSession,
    sqlite::{Sqlite, error},
};

impl AudienceRows for SqliteSession {
    async fn change_audience(&mut self, change: &AudienceChange) -> Result<()> {
        let query = match change {
            AudienceChange::Put { audience, members } => sqlx::query(
                "INSERT INTO audience_declaration (type, target, members) VALUES (?1, ?2, ?3)
                 ON CONFLICT (type, target) DO UPDATE SET members = excluded.members, gone = 0",
            )
            .bind(&audience.kind)
            .bind(target(audience))
            .bind(members_text(members)?),
            AudienceChange::Delete(audience) if audience.target.is_none() => {
                sqlx::query("DELETE FROM audience_declaration WHERE type = ?1 AND target = ''").bind(&audience.kind)
            }
            AudienceChange::Delete(audience) => {
                sqlx::query("UPDATE audience_declaration SET members = '[]', gone = 1 WHERE type = ?1 AND target = ?2")
                    .bind(&audience.kind)
                    .bind(target(audience))
            }
        };
        query.execute(&mut *self.tx).await.map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn forget_audience(&mut self, audience: &DeclaredAudience) -> Result<()> {
        sqlx::query("DELETE FROM audience_declaration WHERE type = ?1 AND target = ?2 AND gone")
            .bind(&audience.kind)
            .bind(target(audience))
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(())
    }
}

impl AudienceReader for Sqlite {
    async fn list_audiences(&self) -> Result<Vec<AudienceRecord>> {
        let rows = sqlx::query("SELECT * FROM audience_declaration ORDER BY type, target")
            .fetch_all(&self.read)
            .await
            .map_err(error)?;
        rows.iter().map(audience_record).collect()
    }
}
