//! One transaction on PostgreSQL.
//!
//! Where tasks of one service and status are wanted in their order, the statement says `service_id = … AND status BETWEEN 0
//! AND 0 ORDER BY service_id, status, id` instead of `status = 0 ORDER BY id`. Both mean the same, but the latter lets the
//! planner walk the primary key, past all that ever was, as soon as its statistics make that look short. A
//! comparison of whole rows would do that as well, but only its first column ends a scan. Likewise rows of a batch are named by `id = ANY(…)` besides being joined: a plan that is made while a table is empty is kept, and
//! must be right when it no longer is. For the same reason what is found by a list of keys is ordered by `id + 0`, which no index
//! has: in the order of an index, the list would only be a filter on all of it. And no joins are merged.

use std::time::Duration;

use super::{
    declare, error,
    lent::Lent,
    names::Names,
    read::{in_order, with_service},
    to_sql, write,
};
use crate::{
    history::statements::History as _,
    row::{
        Columns, freed_keys, in_millis, known_key, locked, locked_queue, locked_task, locked_unless_limited,
        purge_candidates, queue_facts, retry_text, service_key, waited_for_others, wide,
    },
    session::{
        Accounts, InsertedTask, KnownKey, Locked, LockedPending, LockedQueue, LockedTask, PurgeCandidate, PurgeScan,
        QueueFacts, Result, Session, WrittenTask,
    },
};
use relais_core::{Change, NewTask, ServiceKey, Status, StoreError, TaskId, Wakeup, wakeup};
use sqlx::PgConnection;

/// A process that vanishes in the midst of a transaction, with its machine or its network, must not keep its locks until
/// PostgreSQL misses it, which takes hours: shorter than any caller waits. Said here, since a pooler may give every
/// transaction another connection.
const BEGIN: &str = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '10s'";

/// What [`crate::history::statements::policy_of_task`] reads: a task's own policy and its service's, or the one that there is.
macro_rules! task_retry {
    () => {
        "CASE WHEN t.retry IS NULL OR s.retry IS NULL THEN coalesce(t.retry, s.retry) ELSE '[' || t.retry || ',' || s.retry || ']' END"
    };
}
pub(crate) use task_retry;

/// The columns that [`locked_task`] reads, with the service joined as `s`.
macro_rules! locked_columns {
    () => {
        concat!(
            "t.id, t.task_id, t.service_id, t.client_id, t.seq, s.delivery_limit, s.handed, t.callback::text AS callback, t.submitted, ",
            "greatest(t.scheduled, t.revived) AS scheduled, t.correlation_id, t.unique_key, ", crate::postgres::session::task_retry!(), " AS retry, ",
            crate::postgres::read::state_columns!(),
            ", t.batch_id, t.followed, t.after_when"
        )
    };
}
pub(crate) use locked_columns;

/// Pending tasks ($2 of the service $1, in the order in which they are handed out) with all that their workers get; beside them whether the
/// service's flow is limited, and if it is, none unless $3. Whether it is limited is told in any case: asking for it first would cost those who have no limits a statement.
macro_rules! pending_tasks {
    ($lock:literal) => {
        concat!(
            "SELECT f.flow, t.* FROM relais.service f LEFT JOIN LATERAL (
              SELECT clock_timestamp() AS now, c.client_id AS client, ",
            crate::postgres::read::pending_columns!("NULL"),
            " FROM (
                  SELECT * FROM relais.task
                  WHERE queue_id = $1 AND (
                      SELECT NOT paused AND NOT deleted AND transport = 0 AND (flow = 0 OR $3) FROM relais.service WHERE id = $1
                  )
                  ORDER BY queue_id, rank, id LIMIT $2
                  ",
            $lock,
            "
              ) t",
            crate::postgres::read::with_names!(),
            ") t ON true WHERE f.id = $1 ORDER BY t.rank, t.id"
        )
    };
}
pub(crate) use pending_tasks;

/// One transaction.
pub(crate) struct PgSession {
    pub(crate) tx: Lent,
    /// Names this process in wake-ups; none where others are not told.
    origin: Option<String>,
    pub(crate) names: Names,
}

impl PgSession {
    pub(crate) async fn begin(mut tx: Lent, origin: Option<&str>, names: Names) -> Result<Self> {
        tx.begin(BEGIN).await?;
        Ok(Self { tx, origin: origin.map(str::to_owned), names })
    }
}

impl Session for PgSession {
    async fn lock_queues(&mut self, services: &[ServiceKey]) -> Result<Vec<LockedQueue>> {
        let rows = sqlx::query(
            "SELECT service_id, n, brokered, clock_timestamp() AS now FROM relais.tally
             WHERE service_id = ANY($1) AND client_id = 0 AND status = 0 AND NOT departed
             ORDER BY service_id
             FOR NO KEY UPDATE",
        )
        .bind(keys(services))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        rows.iter().map(locked_queue).collect()
    }

    async fn queue_facts(&mut self, tasks: &[NewTask]) -> Result<QueueFacts> {
        let mut pairs: Vec<(i32, i32)> = tasks.iter().map(|task| (task.service.0, task.client.0)).collect();
        pairs.sort_unstable();
        pairs.dedup();
        let (services, clients): (Vec<i32>, Vec<i32>) = pairs.into_iter().unzip();
        let rows = sqlx::query(
            "SELECT w.service_id, w.client_id, s.capacity, a.capacity AS share,
                    coalesce(total.n, 0) AS departed, coalesce(came.n, 0) - coalesce(went.n, 0) AS pending,
                    waiting.n AS waiting, share_waiting.n AS share_waiting
             FROM unnest($1::integer[], $2::integer[]) AS w (service_id, client_id)
             JOIN relais.service s ON s.id = w.service_id AND NOT s.deleted
             LEFT JOIN relais.authorization a USING (service_id, client_id)
             LEFT JOIN relais.tally total
                 ON total.service_id = w.service_id AND total.client_id = 0 AND total.status = 0 AND total.departed
             LEFT JOIN relais.tally came
                 ON came.service_id = w.service_id AND came.client_id = w.client_id AND came.status = 0 AND NOT came.departed
             LEFT JOIN relais.tally went
                 ON went.service_id = w.service_id AND went.client_id = w.client_id AND went.status = 0 AND went.departed
             CROSS JOIN LATERAL (
                 SELECT coalesce(sum(CASE WHEN departed THEN -n ELSE n END), 0)::bigint AS n FROM relais.tally
                 WHERE service_id = w.service_id AND client_id = 0 AND status = 5
             ) waiting
             CROSS JOIN LATERAL (
                 SELECT coalesce(sum(CASE WHEN departed THEN -n ELSE n END), 0)::bigint AS n FROM relais.tally
                 WHERE service_id = w.service_id AND client_id = w.client_id AND status = 5
             ) share_waiting",
        )
        .bind(services)
        .bind(clients)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        queue_facts(&rows, self.known_keys(tasks).await?)
    }

    async fn insert_unlimited(&mut self, tasks: &[NewTask]) -> Result<Option<u64>> {
        super::submit::insert(&mut self.tx, tasks).await
    }

    async fn insert_tasks(&mut self, tasks: &[InsertedTask]) -> Result<()> {
        sqlx::query(
            "INSERT INTO relais.task (task_id, service_id, client_id, seq, request, callback, correlation_id, priority, rank,
                                      status, scheduled, due, expires, timer, timeout_ms, retry, unique_key, parent_id,
                                      batch_id, trace, after_when)
             SELECT w.task_id, w.service_id, w.client_id, w.seq, w.request::json, w.callback::json, w.correlation_id, w.priority,
                    (extract(epoch FROM greatest(statement_timestamp(), w.scheduled)) * 1000)::bigint - w.head_start,
                    w.status, w.scheduled, w.due, w.expires, w.timer, w.timeout_ms, w.retry, w.unique_key, w.parent_id,
                    w.batch_id, w.trace, w.after_when
             FROM unnest($1::uuid[], $2::integer[], $3::integer[], $4::bigint[], $5::text[], $6::text[], $7::text[],
                         $8::smallint[], $9::bigint[], $10::smallint[], $11::timestamptz[], $12::timestamptz[],
                         $13::timestamptz[], $14::bigint[], $15::text[], $16::text[], $17::timestamptz[], $18::uuid[],
                         $19::uuid[], $20::text[], $21::smallint[])
                  AS w (task_id, service_id, client_id, seq, request, callback, correlation_id, priority, head_start, status,
                        due, expires, timer, timeout_ms, retry, unique_key, scheduled, parent_id, batch_id, trace, after_when)",
        )
        .bind(column(tasks, |inserted| inserted.task.task_id.0))
        .bind(column(tasks, |inserted| inserted.task.service.0))
        .bind(column(tasks, |inserted| inserted.task.client.0))
        .bind(column(tasks, |inserted| inserted.seq))
        .bind(column(tasks, |inserted| inserted.task.request.get()))
        .bind(callbacks(tasks.iter().map(|inserted| &inserted.task))?)
        .bind(column(tasks, |inserted| inserted.task.correlation_id.as_deref()))
        .bind(column(tasks, |inserted| i16::from(inserted.task.terms.priority.level())))
        .bind(column(tasks, |inserted| inserted.task.terms.head_start))
        .bind(column(tasks, |inserted| inserted.state.status.code()))
        .bind(column(tasks, |inserted| inserted.state.due.map(to_sql)))
        .bind(column(tasks, |inserted| inserted.state.expires.map(to_sql)))
        .bind(column(tasks, |inserted| inserted.state.timer().map(to_sql)))
        .bind(column(tasks, |inserted| inserted.task.terms.timeout.map(in_millis)))
        .bind(retries(tasks.iter().map(|inserted| &inserted.task))?)
        .bind(column(tasks, |inserted| inserted.task.terms.unique.as_ref().map(|unique| unique.key.as_str())))
        .bind(column(tasks, |inserted| inserted.scheduled.map(to_sql)))
        .bind(column(tasks, |inserted| parent(&inserted.task)))
        .bind(column(tasks, |inserted| inserted.task.links.batch.map(|batch| batch.0)))
        .bind(column(tasks, |inserted| trace(&inserted.task)))
        .bind(column(tasks, |inserted| inserted.task.links.after.as_ref().map(|after| after.when.code())))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        self.insert_keys(tasks).await?;
        self.insert_unique(tasks).await?;
        let brokered: Vec<_> = tasks.iter().filter(|inserted| inserted.brokered).collect();
        if brokered.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "INSERT INTO relais.dispatch (service_id, task_id, due)
             SELECT w.service_id, w.task_id, clock_timestamp() + make_interval(secs => w.held)
             FROM unnest($1::integer[], $2::uuid[], $3::double precision[]) AS w (service_id, task_id, held)",
        )
        .bind(column(&brokered, |inserted| inserted.task.service.0))
        .bind(column(&brokered, |inserted| inserted.task.task_id.0))
        .bind(column(&brokered, |inserted| held(&inserted.task)))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn lock_tasks(&mut self, task_ids: &[TaskId]) -> Result<Locked<LockedTask>> {
        lock_tasks(&mut self.tx, task_ids).await
    }

    async fn lock_pending(
        &mut self,
        service: ServiceKey,
        limit: usize,
        counted: bool,
    ) -> Result<Option<Locked<LockedPending>>> {
        pending(&mut self.tx, service, limit, counted).await
    }

    async fn lock_overdue(&mut self, limit: usize) -> Result<Locked<LockedTask>> {
        let rows = sqlx::query(concat!(
            "SELECT clock_timestamp() AS now, ",
            locked_columns!(),
            " FROM relais.task t",
            with_service!(),
            "WHERE t.timer <= statement_timestamp()
              ORDER BY t.timer LIMIT $1
              FOR NO KEY UPDATE OF t SKIP LOCKED"
        ))
        .bind(wide(limit))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        locked(&rows, locked_task)
    }

    async fn next_timer(&mut self) -> Result<Option<Duration>> {
        let seconds: Option<f64> = sqlx::query_scalar(
            "SELECT greatest(extract(epoch FROM timer - clock_timestamp()), 0)::double precision
             FROM relais.task WHERE timer > statement_timestamp() ORDER BY timer LIMIT 1",
        )
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)))
    }

    async fn write_tasks(&mut self, tasks: &[WrittenTask]) -> Result<()> {
        write::tasks(&mut self.tx, tasks).await
    }

    async fn account(&mut self, accounts: &Accounts, wakeup: &Wakeup) -> Result<()> {
        let origin = self.origin.as_deref().filter(|_| !wakeup.is_empty());
        let payload = origin.map(|origin| wakeup::encode(origin, wakeup));
        write::accounts(&mut self.tx, accounts, payload).await
    }

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
             FROM relais.tally a WHERE a.client_id = 0 AND a.status = 0 AND NOT a.departed",
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
            "DELETE FROM relais.departure WHERE service_id = $1 AND level = $2 AND slot < least($3, (
                 SELECT slot FROM relais.departure WHERE service_id = $1 AND level = $2
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

    async fn take_turn(&mut self, chore: &str, period: Duration) -> Result<bool> {
        let done = sqlx::query(
            "INSERT INTO relais.chore AS c (name, begun) VALUES ($1, now())
             ON CONFLICT (name) DO UPDATE SET begun = now() WHERE c.begun <= now() - make_interval(secs => $2)",
        )
        .bind(chore)
        .bind(period.as_secs_f64())
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(done.rows_affected() > 0)
    }

    async fn declare(&mut self, change: &Change) -> Result<()> {
        declare::declare(&mut self.tx, change).await
    }

    async fn note_limits(&mut self) -> Result<()> {
        declare::note_limits(&mut self.tx).await
    }

    async fn bump_declared(&mut self) -> Result<()> {
        sqlx::query("UPDATE relais.declared SET version = version + 1").execute(&mut *self.tx).await.map_err(error)?;
        // All queues, in the order in which submissions lock them: what is declared may touch any of them.
        sqlx::query(
            "SELECT 1 FROM relais.tally WHERE client_id = 0 AND status = 0 AND NOT departed
             ORDER BY service_id FOR NO KEY UPDATE",
        )
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn commit(self) -> Result<()> {
        self.tx.commit().await
    }
}

impl PgSession {
    /// Those of the batch's idempotency keys that were used. Most batches have none and ask nothing.
    async fn known_keys(&mut self, tasks: &[NewTask]) -> Result<Vec<KnownKey>> {
        let keyed: Vec<_> = tasks.iter().filter_map(|task| Some((task, task.idempotency.as_ref()?))).collect();
        if keyed.is_empty() {
            return Ok(Vec::new());
        }
        let rows = sqlx::query(
            "SELECT k.* FROM unnest($1::integer[], $2::integer[], $3::text[]) AS w (service_id, client_id, key)
             CROSS JOIN LATERAL (
                 SELECT * FROM relais.idempotency i
                 WHERE i.service_id = w.service_id AND i.client_id = w.client_id AND i.key = w.key OFFSET 0
             ) k",
        )
        .bind(column(&keyed, |(task, _)| task.service.0))
        .bind(column(&keyed, |(task, _)| task.client.0))
        .bind(column(&keyed, |(_, given)| given.key.as_str()))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        rows.iter().map(known_key).collect()
    }

    async fn insert_keys(&mut self, tasks: &[InsertedTask]) -> Result<()> {
        let keyed: Vec<_> =
            tasks.iter().filter_map(|inserted| Some((inserted, inserted.task.idempotency.as_ref()?))).collect();
        if keyed.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "INSERT INTO relais.idempotency (service_id, client_id, key, fingerprint, task_id, position)
             SELECT * FROM unnest($1::integer[], $2::integer[], $3::text[], $4::bytea[], $5::uuid[], $6::bigint[])",
        )
        .bind(column(&keyed, |(inserted, _)| inserted.task.service.0))
        .bind(column(&keyed, |(inserted, _)| inserted.task.client.0))
        .bind(column(&keyed, |(_, given)| given.key.as_str()))
        .bind(column(&keyed, |(_, given)| given.fingerprint.as_slice()))
        .bind(column(&keyed, |(inserted, _)| inserted.task.task_id.0))
        .bind(column(&keyed, |(inserted, _)| wide(inserted.position)))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }
}

/// How long a new task is left to its caller to publish, in seconds.
pub(crate) fn held(task: &NewTask) -> f64 {
    task.dispatch.as_ref().map_or(0.0, |publisher| publisher.held.as_secs_f64())
}

/// The task that it is a part of.
pub(crate) fn parent(task: &NewTask) -> Option<uuid::Uuid> {
    task.links.parent.map(|parent| parent.0)
}

/// Whose trace it is part of, as it is kept.
pub(crate) fn trace(task: &NewTask) -> Option<String> {
    task.links.trace.as_ref().map(relais_core::TraceContext::to_text)
}

/// Locks tasks, without their payloads.
pub(crate) async fn lock_tasks(connection: &mut PgConnection, task_ids: &[TaskId]) -> Result<Locked<LockedTask>> {
    let rows = sqlx::query(concat!(
        "SELECT clock_timestamp() AS now, ",
        locked_columns!(),
        " FROM relais.task t",
        with_service!(),
        "WHERE t.task_id = ANY($1) ORDER BY t.id + 0 FOR NO KEY UPDATE OF t"
    ))
    .bind(column(task_ids, |task_id| task_id.0))
    .fetch_all(connection)
    .await
    .map_err(error)?;
    locked(&rows, locked_task)
}

/// Locks pending tasks, passing over what others have locked.
pub(crate) async fn pending(
    connection: &mut PgConnection,
    service: ServiceKey,
    limit: usize,
    counted: bool,
) -> Result<Option<Locked<LockedPending>>> {
    let rows = sqlx::query(pending_tasks!("FOR NO KEY UPDATE SKIP LOCKED"))
        .bind(service.0)
        .bind(wide(limit))
        .bind(counted)
        .fetch_all(connection)
        .await
        .map_err(error)?;
    locked_unless_limited(&in_order(&rows), counted)
}

/// One column of a batch, for UNNEST.
pub(crate) fn column<'a, R, T>(rows: &'a [R], value: impl Fn(&'a R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

/// The column of callbacks.
pub(crate) fn callbacks<'a>(tasks: impl Iterator<Item = &'a NewTask>) -> Result<Vec<Option<String>>> {
    let text = |task: &NewTask| task.callback.as_ref().map(serde_json::to_string).transpose();
    tasks.map(text).collect::<std::result::Result<_, _>>().map_err(|failure| StoreError::Failed(failure.into()))
}

/// The column of retry policies.
pub(crate) fn retries<'a>(tasks: impl Iterator<Item = &'a NewTask>) -> Result<Vec<Option<String>>> {
    tasks.map(|task| task.terms.retry.as_ref().map(retry_text).transpose()).collect()
}

fn keys(services: &[ServiceKey]) -> Vec<i32> {
    column(services, |service| service.0)
}
