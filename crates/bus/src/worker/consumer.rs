//! The bus as a source of a push worker's messages: a subscriber whose queue the worker empties.

use std::{
    borrow::Cow,
    collections::VecDeque,
    future::poll_fn,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use relais_push_worker::{
    BoxError, Consumer, ConsumerFeatures, ConsumerMonitor, Incoming, Order, Settled, WorkerSubscription,
};

use super::FailedEvent;
use crate::{
    Event, Metadata, Pattern,
    hub::{Hub, Membership, TaskGuard},
    subscriber::{Item, Subscriber},
};

/// Takes events out of a subscriber's queue. While it is there, a bus that stops waits for the worker.
pub(super) struct BusConsumer {
    membership: Membership,
    pending: Arc<Pending>,
    _task: TaskGuard,
}

impl BusConsumer {
    pub(super) fn new(membership: Membership) -> Self {
        let task = membership.hub.task();
        let pending = Pending::new(&membership.subscriber.patterns);
        Self { membership, pending: Arc::new(pending), _task: task }
    }

    fn keeps(&self) -> bool {
        self.membership.hub.transport.as_ref().is_some_and(|transport| transport.features().at_least_once)
    }

    /// It is lost to this worker; what the transport keeps comes again.
    fn lost(&self, event: &Event) {
        let Membership { hub, subscriber } = &self.membership;
        if !self.keeps()
            && let Ok(channel) = hub.channels.get(&event.channel, &hub.telemetry)
        {
            hub.count_dropped(subscriber, &channel);
        }
    }
}

impl Consumer for BusConsumer {
    type Message = Event;
    type Delivery = Item;

    fn features(&self) -> ConsumerFeatures {
        let transport = self.membership.hub.transport.as_ref().map(|transport| transport.features());
        ConsumerFeatures {
            redelivers: self.keeps(),
            shares_work: transport.is_some_and(|features| features.shares_work),
            keeps_order: true,
            retries_at_broker: false,
            has_partitions: false,
            keeps_dead_letters: transport.is_some_and(|features| features.keeps_dead_letters),
        }
    }

    fn monitor(&self) -> Arc<dyn ConsumerMonitor> {
        let Membership { hub, subscriber } = &self.membership;
        let (hub, subscriber) = (Arc::clone(hub), Arc::clone(subscriber));
        Arc::new(BusMonitor { hub, subscriber, pending: Arc::clone(&self.pending) })
    }

    async fn receive(&self, batch: &mut VecDeque<Item>) -> Incoming<Item> {
        let subscriber = &self.membership.subscriber;
        let more = poll_fn(|context| subscriber.queue.poll_take(batch, context)).await;
        subscriber.report();
        batch.iter().for_each(|item| self.pending.add(&item.event));
        if more { Incoming::Deliveries } else { Incoming::Closed }
    }

    fn message(&self, item: &Item) -> Arc<Event> {
        Arc::clone(&item.event)
    }

    fn id<'a>(&self, event: &'a Event) -> Cow<'a, str> {
        event.id.to_string().into()
    }

    fn channel<'a>(&self, event: &'a Event) -> &'a str {
        &event.channel
    }

    fn lane(&self, item: &Item, order: Order) -> Option<Arc<str>> {
        match order {
            Order::None => None,
            Order::Channel => Some(Arc::clone(&item.event.channel)),
            Order::Key => item.event.metadata.get(Metadata::KEY).map(Arc::from),
        }
    }

    fn leave_queue(&self, item: &Item) {
        self.membership.subscriber.queue.release(1);
        self.pending.remove(&item.event);
    }

    /// Only the metadata of the event is copied, the payload stays where it is.
    fn rejoin_queue(&self, item: &mut Item, retries: u32) {
        self.membership.subscriber.queue.readmit();
        self.pending.add(&item.event);
        if retries > 0 {
            let mut event = Event::clone(&item.event);
            event.metadata.set(Metadata::RETRY_COUNT, retries.to_string());
            item.event = Arc::new(event);
        }
    }

    fn settle(&self, mut item: Item, settled: Settled) {
        let Membership { hub, subscriber } = &self.membership;
        match settled {
            Settled::Done => item.complete(true),
            Settled::DeadLettered | Settled::Retried => item.complete(false),
            Settled::Dropped => {
                hub.count_failed(subscriber, &item.event);
                item.complete(false);
            }
            // The receipt goes with the item, unsettled.
            Settled::Failed | Settled::Left => self.lost(&item.event),
        }
    }

    async fn dead_letter(&self, failed: &FailedEvent<'_>) -> Result<bool, BoxError> {
        let Membership { hub, subscriber } = &self.membership;
        let event = failed.message;
        hub.count_failed(subscriber, event);
        let channel = hub.channels.get(&event.channel, &hub.telemetry)?;
        // A dead letter that fails again does not become one twice: it is where it was.
        if channel.reserved {
            return Ok(false);
        }
        if !hub.dead_letter(&channel, event, &failed.error.to_string(), failed.worker).await {
            return Err("the store of dead letters did not take it".into());
        }
        subscriber.counts.dead_lettered.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    async fn stop_receiving(&self) {
        self.membership.leave();
    }

    async fn close(&self) {}
}

/// A worker's subscriber, seen from outside.
struct BusMonitor {
    hub: Arc<Hub>,
    subscriber: Arc<Subscriber>,
    pending: Arc<Pending>,
}

impl ConsumerMonitor for BusMonitor {
    fn channels(&self) -> Vec<String> {
        self.subscriber.patterns.iter().map(Pattern::to_string).collect()
    }

    fn queue_size(&self) -> usize {
        self.subscriber.queue.len()
    }

    fn queue_capacity(&self) -> usize {
        self.subscriber.queue.capacity()
    }

    /// The worker is one subscription of the bus; with several patterns, each has a number behind that of the subscription.
    fn subscriptions(&self) -> Vec<WorkerSubscription> {
        let id = self.subscriber.id;
        if let [pattern] = &self.subscriber.patterns[..] {
            let channel = pattern.to_string();
            return vec![WorkerSubscription { id: id.to_string(), channel, pending: self.queue_size() }];
        }
        let patterns = self.pending.of_patterns.iter().enumerate();
        patterns
            .map(|(place, (pattern, pending))| WorkerSubscription {
                id: format!("{id}.{}", place + 1),
                channel: pattern.to_string(),
                pending: pending.load(Ordering::Relaxed),
            })
            .collect()
    }

    fn is_healthy(&self) -> bool {
        let is_up = self.hub.link.lock().unwrap_or_else(PoisonError::into_inner).down.is_none();
        is_up && self.hub.is_running()
    }
}

/// How many events wait, by pattern. With one pattern that is what the queue says, and nothing is counted.
struct Pending {
    of_patterns: Vec<(Pattern, AtomicUsize)>,
}

impl Pending {
    fn new(patterns: &[Pattern]) -> Self {
        let several = if patterns.len() > 1 { patterns } else { &[] };
        Self { of_patterns: several.iter().map(|pattern| (pattern.clone(), AtomicUsize::new(0))).collect() }
    }

    fn add(&self, event: &Event) {
        if let Some(count) = self.of(event) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn remove(&self, event: &Event) {
        if let Some(count) = self.of(event) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// An event that matches several is counted with the first.
    fn of(&self, event: &Event) -> Option<&AtomicUsize> {
        let mut patterns = self.of_patterns.iter();
        patterns.find(|(pattern, _)| pattern.matches(&event.channel)).map(|(_, count)| count)
    }
}
