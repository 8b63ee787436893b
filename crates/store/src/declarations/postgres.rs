//! What is declared, on PostgreSQL.

use relais_core::{Change, Declared, Role, Roles};

use crate::{
    declarations::statements::{
        DeclarationReader, DeclarationRows, authorization, clients as clients_of, found, no_client, rights_text,
        service, unfinished, waits,
    },
    flow::postgres as flow,
    postgres::session::PgSession,
    postgres::{Postgres, error},
    row::{corrupt, in_millis, retry_text, signed},
    session::Result,
};

impl DeclarationReader for Postgres {
    async fn declared(&self) -> Result<Declared> {
        // One snapshot for all four.
        let mut tx = self.lend().await?;
        tx.begin("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        let version: i64 =
            sqlx::query_scalar("SELECT version FROM relais.declared").fetch_one(&mut *tx).await.map_err(error)?;
        let services = sqlx::query("SELECT *, json_schema::text AS schema_text FROM relais.service WHERE NOT deleted")
            .fetch_all(&mut *tx)
            .await
            .map_err(error)?;
        let clients = sqlx::query(
            "SELECT c.id, c.client_id, c.secret_hash, c.destinations, n.rights AS notification_rights
             FROM relais.client c LEFT JOIN relais.notification_rights n ON n.client_id = c.id WHERE NOT c.deleted",
        )
        .fetch_all(&mut *tx)
        .await
        .map_err(error)?;
        let secrets = sqlx::query(
            "SELECT * FROM relais.signing_secret WHERE expires IS NULL OR expires > now() ORDER BY created DESC",
        )
        .fetch_all(&mut *tx)
        .await
        .map_err(error)?;
        let authorizations =
            sqlx::query("SELECT * FROM relais.authorization").fetch_all(&mut *tx).await.map_err(error)?;
        tx.commit().await?;
        Ok(Declared::new(
            version,
            services.iter().map(service).collect::<Result<_>>()?,
            clients_of(&clients, &secrets)?,
            authorizations.iter().map(authorization).collect::<Result<_>>()?,
        ))
    }

    async fn declared_version(&self) -> Result<i64> {
        sqlx::query_scalar("SELECT version FROM relais.declared")
            .fetch_one(&mut *self.lend().await?)
            .await
            .map_err(error)
    }
}

impl DeclarationRows for PgSession {
    async fn declare(&mut self, change: &Change) -> Result<()> {
        let tx = &mut *self.tx;
        match change {
            Change::PutService { name, queue_name, transport, queue, json_schema, paused, limits } => {
                sqlx::query(
                "WITH s AS (
                     INSERT INTO relais.service AS s (name, queue_name, json_schema, paused, capacity, lease_ms,
                                                      delivery_limit, keep_finished_ms, keep_any_ms, callback_retries,
                                                      transport, queue_kind, message_ttl_ms, max_length, retry, timeout_ms,
                                                      priority_step_ms)
                     VALUES ($1, $2, $3::json, coalesce($4, false), $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
                     ON CONFLICT (name) DO UPDATE SET queue_name = excluded.queue_name, json_schema = excluded.json_schema,
                         paused = CASE WHEN s.deleted THEN excluded.paused ELSE coalesce($4, s.paused) END,
                         capacity = excluded.capacity, lease_ms = excluded.lease_ms,
                         delivery_limit = excluded.delivery_limit, keep_finished_ms = excluded.keep_finished_ms,
                         keep_any_ms = excluded.keep_any_ms, callback_retries = excluded.callback_retries,
                         transport = excluded.transport, queue_kind = excluded.queue_kind,
                         message_ttl_ms = excluded.message_ttl_ms, max_length = excluded.max_length,
                         retry = excluded.retry, timeout_ms = excluded.timeout_ms,
                         priority_step_ms = excluded.priority_step_ms,
                         -- What waits elsewhere goes to the new queue: in the built-in one, or in another of the broker.
                         again_after = CASE WHEN excluded.transport = 0 THEN NULL
                                            WHEN s.transport = 1 AND s.queue_name = excluded.queue_name THEN s.again_after
                                            ELSE 0 END,
                         again_until = CASE WHEN s.transport = 1 AND s.queue_name = excluded.queue_name THEN s.again_until
                                            ELSE coalesce((SELECT max(id) FROM relais.task), 0) END,
                         -- What a worker has, too, where nobody follows any more what it says.
                         again_running = CASE WHEN s.transport = 1 AND s.queue_name = excluded.queue_name THEN s.again_running
                                              ELSE s.transport = 1 END,
                         deleted = false
                     RETURNING id
                 )
                 INSERT INTO relais.counter (service_id, client_id, status, departed, n)
                 SELECT id, 0, 0, false, 0 FROM s
                 ON CONFLICT DO NOTHING",
            )
            .bind(name.as_str())
            .bind(queue_name)
            .bind(json_schema.as_ref().map(relais_core::Json::get))
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
            .execute(&mut *tx)
            .await
            .map_err(error)?;
                flow::put_service(tx, name, &limits.flow).await?;
            }
            Change::PauseService { name, paused } => {
                let done = sqlx::query("UPDATE relais.service SET paused = $2 WHERE name = $1 AND NOT deleted")
                    .bind(name.as_str())
                    .bind(*paused)
                    .execute(&mut *tx)
                    .await
                    .map_err(error)?;
                found(done.rows_affected(), || format!("there is no service {name}"))?;
            }
            Change::DeleteService(name) => {
                // Waits for submissions that are under way, and holds up those to come.
                sqlx::query(
                    "SELECT 1 FROM relais.service s
                 JOIN relais.counter a ON a.service_id = s.id AND a.client_id = 0 AND a.status = 0 AND NOT a.departed
                 WHERE s.name = $1 FOR UPDATE OF a",
                )
                .bind(name.as_str())
                .execute(&mut *tx)
                .await
                .map_err(error)?;
                // A second statement on purpose: it sees what was committed while the first one waited.
                let busy: bool = sqlx::query_scalar(
                    "SELECT EXISTS (SELECT 1 FROM relais.service s JOIN relais.task t ON t.service_id = s.id
                                WHERE s.name = $1 AND t.status IN (0, 1, 5))",
                )
                .bind(name.as_str())
                .fetch_one(&mut *tx)
                .await
                .map_err(error)?;
                if busy {
                    return Err(unfinished(name));
                }
                sqlx::query(
                    "WITH gone AS (UPDATE relais.service SET deleted = true WHERE name = $1 RETURNING id)
                 DELETE FROM relais.authorization WHERE service_id IN (SELECT id FROM gone)",
                )
                .bind(name.as_str())
                .execute(&mut *tx)
                .await
                .map_err(error)?;
            }
            Change::PutClient { client_id, secret_hash, destinations, notifications } => {
                // Without a secret, the client must be there and stays as it is.
                let done = sqlx::query(match secret_hash {
                    Some(_) => {
                        "INSERT INTO relais.client AS c (client_id, secret_hash, destinations) VALUES ($1, $2, $3)
                     ON CONFLICT (client_id) DO UPDATE SET secret_hash = excluded.secret_hash, deleted = false,
                         destinations = coalesce(excluded.destinations, c.destinations)"
                    }
                    None => {
                        "UPDATE relais.client SET secret_hash = coalesce($2, secret_hash),
                         destinations = coalesce($3, destinations)
                     WHERE client_id = $1 AND NOT deleted"
                    }
                })
                .bind(client_id.as_str())
                .bind(secret_hash)
                .bind(destinations.as_ref().map(serde_json::to_string).transpose().map_err(corrupt)?)
                .execute(&mut *tx)
                .await
                .map_err(error)?;
                found(done.rows_affected(), || no_client(client_id))?;
                if let Some(rights) = notifications {
                    sqlx::query(
                        "INSERT INTO relais.notification_rights (client_id, rights)
                     SELECT id, $2 FROM relais.client WHERE client_id = $1
                     ON CONFLICT (client_id) DO UPDATE SET rights = excluded.rights",
                    )
                    .bind(client_id.as_str())
                    .bind(rights_text(rights)?)
                    .execute(&mut *tx)
                    .await
                    .map_err(error)?;
                }
            }
            Change::DeleteClient(client_id) => {
                sqlx::query(
                    "WITH gone AS (
                     UPDATE relais.client SET deleted = true, secret_hash = '', destinations = NULL
                     WHERE client_id = $1 RETURNING id
                 ), unsigned AS (
                     DELETE FROM relais.signing_secret WHERE client_id IN (SELECT id FROM gone)
                 )
                 DELETE FROM relais.authorization WHERE client_id IN (SELECT id FROM gone)",
                )
                .bind(client_id.as_str())
                .execute(&mut *tx)
                .await
                .map_err(error)?;
            }
            Change::PutAuthorization { client_id, service, roles, capacity, flow } => {
                let roles = Roles::of(roles);
                let done = sqlx::query(
                    "INSERT INTO relais.authorization (client_id, service_id, consume, work, capacity)
                 SELECT c.id, s.id, $3, $4, $5 FROM relais.client c, relais.service s
                 WHERE c.client_id = $1 AND s.name = $2 AND NOT c.deleted AND NOT s.deleted
                 ON CONFLICT (client_id, service_id) DO UPDATE
                     SET consume = excluded.consume, work = excluded.work, capacity = excluded.capacity",
                )
                .bind(client_id.as_str())
                .bind(service.as_str())
                .bind(roles.has(Role::Consume))
                .bind(roles.has(Role::Work))
                .bind(capacity.map(signed))
                .execute(&mut *tx)
                .await
                .map_err(error)?;
                found(done.rows_affected(), || format!("there is no client {client_id}, or no service {service}"))?;
                flow::put_authorization(tx, client_id, service, *flow).await?;
            }
            Change::DeleteAuthorization { client_id, service } => {
                sqlx::query(
                    "DELETE FROM relais.authorization a USING relais.client c, relais.service s
                 WHERE a.client_id = c.id AND a.service_id = s.id AND c.client_id = $1 AND s.name = $2",
                )
                .bind(client_id.as_str())
                .bind(service.as_str())
                .execute(&mut *tx)
                .await
                .map_err(error)?;
            }
            // With the times that they name, and as they are encrypted: no driver knows either.
            Change::Schedule(_) | Change::Relay(_) | Change::Audience(_) | Change::PutSigningSecret { .. } => {}
        }
        Ok(())
    }

    /// A queue is limited if its service has a capacity, or any client has one there. A deleted service is limited too,
    /// so that submissions to it are noticed.
    async fn note_limits(&mut self) -> Result<()> {
        sqlx::query(
            "UPDATE relais.counter t SET limited = w.limited, brokered = w.brokered
         FROM (SELECT s.id, s.transport = 1 AS brokered, s.deleted OR s.capacity IS NOT NULL OR EXISTS (
                   SELECT 1 FROM relais.authorization a WHERE a.service_id = s.id AND a.capacity IS NOT NULL
               ) AS limited
               FROM relais.service s) w
         WHERE t.service_id = w.id AND t.client_id = 0 AND t.status = 0 AND NOT t.departed
           AND (t.limited, t.brokered) <> (w.limited, w.brokered)",
        )
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        sqlx::query(
        "DELETE FROM relais.dispatch WHERE service_id = ANY(ARRAY(SELECT id FROM relais.service WHERE transport = 0))",
    )
    .execute(&mut *self.tx)
    .await
    .map_err(error)?;
        Ok(())
    }

    async fn bump_declared(&mut self) -> Result<()> {
        sqlx::query("UPDATE relais.declared SET version = version + 1").execute(&mut *self.tx).await.map_err(error)?;
        // All queues, in the order in which submissions lock them: what is declared may touch any of them.
        sqlx::query(
            "SELECT 1 FROM relais.counter WHERE client_id = 0 AND status = 0 AND NOT departed
             ORDER BY service_id FOR NO KEY UPDATE",
        )
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }
}
