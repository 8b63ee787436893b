//! What a driver says in SQL about schedules.
//!
//! A row is locked only by those who have held what is declared before ([`Schedules::hold_declared`]), or changed it:
//! so whoever declares, and has locked all queues by then, never waits for somebody who has a schedule and wants a
//! queue.

use std::{future::Future, time::Duration};

use relais_core::{
    ClientId, Json, Missed, Overlap, Progress, RunTerms, Schedule, ScheduleName, ScheduleRecord, ServiceName, TaskId,
    Timestamp,
};

use crate::{
    row::{Columns, corrupt, millis, priority, retry_policy, unsigned},
    session::Result,
    tasks::statements::Locked,
};

/// A schedule that was locked.
#[derive(Debug)]
pub(crate) struct LockedSchedule {
    pub record: ScheduleRecord,
    /// Whether the task of its last run is unfinished.
    pub busy: bool,
}

/// Schedules within a transaction.
pub(crate) trait Schedules: Send {
    /// Keeps what is declared as it is until the transaction ends; tells its number.
    fn hold_declared(&mut self) -> impl Future<Output = Result<i64>> + Send;

    /// The database's time.
    fn clock(&mut self) -> impl Future<Output = Result<Timestamp>> + Send;

    /// Locks schedules that are due, the most overdue first, passing over those that others have locked.
    fn lock_due_schedules(&mut self, limit: usize) -> impl Future<Output = Result<Locked<LockedSchedule>>> + Send;

    /// Locks a schedule, if it is there.
    fn lock_schedule(&mut self, name: &ScheduleName) -> impl Future<Output = Result<Locked<LockedSchedule>>> + Send;

    /// Writes what is declared of a schedule, and when it runs next; how far it has come stays as it is.
    fn put_schedule(&mut self, schedule: &Schedule, next: Option<Timestamp>)
    -> impl Future<Output = Result<()>> + Send;

    /// Writes how far schedules have come.
    fn write_progress(&mut self, schedules: &[(ScheduleName, Progress)]) -> impl Future<Output = Result<()>> + Send;

    fn delete_schedule(&mut self, name: &ScheduleName) -> impl Future<Output = Result<()>> + Send;
}

/// Schedules, without a transaction.
pub(crate) trait Timetable: Send + Sync {
    /// The schedules, in the order of their names; only those that are named, where any are.
    fn list_schedules(&self, names: &[ScheduleName]) -> impl Future<Output = Result<Vec<ScheduleRecord>>> + Send;

    /// How long it is until one runs.
    fn next_schedule_run(&self) -> impl Future<Output = Result<Option<Duration>>> + Send;
}

/// The columns that [`schedule_record`] reads of a schedule `s`; `$text` makes a text of what follows it.
macro_rules! schedule_columns {
    ($text:literal) => {
        concat!(
            "s.name, s.service, s.client_id, s.cron, s.time_zone, s.body",
            $text,
            " AS body, s.callback",
            $text,
            " AS callback, s.correlation_id, s.missed, s.overlap, s.paused, s.next_fire, s.last_run, s.last_task",
            $text,
            " AS last_task, s.last_error, s.last_error_at, s.runs, s.skipped, s.refused, s.missed_runs, s.priority, s.retry, s.timeout_ms,
              s.expires_ms"
        )
    };
}
pub(crate) use schedule_columns;

pub(crate) fn schedule_record(row: &impl Columns) -> Result<ScheduleRecord> {
    let json = |text: String| Json::parse(text).map_err(corrupt);
    let task_id = |text: String| TaskId::parse(&text).ok_or_else(|| corrupt(format!("task id {text}")));
    Ok(ScheduleRecord {
        schedule: Schedule {
            name: ScheduleName::new(row.text("name")?).map_err(corrupt)?,
            service: ServiceName::new(row.text("service")?).map_err(corrupt)?,
            client: ClientId::new(row.text("client_id")?).map_err(corrupt)?,
            cron: row.text("cron")?,
            time_zone: row.text("time_zone")?,
            body: json(row.text("body")?)?,
            callback: row.text_if_any("callback")?.map(json).transpose()?,
            correlation_id: row.text_if_any("correlation_id")?,
            terms: RunTerms {
                priority: row.small_if_any("priority")?.map(|level| priority(Some(level))),
                retry: row.text_if_any("retry")?.map(|text| retry_policy(Some(&text))).transpose()?,
                timeout: row.big_if_any("timeout_ms")?.map(millis),
                expires: row.big_if_any("expires_ms")?.map(millis),
            },
            missed: Missed::from_code(row.small("missed")?).ok_or_else(|| corrupt("an unknown way with the missed"))?,
            overlap: Overlap::from_code(row.small("overlap")?).ok_or_else(|| corrupt("an unknown way to overlap"))?,
            paused: row.flag("paused")?,
        },
        progress: Progress {
            next: row.moment_if_any("next_fire")?,
            last_run: row.moment_if_any("last_run")?,
            last_task: row.text_if_any("last_task")?.map(task_id).transpose()?,
            last_error: row.text_if_any("last_error")?,
            last_error_at: row.moment_if_any("last_error_at")?,
            runs: unsigned(row.big("runs")?),
            skipped: unsigned(row.big("skipped")?),
            refused: unsigned(row.big("refused")?),
            missed: unsigned(row.big("missed_runs")?),
        },
    })
}

/// A schedule, and whether its last task is unfinished: none if it has none.
pub(crate) fn locked_schedule(row: &impl Columns) -> Result<LockedSchedule> {
    Ok(LockedSchedule { record: schedule_record(row)?, busy: row.flag_if_any("busy")?.unwrap_or(false) })
}
