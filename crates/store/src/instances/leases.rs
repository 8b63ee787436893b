//! What this process has in hand, as far as it knows; and where its claims go on.

use std::{
    collections::{BTreeSet, HashMap, HashSet, hash_map::Entry},
    sync::Arc,
    time::{Duration, Instant},
};

use relais_core::{Event, InstanceKey, ServiceKey, State, Status, StoreError, TaskId, Timestamp};

use crate::{
    instances::statements::{Onward, Taker},
    tasks::changes::Changes,
    tasks::statements::LockedTask,
};

/// What this process has in hand, as far as it knows.
#[derive(Debug, Default)]
pub(crate) struct InstanceLeases {
    pub(crate) tasks: HashMap<TaskId, Arc<Held>>,
    hands: HashMap<i64, LeasedTasks>,
    /// All of whose tasks have ended. Whoever writes next removes them.
    pub(crate) done_with: BTreeSet<i64>,
    /// Where it is not known whether a claim was made or not.
    pub(crate) doubtful: HashSet<(InstanceKey, ServiceKey)>,
    /// How often a process gave up what it had under way, if ever.
    pub(crate) epochs: HashMap<InstanceKey, i64>,
    /// How far claims have come.
    places: HashMap<(InstanceKey, ServiceKey), Place>,
}

/// A process that has more than so many tasks of a service in hand looks for more behind them, and at the head of the queue, where others
/// may have come, from time to time.
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

/// A task in hand.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) instance: InstanceKey,
    pub(crate) hand: i64,
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
    pub(crate) fn begin_claim(&mut self, instance: InstanceKey, service: ServiceKey, limit: usize) -> Taker {
        self.doubtful.insert((instance, service));
        Taker {
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
        self.done_with.retain(|hand| !gone.contains(hand));
    }

    /// The hands of a process that list tasks of a service.
    pub(crate) fn hands_of(
        &self,
        instance: InstanceKey,
        service: ServiceKey,
    ) -> impl Iterator<Item = (i64, &LeasedTasks)> {
        let mine = move |hand: &LeasedTasks| hand.instance == instance && hand.service == service;
        self.hands.iter().filter(move |(_, hand)| mine(hand)).map(|(&id, hand)| (id, hand))
    }

    /// Where a process looks for tasks: behind those that it has, if these are many.
    pub(crate) fn onward(&self, instance: InstanceKey, service: ServiceKey) -> Onward {
        let place = self.places.get(&(instance, service)).filter(|place| place.looked.elapsed() < LOOKS_BACK);
        let Some(&Place { at, .. }) = place else { return Onward::START };
        let passed = || self.hands_of(instance, service).filter(|(_, hand)| hand.last <= at);
        match passed().map(|(_, hand)| hand.left).sum::<usize>() > MANY {
            true => Onward { rank: at.0, id: at.1, hands: passed().map(|(id, _)| id).collect() },
            false => Onward::START,
        }
    }

    /// A claim was made there: if it got all that it asked for, the next one goes on behind it.
    pub(crate) fn went_on(&mut self, service: ServiceKey, taker: &Taker, taken: usize, last: Position) {
        let key = (taker.instance, service);
        let looked = match self.places.get(&key).filter(|_| !taker.onward.is_start()) {
            Some(place) => place.looked,
            None => Instant::now(),
        };
        if taken < taker.limit {
            self.places.remove(&key);
        } else {
            self.places.insert(key, Place { at: last, looked });
        }
    }

    pub(crate) fn take(&mut self, hand: i64, listed: LeasedTasks, held: Vec<Held>) {
        self.hands.insert(hand, listed);
        for held in held {
            // It may be known from another list: it was taken away, and is there again.
            if let Some(before) =
                self.tasks.insert(held.task.task_id, Arc::new(held)).filter(|before| before.hand != hand)
            {
                self.count_down(before.hand);
            }
        }
    }

    /// The task is not in hand any more.
    pub(crate) fn end(&mut self, task_id: TaskId, hand: i64) {
        match self.tasks.entry(task_id) {
            Entry::Occupied(held) if held.get().hand == hand => drop(held.remove()),
            _ => return,
        }
        self.count_down(hand);
    }

    /// One less of a list has not ended.
    fn count_down(&mut self, hand: i64) {
        if let Some(listed) = self.hands.get_mut(&hand) {
            listed.left -= 1;
            if listed.left == 0 {
                self.hands.remove(&hand);
                self.done_with.insert(hand);
            }
        }
    }

    /// The process is not known any more, and has nothing.
    pub(crate) fn forget(&mut self, instance: InstanceKey) {
        self.tasks.retain(|_, held| held.instance != instance);
        self.hands.retain(|_, hand| hand.instance != instance);
        self.doubtful.retain(|(key, _)| *key != instance);
        self.places.retain(|(key, _), _| *key != instance);
        self.epochs.remove(&instance);
    }
}
