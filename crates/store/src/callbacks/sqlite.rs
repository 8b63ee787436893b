//! Callbacks on SQLite.

use std::time::Duration;

use relais_core::{
    CallbackAttempt, CallbackFilter, CallbackLanePage, CallbackOutcome, CallbackRecord, CallbackStatus,
    CallbackVerdict, DueCallback, LaneChange, Resend, TaskId, Timestamp,
};
use sqlx::sqlite::SqliteRow;

use crate::{
    batches::sqlite::batch_columns,
    callbacks::rows::{attempt_of, callback_record, due_batch_callback, due_callback, floor_of, lane_head, settled},
    callbacks::statements::{CallbackQueue, CallbackReader, Floor, NewCallback, callback_columns, past_columns},
    row::{Columns, in_millis, wide},
    session::Result,
    sqlite::session::SqliteSession,
    sqlite::values::array,
    sqlite::{Sqlite, error},
    tasks::sqlite::task_columns,
};

pub(crate) const HELD: &str = concat!(
    "SELECT ",
    now!(),
    " AS now, ",
    callback_columns!("b.due"),
    ", ",
    past_columns!(),
    ", ",
    task_columns!(),
    ", 'null' AS request,
      CASE WHEN b.event = 2 AND b.attempt IS NOT NULL THEN a.response WHEN b.event >= 2 THEN t.response END AS response
      FROM json_each(?1) AS w CROSS JOIN callback b ON b.id = w.value CROSS JOIN task t ON t.id = b.task
      LEFT JOIN attempt a ON a.task = b.task AND a.number = b.attempt
      CROSS JOIN service s ON s.id = t.service_id CROSS JOIN client c ON c.id = t.client_id"
);

pub(crate) const HELD_OF_BATCHES: &str = concat!(
    "SELECT ",
    now!(),
    " AS now, 0 AS service_id, g.batch_id AS task_id, ",
    callback_columns!("b.due"),
    ", ",
    batch_columns!(),
    " FROM json_each(?1) AS w CROSS JOIN callback b ON b.id = w.value CROSS JOIN batch g ON g.batch_id = b.batch_id"
);

pub(crate) const TAKE: &str = concat!(
    "UPDATE callback SET held = 1, tries = tries + 1, attempts = attempts + 1, due = ",
    now!(),
    " + ?3 WHERE id IN (
         SELECT b.id FROM json_each(?1) AS w CROSS JOIN callback b ON b.id IN (
             SELECT id FROM callback WHERE lane = w.value AND due IS NOT NULL AND due <= ",
    now!(),
    " ORDER BY due LIMIT ?2
         ) WHERE NOT EXISTS (SELECT 1 FROM callback_lane p WHERE p.lane = w.value AND p.parked_until > ",
    now!(),
    ")
     ) RETURNING id, batch_id"
);

/// From one lane to the next by the index: the cost is that of the lanes, not of what waits in them.
pub(crate) const LANES: &str = concat!(
    "WITH RECURSIVE lanes (lane) AS (
         SELECT (SELECT lane FROM callback WHERE due IS NOT NULL AND lane > ?1 ORDER BY lane LIMIT 1)
         UNION ALL
         SELECT (SELECT lane FROM callback WHERE due IS NOT NULL AND lane > l.lane ORDER BY lane LIMIT 1)
         FROM lanes l WHERE l.lane IS NOT NULL
         LIMIT ?2
     )
     SELECT l.lane, (SELECT min(due) FROM callback WHERE due IS NOT NULL AND lane = l.lane) AS due, p.parked_until, ",
    now!(),
    " AS now FROM lanes l LEFT JOIN callback_lane p ON p.lane = l.lane WHERE l.lane IS NOT NULL"
);

impl SqliteSession {
    /// That callbacks were given up is kept like a try, so that whoever looks finds the reason.
    async fn say_why(&mut self, given_up: &[SqliteRow], why: &str) -> Result<()> {
        let rows: Vec<_> =
            given_up.iter().map(|row| Ok((row.big("id")?, row.int("attempts")?, why))).collect::<Result<_>>()?;
        self.execute(
            concat!(
                "INSERT INTO callback_attempt (callback, number, at, duration_ms, error)
                 SELECT value->>0, value->>1, ",
                now!(),
                ", 0, value->>2 FROM json_each(?1) WHERE true ON CONFLICT DO NOTHING"
            ),
            &rows,
        )
        .await
    }
}

impl CallbackQueue for SqliteSession {
    async fn supersede_progress(&mut self, tasks: &[i64]) -> Result<Vec<(i64, Option<Timestamp>)>> {
        let rows = self
            .fetch(
                "DELETE FROM callback WHERE task IN (SELECT value FROM json_each(?1)) AND event = 1 AND status = 0
                     AND NOT held RETURNING id, task, due",
                tasks,
            )
            .await?;
        let gone: Vec<i64> = rows.iter().map(|row| row.big("id")).collect::<Result<_>>()?;
        self.execute("DELETE FROM callback_attempt WHERE callback IN (SELECT value FROM json_each(?1))", &gone).await?;
        rows.iter().map(|row| Ok((row.big("task")?, row.moment_if_any("due")?))).collect()
    }

    async fn insert_callbacks(&mut self, callbacks: &[NewCallback]) -> Result<()> {
        let rows: Vec<_> = callbacks
            .iter()
            .map(|callback| {
                (
                    (callback.task, callback.service.0, callback.client.0, callback.event.code()),
                    (callback.revision, callback.lane, callback.chain),
                    (callback.due.map(Timestamp::as_millis), callback.started.map(Timestamp::as_millis)),
                    callback.progress,
                )
            })
            .collect();
        self.execute(
            concat!(
                "INSERT INTO callback (task, service_id, client_id, event, revision, lane, chain, status, ended, due, started,
                                       progress, created)
                 SELECT task, service_id, client_id, event, revision, lane, chain, iif(gone, 2, 0), iif(gone, now, NULL),
                        iif(gone OR waits, NULL, due), started, progress, now
                 FROM (
                     SELECT w.key AS place, w.value->>0->>0 AS task, w.value->>0->>1 AS service_id,
                            w.value->>0->>2 AS client_id, w.value->>0->>3 AS event, w.value->>1->>0 AS revision,
                            w.value->>1->>1 AS lane, w.value->>1->>2 AS chain, w.value->>2->>0 AS due,
                            w.value->>2->>1 AS started, w.value->>3 AS progress,
                            w.value->>1->>2 AND EXISTS (
                                SELECT 1 FROM callback c WHERE c.task = w.value->>0->>0 AND c.gone
                            ) AS gone,
                            w.value->>1->>2 AND EXISTS (
                                SELECT 1 FROM callback c WHERE c.task = w.value->>0->>0 AND c.status = 0
                            ) AS waits, ",
                now!(),
                " AS now FROM json_each(?1) AS w
                 ) ORDER BY place"
            ),
            &rows,
        )
        .await
    }

    async fn claim_callbacks(&mut self, lanes: &[i64], each: usize, lease: Duration) -> Result<Vec<DueCallback>> {
        let rows = sqlx::query(TAKE)
            .bind(array(lanes)?)
            .bind(wide(each))
            .bind(in_millis(lease))
            .fetch_all(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        let (mut of_tasks, mut of_batches) = (Vec::new(), Vec::new());
        for row in &rows {
            let of = if row.task_id_if_any("batch_id")?.is_some() { &mut of_batches } else { &mut of_tasks };
            of.push(row.big("id")?);
        }
        of_tasks.sort_unstable();
        let mut held: Vec<DueCallback> =
            self.fetch(HELD, &of_tasks).await?.iter().map(due_callback).collect::<Result<_>>()?;
        if !of_batches.is_empty() {
            let rows = self.fetch(HELD_OF_BATCHES, &of_batches).await?;
            held.extend(rows.iter().map(due_batch_callback).collect::<Result<Vec<_>>>()?);
        }
        Ok(held)
    }

    /// Nobody else writes.
    async fn lock_chains(&mut self, _: &[i64]) -> Result<()> {
        Ok(())
    }

    async fn complete_callbacks(&mut self, outcomes: &[CallbackOutcome]) -> Result<Vec<i64>> {
        let rows: Vec<_> = outcomes
            .iter()
            .map(|one| {
                let settled = settled(one.verdict);
                let untried = i16::from(one.tried.is_none());
                let gone = one.verdict == CallbackVerdict::Gone;
                (one.row, one.attempt, settled.status.code(), in_millis(settled.wait), untried, gone)
            })
            .collect();
        let settled = self
            .fetch(
                concat!(
                    "UPDATE callback
                     SET status = w.value->>2, held = 0, tries = tries - (w.value->>4),
                         due = iif(w.value->>2 = 0, ",
                    now!(),
                    " + (w.value->>3), NULL), ended = iif(w.value->>2 <> 0, ",
                    now!(),
                    ", NULL), gone = w.value->>5
                     FROM json_each(?1) AS w
                     WHERE callback.id = w.value->>0 AND callback.attempts = w.value->>1 AND callback.held
                     RETURNING id"
                ),
                &rows,
            )
            .await?;
        let tried: Vec<_> = outcomes
            .iter()
            .filter_map(|one| {
                let tried = one.tried.as_ref()?;
                let duration = in_millis(tried.duration);
                Some((one.row, tried.number, tried.at.as_millis(), duration, tried.status, &tried.error, &tried.answer))
            })
            .collect();
        self.execute(
            "INSERT INTO callback_attempt (callback, number, at, duration_ms, http_status, error, answer)
             SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6 FROM json_each(?1)
             WHERE true ON CONFLICT DO NOTHING",
            &tried,
        )
        .await?;
        settled.iter().map(|row| row.big("id")).collect()
    }

    async fn release_next(&mut self, callbacks: &[i64], progress_after: Duration) -> Result<Vec<i64>> {
        let rows = sqlx::query(concat!(
            "UPDATE callback SET due = max(",
            now!(),
            ", iif(event = 1, created + ?2, 0)) WHERE id IN (
                         SELECT (SELECT n.id FROM callback n WHERE n.task = b.task AND n.status = 0 ORDER BY n.id LIMIT 1)
                         FROM json_each(?1) AS w CROSS JOIN callback b ON b.id = w.value WHERE b.chain
                     ) AND due IS NULL RETURNING lane"
        ))
        .bind(array(callbacks)?)
        .bind(in_millis(progress_after))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        rows.iter().map(|row| row.big("lane")).collect()
    }

    async fn release_heads(&mut self, tasks: &[i64]) -> Result<()> {
        self.execute(
            concat!(
                "UPDATE callback SET due = ",
                now!(),
                " WHERE id IN (
                     SELECT (SELECT n.id FROM callback n WHERE n.task = w.value AND n.status = 0 ORDER BY n.id LIMIT 1)
                     FROM json_each(?1) AS w
                 ) AND due IS NULL"
            ),
            tasks,
        )
        .await
    }

    async fn stop_chains(&mut self, callbacks: &[i64], why: &str) -> Result<()> {
        let statement = concat!(
            "UPDATE callback SET status = 2, due = NULL, held = 0, attempts = attempts + 1, ended = ",
            now!(),
            " WHERE task IN (SELECT b.task FROM json_each(?1) AS w CROSS JOIN callback b ON b.id = w.value) AND status = 0
             RETURNING id, attempts"
        );
        let rows = self.fetch(statement, callbacks).await?;
        self.say_why(&rows, why).await
    }

    async fn change_lanes(&mut self, lanes: &[(i64, LaneChange)]) -> Result<()> {
        for (lane, change) in lanes {
            let query = match change {
                LaneChange::Park { first, most } => sqlx::query(concat!(
                    // Those who were on their way when it was parked say nothing new.
                    "INSERT INTO callback_lane (lane, parks, parked_until) VALUES (?1, 1, ",
                    now!(),
                    " + ?2) ON CONFLICT (lane) DO UPDATE SET parks = parks + 1, parked_until = ",
                    now!(),
                    " + min(?3, ?2 << min(parks, 30)) WHERE parked_until <= ",
                    now!()
                ))
                .bind(lane)
                .bind(in_millis(*first))
                .bind(in_millis(*most)),
                LaneChange::Wait(time) => sqlx::query(concat!(
                    "INSERT INTO callback_lane (lane, parks, parked_until) VALUES (?1, 0, ",
                    now!(),
                    " + ?2) ON CONFLICT (lane) DO UPDATE SET parked_until = max(parked_until, excluded.parked_until)"
                ))
                .bind(lane)
                .bind(in_millis(*time)),
                LaneChange::Try => sqlx::query(concat!(
                    "UPDATE callback_lane SET parked_until = min(parked_until, ",
                    now!(),
                    ") WHERE lane = ?1"
                ))
                .bind(lane),
                LaneChange::Open => sqlx::query("DELETE FROM callback_lane WHERE lane = ?1").bind(lane),
            };
            query.execute(&mut *self.tx).await.map_err(|failure| self.failed(failure))?;
        }
        Ok(())
    }

    async fn forget_lanes(&mut self, older_than: Duration) -> Result<()> {
        sqlx::query(concat!(
            "DELETE FROM callback_lane WHERE parked_until < ",
            now!(),
            " - ?1 AND NOT EXISTS (SELECT 1 FROM callback b WHERE b.lane = callback_lane.lane AND b.due IS NOT NULL)"
        ))
        .bind(in_millis(older_than))
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn overdue(&mut self, lane: i64, older_than: Duration, limit: usize) -> Result<Vec<i64>> {
        sqlx::query_scalar(concat!(
            "SELECT id FROM callback WHERE lane = ?1 AND due IS NOT NULL AND due < ",
            now!(),
            " - ?2 ORDER BY due LIMIT ?3"
        ))
        .bind(lane)
        .bind(in_millis(older_than))
        .bind(wide(limit))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))
    }

    async fn expire_callbacks(&mut self, callbacks: &[i64], why: &str) -> Result<()> {
        let statement = concat!(
            "UPDATE callback SET status = 2, due = NULL, held = 0, attempts = attempts + 1, ended = ",
            now!(),
            " WHERE id IN (SELECT value FROM json_each(?1)) AND due IS NOT NULL AND due <= ",
            now!(),
            " RETURNING id, attempts"
        );
        let rows = self.fetch(statement, callbacks).await?;
        self.say_why(&rows, why).await
    }

    async fn resend_callbacks(&mut self, resend: &Resend, limit: usize) -> Result<Vec<(i64, i64)>> {
        let query = match resend {
            // No task and no batch have the same name.
            Resend::One(id) => sqlx::query(concat!(
                "UPDATE callback SET status = 0, due = ",
                now!(),
                ", tries = 0, ended = NULL WHERE id IN (
                     SELECT b.id FROM (
                         SELECT n.* FROM task t CROSS JOIN callback n ON n.task = t.id WHERE t.task_id = ?1
                         UNION ALL SELECT n.* FROM callback n WHERE n.batch_id = ?1
                     ) b WHERE b.revision = ?2 AND NOT b.held
                 ) RETURNING id, lane"
            ))
            .bind(id.task_id.to_string())
            .bind(wide(id.revision)),
            Resend::Failed { since, service, client, after } => sqlx::query(concat!(
                "UPDATE callback SET status = 0, due = ",
                now!(),
                ", tries = 0, ended = NULL WHERE id IN (
                     SELECT b.id FROM callback b
                     WHERE b.status = 2 AND b.id > ?1 AND b.ended >= ?2 AND (?3 IS NULL OR b.service_id = ?3)
                       AND (?4 IS NULL OR b.client_id = ?4) ORDER BY b.id LIMIT ?5
                 ) RETURNING id, lane"
            ))
            .bind(after)
            .bind(since.as_millis())
            .bind(service.map(|service| service.0))
            .bind(client.map(|client| client.0))
            .bind(wide(limit)),
        };
        let rows = query.fetch_all(&mut *self.tx).await.map_err(|failure| self.failed(failure))?;
        let mut found: Vec<(i64, i64)> =
            rows.iter().map(|row| Ok((row.big("id")?, row.big("lane")?))).collect::<Result<_>>()?;
        found.sort_unstable();
        Ok(found)
    }
}

pub(crate) const OF_TASK: &str = concat!(
    "SELECT ",
    callback_columns!(
        "CASE WHEN b.due IS NOT NULL THEN
             max(b.due, coalesce((SELECT parked_until FROM callback_lane p WHERE p.lane = b.lane), 0)) END"
    ),
    ", coalesce(t.task_id, g.batch_id) AS task_id, b.service_id, b.client_id,
       coalesce(t.callback, g.callback) AS callback
     FROM callback b INDEXED BY callback_by_task LEFT JOIN task t ON t.id = b.task
     LEFT JOIN batch g ON g.batch_id = b.batch_id
     WHERE (t.id IS NOT NULL OR g.batch_id IS NOT NULL) AND b.id < ?1 AND b.id >= ?2
       AND (?3 IS NULL OR b.status = ?3) AND (?4 IS NULL OR b.service_id = ?4)
       AND (?5 IS NULL OR b.client_id = ?5) AND (?6 IS NULL OR b.created >= ?6)
       AND (?9 IS NULL OR b.revision = ?9) AND b.task = (SELECT id FROM task WHERE task_id = ?8)
     ORDER BY b.id DESC LIMIT ?7"
);

pub(crate) const OF_BATCH: &str = concat!(
    "SELECT ",
    callback_columns!(
        "CASE WHEN b.due IS NOT NULL THEN
             max(b.due, coalesce((SELECT parked_until FROM callback_lane p WHERE p.lane = b.lane), 0)) END"
    ),
    ", coalesce(t.task_id, g.batch_id) AS task_id, b.service_id, b.client_id,
       coalesce(t.callback, g.callback) AS callback
     FROM callback b INDEXED BY callback_by_batch LEFT JOIN task t ON t.id = b.task
     LEFT JOIN batch g ON g.batch_id = b.batch_id
     WHERE (t.id IS NOT NULL OR g.batch_id IS NOT NULL) AND b.id < ?1 AND b.id >= ?2
       AND (?3 IS NULL OR b.status = ?3) AND (?4 IS NULL OR b.service_id = ?4)
       AND (?5 IS NULL OR b.client_id = ?5) AND (?6 IS NULL OR b.created >= ?6)
       AND (?9 IS NULL OR b.revision = ?9) AND b.batch_id = ?8
     ORDER BY b.id DESC LIMIT ?7"
);

pub(crate) const FAILED: &str = concat!(
    "SELECT ",
    callback_columns!(
        "CASE WHEN b.due IS NOT NULL THEN
             max(b.due, coalesce((SELECT parked_until FROM callback_lane p WHERE p.lane = b.lane), 0)) END"
    ),
    ", coalesce(t.task_id, g.batch_id) AS task_id, b.service_id, b.client_id,
       coalesce(t.callback, g.callback) AS callback
     FROM callback b INDEXED BY callback_failed LEFT JOIN task t ON t.id = b.task
     LEFT JOIN batch g ON g.batch_id = b.batch_id
     WHERE (t.id IS NOT NULL OR g.batch_id IS NOT NULL) AND b.id < ?1 AND b.id >= ?2
       AND (?3 IS NULL OR b.status = ?3) AND (?4 IS NULL OR b.service_id = ?4)
       AND (?5 IS NULL OR b.client_id = ?5) AND (?6 IS NULL OR b.created >= ?6)
       AND (?9 IS NULL OR b.revision = ?9) AND b.status = 2 AND ?8 IS NULL
     ORDER BY b.id DESC LIMIT ?7"
);

pub(crate) const ANY: &str = concat!(
    "SELECT ",
    callback_columns!(
        "CASE WHEN b.due IS NOT NULL THEN
             max(b.due, coalesce((SELECT parked_until FROM callback_lane p WHERE p.lane = b.lane), 0)) END"
    ),
    ", coalesce(t.task_id, g.batch_id) AS task_id, b.service_id, b.client_id,
       coalesce(t.callback, g.callback) AS callback
     FROM callback b LEFT JOIN task t ON t.id = b.task
     LEFT JOIN batch g ON g.batch_id = b.batch_id
     WHERE (t.id IS NOT NULL OR g.batch_id IS NOT NULL) AND b.id < ?1 AND b.id >= ?2
       AND (?3 IS NULL OR b.status = ?3) AND (?4 IS NULL OR b.service_id = ?4)
       AND (?5 IS NULL OR b.client_id = ?5) AND (?6 IS NULL OR b.created >= ?6)
       AND (?9 IS NULL OR b.revision = ?9) AND ?8 IS NULL
     ORDER BY b.id DESC LIMIT ?7"
);

impl CallbackReader for Sqlite {
    async fn list_callback_lanes(&self, after: Option<i64>, limit: usize) -> Result<CallbackLanePage> {
        let rows = sqlx::query(LANES)
            .bind(after.unwrap_or(i64::MIN))
            .bind(wide(limit))
            .fetch_all(&self.read)
            .await
            .map_err(error)?;
        let now = rows.last().map(|row| row.moment("now")).transpose()?;
        Ok(CallbackLanePage { heads: rows.iter().map(lane_head).collect::<Result<_>>()?, now })
    }

    async fn callback_floor(&self, filter: &CallbackFilter, look: usize) -> Result<Option<Floor>> {
        let failed = filter.status == Some(CallbackStatus::Failure);
        let row = sqlx::query(if failed {
            "SELECT id, created, count(*) OVER () AS looked
             FROM (SELECT id, created FROM callback INDEXED BY callback_failed
                   WHERE status = 2 AND id < ?1 ORDER BY id DESC LIMIT ?2) ORDER BY id LIMIT 1"
        } else {
            "SELECT id, created, count(*) OVER () AS looked
             FROM (SELECT id, created FROM callback WHERE id < ?1 ORDER BY id DESC LIMIT ?2) ORDER BY id LIMIT 1"
        })
        .bind(filter.before.unwrap_or(i64::MAX))
        .bind(wide(look))
        .fetch_optional(&self.read)
        .await
        .map_err(error)?;
        row.as_ref().map(floor_of).transpose()
    }

    async fn list_callbacks(&self, filter: &CallbackFilter, floor: i64) -> Result<Vec<CallbackRecord>> {
        let failed = filter.status == Some(CallbackStatus::Failure);
        match filter.task {
            Some(_) => {
                let found = self.callbacks(OF_TASK, filter, floor).await?;
                // No task and no batch have the same name.
                if found.is_empty() { self.callbacks(OF_BATCH, filter, floor).await } else { Ok(found) }
            }
            None if failed => self.callbacks(FAILED, filter, floor).await,
            None => self.callbacks(ANY, filter, floor).await,
        }
    }

    async fn list_callback_attempts(&self, rows: &[i64]) -> Result<Vec<(i64, CallbackAttempt)>> {
        let rows = sqlx::query(
            "SELECT a.* FROM json_each(?1) AS w CROSS JOIN callback_attempt a ON a.callback = w.value
             ORDER BY a.callback, a.number",
        )
        .bind(array(rows)?)
        .fetch_all(&self.read)
        .await
        .map_err(error)?;
        rows.iter().map(attempt_of).collect()
    }
}

impl Sqlite {
    async fn callbacks(
        &self,
        statement: &'static str,
        filter: &CallbackFilter,
        floor: i64,
    ) -> Result<Vec<CallbackRecord>> {
        let rows = sqlx::query(statement)
            .bind(filter.before.unwrap_or(i64::MAX))
            .bind(floor)
            .bind(filter.status.map(CallbackStatus::code))
            .bind(filter.service.map(|service| service.0))
            .bind(filter.client.map(|client| client.0))
            .bind(filter.from.map(Timestamp::as_millis))
            .bind(wide(filter.limit))
            .bind(filter.task.as_ref().map(TaskId::to_string))
            .bind(filter.revision.map(wide))
            .fetch_all(&self.read)
            .await
            .map_err(error)?;
        rows.iter().map(callback_record).collect()
    }
}
