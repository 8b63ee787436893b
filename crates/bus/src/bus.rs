//! The bus as its user sees it: publish, start and stop.
//!
//! Subscribing is in `subscribe.rs`, what can be asked of a running bus in `stats.rs`.

use std::{
    sync::{Arc, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use futures::FutureExt;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::{
    BusBuilder, BusError, DeadLetter, DeliveryOutcome, Event, Metadata, Pattern, Payload, SubscriberKind,
    channels::Channel,
    hub::{Hub, STOPPED, STOPPING},
    receipt::Tracker,
    transport::Inbox,
};

/// Publishes events to whoever subscribes to their channel. Cheap to clone; all clones are the same bus.
///
/// When the last clone, subscription and worker are gone, so is the bus; [`stop`](Bus::stop) ends it in good order.
#[derive(Clone)]
pub struct Bus {
    pub(crate) hub: Arc<Hub>,
    /// Held while it starts or stops, so that these happen one after the other.
    lifecycle: Arc<tokio::sync::Mutex<()>>,
}

/// An event that is about to be published, with what is said beside it.
#[derive(Debug, Clone)]
#[must_use]
pub struct Outgoing {
    channel: String,
    payload: Payload,
    metadata: Metadata,
    source: Option<Arc<str>>,
}

impl Outgoing {
    /// An event on `channel`.
    pub fn new(channel: impl Into<String>, payload: impl Into<Payload>) -> Self {
        Self { channel: channel.into(), payload: payload.into(), metadata: Metadata::new(), source: None }
    }

    /// Says something beside the payload.
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.set(name, value);
        self
    }

    /// Events of the same key stay in order in workers that ask for it.
    pub fn key(self, key: impl Into<String>) -> Self {
        self.metadata(Metadata::KEY, key)
    }

    /// Names another source than the bus's own.
    pub fn source(mut self, source: impl Into<Arc<str>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

/// The outcome of an event whose publisher asked for confirmation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Confirmation {
    /// The event.
    pub event_id: Uuid,
    /// How many have it. In memory: subscribers that have it in their queue, and handlers that are done with it. Over a
    /// transport: what its [`Features`](crate::Features) say.
    pub delivered: usize,
    /// How many failed on it or had no room for it.
    pub failed: usize,
    /// How long that took.
    pub duration: Duration,
}

/// What a bus that was stopped leaves behind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopReport {
    /// Events that handlers and workers did not get to in time. Counted as dropped, unless the transport keeps them.
    pub left: usize,
}

impl Bus {
    /// A bus in memory with default settings, started.
    pub fn in_memory() -> Self {
        let bus = BusBuilder::default().build();
        // Without a transport there is nothing to wait for, and nothing to fail.
        let _ = bus.hub.run().now_or_never();
        bus
    }

    /// The settings to build a bus with.
    pub fn builder() -> BusBuilder {
        BusBuilder::default()
    }

    pub(crate) fn new(hub: Hub) -> Self {
        Self { hub: Arc::new(hub), lifecycle: Arc::default() }
    }

    /// Connects the transport and takes events from then on. A bus that runs already is left alone.
    ///
    /// Subscriptions and workers may be there before. On a transport that delivers what happened while the instance was
    /// away they should be: an event that arrives before its subscriber has none.
    ///
    /// # Errors
    ///
    /// If the transport can not connect.
    pub async fn start(&self) -> Result<(), BusError> {
        let _one_at_a_time = self.lifecycle.lock().await;
        if self.hub.is_running() {
            return Ok(());
        }
        if let Some(transport) = &self.hub.transport {
            transport.start(Inbox::new(Arc::downgrade(&self.hub))).await?;
            tracing::info!(transport = transport.name(), "the event bus is connected");
        }
        if let Err(error) = self.hub.run().await {
            self.hub.state.store(STOPPED, Ordering::Release);
            if let Some(transport) = &self.hub.transport {
                transport.stop().await;
            }
            return Err(error);
        }
        Ok(())
    }

    /// Takes no more events, lets handlers and workers finish what they have, within the stop timeout (30 s), and
    /// disconnects. Streams end once they are read to their end. A bus that is stopped can be started again, and needs
    /// new subscriptions then: those that were there have ended.
    pub async fn stop(&self) -> StopReport {
        let _one_at_a_time = self.lifecycle.lock().await;
        let hub = &self.hub;
        if !hub.is_running() {
            return StopReport::default();
        }
        let subscribers: Vec<_> = {
            let subscribers = hub.subscribers();
            hub.state.store(STOPPING, Ordering::Release);
            subscribers.values().cloned().collect()
        };
        // Closed, not removed: that is for their owners, who may still read what is there.
        subscribers.iter().for_each(|subscriber| subscriber.queue.close());
        let mut tasks = hub.tasks.subscribe();
        let all_done =
            tokio::time::timeout(hub.settings.stop_timeout, tasks.wait_for(|count| *count == 0)).await.is_ok();
        let mut report = StopReport::default();
        if !all_done {
            for subscriber in subscribers.iter().filter(|subscriber| subscriber.kind != SubscriberKind::Stream) {
                let left = subscriber.queue.len();
                subscriber.task.get().inspect(|task| task.abort());
                report.left += left;
                if !hub.transport.as_ref().is_some_and(|transport| transport.features().at_least_once) {
                    subscriber.counts.dropped.fetch_add(left as u64, Ordering::Relaxed);
                    hub.totals.dropped.fetch_add(left as u64, Ordering::Relaxed);
                }
            }
            tracing::warn!(left = report.left, "the bus stops before its handlers are done");
        }
        if let Some(transport) = &hub.transport {
            transport.stop().await;
        }
        hub.state.store(STOPPED, Ordering::Release);
        *hub.started.lock().unwrap_or_else(PoisonError::into_inner) = None;
        report
    }

    /// Publishes an event and returns its id.
    ///
    /// In memory it is in every subscriber's queue when this returns, or was given up as the subscriber's
    /// [back-pressure](crate::Backpressure) policy says, which takes up to 100 ms, or as long as it needs if that is
    /// to block. Dropping the future before that loses the event for those without room, and counts it.
    ///
    /// # Errors
    ///
    /// If the bus does not run, the channel can not be published to, or the transport does not take the event.
    pub async fn publish(&self, channel: &str, payload: impl Into<Payload>) -> Result<Uuid, BusError> {
        self.send_on(channel, payload.into(), Metadata::new(), None).await
    }

    /// The same with metadata.
    ///
    /// # Errors
    ///
    /// As for [`publish`](Self::publish).
    pub async fn publish_with(
        &self,
        channel: &str,
        payload: impl Into<Payload>,
        metadata: impl Into<Metadata>,
    ) -> Result<Uuid, BusError> {
        self.send_on(channel, payload.into(), metadata.into(), None).await
    }

    /// Publishes a value that needs no serde, for subscribers of the same type in this process.
    ///
    /// # Errors
    ///
    /// As for [`publish`](Self::publish); always over a transport that leaves the process.
    pub async fn publish_shared<T: Send + Sync + 'static>(
        &self,
        channel: &str,
        value: Arc<T>,
    ) -> Result<Uuid, BusError> {
        self.send_on(channel, Payload::shared(value), Metadata::new(), None).await
    }

    /// Publishes an event and waits for its outcome: for handlers, until they are done with it.
    ///
    /// # Errors
    ///
    /// As for [`publish`](Self::publish). That subscribers failed is not an error, but a number.
    pub async fn publish_confirmed(
        &self,
        channel: &str,
        payload: impl Into<Payload>,
    ) -> Result<Confirmation, BusError> {
        self.send_confirmed(Outgoing::new(channel, payload)).await
    }

    /// Publishes an event that was put together before.
    ///
    /// # Errors
    ///
    /// As for [`publish`](Self::publish).
    pub async fn send(&self, event: Outgoing) -> Result<Uuid, BusError> {
        self.send_on(&event.channel, event.payload, event.metadata, event.source).await
    }

    /// The same, and waits as [`publish_confirmed`](Self::publish_confirmed) does.
    ///
    /// # Errors
    ///
    /// As for [`publish`](Self::publish).
    pub async fn send_confirmed(&self, event: Outgoing) -> Result<Confirmation, BusError> {
        let begin = Instant::now();
        let channel = self.channel(&event.channel)?;
        let source = event.source.unwrap_or_else(|| Arc::clone(&self.hub.settings.source));
        let event = Event::new(Arc::clone(&channel.name), source, event.payload, event.metadata);
        let event_id = event.id;
        let (delivered, failed) = if self.hub.transport.is_some() {
            (self.hub.send(&channel, event, None).await?, 0)
        } else {
            let (tell, told) = oneshot::channel();
            let tracker = Tracker::for_publisher(move |outcome| {
                // The publisher may have lost its patience.
                let _ = tell.send(outcome);
            });
            self.hub.send(&channel, event, Some(tracker)).await?;
            let outcome: DeliveryOutcome = told.await.unwrap_or_default();
            (outcome.delivered, outcome.failed + outcome.abandoned)
        };
        Ok(Confirmation { event_id, delivered, failed, duration: begin.elapsed() })
    }

    /// Publishes events in their order, at the price of one where the transport can.
    ///
    /// # Errors
    ///
    /// As for [`publish`](Self::publish), and then none is published; but if the transport fails on the way, some may
    /// be.
    pub async fn send_all(&self, events: impl IntoIterator<Item = Outgoing>) -> Result<(), BusError> {
        let mut channels = Vec::new();
        let mut ready = Vec::new();
        for event in events {
            let channel = self.channel(&event.channel)?;
            let source = event.source.unwrap_or_else(|| Arc::clone(&self.hub.settings.source));
            ready.push(Event::new(Arc::clone(&channel.name), source, event.payload, event.metadata));
            channels.push(channel);
        }
        self.hub.send_all(&channels, ready).await
    }

    async fn send_on(
        &self,
        channel: &str,
        payload: Payload,
        metadata: Metadata,
        source: Option<Arc<str>>,
    ) -> Result<Uuid, BusError> {
        let channel = self.channel(channel)?;
        let source = source.unwrap_or_else(|| Arc::clone(&self.hub.settings.source));
        let event = Event::new(Arc::clone(&channel.name), source, payload, metadata);
        let id = event.id;
        self.hub.send(&channel, event, None).await?;
        Ok(id)
    }

    /// A channel that may be published to, now.
    pub(crate) fn channel(&self, name: &str) -> Result<Arc<Channel>, BusError> {
        if !self.hub.is_running() {
            return Err(BusError::NotRunning);
        }
        let channel = self.hub.channels.get(name, &self.hub.telemetry)?;
        if channel.reserved {
            return Err(BusError::Reserved(name.to_owned()));
        }
        Ok(channel)
    }

    /// Dead letters, the oldest first: of one channel, or of all that a pattern of channels matches. Both are given
    /// without `dlq.` in front; `>` is all.
    ///
    /// # Errors
    ///
    /// If `channels` is not a pattern, or the transport does not answer.
    pub async fn dead_letters(&self, channels: &str, limit: usize) -> Result<Vec<DeadLetter>, BusError> {
        let pattern = Pattern::new(format!("{}{channels}", crate::name::DEAD_LETTER_PREFIX))?;
        self.hub.dead_letters.list(&pattern, limit).await
    }

    /// Replays a dead letter: publishes it again on its channel, with the id it had, and discards it.
    ///
    /// All subscribers of the channel get it, those that had no trouble with it too. Should the process end in between,
    /// it is still there to be replayed a second time.
    ///
    /// # Errors
    ///
    /// If there is none of that id, or as for [`publish`](Self::publish).
    pub async fn replay(&self, dead_letter: Uuid) -> Result<Uuid, BusError> {
        let letter = self.hub.dead_letters.get(dead_letter).await?;
        let event = letter.ok_or(BusError::NoDeadLetter(dead_letter))?.revive();
        let id = event.id;
        let channel = self.channel(&event.channel)?;
        self.hub.send(&channel, event, None).await?;
        self.hub.dead_letters.remove(dead_letter).await?;
        Ok(id)
    }

    /// Discards a dead letter; whether it was there.
    ///
    /// # Errors
    ///
    /// If the transport does not answer.
    pub async fn discard(&self, dead_letter: Uuid) -> Result<bool, BusError> {
        self.hub.dead_letters.remove(dead_letter).await
    }
}

impl std::fmt::Debug for Bus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bus").field("source", &self.hub.settings.source).finish_non_exhaustive()
    }
}
