//! Schedules: declaring them, and making the runs that are due.

pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use relais_core::{
    Cron, Due, FiredSchedule, FiredSchedules, NewTask, Overlap, Progress, RunByHand, RunOutcome, Schedule,
    ScheduleChange, ScheduleName, ScheduleRecord, ScheduleStore, ScheduleValidator, StoreError, Timestamp,
};

use crate::{
    schedules::statements::{LockedSchedule, Schedules as _},
    session::{Database, Session as _},
    submit::Taken,
    text,
    verbs::Verbs,
};

/// About so many tasks are submitted in one transaction; schedules that are due besides wait for the next one.
const MOST_TASKS: usize = 1000;

/// As much is kept of why a run was refused.
const LONGEST_ERROR: usize = 500;

/// A schedule that this version does not understand is looked at again after so long: another version has declared it.
const NOT_UNDERSTOOD: Duration = Duration::from_secs(3600);

/// The runs of one schedule, before it is known what becomes of their tasks.
struct Round {
    name: ScheduleName,
    fired: FiredSchedule,
    progress: Progress,
    /// Which of the runs submit a task.
    submits: Vec<usize>,
}

#[async_trait]
impl<D: Database> ScheduleStore for Verbs<D> {
    async fn list_schedules(&self, names: Vec<ScheduleName>) -> Result<Vec<ScheduleRecord>, StoreError> {
        self.database.list_schedules(&names).await
    }

    async fn next_schedule_run(&self) -> Result<Option<Duration>, StoreError> {
        self.database.next_schedule_run().await
    }

    /// Makes the runs that are due: lock, judge, submit, write when they run next.
    async fn fire_schedules(
        &self,
        limit: usize,
        validator: Arc<dyn ScheduleValidator>,
    ) -> Result<FiredSchedules, StoreError> {
        let mut session = self.database.begin().await?;
        // First, so that nothing is declared in between, and locks are taken in the same order as by those who declare.
        if session.hold_declared().await? != validator.version() {
            session.commit().await?;
            return Ok(FiredSchedules { stale: true, schedules: Vec::new() });
        }
        let locked = session.lock_due_schedules(limit).await?;
        let (mut rounds, mut tasks) = (Vec::new(), Vec::new());
        for due in locked.rows {
            if tasks.len() >= MOST_TASKS {
                break;
            }
            rounds.push(round(due, locked.now, validator.as_ref(), &mut tasks));
        }
        if rounds.is_empty() {
            // At once: what is locked is passed over by the others.
            session.commit().await?;
            return Ok(FiredSchedules::default());
        }
        tasks.iter_mut().for_each(text::submission);
        let taken = match tasks.is_empty() {
            true => Taken::default(),
            false => Self::take_in(&mut session, tasks).await?,
        };
        let mut answers = taken.answers.iter();
        for round in &mut rounds {
            for (index, answer) in round.submits.iter().zip(&mut answers) {
                round.fired.runs[*index].1 = match answer {
                    Ok(submitted) => RunOutcome::Submitted(submitted.task_id),
                    Err(refusal) => RunOutcome::Refused(refusal.to_string()),
                };
            }
            round.progress.add(&round.fired);
        }
        // In the order of their keys.
        rounds.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let (progress, schedules) =
            rounds.into_iter().map(|round| ((round.name, round.progress), round.fired)).unzip::<_, _, Vec<_>, _>();
        session.write_progress(&progress).await?;
        self.finish_taken(session, taken).await?;
        Ok(FiredSchedules { stale: false, schedules })
    }

    /// One run that is due now.
    async fn run_schedule(&self, name: ScheduleName, mut task: NewTask) -> Result<RunByHand, StoreError> {
        let mut session = self.database.begin().await?;
        session.hold_declared().await?;
        let locked = session.lock_schedule(&name).await?;
        let now = locked.now;
        let Some(LockedSchedule { record, busy }) = locked.rows.into_iter().next() else {
            session.commit().await?;
            return Ok(RunByHand::NotFound);
        };
        if let Some(task_id) = record.progress.last_task
            && busy
            && record.schedule.overlap == Overlap::Skip
        {
            session.commit().await?;
            return Ok(RunByHand::Busy(task_id));
        }
        text::submission(&mut task);
        let taken = Self::take_in(&mut session, vec![task]).await?;
        let answer = taken.answers.first().copied();
        let answer = answer.ok_or_else(|| StoreError::Failed("a submission without an answer".into()))?;
        if let Ok(submitted) = answer {
            let mut progress = record.progress;
            progress.add(&FiredSchedule {
                name: name.clone(),
                service: record.schedule.service,
                at: now,
                runs: vec![(now, RunOutcome::Submitted(submitted.task_id))],
                missed: 0,
            });
            session.write_progress(&[(name, progress)]).await?;
        }
        self.finish_taken(session, taken).await?;
        Ok(RunByHand::Answered(answer))
    }
}

impl<D: Database> Verbs<D> {
    /// Makes one change to schedules. What has the same times as before goes on where it was.
    pub(crate) async fn change_schedule(session: &mut D::Session, change: &ScheduleChange) -> Result<(), StoreError> {
        let (mut schedule, paused) = match change {
            ScheduleChange::Delete(name) => return session.delete_schedule(name).await,
            ScheduleChange::Put { schedule, paused } => (schedule.as_ref().clone(), *paused),
            ScheduleChange::Pause { name, paused } => {
                let known = session.lock_schedule(name).await?.rows.pop();
                let known = known.ok_or_else(|| StoreError::Conflict(format!("there is no schedule {name}")))?;
                (known.record.schedule, Some(*paused))
            }
        };
        let known = session.lock_schedule(&schedule.name).await?.rows.pop().map(|known| known.record);
        schedule.paused = paused.or(known.as_ref().map(|known| known.schedule.paused)).unwrap_or(false);
        let times = |schedule: &Schedule| (schedule.cron.clone(), schedule.time_zone.clone(), schedule.paused);
        let next = match known {
            Some(known) if times(&known.schedule) == times(&schedule) => known.progress.next,
            _ if schedule.paused => None,
            _ => {
                let cron = Cron::parse(&schedule.cron, &schedule.time_zone);
                let cron = cron.map_err(|error| StoreError::Conflict(error.to_string()))?;
                cron.next_after(session.clock().await?)
            }
        };
        schedule.correlation_id.iter_mut().for_each(text::without_nul);
        session.put_schedule(&schedule, next).await
    }
}

/// Judges the runs of a schedule; adds the tasks that they submit.
fn round(due: LockedSchedule, now: Timestamp, validator: &dyn ScheduleValidator, tasks: &mut Vec<NewTask>) -> Round {
    let LockedSchedule { record, busy } = due;
    let (schedule, mut progress) = (record.schedule, record.progress);
    let first = progress.next.unwrap_or(now);
    let (mut runs, mut submits) = (Vec::new(), Vec::new());
    let mut missed = 0;
    match Cron::parse(&schedule.cron, &schedule.time_zone) {
        Ok(cron) => {
            let due = Due::of(&cron, schedule.missed, first, now);
            (missed, progress.next) = (due.missed, due.next);
            for run in due.runs {
                let outcome = if schedule.overlap == Overlap::Skip && (busy || !submits.is_empty()) {
                    RunOutcome::Skipped
                } else {
                    match validator.judge(&schedule, run) {
                        Ok(task) => {
                            submits.push(runs.len());
                            let task_id = task.task_id;
                            tasks.push(task);
                            RunOutcome::Submitted(task_id)
                        }
                        Err(why) => RunOutcome::Refused(clipped(why)),
                    }
                };
                runs.push((run, outcome));
            }
        }
        Err(error) => {
            runs.push((first, RunOutcome::Refused(clipped(error.to_string()))));
            progress.next = Some(now.after(NOT_UNDERSTOOD));
        }
    }
    let name = schedule.name.clone();
    let fired = FiredSchedule { name: name.clone(), service: schedule.service, at: now, runs, missed };
    Round { name, fired, progress, submits }
}

pub(crate) fn clipped(mut why: String) -> String {
    text::without_nul(&mut why);
    if let Some((at, _)) = why.char_indices().nth(LONGEST_ERROR) {
        why.truncate(at);
        why.push('…');
    }
    why
}
