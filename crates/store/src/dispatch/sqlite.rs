//! Tasks that are to be dispatched to a broker, on SQLite.

use std::time::Duration;

use relais_core::{ClientKey, DispatchName, Dispatched, DueDispatch, FlowFacts, PublishedTask, ServiceKey, TaskId};
use sqlx::Row as _;

use crate::{
    dispatch::statements::{
        Candidate, Dispatch, Dispatches, Window, candidate, due_dispatch, fresh_round, published_task, window,
        window_facts,
    },
    flow::statements::{FlowKind, flow_client, flow_state},
    row::{in_millis, wide},
    session::Result,
    sqlite::session::SqliteSession,
    sqlite::values::array,
    sqlite::{Sqlite, error},
};

/// Due never: what has a place in a window, and is at the broker or with a worker.
const NEVER: i64 = i64::MAX;

/// Gives back the places of tasks that have ended, be it noted that they were published or not. They are found one by
/// one: there are no more of them than places.
pub(crate) const LEAVE: &str = "DELETE FROM dispatch WHERE window_id = ?1
     AND coalesce((SELECT status FROM task t WHERE t.task_id = dispatch.task_id), 2) NOT IN (0, 1)";

/// Those with a place that are to be published once more.
pub(crate) const PLACED: &str = concat!(
    "SELECT d.service_id, d.task_id, d.round, s.queue_name, t.request, t.correlation_id, t.priority, t.timeout_ms, t.trace, t.revision
     FROM (SELECT service_id, task_id, round FROM dispatch WHERE window_id = ?1 AND due <= ",
    now!(),
    " ORDER BY service_id, task_id LIMIT ?2) d
     CROSS JOIN service s ON s.id = d.service_id
     LEFT JOIN task t ON t.task_id = d.task_id AND t.status IN (0, 1)"
);

/// What is next in the queue. What has a place is passed over: that is no more than the window.
pub(crate) const NEXT: &str = concat!(
    "SELECT d.service_id, d.task_id, d.round, s.queue_name, t.request, t.correlation_id, t.priority, t.timeout_ms, t.trace, t.revision
     FROM service s CROSS JOIN task t INDEXED BY task_by_rank
     CROSS JOIN dispatch d ON d.service_id = s.id AND d.task_id = t.task_id
     WHERE s.id = ?1 AND t.service_id = ?1 AND t.status = 0 AND d.window_id IS NULL AND d.due <= ",
    now!(),
    " ORDER BY t.rank, t.id LIMIT ?2"
);

/// These of them.
pub(crate) const THESE: &str =
    "SELECT d.service_id, d.task_id, d.round, s.queue_name, t.request, t.correlation_id, t.priority, t.timeout_ms, t.trace, t.revision
     FROM service s CROSS JOIN json_each(?2) w CROSS JOIN dispatch d ON d.service_id = s.id AND d.task_id = w.value
     CROSS JOIN task t ON t.task_id = d.task_id
     WHERE s.id = ?1 ORDER BY t.rank, t.id";

/// The first of one client that wait for a place.
pub(crate) const CANDIDATES: &str = concat!(
    "SELECT t.rank, t.id, t.task_id FROM task t INDEXED BY task_by_share
     CROSS JOIN dispatch d ON d.service_id = ?1 AND d.task_id = t.task_id
     WHERE t.service_id = ?1 AND t.client_id = ?2 AND t.status = 0 AND d.window_id IS NULL AND d.due <= ",
    now!(),
    " ORDER BY t.rank, t.id LIMIT ?3"
);

const FACTS: &str = concat!(
    "SELECT flow, max_running, max_running_per_client, rate_count, rate_per_ms, rate_burst, fair_share, dispatch_window, ",
    now!(),
    " * 1000000 AS now_nanos, 0 AS running, coalesce((
         SELECT sum(iif(departed, -n, n)) FROM counter WHERE service_id = ?1 AND client_id = 0 AND status = 0
     ), 0) AS pending
     FROM service WHERE id = ?1"
);

/// The clients with tasks that wait for a place. The cost is that of the clients that the service has had and of the
/// places, whatever waits. What has a place and was not started is pending as well, but waits for none.
pub(crate) const CLIENTS: &str =
    "SELECT c.client_id, c.pending, c.running, a.max_running, a.share, f.time, f.turn FROM (
         SELECT client_id, sum(pending) AS pending, sum(running) AS running FROM (
             SELECT client_id, iif(departed, -n, n) AS pending, 0 AS running FROM counter
             WHERE service_id = ?1 AND client_id > 0 AND status = 0
             UNION ALL
             SELECT t.client_id, iif(t.status = 0, -1, 0), 1 FROM dispatch d CROSS JOIN task t ON t.task_id = d.task_id
             WHERE d.window_id = ?1 AND t.status IN (0, 1)
         ) GROUP BY client_id
     ) c
     LEFT JOIN authorization a ON a.client_id = c.client_id AND a.service_id = ?1
     LEFT JOIN flow_client f ON f.service_id = ?1 AND f.client_id = c.client_id
     WHERE c.pending > 0";

/// Forgets what waits for a place in a window, and has ended: nobody comes by it who goes through the queue.
pub(crate) const FORGET: &str = concat!(
    "DELETE FROM dispatch WHERE service_id = ?1 AND window_id IS NULL AND due <= ",
    now!(),
    " AND coalesce((SELECT status FROM task t WHERE t.task_id = dispatch.task_id), 2) NOT IN (0, 1)"
);

/// The oldest pending task that is at the broker. Those with a place are no more than the window; of the others a
/// hundred are looked at.
pub(crate) const PUBLISHED: &str = "SELECT coalesce((
         SELECT d.task_id FROM dispatch d CROSS JOIN task t ON t.task_id = d.task_id
         WHERE d.window_id = ?1 AND d.due = ?2 AND t.status = 0 ORDER BY d.window_id, d.service_id, d.task_id LIMIT 1
     ), (
         SELECT w.task_id FROM (
             SELECT t.task_id FROM task t WHERE t.service_id = ?1 AND t.status = 0 ORDER BY t.id LIMIT 100
         ) w WHERE NOT EXISTS (SELECT 1 FROM dispatch d WHERE d.service_id = ?1 AND d.task_id = w.task_id) LIMIT 1
     )) AS task_id, EXISTS (SELECT 1 FROM task r WHERE r.service_id = ?1 AND r.status = 1) AS running";

impl Dispatch for SqliteSession {
    async fn insert_dispatches(&mut self, tasks: &[(ServiceKey, TaskId)]) -> Result<Vec<ServiceKey>> {
        let mut services: Vec<i32> = sqlx::query_scalar(concat!(
            "INSERT INTO dispatch (service_id, task_id, due, round)
             SELECT w.value->>0, w.value->>1, ",
            now!(),
            ", ?2 FROM json_each(?1) AS w JOIN service s ON s.id = w.value->>0 AND s.transport = 1 WHERE true
              ON CONFLICT (service_id, task_id) DO UPDATE SET due = excluded.due, round = excluded.round, window_id = NULL
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

    async fn lock_window(&mut self, service: ServiceKey) -> Result<Option<Window>> {
        sqlx::query(LEAVE).bind(service.0).execute(&mut *self.tx).await.map_err(|failure| self.failed(failure))?;
        // While those that were at the broker before are being given places, nobody knows how many are free.
        let row = sqlx::query(
            "SELECT iif(s.again_places, 0, s.dispatch_window - (SELECT count(*) FROM dispatch WHERE window_id = ?1)) AS room,
                    s.flow, coalesce(f.ahead_until, 0) AS ahead_until, coalesce(f.time, 0) AS time,
                    coalesce(f.turns, 0) AS turns
             FROM service s LEFT JOIN flow f ON f.service_id = s.id WHERE s.id = ?1 AND s.dispatch_window IS NOT NULL",
        )
        .bind(service.0)
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        row.as_ref().map(|row| window(row, flow_state(row)?)).transpose()
    }

    async fn window_facts(&mut self, service: ServiceKey, locked: Window) -> Result<Option<FlowFacts>> {
        let row = sqlx::query(FACTS)
            .bind(service.0)
            .fetch_optional(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        let Some(row) = row else { return Ok(None) };
        let mut facts = window_facts(&row, locked)?;
        if locked.kind == FlowKind::ByClient {
            let rows = sqlx::query(CLIENTS)
                .bind(service.0)
                .fetch_all(&mut *self.tx)
                .await
                .map_err(|failure| self.failed(failure))?;
            facts.clients = Some(rows.iter().map(flow_client).collect::<Result<_>>()?);
        }
        Ok(Some(facts))
    }

    async fn hold_placed(&mut self, service: ServiceKey, most: usize, lease: Duration) -> Result<Vec<DueDispatch>> {
        self.hold_some(PLACED, service, wide(most), lease).await
    }

    async fn hold_next(&mut self, service: ServiceKey, most: usize, lease: Duration) -> Result<Vec<DueDispatch>> {
        self.hold_some(NEXT, service, wide(most), lease).await
    }

    async fn candidates(&mut self, service: ServiceKey, shares: &[(ClientKey, usize)]) -> Result<Vec<Candidate>> {
        let mut all = Vec::new();
        for &(client, most) in shares {
            let rows = sqlx::query(CANDIDATES)
                .bind(service.0)
                .bind(client.0)
                .bind(wide(most))
                .fetch_all(&mut *self.tx)
                .await
                .map_err(|failure| self.failed(failure))?;
            for row in &rows {
                all.push(candidate(row, client)?);
            }
        }
        Ok(all)
    }

    async fn hold_these(&mut self, service: ServiceKey, tasks: &[TaskId], lease: Duration) -> Result<Vec<DueDispatch>> {
        self.hold_some(THESE, service, array(tasks)?, lease).await
    }

    async fn forget_ended(&mut self, service: ServiceKey, _: usize) -> Result<()> {
        sqlx::query(FORGET).bind(service.0).execute(&mut *self.tx).await.map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn claim_dispatches(
        &mut self,
        services: &[ServiceKey],
        each: usize,
        lease: Duration,
    ) -> Result<Vec<DueDispatch>> {
        let mut held = Vec::new();
        for service in services {
            let rows = sqlx::query(concat!(
                "SELECT d.service_id, d.task_id, d.round, s.queue_name, t.request, t.correlation_id, t.priority, t.timeout_ms, t.trace, t.revision
                 FROM (SELECT service_id, task_id, round FROM dispatch WHERE service_id = ?1 AND due <= ",
                now!(),
                " ORDER BY task_id LIMIT ?2) d
                 JOIN service s ON s.id = d.service_id AND s.dispatch_window IS NULL
                 LEFT JOIN task t ON t.task_id = d.task_id AND t.status IN (0, 1) ORDER BY d.task_id"
            ))
            .bind(service.0)
            .bind(wide(each))
            .fetch_all(&mut *self.tx)
            .await
            .map_err(error)?;
            held.extend(rows.iter().map(due_dispatch).collect::<Result<Vec<_>>>()?);
        }
        self.hold(&held, lease, None).await?;
        Ok(held)
    }

    async fn complete_dispatches(&mut self, tasks: &[DispatchName], outcome: Dispatched) -> Result<()> {
        let rows: Vec<_> = tasks.iter().map(|task| (task.service.0, task.task_id, task.round, &*task.queue)).collect();
        let statements: &[&str] = match outcome {
            // In a window the row is the task's place, which it keeps.
            Dispatched::Done => &[
                "UPDATE dispatch SET due = 9223372036854775807, window_id = service_id WHERE (service_id, task_id, round) IN (
                     SELECT w.value->>0, w.value->>1, w.value->>2 FROM json_each(?1) AS w
                     JOIN service s ON s.id = w.value->>0 AND s.queue_name = w.value->>3 AND s.windowed
                 )",
                "DELETE FROM dispatch WHERE (service_id, task_id, round) IN (
                     SELECT w.value->>0, w.value->>1, w.value->>2 FROM json_each(?1) AS w
                     JOIN service s ON s.id = w.value->>0 AND s.queue_name = w.value->>3 AND NOT s.windowed
                 )",
            ],
            Dispatched::Again => &[concat!(
                "UPDATE dispatch SET due = ",
                now!(),
                " WHERE (service_id, task_id, round) IN (SELECT value->>0, value->>1, value->>2 FROM json_each(?1))"
            )],
        };
        for statement in statements {
            self.execute(statement, &rows).await?;
        }
        Ok(())
    }

    async fn redispatch_service(&mut self, service: ServiceKey, running: bool) -> Result<()> {
        sqlx::query(
            "UPDATE service SET again_after = 0, again_running = ?2, again_places = 0,
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

    async fn refill_dispatches(&mut self, limit: usize) -> Result<Option<ServiceKey>> {
        let noted = sqlx::query(
            "SELECT id, again_after, again_until, again_running, again_places FROM service
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
        let places: bool = noted.try_get("again_places").map_err(error)?;
        let mut next: Vec<(i64, String)> = Vec::new();
        for status in if running { &[0, 1][..] } else { &[0] } {
            let found: Vec<(i64, String)> = sqlx::query_as(
                "SELECT id, task_id FROM task WHERE service_id = ?1 AND status = ?2 AND id > ?3 AND id <= ?4
                     AND id NOT IN (SELECT w.value FROM instance_lease h CROSS JOIN json_each(h.tasks) AS w WHERE h.service_id = ?1)
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
        let statement = if places {
            // Somebody may just be publishing it, without a place.
            concat!(
                "INSERT INTO dispatch (service_id, task_id, round, due, window_id)
                 SELECT value->>0, value->>1, value->>2, 9223372036854775807, value->>0 FROM json_each(?1) WHERE true
                 ON CONFLICT (service_id, task_id) DO UPDATE SET window_id = excluded.window_id WHERE due > ",
                now!()
            )
        } else {
            concat!(
                "INSERT INTO dispatch (service_id, task_id, round, due)
                 SELECT value->>0, value->>1, value->>2, ",
                now!(),
                " FROM json_each(?1) WHERE true
                  ON CONFLICT (service_id, task_id) DO UPDATE SET due = excluded.due, round = excluded.round"
            )
        };
        self.execute(statement, &rows).await?;
        let last = next.last().filter(|_| next.len() == limit).map(|(id, _)| *id);
        sqlx::query(
            "UPDATE service SET again_after = ?2, again_places = again_places AND ?2 IS NOT NULL WHERE id = ?1",
        )
        .bind(service)
        .bind(last)
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(Some(ServiceKey(service)))
    }

    async fn lease_orphans(&mut self, limit: usize) -> Result<usize> {
        let done = sqlx::query(concat!(
            "UPDATE task SET lease_until = w.until, timer = min(coalesce(timer, w.until), w.until)
              FROM (SELECT id AS service, ",
            now!(),
            " + lease_ms AS until FROM service) AS w
              WHERE w.service = task.service_id AND task.id IN (SELECT t.id FROM service s CROSS JOIN task t ON t.service_id = s.id AND t.status = 1
                           WHERE s.transport = 0 AND t.lease_until IS NULL AND t.id NOT IN (
                               SELECT h.value FROM instance_lease CROSS JOIN json_each(instance_lease.tasks) AS h
                           ) LIMIT ?1)"
        ))
        .bind(wide(limit))
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
    }
}

impl SqliteSession {
    /// Takes tasks of a service with a window: so many, or these.
    async fn hold_some<'a>(
        &mut self,
        statement: &'static str,
        service: ServiceKey,
        which: impl sqlx::Encode<'a, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite> + Send + 'a,
        lease: Duration,
    ) -> Result<Vec<DueDispatch>> {
        let rows = sqlx::query(statement)
            .bind(service.0)
            .bind(which)
            .fetch_all(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        let held = rows.iter().map(due_dispatch).collect::<Result<Vec<_>>>()?;
        self.hold(&held, lease, Some(service)).await?;
        Ok(held)
    }

    /// Leases dispatches to whoever publishes them; within a window, if it says whose.
    async fn hold(&mut self, held: &[DueDispatch], lease: Duration, window: Option<ServiceKey>) -> Result<()> {
        if held.is_empty() {
            return Ok(());
        }
        let tasks: Vec<_> = held.iter().map(|due| (due.name.service, due.name.task_id)).collect();
        sqlx::query(concat!(
            "UPDATE dispatch SET due = ",
            now!(),
            " + ?2, window_id = ?3 WHERE (service_id, task_id) IN (SELECT value->>0, value->>1 FROM json_each(?1))"
        ))
        .bind(array(&named(&tasks))?)
        .bind(in_millis(lease))
        .bind(window.map(|service| service.0))
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(())
    }
}

fn named(tasks: &[(ServiceKey, TaskId)]) -> Vec<(i32, TaskId)> {
    tasks.iter().map(|(service, task_id)| (service.0, *task_id)).collect()
}

impl Dispatches for Sqlite {
    async fn oldest_published(&self, service: ServiceKey) -> Result<Option<PublishedTask>> {
        let row = sqlx::query(PUBLISHED).bind(service.0).bind(NEVER).fetch_one(&self.read).await.map_err(error)?;
        published_task(&row)
    }
}
