//! Tasks that are to be dispatched to a broker, on PostgreSQL.

use std::time::Duration;

use relais_core::{ClientKey, DispatchName, Dispatched, DueDispatch, FlowFacts, PublishedTask, ServiceKey, TaskId};
use sqlx::Row as _;

use crate::{
    dispatch::statements::{
        Candidate, Dispatch, Dispatches, Window, candidate, due_dispatch, fresh_round, published_task, window,
        window_facts,
    },
    flow::statements::{FlowKind, Flows as _, flow_client},
    postgres::session::{PgSession, column},
    postgres::{Postgres, error},
    row::{client_key, wide},
    session::Result,
};

/// What whoever publishes has to know of those that were `held`.
macro_rules! held_columns {
    () => {
        " SELECT h.service_id, h.task_id, h.round, s.queue_name, t.request::text AS request, t.correlation_id, t.priority, t.timeout_ms,
                 t.trace, t.revision
          FROM held h JOIN relais.service s ON s.id = h.service_id LEFT JOIN LATERAL (
              SELECT request, correlation_id, priority, rank, timeout_ms, trace, revision FROM relais.task
              WHERE task_id = h.task_id AND status IN (0, 1) OFFSET 0
          ) t ON true"
    };
}

/// Takes what has a place in its window, and is to be published once more.
const HOLD_PLACED: &str = concat!(
    "WITH held AS (
         UPDATE relais.dispatch SET due = clock_timestamp() + make_interval(secs => $3), window_id = $1
         WHERE ctid = ANY(ARRAY(
             SELECT ctid FROM relais.dispatch WHERE window_id = $1 AND due <= statement_timestamp()
             LIMIT $2 FOR UPDATE SKIP LOCKED
         ))
         RETURNING service_id, task_id, round
     )",
    held_columns!(),
    " ORDER BY t.rank, h.task_id"
);

/// Takes what is next in the queue. What has a place is passed over, which is no more than the window; and what a
/// publisher has without a place, which is little.
const HOLD_NEXT: &str = concat!(
    "WITH held AS (
         UPDATE relais.dispatch SET due = clock_timestamp() + make_interval(secs => $3), window_id = $1
         WHERE ctid = ANY(ARRAY(
             SELECT d.ctid FROM (
                 SELECT task_id FROM relais.task WHERE queue_id = $1 ORDER BY queue_id, rank, id
                 LIMIT $2 + (SELECT dispatch_window + 1000 FROM relais.service WHERE id = $1)
             ) t CROSS JOIN LATERAL (
                 SELECT ctid FROM relais.dispatch
                 WHERE service_id = $1 AND task_id = t.task_id AND window_id IS NULL AND due <= statement_timestamp()
                 FOR UPDATE SKIP LOCKED
             ) d
             LIMIT $2
         ))
         RETURNING service_id, task_id, round
     )",
    held_columns!(),
    " ORDER BY t.rank, h.task_id"
);

/// Takes these.
const HOLD_THESE: &str = concat!(
    "WITH held AS (
         UPDATE relais.dispatch SET due = clock_timestamp() + make_interval(secs => $3), window_id = $1
         WHERE ctid = ANY(ARRAY(
             SELECT d.ctid FROM unnest($2::uuid[]) AS w (task_id) CROSS JOIN LATERAL (
                 SELECT ctid FROM relais.dispatch
                 WHERE service_id = $1 AND task_id = w.task_id AND window_id IS NULL AND due <= statement_timestamp()
                 FOR UPDATE SKIP LOCKED
             ) d
         ))
         RETURNING service_id, task_id, round
     )",
    held_columns!(),
    " ORDER BY t.rank, h.task_id"
);

/// The first of each client `w` that wait for a place. Where to begin and to end is said as in `flow.rs`; what has a
/// place is passed over, as in [`HOLD_NEXT`].
const CANDIDATES: &str = "SELECT w.client_id, t.rank, t.id, t.task_id
     FROM unnest($2::integer[], $3::bigint[]) AS w (client_id, most) CROSS JOIN LATERAL (
         SELECT i.rank, i.id, i.task_id FROM (
             SELECT service_id, client_id, rank, id, task_id FROM relais.task
             WHERE status = 0 AND (service_id, client_id, rank, id) > ($1, w.client_id, -9223372036854775808, 0)
             ORDER BY service_id, client_id, rank, id
             LIMIT w.most + (SELECT dispatch_window + 1000 FROM relais.service WHERE id = $1)
         ) i CROSS JOIN LATERAL (
             SELECT 1 FROM relais.dispatch
             WHERE service_id = $1 AND task_id = i.task_id AND window_id IS NULL AND due <= statement_timestamp() OFFSET 0
         ) d
         WHERE i.service_id = $1 AND i.client_id = w.client_id
         LIMIT w.most
     ) t";

/// The clients with tasks that wait for a place. The cost is that of the clients that the service has had and of the
/// places, whatever waits. What has a place and was not started is pending as well, but waits for none.
const CLIENTS: &str = "SELECT c.client_id, c.pending, c.running, a.max_running, a.share, f.time, f.turn
     FROM (SELECT client_id, sum(pending)::bigint AS pending, sum(running)::bigint AS running FROM (
               SELECT client_id, CASE WHEN departed THEN -n ELSE n END AS pending, 0 AS running
               FROM relais.counter WHERE service_id = $1 AND client_id > 0 AND status = 0
               UNION ALL
               SELECT t.client_id, CASE WHEN t.status = 0 THEN -1 ELSE 0 END, 1
               FROM relais.dispatch d CROSS JOIN LATERAL (
                   SELECT client_id, status FROM relais.task WHERE task_id = d.task_id AND status + 0 IN (0, 1) OFFSET 0
               ) t
               WHERE d.window_id = $1
           ) one GROUP BY client_id) c
     LEFT JOIN LATERAL (
         SELECT max_running, share FROM relais.authorization WHERE client_id = c.client_id AND service_id = $1 OFFSET 0
     ) a ON true
     LEFT JOIN LATERAL (
         SELECT time, turn FROM relais.flow_client WHERE service_id = $1 AND client_id = c.client_id OFFSET 0
     ) f ON true
     WHERE c.pending > 0";

/// Removes the rows that somebody speaks of. They are locked in their order, each found by its whole key: a list would
/// only be a filter on all that waits of the service. One that somebody else has changed meanwhile is left to that one.
/// In a window the row is the task's place, which it keeps.
const COMPLETE: &str = "
    WITH spoken AS MATERIALIZED (
        SELECT d.ctid FROM unnest($2::uuid[]) AS w (task_id) CROSS JOIN LATERAL (
            SELECT ctid FROM relais.dispatch WHERE service_id = $1 AND task_id = w.task_id AND round = $4 FOR UPDATE
        ) d
    ), placed AS (
        UPDATE relais.dispatch SET due = 'infinity', window_id = $1
        WHERE ctid = ANY(ARRAY(SELECT ctid FROM spoken))
          AND (SELECT queue_name = $3 AND windowed FROM relais.service WHERE id = $1)
    )
    DELETE FROM relais.dispatch WHERE ctid = ANY(ARRAY(SELECT ctid FROM spoken))
      AND (SELECT queue_name = $3 AND NOT windowed FROM relais.service WHERE id = $1)";

/// Makes the rows that somebody speaks of due again; they are found as in [`COMPLETE`].
const COMPLETE_AGAIN: &str = "
    UPDATE relais.dispatch SET due = statement_timestamp() WHERE ctid = ANY(ARRAY(
        SELECT d.ctid FROM unnest($2::uuid[]) AS w (task_id) CROSS JOIN LATERAL (
            SELECT ctid FROM relais.dispatch WHERE service_id = $1 AND task_id = w.task_id AND round = $4 FOR UPDATE
        ) d
    )) AND $3::text IS NOT NULL";

impl PgSession {
    async fn hold(
        &mut self,
        statement: &'static str,
        service: ServiceKey,
        most: usize,
        lease: Duration,
    ) -> Result<Vec<DueDispatch>> {
        let rows = sqlx::query(statement)
            .bind(service.0)
            .bind(wide(most))
            .bind(lease.as_secs_f64())
            .fetch_all(&mut *self.tx)
            .await
            .map_err(error)?;
        rows.iter().map(due_dispatch).collect()
    }
}

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
                 ON CONFLICT (service_id, task_id) DO UPDATE SET due = excluded.due, round = excluded.round, window_id = NULL
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

    async fn lock_window(&mut self, service: ServiceKey) -> Result<Option<Window>> {
        let state = self.lock_flow(service).await?.unwrap_or_default();
        // What ended since the last time, be it noted that it was published or not. Tasks are found one by one: there
        // are no more of them than places.
        sqlx::query(
            "DELETE FROM relais.dispatch WHERE ctid = ANY(ARRAY(
                 SELECT ctid FROM relais.dispatch d
                 WHERE window_id = $1
                   AND coalesce((SELECT status FROM relais.task t WHERE t.task_id = d.task_id), 2) NOT IN (0, 1)
                 FOR UPDATE SKIP LOCKED
             ))",
        )
        .bind(service.0)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        // While those that were at the broker before are being given places, nobody knows how many are free.
        let row = sqlx::query(
            "SELECT s.flow, CASE WHEN s.again_places THEN 0 ELSE s.dispatch_window - (
                 SELECT count(*) FROM (
                     SELECT 1 FROM relais.dispatch WHERE window_id = $1 LIMIT s.dispatch_window
                 ) places
             ) END AS room
             FROM relais.service s WHERE s.id = $1 AND s.dispatch_window IS NOT NULL",
        )
        .bind(service.0)
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(error)?;
        row.as_ref().map(|row| window(row, state)).transpose()
    }

    async fn window_facts(&mut self, service: ServiceKey, locked: Window) -> Result<Option<FlowFacts>> {
        let row = sqlx::query(
            "SELECT s.flow, s.max_running, s.max_running_per_client, s.rate_count, s.rate_per_ms, s.rate_burst, s.fair_share,
                    s.dispatch_window, 0::bigint AS running,
                    (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint AS now_nanos, (
                        SELECT coalesce(sum(CASE WHEN departed THEN -n ELSE n END), 0)::bigint
                        FROM relais.counter WHERE service_id = s.id AND client_id = 0 AND status = 0
                    ) AS pending
             FROM relais.service s WHERE s.id = $1",
        )
        .bind(service.0)
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(error)?;
        let Some(row) = row else { return Ok(None) };
        let mut facts = window_facts(&row, locked)?;
        if locked.kind == FlowKind::ByClient {
            let rows = sqlx::query(CLIENTS).bind(service.0).fetch_all(&mut *self.tx).await.map_err(error)?;
            facts.clients = Some(rows.iter().map(flow_client).collect::<Result<_>>()?);
        }
        Ok(Some(facts))
    }

    async fn hold_placed(&mut self, service: ServiceKey, most: usize, lease: Duration) -> Result<Vec<DueDispatch>> {
        self.hold(HOLD_PLACED, service, most, lease).await
    }

    async fn hold_next(&mut self, service: ServiceKey, most: usize, lease: Duration) -> Result<Vec<DueDispatch>> {
        self.hold(HOLD_NEXT, service, most, lease).await
    }

    async fn candidates(&mut self, service: ServiceKey, shares: &[(ClientKey, usize)]) -> Result<Vec<Candidate>> {
        let rows = sqlx::query(CANDIDATES)
            .bind(service.0)
            .bind(column(shares, |(client, _)| client.0))
            .bind(column(shares, |&(_, most)| wide(most)))
            .fetch_all(&mut *self.tx)
            .await
            .map_err(error)?;
        rows.iter().map(|row| candidate(row, client_key(row)?)).collect()
    }

    async fn hold_these(&mut self, service: ServiceKey, tasks: &[TaskId], lease: Duration) -> Result<Vec<DueDispatch>> {
        let rows = sqlx::query(HOLD_THESE)
            .bind(service.0)
            .bind(column(tasks, |task_id| task_id.0))
            .bind(lease.as_secs_f64())
            .fetch_all(&mut *self.tx)
            .await
            .map_err(error)?;
        rows.iter().map(due_dispatch).collect()
    }

    async fn forget_ended(&mut self, service: ServiceKey, most: usize) -> Result<()> {
        sqlx::query(
            "DELETE FROM relais.dispatch WHERE ctid = ANY(ARRAY(
                 SELECT ctid FROM relais.dispatch d
                 WHERE service_id = $1 AND window_id IS NULL AND due <= statement_timestamp()
                   AND coalesce((SELECT status FROM relais.task t WHERE t.task_id = d.task_id), 2) NOT IN (0, 1)
                 ORDER BY service_id, task_id LIMIT $2
                 FOR UPDATE SKIP LOCKED
             ))",
        )
        .bind(service.0)
        .bind(wide(most))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn claim_dispatches(
        &mut self,
        services: &[ServiceKey],
        each: usize,
        lease: Duration,
    ) -> Result<Vec<DueDispatch>> {
        let rows = sqlx::query(concat!(
            "WITH held AS (
                 UPDATE relais.dispatch SET due = clock_timestamp() + make_interval(secs => $3)
                 WHERE ctid = ANY(ARRAY(
                     SELECT next.ctid FROM unnest($1::integer[]) AS w (service_id)
                     JOIN relais.service s ON s.id = w.service_id AND s.dispatch_window IS NULL
                     CROSS JOIN LATERAL (
                         SELECT ctid FROM relais.dispatch
                         WHERE service_id = w.service_id AND due <= statement_timestamp()
                         ORDER BY service_id, task_id LIMIT $2
                         FOR UPDATE SKIP LOCKED
                     ) next
                 ))
                 RETURNING service_id, task_id, round
             )",
            held_columns!(),
            " ORDER BY h.service_id, h.task_id"
        ))
        .bind(column(services, |service| service.0))
        .bind(wide(each))
        .bind(lease.as_secs_f64())
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        rows.iter().map(due_dispatch).collect()
    }

    async fn complete_dispatches(&mut self, tasks: &[DispatchName], outcome: Dispatched) -> Result<()> {
        // A statement for each service, so that rows are found by their whole key; most batches are of one.
        let alike = |one: &DispatchName, other: &DispatchName| {
            (one.service, &one.queue, one.round) == (other.service, &other.queue, other.round)
        };
        for tasks in tasks.chunk_by(alike) {
            sqlx::query(match outcome {
                Dispatched::Done => COMPLETE,
                Dispatched::Again => COMPLETE_AGAIN,
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

    async fn redispatch_service(&mut self, service: ServiceKey, running: bool) -> Result<()> {
        sqlx::query(
            "UPDATE relais.service SET again_after = 0, again_running = $2, again_places = false,
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

    async fn refill_dispatches(&mut self, limit: usize) -> Result<Option<ServiceKey>> {
        let noted = sqlx::query(
            "SELECT id, again_after, again_until, again_running, again_places FROM relais.service
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
                       AND id NOT IN (SELECT unnest(tasks) FROM relais.instance_lease WHERE service_id = $1)
                     ORDER BY service_id, status, id LIMIT $5
                 ) t
                 ORDER BY t.id LIMIT $5
             ), due AS (
                 INSERT INTO relais.dispatch AS d (service_id, task_id, due, round, window_id)
                 SELECT $1, task_id, CASE WHEN $7 THEN 'infinity' ELSE statement_timestamp() END, $6, CASE WHEN $7 THEN $1 END
                 FROM next ORDER BY task_id
                 -- Somebody may just be publishing it: to what is gone, or without a place.
                 ON CONFLICT (service_id, task_id) DO UPDATE SET
                     due = CASE WHEN $7 THEN d.due ELSE excluded.due END,
                     round = CASE WHEN $7 THEN d.round ELSE excluded.round END,
                     window_id = coalesce(excluded.window_id, d.window_id)
                 WHERE NOT $7 OR d.due > statement_timestamp()
             )
             SELECT max(id) FROM next HAVING count(*) = $5",
        )
        .bind(service)
        .bind(noted.try_get::<i64, _>("again_after").map_err(error)?)
        .bind(noted.try_get::<i64, _>("again_until").map_err(error)?)
        .bind(noted.try_get::<bool, _>("again_running").map_err(error)?)
        .bind(wide(limit))
        .bind(fresh_round())
        .bind(noted.try_get::<bool, _>("again_places").map_err(error)?)
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(error)?
        .flatten();
        sqlx::query(
            "UPDATE relais.service SET again_after = $2, again_places = again_places AND $2::bigint IS NOT NULL WHERE id = $1",
        )
            .bind(service)
            .bind(last)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(Some(ServiceKey(service)))
    }

    async fn lease_orphans(&mut self, limit: usize) -> Result<usize> {
        let done = sqlx::query(
            "WITH w AS MATERIALIZED (
                 SELECT t.id, s.lease_ms * interval '1 ms' AS lease FROM relais.service s CROSS JOIN LATERAL (
                     SELECT id FROM relais.task
                     WHERE service_id = s.id AND status BETWEEN 1 AND 1
                       AND lease_until IS NULL AND id NOT IN (SELECT unnest(tasks) FROM relais.instance_lease)
                     ORDER BY service_id, status, id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED
                 ) t
                 WHERE s.transport = 0 LIMIT $1
             )
             UPDATE relais.task t SET lease_until = clock_timestamp() + w.lease,
                 timer = least(t.timer, clock_timestamp() + w.lease)
             FROM w WHERE t.id = ANY(ARRAY(SELECT id FROM w)) AND t.id = w.id",
        )
        .bind(wide(limit))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
    }
}

impl Dispatches for Postgres {
    async fn oldest_published(&self, service: ServiceKey) -> Result<Option<PublishedTask>> {
        let mut lent = self.lend().await?;
        // What is compared is no column, and what is looked up stands alone, so that each row is found by its key.
        let row = sqlx::query(
            "SELECT coalesce((
                 SELECT t.task_id FROM relais.dispatch d CROSS JOIN LATERAL (
                     SELECT task_id FROM relais.task WHERE task_id = d.task_id AND status + 0 = 0 OFFSET 0
                 ) t WHERE d.window_id = $1 AND d.due = 'infinity' ORDER BY t.task_id LIMIT 1
             ), (
                 SELECT t.task_id FROM (
                     SELECT task_id FROM relais.task WHERE service_id = $1 AND status BETWEEN 0 AND 0
                     ORDER BY service_id, status, id LIMIT 100
                 ) t
                 WHERE (SELECT true FROM relais.dispatch WHERE service_id = $1 AND task_id = t.task_id) IS NULL LIMIT 1
             )) AS task_id, coalesce((
                 SELECT true FROM relais.task WHERE service_id = $1 AND status BETWEEN 1 AND 1
                 ORDER BY service_id, status, id LIMIT 1
             ), false) AS running",
        )
        .bind(service.0)
        .fetch_one(&mut *lent)
        .await
        .map_err(error)?;
        lent.keep();
        published_task(&row)
    }
}
