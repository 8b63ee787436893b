//! Changing tasks: claims, worker messages, heartbeats, returns, cancels, leases that expire. All by [`relais_core::apply`].

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use relais_core::{
    Attempt, AttemptOutcome, ClaimRequest, Claimed, Effects, Event, IdsChanged, KeyEffect, Milestone, Outcome,
    Revocation, ServiceKey, State, Status, StoreError, Subject, Task, TaskChange, TaskEvent, TaskId, TimersFired,
    Timestamp, Wakeup, apply,
};

use super::{Verbs, ledger::Ledger, plain};
use crate::{
    callbacks::statements::NewCallback,
    dependencies::statements::Dependencies as _,
    dispatch::statements::Dispatch as _,
    flow::Limited,
    history::statements::{FreedKey, History as _, policy_of_task},
    instances::statements::InstanceRows as _,
    session::{Accounts, Database, LockedPending, LockedTask, Session, UnlockedTask, WrittenTask},
};

/// So many tasks are claimed without locking them first; for more of them round trips do not count.
const FEW: usize = 16;

/// For so long after somebody else got in the way, tasks are locked first, passing over what others have locked.
const CROWDED: Duration = Duration::from_secs(1);

/// The tasks that one transaction changes, and what follows from it.
#[derive(Default)]
pub(crate) struct Changes {
    ledger: Ledger,
    pub(crate) written: BTreeMap<i64, WrittenTask>,
    changed: Vec<i64>,
    work: BTreeSet<ServiceKey>,
    /// Came back to their queue, and not by way of a broker.
    back: BTreeSet<(ServiceKey, TaskId)>,
    /// The same, of services whose tasks may be in hand: they are in nobody's any more.
    let_go: BTreeMap<i64, ServiceKey>,
    /// Attempts that are over while their tasks are not.
    attempts: Vec<(i64, Attempt)>,
    /// Had ended, and begin anew; or waited, and do not any more.
    revived: Vec<i64>,
    /// Unique keys that are free from now on (false), or in use again (true).
    keys: BTreeMap<FreedKey, bool>,
    /// When something happens next to one of those that wait.
    timer: Option<Timestamp>,
    /// What is to be told, in the order in which it happened.
    told: Vec<NewCallback>,
    /// Every change, where somebody in this process wants to hear of each.
    heard: Option<Vec<TaskChange>>,
    /// Workers are to leave them alone.
    revoked: Vec<Revocation>,
    /// Services that somebody waits for to make room.
    limited: Arc<Limited>,
    /// Those of them whose window has room now.
    opened: BTreeSet<ServiceKey>,
    /// Have ended while others wait for them.
    endings: BTreeMap<i64, Status>,
    /// Ends of which all were told who wait for them.
    pub(crate) settled: Vec<i64>,
}

impl Changes {
    pub(crate) fn new(wanted: bool, limited: Arc<Limited>) -> Self {
        Self { heard: wanted.then(Vec::new), limited, ..Self::default() }
    }

    /// Tasks came in by this transaction, before anything else happened in it.
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
        plain::event(&mut event);
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
            may_be_leased: task.handed,
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
            self.let_go.insert(task.id, task.service);
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

    /// Whoever has a task at hand is to be told to leave it alone.
    fn revoke(&mut self, task: &LockedTask, fresh: bool) {
        let (status, revision) = (task.state.status, task.state.revision);
        self.revoked.push(Revocation { task_id: task.task_id, service: task.service, status, revision, fresh });
    }

    /// What the tasks became, the counters and who is to be woken, if that is all that is to be written.
    fn plain(self) -> Option<Plain> {
        let nothing_else = self.attempts.is_empty()
            && self.revived.is_empty()
            && self.keys.is_empty()
            && self.let_go.is_empty()
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

    /// Whether an attempt of the task ended so at this host, in this transaction.
    pub(crate) fn ended_at(&self, id: i64, host: &str, outcome: AttemptOutcome) -> bool {
        self.attempts.iter().any(|(task, attempt)| {
            *task == id && attempt.outcome == outcome && attempt.worker_host.as_deref() == Some(host)
        })
    }

    /// What the tasks became, for whoever writes it otherwise.
    pub(crate) fn take_written(&mut self) -> impl Iterator<Item = WrittenTask> {
        std::mem::take(&mut self.written).into_values()
    }

    /// A task that nobody else knew to be in hand is anybody's.
    pub(crate) fn came_back(&mut self, task: &LockedTask) {
        self.work.insert(task.service);
        self.back.insert((task.service, task.task_id));
    }
}

/// Changes of nothing but tasks and counters.
struct Plain {
    written: BTreeMap<i64, WrittenTask>,
    accounts: Accounts,
    wakeup: Wakeup,
    heard: Vec<TaskChange>,
}

/// Pending tasks that a claim has found, by the order in which they are handed out.
pub(crate) type Found = HashMap<ServiceKey, (Timestamp, std::vec::IntoIter<LockedPending>)>;

/// Hands out what was found to those who asked for it.
pub(crate) fn hand_out(
    requests: &[ClaimRequest],
    found: &mut Found,
    changes: &mut Changes,
) -> Result<Vec<Vec<Task>>, StoreError> {
    let mut answers = Vec::with_capacity(requests.len());
    for request in requests {
        let mut tasks = Vec::new();
        if let Some((now, rows)) = found.get_mut(&request.service) {
            for mut pending in rows.take(request.max) {
                let event = Event::Claimed {
                    worker_host: request.worker_host.clone(),
                    lease: request.lease.unwrap_or(pending.lease),
                };
                if let Outcome::Applied(state) = changes.apply(&mut pending.locked, event, *now)? {
                    tasks.push(Task { state, position: None, ..pending.task });
                }
            }
        }
        answers.push(tasks);
    }
    Ok(answers)
}

/// A change as those hear it who follow every one.
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
    /// Writes what was changed, with all that follows from it.
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
        if !changes.let_go.is_empty() {
            let services: BTreeSet<ServiceKey> = changes.let_go.values().copied().collect();
            let services: Vec<ServiceKey> = services.into_iter().collect();
            session.let_go(&services, &changes.let_go.into_keys().collect::<Vec<_>>()).await?;
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

    /// Hands out pending tasks. Each service is asked once, for all who wish.
    pub(crate) async fn claim_tasks(&self, mut requests: Vec<ClaimRequest>) -> Result<Claimed, StoreError> {
        if requests.iter().any(|request| request.instance.is_some()) {
            let mut all = Claimed::default();
            for request in requests.drain(..) {
                let claimed = match request.instance {
                    Some(instance) => self.claim_in_hand(request, instance).await?,
                    None => Box::pin(self.claim_tasks(vec![request])).await?,
                };
                all.tasks.extend(claimed.tasks);
                all.again = all.again.into_iter().chain(claimed.again).min();
            }
            return Ok(all);
        }
        let mut wished: BTreeMap<ServiceKey, usize> = BTreeMap::new();
        for request in &requests {
            let wished = wished.entry(request.service).or_default();
            *wished = wished.saturating_add(request.max);
        }
        if let [(&service, &limit)] = wished.iter().collect::<Vec<_>>()[..]
            && limit <= FEW
            && let Some(claimed) = self.claim_unlocked(&requests, service, limit).await?
        {
            return Ok(claimed);
        }
        let mut session = self.database.begin().await?;
        let mut found = HashMap::new();
        let mut again = None;
        for (service, limit) in wished {
            let (now, rows) = match session.lock_pending(service, limit, false).await? {
                Some(locked) => (locked.now, locked.rows),
                None => {
                    let flowing = Self::lock_flowing(&mut session, service, limit).await?;
                    again = again.into_iter().chain(flowing.again).min();
                    (flowing.now, flowing.rows)
                }
            };
            found.insert(service, (now, rows.into_iter()));
        }
        let mut changes = Changes::new(self.wants_changes(), self.limited());
        let answers = hand_out(&requests, &mut found, &mut changes)?;
        self.write(session, changes).await?;
        Ok(Claimed { tasks: answers, again })
    }

    /// Hands out a few pending tasks of a service without locking them first: they are read, and written if they still are
    /// what they were. Two round trips instead of five, where nobody else claims at the same time. None if somebody does, or if
    /// more than the tasks is to be written; then nothing was done.
    async fn claim_unlocked(
        &self,
        requests: &[ClaimRequest],
        service: ServiceKey,
        limit: usize,
    ) -> Result<Option<Claimed>, StoreError> {
        if self.is_crowded(service) {
            return Ok(None);
        }
        let Some(pending) = self.database.pending_unlocked(service, limit).await? else { return Ok(None) };
        if pending.rows.is_empty() {
            return Ok(Some(Claimed { tasks: vec![Vec::new(); requests.len()], again: None }));
        }
        let known: HashMap<i64, u64> =
            pending.rows.iter().map(|row| (row.locked.id, row.locked.state.revision)).collect();
        let mut found = HashMap::from([(service, (pending.now, pending.rows.into_iter()))]);
        let mut changes = Changes::new(self.wants_changes(), self.limited());
        let tasks = hand_out(requests, &mut found, &mut changes)?;
        let Some(Plain { written, accounts, wakeup, heard }) = changes.plain() else { return Ok(None) };
        let written: Vec<UnlockedTask> = written
            .into_values()
            .filter_map(|written| Some(UnlockedTask { known: *known.get(&written.id)?, written }))
            .collect();
        if !self.database.write_unlocked(service, &written, &accounts, &wakeup).await? {
            self.note_crowded(service);
            return Ok(None);
        }
        self.wake(&wakeup);
        self.changed(&heard);
        Ok(Some(Claimed { tasks, again: None }))
    }

    /// Whether somebody else claimed tasks of the service in the same moment, a moment ago.
    fn is_crowded(&self, service: ServiceKey) -> bool {
        let crowded = self.crowded.lock().unwrap_or_else(PoisonError::into_inner);
        crowded.get(&service).is_some_and(|since| since.elapsed() < CROWDED)
    }

    fn note_crowded(&self, service: ServiceKey) {
        self.crowded.lock().unwrap_or_else(PoisonError::into_inner).insert(service, Instant::now());
    }

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
        let held = self.hold_those_in_hand(&mut session, &names).await?;
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
        self.note_in_hand(held, tasks);
        Ok(outcomes)
    }

    /// Does what time does.
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
