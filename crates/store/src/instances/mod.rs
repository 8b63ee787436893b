//! Instances: processes that run tasks themselves. They register, heartbeat and deregister; dead ones are reaped.
//!
//! An instance leases tasks: it writes one row that lists them, and nothing to the tasks. It remembers what they were
//! like. When they are done, it writes their results, if their revisions say that nobody else has changed them. So a
//! task that is done at once costs one write. Whatever else happens to a task is an event like any other
//! ([`crate::tasks::events`]); there it is written first that the instance had begun the task.

pub(crate) mod leases;
pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use relais_core::{
    ClaimRequest, Claimed, CrashPolicy, Decision, Event, Failure, Ignored, InstanceKey, InstanceRecord, InstanceStore,
    NewInstance, NewTask, Outcome, ReapedInstances, Registration, ServiceKey, Status, StoreError, Submission, Task,
    TaskEvent, TaskId, Timestamp, apply,
};

use self::leases::{Held, InstanceLeases, LeasedTasks};
use crate::{
    claims::statements::LockedPending,
    instances::statements::{DoneTask, InstanceRows as _, Leased, Lessee, LockedInstance, Onward},
    session::{Database, Session as _},
    tasks::changes::Changes,
    tasks::statements::{LockedTask, WrittenTask},
    text,
    verbs::Verbs,
};

/// What happens to a task of a dead instance.
fn fate(decision: Decision, task: &LockedTask) -> Event {
    match decision {
        Decision::Restart => Event::Abandoned { delivery_limit: task.delivery_limit },
        Decision::Fail => {
            let failure = Failure::new("The instance that had leased it died.").of_kind("crashed");
            Event::failure(None, Failure { retryable: Some(false), ..failure })
        }
    }
}

#[async_trait]
impl<D: Database> InstanceStore for Verbs<D> {
    /// Registers an instance. An earlier one of the same name is reaped first.
    async fn register_instance(&self, mut instance: NewInstance) -> Result<Registration, StoreError> {
        text::without_nul(&mut instance.name);
        instance.host.iter_mut().for_each(text::without_nul);
        // In a transaction of its own, since it waits for those of others.
        if !instance.services.is_empty() {
            let mut session = self.database.begin().await?;
            session.note_leased(&instance.services).await?;
            session.commit().await?;
        }
        let mut session = self.database.begin().await?;
        let mut changes = Changes::new(self.wants_changes(), self.limited());
        let mut recovered = 0;
        if let Some(before) = session.lock_instance(&instance.name).await? {
            let Some(tasks) = self.reap_instance(&mut session, &before, None, &mut changes).await? else {
                let tasks = Self::unfinished(&mut session, &before).await?;
                session.commit().await?;
                return Ok(Registration::Refused { tasks });
            };
            recovered = tasks;
        }
        let key = session.insert_instance(&instance).await?;
        self.write(session, changes).await?;
        Ok(Registration::In { key, recovered })
    }

    /// Extends the life of an instance, and removes the leases that it is done with.
    async fn heartbeat_instance(&self, instance: InstanceKey, silence: Duration) -> Result<bool, StoreError> {
        let done_with: Vec<i64> = self.leased().done_with.iter().copied().collect();
        let mut session = self.database.begin().await?;
        let alive = session.heartbeat_instance(instance, silence, &done_with).await?;
        session.commit().await?;
        let mut own = self.leased();
        own.done_with.retain(|lease| !done_with.contains(lease));
        if !alive {
            own.forget(instance);
        }
        Ok(alive)
    }

    /// Removes an instance that stops, and returns its tasks.
    async fn deregister_instance(&self, instance: InstanceKey) -> Result<(), StoreError> {
        let mut session = self.database.begin().await?;
        let mut changes = Changes::new(self.wants_changes(), self.limited());
        // Locked first: a lease that is still being written is either seen below, or never written.
        if !session.lock_own(instance).await? {
            session.commit().await?;
            self.leased().forget(instance);
            return Ok(());
        }
        let locked = session.lock_leased(instance).await?;
        for mut task in locked.rows {
            if task.state.status == Status::InProgress {
                changes.apply(&mut task, Event::Returned { attempt: None }, locked.now)?;
            } else if task.state.status == Status::Pending {
                changes.came_back(&task);
            }
        }
        session.delete_instance(instance).await?;
        self.write(session, changes).await?;
        self.leased().forget(instance);
        Ok(())
    }

    /// Reaps an instance that was silent for too long.
    async fn reap_instances(&self) -> Result<ReapedInstances, StoreError> {
        self.mind_the_clock().await?;
        let mut session = self.database.begin().await?;
        let mut changes = Changes::new(self.wants_changes(), self.limited());
        let mut reaped = ReapedInstances::default();
        if let Some(dead) = session.lock_dead().await? {
            if self.was_set_meanwhile(&mut session).await? {
                return Ok(ReapedInstances { next: Some(Duration::ZERO), ..reaped });
            }
            tracing::warn!(instance = dead.name, policy = dead.policy.as_str(), "an instance was silent for too long");
            if let Some(tasks) = self.reap_instance(&mut session, &dead, None, &mut changes).await? {
                reaped.instances += 1;
                reaped.tasks += tasks;
            }
        }
        reaped.next = session.next_death().await?;
        self.write(session, changes).await?;
        Ok(reaped)
    }

    async fn list_instances(&self) -> Result<Vec<InstanceRecord>, StoreError> {
        self.database.list_instances().await
    }

    /// Reaps an instance by the decision of an operator.
    async fn resolve_instance(&self, name: String, decision: Decision) -> Result<Option<usize>, StoreError> {
        let mut session = self.database.begin().await?;
        let mut changes = Changes::new(self.wants_changes(), self.limited());
        let undecided = session.lock_instance(&name).await?.filter(|instance| instance.undecided);
        let tasks = match &undecided {
            Some(dead) => self.reap_instance(&mut session, dead, Some(decision), &mut changes).await?,
            None => None,
        };
        self.write(session, changes).await?;
        Ok(tasks)
    }
}

impl<D: Database> Verbs<D> {
    fn leased(&self) -> MutexGuard<'_, InstanceLeases> {
        self.leased.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims tasks for an instance of this store, which leases them.
    pub(crate) async fn claim_for_instance(
        &self,
        request: ClaimRequest,
        instance: InstanceKey,
    ) -> Result<Claimed, StoreError> {
        let service = request.service;
        let (known, mut lessee) = {
            let mut own = self.leased();
            let known = || own.leases_of(instance, service).map(|(id, _)| id).collect::<Vec<_>>();
            let known = own.doubtful.contains(&(instance, service)).then(known);
            let onward = if known.is_none() { own.onward(instance, service) } else { Onward::START };
            (known, Lessee { onward, ..own.begin_claim(instance, service, request.max) })
        };
        let claimed = self.try_claim_for_instance(&request, &mut lessee, known.as_deref()).await?;
        self.leased().end_claim(instance, service, &lessee.done_with);
        Ok(claimed)
    }

    /// Submits tasks while an instance waits for some, and leases them to it if possible.
    pub(crate) async fn submit_and_lease(
        &self,
        tasks: Vec<NewTask>,
        request: ClaimRequest,
        instance: InstanceKey,
    ) -> Result<(Vec<Submission>, Vec<Task>), StoreError> {
        let service = request.service;
        let lessee = {
            let mut own = self.leased();
            // Its next claim finds out about leases that it may have and does not know of.
            let certain = !own.doubtful.contains(&(instance, service));
            certain.then(|| own.begin_claim(instance, service, request.max))
        };
        let (answers, taken) = self.submit(tasks, lessee.as_ref()).await?;
        let Some(lessee) = lessee else { return Ok((answers, Vec::new())) };
        // If nothing was leased, finished leases may not have been removed.
        let gone = if taken.is_some() { &lessee.done_with[..] } else { &[] };
        let mut worker_host = request.worker_host;
        worker_host.iter_mut().for_each(text::without_nul);
        let claimed = taken.map(|taken| self.remember_leased(taken, instance, service, worker_host));
        self.leased().end_claim(instance, service, gone);
        Ok((answers, claimed.into_iter().flat_map(|claimed| claimed.tasks.into_iter().flatten()).collect()))
    }

    async fn try_claim_for_instance(
        &self,
        request: &ClaimRequest,
        lessee: &mut Lessee,
        known: Option<&[i64]>,
    ) -> Result<Claimed, StoreError> {
        let (service, instance) = (request.service, lessee.instance);
        let mut worker_host = request.worker_host.clone();
        worker_host.iter_mut().for_each(text::without_nul);
        if known.is_none()
            && let Some(taken) = self.database.lease_unlocked(service, lessee).await?
        {
            return Ok(self.remember_claimed(taken, lessee, service, worker_host));
        }
        if known.is_some() && !self.renew(instance).await? {
            lessee.done_with.clear();
            return Ok(Claimed { tasks: vec![Vec::new()], again: None });
        }
        let mut session = self.database.begin().await?;
        let Some(free) = session.lock_claims(service, instance, &lessee.done_with).await? else {
            session.commit().await?;
            return Ok(Claimed { tasks: vec![Vec::new()], again: None });
        };
        if let Some(known) = known.filter(|_| !free) {
            session = self.give_back_unknown(session, service, instance, known).await?;
            if session.lock_claims(service, instance, &[]).await? != Some(false) {
                session.commit().await?;
                return Ok(Claimed { tasks: vec![Vec::new()], again: Some(Duration::ZERO) });
            }
        }
        if free {
            if let Some(known) = known {
                session.drop_unknown(service, instance, known).await?;
            }
            let mut taken = session.lease_tasks(service, lessee).await?;
            if taken.lease.is_none() && !lessee.onward.is_start() {
                lessee.onward = Onward::START;
                taken = session.lease_tasks(service, lessee).await?;
            }
            session.commit().await?;
            return Ok(self.remember_claimed(taken, lessee, service, worker_host));
        }
        let taken = Event::Taken { worker_host };
        let flowing = Self::lock_flowing(&mut session, service, request.max).await?;
        let mut changes = Changes::new(self.wants_changes(), self.limited());
        let (mut tasks, mut held) = (Vec::new(), Vec::new());
        for mut pending in flowing.rows {
            if let Outcome::Applied(state) = changes.apply(&mut pending.locked, taken.clone(), flowing.now)? {
                tasks.push(Task { state, position: None, ..pending.task });
                held.push(pending.locked);
            }
        }
        let lease = match held.is_empty() {
            true => None,
            false => {
                let ids: Vec<i64> = held.iter().map(|task| task.id).collect();
                Some(session.insert_lease(service, instance, &ids).await?)
            }
        };
        self.write(session, changes).await?;
        if let Some(lease) = lease {
            let listed = LeasedTasks { instance, service, left: held.len(), last: (i64::MAX, i64::MAX) };
            let held = held.into_iter().map(|task| Held { instance, lease, task, taken: None });
            self.leased().take(lease, listed, held.collect());
        }
        Ok(Claimed { tasks: vec![tasks], again: flowing.again })
    }

    /// Begins a new epoch of an instance, so that its cancelled calls lease nothing any more, unless they have locked
    /// the claims of the service: whoever locks those afterwards sees what was leased. This is a transaction of its
    /// own, so that nobody waits for the row of the instance meanwhile. False if the instance is not alive.
    async fn renew(&self, instance: InstanceKey) -> Result<bool, StoreError> {
        let mut session = self.database.begin().await?;
        let renewed = session.renew(instance).await?;
        session.commit().await?;
        let Some(epoch) = renewed else { return Ok(false) };
        let mut own = self.leased();
        let known = own.epochs.entry(instance).or_default();
        *known = epoch.max(*known);
        Ok(true)
    }

    /// Returns tasks that an instance got by a claim whose answer it never received, of a service whose flow is
    /// limited: such tasks were written as started. Ends the session, and begins another.
    async fn give_back_unknown(
        &self,
        mut session: D::Session,
        service: ServiceKey,
        instance: InstanceKey,
        known: &[i64],
    ) -> Result<D::Session, StoreError> {
        let locked = session.lock_leased(instance).await?;
        let mut changes = Changes::new(self.wants_changes(), self.limited());
        for mut task in locked.rows {
            let unknown = task.service == service && !self.leased().tasks.contains_key(&task.task_id);
            if unknown && task.state.status == Status::InProgress {
                changes.apply(&mut task, Event::Returned { attempt: None }, locked.now)?;
            }
        }
        session.drop_unknown(service, instance, known).await?;
        self.write(session, changes).await?;
        self.database.begin().await
    }

    /// Remembers what a claim leased, and how far it has come.
    fn remember_claimed(
        &self,
        taken: Leased,
        lessee: &Lessee,
        service: ServiceKey,
        worker_host: Option<String>,
    ) -> Claimed {
        let (number, last) = (taken.locked.rows.len(), taken.locked.last());
        let claimed = self.remember_leased(taken, lessee.instance, service, worker_host);
        self.leased().went_on(service, lessee, number, last);
        claimed
    }

    /// Remembers what was leased, and starts the tasks.
    fn remember_leased(
        &self,
        taken: Leased,
        instance: InstanceKey,
        service: ServiceKey,
        worker_host: Option<String>,
    ) -> Claimed {
        let Some(lease) = taken.lease else { return Claimed { tasks: vec![Vec::new()], again: None } };
        let last = taken.locked.last();
        let (at, mut rows) = (taken.locked.now, taken.locked.rows);
        if !rows.is_sorted_by_key(LockedPending::position) {
            rows.sort_unstable_by_key(LockedPending::position);
        }
        let event = Event::Taken { worker_host: worker_host.clone() };
        let (mut tasks, mut held) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
        for pending in rows {
            // A pending task can always be started.
            let Ok(state) = apply(&pending.locked.state, &event, at) else { continue };
            tasks.push(Task { state, position: None, ..pending.task });
            held.push(Held { instance, lease, task: pending.locked, taken: Some((at, worker_host.clone())) });
        }
        self.leased().take(lease, LeasedTasks { instance, service, left: held.len(), last }, held);
        Claimed { tasks: vec![tasks], again: None }
    }

    /// Writes results of leased tasks, if these events are nothing else and nobody else has changed the tasks.
    /// Otherwise nothing is done, and they are recorded like all events.
    pub(crate) async fn record_done(&self, events: &[TaskEvent]) -> Result<Option<Vec<Outcome>>, StoreError> {
        let Some((instance, held)) = self.results_of_leased(events) else { return Ok(None) };
        let mut session = self.database.begin().await?;
        let Some(now) = session.hold_instance(instance).await? else {
            session.commit().await?;
            self.leased().forget(instance);
            return Ok(Some(vec![Outcome::Ignored(Ignored::NotHeld); events.len()]));
        };
        let mut changes = Changes::new(self.wants_changes(), self.limited());
        let (mut outcomes, mut known) = (Vec::with_capacity(events.len()), HashMap::with_capacity(events.len()));
        for (held, event) in held.iter().zip(events) {
            let mut task = held.task.clone();
            known.insert(task.id, task.state.revision);
            held.catch_up(&mut task, &mut changes)?;
            match changes.apply(&mut task, event.event.clone(), now)? {
                Outcome::Applied(state) => outcomes.push(Outcome::Applied(state)),
                Outcome::Ignored(_) | Outcome::NotFound => return Ok(None),
            }
        }
        let done: Vec<DoneTask> = changes.take_written().filter_map(|written| done(&known, written)).collect();
        if done.len() != events.len() || session.write_done(&done).await? != done.len() {
            // The session is dropped, and rolled back.
            return Ok(None);
        }
        self.write(session, changes).await?;
        let mut own = self.leased();
        held.iter().for_each(|held| own.end(held.task.task_id, held.lease));
        Ok(Some(outcomes))
    }

    /// The tasks of these events, if all are results of tasks that one instance has leased.
    fn results_of_leased(&self, events: &[TaskEvent]) -> Option<(InstanceKey, Vec<Arc<Held>>)> {
        let own = self.leased();
        if own.tasks.is_empty() {
            return None;
        }
        let mut seen = HashSet::with_capacity(events.len());
        let held = events.iter().map(|TaskEvent { task_id, service, client, event }| {
            let held = own.tasks.get(task_id)?;
            let result = matches!(event, Event::Succeeded { attempt: Some(attempt), .. } if *attempt == held.attempt());
            let mine = held.task.service == *service && client.is_none();
            (result && mine && seen.insert(*task_id)).then(|| Arc::clone(held))
        });
        let held: Vec<Arc<Held>> = held.collect::<Option<_>>()?;
        let instance = held.first()?.instance;
        held.iter().all(|held| held.instance == instance).then_some((instance, held))
    }

    /// The tasks among these that this process has leased. Nobody can take them away until the session ends.
    pub(crate) async fn hold_leased(
        &self,
        session: &mut D::Session,
        tasks: &[TaskId],
    ) -> Result<HashMap<TaskId, Arc<Held>>, StoreError> {
        let mut held: HashMap<TaskId, Arc<Held>> = {
            let own = self.leased();
            tasks.iter().filter_map(|task_id| Some((*task_id, Arc::clone(own.tasks.get(task_id)?)))).collect()
        };
        let instances: BTreeSet<InstanceKey> = held.values().map(|held| held.instance).collect();
        for instance in instances {
            if session.hold_instance(instance).await?.is_none() {
                held.retain(|_, held| held.instance != instance);
                self.leased().forget(instance);
            }
        }
        Ok(held)
    }

    /// Applies the start of leased tasks that are still written as pending, so that an event applies to a running task.
    /// Tells which of these tasks, and of those that have ended, are listed in a lease, and the name of the instance.
    pub(crate) async fn catch_up_with_others(
        session: &mut D::Session,
        tasks: impl Iterator<Item = &mut LockedTask>,
        now: Timestamp,
        changes: &mut Changes,
    ) -> Result<HashMap<i64, String>, StoreError> {
        let looked_at = |status: Status| status == Status::Pending || status.is_final();
        let pending: Vec<&mut LockedTask> =
            tasks.filter(|task| task.may_be_leased && looked_at(task.state.status)).collect();
        if pending.is_empty() {
            return Ok(HashMap::new());
        }
        let leased = session.leased_among(&pending.iter().map(|task| task.id).collect::<Vec<_>>()).await?;
        for task in pending {
            if let Some(name) = leased.get(&task.id).filter(|_| task.state.status == Status::Pending) {
                changes.apply(task, Event::Taken { worker_host: Some(name.clone()) }, now)?;
            }
        }
        Ok(leased)
    }

    /// Remembers what became of leased tasks.
    pub(crate) fn note_leased_tasks(&self, held: HashMap<TaskId, Arc<Held>>, mut tasks: HashMap<TaskId, LockedTask>) {
        let mut own = self.leased();
        for (task_id, held) in held {
            match tasks.remove(&task_id) {
                Some(task) if task.state.status == Status::InProgress && task.state.attempt == held.attempt() => {
                    if let Some(known) = own.tasks.get_mut(&task_id).filter(|known| known.lease == held.lease) {
                        *known = Arc::new(Held { task, taken: None, ..*held });
                    }
                }
                _ => own.end(task_id, held.lease),
            }
        }
    }

    /// Applies the crash policy of an instance, or the decision of an operator, to its tasks, and removes it. Tells how
    /// many tasks it had; none if an operator has to decide first.
    async fn reap_instance(
        &self,
        session: &mut D::Session,
        dead: &LockedInstance,
        decided: Option<Decision>,
        changes: &mut Changes,
    ) -> Result<Option<usize>, StoreError> {
        let decision = match (decided, dead.policy) {
            (Some(decision), _) => decision,
            (None, CrashPolicy::Restart) => Decision::Restart,
            (None, CrashPolicy::Fail) => Decision::Fail,
            (None, CrashPolicy::Refuse) if Self::unfinished(session, dead).await? > 0 => {
                session.leave_undecided(dead.key).await?;
                return Ok(None);
            }
            (None, CrashPolicy::Refuse) => Decision::Restart,
        };
        let locked = session.lock_leased(dead.key).await?;
        let mut tasks = 0;
        for mut task in locked.rows {
            if task.state.status == Status::Pending {
                changes.apply(&mut task, Event::Taken { worker_host: Some(dead.name.clone()) }, locked.now)?;
            }
            let event = fate(decision, &task);
            if task.state.status == Status::InProgress {
                tasks += 1;
                changes.apply(&mut task, event, locked.now)?;
            }
        }
        session.delete_instance(dead.key).await?;
        Ok(Some(tasks))
    }

    /// How many leased tasks of an instance have not ended.
    async fn unfinished(session: &mut D::Session, instance: &LockedInstance) -> Result<usize, StoreError> {
        let locked = session.lock_leased(instance.key).await?;
        Ok(locked.rows.iter().filter(|task| !task.state.status.is_final()).count())
    }
}

/// A result as it is written.
fn done(known: &HashMap<i64, u64>, written: WrittenTask) -> Option<DoneTask> {
    let WrittenTask { id, state, response, .. } = written;
    Some(DoneTask {
        id,
        known: *known.get(&id)?,
        revision: state.revision,
        attempt: state.attempt,
        worker_host: state.worker_host,
        started: state.started,
        ended: state.ended,
        response: response?,
    })
}
