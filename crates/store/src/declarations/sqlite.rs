//! What is declared, on SQLite.

use relais_core::{Change, ClientId, Declared, Destination, Json, Role, Roles, ServiceName, StoreError};
use sqlx::SqliteTransaction;

use crate::{
    declarations::statements::{
        DeclarationReader, DeclarationRows, authorization, clients as clients_of, found, no_client, rights_text,
        service, unfinished, waits,
    },
    flow::sqlite as flow,
    row::{in_millis, retry_text, signed},
    session::Result,
    sqlite::session::SqliteSession,
    sqlite::values::array,
    sqlite::{Sqlite, error},
};

impl DeclarationReader for Sqlite {
    async fn declared(&self) -> Result<Declared> {
        // One snapshot for all four.
        let mut tx = self.read.begin().await.map_err(error)?;
        let version: i64 =
            sqlx::query_scalar("SELECT version FROM declared").fetch_one(&mut *tx).await.map_err(error)?;
        let services = sqlx::query("SELECT *, json_schema AS schema_text FROM service WHERE NOT deleted")
            .fetch_all(&mut *tx)
            .await
            .map_err(error)?;
        let clients = sqlx::query(
            "SELECT c.id, c.client_id, c.secret_hash, c.destinations, n.rights AS notification_rights
             FROM client c LEFT JOIN notification_rights n ON n.client_id = c.id WHERE NOT c.deleted",
        )
        .fetch_all(&mut *tx)
        .await
        .map_err(error)?;
        let secrets = sqlx::query(concat!(
            "SELECT * FROM signing_secret WHERE expires IS NULL OR expires > ",
            now!(),
            " ORDER BY created DESC"
        ))
        .fetch_all(&mut *tx)
        .await
        .map_err(error)?;
        let authorizations = sqlx::query("SELECT * FROM authorization").fetch_all(&mut *tx).await.map_err(error)?;
        tx.commit().await.map_err(error)?;
        Ok(Declared::new(
            version,
            services.iter().map(service).collect::<Result<_>>()?,
            clients_of(&clients, &secrets)?,
            authorizations.iter().map(authorization).collect::<Result<_>>()?,
        ))
    }

    async fn declared_version(&self) -> Result<i64> {
        sqlx::query_scalar("SELECT version FROM declared").fetch_one(&self.read).await.map_err(error)
    }
}

impl DeclarationRows for SqliteSession {
    async fn declare(&mut self, change: &Change) -> Result<()> {
        let done = declare(&mut self.tx, change).await;
        done.inspect_err(|failure| {
            if matches!(failure, StoreError::Unavailable(_)) {
                self.proof.note(false);
            }
        })
    }

    async fn bump_declared(&mut self) -> Result<()> {
        sqlx::query("UPDATE declared SET version = version + 1")
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(())
    }
}

async fn declare(tx: &mut SqliteTransaction<'static>, change: &Change) -> Result<()> {
    match change {
        Change::PutService { name, queue_name, transport, queue, json_schema, paused, limits } => {
            sqlx::query(
                "INSERT INTO service (name, queue_name, json_schema, paused, capacity, lease_ms, delivery_limit,
                                      keep_finished_ms, keep_any_ms, callback_retries, transport, queue_kind,
                                      message_ttl_ms, max_length, retry, timeout_ms, priority_step_ms)
                 VALUES (?1, ?2, ?3, coalesce(?4, 0), ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
                 ON CONFLICT (name) DO UPDATE SET queue_name = excluded.queue_name, json_schema = excluded.json_schema,
                     paused = CASE WHEN deleted THEN excluded.paused ELSE coalesce(?4, paused) END,
                     capacity = excluded.capacity, lease_ms = excluded.lease_ms,
                     delivery_limit = excluded.delivery_limit, keep_finished_ms = excluded.keep_finished_ms,
                     keep_any_ms = excluded.keep_any_ms, callback_retries = excluded.callback_retries,
                     transport = excluded.transport, queue_kind = excluded.queue_kind,
                     message_ttl_ms = excluded.message_ttl_ms, max_length = excluded.max_length,
                     retry = excluded.retry, timeout_ms = excluded.timeout_ms,
                     priority_step_ms = excluded.priority_step_ms,
                     -- What waits elsewhere goes to the new queue: in the built-in one, or in another of the broker.
                     again_after = CASE WHEN excluded.transport = 0 THEN NULL
                                        WHEN transport = 1 AND queue_name = excluded.queue_name THEN again_after
                                        ELSE 0 END,
                     again_until = CASE WHEN transport = 1 AND queue_name = excluded.queue_name THEN again_until
                                        ELSE coalesce((SELECT max(id) FROM task), 0) END,
                     -- What a worker has, too, where nobody follows any more what it says.
                     again_running = CASE WHEN transport = 1 AND queue_name = excluded.queue_name THEN again_running
                                          ELSE transport = 1 END,
                     deleted = 0",
            )
            .bind(name.as_str())
            .bind(queue_name)
            .bind(json_schema.as_ref().map(Json::get))
            .bind(*paused)
            .bind(limits.capacity.map(signed))
            .bind(in_millis(limits.lease))
            .bind(signed(limits.delivery_limit))
            .bind(limits.retention.finished.map(in_millis))
            .bind(limits.retention.any.map(in_millis))
            .bind(waits(limits.callback_retries.as_deref()))
            .bind(transport.code())
            .bind(queue.kind.code())
            .bind(queue.message_ttl.map(in_millis))
            .bind(queue.max_length.map(signed))
            .bind(retry_text(&limits.retry)?)
            .bind(limits.timeout.map(in_millis))
            .bind(in_millis(limits.priority_step))
            .execute(&mut **tx)
            .await
            .map_err(error)?;
            flow::put_service(tx, name, &limits.flow).await?;
            for statement in [
                "INSERT INTO counter (service_id, client_id, status, departed, n)
                 SELECT id, 0, 0, 0, 0 FROM service WHERE name = ?1
                 ON CONFLICT DO NOTHING",
                "DELETE FROM dispatch WHERE service_id = (SELECT id FROM service WHERE name = ?1 AND transport = 0)",
            ] {
                sqlx::query(statement).bind(name.as_str()).execute(&mut **tx).await.map_err(error)?;
            }
        }
        Change::PauseService { name, paused } => {
            let done = sqlx::query("UPDATE service SET paused = ?2 WHERE name = ?1 AND NOT deleted")
                .bind(name.as_str())
                .bind(*paused)
                .execute(&mut **tx)
                .await
                .map_err(error)?;
            found(done.rows_affected(), || format!("there is no service {name}"))?;
        }
        Change::DeleteService(name) => delete_service(tx, name).await?,
        Change::PutClient { client_id, secret_hash, destinations, notifications } => {
            put_client(tx, client_id, secret_hash.as_deref(), destinations.as_deref()).await?;
            if let Some(rights) = notifications {
                sqlx::query(
                    "INSERT INTO notification_rights (client_id, rights)
                     SELECT id, ?2 FROM client WHERE client_id = ?1
                     ON CONFLICT (client_id) DO UPDATE SET rights = excluded.rights",
                )
                .bind(client_id.as_str())
                .bind(rights_text(rights)?)
                .execute(&mut **tx)
                .await
                .map_err(error)?;
            }
        }
        Change::DeleteClient(client_id) => {
            for statement in [
                "DELETE FROM authorization WHERE client_id = (SELECT id FROM client WHERE client_id = ?1)",
                "DELETE FROM signing_secret WHERE client_id = (SELECT id FROM client WHERE client_id = ?1)",
                "UPDATE client SET deleted = 1, secret_hash = '', destinations = NULL WHERE client_id = ?1",
            ] {
                sqlx::query(statement).bind(client_id.as_str()).execute(&mut **tx).await.map_err(error)?;
            }
        }
        Change::PutAuthorization { client_id, service, roles, capacity, flow } => {
            let roles = Roles::of(roles);
            let done = sqlx::query(
                "INSERT INTO authorization (client_id, service_id, consume, work, capacity)
                 SELECT c.id, s.id, ?3, ?4, ?5 FROM client c CROSS JOIN service s
                 WHERE c.client_id = ?1 AND s.name = ?2 AND NOT c.deleted AND NOT s.deleted
                 ON CONFLICT (client_id, service_id) DO UPDATE
                     SET consume = excluded.consume, work = excluded.work, capacity = excluded.capacity",
            )
            .bind(client_id.as_str())
            .bind(service.as_str())
            .bind(roles.has(Role::Consume))
            .bind(roles.has(Role::Work))
            .bind(capacity.map(signed))
            .execute(&mut **tx)
            .await
            .map_err(error)?;
            found(done.rows_affected(), || format!("there is no client {client_id}, or no service {service}"))?;
            flow::put_authorization(tx, client_id, service, *flow).await?;
        }
        Change::DeleteAuthorization { client_id, service } => {
            sqlx::query(
                "DELETE FROM authorization
                 WHERE client_id = (SELECT id FROM client WHERE client_id = ?1)
                   AND service_id = (SELECT id FROM service WHERE name = ?2)",
            )
            .bind(client_id.as_str())
            .bind(service.as_str())
            .execute(&mut **tx)
            .await
            .map_err(error)?;
        }
        // With the times that they name, and as they are encrypted: no driver knows either.
        Change::Schedule(_) | Change::Relay(_) | Change::Audience(_) | Change::PutSigningSecret { .. } => {}
    }
    Ok(())
}

async fn delete_service(tx: &mut SqliteTransaction<'static>, name: &ServiceName) -> Result<()> {
    let busy: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM service s CROSS JOIN task t ON t.service_id = s.id AND t.status IN (0, 1, 5)
                        WHERE s.name = ?1)",
    )
    .bind(name.as_str())
    .fetch_one(&mut **tx)
    .await
    .map_err(error)?;
    if busy {
        return Err(unfinished(name));
    }
    for statement in [
        "DELETE FROM authorization WHERE service_id = (SELECT id FROM service WHERE name = ?1)",
        "UPDATE service SET deleted = 1 WHERE name = ?1",
    ] {
        sqlx::query(statement).bind(name.as_str()).execute(&mut **tx).await.map_err(error)?;
    }
    Ok(())
}

/// Puts a client. Without a secret the client must exist, and keeps the one it has.
async fn put_client(
    tx: &mut SqliteTransaction<'static>,
    client_id: &ClientId,
    secret_hash: Option<&str>,
    destinations: Option<&[Destination]>,
) -> Result<()> {
    let done = sqlx::query(match secret_hash {
        Some(_) => {
            "INSERT INTO client (client_id, secret_hash, destinations) VALUES (?1, ?2, ?3)
             ON CONFLICT (client_id) DO UPDATE SET secret_hash = excluded.secret_hash, deleted = 0,
                 destinations = coalesce(excluded.destinations, destinations)"
        }
        None => {
            "UPDATE client SET secret_hash = coalesce(?2, secret_hash), destinations = coalesce(?3, destinations)
             WHERE client_id = ?1 AND NOT deleted"
        }
    })
    .bind(client_id.as_str())
    .bind(secret_hash)
    .bind(destinations.map(array).transpose()?)
    .execute(&mut **tx)
    .await
    .map_err(error)?;
    found(done.rows_affected(), || no_client(client_id))
}
