//! Declared audiences, on PostgreSQL.

use relais_core::{AudienceChange, AudienceRecord, DeclaredAudience};

use crate::{
    audiences::statements::{AudienceReader, AudienceRows, audience_record, members_text, target},
    postgres::session::PgSession,
    postgres::{Postgres, error},
    session::Result,
};

impl AudienceRows for PgSession {
    async fn change_audience(&mut self, change: &AudienceChange) -> Result<()> {
        let query = match change {
            AudienceChange::Put { audience, members } => sqlx::query(
                "INSERT INTO relais.audience_declaration (type, target, members) VALUES ($1, $2, $3)
                 ON CONFLICT (type, target) DO UPDATE SET members = excluded.members, gone = false",
            )
            .bind(&audience.kind)
            .bind(target(audience))
            .bind(members_text(members)?),
            AudienceChange::Delete(audience) if audience.target.is_none() => {
                sqlx::query("DELETE FROM relais.audience_declaration WHERE type = $1 AND target = ''")
                    .bind(&audience.kind)
            }
            AudienceChange::Delete(audience) => sqlx::query(
                "UPDATE relais.audience_declaration SET members = '[]', gone = true WHERE type = $1 AND target = $2",
            )
            .bind(&audience.kind)
            .bind(target(audience)),
        };
        query.execute(&mut *self.tx).await.map_err(error)?;
        Ok(())
    }

    async fn forget_audience(&mut self, audience: &DeclaredAudience) -> Result<()> {
        sqlx::query("DELETE FROM relais.audience_declaration WHERE type = $1 AND target = $2 AND gone")
            .bind(&audience.kind)
            .bind(target(audience))
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(())
    }
}

impl AudienceReader for Postgres {
    async fn list_audiences(&self) -> Result<Vec<AudienceRecord>> {
        let rows =
            sqlx::query("SELECT * FROM relais.audience_declaration ORDER BY type COLLATE \"C\", target COLLATE \"C\"")
                .fetch_all(&mut *self.lend().await?)
                .await
                .map_err(error)?;
        rows.iter().map(audience_record).collect()
    }
}
