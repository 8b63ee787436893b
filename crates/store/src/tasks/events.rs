//! Applies events to tasks: what workers and operators report, and what is due by the clock.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use relais_core::{Event, Outcome, Status, StoreError, TaskEvent, TaskId, TimersFired};

use crate::{
    session::Database,
    tasks::changes::Changes,
    tasks::statements::{LockedTask, TaskRows as _},
    verbs::Verbs,
};

impl<D: Database> Verbs<D> {
    /// Applies events in their order.
    pub(crate) async fn record_events(&self, events: Vec<TaskEvent>) -> Result<Vec<Outcome>, StoreError> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(outcomes) = self.record_done(&events).await? {
            return Ok(outcomes);
        }
        let mut session = self.database.begin().await?;
        let names: Vec<TaskId> =
            events.iter().map(|event| event.task_id).collect::<BTreeSet<_>>().into_iter().collect();
        let held = self.hold_leased(&mut session, &names).await?;
        let locked = session.lock_tasks(&names).await?;
        let mut tasks: HashMap<TaskId, LockedTask> = locked.rows.into_iter().map(|task| (task.task_id, task)).collect();
        let mut changes = Changes::new(self.wants_changes(), self.limited());
        for (task_id, held) in &held {
            if let Some(task) = tasks.get_mut(task_id) {
                held.catch_up(task, &mut changes)?;
            }
        }
        let listed = Self::catch_up_with_others(&mut session, tasks.values_mut(), locked.now, &mut changes).await?;
        let known = Self::look_up(&mut session, &events, &tasks).await?;
        let outcomes = events
            .into_iter()
            .map(|TaskEvent { task_id, service, client, mut event }| match tasks.get_mut(&task_id) {
                Some(task) if task.service == service && client.is_none_or(|client| client == task.client) => {
                    let revived = matches!(event, Event::Revived);
                    if let Some(ignored) = known.forbids(&event, task) {
                        return Ok(Outcome::Ignored(ignored));
                    }
                    known.complete(&mut event, task, &changes);
                    let outcome = changes.apply(task, event, locked.now)?;
                    match listed.get(&task.id) {
                        // Somebody may be at an attempt of it that was never written: its number is used up.
                        Some(name) if revived && task.state.status == Status::Pending => {
                            changes.apply(task, Event::Taken { worker_host: Some(name.clone()) }, locked.now)?;
                            changes.apply(task, Event::Returned { attempt: None }, locked.now)
                        }
                        _ => Ok(outcome),
                    }
                }
                _ => Ok(Outcome::NotFound),
            })
            .collect::<Result<_, _>>()?;
        self.write(session, changes).await?;
        self.note_leased_tasks(held, tasks);
        Ok(outcomes)
    }

    /// Applies what is due by the clock.
    pub(crate) async fn fire_timers(&self, limit: usize) -> Result<TimersFired, StoreError> {
        let mut session = self.database.begin().await?;
        let locked = session.lock_overdue(limit).await?;
        if !locked.rows.is_empty() && self.was_set_meanwhile(&mut session).await? {
            return Ok(TimersFired { changed: 0, lost: 0, next: Some(Duration::ZERO) });
        }
        let mut changes = Changes::new(self.wants_changes(), self.limited());
        let (found, mut lost) = (locked.rows.len(), 0);
        let mut rows = locked.rows;
        Self::catch_up_with_others(&mut session, rows.iter_mut(), locked.now, &mut changes).await?;
        for mut task in rows {
            let losses = task.state.losses;
            let Some(event) = task.state.overdue(locked.now, task.delivery_limit) else { continue };
            let too_long = matches!(event, Event::Failed { .. });
            changes.apply(&mut task, event, locked.now)?;
            if too_long {
                changes.revoke(&task, true);
            }
            lost += usize::from(task.state.losses > losses);
        }
        let changed = changes.written.len();
        // What comes of these changes is told by the wake-up.
        let next = if found == limit { Some(Duration::ZERO) } else { session.next_timer().await? };
        self.write(session, changes).await?;
        Ok(TimersFired { changed, lost, next })
    }
}
