//! Submissions on SQLite. They are not done in one statement: one transaction writes at a time, so nothing is gained.

use std::time::Duration;

use relais_core::{NewTask, ServiceKey, Timestamp};

use crate::{
    history::statements::History as _,
    row::{corrupt, in_millis, retry_text, wide},
    session::Result,
    sqlite::Sqlite,
    sqlite::session::SqliteSession,
    sqlite::values::Values,
    submit::statements::{
        InsertedTask, KnownKey, LockedQueue, QueueFacts, SubmitRows, UnlimitedSubmit, known_key, locked_queue,
        queue_facts,
    },
};

pub(crate) const INSERT_TASKS: Values = Values {
    before: "INSERT INTO task (task_id, service_id, client_id, seq, request, callback, correlation_id, priority, rank, status,
                               scheduled, due, expires, timer, timeout_ms, retry, unique_key, parent_id, batch_id, trace,
                               after_when, submitted) VALUES ",
    row: concat!(
        "(?, ?, ?, ?, ?, ?, ?, ?, max(",
        now!(),
        ", ?) - ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ",
        now!(),
        ")"
    ),
    after: "",
};

pub(crate) const INSERT_KEYS: Values = Values {
    before: "INSERT INTO idempotency (service_id, client_id, key, fingerprint, task_id, position, created) VALUES ",
    row: concat!("(?, ?, ?, ?, ?, ?, ", now!(), ")"),
    after: "",
};

impl UnlimitedSubmit for Sqlite {}

impl SubmitRows for SqliteSession {
    async fn lock_queues(&mut self, services: &[ServiceKey]) -> Result<Vec<LockedQueue>> {
        let rows = self
            .fetch(
                concat!(
                    "SELECT a.service_id, a.n, s.transport = 1 AS brokered, ",
                    now!(),
                    " AS now FROM json_each(?1) AS w
                     CROSS JOIN counter a ON a.service_id = w.value AND a.client_id = 0 AND a.status = 0 AND a.departed = 0
                     CROSS JOIN service s ON s.id = a.service_id"
                ),
                &services.iter().map(|service| service.0).collect::<Vec<_>>(),
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
                        (SELECT coalesce(sum(CASE WHEN departed THEN -n ELSE n END), 0) FROM counter
                         WHERE service_id = w.service_id AND client_id = 0 AND status = 5) AS waiting,
                        (SELECT coalesce(sum(CASE WHEN departed THEN -n ELSE n END), 0) FROM counter
                         WHERE service_id = w.service_id AND client_id = w.client_id AND status = 5) AS share_waiting
                 FROM (SELECT value->>0 AS service_id, value->>1 AS client_id FROM json_each(?1)) AS w
                 JOIN service s ON s.id = w.service_id AND NOT s.deleted
                 LEFT JOIN authorization a ON a.service_id = w.service_id AND a.client_id = w.client_id
                 LEFT JOIN counter total ON total.service_id = w.service_id AND total.client_id = 0
                     AND total.status = 0 AND total.departed = 1
                 LEFT JOIN counter came ON came.service_id = w.service_id AND came.client_id = w.client_id
                     AND came.status = 0 AND came.departed = 0
                 LEFT JOIN counter went ON went.service_id = w.service_id AND went.client_id = w.client_id
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
}

impl SqliteSession {
    /// The idempotency keys of the batch that were used before. Most batches have none; then nothing is asked.
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
}
