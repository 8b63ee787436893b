//! The hub: wakes those who wait in this process.
//!
//! Wake-ups are hints: a waiter that is woken reads the store again. A lost hint costs time, never correctness, because
//! every waiter also looks periodically.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use relais_core::{IdsChanged, QueueDepth, ServiceKey, Wakeup, WakeupListener};
use tokio::sync::{Notify, watch};

use crate::dispatch::Watermark;

/// How many lanes are remembered by name.
const MOST_LANES: usize = 10_000;

/// Counts changes by kind, for those who watch many things at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pulse {
    /// Of tasks.
    pub(crate) tasks: u64,
    /// Of declarations.
    pub(crate) declared: u64,
    /// Of callbacks.
    pub(crate) callbacks: u64,
    /// Found by a look, not by a wake-up.
    pub(crate) swept: u64,
}

/// Receives the store's wake-ups and passes them on.
#[derive(Default)]
pub(crate) struct WakeupHub {
    /// The watched tasks, by `id`.
    watched: Mutex<HashMap<i64, watch::Sender<u64>>>,
    /// Services that have had new work since the claim coordinator last looked. Bounded by the number of services.
    work: Mutex<HashSet<ServiceKey>>,
    /// Notified when `work` has something.
    pub(crate) work_bell: Notify,
    /// Lanes that had due callbacks since the last look, and whether others may have had some.
    callbacks: Mutex<(HashSet<i64>, bool)>,
    /// Notified when `callbacks` has something.
    pub(crate) callbacks_bell: Notify,
    /// Notified when there are dispatches that no process has taken.
    pub(crate) dispatch_bell: Notify,
    /// The services that may have such dispatches.
    pub(crate) watermark: Watermark,
    /// The watched queues.
    queues: Mutex<Queues>,
    /// Notified when a watched queue must be read.
    pub(crate) queues_bell: Notify,
    /// Notified when a timer fires sooner than was known.
    pub(crate) timer_bell: Notify,
    /// Notified when there may be transactional submissions.
    pub(crate) submissions_bell: Notify,
    /// Notified when the declaration has changed.
    pub(crate) declared_bell: Notify,
    /// Notified when anything may have happened.
    pub(crate) sweep_bell: Notify,
    /// The counts, for those who watch many things at once.
    pub(crate) pulse: watch::Sender<Pulse>,
    /// How many changes of tasks were announced at the last look.
    looked: AtomicU64,
    /// Other parts of this process that wait, such as notifications.
    others: RwLock<Vec<Arc<dyn WakeupListener>>>,
}

impl WakeupHub {
    /// Watches a task from now on.
    pub(crate) fn watch(self: &Arc<Self>, id: i64) -> Watch {
        let receiver = lock(&self.watched).entry(id).or_insert_with(|| watch::channel(0).0).subscribe();
        Watch { hub: Arc::clone(self), id, receiver: Some(receiver) }
    }

    /// The services that have had new work since the last call.
    pub(crate) fn take_work(&self) -> HashSet<ServiceKey> {
        std::mem::take(&mut *lock(&self.work))
    }

    /// The lanes that had due callbacks since the last call, and whether others may have had some.
    pub(crate) fn take_callbacks(&self) -> (HashSet<i64>, bool) {
        std::mem::take(&mut *lock(&self.callbacks))
    }

    /// Watches a queue: it is read now, and whenever it may have changed.
    pub(crate) fn watch_queue(&self, service: ServiceKey) -> watch::Receiver<Option<QueueDepth>> {
        let mut queues = lock(&self.queues);
        let receiver = queues.watched.entry(service).or_insert_with(|| watch::channel(None).0).subscribe();
        queues.due.insert(service);
        drop(queues);
        self.queues_bell.notify_one();
        receiver
    }

    /// Forgets a queue that nobody watches any more.
    pub(crate) fn forget_queue(&self, service: ServiceKey) {
        let mut queues = lock(&self.queues);
        if queues.watched.get(&service).is_some_and(|sender| sender.receiver_count() == 0) {
            queues.watched.remove(&service);
            queues.due.remove(&service);
        }
    }

    /// The watched queues that may have changed since the last call; with `all`, the others too.
    pub(crate) fn take_queues(&self, all: bool) -> Vec<ServiceKey> {
        let mut queues = lock(&self.queues);
        let due = std::mem::take(&mut queues.due);
        queues.looking = if all { queues.watched.keys().copied().collect() } else { due };
        queues.looking.iter().copied().collect()
    }

    /// Whether any queue is watched.
    pub(crate) fn watches_queues(&self) -> bool {
        !lock(&self.queues).watched.is_empty()
    }

    /// Sends these depths to those who watch the queues.
    pub(crate) fn tell_depths(&self, depths: &[QueueDepth]) {
        let mut queues = lock(&self.queues);
        queues.looking.clear();
        for depth in depths {
            if let Some(sender) = queues.watched.get(&depth.service) {
                sender.send_if_modified(|last| {
                    let before = last.replace(*depth);
                    before.map(|before| (before.pending, before.in_progress))
                        != Some((depth.pending, depth.in_progress))
                });
            }
        }
    }

    /// Counts something that happened.
    pub(crate) fn bump(&self, count: impl FnOnce(&mut Pulse)) {
        self.pulse.send_modify(count);
    }

    /// A look has found changes of tasks. They are announced, unless a wake-up has announced them.
    pub(crate) fn found_changes(&self) {
        let told = self.pulse.borrow().tasks;
        if self.looked.swap(told, Ordering::Relaxed) == told {
            self.bump(|pulse| {
                pulse.tasks += 1;
                pulse.swept += 1;
            });
            self.looked.store(told + 1, Ordering::Relaxed);
        }
    }

    /// From now on `other` gets each wake-up too, whichever way it came.
    pub(crate) fn pass_on_to(&self, other: Arc<dyn WakeupListener>) {
        self.others.write().unwrap_or_else(PoisonError::into_inner).push(other);
    }

    /// How many tasks are watched.
    pub(crate) fn watched(&self) -> usize {
        lock(&self.watched).len()
    }
}

/// The watched queues, and those that must be read.
#[derive(Default)]
struct Queues {
    watched: HashMap<ServiceKey, watch::Sender<Option<QueueDepth>>>,
    due: HashSet<ServiceKey>,
    /// Being read: the answer may be older than the change.
    looking: HashSet<ServiceKey>,
}

impl Queues {
    /// Marks what may have changed. A wake-up names tasks, not their services, so any service with tasks may be meant.
    fn hear(&mut self, wakeup: &Wakeup) {
        let tasks_changed = wakeup.tasks != IdsChanged::These(Vec::new());
        for (service, sender) in &self.watched {
            let busy = || self.looking.contains(service) || sender.borrow().is_none_or(|depth| depth.backlog() > 0);
            if wakeup.work.contains(service) || wakeup.tasks == IdsChanged::Perhaps || (tasks_changed && busy()) {
                self.due.insert(*service);
            }
        }
    }
}

impl WakeupListener for WakeupHub {
    fn wake(&self, wakeup: &Wakeup) {
        for other in self.others.read().unwrap_or_else(PoisonError::into_inner).iter() {
            other.wake(wakeup);
        }
        let mut queues = lock(&self.queues);
        if !queues.watched.is_empty() {
            queues.hear(wakeup);
            if !queues.due.is_empty() {
                self.queues_bell.notify_one();
            }
        }
        drop(queues);
        self.bump(|pulse| {
            // New work is a task that was submitted or returned.
            pulse.tasks += u64::from(!wakeup.work.is_empty() || wakeup.tasks != IdsChanged::These(Vec::new()));
            pulse.declared += u64::from(wakeup.declared);
            pulse.callbacks += u64::from(!wakeup.callbacks.is_empty());
        });
        if !wakeup.work.is_empty() {
            lock(&self.work).extend(wakeup.work.iter().copied());
            self.work_bell.notify_one();
        }
        if !wakeup.callbacks.is_empty() || wakeup.tasks == IdsChanged::Perhaps {
            let mut callbacks = lock(&self.callbacks);
            // Bounded where this process sends no callbacks: a sender then looks at everything.
            if callbacks.0.len() + wakeup.callbacks.len() > MOST_LANES {
                *callbacks = (HashSet::new(), true);
            }
            callbacks.0.extend(wakeup.callbacks.iter().copied());
            callbacks.1 |= wakeup.tasks == IdsChanged::Perhaps;
            drop(callbacks);
            self.callbacks_bell.notify_one();
        }
        if !wakeup.dispatch.is_empty() {
            self.watermark.note(wakeup.dispatch.iter().copied());
            self.dispatch_bell.notify_one();
        }
        if wakeup.tasks == IdsChanged::Perhaps {
            // Only the names of the tasks were too many; the other topics are exact.
            if wakeup.declared {
                self.watermark.note_all();
            }
            self.dispatch_bell.notify_one();
        }
        if wakeup.timer.is_some() || wakeup.tasks == IdsChanged::Perhaps {
            self.timer_bell.notify_one();
        }
        if wakeup.submissions {
            self.submissions_bell.notify_one();
        }
        match &wakeup.tasks {
            IdsChanged::These(ids) if ids.is_empty() => {}
            IdsChanged::These(ids) => {
                let watched = lock(&self.watched);
                if !watched.is_empty() {
                    for id in ids {
                        if let Some(sender) = watched.get(id) {
                            sender.send_modify(|changes| *changes += 1);
                        }
                    }
                }
            }
            IdsChanged::Perhaps => {
                for sender in lock(&self.watched).values() {
                    sender.send_modify(|changes| *changes += 1);
                }
                self.sweep_bell.notify_one();
            }
        }
        if wakeup.declared {
            self.declared_bell.notify_one();
            // A service that goes on has tasks to be claimed.
            self.sweep_bell.notify_one();
        }
    }
}

/// Watches one task until it is dropped.
pub(crate) struct Watch {
    hub: Arc<WakeupHub>,
    id: i64,
    receiver: Option<watch::Receiver<u64>>,
}

impl Watch {
    /// Returns when the task may have changed since the last call.
    pub(crate) async fn changed(&mut self) {
        if let Some(receiver) = &mut self.receiver
            && receiver.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.receiver = None;
        let mut watched = lock(&self.hub.watched);
        if watched.get(&self.id).is_some_and(|sender| sender.receiver_count() == 0) {
            watched.remove(&self.id);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(ids: Vec<i64>) -> Wakeup {
        Wakeup { tasks: IdsChanged::These(ids), ..Wakeup::default() }
    }

    #[tokio::test]
    async fn a_change_before_the_wait_is_not_missed_and_nothing_is_kept_afterwards() {
        let hub = Arc::new(WakeupHub::default());
        let (mut one, mut same) = (hub.watch(7), hub.watch(7));
        hub.wake(&changed(vec![6, 7]));
        one.changed().await;
        same.changed().await;
        assert!(futures::FutureExt::now_or_never(one.changed()).is_none(), "one change wakes once");
        hub.wake(&Wakeup::anything());
        one.changed().await;
        drop(one);
        assert_eq!(hub.watched(), 1);
        drop(same);
        assert_eq!(hub.watched(), 0);
    }

    #[test]
    fn the_sweep_wakes_only_waiters_that_no_wakeup_has_reached() {
        let hub = WakeupHub::default();
        let told = || hub.pulse.borrow().tasks;
        hub.wake(&changed(vec![7]));
        assert_eq!(told(), 1);
        hub.found_changes();
        assert_eq!(told(), 1, "a wake-up has told it");
        hub.found_changes();
        assert_eq!(told(), 2, "a wake-up was lost");
        hub.found_changes();
        assert_eq!(told(), 3, "and another one");
    }

    #[test]
    fn a_followed_queue_is_read_when_it_may_have_changed() {
        let (hub, service, other) = (WakeupHub::default(), ServiceKey(1), ServiceKey(2));
        let depth = |pending| QueueDepth { service, pending, in_progress: 0, oldest_pending: None };
        let work = |service| Wakeup { work: vec![service], ..Wakeup::default() };
        let mut seen = hub.watch_queue(service);
        assert_eq!(hub.take_queues(false), [service], "to begin with");
        // Ended while it is being looked at: what was read may be older.
        hub.wake(&changed(vec![7]));
        hub.tell_depths(&[depth(1)]);
        assert_eq!(*seen.borrow_and_update(), Some(depth(1)));
        assert_eq!(hub.take_queues(false), [service]);
        hub.tell_depths(&[depth(0)]);
        assert!(seen.has_changed().is_ok_and(|changed| changed));
        // An empty queue has no tasks that could change, and other services' work is not its own.
        hub.wake(&changed(vec![8]));
        hub.wake(&work(other));
        assert_eq!(hub.take_queues(false), []);
        hub.wake(&work(service));
        assert_eq!(hub.take_queues(false), [service]);
        drop(seen);
        hub.forget_queue(service);
        hub.wake(&Wakeup::anything());
        assert!(!hub.watches_queues() && hub.take_queues(true).is_empty());
    }
}
