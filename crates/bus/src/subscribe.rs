//! Subscribing: as a stream, typed or not, or with a handler.

use std::{
    collections::VecDeque,
    fmt,
    marker::PhantomData,
    ops::Deref,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::{FutureExt, Stream};
use serde::de::DeserializeOwned;
use tokio::task::AbortHandle;

use crate::{
    Backpressure, Bus, BusError, Event, Pattern, PayloadError, SubscriberError, SubscriberKind, SubscriptionStats,
    hub::{Hub, Membership, SubscriberOptions},
    subscriber::{Item, Subscriber},
};

impl Bus {
    /// Subscribes to a channel or a pattern. Events that are published after this returns are in the stream; on a bus
    /// that is not started, from its start on.
    ///
    /// # Errors
    ///
    /// If it is not a pattern, the bus is stopping, or the transport fails.
    pub async fn subscribe(&self, pattern: &str) -> Result<Subscription, BusError> {
        self.subscriber(pattern).stream().await
    }

    /// The same with payloads of one type.
    ///
    /// # Errors
    ///
    /// As for [`subscribe`](Self::subscribe).
    pub async fn subscribe_to<T>(&self, pattern: &str) -> Result<TypedSubscription<T>, BusError>
    where
        T: DeserializeOwned + Send + Sync + 'static,
    {
        Ok(self.subscribe(pattern).await?.typed())
    }

    /// Calls `handler` for each event, one after the other, until the guard that this returns is dropped.
    ///
    /// # Errors
    ///
    /// As for [`subscribe`](Self::subscribe).
    pub async fn on<H, F>(&self, pattern: &str, handler: H) -> Result<HandlerGuard, BusError>
    where
        H: Fn(Arc<Event>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), SubscriberError>> + Send + 'static,
    {
        self.subscriber(pattern).handler(handler).await
    }

    /// A subscription with settings of its own.
    pub fn subscriber(&self, pattern: &str) -> Subscribe<'_> {
        Subscribe { bus: self, patterns: vec![pattern.to_owned()], options: SubscriberOptions::default() }
    }
}

/// A subscription that is being put together.
#[derive(Debug)]
#[must_use]
pub struct Subscribe<'a> {
    bus: &'a Bus,
    patterns: Vec<String>,
    options: SubscriberOptions,
}

impl Subscribe<'_> {
    /// One more channel or pattern. An event that matches several arrives once.
    pub fn and(mut self, pattern: &str) -> Self {
        self.patterns.push(pattern.to_owned());
        self
    }

    /// A name for the statistics; the patterns unless set.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = Some(name.into());
        self
    }

    /// How many events can wait; what the bus says unless set.
    pub fn capacity(mut self, events: usize) -> Self {
        self.options.capacity = Some(events);
        self
    }

    /// What happens when they can not; what the bus says unless set.
    pub fn backpressure(mut self, policy: Backpressure) -> Self {
        self.options.backpressure = Some(policy);
        self
    }

    /// How long publishers wait while they can not; what the bus says unless set. Zero: not at all.
    pub fn offer_timeout(mut self, timeout: Duration) -> Self {
        self.options.offer_timeout = Some(timeout);
        self
    }

    /// Subscribes as a stream.
    ///
    /// # Errors
    ///
    /// As for [`Bus::subscribe`].
    pub async fn stream(self) -> Result<Subscription, BusError> {
        let membership = self.join(SubscriberKind::Stream).await?;
        Ok(Subscription { membership, batch: VecDeque::new() })
    }

    /// Subscribes with a handler, which is called for each event, one after the other.
    ///
    /// An error or a panic is one of that event: it is counted and logged, and the next one follows. For retries, dead
    /// letters and concurrency there are [push workers](crate::PushWorker).
    ///
    /// # Errors
    ///
    /// As for [`Bus::subscribe`].
    pub async fn handler<H, F>(self, handler: H) -> Result<HandlerGuard, BusError>
    where
        H: Fn(Arc<Event>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), SubscriberError>> + Send + 'static,
    {
        let membership = self.join(SubscriberKind::Handler).await?;
        let (hub, subscriber) = (Arc::clone(&membership.hub), Arc::clone(&membership.subscriber));
        let guard = hub.task();
        let task = tokio::spawn(async move {
            let _guard = guard;
            let mut subscription = Subscription { membership, batch: VecDeque::new() };
            while let Some(mut item) = subscription.next_item().await {
                // Calling it may panic as well as awaiting it.
                let called = AssertUnwindSafe(async { handler(Arc::clone(&item.event)).await }).catch_unwind();
                let result = called.await.unwrap_or_else(|panic| Err(SubscriberError::panicked(&*panic)));
                if let Err(error) = &result {
                    let Membership { hub, subscriber } = &subscription.membership;
                    hub.count_failed(subscriber, &item.event);
                    let event = &item.event;
                    tracing::warn!(id = %event.id, channel = %event.channel, %error, "a handler failed");
                }
                item.complete(result.is_ok());
            }
        });
        let abort = task.abort_handle();
        let _ = subscriber.task.set(abort.clone());
        Ok(HandlerGuard { hub, subscriber, abort: Some(abort) })
    }

    async fn join(self, kind: SubscriberKind) -> Result<Membership, BusError> {
        let patterns = self.patterns.into_iter().map(Pattern::new).collect::<Result<_, _>>()?;
        self.bus.hub.subscribe(kind, patterns, self.options).await
    }
}

/// Events as they come. Ends when the bus stops. Dropped, it unsubscribes, and what waits is gone.
pub struct Subscription {
    membership: Membership,
    /// Taken from the queue and not yet asked for; counts as waiting.
    batch: VecDeque<Item>,
}

impl Subscription {
    /// The next event; `None` when the bus is stopped and everything was read. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Arc<Event>> {
        let mut item = self.next_item().await?;
        item.complete(true);
        Some(item.event)
    }

    /// The next event if one waits.
    pub fn try_recv(&mut self) -> Option<Arc<Event>> {
        if self.batch.is_empty() {
            self.membership.subscriber.queue.take_now(&mut self.batch);
        }
        let mut item = self.pop()?;
        item.complete(true);
        Some(item.event)
    }

    /// How many events wait.
    pub fn waiting(&self) -> usize {
        self.membership.subscriber.queue.len()
    }

    /// How many events were lost to it.
    pub fn dropped(&self) -> u64 {
        self.membership.subscriber.counts.dropped.load(Ordering::Relaxed)
    }

    /// Its counts.
    pub fn stats(&self) -> SubscriptionStats {
        self.membership.subscriber.stats()
    }

    /// No more events; those that wait can still be read. Dropping it does the same and forgets those.
    pub fn unsubscribe(&self) {
        self.membership.leave();
    }

    /// The same events with payloads of one type.
    pub fn typed<T: DeserializeOwned + Send + Sync + 'static>(self) -> TypedSubscription<T> {
        TypedSubscription { events: self, payload: PhantomData }
    }

    pub(crate) fn next_item(&mut self) -> impl Future<Output = Option<Item>> {
        std::future::poll_fn(|context| self.poll_item(context))
    }

    fn poll_item(&mut self, context: &mut Context<'_>) -> Poll<Option<Item>> {
        // Part of tokio's co-operation: a queue that never runs dry must not keep others from their turn.
        let budget = ready!(tokio::task::coop::poll_proceed(context));
        if self.batch.is_empty() {
            let subscriber = &self.membership.subscriber;
            let taken = ready!(subscriber.queue.poll_take(&mut self.batch, context));
            subscriber.report();
            if !taken {
                return Poll::Ready(None);
            }
        }
        budget.made_progress();
        Poll::Ready(self.pop())
    }

    fn pop(&mut self) -> Option<Item> {
        let item = self.batch.pop_front()?;
        self.membership.subscriber.queue.release(1);
        Some(item)
    }
}

impl Stream for Subscription {
    type Item = Arc<Event>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Arc<Event>>> {
        self.poll_item(context).map(|item| {
            item.map(|mut item| {
                item.complete(true);
                item.event
            })
        })
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("subscriber", &self.membership.subscriber).finish_non_exhaustive()
    }
}

/// An event whose payload was read as a `T`. Use it as one.
#[derive(Debug)]
pub struct Received<T> {
    /// The event.
    pub event: Arc<Event>,
    /// What it carries: in process, the very value that was published.
    pub payload: Arc<T>,
}

impl<T> Deref for Received<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.payload
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> Received<T> {
    /// Reads an event's payload.
    ///
    /// # Errors
    ///
    /// If it is of another shape.
    pub fn new(event: Arc<Event>) -> Result<Self, PayloadError> {
        let payload = event.payload.get()?;
        Ok(Self { event, payload })
    }
}

/// Events with payloads of one type. One that is of another shape comes as an error, and the next one follows.
pub struct TypedSubscription<T> {
    events: Subscription,
    payload: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned + Send + Sync + 'static> TypedSubscription<T> {
    /// The next event, as [`Subscription::recv`].
    pub async fn recv(&mut self) -> Option<Result<Received<T>, PayloadError>> {
        self.events.recv().await.map(Received::new)
    }

    /// The subscription underneath.
    pub fn untyped(&self) -> &Subscription {
        &self.events
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> Stream for TypedSubscription<T> {
    type Item = Result<Received<T>, PayloadError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.events).poll_next(context).map(|event| event.map(Received::new))
    }
}

impl<T> fmt::Debug for TypedSubscription<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.events.fmt(f)
    }
}

/// Keeps a handler subscribed. Dropped, it unsubscribes: the call that runs is cut off, and what waits is gone.
#[must_use = "dropping it unsubscribes the handler"]
pub struct HandlerGuard {
    hub: Arc<Hub>,
    subscriber: Arc<Subscriber>,
    abort: Option<AbortHandle>,
}

impl HandlerGuard {
    /// How many events wait.
    pub fn waiting(&self) -> usize {
        self.subscriber.queue.len()
    }

    /// Its counts.
    pub fn stats(&self) -> SubscriptionStats {
        self.subscriber.stats()
    }

    /// Lets the handler live as long as the bus.
    pub fn forever(mut self) {
        self.abort = None;
    }
}

impl Drop for HandlerGuard {
    fn drop(&mut self) {
        if let Some(task) = &self.abort {
            self.hub.unsubscribe(&self.subscriber);
            task.abort();
        }
    }
}

impl fmt::Debug for HandlerGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerGuard").field("subscriber", &self.subscriber).finish_non_exhaustive()
    }
}
