//! Facts that events depend on and that the rows of tasks do not have. They are looked up only where an event needs
//! them, which is rare.

use std::collections::{BTreeSet, HashMap};

use relais_core::{AttemptOutcome, Event, Ignored, StoreError, TaskEvent, TaskId};

use crate::{
    history::statements::{FreedKey, History as _},
    session::Database,
    tasks::changes::Changes,
    tasks::statements::LockedTask,
    verbs::Verbs,
};

/// Such facts, of some tasks.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Hosts that had a task before, with the code of the outcome there.
    hosts: BTreeSet<(i64, String, i16)>,
    /// Tasks whose unique keys are in use by other tasks that have not ended.
    keyless: BTreeSet<TaskId>,
}

impl Known {
    /// Why an event is refused: a revived task would be the second one with its unique key.
    pub(crate) fn forbids(&self, event: &Event, task: &LockedTask) -> Option<Ignored> {
        let revived = matches!(event, Event::Revived) && task.state.status.is_final();
        (revived && self.keyless.contains(&task.task_id)).then_some(Ignored::KeyTaken)
    }

    /// Completes a failure: whether it comes from a worker that was replaced.
    pub(crate) fn complete(&self, event: &mut Event, task: &LockedTask, changes: &Changes) {
        let Some(host) = event.other_host(&task.state).map(str::to_owned) else { return };
        let Event::Failed { again, replaced, .. } = event else { return };
        let had_it = |outcome: AttemptOutcome| {
            self.hosts.contains(&(task.id, host.clone(), outcome.code())) || changes.ended_at(task.id, &host, outcome)
        };
        // A failure that may have been heard before may be the one that was counted.
        *replaced = had_it(AttemptOutcome::Lost) || *again && had_it(AttemptOutcome::Failure);
    }
}

impl<D: Database> Verbs<D> {
    /// Looks up what these events depend on.
    pub(crate) async fn look_up(
        session: &mut D::Session,
        events: &[TaskEvent],
        tasks: &HashMap<TaskId, LockedTask>,
    ) -> Result<Known, StoreError> {
        // Who has it may change within the batch.
        let doubtful: BTreeSet<i64> = events
            .iter()
            .filter_map(|TaskEvent { task_id, event, .. }| {
                let Event::Failed { worker_host: Some(host), .. } = event else { return None };
                let task = tasks.get(task_id)?;
                let other = task.state.attempt > 0 && task.state.worker_host.as_ref() != Some(host);
                other.then_some(task.id)
            })
            .collect();
        let keys: BTreeSet<FreedKey> = events
            .iter()
            .filter(|event| matches!(event.event, Event::Revived))
            .filter_map(|event| {
                let task = tasks.get(&event.task_id).filter(|task| task.state.status.is_final())?;
                let (service, client, task_id) = (task.service, task.client, task.task_id);
                Some(FreedKey { service, client, key: task.unique_key.clone()?, task_id })
            })
            .collect();
        let mut known = Known::default();
        if !keys.is_empty() {
            let keys: Vec<FreedKey> = keys.into_iter().collect();
            // Taken first: whoever submits one with the same key in this moment waits, or was first.
            session.retake_unique(&keys).await?;
            known.keyless.extend(session.key_taken(&keys).await?);
        }
        if !doubtful.is_empty() {
            known.hosts.extend(session.past_hosts(&doubtful.into_iter().collect::<Vec<_>>()).await?);
        }
        Ok(known)
    }
}
