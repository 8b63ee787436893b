//! The engine's part of the event bus: publishes every milestone of a task, and may carry wake-ups.
//!
//! The bus itself is `relais-bus`; its transport is chosen by the program, and the engine sees no driver. Channels with
//! the prefix `relais.` are for messages between processes of Relais. The bus may lose messages: sweeps find what was
//! missed.

mod over_store;
mod publisher;
mod remote_interest;

use std::{sync::Arc, time::Duration};

use relais_bus::{BusError, BusState, Notice, Outgoing, PushWorker, Subscription};
use relais_core::{Wakeup, WakeupListener as _, wakeup};
use relais_protocol::events::{EventBusStats, EventChannel, EventSubscription, PublishAnswer};
use serde_json::value::RawValue;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use self::over_store::StoreTransport;
use self::{publisher::EventPublisher, remote_interest::RemoteInterest};
use crate::{Engine, EngineError, Problem, engine::Inner, error::chain, follow::hub::WakeupHub};

/// The prefix of the channels of tasks.
pub const TASKS: &str = "task";

/// The channel of wake-ups, if they do not go through the store.
const WAKEUPS: &str = "relais.wakeup";

/// The prefix of the channels that only Relais may publish to.
const OWN: &str = "relais.";

/// The wait before a transport that is away is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// How long the last events may take to be published at the stop.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How the engine uses the bus.
#[derive(Debug, Clone)]
pub struct BusOptions {
    /// The bus, not started.
    pub bus: relais_bus::Bus,
    /// Whether it is used at all.
    pub enabled: bool,
    /// Whether other processes may be on it.
    pub shared: bool,
    /// Whether wake-ups go over it. Otherwise they go through the store.
    pub wakeups: bool,
    /// Whether task events are published even if no process of Relais follows them: for other programs on the
    /// transport.
    pub always: bool,
    /// How many task events may wait to be published.
    pub queue: usize,
}

impl Default for BusOptions {
    /// In memory.
    fn default() -> Self {
        Self {
            bus: relais_bus::Bus::builder().build(),
            enabled: true,
            shared: false,
            wakeups: false,
            always: false,
            queue: 10_000,
        }
    }
}

/// The bus, and what the engine publishes on it.
pub(crate) struct EventBus {
    bus: relais_bus::Bus,
    options: BusOptions,
    /// None if the bus is not used.
    event_publisher: Option<Arc<EventPublisher>>,
    elsewhere: Arc<RemoteInterest>,
    /// Notified when nothing will be published any more.
    quiet: CancellationToken,
    tasks: std::sync::Mutex<Vec<JoinHandle<()>>>,
}

impl EventBus {
    pub(crate) fn new(options: &BusOptions) -> Result<Self, EngineError> {
        let bus = options.bus.clone();
        let elsewhere = Arc::new(RemoteInterest::new(options.shared));
        let event_publisher = match options.enabled {
            true => Some(Arc::new(EventPublisher::new(&bus, options, Arc::clone(&elsewhere))?)),
            false => None,
        };
        let (quiet, tasks) = (CancellationToken::new(), std::sync::Mutex::default());
        Ok(Self { bus, options: options.clone(), event_publisher, elsewhere, quiet, tasks })
    }

    /// Starts publishing and listening. A transport that is away is tried until it answers.
    pub(crate) fn start(engine: &Engine) {
        let this = &engine.0.bus;
        let Some(event_publisher) = &this.event_publisher else { return };
        engine.0.store.listen(Arc::clone(event_publisher) as _);
        let running = tokio::spawn(run(Arc::downgrade(&engine.0), Arc::clone(event_publisher), this.quiet.clone()));
        this.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(running);
    }

    /// Publishes what is left, and stops.
    pub(crate) async fn finish(&self) {
        self.quiet.cancel();
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        let spoken = tokio::time::timeout(LAST_WORDS, futures::future::join_all(tasks)).await;
        if spoken.is_err() {
            tracing::warn!("the last events could not be published in time");
        }
        self.bus.stop().await;
    }
}

/// Starts the bus, then publishes until the engine is closed.
async fn run(engine: std::sync::Weak<Inner>, event_publisher: Arc<EventPublisher>, quiet: CancellationToken) {
    let Some(inner) = engine.upgrade() else { return };
    let (bus, hub) = (inner.bus.bus.clone(), Arc::clone(&inner.hub));
    let (elsewhere, options) = (Arc::clone(&inner.bus.elsewhere), inner.bus.options.clone());
    drop(inner);
    let prepared = async {
        // Subscribes before the bus starts, so that the first events have a subscriber.
        let worker = match options.wakeups {
            true => Some(hear_wakeups(&bus, &hub, event_publisher.origin()).await?),
            false => None,
        };
        let interest = match options.shared {
            true => {
                Some(bus.subscriber(remote_interest::CHANNEL).and(Notice::RECONNECTED).name("interest").stream().await?)
            }
            false => None,
        };
        Ok::<_, BusError>((worker, interest))
    };
    let (_worker, interest) = match prepared.await {
        Ok(prepared) => prepared,
        Err(error) => return tracing::error!(error = %chain(&error), "the event bus can not be used"),
    };
    if !connect(&bus, &quiet).await {
        return;
    }
    if options.wakeups {
        // Wake-ups that were sent before this process listened are missed.
        hub.wake(&Wakeup::anything());
    }
    let listening = async {
        if let Some(heard) = interest {
            remote_interest::listen(&elsewhere, &bus, &event_publisher, heard, &quiet, || {
                if options.wakeups {
                    hub.wake(&Wakeup::anything());
                }
            })
            .await;
        }
    };
    tokio::join!(listening, event_publisher.run(&bus, &engine, &quiet));
}

/// Starts the bus, however long it takes. Returns whether it runs.
async fn connect(bus: &relais_bus::Bus, quiet: &CancellationToken) -> bool {
    let mut told = false;
    loop {
        let started = tokio::select! {
            started = bus.start() => started,
            () = quiet.cancelled() => return false,
        };
        match started {
            Ok(()) if told => {
                tracing::info!("the event bus is there");
                return true;
            }
            Ok(()) => return true,
            Err(error) if !std::mem::replace(&mut told, true) => {
                tracing::warn!(error = %chain(&error), "the event bus is away; sweeps go on until it is there");
            }
            Err(_) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = quiet.cancelled() => return false,
        }
    }
}

/// Wakes waiters of this process for changes of other processes.
async fn hear_wakeups(bus: &relais_bus::Bus, hub: &Arc<WakeupHub>, origin: &str) -> Result<PushWorker, BusError> {
    let (hub, origin): (_, Arc<str>) = (Arc::clone(hub), origin.into());
    let worker = PushWorker::builder("wakeups").channel(WAKEUPS).retries(0);
    worker
        .start_typed(bus, move |text: relais_bus::Received<String>| {
            if let Some(heard) = wakeup::decode(&origin, &text) {
                hub.wake(&heard);
            }
            std::future::ready(Ok(()))
        })
        .await
}

impl Engine {
    /// The bus as a whole.
    pub fn event_bus_stats(&self) -> EventBusStats {
        let bus = &self.0.bus;
        let (stats, health) = (bus.bus.stats(), bus.bus.health());
        EventBusStats {
            state: word(&stats.state),
            transport: stats.transport.to_owned(),
            healthy: health.healthy,
            connected: health.connected && health.state == BusState::Running,
            disconnected_since: health.disconnected_since,
            error: health.error,
            outages: health.outages,
            uptime_ms: stats.uptime_ms,
            published: stats.published,
            delivered: stats.delivered,
            failed: stats.failed,
            dropped: stats.dropped,
            dead_lettered: stats.dead_lettered,
            unpublished: bus.event_publisher.as_ref().map_or(0, |event_publisher| event_publisher.unpublished()),
            subscriptions: stats.subscriptions,
            channels: stats.channels,
            queue_size: stats.queue_size,
            queue_capacity: stats.queue_capacity,
            followed: bus.event_publisher.as_ref().is_some_and(|event_publisher| event_publisher.wants_changes()),
        }
    }

    /// The bus's channels, by name.
    pub fn event_channels(&self) -> Vec<EventChannel> {
        let shown = |stats: relais_bus::ChannelStats| EventChannel {
            channel: stats.channel,
            published: stats.published,
            delivered: stats.delivered,
            failed: stats.failed,
            dropped: stats.dropped,
            dead_lettered: stats.dead_lettered,
            last_published: stats.last_published,
        };
        self.0.bus.bus.channel_stats().into_iter().map(shown).collect()
    }

    /// The bus's subscriptions in this process, the oldest first.
    pub fn event_subscriptions(&self) -> Vec<EventSubscription> {
        let shown = |stats: relais_bus::SubscriptionStats| EventSubscription {
            id: stats.id,
            name: stats.name,
            kind: word(&stats.kind),
            patterns: stats.patterns,
            backpressure: word(&stats.backpressure),
            waiting: stats.waiting,
            capacity: stats.capacity,
            delivered: stats.delivered,
            failed: stats.failed,
            dropped: stats.dropped,
            dead_lettered: stats.dead_lettered,
        };
        self.0.bus.bus.subscriptions().into_iter().map(shown).collect()
    }

    /// Publishes an event of an operator's.
    pub async fn publish_event(&self, channel: &str, payload: Box<RawValue>) -> Result<PublishAnswer, EngineError> {
        if channel.starts_with(OWN) {
            let why = format!("{channel:?} is for the processes of Relais");
            return Err(EngineError::Invalid(vec![Problem::at("/channel", why)]));
        }
        let event = Outgoing::new(channel, relais_bus::Payload::json(payload));
        let done = self.0.bus.bus.send_confirmed(event).await.map_err(|error| refused(error, "/channel"))?;
        Ok(PublishAnswer {
            event_id: done.event_id.to_string(),
            delivered: done.delivered,
            failed: done.failed,
            duration_ms: done.duration.as_secs_f64() * 1000.0,
        })
    }

    /// Follows events on these channels of all processes, and notices of the bus. A subscriber that does not keep up
    /// loses events and can ask how many; publishers do not wait for it.
    ///
    /// Events of other processes arrive from a few milliseconds after this returns: those processes are asked to
    /// publish.
    pub async fn follow_bus(&self, patterns: &[String]) -> Result<Subscription, EngineError> {
        let bus = &self.0.bus;
        if bus.bus.state() != BusState::Running {
            return Err(EngineError::Bus(Arc::new(BusError::NotRunning)));
        }
        let mut wanted = bus.bus.subscriber("$bus.*").name("operator").offer_timeout(Duration::ZERO);
        for pattern in patterns {
            wanted = wanted.and(pattern);
        }
        let subscription = wanted
            .backpressure(relais_bus::Backpressure::Drop)
            .stream()
            .await
            .map_err(|error| refused(error, "channel"))?;
        if let Some(event_publisher) = &bus.event_publisher {
            bus.elsewhere.until_sent(event_publisher.followed_here()).await;
        }
        Ok(subscription)
    }
}

/// Why the bus refused; `place` is where a name was given.
fn refused(error: BusError, place: &str) -> EngineError {
    match error {
        BusError::Name(error) => EngineError::Invalid(vec![Problem::at(place, error.to_string())]),
        error @ (BusError::Reserved(_) | BusError::TooLarge { .. }) => {
            EngineError::Invalid(vec![Problem::at(place, error.to_string())])
        }
        error => EngineError::Bus(Arc::new(error)),
    }
}

/// A word as it is written in JSON.
fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}
