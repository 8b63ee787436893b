//! The leases of this process, as far as it knows, and where its claims continue.

use std::{
    collections::{BTreeSet, HashMap, HashSet, hash_map::Entry},
    sync::Arc,
    time::{Duration, Instant},
};

use relais_core::{Event, InstanceKey, ServiceKey, State, Status, StoreError, TaskId, Timestamp};

use crate::{
    instances::statements::{Lessee, Onward},
    tasks::changes::Changes,
    tasks::statements::LockedTask,
};

/// The leases of this process, as far as it knows.
#[derive(Debug, Default)]
pub(crate) struct InstanceLeases {
    pub(crate) tasks: HashMap<TaskId, Arc<Held>>,
    leases: HashMap<i64, LeasedTasks>,
    /// Leases whose tasks have all ended. The next write removes them.
    pub(crate) done_with: BTreeSet<i64>,
    /// Claims of which it is not known whether they were committed.
    pub(crate) doubtful: HashSet<(InstanceKey, ServiceKey)>,
    /// The epoch of each instance, if it ever began a new one.
    pub(crate) epochs: HashMap<InstanceKey, i64>,
    /// How far claims have come in each queue.
    places: HashMap<(InstanceKey, ServiceKey), Place>,
}

/// An instance that has leased more than so many tasks of a service looks for more behind them. From time to time it
/// looks at the head of the queue, where others may have come.
const MANY: usize = 1000;
const LOOKS_BACK: Duration = Duration::from_millis(100);

/// The place of a task in its queue: its rank and its row.
type Position = (i64, i64);

/// How far the claims of an instance on a service have come.
#[derive(Debug)]
struct Place {
    at: Position,
    /// When a claim last began at the head of the queue.
    looked: Instant,
}

/// A lease: a list of tasks.
#[derive(Debug)]
pub(crate) struct LeasedTasks {
    pub(crate) instance: InstanceKey,
    pub(crate) service: ServiceKey,
    /// How many of its tasks have not ended.
    pub(crate) left: usize,
    /// The place of its last task in the queue.
    pub(crate) last: Position,
}

/// A leased task.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) instance: InstanceKey,
    pub(crate) lease: i64,
    /// The task as it is in the store.
    pub(crate) task: LockedTask,
    /// When it was started, and the name of the instance, as long as that is not written.
    pub(crate) taken: Option<(Timestamp, Option<String>)>,
}

impl Held {
    /// Whether the task has not changed, except that another task depends on it now.
    fn is_only_followed(&self, task: &LockedTask) -> bool {
        let before = &self.task;
        let revision = before.state.revision + 1;
        task.followed && !before.followed && task.state == State { revision, ..before.state.clone() }
    }

    /// The attempt that the instance runs.
    pub(crate) fn attempt(&self) -> u32 {
        self.task.state.attempt + u32::from(self.taken.is_some())
    }

    /// Applies the start of the task, if that is not written and the task has not changed.
    pub(crate) fn catch_up(&self, task: &mut LockedTask, changes: &mut Changes) -> Result<(), StoreError> {
        if let Some((at, worker_host)) = &self.taken
            && task.state.status == Status::Pending
            && (task.state.revision == self.task.state.revision || self.is_only_followed(task))
        {
            changes.apply(task, Event::Taken { worker_host: worker_host.clone() }, *at)?;
        }
        Ok(())
    }
}

impl InstanceLeases {
    /// Begins a claim. It is in doubt until it is known to be committed, since a call may be cancelled half-way.
    pub(crate) fn begin_claim(&mut self, instance: InstanceKey, service: ServiceKey, limit: usize) -> Lessee {
        self.doubtful.insert((instance, service));
        Lessee {
            instance,
            epoch: self.epochs.get(&instance).copied().unwrap_or_default(),
            limit,
            done_with: self.done_with.iter().copied().collect(),
            onward: Onward::START,
        }
    }

    /// Ends a claim that was committed. It has removed these leases.
    pub(crate) fn end_claim(&mut self, instance: InstanceKey, service: ServiceKey, gone: &[i64]) {
        self.doubtful.remove(&(instance, service));
        self.done_with.retain(|lease| !gone.contains(lease));
    }

    /// The leases of an instance on tasks of a service.
    pub(crate) fn leases_of(
        &self,
        instance: InstanceKey,
        service: ServiceKey,
    ) -> impl Iterator<Item = (i64, &LeasedTasks)> {
        let mine = move |lease: &LeasedTasks| lease.instance == instance && lease.service == service;
        self.leases.iter().filter(move |(_, lease)| mine(lease)).map(|(&id, lease)| (id, lease))
    }

    /// Where the next claim begins: behind the leased tasks, if there are many.
    pub(crate) fn onward(&self, instance: InstanceKey, service: ServiceKey) -> Onward {
        let place = self.places.get(&(instance, service)).filter(|place| place.looked.elapsed() < LOOKS_BACK);
        let Some(&Place { at, .. }) = place else { return Onward::START };
        let passed = || self.leases_of(instance, service).filter(|(_, lease)| lease.last <= at);
        match passed().map(|(_, lease)| lease.left).sum::<usize>() > MANY {
            true => Onward { rank: at.0, id: at.1, leases: passed().map(|(id, _)| id).collect() },
            false => Onward::START,
        }
    }

    /// Notes how far a claim has come. If it got all that it asked for, the next one continues behind it.
    pub(crate) fn went_on(&mut self, service: ServiceKey, lessee: &Lessee, taken: usize, last: Position) {
        let key = (lessee.instance, service);
        let looked = match self.places.get(&key).filter(|_| !lessee.onward.is_start()) {
            Some(place) => place.looked,
            None => Instant::now(),
        };
        if taken < lessee.limit {
            self.places.remove(&key);
        } else {
            self.places.insert(key, Place { at: last, looked });
        }
    }

    pub(crate) fn take(&mut self, lease: i64, listed: LeasedTasks, held: Vec<Held>) {
        self.leases.insert(lease, listed);
        for held in held {
            // It may be known from another lease: it was taken away, and is leased again.
            if let Some(before) =
                self.tasks.insert(held.task.task_id, Arc::new(held)).filter(|before| before.lease != lease)
            {
                self.count_down(before.lease);
            }
        }
    }

    /// The task is not leased any more.
    pub(crate) fn end(&mut self, task_id: TaskId, lease: i64) {
        match self.tasks.entry(task_id) {
            Entry::Occupied(held) if held.get().lease == lease => drop(held.remove()),
            _ => return,
        }
        self.count_down(lease);
    }

    /// Counts one task of a lease less.
    fn count_down(&mut self, lease: i64) {
        if let Some(listed) = self.leases.get_mut(&lease) {
            listed.left -= 1;
            if listed.left == 0 {
                self.leases.remove(&lease);
                self.done_with.insert(lease);
            }
        }
    }

    /// Forgets an instance and its leases.
    pub(crate) fn forget(&mut self, instance: InstanceKey) {
        self.tasks.retain(|_, held| held.instance != instance);
        self.leases.retain(|_, lease| lease.instance != instance);
        self.doubtful.retain(|(key, _)| *key != instance);
        self.places.retain(|(key, _), _| *key != instance);
        self.epochs.remove(&instance);
    }
}
