//! The state that all handles of one bus share, and its subscribers.
//!
//! The sending of events is in `deliver.rs`; this file holds the state and its changes.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tokio::sync::watch;

use crate::{
    Backpressure, BusError, Pattern, SubscriberKind, Transport,
    channels::Channels,
    dead_letters::{DeadLetterStore, MemoryDeadLetters},
    router::Router,
    subscriber::Subscriber,
    telemetry::Telemetry,
};

pub(crate) const STOPPED: u8 = 0;
pub(crate) const RUNNING: u8 = 1;
pub(crate) const STOPPING: u8 = 2;

/// Everything that can be set.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) source: Arc<str>,
    pub(crate) queue_capacity: usize,
    pub(crate) offer_timeout: Duration,
    pub(crate) backpressure: Option<Backpressure>,
    pub(crate) metrics_prefix: String,
    pub(crate) max_channels: usize,
    pub(crate) max_dead_letters: usize,
    pub(crate) stop_timeout: Duration,
}

/// Sums over all channels, those that are not remembered included.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) published: AtomicU64,
    pub(crate) delivered: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) dead_lettered: AtomicU64,
}

/// The transport's connection.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) down: Option<(Instant, Timestamp, String)>,
    pub(crate) outages: u64,
}

pub(crate) struct Hub {
    pub(crate) settings: Settings,
    pub(crate) state: AtomicU8,
    pub(crate) started: Mutex<Option<Instant>>,
    pub(crate) router: Router<Arc<Subscriber>>,
    pub(crate) channels: Channels,
    pub(crate) telemetry: Telemetry,
    pub(crate) totals: Totals,
    pub(crate) transport: Option<Arc<dyn Transport>>,
    pub(crate) dead_letters: Arc<dyn DeadLetterStore>,
    pub(crate) link: Mutex<Link>,
    /// Tasks of handlers and workers: a bus that stops waits for them.
    pub(crate) tasks: watch::Sender<usize>,
    /// Notified when a subscription comes or goes.
    pub(crate) subscriptions_changed: watch::Sender<()>,
    subscribers: Mutex<BTreeMap<u64, Arc<Subscriber>>>,
    /// How many subscribers each pattern has. Locked while the transport is called, so that the calls are in order.
    wanted: Mutex<HashMap<Pattern, usize>>,
    next_id: AtomicU64,
}

/// What a subscriber may have of its own.
#[derive(Debug, Clone, Default)]
pub(crate) struct SubscriberOptions {
    pub(crate) name: Option<String>,
    pub(crate) capacity: Option<usize>,
    pub(crate) backpressure: Option<Backpressure>,
    pub(crate) offer_timeout: Option<Duration>,
}

impl Hub {
    pub(crate) fn new(settings: Settings, transport: Option<Arc<dyn Transport>>) -> Self {
        let kept = transport.as_ref().and_then(|transport| transport.dead_letters());
        Self {
            state: AtomicU8::new(STOPPED),
            started: Mutex::new(None),
            router: Router::new(),
            channels: Channels::new(settings.max_channels),
            telemetry: Telemetry::new(&settings.metrics_prefix),
            totals: Totals::default(),
            transport,
            dead_letters: kept.unwrap_or_else(|| Arc::new(MemoryDeadLetters::new(settings.max_dead_letters))),
            link: Mutex::new(Link { down: None, outages: 0 }),
            tasks: watch::channel(0).0,
            subscriptions_changed: watch::channel(()).0,
            subscribers: Mutex::default(),
            wanted: Mutex::default(),
            next_id: AtomicU64::new(1),
            settings,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state.load(Ordering::Acquire) == RUNNING
    }

    /// Adds a subscriber. When it returns, events that are published from then on reach it.
    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        kind: SubscriberKind,
        patterns: Vec<Pattern>,
        options: SubscriberOptions,
    ) -> Result<Membership, BusError> {
        if patterns.is_empty() {
            return Err(BusError::Setting("a subscription needs a channel or a pattern"));
        }
        let name = options.name.unwrap_or_else(|| {
            patterns.iter().map(Pattern::as_str).collect::<Vec<_>>().join(",") //
        });
        // Events that are kept until they are acknowledged may wait where they are kept.
        let at_least_once = self.transport.as_ref().is_some_and(|transport| transport.features().at_least_once);
        let default = if at_least_once { Backpressure::Block } else { Backpressure::Drop };
        let backpressure = options.backpressure.or(self.settings.backpressure).unwrap_or(default);
        let subscriber = Arc::new(Subscriber::new(
            self.next_id.fetch_add(1, Ordering::Relaxed),
            name.into(),
            kind,
            patterns,
            options.capacity.unwrap_or(self.settings.queue_capacity),
            (backpressure, options.offer_timeout.unwrap_or(self.settings.offer_timeout)),
            self.telemetry.queue_size.clone(),
        ));
        {
            let mut subscribers = self.subscribers();
            // Under the lock that `stop` takes to close them all: either it sees this one, or this sees that it stops.
            if self.state.load(Ordering::Acquire) == STOPPING {
                return Err(BusError::NotRunning);
            }
            subscribers.insert(subscriber.id, Arc::clone(&subscriber));
        }
        self.telemetry.subscriptions.increment(1);
        self.telemetry.queue_capacity.increment(subscriber.queue.capacity() as f64);
        // Local first: what the transport brings from the first moment on has somewhere to go.
        self.router.insert(subscriber.patterns.iter().map(Pattern::as_str), subscriber.id, &subscriber);
        self.subscriptions_changed.send_replace(());
        let membership = Membership { hub: Arc::clone(self), subscriber: Arc::clone(&subscriber) };
        if let Some(transport) = &self.transport {
            let asked: Vec<_> = {
                let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
                carried(&subscriber.patterns).for_each(|pattern| *wanted.entry(pattern.clone()).or_default() += 1);
                // The transport of a bus that is not started gets the patterns at the start. Otherwise it gets every
                // subscriber, not only the first: the second must not return before the first is subscribed.
                let running = self.is_running();
                carried(&subscriber.patterns).filter(|_| running).map(|pattern| transport.subscribe(pattern)).collect()
            };
            futures::future::try_join_all(asked).await?;
        }
        Ok(membership)
    }

    /// The transport is connected: events are accepted from now on, and it gets the existing patterns.
    pub(crate) async fn run(&self) -> Result<(), BusError> {
        *self.started.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        let asked: Vec<_> = {
            let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            self.state.store(RUNNING, Ordering::Release);
            self.transport
                .iter()
                .flat_map(|transport| wanted.keys().map(|pattern| transport.subscribe(pattern)))
                .collect()
        };
        futures::future::try_join_all(asked).await.map(drop)
    }

    pub(crate) fn unsubscribe(&self, subscriber: &Subscriber) {
        if self.subscribers().remove(&subscriber.id).is_none() {
            return;
        }
        self.router.remove(subscriber.patterns.iter().map(Pattern::as_str), subscriber.id);
        self.subscriptions_changed.send_replace(());
        self.telemetry.subscriptions.decrement(1);
        self.telemetry.queue_capacity.decrement(subscriber.queue.capacity() as f64);
        subscriber.report_gone();
        if let Some(transport) = &self.transport {
            let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            for pattern in carried(&subscriber.patterns) {
                if let Some(count) = wanted.get_mut(pattern) {
                    *count -= 1;
                    if *count == 0 {
                        wanted.remove(pattern);
                        transport.unsubscribe(pattern);
                    }
                }
            }
        }
    }

    pub(crate) fn subscribers(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Subscriber>>> {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a task that a stopping bus waits for, until the guard is dropped.
    pub(crate) fn task(self: &Arc<Self>) -> TaskGuard {
        self.tasks.send_modify(|count| *count += 1);
        TaskGuard(Arc::clone(self))
    }
}

/// Patterns whose events come over a transport. The bus's own notices do not.
fn carried(patterns: &[Pattern]) -> impl Iterator<Item = &Pattern> {
    patterns.iter().filter(|pattern| !pattern.as_str().starts_with('$'))
}

pub(crate) struct TaskGuard(Arc<Hub>);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.tasks.send_modify(|count| *count -= 1);
    }
}

/// A subscriber that is part of the bus, until this is dropped.
pub(crate) struct Membership {
    pub(crate) hub: Arc<Hub>,
    pub(crate) subscriber: Arc<Subscriber>,
}

impl Membership {
    /// No more events; those that wait can still be taken.
    pub(crate) fn leave(&self) {
        self.hub.unsubscribe(&self.subscriber);
        self.subscriber.queue.close();
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.leave();
        // Routes may remember the subscriber for a while; the events should not wait for that.
        let mut left = std::collections::VecDeque::new();
        self.subscriber.queue.take_now(&mut left);
    }
}
