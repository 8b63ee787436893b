//! Schedules, on SQLite.

use std::time::Duration;

use relais_core::{Json, Progress, Schedule, ScheduleName, ScheduleRecord, Timestamp};

use crate::{
    row::{Columns, in_millis, retry_text, wide},
    schedules::statements::{LockedSchedule, Schedules, Timetable, locked_schedule, schedule_columns, schedule_record},
    session::Result,
    sqlite::session::SqliteSession,
    sqlite::values::array,
    sqlite::{Sqlite, error},
    tasks::statements::{Locked, locked},
};

/// What is read of a schedule that is locked says whether its last task is unfinished; final are SUCCESS, FAILURE and
/// CANCELLED.
pub(crate) const LOCK_DUE: &str = concat!(
    "SELECT ",
    schedule_columns!(""),
    ", ",
    now!(),
    " AS now, (SELECT t.status NOT IN (2, 3, 4) FROM task t WHERE t.task_id = s.last_task) AS busy
      FROM schedule s INDEXED BY schedule_by_next_fire WHERE s.next_fire <= ",
    now!(),
    " ORDER BY s.next_fire LIMIT ?1"
);

pub(crate) const NEXT_RUN: &str = concat!(
    "SELECT next_fire, ",
    now!(),
    " AS now FROM schedule INDEXED BY schedule_by_next_fire WHERE next_fire IS NOT NULL ORDER BY next_fire LIMIT 1"
);

impl Schedules for SqliteSession {
    /// Nobody else writes until the transaction ends.
    async fn hold_declared(&mut self) -> Result<i64> {
        sqlx::query_scalar("SELECT version FROM declared").fetch_one(&mut *self.tx).await.map_err(error)
    }

    async fn clock(&mut self) -> Result<Timestamp> {
        let now = sqlx::query_scalar(concat!("SELECT ", now!())).fetch_one(&mut *self.tx).await.map_err(error)?;
        Ok(Timestamp::from_millis(now))
    }

    async fn lock_due_schedules(&mut self, limit: usize) -> Result<Locked<LockedSchedule>> {
        let rows = sqlx::query(LOCK_DUE).bind(wide(limit)).fetch_all(&mut *self.tx).await.map_err(error)?;
        locked(&rows, locked_schedule)
    }

    async fn lock_schedule(&mut self, name: &ScheduleName) -> Result<Locked<LockedSchedule>> {
        let rows = sqlx::query(concat!(
            "SELECT ",
            schedule_columns!(""),
            ", ",
            now!(),
            " AS now, (SELECT t.status NOT IN (2, 3, 4) FROM task t WHERE t.task_id = s.last_task) AS busy
              FROM schedule s WHERE s.name = ?1"
        ))
        .bind(name.as_str())
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        locked(&rows, locked_schedule)
    }

    async fn put_schedule(&mut self, schedule: &Schedule, next: Option<Timestamp>) -> Result<()> {
        sqlx::query(
            "INSERT INTO schedule (name, service, client_id, cron, time_zone, body, callback, correlation_id, missed,
                                   overlap, paused, next_fire, priority, retry, timeout_ms, expires_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
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
        .bind(next.map(Timestamp::as_millis))
        .bind(schedule.terms.priority.map(|priority| i16::from(priority.level())))
        .bind(schedule.terms.retry.as_ref().map(retry_text).transpose()?)
        .bind(schedule.terms.timeout.map(in_millis))
        .bind(schedule.terms.expires.map(in_millis))
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn write_progress(&mut self, schedules: &[(ScheduleName, Progress)]) -> Result<()> {
        for (name, progress) in schedules {
            sqlx::query(
                "UPDATE schedule SET next_fire = ?2, last_run = ?3, last_task = ?4, last_error = ?5, last_error_at = ?6,
                     runs = ?7, skipped = ?8, refused = ?9, missed_runs = ?10
                 WHERE name = ?1",
            )
            .bind(name.as_str())
            .bind(progress.next.map(Timestamp::as_millis))
            .bind(progress.last_run.map(Timestamp::as_millis))
            .bind(progress.last_task.map(|task_id| task_id.to_string()))
            .bind(progress.last_error.as_deref())
            .bind(progress.last_error_at.map(Timestamp::as_millis))
            .bind(wide(progress.runs))
            .bind(wide(progress.skipped))
            .bind(wide(progress.refused))
            .bind(wide(progress.missed))
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        }
        Ok(())
    }

    async fn delete_schedule(&mut self, name: &ScheduleName) -> Result<()> {
        sqlx::query("DELETE FROM schedule WHERE name = ?1")
            .bind(name.as_str())
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(())
    }
}

impl Timetable for Sqlite {
    async fn list_schedules(&self, names: &[ScheduleName]) -> Result<Vec<ScheduleRecord>> {
        let rows = if names.is_empty() {
            sqlx::query(concat!("SELECT ", schedule_columns!(""), " FROM schedule s ORDER BY s.name"))
                .fetch_all(&self.read)
                .await
        } else {
            sqlx::query(concat!(
                "SELECT ",
                schedule_columns!(""),
                " FROM schedule s WHERE s.name IN (SELECT value FROM json_each(?1)) ORDER BY s.name"
            ))
            .bind(array(names)?)
            .fetch_all(&self.read)
            .await
        };
        rows.map_err(error)?.iter().map(schedule_record).collect()
    }

    async fn next_schedule_run(&self) -> Result<Option<Duration>> {
        let row = sqlx::query(NEXT_RUN).fetch_optional(&self.read).await.map_err(error)?;
        row.map(|row| Ok(row.moment("next_fire")?.since(row.moment("now")?))).transpose()
    }
}
