//! Purges on SQLite.

use std::time::Duration;

use relais_core::{ServiceKey, Status};

use crate::{
    history::statements::History as _,
    purge::statements::{PurgeCandidate, PurgeRows, PurgeScan, freed_keys, purge_candidates, waited_for_others},
    row::{Columns as _, in_millis, service_key, wide},
    session::Result,
    sqlite::session::SqliteSession,
    sqlite::values::array,
};

pub(crate) const SCAN_FOR_PURGE: &str = concat!(
    "SELECT id, client_id, seq, batch_id, max(submitted, coalesce(scheduled, 0)) < now - ?5 OR ended < now - ?4 AS too_old,
            submitted < now - min(?4, ?5) AS matters
     FROM (SELECT ",
    now!(),
    " AS now) CROSS JOIN task WHERE service_id = ?1 AND status = ?2 AND id > ?3 ORDER BY id LIMIT ?6"
);

pub(crate) const QUEUE_FLOORS: &str = "
    SELECT a.service_id, min(
        coalesce((SELECT seq FROM task WHERE service_id = a.service_id AND status = 0 ORDER BY id LIMIT 1), a.n),
        coalesce((SELECT seq FROM task WHERE service_id = a.service_id AND status = 1 ORDER BY id LIMIT 1), a.n),
        coalesce((SELECT seq FROM task WHERE service_id = a.service_id AND status = 5 ORDER BY id LIMIT 1), a.n)
    ) AS floor
    FROM counter a WHERE a.client_id = 0 AND a.status = 0 AND NOT a.departed";

impl PurgeRows for SqliteSession {
    async fn scan_for_purge(&mut self, scan: &PurgeScan) -> Result<Vec<PurgeCandidate>> {
        let rows = sqlx::query(SCAN_FOR_PURGE)
            .bind(scan.service.0)
            .bind(scan.status.code())
            .bind(scan.after_id)
            .bind(in_millis(scan.finished))
            .bind(in_millis(scan.any))
            .bind(wide(scan.batch))
            .fetch_all(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        purge_candidates(&rows)
    }

    async fn delete_tasks(&mut self, ids: &[i64], status: Status) -> Result<Vec<i64>> {
        let rows = sqlx::query(
            "DELETE FROM task WHERE id IN (SELECT value FROM json_each(?1)) AND status = ?2
                 AND NOT EXISTS (SELECT 1 FROM callback b WHERE b.task = task.id AND b.status = 0)
                 AND NOT (followed AND EXISTS (
                     SELECT 1 FROM dependency d INDEXED BY dependency_open CROSS JOIN task w ON w.id = d.task
                     WHERE d.prerequisite = task.id AND d.outcome IS NULL AND w.status IN (0, 1, 5)
                 ))
             RETURNING id, service_id, client_id, task_id, unique_key, after_when",
        )
        .bind(array(ids)?)
        .bind(status.code())
        .fetch_all(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        let freed = freed_keys(&rows)?;
        if !freed.is_empty() {
            self.free_unique(&freed).await?;
        }
        let waited = waited_for_others(&rows)?;
        if !waited.is_empty() {
            self.execute("DELETE FROM dependency WHERE task IN (SELECT value FROM json_each(?1))", &waited).await?;
        }
        let gone: Vec<i64> = rows.iter().map(|row| row.big("id")).collect::<Result<_>>()?;
        self.execute(
            "DELETE FROM callback_attempt WHERE callback IN (
                 SELECT b.id FROM json_each(?1) AS w CROSS JOIN callback b ON b.task = w.value
             )",
            &gone,
        )
        .await?;
        self.execute("DELETE FROM attempt WHERE task IN (SELECT value FROM json_each(?1))", &gone).await?;
        self.execute("DELETE FROM callback WHERE task IN (SELECT value FROM json_each(?1))", &gone).await?;
        Ok(gone)
    }

    async fn forget_keys(&mut self, older_than: Duration, limit: usize) -> Result<u64> {
        let done = sqlx::query(concat!(
            "DELETE FROM idempotency WHERE rowid IN (SELECT rowid FROM idempotency WHERE created < ",
            now!(),
            " - ?1 ORDER BY created LIMIT ?2)"
        ))
        .bind(in_millis(older_than))
        .bind(wide(limit))
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(done.rows_affected())
    }

    async fn queue_floors(&mut self) -> Result<Vec<(ServiceKey, i64)>> {
        let rows = sqlx::query(QUEUE_FLOORS).fetch_all(&mut *self.tx).await.map_err(|failure| self.failed(failure))?;
        rows.iter().map(|row| Ok((service_key(row)?, row.big("floor")?))).collect()
    }

    async fn drop_departures(
        &mut self,
        service: ServiceKey,
        level: i16,
        before_slot: i64,
        limit: usize,
    ) -> Result<u64> {
        let done = sqlx::query(
            "DELETE FROM position_tree WHERE service_id = ?1 AND level = ?2 AND slot < min(?3, (
                 SELECT slot FROM position_tree WHERE service_id = ?1 AND level = ?2 ORDER BY slot LIMIT 1
             ) + ?4)",
        )
        .bind(service.0)
        .bind(level)
        .bind(before_slot)
        .bind(wide(limit))
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(done.rows_affected())
    }
}
