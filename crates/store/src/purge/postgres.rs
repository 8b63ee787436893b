//! Purges on PostgreSQL.

use std::time::Duration;

use relais_core::{ServiceKey, Status};

use crate::{
    history::statements::History as _,
    postgres::error,
    postgres::session::PgSession,
    purge::statements::{PurgeCandidate, PurgeRows, PurgeScan, freed_keys, purge_candidates, waited_for_others},
    row::{Columns as _, service_key, wide},
    session::Result,
};

impl PurgeRows for PgSession {
    async fn scan_for_purge(&mut self, scan: &PurgeScan) -> Result<Vec<PurgeCandidate>> {
        let rows = sqlx::query(
            "SELECT id, client_id, seq, batch_id,
                    greatest(submitted, scheduled) < now() - make_interval(secs => $5)
                        OR ended < now() - make_interval(secs => $4) AS too_old,
                    submitted < now() - make_interval(secs => least($4, $5)) AS matters
             FROM relais.task
             WHERE service_id = $1 AND status BETWEEN $2 AND $2 AND id > $3
             ORDER BY service_id, status, id LIMIT $6",
        )
        .bind(scan.service.0)
        .bind(scan.status.code())
        .bind(scan.after_id)
        .bind(scan.finished.as_secs_f64())
        .bind(scan.any.as_secs_f64())
        .bind(wide(scan.batch))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        purge_candidates(&rows)
    }

    async fn delete_tasks(&mut self, ids: &[i64], status: Status) -> Result<Vec<i64>> {
        let gone = sqlx::query(
            "WITH gone AS (
                 DELETE FROM relais.task WHERE id = ANY(ARRAY(
                     SELECT id FROM relais.task t WHERE id = ANY($1) AND status = $2
                         AND NOT EXISTS (SELECT 1 FROM relais.callback b WHERE b.task = t.id AND b.status = 0)
                         AND NOT (followed AND EXISTS (
                             SELECT 1 FROM relais.dependency d
                             CROSS JOIN LATERAL (SELECT status FROM relais.task WHERE id = d.task OFFSET 0) w
                             WHERE d.prerequisite = t.id AND d.outcome IS NULL AND w.status IN (0, 1, 5)
                         ))
                     ORDER BY id + 0 FOR UPDATE SKIP LOCKED
                 )) RETURNING id, service_id, client_id, task_id, unique_key, after_when
             ), done AS (
                 DELETE FROM relais.attempt WHERE task = ANY(ARRAY(SELECT id FROM gone))
             ), told AS (
                 DELETE FROM relais.callback WHERE task = ANY(ARRAY(SELECT id FROM gone)) RETURNING id
             ), tried AS (
                 DELETE FROM relais.callback_attempt WHERE callback = ANY(ARRAY(SELECT id FROM told))
             )
             SELECT * FROM gone",
        )
        .bind(ids)
        .bind(status.code())
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        let freed = freed_keys(&gone)?;
        if !freed.is_empty() {
            self.free_unique(&freed).await?;
        }
        let waited = waited_for_others(&gone)?;
        if !waited.is_empty() {
            sqlx::query("DELETE FROM relais.dependency WHERE task = ANY($1)")
                .bind(waited)
                .execute(&mut *self.tx)
                .await
                .map_err(error)?;
        }
        gone.iter().map(|row| row.big("id")).collect()
    }

    async fn forget_keys(&mut self, older_than: Duration, limit: usize) -> Result<u64> {
        let done = sqlx::query(
            "DELETE FROM relais.idempotency WHERE (service_id, client_id, key) IN (
                 SELECT service_id, client_id, key FROM relais.idempotency
                 WHERE created < now() - make_interval(secs => $1)
                 ORDER BY created LIMIT $2
             )",
        )
        .bind(older_than.as_secs_f64())
        .bind(wide(limit))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(done.rows_affected())
    }

    async fn queue_floors(&mut self) -> Result<Vec<(ServiceKey, i64)>> {
        let rows = sqlx::query(
            "SELECT a.service_id, coalesce(least(
                 (SELECT seq FROM relais.task t
                  WHERE t.service_id = a.service_id AND t.status BETWEEN 0 AND 0
                  ORDER BY t.service_id, t.status, t.id LIMIT 1),
                 (SELECT seq FROM relais.task t
                  WHERE t.service_id = a.service_id AND t.status BETWEEN 1 AND 1
                  ORDER BY t.service_id, t.status, t.id LIMIT 1),
                 (SELECT seq FROM relais.task t
                  WHERE t.service_id = a.service_id AND t.status BETWEEN 5 AND 5
                  ORDER BY t.service_id, t.status, t.id LIMIT 1)
             ), a.n) AS floor
             FROM relais.counter a WHERE a.client_id = 0 AND a.status = 0 AND NOT a.departed",
        )
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
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
            "DELETE FROM relais.position_tree WHERE service_id = $1 AND level = $2 AND slot < least($3, (
                 SELECT slot FROM relais.position_tree WHERE service_id = $1 AND level = $2
                 ORDER BY service_id, level, slot LIMIT 1
             ) + $4)",
        )
        .bind(service.0)
        .bind(level)
        .bind(before_slot)
        .bind(wide(limit))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(done.rows_affected())
    }
}
