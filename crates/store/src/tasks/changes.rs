//! What one transaction changes of tasks, and what follows from it. [`relais_core::apply`] decides every change.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use relais_core::{
    Attempt, AttemptOutcome, Effects, Event, IdsChanged, KeyEffect, Milestone, Outcome, Revocation, ServiceKey, State,
    Status, StoreError, Subject, TaskChange, TaskId, Timestamp, Wakeup, apply,
};

use crate::{
    callbacks::statements::NewCallback,
    counters::ledger::Ledger,
    counters::statements::Accounts,
    dependencies::statements::Dependencies as _,
    dispatch::statements::Dispatch as _,
    flow::Limited,
    history::statements::{FreedKey, History as _, policy_of_task},
    instances::statements::InstanceRows as _,
    session::Database,
    tasks::statements::{LockedTask, TaskRows as _, WrittenTask},
    text,
    verbs::Verbs,
};

/// The tasks that one transaction changes, and what follows from it.
#[derive(Default)]
pub(crate) struct Changes {
    ledger: Ledger,
    pub(crate) written: BTreeMap<i64, WrittenTask>,
    changed: Vec<i64>,
    work: BTreeSet<ServiceKey>,
    /// Tasks that returned to their queue, and not by way of a broker.
    back: BTreeSet<(ServiceKey, TaskId)>,
    /// Tasks whose instance lease has ended, of services whose tasks may be leased.
    end_leases: BTreeMap<i64, ServiceKey>,
    /// Attempts that have ended while their tasks have not.
    attempts: Vec<(i64, Attempt)>,
    /// Tasks that are revived: they had ended, or waited for their time or for others.
    revived: Vec<i64>,
    /// Unique keys that are free from now on (false), or in use again (true).
    keys: BTreeMap<FreedKey, bool>,
    /// The earliest timer of the tasks that wait.
    timer: Option<Timestamp>,
    /// Callbacks to be written, in the order of their events.
    told: Vec<NewCallback>,
    /// Every change, if somebody in this process follows all changes.
    heard: Option<Vec<TaskChange>>,
    /// Tasks that workers are told to stop.
    revoked: Vec<Revocation>,
    /// Services whose flow is limited, so that somebody may wait for room.
    limited: Arc<Limited>,
    /// Services whose window has room now.
    opened: BTreeSet<ServiceKey>,
    /// Tasks that have ended and that others wait for.
    endings: BTreeMap<i64, Status>,
    /// Ended tasks whose dependents were all resolved in this transaction.
    pub(crate) settled: Vec<i64>,
}

impl Changes {
    pub(crate) fn new(wanted: bool, limited: Arc<Limited>) -> Self {
        Self { heard: wanted.then(Vec::new), limited, ..Self::default() }
    }

    /// Adds tasks that this transaction has inserted before anything else happened in it.
    pub(crate) fn arrived(&mut self, ledger: Ledger, wakeup: Wakeup, tasks: impl Iterator<Item = TaskChange>) {
        self.ledger = ledger;
        self.work.extend(wakeup.work);
        self.opened.extend(wakeup.dispatch);
        self.timer = wakeup.timer;
        if let Some(heard) = &mut self.heard {
            heard.extend(tasks);
        }
    }

    /// Applies an event to a locked task, which may have changed in this transaction before.
    pub(crate) fn apply(
        &mut self,
        task: &mut LockedTask,
        mut event: Event,
        now: Timestamp,
    ) -> Result<Outcome, StoreError> {
        text::event(&mut event);
        if let Some(start) = event.unsaid_start(&task.state) {
            // Whether there was anything to say does not matter: what counts is the failure.
            self.apply(task, start, now)?;
        }
        if let Event::Failed { failure, again_after, .. } = &mut event {
            let asked = task.scheduled.map_or(task.submitted, |scheduled| scheduled.max(task.submitted));
            let (failures, chance) = (task.state.failures, task.task_id.chance(task.state.attempt));
            *again_after = policy_of_task(task.retry.as_deref())?.again(failure, failures, now.since(asked), chance);
        }
        let state = match apply(&task.state, &event, now) {
            Ok(state) => state,
            Err(ignored) => {
                if Revocation::is_unknown_to_whoever_says(&event, &task.state) {
                    self.revoke(task, false);
                }
                return Ok(Outcome::Ignored(ignored));
            }
        };
        if !matches!(event, Event::Kept { .. }) {
            self.follow(task, &event, state.clone(), now);
        }
        Ok(Outcome::Applied(state))
    }

    /// Collects what follows from a change, as [`Effects`] says.
    fn follow(&mut self, task: &mut LockedTask, event: &Event, state: State, now: Timestamp) {
        let subject = Subject {
            callback: task.callback.as_ref(),
            has_unique_key: task.unique_key.is_some(),
            has_dependents: task.followed,
            may_be_leased: task.may_be_leased,
            limits_running: self.limited.running.contains(&task.service),
            has_window: self.limited.windows.contains(&task.service),
        };
        let effects = Effects::of(subject, &task.state, event, &state, now);
        self.ledger.moved(task.service, task.client, task.seq, task.state.status, state.status);
        self.ledger.moved_in_batch(task.batch, Some(task.state.status), state.status);
        if effects.ends_for_dependents {
            self.endings.insert(task.id, state.status);
        }
        if effects.is_visible {
            self.changed.push(task.id);
        }
        if effects.wakes_claims {
            self.work.insert(task.service);
        }
        if effects.returns_to_queue {
            self.back.insert((task.service, task.task_id));
        }
        if effects.ends_lease {
            self.end_leases.insert(task.id, task.service);
        }
        if effects.is_revived {
            self.revived.push(task.id);
        }
        if effects.opens_window {
            self.opened.insert(task.service);
        }
        self.timer = self.timer.into_iter().chain(effects.timer).min();
        if let (Some(effect), Some(key)) = (effects.unique_key, task.unique_key.clone()) {
            let key = FreedKey { service: task.service, client: task.client, key, task_id: task.task_id };
            self.keys.insert(key, effect == KeyEffect::Retaken);
        }
        if let (Some(event), Some(callback)) = (effects.callback, &task.callback) {
            self.told.push(NewCallback {
                task: task.id,
                service: task.service,
                client: task.client,
                event,
                revision: state.revision,
                lane: callback.lane,
                chain: callback.is_chain(),
                due: Some(now),
                started: state.started.filter(|_| !event.is_end()),
                progress: (!event.is_end()).then_some(state.progress),
            });
        }
        if let (Some(heard), Some(milestone)) = (&mut self.heard, effects.milestone) {
            heard.push(task_change(task, milestone, &state, &effects));
        }
        self.attempts.extend(effects.ended_attempt.map(|attempt| (task.id, attempt)));
        task.state = state.clone();
        if effects.revokes {
            self.revoke(task, true);
        }
        let (response, failure) = (effects.response, effects.failure);
        self.written.insert(task.id, WrittenTask { id: task.id, state, response, failure });
    }

    /// Notes that the worker of a task is told to stop it.
    pub(crate) fn revoke(&mut self, task: &LockedTask, fresh: bool) {
        let (status, revision) = (task.state.status, task.state.revision);
        self.revoked.push(Revocation { task_id: task.task_id, service: task.service, status, revision, fresh });
    }

    /// What the tasks became, the counters and the wake-up; none if more than that is to be written.
    pub(crate) fn plain(self) -> Option<Plain> {
        let nothing_else = self.attempts.is_empty()
            && self.revived.is_empty()
            && self.keys.is_empty()
            && self.end_leases.is_empty()
            && self.endings.is_empty()
            && self.settled.is_empty()
            && self.told.is_empty()
            && self.opened.is_empty()
            && self.revoked.is_empty()
            && self.back.is_empty();
        let accounts = self.ledger.close();
        if !nothing_else || !accounts.batches.is_empty() {
            return None;
        }
        let (tasks, work) = (IdsChanged::These(self.changed), self.work.into_iter().collect());
        let wakeup = Wakeup { work, tasks, timer: self.timer, ..Wakeup::default() };
        Some(Plain { written: self.written, accounts, wakeup, heard: self.heard.unwrap_or_default() })
    }

    /// Whether an attempt of the task ended at this host, with this outcome, in this transaction.
    pub(crate) fn ended_at(&self, id: i64, host: &str, outcome: AttemptOutcome) -> bool {
        self.attempts.iter().any(|(task, attempt)| {
            *task == id && attempt.outcome == outcome && attempt.worker_host.as_deref() == Some(host)
        })
    }

    /// Takes what the tasks became, for a caller that writes them by a statement of its own.
    pub(crate) fn take_written(&mut self) -> impl Iterator<Item = WrittenTask> {
        std::mem::take(&mut self.written).into_values()
    }

    /// A leased task of which nothing was written can be claimed by anybody again.
    pub(crate) fn came_back(&mut self, task: &LockedTask) {
        self.work.insert(task.service);
        self.back.insert((task.service, task.task_id));
    }
}

/// Changes that need nothing but writes to tasks and counters.
pub(crate) struct Plain {
    pub(crate) written: BTreeMap<i64, WrittenTask>,
    pub(crate) accounts: Accounts,
    pub(crate) wakeup: Wakeup,
    pub(crate) heard: Vec<TaskChange>,
}

/// A change as listeners get it that follow every change.
fn task_change(task: &LockedTask, milestone: Milestone, state: &State, effects: &Effects) -> TaskChange {
    let ended = effects.ended_attempt.as_ref();
    let why = effects.failure.as_ref().or(ended.and_then(|attempt| attempt.failure.as_ref()));
    let without_result = |attempt: &Attempt| Attempt {
        worker_host: attempt.worker_host.clone(),
        failure: None,
        response: None,
        ..*attempt
    };
    TaskChange {
        task_id: task.task_id,
        service: task.service,
        client: task.client,
        milestone,
        state: state.clone(),
        submitted: Some(task.submitted),
        correlation_id: task.correlation_id.clone(),
        over: ended.map(without_result),
        failure: why.map(TaskChange::in_brief),
    }
}

impl<D: Database> Verbs<D> {
    /// Writes all changes and their effects, and commits.
    pub(crate) async fn write(&self, mut session: D::Session, changes: Changes) -> Result<(), StoreError> {
        if !changes.revived.is_empty() {
            session.keep_last_attempts(&changes.revived).await?;
            session.note_revivals(&changes.revived).await?;
        }
        let written: Vec<WrittenTask> = changes.written.into_values().collect();
        if !written.is_empty() {
            session.write_tasks(&written).await?;
        }
        if !changes.attempts.is_empty() {
            // Of several that one transaction says of the same attempt, the last is right.
            let attempts: BTreeMap<(i64, u32), Attempt> =
                changes.attempts.into_iter().map(|(id, attempt)| ((id, attempt.number), attempt)).collect();
            let attempts: Vec<_> = attempts.into_iter().map(|((id, _), attempt)| (id, attempt)).collect();
            session.insert_attempts(&attempts).await?;
        }
        if !changes.keys.is_empty() {
            let (used, free): (BTreeMap<_, _>, BTreeMap<_, _>) = changes.keys.into_iter().partition(|(_, used)| *used);
            session.free_unique(&free.into_keys().collect::<Vec<_>>()).await?;
            session.retake_unique(&used.into_keys().collect::<Vec<_>>()).await?;
        }
        if !changes.end_leases.is_empty() {
            let services: BTreeSet<ServiceKey> = changes.end_leases.values().copied().collect();
            let services: Vec<ServiceKey> = services.into_iter().collect();
            session.end_leases(&services, &changes.end_leases.into_keys().collect::<Vec<_>>()).await?;
        }
        if !changes.endings.is_empty() {
            session.note_endings(&changes.endings.into_iter().collect::<Vec<_>>()).await?;
        }
        let callbacks = Self::tell(&mut session, changes.told).await?;
        let mut dispatch = changes.opened;
        if !changes.back.is_empty() {
            dispatch.extend(session.insert_dispatches(&changes.back.into_iter().collect::<Vec<_>>()).await?);
        }
        let dispatch = dispatch.into_iter().collect();
        let tasks = IdsChanged::These(changes.changed);
        let work = changes.work.into_iter().collect();
        let wakeup = Wakeup { work, tasks, callbacks, dispatch, timer: changes.timer, ..Wakeup::default() };
        self.finish_telling(session, changes.ledger, wakeup, &changes.settled).await?;
        self.changed(&changes.heard.unwrap_or_default());
        self.revoked(&changes.revoked);
        Ok(())
    }
}
