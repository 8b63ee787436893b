//! The leases of this process, as far as it knows; and where its claims go on.

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
    /// All of whose tasks have ended. Whoever writes next removes them.
    pub(crate) done_with: BTreeSet<i64>,
    /// Where it is not known whether a claim was made or not.
    pub(crate) doubtful: HashSet<(InstanceKey, ServiceKey)>,
    /// How often a process gave up what it had under way, if ever.
    pub(crate) epochs: HashMap<InstanceKey, i64>,
    /// How far claims have come.
    places: HashMap<(InstanceKey, ServiceKey), Place>,
}

/// An instance that has leased more than so many tasks of a service looks for more behind them. From time to time it
/// looks at the head of the queue, where others may have come.
const MANY: usize = 1000;
const LOOKS_BACK: Duration = Duration::from_millis(100);

/// The rank and the row of a task: where it stands in its queue.
type Position = (i64, i64);

/// How far claims of a process on a service have come.
#[derive(Debug)]
struct Place {
    at: Position,
    /// When it looked from the head of the queue.
    looked: Instant,
}

/// A list of tasks.
#[derive(Debug)]
pub(crate) struct LeasedTasks {
    pub(crate) instance: InstanceKey,
    pub(crate) service: ServiceKey,
    /// So many of them have not ended.
    pub(crate) left: usize,
    /// Where the last of them stood.
    pub(crate) last: Position,
}

/// A leased task.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) instance: InstanceKey,
    pub(crate) lease: i64,
    /// As it is in the store.
    pub(crate) task: LockedTask,
    /// When it was taken, and what the process is called, while that is not written.
    pub(crate) taken: Option<(Timestamp, Option<String>)>,
}

impl Held {
    /// Whether nothing has happened to the task since, but that another one waits for it now.
    fn is_only_followed(&self, task: &LockedTask) -> bool {
        let before = &self.task;
        let revision = before.state.revision + 1;
        task.followed && !before.followed && task.state == State { revision, ..before.state.clone() }
    }

    /// The attempt that the process is at.
    pub(crate) fn attempt(&self) -> u32 {
        self.task.state.attempt + u32::from(self.taken.is_some())
    }

    /// Says that it was taken, where that is not written, and the task is still what it was.
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
    /// A claim begins. It is in doubt until it is known that it was made: a call may be given up half-way.
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

    /// It was made, and these went with it.
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

    /// Where a process looks for tasks: behind those that it has, if these are many.
    pub(crate) fn onward(&self, instance: InstanceKey, service: ServiceKey) -> Onward {
        let place = self.places.get(&(instance, service)).filter(|place| place.looked.elapsed() < LOOKS_BACK);
        let Some(&Place { at, .. }) = place else { return Onward::START };
        let passed = || self.leases_of(instance, service).filter(|(_, lease)| lease.last <= at);
        match passed().map(|(_, lease)| lease.left).sum::<usize>() > MANY {
            true => Onward { rank: at.0, id: at.1, leases: passed().map(|(id, _)| id).collect() },
            false => Onward::START,
        }
    }

    /// A claim was made there: if it got all that it asked for, the next one goes on behind it.
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
            // It may be known from another list: it was taken away, and is there again.
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

    /// One less of a list has not ended.
    fn count_down(&mut self, lease: i64) {
        if let Some(listed) = self.leases.get_mut(&lease) {
            listed.left -= 1;
            if listed.left == 0 {
                self.leases.remove(&lease);
                self.done_with.insert(lease);
            }
        }
    }

    /// The process is not known any more, and has nothing.
    pub(crate) fn forget(&mut self, instance: InstanceKey) {
        self.tasks.retain(|_, held| held.instance != instance);
        self.leases.retain(|_, lease| lease.instance != instance);
        self.doubtful.retain(|(key, _)| *key != instance);
        self.places.retain(|(key, _), _| *key != instance);
        self.epochs.remove(&instance);
    }
}
