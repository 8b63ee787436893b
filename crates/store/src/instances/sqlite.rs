//! Instances and their leases on SQLite. There is one process at a time: whoever else is known is an earlier run of it.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use relais_core::{InstanceKey, InstanceRecord, Json, NewInstance, ServiceKey, Timestamp};

use crate::{
    claims::sqlite::pending_columns,
    claims::statements::locked_pending,
    instances::statements::{
        DoneTask, InstanceReader, InstanceRows, Leased, Lessee, LockedInstance, instance_record, locked_instance,
    },
    row::{Columns as _, in_millis, unsigned, wide},
    session::Result,
    sqlite::session::SqliteSession,
    sqlite::values::{Values, array},
    sqlite::{Sqlite, error},
    tasks::sqlite::locked_columns,
    tasks::statements::{Locked, LockedTask, locked, locked_task},
};

const NEXT_IN_LINE: &str = concat!(
    "SELECT ",
    now!(),
    " AS now, coalesce(t.retry, s.retry) AS retry, ",
    pending_columns!(),
    " FROM service s CROSS JOIN task t INDEXED BY task_by_rank ON t.service_id = s.id CROSS JOIN client c ON c.id = t.client_id
      WHERE s.id = ?1 AND t.status = 0 AND NOT s.paused AND NOT s.deleted AND s.transport = 0
        AND (t.rank, t.id) > (?3, ?4)
        AND t.id NOT IN (SELECT w.value FROM instance_lease h CROSS JOIN json_each(h.tasks) AS w WHERE h.service_id = ?1
                         AND h.id NOT IN (SELECT value FROM json_each(?5)))
      ORDER BY t.rank, t.id LIMIT ?2"
);

const LOCK_LEASED: &str = concat!(
    "SELECT ",
    now!(),
    " AS now, ",
    locked_columns!(),
    " FROM instance_lease h CROSS JOIN json_each(h.tasks) AS w CROSS JOIN task t ON t.id = w.value
      CROSS JOIN service s ON s.id = t.service_id WHERE h.instance_id = ?1 ORDER BY t.id"
);

/// Writes results, if nobody else has changed the tasks.
pub(crate) const WRITE_DONE: Values = Values {
    before:
        "UPDATE task SET status = 2, revision = w.column3, attempt = w.column4, progress = 100, worker_host = w.column5,
                 started = w.column6, ended = w.column7, response = w.column8, error_message = NULL, error_kind = NULL,
                 error_trace = NULL, lease_until = NULL, due = NULL, expires = NULL, deadline = NULL, timer = NULL
             FROM (VALUES ",
    row: "(?, ?, ?, ?, ?, ?, ?, ?)",
    after: ") AS w WHERE task.id = w.column1 AND task.revision = w.column2",
};

impl SqliteSession {
    async fn drop_leases(&mut self, leases: &[i64]) -> Result<()> {
        if leases.is_empty() {
            return Ok(());
        }
        self.execute("DELETE FROM instance_lease WHERE id IN (SELECT value FROM json_each(?1))", leases).await
    }
}

impl InstanceRows for SqliteSession {
    async fn insert_instance(&mut self, instance: &NewInstance) -> Result<InstanceKey> {
        let id = sqlx::query_scalar(concat!(
            "INSERT INTO instance (name, host, version, policy, started, seen, until)
             SELECT ?1, ?2, ?3, ?4, now, now, now + ?5 FROM (SELECT ",
            now!(),
            " AS now) RETURNING id"
        ))
        .bind(&instance.name)
        .bind(&instance.host)
        .bind(&instance.version)
        .bind(instance.policy.code())
        .bind(in_millis(instance.silence))
        .fetch_one(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(InstanceKey(id))
    }

    async fn lock_instance(&mut self, name: &str) -> Result<Option<LockedInstance>> {
        let row = sqlx::query("SELECT id, name, policy, undecided FROM instance WHERE name = ?1")
            .bind(name)
            .fetch_optional(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        row.as_ref().map(locked_instance).transpose()
    }

    async fn lock_dead(&mut self) -> Result<Option<LockedInstance>> {
        let row = sqlx::query(concat!(
            "SELECT id, name, policy, undecided FROM instance WHERE until < ",
            now!(),
            " AND NOT undecided ORDER BY id LIMIT 1"
        ))
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        row.as_ref().map(locked_instance).transpose()
    }

    async fn next_death(&mut self) -> Result<Option<Duration>> {
        let millis: Option<i64> =
            sqlx::query_scalar(concat!("SELECT min(until) - ", now!(), " FROM instance WHERE NOT undecided"))
                .fetch_one(&mut *self.tx)
                .await
                .map_err(|failure| self.failed(failure))?;
        Ok(millis.map(|millis| Duration::from_millis(unsigned(millis))))
    }

    async fn leave_undecided(&mut self, instance: InstanceKey) -> Result<()> {
        self.change(sqlx::query("UPDATE instance SET undecided = 1 WHERE id = ?1").bind(instance.0)).await.map(drop)
    }

    async fn lock_own(&mut self, instance: InstanceKey) -> Result<bool> {
        Ok(self.hold_instance(instance).await?.is_some())
    }

    async fn delete_instance(&mut self, instance: InstanceKey) -> Result<()> {
        self.change(sqlx::query("DELETE FROM instance_lease WHERE instance_id = ?1").bind(instance.0)).await?;
        self.change(sqlx::query("DELETE FROM instance WHERE id = ?1").bind(instance.0)).await.map(drop)
    }

    async fn heartbeat_instance(
        &mut self,
        instance: InstanceKey,
        silence: Duration,
        done_with: &[i64],
    ) -> Result<bool> {
        self.drop_leases(done_with).await?;
        let statement = sqlx::query(concat!(
            "UPDATE instance SET seen = ",
            now!(),
            ", until = ",
            now!(),
            " + ?2 WHERE id = ?1 AND NOT undecided"
        ));
        Ok(self.change(statement.bind(instance.0).bind(in_millis(silence))).await? > 0)
    }

    async fn hold_instance(&mut self, instance: InstanceKey) -> Result<Option<Timestamp>> {
        let row = sqlx::query(concat!("SELECT ", now!(), " AS now FROM instance WHERE id = ?1 AND NOT undecided"))
            .bind(instance.0)
            .fetch_optional(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        row.map(|row| row.moment("now")).transpose()
    }

    async fn renew(&mut self, instance: InstanceKey) -> Result<Option<i64>> {
        // Earlier calls have ended: there is one writer.
        Ok(self.lock_own(instance).await?.then_some(0))
    }

    async fn note_leased(&mut self, services: &[ServiceKey]) -> Result<()> {
        let keys: Vec<i32> = services.iter().map(|service| service.0).collect();
        self.execute(
            "INSERT INTO flow (service_id) SELECT value FROM json_each(?1) WHERE true ON CONFLICT DO NOTHING",
            &keys,
        )
        .await?;
        self.execute(
            "UPDATE service SET handed = 1, flow = CASE WHEN flow = 0 THEN 3 ELSE flow END
             WHERE id IN (SELECT value FROM json_each(?1)) AND NOT handed",
            &keys,
        )
        .await
    }

    async fn lock_claims(
        &mut self,
        service: ServiceKey,
        instance: InstanceKey,
        done_with: &[i64],
    ) -> Result<Option<bool>> {
        self.drop_leases(done_with).await?;
        let row = sqlx::query(
            "SELECT s.flow = 3 AS free FROM service s CROSS JOIN instance i
             WHERE s.id = ?1 AND s.handed AND i.id = ?2 AND NOT i.undecided",
        )
        .bind(service.0)
        .bind(instance.0)
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        row.map(|row| row.flag("free")).transpose()
    }

    async fn drop_unknown(&mut self, service: ServiceKey, instance: InstanceKey, known: &[i64]) -> Result<()> {
        let statement = sqlx::query(
            "DELETE FROM instance_lease WHERE instance_id = ?1 AND service_id = ?2
                 AND id NOT IN (SELECT value FROM json_each(?3))",
        );
        self.change(statement.bind(instance.0).bind(service.0).bind(array(known)?)).await.map(drop)
    }

    async fn lease_tasks(&mut self, service: ServiceKey, lessee: &Lessee) -> Result<Leased> {
        let rows = sqlx::query(NEXT_IN_LINE)
            .bind(service.0)
            .bind(wide(lessee.limit))
            .bind(lessee.onward.rank)
            .bind(lessee.onward.id)
            .bind(array(&lessee.onward.leases)?)
            .fetch_all(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        let ids: Vec<i64> = rows.iter().map(|row| row.big("id")).collect::<Result<_>>()?;
        let lease = if ids.is_empty() { None } else { Some(self.insert_lease(service, lessee.instance, &ids).await?) };
        Ok(Leased { lease, locked: locked(&rows, locked_pending)? })
    }

    async fn insert_lease(&mut self, service: ServiceKey, instance: InstanceKey, tasks: &[i64]) -> Result<i64> {
        let tasks = array(tasks)?;
        sqlx::query_scalar(
            "INSERT INTO instance_lease (instance_id, service_id, tasks) VALUES (?1, ?2, ?3) RETURNING id",
        )
        .bind(instance.0)
        .bind(service.0)
        .bind(tasks)
        .fetch_one(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))
    }

    async fn end_leases(&mut self, services: &[ServiceKey], tasks: &[i64]) -> Result<()> {
        let keys: Vec<i32> = services.iter().map(|service| service.0).collect();
        let statement = sqlx::query(
            "UPDATE instance_lease SET tasks = (
                 SELECT json_group_array(w.value) FROM json_each(instance_lease.tasks) AS w
                 WHERE w.value NOT IN (SELECT value FROM json_each(?2))
             ) WHERE service_id IN (SELECT value FROM json_each(?1))",
        );
        self.change(statement.bind(array(&keys)?).bind(array(tasks)?)).await.map(drop)
    }

    async fn leased(&mut self, service: ServiceKey) -> Result<HashSet<i64>> {
        let ids: Vec<i64> = sqlx::query_scalar(
            "SELECT w.value FROM instance_lease h CROSS JOIN json_each(h.tasks) AS w WHERE h.service_id = ?1",
        )
        .bind(service.0)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(ids.into_iter().collect())
    }

    async fn leased_among(&mut self, tasks: &[i64]) -> Result<HashMap<i64, String>> {
        let ids: Vec<(i64, String)> = sqlx::query_as(
            "SELECT w.value, i.name FROM instance_lease h CROSS JOIN json_each(h.tasks) AS w JOIN instance i ON i.id = h.instance_id
             WHERE w.value IN (SELECT value FROM json_each(?1))",
        )
        .bind(array(tasks)?)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(ids.into_iter().collect())
    }

    async fn lock_leased(&mut self, instance: InstanceKey) -> Result<Locked<LockedTask>> {
        let rows = sqlx::query(LOCK_LEASED)
            .bind(instance.0)
            .fetch_all(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        locked(&rows, locked_task)
    }

    async fn write_done(&mut self, tasks: &[DoneTask]) -> Result<usize> {
        let done = WRITE_DONE.execute(&mut self.tx, tasks, |statement, task| {
            statement
                .bind(task.id)
                .bind(wide(task.known))
                .bind(wide(task.revision))
                .bind(task.attempt)
                .bind(task.worker_host.as_deref())
                .bind(task.started.map(Timestamp::as_millis))
                .bind(task.ended.map(Timestamp::as_millis))
                .bind(Json::get(&task.response))
        });
        done.await.map_err(|failure| self.failed(failure))
    }
}

impl InstanceReader for Sqlite {
    async fn list_instances(&self) -> Result<Vec<InstanceRecord>> {
        let rows = sqlx::query(concat!(
            "SELECT i.*, i.until < ",
            now!(),
            " AS silent, (SELECT coalesce(sum(json_array_length(h.tasks)), 0) FROM instance_lease h WHERE h.instance_id = i.id) AS leased
             FROM instance i ORDER BY i.name"
        ))
        .fetch_all(&self.read)
        .await
        .map_err(error)?;
        rows.iter().map(instance_record).collect()
    }
}
