//! Callbacks on PostgreSQL.

use std::time::Duration;

use relais_core::{
    CallbackAttempt, CallbackFilter, CallbackLanePage, CallbackOutcome, CallbackRecord, CallbackStatus,
    CallbackVerdict, DueCallback, LaneChange, Resend, Timestamp,
};

use crate::{
    batches::postgres::batch_columns,
    callbacks::rows::{attempt_of, callback_record, due_batch_callback, due_callback, floor_of, lane_head, settled},
    callbacks::statements::{CallbackQueue, CallbackReader, Floor, NewCallback, callback_columns, past_columns},
    postgres::session::{PgSession, column},
    postgres::{Postgres, error, to_sql},
    row::{Columns, in_millis, signed, wide},
    session::Result,
    tasks::postgres::task_columns,
};

impl CallbackQueue for PgSession {
    async fn supersede_progress(&mut self, tasks: &[i64]) -> Result<Vec<(i64, Option<Timestamp>)>> {
        let rows = sqlx::query(
            "WITH gone AS (
                 DELETE FROM relais.callback WHERE task = ANY($1) AND event = 1 AND status = 0 AND NOT held
                 RETURNING id, task, due
             ), forgotten AS (
                 DELETE FROM relais.callback_attempt WHERE callback = ANY(ARRAY(SELECT id FROM gone))
             )
             SELECT task, due FROM gone",
        )
        .bind(tasks)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        rows.iter().map(|row| Ok((row.big("task")?, row.moment_if_any("due")?))).collect()
    }

    async fn insert_callbacks(&mut self, callbacks: &[NewCallback]) -> Result<()> {
        sqlx::query(
            "INSERT INTO relais.callback (task, service_id, client_id, event, revision, lane, chain, status, ended, due,
                                          started, progress)
             SELECT w.task, w.service_id, w.client_id, w.event, w.revision, w.lane, w.chain,
                    CASE WHEN h.gone THEN 2 ELSE 0 END, CASE WHEN h.gone THEN clock_timestamp() END,
                    CASE WHEN NOT h.gone AND NOT h.waits THEN w.due END, w.started, w.progress
             FROM unnest($1::bigint[], $2::integer[], $3::integer[], $4::smallint[], $5::bigint[], $6::bigint[],
                         $7::boolean[], $8::timestamptz[], $9::timestamptz[], $10::double precision[])
                  WITH ORDINALITY
                  AS w (task, service_id, client_id, event, revision, lane, chain, due, started, progress, place)
             CROSS JOIN LATERAL (
                 SELECT w.chain AND EXISTS (SELECT 1 FROM relais.callback c WHERE c.task = w.task AND c.gone) AS gone,
                        w.chain AND EXISTS (SELECT 1 FROM relais.callback c WHERE c.task = w.task AND c.status = 0) AS waits
             ) h
             ORDER BY w.place",
        )
        .bind(column(callbacks, |callback| callback.task))
        .bind(column(callbacks, |callback| callback.service.0))
        .bind(column(callbacks, |callback| callback.client.0))
        .bind(column(callbacks, |callback| callback.event.code()))
        .bind(column(callbacks, |callback| wide(callback.revision)))
        .bind(column(callbacks, |callback| callback.lane))
        .bind(column(callbacks, |callback| callback.chain))
        .bind(column(callbacks, |callback| callback.due.map(to_sql)))
        .bind(column(callbacks, |callback| callback.started.map(to_sql)))
        .bind(column(callbacks, |callback| callback.progress))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn claim_callbacks(&mut self, lanes: &[i64], each: usize, lease: Duration) -> Result<Vec<DueCallback>> {
        let rows = sqlx::query(concat!(
            "WITH taken AS (
                 SELECT d.id FROM unnest($1::bigint[]) AS w (lane)
                 LEFT JOIN relais.callback_lane p ON p.lane = w.lane AND p.parked_until > statement_timestamp()
                 CROSS JOIN LATERAL (
                     SELECT id FROM relais.callback
                     WHERE lane = w.lane AND due IS NOT NULL AND due <= statement_timestamp()
                     ORDER BY due LIMIT $2 FOR UPDATE SKIP LOCKED
                 ) d
                 WHERE p.lane IS NULL
             ), b AS (
                 UPDATE relais.callback
                 SET held = true, tries = tries + 1, attempts = attempts + 1,
                     due = clock_timestamp() + make_interval(secs => $3)
                 WHERE id = ANY(ARRAY(SELECT id FROM taken))
                 RETURNING *
             )
             SELECT clock_timestamp() AS now, b.batch_id AS cb_batch, ",
            callback_columns!("b.due"),
            ", ",
            past_columns!(),
            ", ",
            task_columns!(),
            // Fenced, so that it is looked up row by row whatever is known of the table when this is planned.
            ", 'null'::text AS request,
              CASE WHEN b.event = 2 AND b.attempt IS NOT NULL THEN a.response WHEN b.event >= 2 THEN t.response END::text
                  AS response
              FROM b LEFT JOIN LATERAL (SELECT * FROM relais.task WHERE id = b.task OFFSET 0) t ON true
              LEFT JOIN LATERAL (SELECT * FROM relais.attempt WHERE task = b.task AND number = b.attempt OFFSET 0) a ON true
              LEFT JOIN relais.service s ON s.id = t.service_id LEFT JOIN relais.client c ON c.id = t.client_id
              WHERE t.id IS NOT NULL OR b.batch_id IS NOT NULL
              ORDER BY b.id"
        ))
        .bind(lanes)
        .bind(wide(each))
        .bind(lease.as_secs_f64())
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        let (of_tasks, of_batches): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| matches!(row.task_id_if_any("cb_batch"), Ok(None)));
        let mut held: Vec<DueCallback> = of_tasks.iter().map(due_callback).collect::<Result<_>>()?;
        if !of_batches.is_empty() {
            let ids = of_batches.iter().map(|row| row.big("cb_id")).collect::<Result<Vec<_>>>()?;
            let rows = sqlx::query(concat!(
                "SELECT clock_timestamp() AS now, 0 AS service_id, g.batch_id AS task_id, ",
                callback_columns!("b.due"),
                ", ",
                batch_columns!(),
                " FROM relais.callback b JOIN relais.batch g ON g.batch_id = b.batch_id WHERE b.id = ANY($1)"
            ))
            .bind(ids)
            .fetch_all(&mut *self.tx)
            .await
            .map_err(error)?;
            held.extend(rows.iter().map(due_batch_callback).collect::<Result<Vec<_>>>()?);
        }
        Ok(held)
    }

    async fn lock_chains(&mut self, callbacks: &[i64]) -> Result<()> {
        sqlx::query(
            "SELECT 1 FROM relais.task WHERE id = ANY(ARRAY(SELECT task FROM relais.callback WHERE id = ANY($1)))
             ORDER BY id + 0 FOR NO KEY UPDATE",
        )
        .bind(callbacks)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn complete_callbacks(&mut self, outcomes: &[CallbackOutcome]) -> Result<Vec<i64>> {
        let tried: Vec<_> = outcomes.iter().filter_map(|one| Some((one.row, one.tried.as_ref()?))).collect();
        sqlx::query_scalar(
            "WITH settled AS (
                 UPDATE relais.callback b
                 SET status = w.status, held = false, tries = b.tries - w.untried,
                     due = CASE WHEN w.status = 0 THEN clock_timestamp() + make_interval(secs => w.wait_ms / 1000.0) END,
                     ended = CASE WHEN w.status <> 0 THEN clock_timestamp() END, gone = w.gone
                 FROM ROWS FROM (
                     unnest($1::bigint[], $2::integer[], $3::smallint[], $4::bigint[], $5::integer[], $13::boolean[]),
                     generate_series(1, cardinality($1))
                 ) AS w (id, attempt, status, wait_ms, untried, gone)
                 WHERE b.id = ANY($1) AND b.id = w.id AND b.attempts = w.attempt AND b.held
                 RETURNING b.id
             ), kept AS (
                 INSERT INTO relais.callback_attempt (callback, number, at, duration_ms, http_status, error, answer)
                 SELECT * FROM unnest($6::bigint[], $7::integer[], $8::timestamptz[], $9::bigint[], $10::integer[],
                                      $11::text[], $12::text[])
                 ON CONFLICT DO NOTHING
             )
             SELECT id FROM settled",
        )
        .bind(column(outcomes, |one| one.row))
        .bind(column(outcomes, |one| signed(one.attempt)))
        .bind(column(outcomes, |one| settled(one.verdict).status.code()))
        .bind(column(outcomes, |one| in_millis(settled(one.verdict).wait)))
        .bind(column(outcomes, |one| i32::from(one.tried.is_none())))
        .bind(column(&tried, |(row, _)| *row))
        .bind(column(&tried, |(_, attempt)| signed(attempt.number)))
        .bind(column(&tried, |(_, attempt)| to_sql(attempt.at)))
        .bind(column(&tried, |(_, attempt)| in_millis(attempt.duration)))
        .bind(column(&tried, |(_, attempt)| attempt.status.map(i32::from)))
        .bind(column(&tried, |(_, attempt)| attempt.error.as_deref()))
        .bind(column(&tried, |(_, attempt)| attempt.answer.as_deref()))
        .bind(column(outcomes, |one| one.verdict == CallbackVerdict::Gone))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)
    }

    async fn release_next(&mut self, callbacks: &[i64], progress_after: Duration) -> Result<Vec<i64>> {
        sqlx::query_scalar(
            "UPDATE relais.callback
             SET due = CASE event WHEN 1 THEN greatest(clock_timestamp(), created + make_interval(secs => $2))
                                  ELSE clock_timestamp() END
             WHERE id = ANY(ARRAY(
                 SELECT (SELECT n.id FROM relais.callback n WHERE n.task = b.task AND n.status = 0 ORDER BY n.id LIMIT 1)
                 FROM relais.callback b WHERE b.id = ANY($1) AND b.chain
             )) AND due IS NULL
             RETURNING lane",
        )
        .bind(callbacks)
        .bind(progress_after.as_secs_f64())
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)
    }

    async fn release_heads(&mut self, tasks: &[i64]) -> Result<()> {
        sqlx::query(
            "UPDATE relais.callback SET due = clock_timestamp()
             WHERE id = ANY(ARRAY(
                 SELECT (SELECT n.id FROM relais.callback n WHERE n.task = w.task AND n.status = 0 ORDER BY n.id LIMIT 1)
                 FROM unnest($1::bigint[]) AS w (task)
             )) AND due IS NULL",
        )
        .bind(tasks)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn stop_chains(&mut self, callbacks: &[i64], why: &str) -> Result<()> {
        sqlx::query(
            // That they are given up is kept like a try, so that whoever looks finds the reason.
            "WITH gone AS (
                 UPDATE relais.callback
                 SET status = 2, due = NULL, held = false, ended = clock_timestamp(), attempts = attempts + 1
                 WHERE task = ANY(ARRAY(SELECT task FROM relais.callback WHERE id = ANY($1))) AND status = 0
                 RETURNING id, attempts
             )
             INSERT INTO relais.callback_attempt (callback, number, at, duration_ms, error)
             SELECT id, attempts, clock_timestamp(), 0, $2 FROM gone ON CONFLICT DO NOTHING",
        )
        .bind(callbacks)
        .bind(why)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn change_lanes(&mut self, lanes: &[(i64, LaneChange)]) -> Result<()> {
        for (lane, change) in lanes {
            match change {
                LaneChange::Park { first, most } => sqlx::query(
                    // Those who were on their way when it was parked say nothing new.
                    "INSERT INTO relais.callback_lane AS l (lane, parks, parked_until)
                     VALUES ($1, 1, clock_timestamp() + make_interval(secs => $2))
                     ON CONFLICT (lane) DO UPDATE SET parks = l.parks + 1,
                         parked_until = clock_timestamp() + make_interval(secs => least($3, $2 * 2 ^ least(l.parks, 30)))
                     WHERE l.parked_until <= clock_timestamp()",
                )
                .bind(lane)
                .bind(first.as_secs_f64())
                .bind(most.as_secs_f64()),
                LaneChange::Wait(time) => sqlx::query(
                    "INSERT INTO relais.callback_lane AS l (lane, parks, parked_until)
                     VALUES ($1, 0, clock_timestamp() + make_interval(secs => $2))
                     ON CONFLICT (lane) DO UPDATE SET parked_until = greatest(l.parked_until, excluded.parked_until)",
                )
                .bind(lane)
                .bind(time.as_secs_f64()),
                LaneChange::Try => sqlx::query(
                    "UPDATE relais.callback_lane SET parked_until = clock_timestamp() WHERE lane = $1 AND parked_until > clock_timestamp()",
                )
                .bind(lane),
                LaneChange::Open => sqlx::query("DELETE FROM relais.callback_lane WHERE lane = $1").bind(lane),
            }
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        }
        Ok(())
    }

    async fn forget_lanes(&mut self, older_than: Duration) -> Result<()> {
        sqlx::query(
            "DELETE FROM relais.callback_lane p WHERE p.parked_until < now() - make_interval(secs => $1)
                 AND NOT EXISTS (SELECT 1 FROM relais.callback b WHERE b.lane = p.lane AND b.due IS NOT NULL)",
        )
        .bind(older_than.as_secs_f64())
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn overdue(&mut self, lane: i64, older_than: Duration, limit: usize) -> Result<Vec<i64>> {
        sqlx::query_scalar(
            "SELECT id FROM relais.callback
             WHERE lane = $1 AND due IS NOT NULL AND due < statement_timestamp() - make_interval(secs => $2)
             ORDER BY due LIMIT $3",
        )
        .bind(lane)
        .bind(older_than.as_secs_f64())
        .bind(wide(limit))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)
    }

    async fn expire_callbacks(&mut self, callbacks: &[i64], why: &str) -> Result<()> {
        sqlx::query(
            // Kept like a try, as in `stop_chains`.
            "WITH gone AS (
                 UPDATE relais.callback
                 SET status = 2, due = NULL, held = false, ended = clock_timestamp(), attempts = attempts + 1
                 WHERE id = ANY($1) AND due IS NOT NULL AND due <= statement_timestamp()
                 RETURNING id, attempts
             )
             INSERT INTO relais.callback_attempt (callback, number, at, duration_ms, error)
             SELECT id, attempts, clock_timestamp(), 0, $2 FROM gone ON CONFLICT DO NOTHING",
        )
        .bind(callbacks)
        .bind(why)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn resend_callbacks(&mut self, resend: &Resend, limit: usize) -> Result<Vec<(i64, i64)>> {
        let rows = match resend {
            Resend::One(id) => {
                // No task and no batch have the same name.
                sqlx::query(
                    "UPDATE relais.callback SET status = 0, due = clock_timestamp(), tries = 0, ended = NULL
                     WHERE id = ANY(ARRAY(
                         SELECT b.id FROM relais.callback b
                         WHERE b.id = ANY(ARRAY(
                             SELECT n.id FROM relais.callback n
                             WHERE n.task = (SELECT id FROM relais.task WHERE task_id = $1)
                             UNION ALL SELECT n.id FROM relais.callback n WHERE n.batch_id = $1
                         )) AND b.revision = $2 AND NOT b.held
                         FOR UPDATE OF b SKIP LOCKED
                     )) RETURNING id, lane",
                )
                .bind(id.task_id.0)
                .bind(wide(id.revision))
                .fetch_all(&mut *self.tx)
                .await
            }
            Resend::Failed { since, service, client, after } => {
                sqlx::query(
                    "UPDATE relais.callback SET status = 0, due = clock_timestamp(), tries = 0, ended = NULL
                     WHERE id = ANY(ARRAY(
                         SELECT b.id FROM relais.callback b
                         WHERE b.status = 2 AND b.id > $1 AND b.ended >= $2
                           AND ($3::integer IS NULL OR b.service_id = $3)
                           AND ($4::integer IS NULL OR b.client_id = $4)
                         ORDER BY b.id LIMIT $5
                         FOR UPDATE OF b SKIP LOCKED
                     )) RETURNING id, lane",
                )
                .bind(after)
                .bind(to_sql(*since))
                .bind(service.map(|service| service.0))
                .bind(client.map(|client| client.0))
                .bind(wide(limit))
                .fetch_all(&mut *self.tx)
                .await
            }
        }
        .map_err(error)?;
        let mut found: Vec<(i64, i64)> =
            rows.iter().map(|row| Ok((row.big("id")?, row.big("lane")?))).collect::<Result<_>>()?;
        found.sort_unstable();
        Ok(found)
    }
}

/// The callbacks of one task or batch, whose name is $8. No task and no batch have the same name.
const LIST_OF_TASK: &str = concat!(
    "SELECT ",
    callback_columns!("CASE WHEN b.due IS NOT NULL THEN greatest(b.due, p.parked_until) END"),
    ", coalesce(t.task_id, g.batch_id) AS task_id, b.service_id, b.client_id,
       coalesce(t.callback, g.callback)::text AS callback
     FROM relais.callback b LEFT JOIN LATERAL (SELECT * FROM relais.task WHERE id = b.task OFFSET 0) t ON true
     LEFT JOIN relais.batch g ON g.batch_id = b.batch_id LEFT JOIN relais.callback_lane p ON p.lane = b.lane
     WHERE (t.id IS NOT NULL OR g.batch_id IS NOT NULL) AND b.id < $1 AND b.id >= $2
       AND ($3::smallint IS NULL OR b.status = $3)
       AND ($4::integer IS NULL OR b.service_id = $4) AND ($5::integer IS NULL OR b.client_id = $5)
       AND ($6::timestamptz IS NULL OR b.created >= $6) AND ($9::bigint IS NULL OR b.revision = $9)
       AND b.id = ANY(ARRAY(
           SELECT n.id FROM relais.callback n WHERE n.task = (SELECT id FROM relais.task WHERE task_id = $8)
           UNION ALL SELECT n.id FROM relais.callback n WHERE n.batch_id = $8
       ))
     ORDER BY b.id DESC LIMIT $7"
);

const LIST_FAILED: &str = concat!(
    "SELECT ",
    callback_columns!("CASE WHEN b.due IS NOT NULL THEN greatest(b.due, p.parked_until) END"),
    ", coalesce(t.task_id, g.batch_id) AS task_id, b.service_id, b.client_id,
       coalesce(t.callback, g.callback)::text AS callback
     FROM relais.callback b LEFT JOIN LATERAL (SELECT * FROM relais.task WHERE id = b.task OFFSET 0) t ON true
     LEFT JOIN relais.batch g ON g.batch_id = b.batch_id LEFT JOIN relais.callback_lane p ON p.lane = b.lane
     WHERE (t.id IS NOT NULL OR g.batch_id IS NOT NULL) AND b.id < $1 AND b.id >= $2
       AND ($3::smallint IS NULL OR b.status = $3)
       AND ($4::integer IS NULL OR b.service_id = $4) AND ($5::integer IS NULL OR b.client_id = $5)
       AND ($6::timestamptz IS NULL OR b.created >= $6) AND ($9::bigint IS NULL OR b.revision = $9)
       AND b.status = 2 AND $8::uuid IS NULL
     ORDER BY b.id DESC LIMIT $7"
);

const LIST_ANY: &str = concat!(
    "SELECT ",
    callback_columns!("CASE WHEN b.due IS NOT NULL THEN greatest(b.due, p.parked_until) END"),
    ", coalesce(t.task_id, g.batch_id) AS task_id, b.service_id, b.client_id,
       coalesce(t.callback, g.callback)::text AS callback
     FROM relais.callback b LEFT JOIN LATERAL (SELECT * FROM relais.task WHERE id = b.task OFFSET 0) t ON true
     LEFT JOIN relais.batch g ON g.batch_id = b.batch_id LEFT JOIN relais.callback_lane p ON p.lane = b.lane
     WHERE (t.id IS NOT NULL OR g.batch_id IS NOT NULL) AND b.id < $1 AND b.id >= $2
       AND ($3::smallint IS NULL OR b.status = $3)
       AND ($4::integer IS NULL OR b.service_id = $4) AND ($5::integer IS NULL OR b.client_id = $5)
       AND ($6::timestamptz IS NULL OR b.created >= $6) AND ($9::bigint IS NULL OR b.revision = $9)
       AND $8::uuid IS NULL
     ORDER BY b.id DESC LIMIT $7"
);

/// The last of so many rows, and how many there were.
const FLOOR_OF_FAILED: &str = "
    SELECT id, created, count(*) OVER () AS looked FROM (
        SELECT id, created FROM relais.callback WHERE id < $1 AND status = 2 ORDER BY id DESC LIMIT $2
    ) b ORDER BY id LIMIT 1";

const FLOOR_OF_ANY: &str = "
    SELECT id, created, count(*) OVER () AS looked FROM (
        SELECT id, created FROM relais.callback WHERE id < $1 ORDER BY id DESC LIMIT $2
    ) b ORDER BY id LIMIT 1";

impl CallbackReader for Postgres {
    async fn list_callback_lanes(&self, after: Option<i64>, limit: usize) -> Result<CallbackLanePage> {
        // From one lane to the next by the index: the cost is that of the lanes, not of what waits in them.
        let rows = sqlx::query(
            "WITH RECURSIVE heads (lane, due) AS (
                 (SELECT lane, due FROM relais.callback WHERE due IS NOT NULL AND lane > $1
                  ORDER BY lane, due LIMIT 1)
                 UNION ALL
                 SELECT n.lane, n.due FROM heads h CROSS JOIN LATERAL (
                     SELECT lane, due FROM relais.callback WHERE due IS NOT NULL AND lane > h.lane
                     ORDER BY lane, due LIMIT 1
                 ) n
             )
             SELECT h.lane, h.due, p.parked_until, clock_timestamp() AS now
             FROM (SELECT * FROM heads LIMIT $2) h LEFT JOIN relais.callback_lane p ON p.lane = h.lane",
        )
        .bind(after.unwrap_or(i64::MIN))
        .bind(wide(limit))
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        let now = rows.last().map(|row| row.moment("now")).transpose()?;
        Ok(CallbackLanePage { heads: rows.iter().map(lane_head).collect::<Result<_>>()?, now })
    }

    async fn callback_floor(&self, filter: &CallbackFilter, look: usize) -> Result<Option<Floor>> {
        let failed = filter.status == Some(CallbackStatus::Failure);
        let row = sqlx::query(if failed { FLOOR_OF_FAILED } else { FLOOR_OF_ANY })
            .bind(filter.before.unwrap_or(i64::MAX))
            .bind(wide(look))
            .fetch_optional(&mut *self.lend().await?)
            .await
            .map_err(error)?;
        row.as_ref().map(floor_of).transpose()
    }

    async fn list_callbacks(&self, filter: &CallbackFilter, floor: i64) -> Result<Vec<CallbackRecord>> {
        let failed = filter.status == Some(CallbackStatus::Failure);
        let rows = sqlx::query(match filter.task {
            Some(_) => LIST_OF_TASK,
            None if failed => LIST_FAILED,
            None => LIST_ANY,
        })
        .bind(filter.before.unwrap_or(i64::MAX))
        .bind(floor)
        .bind(filter.status.map(CallbackStatus::code))
        .bind(filter.service.map(|service| service.0))
        .bind(filter.client.map(|client| client.0))
        .bind(filter.from.map(to_sql))
        .bind(wide(filter.limit))
        .bind(filter.task.map(|task_id| task_id.0))
        .bind(filter.revision.map(wide))
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        rows.iter().map(callback_record).collect()
    }

    async fn list_callback_attempts(&self, rows: &[i64]) -> Result<Vec<(i64, CallbackAttempt)>> {
        let rows =
            sqlx::query("SELECT * FROM relais.callback_attempt WHERE callback = ANY($1) ORDER BY callback + 0, number")
                .bind(rows)
                .fetch_all(&mut *self.lend().await?)
                .await
                .map_err(error)?;
        rows.iter().map(attempt_of).collect()
    }
}
