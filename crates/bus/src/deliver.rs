//! Delivery from a publisher to the queues: the hot path, and what happens when a queue is full.
//!
//! An event is offered to everybody first, without waiting; only those without room are waited for, all at the same
//! time. One slow subscriber therefore delays the publisher (that is back-pressure), and never the other subscribers.

use std::{
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Instant,
};

use futures::future::{BoxFuture, FutureExt, join_all};
use jiff::Timestamp;

use crate::{
    Backpressure, BusError, Event, Metadata, Notice, Payload, SubscriberKind,
    channels::{Channel, rfc3339},
    dead_letters::DeadLetter,
    hub::{Hub, STOPPING},
    queue::Refused,
    receipt::Tracker,
    subscriber::{Item, Subscriber},
};

impl Hub {
    /// Sends an event over the transport, or straight to the subscribers. Returns how many have it, as far as is known.
    pub(crate) async fn send(
        &self,
        channel: &Channel,
        event: Event,
        tracker: Option<Arc<Tracker>>,
    ) -> Result<usize, BusError> {
        if let Some(transport) = &self.transport {
            let received = transport.publish(&event).await?;
            // What comes back over the transport is counted there, so a publisher alone counts here.
            channel.published(event.timestamp);
            self.totals.published.fetch_add(1, Ordering::Relaxed);
            return Ok(received);
        }
        Ok(self.deliver(channel, event, tracker).await)
    }

    /// The same for many, each with its channel.
    pub(crate) async fn send_all(&self, channels: &[Arc<Channel>], events: Vec<Event>) -> Result<(), BusError> {
        if events.is_empty() {
            return Ok(());
        }
        if let Some(transport) = &self.transport {
            transport.publish_all(&events).await?;
            for (channel, event) in channels.iter().zip(&events) {
                channel.published(event.timestamp);
            }
            self.totals.published.fetch_add(events.len() as u64, Ordering::Relaxed);
            return Ok(());
        }
        for (channel, event) in channels.iter().zip(events) {
            self.deliver(channel, event, None).await;
        }
        Ok(())
    }

    /// An event that came in over the transport.
    pub(crate) async fn receive(&self, event: Event, tracker: Option<Arc<Tracker>>) {
        if self.state.load(Ordering::Acquire) == STOPPING {
            // Subscribers leave now. That nobody here wants it any more does not mean that it is done.
            tracker.inspect(|tracker| tracker.abandoned());
            return;
        }
        match self.channels.get(&event.channel, &self.telemetry) {
            Ok(channel) => {
                self.spread(&channel, event, tracker).await;
            }
            Err(error) => {
                // Acknowledged, or it would be redelivered for ever.
                tracing::warn!(id = %event.id, %error, "an event on an impossible channel came in; ignored");
                if let Some(tracker) = tracker {
                    tracker.sealed();
                }
            }
        }
    }

    async fn deliver(&self, channel: &Channel, event: Event, tracker: Option<Arc<Tracker>>) -> usize {
        channel.published(event.timestamp);
        self.totals.published.fetch_add(1, Ordering::Relaxed);
        self.spread(channel, event, tracker).await
    }

    async fn spread(&self, channel: &Channel, event: Event, tracker: Option<Arc<Tracker>>) -> usize {
        let event = Arc::new(event);
        let (mut delivered, full) = self.offer(channel, &event, tracker.as_ref());
        if !full.is_empty() {
            // Counted as dropped, each of them, should the publisher not wait for the end of this.
            let waits = full.into_iter().map(|waiting| self.wait_for_room(channel, waiting, tracker.as_deref()));
            delivered += join_all(waits).await.into_iter().filter(|delivered| *delivered).count();
        }
        if let Some(tracker) = tracker {
            tracker.sealed();
        }
        delivered
    }

    /// Puts the event into every queue that has room. Returns how many those are, and the others.
    fn offer<'a>(
        &'a self,
        channel: &'a Channel,
        event: &Arc<Event>,
        tracker: Option<&Arc<Tracker>>,
    ) -> (usize, Vec<Waiting<'a>>) {
        let route = channel.route.get(&self.router, &channel.name, channel.reserved);
        let (mut delivered, mut full) = (0, Vec::new());
        for subscriber in &route.subscribers {
            let receipt = tracker
                .filter(|tracker| !tracker.queued_is_delivered || subscriber.kind == SubscriberKind::Handler)
                .map(Tracker::receipt);
            match subscriber.queue.try_push(Item { event: Arc::clone(event), receipt }) {
                Ok(len) => {
                    subscriber.pushed(len);
                    delivered += 1;
                    if let Some(tracker) = tracker
                        && tracker.queued_is_delivered
                        && subscriber.kind != SubscriberKind::Handler
                    {
                        tracker.queued();
                    }
                }
                Err(Refused::Full(item)) => {
                    let subscriber = Arc::clone(subscriber);
                    full.push(Waiting { hub: self, channel, subscriber, item: Some(item), done: false });
                }
                // It left between the route and the push: not a subscriber any more.
                Err(Refused::Closed(_)) => {}
            }
        }
        self.count_delivered(channel, delivered);
        (delivered, full)
    }

    fn count_delivered(&self, channel: &Channel, count: usize) {
        if count > 0 {
            let count = count as u64;
            channel.counts.delivered.fetch_add(count, Ordering::Relaxed);
            channel.metrics.delivered.increment(count);
            self.totals.delivered.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Waits as the subscriber's policy says. Whether it got the event in the end.
    async fn wait_for_room(&self, channel: &Channel, mut waiting: Waiting<'_>, tracker: Option<&Tracker>) -> bool {
        let Some(item) = waiting.item.take() else { return false };
        let (event, subscriber) = (Arc::clone(&item.event), Arc::clone(&waiting.subscriber));
        let enough = tracker.filter(|_| item.receipt.is_none());
        let mut push = subscriber.queue.push(item);
        // A dead letter is stored already; publishing it must not make its worker wait for itself.
        let pushed = if subscriber.backpressure == Backpressure::Block && !channel.reserved {
            Some((&mut push).await)
        } else {
            tokio::time::timeout(subscriber.patience, &mut push).await.ok()
        };
        let back = match pushed {
            Some(Ok(len)) => {
                waiting.done = true;
                subscriber.pushed(len);
                self.count_delivered(channel, 1);
                if let Some(tracker) = enough {
                    tracker.queued();
                }
                return true;
            }
            Some(Err(_gone)) => {
                waiting.done = true;
                return false;
            }
            None => push.take_back(),
        };
        drop(push);
        if let Some(tracker) = enough {
            tracker.failed();
        }
        if subscriber.backpressure == Backpressure::DeadLetter && !channel.reserved {
            let error = format!("the queue of {:?} was full for {:?}", subscriber.name, subscriber.patience);
            if self.dead_letter(channel, &event, &error, &subscriber.name).await {
                waiting.done = true;
                subscriber.counts.dead_lettered.fetch_add(1, Ordering::Relaxed);
            }
        }
        if let Some(mut item) = back {
            item.complete(false);
        }
        // Unless it is done, the drop of `waiting` counts the loss.
        false
    }

    /// Stores an event as a dead letter and publishes it to those who follow dead letters. Returns whether it is
    /// stored.
    pub(crate) fn dead_letter<'a>(
        &'a self,
        channel: &'a Channel,
        event: &'a Event,
        error: &'a str,
        failed_by: &'a str,
    ) -> BoxFuture<'a, bool> {
        // Boxed because publishing a dead letter delivers an event, which may become a dead letter itself.
        async move {
            let letter = DeadLetter::of(event, error, failed_by, Arc::clone(&self.settings.source));
            if let Err(error) = self.dead_letters.put(&letter).await {
                let error = chain(&error);
                tracing::error!(id = %event.id, channel = %event.channel, error, "an event could not be kept as dead letter");
                return false;
            }
            channel.counts.dead_lettered.fetch_add(1, Ordering::Relaxed);
            self.totals.dead_lettered.fetch_add(1, Ordering::Relaxed);
            let told = match self.channels.get(&letter.event().channel, &self.telemetry) {
                Ok(channel) => self.send(&channel, Event::clone(letter.event()), None).await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = told {
                tracing::warn!(id = %letter.id(), error = chain(&error), "a dead letter is kept, but nobody was told");
            }
            true
        }
        .boxed()
    }

    /// Counts a failure of a handler or worker, by subscriber and by channel.
    pub(crate) fn count_failed(&self, subscriber: &Subscriber, event: &Event) {
        subscriber.counts.failed.fetch_add(1, Ordering::Relaxed);
        self.totals.failed.fetch_add(1, Ordering::Relaxed);
        if let Ok(channel) = self.channels.get(&event.channel, &self.telemetry) {
            channel.counts.failed.fetch_add(1, Ordering::Relaxed);
            channel.metrics.failed.increment(1);
        }
    }

    /// Counts an event that a subscriber lost.
    pub(crate) fn count_dropped(&self, subscriber: &Subscriber, channel: &Channel) {
        let dropped = subscriber.counts.dropped.fetch_add(1, Ordering::Relaxed) + 1;
        channel.counts.dropped.fetch_add(1, Ordering::Relaxed);
        channel.metrics.dropped.increment(1);
        self.totals.dropped.fetch_add(1, Ordering::Relaxed);
        // Often enough to be seen, seldom enough not to be the next problem.
        if dropped.is_power_of_two() {
            tracing::warn!(subscription = %subscriber.name, channel = %channel.name, dropped, "events were dropped");
        }
    }

    pub(crate) async fn link_down(&self, error: String) {
        {
            let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
            if link.down.is_some() {
                return;
            }
            link.down = Some((Instant::now(), Timestamp::now(), error.clone()));
            link.outages += 1;
        }
        tracing::warn!(error, "the bus has lost its connection; trying again");
        self.notice(Notice::DISCONNECTED, Notice::Disconnected { error }).await;
    }

    pub(crate) async fn link_up(&self, may_have_missed: bool) {
        let Some((from, since, _)) = self.link.lock().unwrap_or_else(PoisonError::into_inner).down.take() else {
            return;
        };
        let down_ms = u64::try_from(from.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(down_ms, may_have_missed, "the bus is connected again");
        let notice = Notice::Reconnected { since: rfc3339(since), down_ms, may_have_missed };
        self.notice(Notice::RECONNECTED, notice).await;
    }

    /// Notices are about this instance and do not leave it.
    async fn notice(&self, channel: &str, notice: Notice) {
        if let Ok(channel) = self.channels.get(channel, &self.telemetry) {
            let (name, source) = (Arc::clone(&channel.name), Arc::clone(&self.settings.source));
            let event = Event::new(name, source, Payload::from(notice), Metadata::new());
            self.deliver(&channel, event, None).await;
        }
    }
}

/// An event that waits for room in one queue. Dropped before it is done, it is counted as lost.
struct Waiting<'a> {
    hub: &'a Hub,
    channel: &'a Channel,
    subscriber: Arc<Subscriber>,
    item: Option<Item>,
    done: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.hub.count_dropped(&self.subscriber, self.channel);
        }
    }
}

/// An error with what is underneath, for a log.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text.push_str(": ");
        text.push_str(&error.to_string());
        next = error.source();
    }
    text
}
