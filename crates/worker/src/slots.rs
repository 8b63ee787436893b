//! The tasks that this worker has, and how many more it can take.
//!
//! A task takes a slot while its handler runs. It is *held*, and its lease extended, until the server has its result.
//! Pure bookkeeping: no calls, no clock.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// One attempt of one task. The same task can be here twice: lost, given out again, and claimed by the same worker
/// while the handler of the first attempt has not stopped yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TaskKey {
    pub task_id: Arc<str>,
    pub attempt: Option<u32>,
    /// Which delivery it came with, where the transport tells them apart by this and not by the attempt.
    pub delivery: u64,
}

/// What to do with the return of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Report it to the server.
    Report,
    /// The server took the task away.
    Gone,
    /// The worker stopped the handler: the task will be returned.
    Stopped,
}

/// What is left when the worker stops.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Leftovers {
    /// To be returned.
    pub unfinished: Vec<TaskKey>,
    /// Taken away, but their handlers never noticed.
    pub gone: Vec<TaskKey>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    Finished,
    Gone,
    Stopped,
}

#[derive(Debug)]
struct Entry {
    phase: Phase,
    cancel: CancellationToken,
}

/// The tasks that this worker holds.
#[derive(Debug)]
pub(crate) struct Slots {
    concurrency: usize,
    /// Locked for moments only, never across an await.
    held: Mutex<HashMap<TaskKey, Entry>>,
    /// Something was let go: there may be a free slot. One waiter, the claim loop.
    changed: Notify,
    /// How many are held; sent whenever one is taken or released.
    count: watch::Sender<usize>,
}

impl Slots {
    pub fn new(concurrency: usize) -> Self {
        Self { concurrency, held: Mutex::default(), changed: Notify::new(), count: watch::Sender::new(0) }
    }

    /// How many more tasks can be taken. Unsent results count once there are as many as slots: a worker that can claim
    /// but not report must not go on for ever.
    pub fn free(&self) -> usize {
        let held = self.lock();
        let finished = held.values().filter(|entry| entry.phase == Phase::Finished).count();
        let occupied = held.len() - finished;
        self.concurrency.saturating_sub(occupied).min((2 * self.concurrency).saturating_sub(held.len()))
    }

    /// Waits for a free slot, and says how many there are.
    pub async fn wait_for_free(&self) -> usize {
        loop {
            let changed = self.changed.notified();
            match self.free() {
                0 => changed.await,
                free => return free,
            }
        }
    }

    /// How many tasks are held, and when that changes.
    pub fn count(&self) -> watch::Receiver<usize> {
        self.count.subscribe()
    }

    /// A task was claimed. None if it is here already, which only a confused server could bring about.
    pub fn take(&self, key: TaskKey) -> Option<CancellationToken> {
        let mut held = self.lock();
        if held.contains_key(&key) {
            return None;
        }
        let cancel = CancellationToken::new();
        held.insert(key, Entry { phase: Phase::Running, cancel: cancel.clone() });
        self.count.send_replace(held.len());
        Some(cancel)
    }

    /// Its handler returned. After a stop, its return is ignored: it may well be the error of the stop.
    pub fn finish(&self, key: &TaskKey) -> Ending {
        let mut held = self.lock();
        let ending = match held.get_mut(key) {
            Some(entry) if entry.phase == Phase::Running => {
                entry.phase = Phase::Finished;
                Ending::Report
            }
            Some(entry) if entry.phase == Phase::Stopped => Ending::Stopped,
            _ => {
                held.remove(key);
                Ending::Gone
            }
        };
        self.count.send_replace(held.len());
        drop(held);
        self.changed.notify_one();
        ending
    }

    /// The server has its result.
    pub fn release(&self, key: &TaskKey) {
        let mut held = self.lock();
        held.remove(key);
        self.count.send_replace(held.len());
        drop(held);
        self.changed.notify_one();
    }

    /// The server says that the task is no longer this worker's. A result on its way is left alone: it will get its own
    /// answer.
    pub fn gone(&self, key: &TaskKey) {
        if let Some(entry) = self.lock().get_mut(key)
            && entry.phase == Phase::Running
        {
            entry.phase = Phase::Gone;
            entry.cancel.cancel();
        }
    }

    /// The tasks whose leases must be extended.
    pub fn alive(&self) -> Vec<TaskKey> {
        let held = self.lock();
        held.iter().filter(|(_, entry)| entry.phase != Phase::Gone).map(|(key, _)| key.clone()).collect()
    }

    /// Whether its handler is at work, for somebody who wants to know about it.
    pub fn is_running(&self, key: &TaskKey) -> bool {
        self.lock().get(key).is_some_and(|entry| entry.phase == Phase::Running)
    }

    /// Its handler wants it to be returned. It stays held until that is done: see [`Slots::release`].
    pub fn hand_over(&self, key: &TaskKey) -> Ending {
        match self.lock().get_mut(key) {
            Some(entry) if entry.phase == Phase::Running => {
                entry.phase = Phase::Stopped;
                return Ending::Report;
            }
            Some(entry) if entry.phase == Phase::Stopped => return Ending::Stopped,
            _ => {}
        }
        self.finish(key)
    }

    /// How many handlers run.
    #[cfg_attr(not(feature = "health"), expect(dead_code, reason = "only probes ask"))]
    pub fn running(&self) -> usize {
        self.lock().values().filter(|entry| entry.phase != Phase::Finished).count()
    }

    /// Stops every running handler; their tasks will be returned.
    pub fn stop(&self) {
        for entry in self.lock().values_mut() {
            if entry.phase == Phase::Running {
                entry.phase = Phase::Stopped;
                entry.cancel.cancel();
            }
        }
    }

    /// Removes everything that has no result. No handler may run any more.
    pub fn leftovers(&self) -> Leftovers {
        let mut leftovers = Leftovers::default();
        self.lock().retain(|key, entry| {
            match entry.phase {
                Phase::Finished => return true,
                Phase::Gone => leftovers.gone.push(key.clone()),
                Phase::Running | Phase::Stopped => leftovers.unfinished.push(key.clone()),
            }
            false
        });
        leftovers
    }

    /// How many results the server does not have yet.
    pub fn unsent(&self) -> usize {
        self.lock().values().filter(|entry| entry.phase == Phase::Finished).count()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TaskKey, Entry>> {
        // Nothing in here panics half way: a poisoned map is still a good one.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(task_id: &str, attempt: u32) -> TaskKey {
        TaskKey { task_id: task_id.into(), attempt: Some(attempt), delivery: 0 }
    }

    #[test]
    fn a_slot_is_free_again_when_its_handler_returns() {
        let slots = Slots::new(2);
        assert_eq!(slots.free(), 2);
        slots.take(key("a", 1)).unwrap();
        slots.take(key("b", 1)).unwrap();
        assert_eq!(slots.free(), 0);
        assert_eq!(slots.finish(&key("a", 1)), Ending::Report);
        assert_eq!(slots.free(), 1, "its result still has to be told, but that takes no slot");
        assert_eq!(slots.alive().len(), 2, "its lease has to be kept until the server has the result");
        slots.release(&key("a", 1));
        assert_eq!((slots.free(), slots.alive()), (1, vec![key("b", 1)]));
    }

    #[test]
    fn unsent_results_stop_new_claims() {
        let slots = Slots::new(2);
        for name in ["a", "b", "c"] {
            slots.take(key(name, 1)).unwrap();
            slots.finish(&key(name, 1));
        }
        assert_eq!(slots.free(), 1);
        slots.take(key("d", 1)).unwrap();
        slots.finish(&key("d", 1));
        assert_eq!((slots.free(), slots.unsent()), (0, 4));
        slots.release(&key("a", 1));
        assert_eq!(slots.free(), 1);
    }

    #[test]
    fn a_task_with_a_lost_lease_keeps_its_slot_until_its_handler_returns() {
        let slots = Slots::new(1);
        let cancel = slots.take(key("a", 1)).unwrap();
        slots.gone(&key("a", 1));
        assert!(cancel.is_cancelled());
        assert_eq!((slots.free(), slots.alive().len()), (0, 0));
        assert_eq!(slots.finish(&key("a", 1)), Ending::Gone);
        assert_eq!(slots.free(), 1);
    }

    #[test]
    fn attempts_at_the_same_task_are_apart() {
        let slots = Slots::new(2);
        let first = slots.take(key("a", 1)).unwrap();
        let second = slots.take(key("a", 2)).unwrap();
        assert!(slots.take(key("a", 2)).is_none());
        slots.gone(&key("a", 1));
        assert!(first.is_cancelled() && !second.is_cancelled());
    }

    #[test]
    fn a_task_with_a_result_is_never_returned() {
        let slots = Slots::new(4);
        for name in ["finished", "running", "gone", "stopped"] {
            slots.take(key(name, 1)).unwrap();
        }
        slots.finish(&key("finished", 1));
        slots.gone(&key("finished", 1));
        slots.gone(&key("gone", 1));
        slots.stop();
        assert_eq!(slots.finish(&key("stopped", 1)), Ending::Stopped);
        let mut leftovers = slots.leftovers();
        leftovers.unfinished.sort_by(|a, b| a.task_id.cmp(&b.task_id));
        assert_eq!(
            leftovers,
            Leftovers { unfinished: vec![key("running", 1), key("stopped", 1)], gone: vec![key("gone", 1)] }
        );
        assert_eq!(slots.unsent(), 1);
    }
}
