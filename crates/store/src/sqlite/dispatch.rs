//! Tasks that are to be dispatched to a broker, on SQLite.

use std::time::Duration;

use relais_core::{DispatchName, Dispatched, DueDispatch, ServiceKey, TaskId};
use sqlx::Row as _;

use super::{batch::array, error, session::SqliteSession};
use crate::{
    dispatch::{Dispatch, fresh_round},
    row::{due_dispatch, in_millis, wide},
    session::Result,
};

/// How many tasks of a status, up to one, are at the broker, in somebody's hand or with a worker: those without a row that
/// anybody may take. Of those that wait, what was never published is behind the horizon, so that no more are looked at than
/// fit the window.
pub(super) const PUBLISHED: &str = concat!(
    "SELECT count(*) FROM (
         SELECT 1 FROM task t
         WHERE t.service_id = ?1 AND t.status = ?2 AND t.id <= ?3 AND NOT EXISTS (
             SELECT 1 FROM dispatch d WHERE d.service_id = ?1 AND d.task_id = t.task_id AND d.due <= ",
    now!(),
    "    )
         ORDER BY t.id LIMIT ?4
     )"
);

impl Dispatch for SqliteSession {
    async fn insert_dispatches(&mut self, tasks: &[(ServiceKey, TaskId)]) -> Result<Vec<ServiceKey>> {
        let mut services: Vec<i32> = sqlx::query_scalar(concat!(
            "INSERT INTO dispatch (service_id, task_id, due, round)
             SELECT w.value->>0, w.value->>1, ",
            now!(),
            ", ?2 FROM json_each(?1) AS w JOIN service s ON s.id = w.value->>0 AND s.transport = 1 WHERE true
              ON CONFLICT (service_id, task_id) DO UPDATE SET due = excluded.due, round = excluded.round
              RETURNING service_id"
        ))
        .bind(array(&named(tasks))?)
        .bind(fresh_round())
        .fetch_all(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        services.sort_unstable();
        services.dedup();
        Ok(services.into_iter().map(ServiceKey).collect())
    }

    async fn window_room(&mut self, service: ServiceKey) -> Result<Option<usize>> {
        let row = sqlx::query(
            "SELECT s.dispatch_window, f.horizon FROM service s JOIN flow f ON f.service_id = s.id
             WHERE s.id = ?1 AND s.dispatch_window IS NOT NULL",
        )
        .bind(service.0)
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        let Some(row) = row else { return Ok(None) };
        let mut room: i64 = row.try_get("dispatch_window").map_err(error)?;
        let horizon: i64 = row.try_get("horizon").map_err(error)?;
        for (status, last) in [(1, i64::MAX), (0, horizon)] {
            let published: i64 = sqlx::query_scalar(PUBLISHED)
                .bind(service.0)
                .bind(status)
                .bind(last)
                .bind(room)
                .fetch_one(&mut *self.tx)
                .await
                .map_err(|failure| self.failed(failure))?;
            room -= published;
        }
        Ok(Some(usize::try_from(room).unwrap_or(0)))
    }

    async fn note_within_window(&mut self, service: ServiceKey, tasks: &[TaskId]) -> Result<()> {
        sqlx::query(
            "UPDATE flow SET horizon = max(horizon, coalesce((
                 SELECT max(t.id) FROM json_each(?2) AS w CROSS JOIN task t ON t.task_id = w.value), 0))
             WHERE service_id = ?1",
        )
        .bind(service.0)
        .bind(array(tasks)?)
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn hold_dispatches(
        &mut self,
        services: &[ServiceKey],
        each: usize,
        lease: Duration,
        counted: bool,
    ) -> Result<Vec<DueDispatch>> {
        let mut held = Vec::new();
        for service in services {
            let rows = sqlx::query(concat!(
                "SELECT d.service_id, d.task_id, d.round, s.queue_name, t.request, t.correlation_id, t.priority
                 FROM (SELECT service_id, task_id, round FROM dispatch WHERE service_id = ?1 AND due <= ",
                now!(),
                " ORDER BY task_id LIMIT ?2) d
                 JOIN service s ON s.id = d.service_id AND (s.dispatch_window IS NULL OR ?3)
                 LEFT JOIN task t ON t.task_id = d.task_id AND t.status IN (0, 1) ORDER BY d.task_id"
            ))
            .bind(service.0)
            .bind(wide(each))
            .bind(counted)
            .fetch_all(&mut *self.tx)
            .await
            .map_err(error)?;
            held.extend(rows.iter().map(due_dispatch).collect::<Result<Vec<_>>>()?);
        }
        if held.is_empty() {
            return Ok(held);
        }
        let tasks: Vec<_> = held.iter().map(|due| (due.name.service, due.name.task_id)).collect();
        sqlx::query(concat!(
            "UPDATE dispatch SET due = ",
            now!(),
            " + ?2 WHERE (service_id, task_id) IN (SELECT value->>0, value->>1 FROM json_each(?1))"
        ))
        .bind(array(&named(&tasks))?)
        .bind(in_millis(lease))
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(held)
    }

    async fn settle_dispatches(&mut self, tasks: &[DispatchName], outcome: Dispatched) -> Result<()> {
        let statement = match outcome {
            Dispatched::Done => {
                "DELETE FROM dispatch WHERE (service_id, task_id, round) IN (
                     SELECT w.value->>0, w.value->>1, w.value->>2 FROM json_each(?1) AS w
                     JOIN service s ON s.id = w.value->>0 AND s.queue_name = w.value->>3
                 )"
            }
            Dispatched::Again => concat!(
                "UPDATE dispatch SET due = ",
                now!(),
                " WHERE (service_id, task_id, round) IN (SELECT value->>0, value->>1, value->>2 FROM json_each(?1))"
            ),
        };
        let rows: Vec<_> = tasks.iter().map(|task| (task.service.0, task.task_id, task.round, &*task.queue)).collect();
        self.execute(statement, &rows).await
    }

    async fn note_dispatch_again(&mut self, service: ServiceKey, running: bool) -> Result<()> {
        sqlx::query(
            "UPDATE service SET again_after = 0, again_running = ?2,
                 again_until = coalesce((SELECT max(id) FROM task), 0)
             WHERE id = ?1 AND transport = 1",
        )
        .bind(service.0)
        .bind(running)
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn dispatch_noted(&mut self, limit: usize) -> Result<Option<ServiceKey>> {
        let noted = sqlx::query(
            "SELECT id, again_after, again_until, again_running FROM service
             WHERE again_after IS NOT NULL AND transport = 1 AND NOT deleted ORDER BY id LIMIT 1",
        )
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(error)?;
        let Some(noted) = noted else { return Ok(None) };
        let service: i32 = noted.try_get("id").map_err(error)?;
        let after: i64 = noted.try_get("again_after").map_err(error)?;
        let until: i64 = noted.try_get("again_until").map_err(error)?;
        let running: bool = noted.try_get("again_running").map_err(error)?;
        let mut next: Vec<(i64, String)> = Vec::new();
        for status in if running { &[0, 1][..] } else { &[0] } {
            let found: Vec<(i64, String)> = sqlx::query_as(
                "SELECT id, task_id FROM task WHERE service_id = ?1 AND status = ?2 AND id > ?3 AND id <= ?4
                     AND id NOT IN (SELECT w.value FROM hand h CROSS JOIN json_each(h.tasks) AS w WHERE h.service_id = ?1)
                 ORDER BY id LIMIT ?5",
            )
            .bind(service)
            .bind(status)
            .bind(after)
            .bind(until)
            .bind(wide(limit))
            .fetch_all(&mut *self.tx)
            .await
            .map_err(error)?;
            next.extend(found);
        }
        next.sort_unstable();
        next.truncate(limit);
        let round = fresh_round();
        let rows: Vec<_> = next.iter().map(|(_, task_id)| (service, task_id, round)).collect();
        self.execute(
            concat!(
                "INSERT INTO dispatch (service_id, task_id, round, due)
                 SELECT value->>0, value->>1, value->>2, ",
                now!(),
                " FROM json_each(?1) WHERE true
                  ON CONFLICT (service_id, task_id) DO UPDATE SET due = excluded.due, round = excluded.round"
            ),
            &rows,
        )
        .await?;
        let last = next.last().filter(|_| next.len() == limit).map(|(id, _)| *id);
        sqlx::query("UPDATE service SET again_after = ?2 WHERE id = ?1")
            .bind(service)
            .bind(last)
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(Some(ServiceKey(service)))
    }

    async fn lease_strays(&mut self, limit: usize) -> Result<usize> {
        let done = sqlx::query(concat!(
            "UPDATE task SET lease_until = w.until, timer = min(coalesce(timer, w.until), w.until)
              FROM (SELECT id AS service, ",
            now!(),
            " + lease_ms AS until FROM service) AS w
              WHERE w.service = task.service_id AND task.id IN (SELECT t.id FROM service s CROSS JOIN task t ON t.service_id = s.id AND t.status = 1
                           WHERE s.transport = 0 AND t.lease_until IS NULL AND t.id NOT IN (
                               SELECT h.value FROM hand CROSS JOIN json_each(hand.tasks) AS h
                           ) LIMIT ?1)"
        ))
        .bind(wide(limit))
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
    }
}

fn named(tasks: &[(ServiceKey, TaskId)]) -> Vec<(i32, TaskId)> {
    tasks.iter().map(|(service, task_id)| (service.0, *task_id)).collect()
}
