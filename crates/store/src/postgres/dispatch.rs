//! Tasks that are to be dispatched to a broker, on PostgreSQL.

use std::time::Duration;

use relais_core::{DispatchName, Dispatched, DueDispatch, ServiceKey, TaskId};
use sqlx::Row as _;

use super::{
    error,
    session::{PgSession, column},
};
use crate::{
    dispatch::{Dispatch, fresh_round},
    row::{due_dispatch, wide},
    session::Result,
};

impl Dispatch for PgSession {
    async fn insert_dispatches(&mut self, tasks: &[(ServiceKey, TaskId)]) -> Result<Vec<ServiceKey>> {
        let services: Vec<i32> = sqlx::query_scalar(
            "WITH back AS (
                 INSERT INTO relais.dispatch (service_id, task_id, due, round)
                 SELECT w.service_id, w.task_id, statement_timestamp(), $3
                 FROM unnest($1::integer[], $2::uuid[]) AS w (service_id, task_id)
                 -- Shared: a declaration that makes it use a broker waits, and then finds these tasks in their queue.
                 JOIN (SELECT id, transport FROM relais.service WHERE id = ANY($1) ORDER BY id FOR SHARE) s
                     ON s.id = w.service_id AND s.transport = 1
                 ORDER BY w.service_id, w.task_id
                 ON CONFLICT (service_id, task_id) DO UPDATE SET due = excluded.due, round = excluded.round
                 RETURNING service_id
             )
             SELECT DISTINCT service_id FROM back",
        )
        .bind(column(tasks, |(service, _)| service.0))
        .bind(column(tasks, |(_, task_id)| task_id.0))
        .bind(fresh_round())
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(services.into_iter().map(ServiceKey).collect())
    }

    async fn window_room(&mut self, service: ServiceKey) -> Result<Option<usize>> {
        sqlx::query("SELECT 1 FROM relais.flow WHERE service_id = $1 FOR NO KEY UPDATE")
            .bind(service.0)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        // A second statement on purpose: it sees what was committed while the first one waited. At the broker, in somebody's
        // hand or with a worker is what has no row that anybody may take; of those that wait, what was never published is
        // behind the horizon. So before it there are about as many as fit the window: a few more are looked at, never all.
        let room: Option<Option<i64>> = sqlx::query_scalar(
            "SELECT s.dispatch_window - (
                 SELECT count(*) FROM (
                     SELECT 1 FROM (VALUES (0::smallint, f.horizon), (1::smallint, 9223372036854775807)) AS w (status, last)
                     CROSS JOIN LATERAL (
                         SELECT id, task_id FROM relais.task
                         WHERE service_id = $1 AND status >= w.status AND status <= w.status
                         ORDER BY service_id, status, id LIMIT 2 * s.dispatch_window + 1000
                     ) t
                     WHERE t.id <= w.last AND NOT EXISTS (
                         SELECT 1 FROM relais.dispatch d
                         WHERE d.service_id = $1 AND d.task_id = t.task_id AND d.due <= statement_timestamp()
                     )
                     LIMIT s.dispatch_window
                 ) published
             )
             FROM relais.service s JOIN relais.flow f ON f.service_id = s.id WHERE s.id = $1",
        )
        .bind(service.0)
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(room.flatten().map(|room| usize::try_from(room).unwrap_or(0)))
    }

    async fn note_within_window(&mut self, service: ServiceKey, tasks: &[TaskId]) -> Result<()> {
        sqlx::query(
            "UPDATE relais.flow SET horizon = greatest(horizon, coalesce(
                 (SELECT max(id) FROM relais.task WHERE task_id = ANY($2)), 0))
             WHERE service_id = $1",
        )
        .bind(service.0)
        .bind(column(tasks, |task_id| task_id.0))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn hold_dispatches(
        &mut self,
        services: &[ServiceKey],
        each: usize,
        lease: Duration,
        counted: bool,
    ) -> Result<Vec<DueDispatch>> {
        let rows = sqlx::query(
            "WITH held AS (
                 UPDATE relais.dispatch SET due = clock_timestamp() + make_interval(secs => $3)
                 WHERE ctid = ANY(ARRAY(
                     SELECT next.ctid FROM unnest($1::integer[]) AS w (service_id)
                     JOIN relais.service s ON s.id = w.service_id AND (s.dispatch_window IS NULL OR $4)
                     CROSS JOIN LATERAL (
                         SELECT ctid FROM relais.dispatch
                         WHERE service_id = w.service_id AND due <= statement_timestamp()
                         ORDER BY service_id, task_id LIMIT $2
                         FOR UPDATE SKIP LOCKED
                     ) next
                 ))
                 RETURNING service_id, task_id, round
             )
             SELECT h.service_id, h.task_id, h.round, s.queue_name, t.request::text AS request, t.correlation_id,
                    t.priority
             FROM held h JOIN relais.service s ON s.id = h.service_id LEFT JOIN LATERAL (
                 SELECT request, correlation_id, priority FROM relais.task
                 WHERE task_id = h.task_id AND status IN (0, 1) OFFSET 0
             ) t ON true
             ORDER BY h.service_id, h.task_id",
        )
        .bind(column(services, |service| service.0))
        .bind(wide(each))
        .bind(lease.as_secs_f64())
        .bind(counted)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        rows.iter().map(due_dispatch).collect()
    }

    async fn settle_dispatches(&mut self, tasks: &[DispatchName], outcome: Dispatched) -> Result<()> {
        // A statement for each service, so that rows are found by their whole key; most batches are of one.
        let alike = |one: &DispatchName, other: &DispatchName| {
            (one.service, &one.queue, one.round) == (other.service, &other.queue, other.round)
        };
        for tasks in tasks.chunk_by(alike) {
            sqlx::query(match outcome {
                Dispatched::Done => {
                    "DELETE FROM relais.dispatch
                     WHERE service_id = $1 AND task_id = ANY($2) AND round = $4
                       AND (SELECT queue_name FROM relais.service WHERE id = $1) = $3"
                }
                Dispatched::Again => {
                    "UPDATE relais.dispatch SET due = statement_timestamp()
                     WHERE service_id = $1 AND task_id = ANY($2) AND $3::text IS NOT NULL AND round = $4"
                }
            })
            .bind(tasks[0].service.0)
            .bind(column(tasks, |task| task.task_id.0))
            .bind(&*tasks[0].queue)
            .bind(tasks[0].round)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        }
        Ok(())
    }

    async fn note_dispatch_again(&mut self, service: ServiceKey, running: bool) -> Result<()> {
        sqlx::query(
            "UPDATE relais.service SET again_after = 0, again_running = $2,
                 again_until = coalesce((SELECT max(id) FROM relais.task), 0)
             WHERE id = $1 AND transport = 1",
        )
        .bind(service.0)
        .bind(running)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn dispatch_noted(&mut self, limit: usize) -> Result<Option<ServiceKey>> {
        let noted = sqlx::query(
            "SELECT id, again_after, again_until, again_running FROM relais.service
             WHERE again_after IS NOT NULL AND transport = 1 AND NOT deleted
             ORDER BY id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED",
        )
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(error)?;
        let Some(noted) = noted else { return Ok(None) };
        let service: i32 = noted.try_get("id").map_err(error)?;
        // The oldest of each status; what has changed its status meanwhile is with a worker, or has ended.
        let last: Option<i64> = sqlx::query_scalar(
            "WITH next AS (
                 SELECT t.id, t.task_id FROM unnest(CASE WHEN $4 THEN '{0,1}' ELSE '{0}' END::smallint[]) AS s (status)
                 CROSS JOIN LATERAL (
                     SELECT id, task_id FROM relais.task
                     WHERE service_id = $1 AND status BETWEEN s.status AND s.status AND id > $2 AND id <= $3
                       AND id NOT IN (SELECT unnest(tasks) FROM relais.hand WHERE service_id = $1)
                     ORDER BY service_id, status, id LIMIT $5
                 ) t
                 ORDER BY t.id LIMIT $5
             ), due AS (
                 INSERT INTO relais.dispatch (service_id, task_id, due, round)
                 SELECT $1, task_id, statement_timestamp(), $6 FROM next ORDER BY task_id
                 -- Somebody may just be publishing it to what is gone.
                 ON CONFLICT (service_id, task_id) DO UPDATE SET due = excluded.due, round = excluded.round
             )
             SELECT max(id) FROM next HAVING count(*) = $5",
        )
        .bind(service)
        .bind(noted.try_get::<i64, _>("again_after").map_err(error)?)
        .bind(noted.try_get::<i64, _>("again_until").map_err(error)?)
        .bind(noted.try_get::<bool, _>("again_running").map_err(error)?)
        .bind(wide(limit))
        .bind(fresh_round())
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(error)?
        .flatten();
        sqlx::query("UPDATE relais.service SET again_after = $2 WHERE id = $1")
            .bind(service)
            .bind(last)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(Some(ServiceKey(service)))
    }

    async fn lease_strays(&mut self, limit: usize) -> Result<usize> {
        let done = sqlx::query(
            "UPDATE relais.task t SET lease_until = clock_timestamp() + w.lease,
                 timer = least(t.timer, clock_timestamp() + w.lease)
             FROM (SELECT t.id, s.lease_ms * interval '1 ms' AS lease FROM relais.service s CROSS JOIN LATERAL (
                       SELECT id FROM relais.task
                       WHERE service_id = s.id AND status BETWEEN 1 AND 1
                         AND lease_until IS NULL AND id NOT IN (SELECT unnest(tasks) FROM relais.hand)
                       ORDER BY service_id, status, id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED
                   ) t
                   WHERE s.transport = 0 LIMIT $1) w
             WHERE t.id = w.id",
        )
        .bind(wide(limit))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
    }
}
