//! The event publisher: publishes committed changes on the bus, and wake-ups where they go over it.
//!
//! The store calls it in the middle of its work, so it only queues what happened, within bounds. One async task
//! publishes all that was queued since its last turn. Events that nobody follows are not queued.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use relais_bus::{Bus, BusError, Interest, Outgoing};
use relais_core::{ClientKey, Failure, IdsChanged, ServiceKey, Status, TaskChange, Wakeup, WakeupListener, wakeup};
use relais_protocol::{consumer::TaskStatus, events::TaskChanged};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{BusOptions, TASKS, WAKEUPS, refused, remote_interest::RemoteInterest};
use crate::{Engine, EngineError, engine::Inner, error::chain, follow::views::text, registry::Snapshot};

/// The most events that are published at once.
const AT_ONCE: usize = 500;

/// The wait before a failed wake-up is sent again.
const AGAIN: Duration = Duration::from_millis(100);

/// How many tasks a waiting wake-up names; beyond that it says that any may have changed.
const MOST_NAMED: usize = 5_000;

/// Listens to commits of the store, and publishes them.
pub(crate) struct EventPublisher {
    /// Names this process.
    origin: String,
    here: Interest,
    elsewhere: Arc<RemoteInterest>,
    always: bool,
    wakeups: bool,
    queue: usize,
    pending: Mutex<Pending>,
    bell: Notify,
    unpublished: AtomicU64,
}

#[derive(Default)]
struct Pending {
    wakeup: Wakeup,
    changes: VecDeque<TaskChange>,
}

impl EventPublisher {
    pub(super) fn new(bus: &Bus, options: &BusOptions, elsewhere: Arc<RemoteInterest>) -> Result<Self, EngineError> {
        let here = bus.interest(&format!("{TASKS}.>")).map_err(|error| refused(error.into(), ""))?;
        Ok(Self {
            origin: uuid::Uuid::now_v7().simple().to_string(),
            here,
            elsewhere,
            always: options.always,
            wakeups: options.wakeups,
            queue: options.queue,
            pending: Mutex::default(),
            bell: Notify::new(),
            unpublished: AtomicU64::new(0),
        })
    }

    pub(super) fn origin(&self) -> &str {
        &self.origin
    }

    /// Whether somebody in this process follows tasks' events.
    pub(super) fn followed_here(&self) -> bool {
        self.here.any()
    }

    /// Events that could not be published.
    pub(super) fn unpublished(&self) -> u64 {
        self.unpublished.load(Ordering::Relaxed)
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost(&self, events: usize) {
        self.unpublished.fetch_add(events as u64, Ordering::Relaxed);
        metrics::counter!("relais_events_unpublished_total").increment(events as u64);
    }

    /// Publishes until the engine is closed and everything was published.
    pub(super) async fn run(&self, bus: &Bus, engine: &Weak<Inner>, quiet: &CancellationToken) {
        let mut failing = false;
        loop {
            let (wakeup, changes) = {
                let mut pending = self.pending();
                let most = pending.changes.len().min(AT_ONCE);
                (std::mem::take(&mut pending.wakeup), pending.changes.drain(..most).collect::<Vec<_>>())
            };
            if wakeup.is_empty() && changes.is_empty() {
                tokio::select! {
                    () = self.bell.notified() => continue,
                    () = quiet.cancelled() => return,
                }
            }
            match self.say(bus, engine, &wakeup, &changes).await {
                Ok(()) => failing = false,
                Err(error) => {
                    self.lost(changes.len());
                    if !wakeup.is_empty() && !quiet.is_cancelled() {
                        // Other processes wait for it. What was queued meanwhile is sent with it.
                        merge(&mut self.pending().wakeup, &wakeup);
                        tokio::select! {
                            () = tokio::time::sleep(AGAIN) => {}
                            () = quiet.cancelled() => {}
                        }
                    }
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(error = %chain(&error), "events are not published; sweeps go on");
                    }
                }
            }
        }
    }

    async fn say(
        &self,
        bus: &Bus,
        engine: &Weak<Inner>,
        wakeup: &Wakeup,
        changes: &[TaskChange],
    ) -> Result<(), BusError> {
        let mut events = Vec::with_capacity(changes.len() + 1);
        if !wakeup.is_empty() {
            events.push(Outgoing::new(WAKEUPS, wakeup::encode(&self.origin, wakeup)));
        }
        if !changes.is_empty() {
            let names = EventNames::read(engine, changes).await;
            events.extend(changes.iter().filter_map(|change| names.event(change)));
        }
        bus.send_all(events).await
    }
}

impl WakeupListener for EventPublisher {
    fn wake(&self, wakeup: &Wakeup) {
        if self.wakeups {
            merge(&mut self.pending().wakeup, wakeup);
            self.bell.notify_one();
        }
    }

    fn wants_changes(&self) -> bool {
        self.always || self.here.any() || self.elsewhere.any()
    }

    fn changed(&self, changes: &[TaskChange]) {
        if !self.wants_changes() {
            return;
        }
        let lost = {
            let mut pending = self.pending();
            let room = self.queue.saturating_sub(pending.changes.len());
            pending.changes.extend(changes.iter().take(room).cloned());
            changes.len().saturating_sub(room)
        };
        if lost > 0 {
            self.lost(lost);
        }
        self.bell.notify_one();
    }
}

/// Merges two wake-ups. One that would name too much becomes vaguer.
fn merge(into: &mut Wakeup, other: &Wakeup) {
    into.merge(other);
    let many = |ids: &IdsChanged| matches!(ids, IdsChanged::These(ids) if ids.len() > MOST_NAMED);
    if into.callbacks.len() > MOST_NAMED {
        // That any task may have changed says that any callback may be due.
        into.callbacks.clear();
        into.tasks = IdsChanged::Perhaps;
    } else if many(&into.tasks) {
        into.tasks = IdsChanged::Perhaps;
    }
}

/// The names of services and clients that some changes are about.
struct EventNames {
    services: HashMap<ServiceKey, String>,
    clients: HashMap<ClientKey, String>,
}

impl EventNames {
    async fn read(engine: &Weak<Inner>, changes: &[TaskChange]) -> Self {
        let mut names = Self { services: HashMap::new(), clients: HashMap::new() };
        let Some(engine) = engine.upgrade().map(Engine) else { return names };
        // A service or a client may be newer than what we know: then once more.
        for again in [false, true] {
            if again && engine.refresh().await.is_err() {
                break;
            }
            if engine.snapshot().is_ok_and(|snapshot| names.take(&snapshot, changes)) {
                break;
            }
        }
        names
    }

    /// Whether all names are known.
    fn take(&mut self, snapshot: &Snapshot, changes: &[TaskChange]) -> bool {
        let mut complete = true;
        for change in changes {
            if let Entry::Vacant(unknown) = self.services.entry(change.service) {
                match snapshot.declared.service_by_key(change.service) {
                    Some(service) => drop(unknown.insert(service.name.to_string())),
                    None => complete = false,
                }
            }
            if let Entry::Vacant(unknown) = self.clients.entry(change.client) {
                match snapshot.declared.client_by_key(change.client) {
                    Some(client) => drop(unknown.insert(client.client_id.to_string())),
                    None => complete = false,
                }
            }
        }
        complete
    }

    /// The event of a change. None if its service is gone, and with it whoever could name it.
    fn event(&self, change: &TaskChange) -> Option<Outgoing> {
        let service = self.services.get(&change.service)?;
        let channel = format!("{TASKS}.{}.{}", segment(service), change.milestone.as_str());
        let (state, task_id) = (&change.state, change.task_id.to_string());
        // Where another one has begun, the event is about that one.
        let (attempt, started, worker_host) = match &change.over {
            Some(over) if state.status != Status::InProgress => (over.number, over.started, &over.worker_host),
            _ => (state.attempt, state.started, &state.worker_host),
        };
        let (error_message, error_kind, error_trace) = match change.failure.clone() {
            Some(Failure { message, kind, trace, .. }) => (Some(message), kind, trace),
            None => (None, None, None),
        };
        let changed = TaskChanged {
            task_id: task_id.clone(),
            service: service.clone(),
            client_id: self.clients.get(&change.client).cloned(),
            status: match state.status {
                Status::Pending | Status::Waiting => TaskStatus::Pending,
                Status::InProgress => TaskStatus::InProgress,
                Status::Success => TaskStatus::Success,
                Status::Failure => TaskStatus::Failure,
                Status::Cancelled => TaskStatus::Cancelled,
            },
            attempt,
            progress: state.progress,
            revision: state.revision,
            submition_date: change.submitted.map(text),
            start_date: started.map(text),
            end_date: state.ended.map(text),
            worker_host: worker_host.clone(),
            error_message,
            error_kind,
            error_trace,
            correlation_id: change.correlation_id.clone(),
        };
        // Whoever works on them by key has those of one task in their order.
        Some(Outgoing::new(channel, changed).key(task_id))
    }
}

/// A service's name as one segment of a channel: dots, which would make it several, become tildes, which it has none
/// of.
fn segment(service: &str) -> String {
    service.replace('.', "~")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_put_together_and_become_vague_beyond_a_limit() {
        let hint = |ids: Vec<i64>| Wakeup {
            timer: Some(relais_core::Timestamp::from_millis(9 - ids.len() as i64)),
            work: vec![ServiceKey(1)],
            tasks: IdsChanged::These(ids),
            declared: false,
            callbacks: vec![7],
            dispatch: vec![ServiceKey(3)],
            submissions: false,
            notifications: false,
            pushes: false,
        };
        let mut merged = hint(vec![1]);
        merge(&mut merged, &Wakeup { work: vec![ServiceKey(2)], declared: true, ..hint(vec![2, 3]) });
        assert_eq!(merged.work, [ServiceKey(1), ServiceKey(2)]);
        assert_eq!(merged.tasks, IdsChanged::These(vec![1, 2, 3]));
        assert_eq!(merged.timer, Some(relais_core::Timestamp::from_millis(7)), "the sooner one");
        assert!(merged.declared && merged.callbacks == [7] && merged.dispatch == [ServiceKey(3)]);
        merge(&mut merged, &hint((0..5_000).collect()));
        assert_eq!(merged.tasks, IdsChanged::Perhaps);
        merge(&mut merged, &hint(vec![1]));
        assert_eq!(merged.tasks, IdsChanged::Perhaps, "once vague, always vague");
    }

    /// One that is too large would be lost, and all that is published together with it.
    #[tokio::test]
    async fn the_longest_event_goes_through_a_store() {
        let now = relais_core::Timestamp::from_millis(0);
        let long = |piece: &str| piece.repeat(65_536);
        let failure = Failure { trace: Some(long("\u{1}")), ..Failure::new(long("\n")).of_kind("\u{1}".repeat(100)) };
        let host = Some("\u{1}".repeat(255));
        let change = TaskChange {
            task_id: relais_core::TaskId::parse("01990a5d-ac96-774b-bcce-b302099a8057").unwrap(),
            service: ServiceKey(1),
            client: ClientKey(1),
            milestone: relais_core::Milestone::Failure,
            state: relais_core::State {
                status: Status::Failure,
                attempt: u32::MAX,
                revision: u64::MAX,
                worker_host: host,
                started: Some(now),
                ended: Some(now),
                ..relais_core::State::pending()
            },
            submitted: Some(now),
            correlation_id: Some("🦀".repeat(200)),
            over: None,
            failure: Some(TaskChange::in_brief(&failure)),
        };
        let names = EventNames {
            services: HashMap::from([(ServiceKey(1), "s".repeat(100))]),
            clients: HashMap::from([(ClientKey(1), "c".repeat(100))]),
        };
        let bus = Bus::builder().source("h".repeat(270)).build();
        bus.start().await.unwrap();
        let mut heard = bus.subscribe("task.>").await.unwrap();
        bus.send_all(names.event(&change)).await.unwrap();
        let text = heard.recv().await.unwrap().to_json().unwrap();
        assert!(text.contains("errorTrace") && text.len() <= wakeup::MAX_TEXT, "{} bytes", text.len());
    }

    #[test]
    fn a_service_is_one_segment_whatever_its_name() {
        for (name, expected) in [("resize", "resize"), ("img.resize-v2_1", "img~resize-v2_1")] {
            let channel = format!("{TASKS}.{}.success", segment(name));
            assert_eq!(channel, format!("task.{expected}.success"));
            assert!(relais_bus::Pattern::new("task.*.success").is_ok_and(|pattern| pattern.matches(&channel)));
        }
        let longest = format!("{TASKS}.{}.submitted", segment(&"a".repeat(100)));
        assert!(relais_bus::Pattern::new(longest).is_ok());
    }
}
