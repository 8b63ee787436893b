//! Schedules: submit tasks at the times of a cron expression.
//!
//! A [`Schedule`] is declared by an operator; its [`Progress`] survives a new declaration. [`Due`] decides which runs
//! are due and which were missed. A driver stores the rows, and a [`ScheduleValidator`] makes the task of a run.

use std::{collections::VecDeque, time::Duration};

use crate::{
    ClientId, Cron, Json, NewTask, Priority, RetryPolicy, ScheduleName, ServiceName, Submission, TaskId, Timestamp,
};

/// How late a run may be before it counts as missed: a busy machine is not an absent one.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The most missed runs that are made up for, the newest first.
pub const MOST_MISSED: usize = 1000;

/// The most missed runs that are counted at a time.
const MOST_COUNTED: usize = 10_000;

/// What happens to runs that were missed while no process ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Missed {
    /// They are skipped.
    Skip,
    /// One run replaces all of them.
    #[default]
    Once,
    /// Each is made, up to the newest [`MOST_MISSED`].
    All,
}

impl Missed {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 3] = [Self::Skip, Self::Once, Self::All];

    /// The number in the store.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The one with this number.
    pub fn from_code(code: i16) -> Option<Self> {
        usize::try_from(code).ok().and_then(|index| Self::ALL.get(index).copied())
    }
}

/// What happens to a run while the task of the previous run is unfinished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// It is made all the same.
    #[default]
    Allow,
    /// It is skipped.
    Skip,
}

impl Overlap {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 2] = [Self::Allow, Self::Skip];

    /// The number in the store.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The one with this number.
    pub fn from_code(code: i16) -> Option<Self> {
        usize::try_from(code).ok().and_then(|index| Self::ALL.get(index).copied())
    }
}

/// A declared schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Its name.
    pub name: ScheduleName,
    /// The service that its tasks are for.
    pub service: ServiceName,
    /// The consumer on whose behalf they are submitted.
    pub client: ClientId,
    /// The cron expression.
    pub cron: String,
    /// The time zone.
    pub time_zone: String,
    /// The arguments of each task.
    pub body: Json,
    /// The callback of its tasks, as it was requested.
    pub callback: Option<Json>,
    /// The correlation id of its tasks; without one, each run has its own, [`run_id`].
    pub correlation_id: Option<String>,
    /// The terms of its tasks.
    pub terms: RunTerms,
    /// What happens to missed runs.
    pub missed: Missed,
    /// What happens to a run while the task of the previous run is unfinished.
    pub overlap: Overlap,
    /// While it is paused, there are no runs, and none are missed.
    pub paused: bool,
}

/// The terms of a schedule's tasks; none means the default of the service.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunTerms {
    /// The priority.
    pub priority: Option<Priority>,
    /// The retry policy.
    pub retry: Option<RetryPolicy>,
    /// The timeout of an attempt.
    pub timeout: Option<Duration>,
    /// The expiry: a task that no worker starts within this time fails.
    pub expires: Option<Duration>,
}

/// A change to a schedule.
#[derive(Debug, Clone)]
pub enum ScheduleChange {
    /// Creates or changes it.
    Put {
        /// The schedule, without whether it is paused.
        schedule: Box<Schedule>,
        /// Whether it is to be paused; none leaves it as it is.
        paused: Option<bool>,
    },
    /// Pauses or resumes it.
    Pause {
        /// Its name.
        name: ScheduleName,
        /// Whether it is to be paused.
        paused: bool,
    },
    /// Deletes it. Its tasks stay.
    Delete(ScheduleName),
}

/// The progress of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// When it runs next.
    pub next: Option<Timestamp>,
    /// The due time of the last run that submitted a task.
    pub last_run: Option<Timestamp>,
    /// The task of that run.
    pub last_task: Option<TaskId>,
    /// Why the last refused run was refused.
    pub last_error: Option<String>,
    /// When that was.
    pub last_error_at: Option<Timestamp>,
    /// Runs that submitted a task.
    pub runs: u64,
    /// Runs that were skipped because the task of the previous run was unfinished.
    pub skipped: u64,
    /// Runs whose task was refused.
    pub refused: u64,
    /// Missed runs that were not made up for.
    pub missed: u64,
}

impl Progress {
    /// Adds the outcomes of runs.
    pub fn add(&mut self, fired: &FiredSchedule) {
        self.missed = self.missed.saturating_add(fired.missed);
        for (due, outcome) in &fired.runs {
            match outcome {
                RunOutcome::Submitted(task_id) => {
                    self.runs += 1;
                    (self.last_run, self.last_task) = (Some(*due), Some(*task_id));
                }
                RunOutcome::Skipped => self.skipped += 1,
                RunOutcome::Refused(why) => {
                    self.refused += 1;
                    (self.last_error, self.last_error_at) = (Some(why.clone()), Some(fired.at));
                }
            }
        }
    }
}

/// A schedule with its progress.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleRecord {
    /// As it is declared.
    pub schedule: Schedule,
    /// How far it has come.
    pub progress: Progress,
}

/// The port that validates the task of a run, without its capacity. Called within a transaction: it must not wait.
pub trait ScheduleValidator: Send + Sync {
    /// The version of the declaration that it knows. It is not called while the store has another version.
    fn version(&self) -> i64;

    /// The task of a due run, or why it is refused.
    fn judge(&self, schedule: &Schedule, due: Timestamp) -> Result<NewTask, String>;
}

/// The outcome of firing schedules.
#[derive(Debug, Clone, Default)]
pub struct FiredSchedules {
    /// Whether nothing was done because the validator knows an older declaration.
    pub stale: bool,
    /// The schedules that had runs.
    pub schedules: Vec<FiredSchedule>,
}

/// The outcome of the runs of one schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct FiredSchedule {
    /// The schedule.
    pub name: ScheduleName,
    /// The service.
    pub service: ServiceName,
    /// When they were fired, by the database's clock.
    pub at: Timestamp,
    /// The due time and the outcome of each run.
    pub runs: Vec<(Timestamp, RunOutcome)>,
    /// How many missed runs were not made up for.
    pub missed: u64,
}

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum RunOutcome {
    /// This task was submitted.
    Submitted(TaskId),
    /// The run was skipped, because the task of the previous run is unfinished.
    Skipped,
    /// Its task was refused.
    Refused(String),
}

/// The outcome of a manual run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunByHand {
    /// There is no such schedule.
    NotFound,
    /// The task of the previous run is unfinished, and runs do not overlap.
    Busy(TaskId),
    /// It was submitted, or refused.
    Answered(Submission),
}

/// The correlation id of a run, where the schedule has none: `nightly@2026-01-31T02:30:00.000Z`.
pub fn run_id(name: &ScheduleName, due: Timestamp) -> String {
    format!("{name}@{due}")
}

/// The runs to be made now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// When each of them was due, in their order.
    pub runs: Vec<Timestamp>,
    /// How many missed runs are not made up for.
    pub missed: u64,
    /// When the next run is due.
    pub next: Option<Timestamp>,
}

impl Due {
    /// Decides about the runs from `first` until `now`.
    pub fn of(cron: &Cron, policy: Missed, first: Timestamp, now: Timestamp) -> Self {
        let mut runs = VecDeque::new();
        let mut total = 0;
        let due = std::iter::once(first).chain(cron.upcoming(first)).take_while(|run| *run <= now);
        for run in due.take(MOST_COUNTED) {
            total += 1;
            runs.push_back(run);
            if runs.len() > MOST_MISSED {
                runs.pop_front();
            }
        }
        if total == MOST_COUNTED {
            runs = newest(cron, now);
        }
        // If one run was missed, all processes were away, and the policy decides.
        if now.since(first) > PATIENCE {
            let kept = match policy {
                Missed::All => runs.len(),
                Missed::Once => 1,
                Missed::Skip => usize::from(runs.back().is_some_and(|last| now.since(*last) <= PATIENCE)),
            };
            runs.drain(..runs.len().saturating_sub(kept));
        }
        let missed = total.saturating_sub(runs.len()) as u64;
        Self { runs: runs.into(), missed, next: cron.next_after(now) }
    }
}

/// The newest runs until now, without going through all that ever were.
fn newest(cron: &Cron, now: Timestamp) -> VecDeque<Timestamp> {
    const CENTURY: Duration = Duration::from_secs(100 * 366 * 86_400);
    // There is at most one in a second.
    let mut window = Duration::from_secs(MOST_MISSED as u64);
    loop {
        let mut runs = VecDeque::new();
        for run in cron.upcoming(now.before(window)).take_while(|run| *run <= now) {
            runs.push_back(run);
            if runs.len() > MOST_MISSED {
                runs.pop_front();
            }
        }
        if runs.len() >= MOST_MISSED || window > CENTURY {
            return runs;
        }
        window *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    fn due(expression: &str, policy: Missed, first: &str, now: &str) -> (Vec<String>, u64, String) {
        let due = Due::of(&Cron::parse(expression, "UTC").unwrap(), policy, at(first), at(now));
        (due.runs.iter().map(ToString::to_string).collect(), due.missed, due.next.unwrap().to_string())
    }

    #[test]
    fn a_slightly_late_run_is_made_whatever_the_missed_policy() {
        for policy in Missed::ALL {
            let (runs, missed, next) = due("* * * * * *", policy, "2026-01-01T00:00:00Z", "2026-01-01T00:00:02.700Z");
            assert_eq!((runs.len(), missed, next.as_str()), (3, 0, "2026-01-01T00:00:03.000Z"));
        }
    }

    #[test]
    fn missed_runs_are_skipped_or_made_once_or_all() {
        let hourly = |policy| due("@hourly", policy, "2026-01-01T01:00:00Z", "2026-01-01T04:30:00Z");
        let newest = "2026-01-01T04:00:00.000Z".to_owned();
        let next = "2026-01-01T05:00:00.000Z".to_owned();
        assert_eq!(hourly(Missed::Skip), (vec![], 4, next.clone()));
        assert_eq!(hourly(Missed::Once), (vec![newest.clone()], 3, next));
        let (runs, missed, _) = hourly(Missed::All);
        assert_eq!((runs.len(), missed, &runs[3]), (4, 0, &newest));
        // The newest run is just in time, so it was not missed.
        let (runs, missed, _) = due("@hourly", Missed::Skip, "2026-01-01T01:00:00Z", "2026-01-01T04:00:03Z");
        assert_eq!((runs, missed), (vec![newest], 3));
    }

    #[test]
    fn missed_runs_of_years_are_bounded_to_the_newest() {
        let begun = std::time::Instant::now();
        let (runs, missed, next) = due("* * * * * *", Missed::All, "2016-01-01T00:00:00Z", "2026-01-01T00:00:00.500Z");
        assert_eq!((runs.len(), missed, next.as_str()), (1000, 9000, "2026-01-01T00:00:01.000Z"));
        assert_eq!((runs[0].as_str(), runs[999].as_str()), ("2025-12-31T23:43:21.000Z", "2026-01-01T00:00:00.000Z"));
        let (runs, missed, _) = due("@hourly", Missed::All, "2016-01-01T00:00:00Z", "2026-01-01T00:00:00Z");
        assert_eq!((runs.len(), missed, runs[999].as_str()), (1000, 9000, "2026-01-01T00:00:00.000Z"));
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
}
