//! The counters on PostgreSQL.

use relais_core::{Backlog, QueueDepth, QueueShare, ServiceKey, Wakeup, wakeup};
use sqlx::PgConnection;

use crate::{
    counters::statements::{Accounts, CounterReader, CounterRows, queue_depth, queue_share, status_counter},
    postgres::session::{PgSession, column},
    postgres::{CHANNEL, Postgres, Statement, error},
    row::Columns as _,
    session::{Database as _, Result},
};

/// Adds to the counters, and wakes other processes. It is one statement, and so one round trip, since others wait for
/// these rows. PostgreSQL chooses which part runs first, but always the same: every other statement that writes to both
/// tables has the same two parts.
const ACCOUNT: &str = "
    WITH departed AS (
        INSERT INTO relais.position_tree AS d (service_id, level, slot, n)
        SELECT * FROM unnest($1::integer[], $2::smallint[], $3::bigint[], $4::bigint[])
        ON CONFLICT (service_id, level, slot) DO UPDATE SET n = d.n + excluded.n
    ), counted AS (
        INSERT INTO relais.counter AS t (service_id, client_id, status, departed, n)
        SELECT * FROM unnest($5::integer[], $6::integer[], $7::smallint[], $8::boolean[], $9::bigint[])
        ON CONFLICT (service_id, client_id, status, departed) DO UPDATE SET n = t.n + excluded.n
    )
    SELECT pg_notify($10, $11::text) WHERE $11 IS NOT NULL";

impl CounterReader for Postgres {
    async fn backlog(&self) -> Result<Backlog> {
        let rows = sqlx::query(
            "SELECT service_id, status, coalesce(sum(n) FILTER (WHERE NOT departed), 0)::bigint AS arrived,
                    coalesce(sum(n) FILTER (WHERE departed), 0)::bigint AS departed
             FROM relais.counter WHERE client_id = 0 GROUP BY service_id, status",
        )
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        let counters = rows.iter().map(status_counter).collect::<Result<_>>()?;
        let rows = sqlx::query(
            "SELECT s.id, t.submitted FROM relais.service s CROSS JOIN LATERAL (
                 SELECT submitted FROM relais.task
                 WHERE service_id = s.id AND status BETWEEN 0 AND 0
                 ORDER BY service_id, status, id LIMIT 1
             ) t",
        )
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        let oldest_pending =
            rows.iter().map(|row| Ok((ServiceKey(row.int("id")?), row.moment("submitted")?))).collect::<Result<_>>()?;
        let now = self.ping().await?;
        Ok(Backlog { counters, oldest_pending, now: Some(now) })
    }

    async fn queue_depths(&self, services: &[ServiceKey]) -> Result<Vec<QueueDepth>> {
        let rows = sqlx::query(
            "SELECT s.id AS service_id, c.pending, c.in_progress, t.submitted, clock_timestamp() AS now
             FROM unnest($1::integer[]) WITH ORDINALITY AS s (id, place)
             CROSS JOIN LATERAL (
                 SELECT coalesce(sum(CASE WHEN departed THEN -n ELSE n END) FILTER (WHERE status = 0), 0)::bigint AS pending,
                        coalesce(sum(CASE WHEN departed THEN -n ELSE n END) FILTER (WHERE status = 1), 0)::bigint AS in_progress
                 FROM relais.counter WHERE service_id = s.id AND client_id = 0
             ) c
             LEFT JOIN LATERAL (
                 SELECT submitted FROM relais.task
                 WHERE service_id = s.id AND status BETWEEN 0 AND 0
                 ORDER BY service_id, status, id LIMIT 1
             ) t ON true
             ORDER BY s.place",
        )
        .bind(services.iter().map(|service| service.0).collect::<Vec<_>>())
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        rows.iter().map(queue_depth).collect()
    }

    async fn queue_shares(&self, service: ServiceKey) -> Result<Vec<QueueShare>> {
        let rows = sqlx::query(
            "SELECT * FROM (
                 SELECT client_id,
                        coalesce(sum(CASE WHEN departed THEN -n ELSE n END) FILTER (WHERE status = 0), 0)::bigint AS pending,
                        coalesce(sum(CASE WHEN departed THEN -n ELSE n END) FILTER (WHERE status = 1), 0)::bigint AS running
                 FROM relais.counter WHERE service_id = $1 AND client_id > 0 GROUP BY client_id
             ) c
             WHERE pending > 0 OR running > 0 ORDER BY client_id",
        )
        .bind(service.0)
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        rows.iter().map(queue_share).collect()
    }
}

impl CounterRows for PgSession {
    async fn account(&mut self, accounts: &Accounts, wakeup: &Wakeup) -> Result<()> {
        let origin = self.origin.as_deref().filter(|_| !wakeup.is_empty());
        let payload = origin.map(|origin| wakeup::encode(origin, wakeup));
        account(&mut self.tx, accounts, payload).await
    }
}

/// Adds to the counters, and wakes other processes.
pub(crate) async fn account(connection: &mut PgConnection, accounts: &Accounts, payload: Option<String>) -> Result<()> {
    bind_accounts(sqlx::query(ACCOUNT), accounts, payload).execute(connection).await.map_err(error)?;
    Ok(())
}

/// Binds what is added to the counters, and the wake-up, as the next eleven parameters.
pub(crate) fn bind_accounts<'q>(
    statement: Statement<'q>,
    accounts: &Accounts,
    payload: Option<String>,
) -> Statement<'q> {
    let (counts, departures) = (&accounts.counts, &accounts.departures);
    statement
        .bind(column(departures, |(service, ..)| service.0))
        .bind(column(departures, |(_, node, _)| node.level))
        .bind(column(departures, |(_, node, _)| node.slot))
        .bind(column(departures, |&(.., n)| n))
        .bind(column(counts, |(counter, _)| counter.service.0))
        .bind(column(counts, |(counter, _)| counter.client.0))
        .bind(column(counts, |(counter, _)| counter.status.code()))
        .bind(column(counts, |(counter, _)| counter.departed))
        .bind(column(counts, |&(_, n)| n))
        .bind(CHANNEL)
        .bind(payload)
}
