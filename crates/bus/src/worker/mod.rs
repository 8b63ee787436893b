//! Push workers on the bus. What they do is in `relais-push-worker`; `consumer.rs` is what feeds it.

mod consumer;

use std::{fmt, sync::Arc};

use relais_push_worker::{Handler, Pushed, WorkerSettings, handler};
use serde::de::DeserializeOwned;

use self::consumer::BusConsumer;
use crate::{
    Backpressure, Bus, BusError, Event, Pattern, Received, SubscriberError, SubscriberKind, hub::SubscriberOptions,
};

/// A push worker on the bus.
pub type PushWorker = relais_push_worker::PushWorker<Event>;

/// What a push worker on the bus did, and what it did not get to.
pub type PushWorkerReport = relais_push_worker::PushWorkerReport<Event>;

/// An event whose handler failed, as an [error hook](relais_push_worker::Hooks::error) sees it.
pub type FailedEvent<'a> = relais_push_worker::FailedMessage<'a, Event>;

impl Pushed for Event {
    type Builder = PushWorkerBuilder;

    fn push_worker(name: String) -> PushWorkerBuilder {
        WorkerSettings::new(name).into()
    }
}

/// The settings of a [`PushWorker`].
#[derive(Clone)]
#[must_use]
pub struct PushWorkerBuilder {
    worker: WorkerSettings<Event>,
    patterns: Vec<String>,
    capacity: usize,
    backpressure: Option<Backpressure>,
}

impl From<WorkerSettings<Event>> for PushWorkerBuilder {
    fn from(worker: WorkerSettings<Event>) -> Self {
        Self { worker, patterns: Vec::new(), capacity: 10_000, backpressure: None }
    }
}

impl PushWorkerBuilder {
    relais_push_worker::worker_settings!(Event, worker);

    /// A channel or pattern to take events from; as many as wanted. An event that matches several is taken once.
    pub fn channel(mut self, pattern: impl Into<String>) -> Self {
        self.patterns.push(pattern.into());
        self
    }

    /// How many events can wait; 10,000 unless set. Those that wait for their next try are among them.
    pub fn queue_capacity(mut self, events: usize) -> Self {
        self.capacity = events.max(1);
        self
    }

    /// What happens to an event when they can not; what the bus says unless set.
    pub fn backpressure(mut self, policy: Backpressure) -> Self {
        self.backpressure = Some(policy);
        self
    }

    /// Starts the worker. Events that are published after this returns are handled.
    ///
    /// The handler runs in a tokio task of its own for each event, up to the concurrency. An error is retried if it is
    /// [retryable](SubscriberError::retryable), and so is a panic; then the event is kept in `dlq.<channel>`, with the
    /// error.
    ///
    /// # Errors
    ///
    /// If a pattern is none, the bus is stopping, or the `initialize` hook refuses.
    pub async fn start<H, F>(self, bus: &Bus, handle: H) -> Result<PushWorker, BusError>
    where
        H: Fn(Arc<Event>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), SubscriberError>> + Send + 'static,
    {
        self.launch(bus, handler(handle)).await
    }

    /// The same with payloads of one type. A payload of another shape is a dead letter at once.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn start_typed<T, H, F>(self, bus: &Bus, handle: H) -> Result<PushWorker, BusError>
    where
        T: DeserializeOwned + Send + Sync + 'static,
        H: Fn(Received<T>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), SubscriberError>> + Send + 'static,
    {
        let typed = handler(move |event| {
            let handled = Received::new(event).map_err(SubscriberError::fatal).map(&handle);
            async move { handled?.await }
        });
        self.launch(bus, typed).await
    }

    async fn launch(self, bus: &Bus, handler: Handler<Event>) -> Result<PushWorker, BusError> {
        let Self { mut worker, patterns, capacity, backpressure } = self;
        worker.metrics_prefix.clone_from(&bus.hub.settings.metrics_prefix);
        let options = SubscriberOptions {
            name: Some(worker.name.clone()),
            capacity: Some(capacity),
            backpressure,
            offer_timeout: None,
        };
        let mut subscriber = None;
        let consumer = async {
            let patterns = patterns.iter().map(Pattern::new).collect::<Result<_, _>>()?;
            let membership = bus.hub.subscribe(SubscriberKind::Worker, patterns, options).await?;
            subscriber = Some(Arc::clone(&membership.subscriber));
            Ok::<_, BusError>(BusConsumer::new(membership))
        };
        let worker = worker.start(consumer, handler).await?;
        if let Some(subscriber) = subscriber {
            let _ = subscriber.task.set(worker.abort_handle());
        }
        Ok(worker)
    }
}

impl fmt::Debug for PushWorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushWorkerBuilder")
            .field("name", &self.worker.name)
            .field("patterns", &self.patterns)
            .finish_non_exhaustive()
    }
}

impl Bus {
    /// The shortest form of a push worker: one channel or pattern, which is its name too, default settings, and a handler
    /// that gets nothing but the payload.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let bus = relais_bus::Bus::in_memory();
    /// let worker = bus
    ///     .work("orders.created", |number: std::sync::Arc<u32>| async move {
    ///         println!("order {number}");
    ///         Ok(())
    ///     })
    ///     .await?;
    /// bus.publish("orders.created", 7_u32).await?;
    /// assert_eq!(worker.stop().await.processed, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`PushWorkerBuilder::start`].
    pub async fn work<T, H, F>(&self, channel: &str, handle: H) -> Result<PushWorker, BusError>
    where
        T: DeserializeOwned + Send + Sync + 'static,
        H: Fn(Arc<T>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), SubscriberError>> + Send + 'static,
    {
        let payload = move |received: Received<T>| handle(received.payload);
        PushWorker::builder(channel).channel(channel).start_typed(self, payload).await
    }
}
