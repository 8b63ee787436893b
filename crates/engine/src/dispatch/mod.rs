//! Dispatch: publishes tasks to a broker, and consumes the messages of workers.
//!
//! A dispatch row is written with the task. After the commit, the process that accepted the task publishes it from
//! memory ([`publisher`]). A sweep finds what was left behind by a process that died or a broker that was away
//! ([`sweep`]). [`queues`] declares the queues, and [`track`] consumes the messages of workers. [`revocations`] tells
//! workers to stop tasks.
//!
//! A task may be published twice, but never before its commit. Its row is removed after the broker's confirmation, so
//! no task is forgotten.

mod dead_letters;
mod publisher;
mod queues;
mod revocations;
mod sweep;
mod track;
mod watermark;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use relais_core::{
    DispatchName, DueDispatch, Mailbox, NewTask, Publisher, Service, ServiceKey, Submission, TaskBroker,
    TaskBrokerState, TaskId, TaskTransport,
};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc},
    time::Instant,
};

use crate::Engine;

pub use dead_letters::MOST_DEAD_LETTERS;
pub(crate) use publisher::give_back;
pub(crate) use watermark::Watermark;

/// How long the dispatch of a new task is reserved for the process that accepted it.
const HOLD: Duration = Duration::from_secs(15);

/// How many tasks may wait in memory to be published; the rest is left to the sweep.
const MOST_PUBLICATIONS: usize = 20_000;

/// How many KiB they may have.
const MOST_KIB: usize = 64 * 1024;

/// The settings of dispatch.
#[derive(Clone)]
pub struct DispatchOptions {
    /// The broker, if there is one.
    pub task_broker: Option<Arc<dyn TaskBroker>>,
    /// Whether this process publishes.
    pub publish: bool,
    /// Whether this process consumes the messages of workers.
    pub track: bool,
    /// How many messages of workers it prefetches, of each service.
    pub ahead: u16,
    /// How long a queue may be empty while a published task waits. After that, the task counts as lost.
    pub patience: Duration,
}

impl Default for DispatchOptions {
    fn default() -> Self {
        Self { task_broker: None, publish: true, track: true, ahead: 1000, patience: Duration::from_secs(60) }
    }
}

impl std::fmt::Debug for DispatchOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DispatchOptions")
            .field("task_broker", &self.task_broker.as_ref().map(|task_broker| task_broker.state()))
            .field("publish", &self.publish)
            .field("track", &self.track)
            .field("ahead", &self.ahead)
            .field("patience", &self.patience)
            .finish()
    }
}

/// A task in memory that was just accepted.
pub(crate) struct Publication {
    task: DueDispatch,
    /// Its part of the memory limit.
    _room: OwnedSemaphorePermit,
}

/// The tasks that wait to be published, and what is known of the queues.
pub(crate) struct Dispatcher {
    publications: mpsc::Sender<Publication>,
    room: Arc<Semaphore>,
    /// Services whose tasks the broker refuses for now: until when, and whether a queue is missing.
    parked: Mutex<HashMap<ServiceKey, (Instant, bool)>>,
    /// Services whose queues this process has checked.
    known: Mutex<HashSet<ServiceKey>>,
    /// How many dead letters of each service this process has stored, less those replayed or discarded.
    dead_letters: Mutex<HashMap<ServiceKey, u64>>,
    /// Services whose queue is empty while published tasks wait: the oldest of those, and since when.
    suspects: Mutex<HashMap<ServiceKey, Suspect>>,
    /// Notified when a queue may be missing.
    queues_bell: Notify,
}

/// A published task that is not at the broker.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    task_id: TaskId,
    since: Instant,
    /// Whether that has lasted long enough.
    lost: bool,
}

impl Dispatcher {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Publication>) {
        let (publications, waiting) = mpsc::channel(MOST_PUBLICATIONS);
        let room = Arc::new(Semaphore::new(MOST_KIB));
        let dispatcher = Self {
            publications,
            room,
            parked: Mutex::default(),
            known: Mutex::default(),
            dead_letters: Mutex::default(),
            suspects: Mutex::default(),
            queues_bell: Notify::new(),
        };
        (dispatcher, waiting)
    }

    /// The tasks of a batch that this process will publish, before the batch is submitted.
    pub(crate) fn pick(tasks: &[NewTask]) -> Vec<Option<DueDispatch>> {
        let ours = |task: &NewTask| {
            let at_once = |publisher: &&Publisher| !publisher.held.is_zero() && task.terms.due.is_none();
            let publisher = task.dispatch.as_ref().filter(at_once)?;
            let name = DispatchName {
                service: task.service,
                queue: Arc::clone(&publisher.queue),
                round: 0,
                task_id: task.task_id,
            };
            let (request, correlation_id) = (Some(task.request.clone()), task.correlation_id.clone());
            let trace = task.links.trace.clone();
            let (priority, timeout) = (task.terms.priority, task.terms.timeout);
            Some(DueDispatch { name, request, correlation_id, trace, priority, timeout, revision: 0 })
        };
        tasks.iter().map(ours).collect()
    }

    /// Queues the committed tasks, up to the first for which there is no room: that one and the rest are left to the
    /// sweep.
    #[must_use]
    pub(crate) fn offer(&self, picked: Vec<Option<DueDispatch>>, answers: &[Submission]) -> Vec<DispatchName> {
        let committed = picked.into_iter().zip(answers).filter_map(|(task, answer)| {
            let is_new = answer.as_ref().is_ok_and(|submitted| submitted.is_new());
            task.filter(|_| is_new)
        });
        let mut left = Vec::new();
        for task in committed {
            let name = task.name.clone();
            if !left.is_empty() || !self.take(task) {
                left.push(name);
            }
        }
        left
    }

    /// Queues a task to be published, if there is room for it.
    fn take(&self, task: DueDispatch) -> bool {
        let kib = task.request.as_ref().map_or(1, |request| 1 + request.get().len() / 1024);
        let kib = u32::try_from(kib).unwrap_or(u32::MAX);
        let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(kib) else { return false };
        self.publications.try_send(Publication { task, _room: room }).is_ok()
    }

    /// Counts dead letters of a service.
    fn count_dead_letters(&self, service: ServiceKey, count: u64) {
        *self.dead_letters.lock().unwrap_or_else(PoisonError::into_inner).entry(service).or_default() += count;
    }

    /// Counts dead letters that an operator has replayed or discarded.
    fn uncount_dead_letters(&self, service: ServiceKey, count: u64) {
        let mut letters = self.dead_letters.lock().unwrap_or_else(PoisonError::into_inner);
        let left = letters.get(&service).copied().unwrap_or_default().saturating_sub(count);
        if left == 0 {
            letters.remove(&service)
        } else {
            letters.insert(service, left)
        };
    }

    /// How many dead letters each service has, as far as this process knows.
    pub(crate) fn dead_letters(&self) -> Vec<(ServiceKey, u64)> {
        let letters = self.dead_letters.lock().unwrap_or_else(PoisonError::into_inner);
        letters.iter().map(|(service, count)| (*service, *count)).collect()
    }

    /// Records that the broker lacks this task, or that nothing is wrong. Returns whether it is new that tasks are
    /// lost.
    fn suspect(&self, service: ServiceKey, task: Option<TaskId>, patience: Duration) -> bool {
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(task_id) = task else {
            suspects.remove(&service);
            return false;
        };
        let now = Instant::now();
        let fresh = Suspect { task_id, since: now, lost: false };
        let suspect = suspects.entry(service).or_insert(fresh);
        if suspect.task_id != task_id {
            *suspect = fresh;
        }
        now.duration_since(suspect.since) >= patience && !std::mem::replace(&mut suspect.lost, true)
    }

    /// The services of which the broker has lost tasks, as far as this process can see.
    pub(crate) fn lost(&self) -> Vec<ServiceKey> {
        let suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        suspects.iter().filter(|(_, suspect)| suspect.lost).map(|(service, _)| *service).collect()
    }

    /// Whether there is room for new tasks.
    fn keeps_up(&self) -> bool {
        self.publications.capacity() > MOST_PUBLICATIONS / 2 && self.room.available_permits() > MOST_KIB / 2
    }

    /// Whether this process checks the queues of a service for the first time.
    fn is_new(&self, service: ServiceKey) -> bool {
        !self.known.lock().unwrap_or_else(PoisonError::into_inner).contains(&service)
    }

    fn is_known(&self, service: ServiceKey) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(service);
    }

    /// Pauses publishing for a service for a while. Returns whether that is new.
    fn park(&self, service: ServiceKey, pause: Duration, missing: bool) -> bool {
        let now = Instant::now();
        let mut parked = self.parked();
        let before = parked.get(&service).copied().filter(|(until, _)| *until >= now);
        let (until, was_missing) = before.unwrap_or((now, false));
        parked.insert(service, (until.max(now + pause), missing || was_missing));
        before.is_none()
    }

    fn is_parked(&self, service: ServiceKey) -> bool {
        self.parked().get(&service).is_some_and(|(until, _)| *until > Instant::now())
    }

    /// How long until publishing continues for the next refused service. A missing queue ends by [`Self::is_found`]
    /// instead.
    fn parked_for(&self) -> Option<Duration> {
        let now = Instant::now();
        let refused =
            self.parked().values().filter(|(_, missing)| !missing).map(|(until, _)| *until).collect::<Vec<_>>();
        refused.into_iter().filter(|until| *until > now).min().map(|until| until - now)
    }

    /// The queue of a service exists again. Returns whether it was missing.
    fn is_found(&self, service: ServiceKey) -> bool {
        let mut parked = self.parked();
        let missed = parked.get(&service).is_some_and(|(_, missing)| *missing);
        if missed {
            parked.remove(&service);
        }
        missed
    }

    fn parked(&self) -> MutexGuard<'_, HashMap<ServiceKey, (Instant, bool)>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queues of a service.
pub(crate) fn mailbox(service: &Service) -> Mailbox {
    Mailbox { name: service.queue_name.clone(), settings: service.queue, delivery_limit: service.limits.delivery_limit }
}

/// Starts the services that the options ask for.
pub(crate) fn start(engine: &Engine, publications: mpsc::Receiver<Publication>) {
    let options = &engine.0.options.dispatch;
    let Some(task_broker) = &options.task_broker else { return };
    if options.publish {
        let (confirmed, to_complete) = mpsc::channel(64);
        engine.spawn(publisher::run(engine.clone(), Arc::clone(task_broker), publications, confirmed.clone()));
        engine.spawn(publisher::complete(engine.clone(), to_complete));
        engine.spawn(sweep::run(engine.clone(), Arc::clone(task_broker), confirmed));
        engine.spawn(queues::run(engine.clone(), Arc::clone(task_broker)));
    }
    if options.track {
        engine.spawn(track::run(engine.clone(), Arc::clone(task_broker)));
    }
    revocations::start(engine, task_broker);
    engine.spawn(watch(engine.clone(), Arc::clone(task_broker)));
}

/// Watches the state of the broker, whatever this process does for it.
async fn watch(engine: Engine, task_broker: Arc<dyn TaskBroker>) {
    let stopping = &engine.0.stopping;
    loop {
        metrics::gauge!("relais_broker_up").set(0.0);
        if stopping.run_until_cancelled(task_broker.until_up()).await.is_none() {
            return;
        }
        metrics::gauge!("relais_broker_up").set(1.0);
        if stopping.run_until_cancelled(task_broker.until_down()).await.is_none() {
            return;
        }
    }
}

impl Engine {
    /// The default transport of a service.
    pub(crate) fn default_transport(&self) -> TaskTransport {
        if self.0.options.dispatch.task_broker.is_some() { TaskTransport::RabbitMq } else { TaskTransport::Builtin }
    }

    /// The publisher of a new task of this service.
    pub(crate) fn dispatch_of(&self, service: &Service) -> Option<Publisher> {
        if !service.transport.is_brokered() || service.paused {
            return None;
        }
        let options = &self.0.options.dispatch;
        // The store decides what enters a window.
        let ours = options.publish
            && service.limits.flow.dispatch_window.is_none()
            && options.task_broker.as_ref().is_some_and(|task_broker| task_broker.state() == TaskBrokerState::Up)
            && !self.0.hub.watermark.is_behind(service.key)
            && self.0.dispatcher.keeps_up()
            && !self.0.dispatcher.is_parked(service.key);
        let held = if ours { HOLD } else { Duration::ZERO };
        Some(Publisher { held, queue: service.queue_name.as_str().into() })
    }

    /// The services whose tasks go to a broker.
    fn brokered(&self) -> Vec<Arc<Service>> {
        let Ok(snapshot) = self.snapshot() else { return Vec::new() };
        snapshot
            .declared
            .services_by_name()
            .into_iter()
            .filter(|service| service.transport.is_brokered())
            .cloned()
            .collect()
    }
}
