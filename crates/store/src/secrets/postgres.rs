//! Signing secrets, on PostgreSQL.

use std::time::Duration;

use relais_core::{ClientId, StoreError};

use crate::{
    declarations::statements::no_client,
    postgres::session::PgSession,
    postgres::{Postgres, error},
    secrets::encryption::{ENCRYPTED, SealedSecret},
    secrets::statements::{Rewrites, SecretFiles, Secrets, StoredSecret, stored_secret},
    session::Result,
};

impl Secrets for PgSession {
    async fn put_signing_secret(
        &mut self,
        client_id: &ClientId,
        secret: &SealedSecret,
        overlap: Duration,
        unless_any: bool,
    ) -> Result<()> {
        let client: Option<i32> =
            sqlx::query_scalar("SELECT id FROM relais.client WHERE client_id = $1 AND NOT deleted")
                .bind(client_id.as_str())
                .fetch_optional(&mut *self.tx)
                .await
                .map_err(error)?;
        let Some(client) = client else { return Err(StoreError::Conflict(no_client(client_id))) };
        sqlx::query(
            "WITH wanted AS (
                 SELECT 1 WHERE NOT EXISTS (
                     SELECT 1 FROM relais.signing_secret
                     WHERE client_id = $1 AND expires IS NULL AND (secret = ANY($5) OR $4)
                 )
             ), gone AS (
                 DELETE FROM relais.signing_secret
                 WHERE client_id = $1 AND expires IS NOT NULL AND secret <> $2 AND EXISTS (SELECT 1 FROM wanted)
             ), leaving AS (
                 UPDATE relais.signing_secret SET expires = clock_timestamp() + make_interval(secs => $3)
                 WHERE client_id = $1 AND expires IS NULL AND EXISTS (SELECT 1 FROM wanted)
             )
             INSERT INTO relais.signing_secret (client_id, secret) SELECT $1, $2 FROM wanted
             ON CONFLICT (client_id, secret) DO UPDATE SET expires = NULL, created = excluded.created",
        )
        .bind(client)
        .bind(&secret.stored)
        .bind(overlap.as_secs_f64())
        .bind(unless_any)
        .bind(&secret.forms)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn encrypted_secret(&mut self) -> Result<Option<StoredSecret>> {
        let row = sqlx::query(
            "SELECT s.*, c.client_id AS client FROM relais.signing_secret s
             JOIN relais.client c ON c.id = s.client_id WHERE starts_with(s.secret, $1) LIMIT 1",
        )
        .bind(ENCRYPTED)
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(error)?;
        row.as_ref().map(stored_secret).transpose()
    }

    async fn lock_signing_secrets(&mut self) -> Result<Vec<StoredSecret>> {
        // The row that whoever declares changes first.
        sqlx::query("SELECT 1 FROM relais.declared FOR NO KEY UPDATE").execute(&mut *self.tx).await.map_err(error)?;
        sqlx::query("DELETE FROM relais.signing_secret WHERE expires <= clock_timestamp()")
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        let rows = sqlx::query(
            "SELECT s.*, c.client_id AS client FROM relais.signing_secret s
             JOIN relais.client c ON c.id = s.client_id",
        )
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        rows.iter().map(stored_secret).collect()
    }

    async fn rewrite_signing_secrets(&mut self, rewrites: &Rewrites) -> Result<()> {
        let (clients, stored): (Vec<i32>, Vec<&str>) =
            rewrites.gone.iter().map(|(client, stored)| (client.0, stored.as_str())).unzip();
        sqlx::query(
            "DELETE FROM relais.signing_secret s USING UNNEST($1::int[], $2::text[]) AS g (client_id, secret)
             WHERE s.client_id = g.client_id AND s.secret = g.secret",
        )
        .bind(clients)
        .bind(stored)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        let clients: Vec<i32> = rewrites.changed.iter().map(|(client, ..)| client.0).collect();
        let (stored, sealed): (Vec<&str>, Vec<&str>) =
            rewrites.changed.iter().map(|(_, stored, sealed)| (stored.as_str(), sealed.as_str())).unzip();
        sqlx::query(
            "UPDATE relais.signing_secret s SET secret = w.sealed
             FROM UNNEST($1::int[], $2::text[], $3::text[]) AS w (client_id, stored, sealed)
             WHERE s.client_id = w.client_id AND s.secret = w.stored",
        )
        .bind(clients)
        .bind(stored)
        .bind(sealed)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }
}

/// Nothing is removed: the files are the server's.
impl SecretFiles for Postgres {}
