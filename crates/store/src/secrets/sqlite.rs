//! Signing secrets, on SQLite.

use std::time::Duration;

use relais_core::ClientId;

use crate::{
    declarations::statements::{found, no_client},
    row::in_millis,
    secrets::encryption::{ENCRYPTED, SealedSecret},
    secrets::statements::{Rewrites, SecretFiles, Secrets, StoredSecret, stored_secret},
    session::Result,
    sqlite::session::SqliteSession,
    sqlite::values::array,
    sqlite::{Sqlite, error},
};

impl Secrets for SqliteSession {
    async fn put_signing_secret(
        &mut self,
        client_id: &ClientId,
        secret: &SealedSecret,
        overlap: Duration,
        unless_any: bool,
    ) -> Result<()> {
        let client: Option<i32> = sqlx::query_scalar("SELECT id FROM client WHERE client_id = ?1 AND NOT deleted")
            .bind(client_id.as_str())
            .fetch_optional(&mut *self.tx)
            .await
            .map_err(error)?;
        found(u64::from(client.is_some()), || no_client(client_id))?;
        let enough: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM signing_secret WHERE client_id = ?1 AND expires IS NULL
                            AND (secret IN (SELECT value FROM json_each(?2)) OR ?3))",
        )
        .bind(client)
        .bind(array(&secret.forms)?)
        .bind(unless_any)
        .fetch_one(&mut *self.tx)
        .await
        .map_err(error)?;
        if enough {
            return Ok(());
        }
        for statement in [
            "DELETE FROM signing_secret WHERE client_id = ?1 AND expires IS NOT NULL AND ?2 = ?2 AND ?3 = ?3",
            concat!("UPDATE signing_secret SET expires = ", now!(), " + ?3 WHERE client_id = ?1 AND ?2 = ?2"),
            concat!(
                "INSERT INTO signing_secret (client_id, secret, created) SELECT ?1, ?2, ",
                now!(),
                " WHERE ?3 = ?3 ON CONFLICT (client_id, secret) DO UPDATE SET expires = NULL, created = excluded.created"
            ),
        ] {
            sqlx::query(statement)
                .bind(client)
                .bind(&secret.stored)
                .bind(in_millis(overlap))
                .execute(&mut *self.tx)
                .await
                .map_err(|failure| self.failed(failure))?;
        }
        Ok(())
    }

    async fn encrypted_secret(&mut self) -> Result<Option<StoredSecret>> {
        let row = sqlx::query(
            "SELECT s.*, c.client_id AS client FROM signing_secret s JOIN client c ON c.id = s.client_id
             WHERE s.secret GLOB ?1 || '*' LIMIT 1",
        )
        .bind(ENCRYPTED)
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(error)?;
        row.as_ref().map(stored_secret).transpose()
    }

    /// Nobody else writes until the transaction ends.
    async fn lock_signing_secrets(&mut self) -> Result<Vec<StoredSecret>> {
        sqlx::query(concat!("DELETE FROM signing_secret WHERE expires <= ", now!()))
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        let rows =
            sqlx::query("SELECT s.*, c.client_id AS client FROM signing_secret s JOIN client c ON c.id = s.client_id")
                .fetch_all(&mut *self.tx)
                .await
                .map_err(error)?;
        rows.iter().map(stored_secret).collect()
    }

    async fn rewrite_signing_secrets(&mut self, rewrites: &Rewrites) -> Result<()> {
        // What is overwritten is filled with zeros. Not always: what a purge frees would have to be written once more.
        sqlx::query("PRAGMA secure_delete = on").execute(&mut *self.tx).await.map_err(error)?;
        for (client, stored) in &rewrites.gone {
            sqlx::query("DELETE FROM signing_secret WHERE client_id = ?1 AND secret = ?2")
                .bind(client.0)
                .bind(stored)
                .execute(&mut *self.tx)
                .await
                .map_err(|failure| self.failed(failure))?;
        }
        for (client, stored, sealed) in &rewrites.changed {
            sqlx::query("UPDATE signing_secret SET secret = ?3 WHERE client_id = ?1 AND secret = ?2")
                .bind(client.0)
                .bind(stored)
                .bind(sealed)
                .execute(&mut *self.tx)
                .await
                .map_err(|failure| self.failed(failure))?;
        }
        sqlx::query("PRAGMA secure_delete = off").execute(&mut *self.tx).await.map_err(error)?;
        Ok(())
    }
}

impl SecretFiles for Sqlite {
    /// The log has it until it is cut off. Where secrets lay in clear, those
    /// that were deleted long ago may be in any free place of the file; only writing the whole file anew removes them.
    async fn wipe_overwritten(&self, clear_text: bool) -> Result<()> {
        if clear_text && let Err(failure) = sqlx::query("VACUUM").execute(&self.write).await {
            tracing::warn!(
                error = %failure,
                "signing secrets are encrypted, but deleted ones may be left in free places of the file; run VACUUM on it"
            );
        }
        sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&self.write).await.map_err(error)?;
        Ok(())
    }
}
