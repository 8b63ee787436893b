//! Schedules, on PostgreSQL.

use std::time::Duration;

use relais_core::{Json, Progress, Schedule, ScheduleName, ScheduleRecord, Timestamp};

use crate::{
    postgres::session::{PgSession, column},
    postgres::{Postgres, error, from_sql, to_sql},
    row::{Columns, in_millis, retry_text, wide},
    schedules::statements::{LockedSchedule, Schedules, Timetable, locked_schedule, schedule_columns, schedule_record},
    session::Result,
    tasks::statements::{Locked, locked},
};

impl Schedules for PgSession {
    async fn hold_declared(&mut self) -> Result<i64> {
        sqlx::query_scalar("SELECT version FROM relais.declared FOR SHARE")
            .fetch_one(&mut *self.tx)
            .await
            .map_err(error)
    }

    async fn clock(&mut self) -> Result<Timestamp> {
        let now: jiff_sqlx::Timestamp =
            sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(&mut *self.tx).await.map_err(error)?;
        Ok(from_sql(now))
    }

    async fn lock_due_schedules(&mut self, limit: usize) -> Result<Locked<LockedSchedule>> {
        let names: Vec<String> = sqlx::query_scalar(
            "SELECT name FROM relais.schedule WHERE next_fire <= statement_timestamp()
             ORDER BY next_fire LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED",
        )
        .bind(wide(limit))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        if names.is_empty() {
            // Nobody asks what time it is.
            return Ok(Locked { now: Timestamp::from_millis(0), rows: Vec::new() });
        }
        // A statement of its own: it sees the task of whoever had one of the locks just before, and when that runs
        // next.
        let rows = sqlx::query(concat!(
            "SELECT ",
            schedule_columns!("::text"),
            ", clock_timestamp() AS now,
              (SELECT t.status NOT IN (2, 3, 4) FROM relais.task t WHERE t.task_id = s.last_task) AS busy
              FROM relais.schedule s WHERE s.name = ANY($1) AND s.next_fire <= statement_timestamp() ORDER BY s.next_fire"
        ))
        .bind(names)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        locked(&rows, locked_schedule)
    }

    async fn lock_schedule(&mut self, name: &ScheduleName) -> Result<Locked<LockedSchedule>> {
        // A statement of its own: the next one sees the task of whoever had the lock before.
        sqlx::query("SELECT 1 FROM relais.schedule WHERE name = $1 FOR NO KEY UPDATE")
            .bind(name.as_str())
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        let rows = sqlx::query(concat!(
            "SELECT ",
            schedule_columns!("::text"),
            ", clock_timestamp() AS now,
              (SELECT t.status NOT IN (2, 3, 4) FROM relais.task t WHERE t.task_id = s.last_task) AS busy
              FROM relais.schedule s WHERE s.name = $1 FOR NO KEY UPDATE OF s"
        ))
        .bind(name.as_str())
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        locked(&rows, locked_schedule)
    }

    async fn put_schedule(&mut self, schedule: &Schedule, next: Option<Timestamp>) -> Result<()> {
        sqlx::query(
            "INSERT INTO relais.schedule (name, service, client_id, cron, time_zone, body, callback, correlation_id, missed,
                                          overlap, paused, next_fire, priority, retry, timeout_ms, expires_ms)
             VALUES ($1, $2, $3, $4, $5, $6::json, $7::json, $8, $9, $10, $11, $12, $13, $14, $15, $16)
             ON CONFLICT (name) DO UPDATE SET service = excluded.service, client_id = excluded.client_id,
                 cron = excluded.cron, time_zone = excluded.time_zone, body = excluded.body,
                 callback = excluded.callback, correlation_id = excluded.correlation_id, missed = excluded.missed,
                 overlap = excluded.overlap, paused = excluded.paused, next_fire = excluded.next_fire,
                 priority = excluded.priority, retry = excluded.retry, timeout_ms = excluded.timeout_ms,
                 expires_ms = excluded.expires_ms",
        )
        .bind(schedule.name.as_str())
        .bind(schedule.service.as_str())
        .bind(schedule.client.as_str())
        .bind(&schedule.cron)
        .bind(&schedule.time_zone)
        .bind(schedule.body.get())
        .bind(schedule.callback.as_ref().map(Json::get))
        .bind(schedule.correlation_id.as_deref())
        .bind(schedule.missed.code())
        .bind(schedule.overlap.code())
        .bind(schedule.paused)
        .bind(next.map(to_sql))
        .bind(schedule.terms.priority.map(|priority| i16::from(priority.level())))
        .bind(schedule.terms.retry.as_ref().map(retry_text).transpose()?)
        .bind(schedule.terms.timeout.map(in_millis))
        .bind(schedule.terms.expires.map(in_millis))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn write_progress(&mut self, schedules: &[(ScheduleName, Progress)]) -> Result<()> {
        sqlx::query(
            "UPDATE relais.schedule s
             SET next_fire = w.next_fire, last_run = w.last_run, last_task = w.last_task, last_error = w.last_error,
                 last_error_at = w.last_error_at, runs = w.runs, skipped = w.skipped, refused = w.refused,
                 missed_runs = w.missed_runs
             FROM ROWS FROM (
                 unnest($1::text[], $2::timestamptz[], $3::timestamptz[], $4::uuid[], $5::text[], $6::timestamptz[],
                        $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[]),
                 generate_series(1, cardinality($1))
             ) AS w (name, next_fire, last_run, last_task, last_error, last_error_at, runs, skipped, refused, missed_runs)
             WHERE s.name = ANY($1) AND s.name = w.name",
        )
        .bind(column(schedules, |(name, _)| name.as_str()))
        .bind(column(schedules, |(_, progress)| progress.next.map(to_sql)))
        .bind(column(schedules, |(_, progress)| progress.last_run.map(to_sql)))
        .bind(column(schedules, |(_, progress)| progress.last_task.map(|task_id| task_id.0)))
        .bind(column(schedules, |(_, progress)| progress.last_error.as_deref()))
        .bind(column(schedules, |(_, progress)| progress.last_error_at.map(to_sql)))
        .bind(column(schedules, |(_, progress)| wide(progress.runs)))
        .bind(column(schedules, |(_, progress)| wide(progress.skipped)))
        .bind(column(schedules, |(_, progress)| wide(progress.refused)))
        .bind(column(schedules, |(_, progress)| wide(progress.missed)))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn delete_schedule(&mut self, name: &ScheduleName) -> Result<()> {
        sqlx::query("DELETE FROM relais.schedule WHERE name = $1")
            .bind(name.as_str())
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(())
    }
}

impl Timetable for Postgres {
    async fn list_schedules(&self, names: &[ScheduleName]) -> Result<Vec<ScheduleRecord>> {
        let mut lent = self.lend().await?;
        let rows = if names.is_empty() {
            sqlx::query(concat!("SELECT ", schedule_columns!("::text"), " FROM relais.schedule s ORDER BY s.name"))
                .fetch_all(&mut *lent)
                .await
        } else {
            sqlx::query(concat!(
                "SELECT ",
                schedule_columns!("::text"),
                " FROM relais.schedule s WHERE s.name = ANY($1) ORDER BY s.name"
            ))
            .bind(column(names, |name| name.as_str()))
            .fetch_all(&mut *lent)
            .await
        };
        let rows = rows.map_err(error)?;
        lent.keep();
        rows.iter().map(schedule_record).collect()
    }

    async fn next_schedule_run(&self) -> Result<Option<Duration>> {
        let mut lent = self.lend().await?;
        let row = sqlx::query(
            "SELECT next_fire, clock_timestamp() AS now FROM relais.schedule WHERE next_fire IS NOT NULL
             ORDER BY next_fire LIMIT 1",
        )
        .fetch_optional(&mut *lent)
        .await
        .map_err(error)?;
        lent.keep();
        row.map(|row| Ok(row.moment("next_fire")?.since(row.moment("now")?))).transpose()
    }
}
