//! The counters on SQLite.

use relais_core::{Backlog, QueueDepth, QueueShare, ServiceKey, Wakeup, position::Node};

use crate::{
    counters::statements::{Accounts, Counter, CounterReader, CounterRows, queue_depth, queue_share, status_counter},
    row::Columns as _,
    session::Result,
    sqlite::session::SqliteSession,
    sqlite::values::array,
    sqlite::{Sqlite, error, now},
};

pub(crate) const OLDEST_PENDING: &str = "
    SELECT s.id, t.submitted FROM service s CROSS JOIN task t
        ON t.id = (SELECT id FROM task WHERE service_id = s.id AND status = 0 ORDER BY id LIMIT 1)";

pub(crate) const QUEUE_DEPTHS: &str = concat!(
    "SELECT s.value AS service_id,
            (SELECT coalesce(sum(CASE WHEN departed THEN -n ELSE n END), 0) FROM counter
             WHERE service_id = s.value AND client_id = 0 AND status = 0) AS pending,
            (SELECT coalesce(sum(CASE WHEN departed THEN -n ELSE n END), 0) FROM counter
             WHERE service_id = s.value AND client_id = 0 AND status = 1) AS in_progress,
            (SELECT submitted FROM task WHERE service_id = s.value AND status = 0 ORDER BY id LIMIT 1) AS submitted, ",
    now!(),
    " AS now FROM json_each(?1) AS s ORDER BY s.key"
);

impl CounterReader for Sqlite {
    async fn backlog(&self) -> Result<Backlog> {
        // One snapshot for all three.
        let mut tx = self.read.begin().await.map_err(error)?;
        let counters = sqlx::query(
            "SELECT service_id, status, coalesce(sum(n) FILTER (WHERE NOT departed), 0) AS arrived,
                    coalesce(sum(n) FILTER (WHERE departed), 0) AS departed
             FROM counter WHERE client_id = 0 GROUP BY service_id, status",
        )
        .fetch_all(&mut *tx)
        .await
        .map_err(error)?;
        let oldest = sqlx::query(OLDEST_PENDING).fetch_all(&mut *tx).await.map_err(error)?;
        let now = now(&mut tx).await?;
        tx.commit().await.map_err(error)?;
        Ok(Backlog {
            counters: counters.iter().map(status_counter).collect::<Result<_>>()?,
            oldest_pending: oldest
                .iter()
                .map(|row| Ok((ServiceKey(row.int("id")?), row.moment("submitted")?)))
                .collect::<Result<_>>()?,
            now: Some(now),
        })
    }

    async fn queue_depths(&self, services: &[ServiceKey]) -> Result<Vec<QueueDepth>> {
        let rows = sqlx::query(QUEUE_DEPTHS)
            .bind(array(&services.iter().map(|service| service.0).collect::<Vec<_>>())?)
            .fetch_all(&self.read)
            .await
            .map_err(error)?;
        rows.iter().map(queue_depth).collect()
    }

    async fn queue_shares(&self, service: ServiceKey) -> Result<Vec<QueueShare>> {
        let rows = sqlx::query(
            "SELECT client_id, sum(CASE WHEN status = 0 THEN iif(departed, -n, n) ELSE 0 END) AS pending,
                    sum(CASE WHEN status = 1 THEN iif(departed, -n, n) ELSE 0 END) AS running
             FROM counter WHERE service_id = ?1 AND client_id > 0 GROUP BY client_id
             HAVING pending > 0 OR running > 0 ORDER BY client_id",
        )
        .bind(service.0)
        .fetch_all(&self.read)
        .await
        .map_err(error)?;
        rows.iter().map(queue_share).collect()
    }
}

impl CounterRows for SqliteSession {
    async fn account(&mut self, accounts: &Accounts, _: &Wakeup) -> Result<()> {
        self.depart(&accounts.departures).await?;
        self.count(&accounts.counts).await
    }
}

impl SqliteSession {
    async fn count(&mut self, counts: &[(Counter, i64)]) -> Result<()> {
        if counts.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = counts
            .iter()
            .map(|(counter, n)| {
                (counter.service.0, counter.client.0, counter.status.code(), i16::from(counter.departed), n)
            })
            .collect();
        self.execute(
            // "WHERE true" tells the parser that ON does not begin a join.
            "INSERT INTO counter (service_id, client_id, status, departed, n)
             SELECT value->>0, value->>1, value->>2, value->>3, value->>4 FROM json_each(?1) WHERE true
             ON CONFLICT (service_id, client_id, status, departed) DO UPDATE SET n = n + excluded.n",
            &rows,
        )
        .await
    }

    async fn depart(&mut self, departures: &[(ServiceKey, Node, i64)]) -> Result<()> {
        if departures.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = departures.iter().map(|(service, node, n)| (service.0, node.level, node.slot, n)).collect();
        self.execute(
            "INSERT INTO position_tree (service_id, level, slot, n)
             SELECT value->>0, value->>1, value->>2, value->>3 FROM json_each(?1) WHERE true
             ON CONFLICT (service_id, level, slot) DO UPDATE SET n = n + excluded.n",
            &rows,
        )
        .await
    }
}
