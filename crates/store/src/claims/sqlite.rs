//! Claims on SQLite. They always lock: one transaction writes at a time, so nothing is gained without a lock.

use relais_core::ServiceKey;

use crate::{
    claims::statements::{ClaimRows, LockedPending, UnlockedClaims, locked_pending},
    row::wide,
    session::Result,
    sqlite::Sqlite,
    sqlite::session::SqliteSession,
    tasks::statements::{Locked, locked},
};

/// The columns that [`locked_pending`] reads, except `now` and `retry`. The service is joined as `s`, the client as
/// `c`.
macro_rules! pending_columns {
    () => {
        "s.lease_ms, s.delivery_limit, s.handed, t.rank, t.unique_key, t.id, t.task_id, t.seq, t.service_id, t.client_id, \
         s.name AS service, c.client_id AS client, t.submitted, t.scheduled, t.priority, t.correlation_id, t.callback, \
         t.request, \
         t.status, t.attempt, t.losses, t.failures, t.revision, t.progress, t.worker_host, t.started, t.ended, \
         t.lease_until, t.due, t.expires, t.deadline, coalesce(t.timeout_ms, s.timeout_ms) AS timeout_ms, \
         t.parent_id, t.batch_id, t.trace, t.after_when, t.followed"
    };
}
pub(crate) use pending_columns;

pub(crate) const LOCK_PENDING: &str = concat!(
    "SELECT ",
    now!(),
    " AS now, NULL AS retry, ",
    pending_columns!(),
    " FROM service s CROSS JOIN task t INDEXED BY task_by_rank ON t.service_id = s.id CROSS JOIN client c ON c.id = t.client_id
      WHERE s.id = ?1 AND t.status = 0 AND NOT s.paused AND NOT s.deleted AND s.transport = 0 AND (s.flow = 0 OR ?3)
      ORDER BY t.rank, t.id LIMIT ?2"
);

impl UnlockedClaims for Sqlite {}

impl ClaimRows for SqliteSession {
    async fn lock_pending(
        &mut self,
        service: ServiceKey,
        limit: usize,
        counted: bool,
    ) -> Result<Option<Locked<LockedPending>>> {
        let rows = sqlx::query(LOCK_PENDING)
            .bind(service.0)
            .bind(wide(limit))
            .bind(counted)
            .fetch_all(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        if rows.is_empty() && !counted {
            let limited = sqlx::query_scalar("SELECT flow > 0 FROM service WHERE id = ?1").bind(service.0);
            let limited: Option<bool> =
                limited.fetch_optional(&mut *self.tx).await.map_err(|failure| self.failed(failure))?;
            if limited == Some(true) {
                return Ok(None);
            }
        }
        locked(&rows, locked_pending).map(Some)
    }
}
