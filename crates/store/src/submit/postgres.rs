//! Submissions on PostgreSQL.

use std::collections::BTreeMap;

use relais_core::{NewTask, ServiceKey, StoreError, Wakeup, wakeup};
use sqlx::{PgConnection, postgres::PgRow};

use crate::{
    claims::postgres::pending_columns,
    history::statements::History as _,
    instances::postgres::leased_tasks,
    instances::statements::{Leased, Lessee},
    postgres::session::{PgSession, column},
    postgres::{CHANNEL, Postgres, Statement, error, to_sql},
    row::{Columns as _, in_millis, retry_text, wide},
    session::Result,
    submit::statements::{
        InsertedTask, KnownKey, LockedQueue, QueueFacts, SubmitRows, UnlimitedSubmit, known_key, locked_queue,
        queue_facts,
    },
};

/// Submits a batch to the service $1, unless its queue is limited. The update of the row of the queue is the lock: it
/// waits for submissions that are under way, and then sees the row as they left it, with `limited`.
const SUBMIT: &str = "
    WITH queue AS (
        UPDATE relais.counter SET n = n + $2
        WHERE service_id = $1 AND client_id = 0 AND status = 0 AND NOT departed AND NOT limited
        RETURNING n - $2 AS arrived, brokered
    ), taken AS (
        INSERT INTO relais.task
            (task_id, service_id, client_id, seq, submitted, request, callback, correlation_id, priority, rank,
             timeout_ms, retry, parent_id, trace)
        SELECT w.task_id, $1, w.client_id, q.arrived + w.place - 1, c.now, w.request::json, w.callback::json,
               w.correlation_id, w.priority, (extract(epoch FROM c.now) * 1000)::bigint - w.head_start,
               w.timeout_ms, w.retry, w.parent_id, w.trace
        FROM queue q CROSS JOIN unnest($3::uuid[], $4::integer[], $5::text[], $6::text[], $7::text[],
                                       $13::smallint[], $14::bigint[], $15::bigint[], $16::text[],
                                       $17::uuid[], $18::text[])
             WITH ORDINALITY AS w (task_id, client_id, request, callback, correlation_id, priority, head_start,
                                   timeout_ms, retry, parent_id, trace, place)
        CROSS JOIN LATERAL (SELECT clock_timestamp() AS now WHERE w.place > 0) c
        ORDER BY w.place
    ), due AS (
        INSERT INTO relais.dispatch (service_id, task_id, due)
        SELECT $1, w.task_id, clock_timestamp() + make_interval(secs => w.held)
        FROM queue q CROSS JOIN unnest($3::uuid[], $12::double precision[]) AS w (task_id, held) WHERE q.brokered
    ), shares AS (
        INSERT INTO relais.counter AS t (service_id, client_id, status, departed, n)
        SELECT $1, w.client_id, 0, false, w.n
        FROM queue CROSS JOIN unnest($8::integer[], $9::bigint[]) AS w (client_id, n)
        ON CONFLICT (service_id, client_id, status, departed) DO UPDATE SET n = t.n + excluded.n
    )
    SELECT q.arrived, CASE WHEN $11::text IS NOT NULL THEN (SELECT pg_notify($10, $11)::text) END AS told,
           coalesce((SELECT n FROM relais.counter
                     WHERE service_id = $1 AND client_id = 0 AND status = 0 AND departed), 0) AS departed
    FROM queue q";

/// The same as [`SUBMIT`], and the instance $19 leases the tasks, if nothing else waits and nobody else is about to
/// claim some. What is locked is passed over, since others lock in another order. (A key share would be enough to hold
/// the instance, but it would be granted on a row whose epoch was since counted up.)
const SUBMIT_AND_LEASE: &str = concat!(
    "WITH queue AS (
         UPDATE relais.counter SET n = n + $2
         WHERE service_id = $1 AND client_id = 0 AND status = 0 AND NOT departed AND NOT limited
         RETURNING n - $2 AS arrived, brokered
     ), taken AS (
         INSERT INTO relais.task
             (task_id, service_id, client_id, seq, submitted, request, callback, correlation_id, priority, rank,
              timeout_ms, retry, parent_id, trace)
         SELECT w.task_id, $1, w.client_id, q.arrived + w.place - 1, c.now, w.request::json, w.callback::json,
                w.correlation_id, w.priority, (extract(epoch FROM c.now) * 1000)::bigint - w.head_start,
                w.timeout_ms, w.retry, w.parent_id, w.trace
         FROM queue q CROSS JOIN unnest($3::uuid[], $4::integer[], $5::text[], $6::text[], $7::text[],
                                        $13::smallint[], $14::bigint[], $15::bigint[], $16::text[],
                                        $17::uuid[], $18::text[])
              WITH ORDINALITY AS w (task_id, client_id, request, callback, correlation_id, priority, head_start,
                                    timeout_ms, retry, parent_id, trace, place)
         CROSS JOIN LATERAL (SELECT clock_timestamp() AS now WHERE w.place > 0) c
         ORDER BY w.place
         RETURNING *
     ), due AS (
         INSERT INTO relais.dispatch (service_id, task_id, due)
         SELECT $1, w.task_id, clock_timestamp() + make_interval(secs => w.held)
         FROM queue q CROSS JOIN unnest($3::uuid[], $12::double precision[]) AS w (task_id, held) WHERE q.brokered
     ), shares AS (
         INSERT INTO relais.counter AS t (service_id, client_id, status, departed, n)
         SELECT $1, w.client_id, 0, false, w.n
         FROM queue CROSS JOIN unnest($8::integer[], $9::bigint[]) AS w (client_id, n)
         ON CONFLICT (service_id, client_id, status, departed) DO UPDATE SET n = t.n + excluded.n
     ), gone AS (
         DELETE FROM relais.instance_lease WHERE id = ANY($20)
     ), s AS MATERIALIZED (
         SELECT * FROM relais.service WHERE id = $1
     ), locked AS MATERIALIZED (
         SELECT f.service_id FROM relais.flow f CROSS JOIN relais.instance i
         WHERE f.service_id = $1 AND i.id = $19 AND NOT i.undecided AND i.epoch = $21
               AND (SELECT handed AND flow = 3 AND NOT paused AND NOT deleted AND transport = 0 FROM s)
         FOR NO KEY UPDATE OF f SKIP LOCKED FOR SHARE OF i SKIP LOCKED
     ), made AS (
         INSERT INTO relais.instance_lease (instance_id, service_id, tasks)
         SELECT $19, $1, array_agg(n.id) FROM taken n CROSS JOIN locked
         WHERE NOT (SELECT brokered FROM queue)
               AND (SELECT count(*) FROM (
                        SELECT FROM relais.task
                        WHERE queue_id = $1 AND id NOT IN (SELECT unnest(tasks) FROM relais.instance_lease WHERE service_id = $1)
                        ORDER BY queue_id, rank, id LIMIT 1
                    ) waits) = 0
         HAVING count(*) > 0 RETURNING id
     )
     SELECT q.arrived, CASE WHEN $11::text IS NOT NULL THEN (SELECT pg_notify($10, $11)::text) END AS told,
            coalesce((SELECT n FROM relais.counter
                      WHERE service_id = $1 AND client_id = 0 AND status = 0 AND departed), 0) AS departed,
            clock_timestamp() AS now, made.id AS lease, ",
    pending_columns!("coalesce(t.retry, s.retry)"),
    " FROM queue q LEFT JOIN (made CROSS JOIN taken t CROSS JOIN s) ON true"
);

impl UnlimitedSubmit for Postgres {
    async fn submit_unlimited(
        &self,
        tasks: &[NewTask],
        wakeup: &Wakeup,
        lessee: Option<&Lessee>,
    ) -> Result<Option<(u64, Option<Leased>)>> {
        let payload = self.tells_as().map(|origin| wakeup::encode(origin, wakeup));
        let statement = match lessee {
            Some(lessee) => {
                let statement = bind(SUBMIT_AND_LEASE, tasks, payload)?;
                statement.bind(lessee.instance.0).bind(&lessee.done_with).bind(lessee.epoch)
            }
            None => bind(SUBMIT, tasks, payload)?,
        };
        let mut lent = self.lend().await?;
        let rows = statement.fetch_all(&mut *lent).await.map_err(error)?;
        let first = rows.first();
        let lease = match first.filter(|_| lessee.is_some()) {
            Some(row) => row.big_if_any("lease")?,
            None => None,
        };
        let taken = match lease {
            Some(lease) => {
                let locked = leased_tasks(&rows, &self.names, &mut lent).await?;
                Some(Leased { lease: Some(lease), locked })
            }
            None => None,
        };
        lent.keep();
        Ok(first.map(place).transpose()?.map(|place| (place, taken)))
    }
}

impl SubmitRows for PgSession {
    async fn lock_queues(&mut self, services: &[ServiceKey]) -> Result<Vec<LockedQueue>> {
        let rows = sqlx::query(
            "SELECT service_id, n, brokered, clock_timestamp() AS now FROM relais.counter
             WHERE service_id = ANY($1) AND client_id = 0 AND status = 0 AND NOT departed
             ORDER BY service_id
             FOR NO KEY UPDATE",
        )
        .bind(column(services, |service| service.0))
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
             LEFT JOIN relais.counter total
                 ON total.service_id = w.service_id AND total.client_id = 0 AND total.status = 0 AND total.departed
             LEFT JOIN relais.counter came
                 ON came.service_id = w.service_id AND came.client_id = w.client_id AND came.status = 0 AND NOT came.departed
             LEFT JOIN relais.counter went
                 ON went.service_id = w.service_id AND went.client_id = w.client_id AND went.status = 0 AND went.departed
             CROSS JOIN LATERAL (
                 SELECT coalesce(sum(CASE WHEN departed THEN -n ELSE n END), 0)::bigint AS n FROM relais.counter
                 WHERE service_id = w.service_id AND client_id = 0 AND status = 5
             ) waiting
             CROSS JOIN LATERAL (
                 SELECT coalesce(sum(CASE WHEN departed THEN -n ELSE n END), 0)::bigint AS n FROM relais.counter
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
        insert_unlimited(&mut self.tx, tasks).await
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
}

impl PgSession {
    /// The idempotency keys of the batch that were used before. Most batches have none; then nothing is asked.
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

/// Submits a batch to one service, within a transaction.
pub(crate) async fn insert_unlimited(connection: &mut PgConnection, tasks: &[NewTask]) -> Result<Option<u64>> {
    let row = bind(SUBMIT, tasks, None)?.fetch_optional(connection).await.map_err(error)?;
    row.as_ref().map(place).transpose()
}

/// Binds the tasks and the wake-up.
fn bind<'q>(statement: &'static str, tasks: &'q [NewTask], payload: Option<String>) -> Result<Statement<'q>> {
    let mut shares: BTreeMap<i32, i64> = BTreeMap::new();
    for task in tasks {
        *shares.entry(task.client.0).or_default() += 1;
    }
    let (clients, counts): (Vec<i32>, Vec<i64>) = shares.into_iter().unzip();
    Ok(sqlx::query(statement)
        .bind(tasks.first().map(|task| task.service.0))
        .bind(wide(tasks.len()))
        .bind(column(tasks, |task| task.task_id.0))
        .bind(column(tasks, |task| task.client.0))
        .bind(column(tasks, |task| task.request.get()))
        .bind(callbacks(tasks.iter())?)
        .bind(column(tasks, |task| task.correlation_id.as_deref()))
        .bind(clients)
        .bind(counts)
        .bind(CHANNEL)
        .bind(payload)
        .bind(column(tasks, held))
        .bind(column(tasks, |task| i16::from(task.terms.priority.level())))
        .bind(column(tasks, |task| task.terms.head_start))
        .bind(column(tasks, |task| task.terms.timeout.map(in_millis)))
        .bind(retries(tasks.iter())?)
        .bind(column(tasks, parent))
        .bind(column(tasks, trace)))
}

/// The position of the first task. A departure that was committed while the statement waited is not in its snapshot:
/// the position may be a little too high, as it would be had the task come a moment earlier.
fn place(row: &PgRow) -> Result<u64> {
    let (arrived, departed): (i64, i64) = (row.big("arrived")?, row.big("departed")?);
    Ok(u64::try_from(arrived - departed).unwrap_or(0) + 1)
}

/// How long a new task is left to its caller to publish, in seconds.
fn held(task: &NewTask) -> f64 {
    task.dispatch.as_ref().map_or(0.0, |publisher| publisher.held.as_secs_f64())
}

/// The parent of a task.
fn parent(task: &NewTask) -> Option<uuid::Uuid> {
    task.links.parent.map(|parent| parent.0)
}

/// The trace that a task is part of, as it is stored.
fn trace(task: &NewTask) -> Option<String> {
    task.links.trace.as_ref().map(relais_core::TraceContext::to_text)
}

/// The column of callbacks.
fn callbacks<'a>(tasks: impl Iterator<Item = &'a NewTask>) -> Result<Vec<Option<String>>> {
    let text = |task: &NewTask| task.callback.as_ref().map(serde_json::to_string).transpose();
    tasks.map(text).collect::<std::result::Result<_, _>>().map_err(|failure| StoreError::Failed(failure.into()))
}

/// The column of retry policies.
fn retries<'a>(tasks: impl Iterator<Item = &'a NewTask>) -> Result<Vec<Option<String>>> {
    tasks.map(|task| task.terms.retry.as_ref().map(retry_text).transpose()).collect()
}
