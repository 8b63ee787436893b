//! One transaction on SQLite. It is the only one that writes, so nothing is locked row by row.

use std::{sync::Arc, time::Duration};

use relais_core::{Change, Json, NewTask, ServiceKey, Status, StoreError, TaskId, Timestamp, Wakeup, position::Node};
use sqlx::{SqlitePool, SqliteTransaction, sqlite::SqliteRow};

use super::{
    batch::{INSERT_KEYS, INSERT_TASKS, WRITE_TASKS, array},
    declare, error,
    proof::Proof,
    read::pending_columns,
};
use crate::{
    history::statements::History as _,
    row::{
        Columns, corrupt, freed_keys, in_millis, known_key, locked, locked_pending, locked_queue, locked_task,
        purge_candidates, queue_facts, retry_text, service_key, unsigned, waited_for_others, wide,
    },
    session::{
        Accounts, Counter, InsertedTask, KnownKey, Locked, LockedPending, LockedQueue, LockedTask, PurgeCandidate,
        PurgeScan, QueueFacts, Result, Session, WrittenTask,
    },
};

/// One transaction.
pub(crate) struct SqliteSession {
    pub(crate) tx: SqliteTransaction<'static>,
    proof: Arc<Proof>,
    /// Whether it has written something: only that shows that writes are taken.
    wrote: bool,
}

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
            "t.id, t.task_id, t.service_id, t.client_id, t.seq, s.delivery_limit, s.handed, t.callback, t.submitted, ",
            "coalesce(max(t.scheduled, t.revived), t.scheduled, t.revived) AS scheduled, t.correlation_id, t.unique_key, ", crate::sqlite::session::task_retry!(), " AS retry, ",
            crate::sqlite::read::state_columns!()
        )
    };
}
pub(crate) use locked_columns;

pub(crate) const LOCK_PENDING: &str = concat!(
    "SELECT ",
    now!(),
    " AS now, NULL AS retry, ",
    pending_columns!(),
    " FROM service s CROSS JOIN task t INDEXED BY task_by_rank ON t.service_id = s.id CROSS JOIN client c ON c.id = t.client_id
      WHERE s.id = ?1 AND t.status = 0 AND NOT s.paused AND NOT s.deleted AND s.transport = 0 AND (s.flow = 0 OR ?3)
      ORDER BY t.rank, t.id LIMIT ?2"
);

pub(crate) const LOCK_TASKS: &str = concat!(
    "SELECT ",
    now!(),
    " AS now, ",
    locked_columns!(),
    " FROM json_each(?1) AS w CROSS JOIN task t ON t.task_id = w.value CROSS JOIN service s ON s.id = t.service_id"
);

pub(crate) const LOCK_OVERDUE: &str = concat!(
    "SELECT ",
    now!(),
    " AS now, ",
    locked_columns!(),
    " FROM task t INDEXED BY task_by_timer CROSS JOIN service s ON s.id = t.service_id
      WHERE t.timer <= ",
    now!(),
    " ORDER BY t.timer LIMIT ?1"
);

pub(crate) const SCAN_FOR_PURGE: &str = concat!(
    "SELECT id, client_id, seq, batch_id, max(submitted, coalesce(scheduled, 0)) < now - ?5 OR ended < now - ?4 AS too_old,
            submitted < now - min(?4, ?5) AS matters
     FROM (SELECT ",
    now!(),
    " AS now) CROSS JOIN task WHERE service_id = ?1 AND status = ?2 AND id > ?3 ORDER BY id LIMIT ?6"
);

pub(crate) const QUEUE_FLOORS: &str = "
    SELECT a.service_id, min(
        coalesce((SELECT seq FROM task WHERE service_id = a.service_id AND status = 0 ORDER BY id LIMIT 1), a.n),
        coalesce((SELECT seq FROM task WHERE service_id = a.service_id AND status = 1 ORDER BY id LIMIT 1), a.n),
        coalesce((SELECT seq FROM task WHERE service_id = a.service_id AND status = 5 ORDER BY id LIMIT 1), a.n)
    ) AS floor
    FROM tally a WHERE a.client_id = 0 AND a.status = 0 AND NOT a.departed";

impl SqliteSession {
    pub(crate) async fn begin(pool: &SqlitePool, proof: &Arc<Proof>) -> Result<Self> {
        let tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(|failure| {
            proof.note(false);
            error(failure)
        })?;
        Ok(Self { tx, proof: Arc::clone(proof), wrote: false })
    }

    /// Writes something that nobody reads.
    pub(crate) async fn touch(&mut self) -> Result<()> {
        self.wrote = true;
        sqlx::query(concat!(
            "INSERT INTO chore (name, begun) VALUES ('ping', ",
            now!(),
            ") ON CONFLICT (name) DO UPDATE SET begun = excluded.begun"
        ))
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    /// What a failure means; and that from now on only a write shows that writes are taken.
    pub(crate) fn failed(&self, failure: sqlx::Error) -> StoreError {
        self.proof.note(false);
        error(failure)
    }

    /// Executes a statement over a batch.
    pub(crate) async fn execute<T: serde::Serialize>(&mut self, statement: &'static str, batch: &[T]) -> Result<()> {
        let done = sqlx::query(statement).bind(array(batch)?).execute(&mut *self.tx).await;
        done.map(drop).map_err(|failure| self.failed(failure))
    }

    /// Reads rows over a batch.
    pub(crate) async fn fetch<T: serde::Serialize>(
        &mut self,
        statement: &'static str,
        batch: &[T],
    ) -> Result<Vec<SqliteRow>> {
        let rows = sqlx::query(statement).bind(array(batch)?).fetch_all(&mut *self.tx).await;
        rows.map_err(|failure| self.failed(failure))
    }

    /// Those of the batch's idempotency keys that were used. Most batches have none and ask nothing.
    async fn known_keys(&mut self, tasks: &[NewTask]) -> Result<Vec<KnownKey>> {
        let keyed: Vec<_> = tasks
            .iter()
            .filter_map(|task| Some((task.service.0, task.client.0, &task.idempotency.as_ref()?.key)))
            .collect();
        if keyed.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self
            .fetch(
                "SELECT k.* FROM json_each(?1) AS w CROSS JOIN idempotency k
                     ON k.service_id = w.value->>0 AND k.client_id = w.value->>1 AND k.key = w.value->>2",
                &keyed,
            )
            .await?;
        rows.iter().map(known_key).collect()
    }

    async fn insert_keys(&mut self, tasks: &[InsertedTask]) -> Result<()> {
        let keyed: Vec<_> =
            tasks.iter().filter_map(|inserted| Some((inserted, inserted.task.idempotency.as_ref()?))).collect();
        let done =
            INSERT_KEYS.execute(&mut self.tx, &keyed, |statement, (InsertedTask { task, position, .. }, given)| {
                statement
                    .bind(task.service.0)
                    .bind(task.client.0)
                    .bind(given.key.as_str())
                    .bind(given.fingerprint.as_slice())
                    .bind(task.task_id.to_string())
                    .bind(wide(*position))
            });
        done.await.map(drop).map_err(|failure| self.failed(failure))
    }

    async fn count(&mut self, counts: &[(Counter, i64)]) -> Result<()> {
        if counts.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = counts
            .iter()
            .map(|(counter, n)| {
                (counter.service.0, counter.client.0, counter.status.code(), i16::from(counter.departed), n)
            })
            .collect();
        self.execute(
            // "WHERE true" tells the parser that ON does not begin a join.
            "INSERT INTO tally (service_id, client_id, status, departed, n)
             SELECT value->>0, value->>1, value->>2, value->>3, value->>4 FROM json_each(?1) WHERE true
             ON CONFLICT (service_id, client_id, status, departed) DO UPDATE SET n = n + excluded.n",
            &rows,
        )
        .await
    }

    async fn depart(&mut self, departures: &[(ServiceKey, Node, i64)]) -> Result<()> {
        if departures.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = departures.iter().map(|(service, node, n)| (service.0, node.level, node.slot, n)).collect();
        self.execute(
            "INSERT INTO departure (service_id, level, slot, n)
             SELECT value->>0, value->>1, value->>2, value->>3 FROM json_each(?1) WHERE true
             ON CONFLICT (service_id, level, slot) DO UPDATE SET n = n + excluded.n",
            &rows,
        )
        .await
    }
}

impl Session for SqliteSession {
    async fn lock_queues(&mut self, services: &[ServiceKey]) -> Result<Vec<LockedQueue>> {
        let rows = self
            .fetch(
                concat!(
                    "SELECT a.service_id, a.n, s.transport = 1 AS brokered, ",
                    now!(),
                    " AS now FROM json_each(?1) AS w
                     CROSS JOIN tally a ON a.service_id = w.value AND a.client_id = 0 AND a.status = 0 AND a.departed = 0
                     CROSS JOIN service s ON s.id = a.service_id"
                ),
                &keys(services),
            )
            .await?;
        rows.iter().map(locked_queue).collect()
    }

    async fn queue_facts(&mut self, tasks: &[NewTask]) -> Result<QueueFacts> {
        let mut pairs: Vec<(i32, i32)> = tasks.iter().map(|task| (task.service.0, task.client.0)).collect();
        pairs.sort_unstable();
        pairs.dedup();
        let rows = self
            .fetch(
                "SELECT w.service_id, w.client_id, s.capacity, a.capacity AS share,
                        coalesce(total.n, 0) AS departed, coalesce(came.n, 0) - coalesce(went.n, 0) AS pending,
                        (SELECT coalesce(sum(CASE WHEN departed THEN -n ELSE n END), 0) FROM tally
                         WHERE service_id = w.service_id AND client_id = 0 AND status = 5) AS waiting,
                        (SELECT coalesce(sum(CASE WHEN departed THEN -n ELSE n END), 0) FROM tally
                         WHERE service_id = w.service_id AND client_id = w.client_id AND status = 5) AS share_waiting
                 FROM (SELECT value->>0 AS service_id, value->>1 AS client_id FROM json_each(?1)) AS w
                 JOIN service s ON s.id = w.service_id AND NOT s.deleted
                 LEFT JOIN authorization a ON a.service_id = w.service_id AND a.client_id = w.client_id
                 LEFT JOIN tally total ON total.service_id = w.service_id AND total.client_id = 0
                     AND total.status = 0 AND total.departed = 1
                 LEFT JOIN tally came ON came.service_id = w.service_id AND came.client_id = w.client_id
                     AND came.status = 0 AND came.departed = 0
                 LEFT JOIN tally went ON went.service_id = w.service_id AND went.client_id = w.client_id
                     AND went.status = 0 AND went.departed = 1",
                &pairs,
            )
            .await?;
        queue_facts(&rows, self.known_keys(tasks).await?)
    }

    async fn insert_tasks(&mut self, tasks: &[InsertedTask]) -> Result<()> {
        self.wrote = true;
        let mut rows = Vec::with_capacity(tasks.len());
        for InsertedTask { task, seq, state, scheduled, .. } in tasks {
            let callback = task.callback.as_ref().map(serde_json::to_string).transpose().map_err(corrupt)?;
            let trace = task.links.trace.as_ref().map(relais_core::TraceContext::to_text);
            let retry = task.terms.retry.as_ref().map(retry_text).transpose()?;
            rows.push((task, *seq, state, *scheduled, callback, retry, trace));
        }
        let done = INSERT_TASKS.execute(&mut self.tx, &rows, |statement, row| {
            let (task, seq, state, scheduled, callback, retry, trace) = row;
            statement
                .bind(task.task_id.to_string())
                .bind(task.service.0)
                .bind(task.client.0)
                .bind(seq)
                .bind(task.request.get())
                .bind(callback.as_deref())
                .bind(task.correlation_id.as_deref())
                .bind(i16::from(task.terms.priority.level()))
                .bind(scheduled.map_or(0, Timestamp::as_millis))
                .bind(task.terms.head_start)
                .bind(state.status.code())
                .bind(scheduled.map(Timestamp::as_millis))
                .bind(state.due.map(Timestamp::as_millis))
                .bind(state.expires.map(Timestamp::as_millis))
                .bind(state.timer().map(Timestamp::as_millis))
                .bind(task.terms.timeout.map(in_millis))
                .bind(retry.as_deref())
                .bind(task.terms.unique.as_ref().map(|unique| unique.key.as_str()))
                .bind(task.links.parent.map(|parent| parent.to_string()))
                .bind(task.links.batch.map(|batch| batch.to_string()))
                .bind(trace.as_deref())
                .bind(task.links.after.as_ref().map(|after| after.when.code()))
        });
        done.await.map_err(|failure| self.failed(failure))?;
        self.insert_keys(tasks).await?;
        self.insert_unique(tasks).await?;
        let brokered: Vec<_> = tasks
            .iter()
            .filter(|inserted| inserted.brokered)
            .map(|InsertedTask { task, .. }| {
                (
                    task.service.0,
                    task.task_id,
                    in_millis(task.dispatch.as_ref().map_or(Duration::ZERO, |publisher| publisher.held)),
                )
            })
            .collect();
        if brokered.is_empty() {
            return Ok(());
        }
        self.execute(
            concat!(
                "INSERT INTO dispatch (service_id, task_id, due) SELECT value->>0, value->>1, ",
                now!(),
                " + (value->>2) FROM json_each(?1)"
            ),
            &brokered,
        )
        .await
    }

    async fn lock_tasks(&mut self, task_ids: &[TaskId]) -> Result<Locked<LockedTask>> {
        locked(&self.fetch(LOCK_TASKS, task_ids).await?, locked_task)
    }

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

    async fn lock_overdue(&mut self, limit: usize) -> Result<Locked<LockedTask>> {
        let rows = sqlx::query(LOCK_OVERDUE)
            .bind(wide(limit))
            .fetch_all(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        locked(&rows, locked_task)
    }

    async fn next_timer(&mut self) -> Result<Option<Duration>> {
        let millis: Option<i64> = sqlx::query_scalar(concat!(
            "SELECT timer - ",
            now!(),
            " FROM task INDEXED BY task_by_timer WHERE timer > ",
            now!(),
            " ORDER BY timer LIMIT 1"
        ))
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(millis.map(|millis| Duration::from_millis(unsigned(millis))))
    }

    async fn write_tasks(&mut self, tasks: &[WrittenTask]) -> Result<()> {
        self.wrote = true;
        let done =
            WRITE_TASKS.execute(&mut self.tx, tasks, |statement, WrittenTask { id, state, response, failure }| {
                let failure = failure.as_ref();
                statement
                    .bind(id)
                    .bind(state.status.code())
                    .bind(state.attempt)
                    .bind(state.losses)
                    .bind(wide(state.revision))
                    .bind(state.progress)
                    .bind(state.worker_host.as_deref())
                    .bind(state.started.map(Timestamp::as_millis))
                    .bind(state.ended.map(Timestamp::as_millis))
                    .bind(state.lease_until.map(Timestamp::as_millis))
                    .bind(response.as_ref().map(Json::get))
                    .bind(failure.map(|failure| failure.message.as_str()))
                    .bind(failure.and_then(|failure| failure.kind.as_deref()))
                    .bind(failure.and_then(|failure| failure.trace.as_deref()))
                    .bind(state.failures)
                    .bind(state.due.map(Timestamp::as_millis))
                    .bind(state.expires.map(Timestamp::as_millis))
                    .bind(state.deadline.map(Timestamp::as_millis))
                    .bind(state.timer().map(Timestamp::as_millis))
            });
        done.await.map(drop).map_err(|failure| self.failed(failure))
    }

    async fn account(&mut self, accounts: &Accounts, _: &Wakeup) -> Result<()> {
        self.depart(&accounts.departures).await?;
        self.count(&accounts.counts).await
    }

    async fn scan_for_purge(&mut self, scan: &PurgeScan) -> Result<Vec<PurgeCandidate>> {
        let rows = sqlx::query(SCAN_FOR_PURGE)
            .bind(scan.service.0)
            .bind(scan.status.code())
            .bind(scan.after_id)
            .bind(in_millis(scan.finished))
            .bind(in_millis(scan.any))
            .bind(wide(scan.batch))
            .fetch_all(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        purge_candidates(&rows)
    }

    async fn delete_tasks(&mut self, ids: &[i64], status: Status) -> Result<Vec<i64>> {
        let rows = sqlx::query(
            "DELETE FROM task WHERE id IN (SELECT value FROM json_each(?1)) AND status = ?2
                 AND NOT EXISTS (SELECT 1 FROM callback b WHERE b.task = task.id AND b.status = 0)
                 AND NOT (followed AND EXISTS (
                     SELECT 1 FROM dependency d INDEXED BY dependency_open CROSS JOIN task w ON w.id = d.task
                     WHERE d.prerequisite = task.id AND d.outcome IS NULL AND w.status IN (0, 1, 5)
                 ))
             RETURNING id, service_id, client_id, task_id, unique_key, after_when",
        )
        .bind(array(ids)?)
        .bind(status.code())
        .fetch_all(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        let freed = freed_keys(&rows)?;
        if !freed.is_empty() {
            self.free_unique(&freed).await?;
        }
        let waited = waited_for_others(&rows)?;
        if !waited.is_empty() {
            self.execute("DELETE FROM dependency WHERE task IN (SELECT value FROM json_each(?1))", &waited).await?;
        }
        let gone: Vec<i64> = rows.iter().map(|row| row.big("id")).collect::<Result<_>>()?;
        self.execute(
            "DELETE FROM callback_attempt WHERE callback IN (
                 SELECT b.id FROM json_each(?1) AS w CROSS JOIN callback b ON b.task = w.value
             )",
            &gone,
        )
        .await?;
        self.execute("DELETE FROM attempt WHERE task IN (SELECT value FROM json_each(?1))", &gone).await?;
        self.execute("DELETE FROM callback WHERE task IN (SELECT value FROM json_each(?1))", &gone).await?;
        Ok(gone)
    }

    async fn forget_keys(&mut self, older_than: Duration, limit: usize) -> Result<u64> {
        let done = sqlx::query(concat!(
            "DELETE FROM idempotency WHERE rowid IN (SELECT rowid FROM idempotency WHERE created < ",
            now!(),
            " - ?1 ORDER BY created LIMIT ?2)"
        ))
        .bind(in_millis(older_than))
        .bind(wide(limit))
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(done.rows_affected())
    }

    async fn queue_floors(&mut self) -> Result<Vec<(ServiceKey, i64)>> {
        let rows = sqlx::query(QUEUE_FLOORS).fetch_all(&mut *self.tx).await.map_err(|failure| self.failed(failure))?;
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
            "DELETE FROM departure WHERE service_id = ?1 AND level = ?2 AND slot < min(?3, (
                 SELECT slot FROM departure WHERE service_id = ?1 AND level = ?2 ORDER BY slot LIMIT 1
             ) + ?4)",
        )
        .bind(service.0)
        .bind(level)
        .bind(before_slot)
        .bind(wide(limit))
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(done.rows_affected())
    }

    async fn take_turn(&mut self, chore: &str, period: Duration) -> Result<bool> {
        let done = sqlx::query(concat!(
            "INSERT INTO chore (name, begun) VALUES (?1, ",
            now!(),
            ") ON CONFLICT (name) DO UPDATE SET begun = excluded.begun WHERE begun <= excluded.begun - ?2"
        ))
        .bind(chore)
        .bind(in_millis(period))
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(done.rows_affected() > 0)
    }

    async fn declare(&mut self, change: &Change) -> Result<()> {
        let done = declare::declare(&mut self.tx, change).await;
        done.inspect_err(|failure| {
            if matches!(failure, StoreError::Unavailable(_)) {
                self.proof.note(false);
            }
        })
    }

    async fn bump_declared(&mut self) -> Result<()> {
        sqlx::query("UPDATE declared SET version = version + 1")
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    /// There are no other processes.
    async fn commit(self) -> Result<()> {
        let done = self.tx.commit().await;
        if self.wrote || done.is_err() {
            self.proof.note(done.is_ok());
        }
        done.map_err(error)
    }
}

fn keys(services: &[ServiceKey]) -> Vec<i32> {
    services.iter().map(|service| service.0).collect()
}
