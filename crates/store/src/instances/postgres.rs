//! Instances and their leases on PostgreSQL.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use relais_core::{ClientKey, InstanceKey, InstanceRecord, NewInstance, ServiceKey, Timestamp};
use sqlx::{PgConnection, postgres::PgRow};

use crate::{
    claims::postgres::pending_columns,
    claims::statements::{LockedPending, locked_pending, named_pending},
    instances::statements::{
        DoneTask, InstanceReader, InstanceRows, Leased, Lessee, LockedInstance, Onward, instance_record,
        locked_instance,
    },
    postgres::names::Names,
    postgres::row::{in_order, ints},
    postgres::session::{PgSession, column},
    postgres::{Postgres, Statement, error, to_sql},
    row::{Columns as _, service_name, signed, wide},
    session::Result,
    tasks::postgres::locked_columns,
    tasks::statements::{Locked, LockedTask, locked, locked_task},
};

/// The first pending tasks of the service $1 behind the place $3, $4 that nobody has leased, up to $2 of them, if
/// nothing limits its flow; and how often tasks of it were leased before. Leased tasks are passed over, but for the
/// leases $5: all their tasks are before that place. Nothing is locked: whoever claims tasks of this service notes it
/// at its flow, and whoever else changes a task changes its revision. Names of clients are learned afterwards
/// ([`Names`]).
const NEXT_IN_LINE: &str = concat!(
    "SELECT clock_timestamp() AS now, f.taken, ",
    pending_columns!("coalesce(t.retry, s.retry)"),
    " FROM (
         SELECT * FROM relais.service
         WHERE id = $1 AND handed AND flow = 3 AND NOT paused AND NOT deleted AND transport = 0 OFFSET 0
     ) s CROSS JOIN LATERAL (
         SELECT taken FROM relais.flow WHERE service_id = s.id OFFSET 0
     ) f CROSS JOIN LATERAL (
         SELECT * FROM relais.task
         WHERE queue_id = s.id AND (rank, id) > ($3, $4)
               AND id NOT IN (SELECT unnest(tasks) FROM relais.instance_lease WHERE service_id = $1 AND id <> ALL($5))
         ORDER BY queue_id, rank, id LIMIT $2
     ) t"
);

fn next_in_line(service: ServiceKey, lessee: &Lessee) -> Statement<'_> {
    let Onward { rank, id, leases } = &lessee.onward;
    sqlx::query(NEXT_IN_LINE).bind(service.0).bind(wide(lessee.limit)).bind(rank).bind(id).bind(leases)
}

/// Reads such rows, in the order in which they came.
pub(crate) async fn leased_tasks(
    rows: &[PgRow],
    names: &Names,
    connection: &mut PgConnection,
) -> Result<Locked<LockedPending>> {
    let Some(service) = rows.first().map(service_name).transpose()? else { return locked(rows, locked_pending) };
    names.learn(ints(rows, "client_id")?.into_iter().map(ClientKey), connection).await?;
    locked(&in_order(rows), |row| named_pending(row, service.clone(), |client| names.of(client)))
}

impl InstanceRows for PgSession {
    async fn insert_instance(&mut self, instance: &NewInstance) -> Result<InstanceKey> {
        let id = sqlx::query_scalar(
            "INSERT INTO relais.instance (name, host, version, policy, until)
             VALUES ($1, $2, $3, $4, clock_timestamp() + make_interval(secs => $5)) RETURNING id",
        )
        .bind(&instance.name)
        .bind(&instance.host)
        .bind(&instance.version)
        .bind(instance.policy.code())
        .bind(instance.silence.as_secs_f64())
        .fetch_one(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(InstanceKey(id))
    }

    async fn lock_instance(&mut self, name: &str) -> Result<Option<LockedInstance>> {
        let row = sqlx::query("SELECT id, name, policy, undecided FROM relais.instance WHERE name = $1 FOR UPDATE")
            .bind(name)
            .fetch_optional(&mut *self.tx)
            .await
            .map_err(error)?;
        row.as_ref().map(locked_instance).transpose()
    }

    async fn lock_dead(&mut self) -> Result<Option<LockedInstance>> {
        // Leases of instances that are gone.
        sqlx::query(
            "DELETE FROM relais.instance_lease h WHERE NOT EXISTS (SELECT FROM relais.instance i WHERE i.id = h.instance_id)",
        )
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        let row = sqlx::query(
            "SELECT id, name, policy, undecided FROM relais.instance WHERE until < clock_timestamp() AND NOT undecided
             ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED",
        )
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(error)?;
        row.as_ref().map(locked_instance).transpose()
    }

    async fn next_death(&mut self) -> Result<Option<Duration>> {
        let seconds: Option<f64> = sqlx::query_scalar(
            "SELECT greatest(extract(epoch FROM min(until) - clock_timestamp()), 0)::double precision
             FROM relais.instance WHERE NOT undecided",
        )
        .fetch_one(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)))
    }

    async fn leave_undecided(&mut self, instance: InstanceKey) -> Result<()> {
        sqlx::query("UPDATE relais.instance SET undecided = true WHERE id = $1")
            .bind(instance.0)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(())
    }

    async fn lock_own(&mut self, instance: InstanceKey) -> Result<bool> {
        let row = sqlx::query("SELECT 1 FROM relais.instance WHERE id = $1 FOR UPDATE").bind(instance.0);
        Ok(row.fetch_optional(&mut *self.tx).await.map_err(error)?.is_some())
    }

    async fn delete_instance(&mut self, instance: InstanceKey) -> Result<()> {
        sqlx::query(
            "WITH gone AS (DELETE FROM relais.instance_lease WHERE instance_id = $1) DELETE FROM relais.instance WHERE id = $1",
        )
        .bind(instance.0)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn heartbeat_instance(
        &mut self,
        instance: InstanceKey,
        silence: Duration,
        done_with: &[i64],
    ) -> Result<bool> {
        let done = sqlx::query(
            "WITH gone AS (DELETE FROM relais.instance_lease WHERE id = ANY($3))
             UPDATE relais.instance SET seen = clock_timestamp(), until = clock_timestamp() + make_interval(secs => $2)
             WHERE id = $1 AND NOT undecided",
        )
        .bind(instance.0)
        .bind(silence.as_secs_f64())
        .bind(done_with)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(done.rows_affected() > 0)
    }

    async fn hold_instance(&mut self, instance: InstanceKey) -> Result<Option<Timestamp>> {
        let row = sqlx::query(
            "SELECT clock_timestamp() AS now FROM relais.instance WHERE id = $1 AND NOT undecided FOR KEY SHARE",
        )
        .bind(instance.0)
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(error)?;
        row.map(|row| row.moment("now")).transpose()
    }

    async fn renew(&mut self, instance: InstanceKey) -> Result<Option<i64>> {
        let renewed = "UPDATE relais.instance SET epoch = epoch + 1 WHERE id = $1 AND NOT undecided RETURNING epoch";
        sqlx::query_scalar(renewed).bind(instance.0).fetch_optional(&mut *self.tx).await.map_err(error)
    }

    async fn note_leased(&mut self, services: &[ServiceKey]) -> Result<()> {
        let new: bool =
            sqlx::query_scalar("SELECT EXISTS (SELECT FROM relais.service WHERE id = ANY($1) AND NOT handed)")
                .bind(column(services, |service| service.0))
                .fetch_one(&mut *self.tx)
                .await
                .map_err(error)?;
        if !new {
            return Ok(());
        }
        // Claims that began before do not pass over leased tasks. This waits until they are over: before anything else
        // is locked, and not for ever, since all others wait behind it.
        for statement in ["SET LOCAL lock_timeout = '2s'", "LOCK TABLE relais.task IN EXCLUSIVE MODE"] {
            sqlx::query(statement).execute(&mut *self.tx).await.map_err(error)?;
        }
        sqlx::query(
            "WITH made AS (INSERT INTO relais.flow (service_id) SELECT unnest($1::integer[]) ON CONFLICT DO NOTHING)
             UPDATE relais.service SET handed = true, flow = CASE WHEN flow = 0 THEN 3 ELSE flow END
             WHERE id = ANY($1) AND NOT handed",
        )
        .bind(column(services, |service| service.0))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn lock_claims(
        &mut self,
        service: ServiceKey,
        instance: InstanceKey,
        done_with: &[i64],
    ) -> Result<Option<bool>> {
        let row = sqlx::query(
            // The instance is always locked before the flow of the service.
            "WITH gone AS (DELETE FROM relais.instance_lease WHERE id = ANY($3)
             ), alive AS MATERIALIZED (
                 SELECT id FROM relais.instance WHERE id = $2 AND NOT undecided FOR KEY SHARE
             )
             SELECT s.flow = 3 AS free FROM relais.flow f
             CROSS JOIN LATERAL (SELECT flow FROM relais.service WHERE id = f.service_id AND handed OFFSET 0) s
             WHERE f.service_id = $1 AND EXISTS (SELECT FROM alive)
             FOR NO KEY UPDATE OF f",
        )
        .bind(service.0)
        .bind(instance.0)
        .bind(done_with)
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(error)?;
        row.map(|row| row.flag("free")).transpose()
    }

    async fn drop_unknown(&mut self, service: ServiceKey, instance: InstanceKey, known: &[i64]) -> Result<()> {
        sqlx::query(
            "WITH noted AS (UPDATE relais.flow SET taken = taken + 1 WHERE service_id = $2)
             DELETE FROM relais.instance_lease WHERE instance_id = $1 AND service_id = $2 AND id <> ALL($3)",
        )
        .bind(instance.0)
        .bind(service.0)
        .bind(known)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn lease_tasks(&mut self, service: ServiceKey, lessee: &Lessee) -> Result<Leased> {
        let rows = next_in_line(service, lessee).fetch_all(&mut *self.tx).await.map_err(error)?;
        let locked = leased_tasks(&rows, &self.names, &mut self.tx).await?;
        if locked.rows.is_empty() {
            return Ok(Leased { lease: None, locked });
        }
        sqlx::query("UPDATE relais.flow SET taken = taken + 1 WHERE service_id = $1")
            .bind(service.0)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        let lease = self.insert_lease(service, lessee.instance, &ids(&locked)).await?;
        Ok(Leased { lease: Some(lease), locked })
    }

    async fn insert_lease(&mut self, service: ServiceKey, instance: InstanceKey, tasks: &[i64]) -> Result<i64> {
        let made =
            "INSERT INTO relais.instance_lease (instance_id, service_id, tasks) VALUES ($1, $2, $3) RETURNING id";
        let made = sqlx::query_scalar(made).bind(instance.0).bind(service.0).bind(tasks);
        made.fetch_one(&mut *self.tx).await.map_err(error)
    }

    async fn end_leases(&mut self, services: &[ServiceKey], tasks: &[i64]) -> Result<()> {
        sqlx::query(
            "UPDATE relais.instance_lease SET tasks = ARRAY(SELECT id FROM unnest(tasks) AS id WHERE id <> ALL($2))
             WHERE service_id = ANY($1) AND tasks && $2",
        )
        .bind(column(services, |service| service.0))
        .bind(tasks)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn leased(&mut self, service: ServiceKey) -> Result<HashSet<i64>> {
        // Whoever asks is about to claim others.
        let ids: Vec<i64> = sqlx::query_scalar(
            "WITH noted AS (UPDATE relais.flow SET taken = taken + 1 WHERE service_id = $1)
             SELECT unnest(tasks) FROM relais.instance_lease WHERE service_id = $1",
        )
        .bind(service.0)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(ids.into_iter().collect())
    }

    async fn leased_among(&mut self, tasks: &[i64]) -> Result<HashMap<i64, String>> {
        let ids: Vec<(i64, String)> = sqlx::query_as(
            "SELECT w.id, i.name FROM relais.instance_lease h CROSS JOIN LATERAL unnest(h.tasks) AS w (id)
             JOIN relais.instance i ON i.id = h.instance_id WHERE w.id = ANY($1)",
        )
        .bind(tasks)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(ids.into_iter().collect())
    }

    async fn lock_leased(&mut self, instance: InstanceKey) -> Result<Locked<LockedTask>> {
        let rows = sqlx::query(concat!(
            "SELECT clock_timestamp() AS now, ",
            locked_columns!(),
            " FROM relais.task t
              CROSS JOIN LATERAL (SELECT * FROM relais.service WHERE id = t.service_id OFFSET 0) s
              WHERE t.id = ANY(ARRAY(SELECT unnest(tasks) FROM relais.instance_lease WHERE instance_id = $1))
              ORDER BY t.id + 0 FOR NO KEY UPDATE OF t"
        ))
        .bind(instance.0)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        locked(&rows, locked_task)
    }

    async fn write_done(&mut self, tasks: &[DoneTask]) -> Result<usize> {
        // One instance reports all of them in one call: host and time are the same for all.
        let Some(DoneTask { worker_host, ended, .. }) = tasks.first() else { return Ok(0) };
        if tasks.iter().any(|task| task.worker_host != *worker_host || task.ended != *ended) {
            return Ok(0);
        }
        let done = sqlx::query(
            "UPDATE relais.task t
             SET status = 2, attempt = w.attempt, revision = w.revision, progress = 100, worker_host = $7,
                 started = w.started, ended = $8, response = w.response::json, error_message = NULL, error_kind = NULL,
                 error_trace = NULL, lease_until = NULL, due = NULL, expires = NULL, deadline = NULL, timer = NULL
             FROM ROWS FROM (
                 unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::integer[], $5::timestamptz[], $6::text[]),
                 generate_series(1, cardinality($1))
             ) AS w (id, known, revision, attempt, started, response)
             WHERE t.id = ANY($1) AND t.id = w.id AND t.revision = w.known",
        )
        .bind(column(tasks, |task| task.id))
        .bind(column(tasks, |task| wide(task.known)))
        .bind(column(tasks, |task| wide(task.revision)))
        .bind(column(tasks, |task| signed(task.attempt)))
        .bind(column(tasks, |task| task.started.map(to_sql)))
        .bind(column(tasks, |task| task.response.get()))
        .bind(worker_host)
        .bind(ended.map(to_sql))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
    }
}

impl InstanceReader for Postgres {
    // They are read, and then listed if nobody has claimed any in between.
    async fn lease_unlocked(&self, service: ServiceKey, lessee: &Lessee) -> Result<Option<Leased>> {
        let mut lent = self.lend().await?;
        let rows = next_in_line(service, lessee).fetch_all(&mut *lent).await.map_err(error)?;
        let Some(taken) = rows.first().map(|row| row.big("taken")).transpose()? else {
            lent.keep();
            return Ok(None);
        };
        let locked = leased_tasks(&rows, &self.names, &mut lent).await?;
        let lease = sqlx::query_scalar(
            "WITH gone AS (DELETE FROM relais.instance_lease WHERE id = ANY($4)
             ), alive AS MATERIALIZED (
                 SELECT id FROM relais.instance WHERE id = $2 AND NOT undecided AND epoch = $6 FOR KEY SHARE
             ), noted AS (
                 UPDATE relais.flow SET taken = taken + 1
                 WHERE service_id = $1 AND taken = $5 AND EXISTS (SELECT FROM alive)
                       AND (SELECT handed AND flow = 3 AND NOT paused AND NOT deleted AND transport = 0
                            FROM relais.service WHERE id = $1)
                 RETURNING service_id
             )
             INSERT INTO relais.instance_lease (instance_id, service_id, tasks) SELECT $2, service_id, $3 FROM noted RETURNING id",
        )
        .bind(service.0)
        .bind(lessee.instance.0)
        .bind(ids(&locked))
        .bind(&lessee.done_with)
        .bind(taken)
        .bind(lessee.epoch)
        .fetch_optional(&mut *lent)
        .await
        .map_err(error)?;
        lent.keep();
        Ok(lease.map(|lease| Leased { lease: Some(lease), locked }))
    }

    async fn list_instances(&self) -> Result<Vec<InstanceRecord>> {
        let mut lent = self.lend().await?;
        let rows = sqlx::query(
            "SELECT i.id, i.name, i.host, i.version, i.policy, i.undecided, i.until < clock_timestamp() AS silent, i.started,
                    i.seen, h.n AS leased
             FROM relais.instance i CROSS JOIN LATERAL (
                 SELECT coalesce(sum(cardinality(tasks)), 0)::bigint AS n FROM relais.instance_lease WHERE instance_id = i.id
             ) h
             ORDER BY i.name",
        )
        .fetch_all(&mut *lent)
        .await
        .map_err(error)?;
        lent.keep();
        rows.iter().map(instance_record).collect()
    }
}

/// The rows of these tasks in the table.
fn ids(locked: &Locked<LockedPending>) -> Vec<i64> {
    column(&locked.rows, |pending| pending.locked.id)
}
