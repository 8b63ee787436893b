//! Checks of schedules: no run twice, and none skipped except by policy, whichever process made it and whatever failed.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use relais_core::{Progress, Store, Task, Timestamp};
use relais_tests::chaos::Verdict;

use super::until;
use crate::world::{BY_HAND, EVERY, ONE_AT_A_TIME};

const SECOND: Duration = Duration::from_secs(1);

async fn progress(store: &dyn Store, name: &str) -> Result<Progress> {
    let all = store.list_schedules(Vec::new()).await?;
    let record = all.into_iter().find(|record| record.schedule.name.as_str() == name);
    Ok(record.with_context(|| format!("there is a schedule {name}"))?.progress)
}

/// Waits until the schedules are past this moment. Every second since they were declared, together, is accounted for.
pub async fn until_past(store: &dyn Store, moment: Timestamp, most: Duration) -> Result<()> {
    let mut firsts = Vec::new();
    for name in [EVERY, ONE_AT_A_TIME] {
        let past = async || Ok(progress(store, name).await?.next.is_some_and(|next| next > moment));
        ensure!(until(most, past).await?, "{name} does not come to {moment}");
        let progress = progress(store, name).await?;
        let accounted = progress.runs + progress.skipped + progress.refused + progress.missed;
        let next = progress.next.context("it goes on")?;
        firsts.push(next.before(SECOND * u32::try_from(accounted)?));
    }
    let apart = firsts[0].max(firsts[1]).since(firsts[0].min(firsts[1]));
    ensure!(apart <= SECOND, "runs were made twice or left out: the first were at {firsts:?}");
    Ok(())
}

/// Judges the runs that there were.
pub async fn judge(store: &dyn Store, stored: &[Task], verdict: &mut Verdict) -> Result<()> {
    for name in [EVERY, ONE_AT_A_TIME, BY_HAND] {
        let progress = progress(store, name).await?;
        let mut runs: Vec<(Timestamp, &Task)> =
            stored.iter().filter_map(|task| Some((due(task, name)?, task))).collect();
        runs.sort_unstable_by_key(|(due, _)| *due);
        if progress.runs != runs.len() as u64 || progress.refused > 0 {
            verdict.lost += 1;
            verdict.findings.push(format!("{} tasks are of {name}: {progress:?}", runs.len()));
        }
        for pair in runs.windows(2) {
            let ((due, task), (next_due, next)) = (pair[0], pair[1]);
            if name == EVERY && due.after(SECOND) != next_due {
                verdict.lost += 1;
                verdict.findings.push(format!("{name} ran at {due}, and then at {next_due}"));
            }
            if name == ONE_AT_A_TIME && task.state.ended.is_none_or(|ended| ended > next.submitted) {
                verdict.doubled += 1;
                verdict.findings.push(format!("{name} ran at {next_due} while {} went on", task.task_id));
            }
        }
        if name == EVERY && progress.skipped + progress.missed > 0 {
            verdict.lost += 1;
            verdict.findings.push(format!("runs of {name} were left out: {progress:?}"));
        }
    }
    Ok(())
}

/// When a run was due, if the task is one.
fn due(task: &Task, schedule: &str) -> Option<Timestamp> {
    Timestamp::parse(task.correlation_id.as_deref()?.strip_prefix(schedule)?.strip_prefix('@')?)
}
