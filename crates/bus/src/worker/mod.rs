//! Push workers: handlers with a queue, concurrency, order, retries and dead letters.
//!
//! A worker is one task that owns all of its state (`dispatch.rs`: what to do next; `lanes.rs`: in which order), and
//! runs the handler in a task of its own for each event. It sleeps until an event arrives, a handler ends or a retry is
//! due.

mod dispatch;
mod hooks;
mod lanes;
mod stats;

use std::{fmt, sync::Arc, time::Duration};

use futures::future::{BoxFuture, FutureExt};
use serde::de::DeserializeOwned;
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinHandle},
};

use self::{dispatch::PushDispatcher, hooks::NoHooks, stats::WorkerProgress};
pub use self::{
    hooks::Hooks,
    stats::{WorkerState, WorkerStats},
};
use crate::{
    Backpressure, Bus, BusError, Event, Metadata, Pattern, Received, SubscriberError, SubscriberKind,
    hub::SubscriberOptions, subscriber::Subscriber,
};

type Handler = Arc<dyn Fn(Arc<Event>) -> BoxFuture<'static, Result<(), SubscriberError>> + Send + Sync>;
type KeyOf = Arc<dyn Fn(&Event) -> Option<String> + Send + Sync>;

/// Which events wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// None does.
    None,
    /// Those of the same channel, one after the other.
    Channel,
    /// Those of the same key, one after the other. Events without a key wait for none.
    Key,
}

/// What a worker did, and what it did not get to.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PushWorkerReport {
    /// Times that the handler was run.
    pub executed: u64,
    /// Times that it failed.
    pub errors: u64,
    /// Events that went to the dead letters.
    pub dead_lettered: u64,
    /// Events that were taken and are not done. On a transport that delivers at least once they will come again; else
    /// this is the last that is seen of them, and they are counted as dropped.
    pub left: Vec<Arc<Event>>,
}

/// A worker that runs. Dropped, it ends at once; [`stop`](Self::stop) lets it finish.
pub struct PushWorker {
    name: Arc<str>,
    subscriber: Arc<Subscriber>,
    progress: Arc<WorkerProgress>,
    concurrency: usize,
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<PushWorkerReport>>,
    abort: AbortHandle,
}

impl PushWorker {
    /// The settings of a worker of that name, which is its label in metrics and dead letters.
    pub fn builder(name: impl Into<String>) -> PushWorkerBuilder {
        PushWorkerBuilder {
            name: name.into(),
            patterns: Vec::new(),
            concurrency: 1,
            capacity: 10_000,
            backpressure: None,
            order: Order::None,
            key: Arc::new(|event| event.metadata.get(Metadata::KEY).map(str::to_owned)),
            retries: 3,
            retry_unit: Duration::from_secs(1),
            stop_timeout: Duration::from_secs(30),
            hooks: Arc::new(NoHooks),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its numbers.
    pub fn stats(&self) -> WorkerStats {
        let channels = self.subscriber.patterns.iter().map(Pattern::to_string).collect();
        let queue = (self.subscriber.queue.len(), self.subscriber.queue.capacity());
        self.progress.stats(channels, self.concurrency, queue)
    }

    /// Takes no more events, finishes those it has, within the stop timeout (30 s), and says what it left. Retries that
    /// are due within that time are waited for.
    pub async fn stop(mut self) -> PushWorkerReport {
        self.stop.send_replace(true);
        match self.task.take() {
            // It ends early only if its runtime does.
            Some(task) => task.await.unwrap_or_default(),
            None => PushWorkerReport::default(),
        }
    }
}

impl Drop for PushWorker {
    fn drop(&mut self) {
        if self.task.is_some() {
            self.abort.abort();
        }
    }
}

impl fmt::Debug for PushWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushWorker").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The settings of a [`PushWorker`].
#[derive(Clone)]
#[must_use]
pub struct PushWorkerBuilder {
    name: String,
    patterns: Vec<String>,
    concurrency: usize,
    capacity: usize,
    backpressure: Option<Backpressure>,
    order: Order,
    key: KeyOf,
    retries: u32,
    retry_unit: Duration,
    stop_timeout: Duration,
    hooks: Arc<dyn Hooks>,
}

impl PushWorkerBuilder {
    /// A channel or pattern to take events from; as many as wanted. An event that matches several is taken once.
    pub fn channel(mut self, pattern: impl Into<String>) -> Self {
        self.patterns.push(pattern.into());
        self
    }

    /// How many events at the same time; 1 unless set.
    pub fn concurrency(mut self, events: usize) -> Self {
        self.concurrency = events.max(1);
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

    /// Which events wait for each other; none unless set.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Orders events by what this function says of them, instead of by the key in their metadata.
    pub fn key_by(mut self, key: impl Fn(&Event) -> Option<String> + Send + Sync + 'static) -> Self {
        self.order = Order::Key;
        self.key = Arc::new(key);
        self
    }

    /// How often a retryable error is tried again; 3 times unless set, after 1, 2 and 4 seconds.
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// What 2^n is multiplied with to be the wait before a retry; a second unless set.
    pub fn retry_unit(mut self, unit: Duration) -> Self {
        self.retry_unit = unit;
        self
    }

    /// How long [`PushWorker::stop`] waits for what was taken; 30 s unless set.
    pub fn stop_timeout(mut self, timeout: Duration) -> Self {
        self.stop_timeout = timeout;
        self
    }

    /// What is done around the handling of events.
    pub fn hooks(mut self, hooks: impl Hooks) -> Self {
        self.hooks = Arc::new(hooks);
        self
    }

    /// Starts the worker. Events that are published after this returns are handled.
    ///
    /// The handler runs in a tokio task of its own for each event, up to the concurrency. An error is tried again if it
    /// is [retryable](SubscriberError::retryable), and so is a panic; then the event is kept in `dlq.<channel>`, with the
    /// error.
    ///
    /// # Errors
    ///
    /// If a pattern is none, the bus is stopping, or the `initialize` hook refuses.
    pub async fn start<H, F>(self, bus: &Bus, handler: H) -> Result<PushWorker, BusError>
    where
        H: Fn(Arc<Event>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), SubscriberError>> + Send + 'static,
    {
        self.launch(bus, Arc::new(move |event| handler(event).boxed())).await
    }

    /// The same with payloads of one type. A payload of another shape is a dead letter at once.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn start_typed<T, H, F>(self, bus: &Bus, handler: H) -> Result<PushWorker, BusError>
    where
        T: DeserializeOwned + Send + Sync + 'static,
        H: Fn(Received<T>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), SubscriberError>> + Send + 'static,
    {
        let typed = move |event| match Received::new(event) {
            Ok(received) => handler(received).boxed(),
            Err(error) => futures::future::ready(Err(SubscriberError::fatal(error))).boxed(),
        };
        self.launch(bus, Arc::new(typed)).await
    }

    async fn launch(self, bus: &Bus, handler: Handler) -> Result<PushWorker, BusError> {
        self.hooks.initialize().await.map_err(BusError::Initialize)?;
        let patterns = self.patterns.iter().map(Pattern::new).collect::<Result<_, _>>()?;
        let options = SubscriberOptions {
            name: Some(self.name.clone()),
            capacity: Some(self.capacity),
            backpressure: self.backpressure,
            offer_timeout: None,
        };
        let membership = bus.hub.subscribe(SubscriberKind::Worker, patterns, options).await?;
        let (subscriber, progress) = (Arc::clone(&membership.subscriber), Arc::new(WorkerProgress::new()));
        let (stop, stopping) = watch::channel(false);
        let (name, concurrency): (Arc<str>, _) = (self.name.as_str().into(), self.concurrency);
        self.hooks.started().await;
        let task = tokio::spawn(PushDispatcher::new(self, membership, handler, Arc::clone(&progress)).run(stopping));
        let abort = task.abort_handle();
        let _ = subscriber.task.set(abort.clone());
        Ok(PushWorker { name, subscriber, progress, concurrency, stop, task: Some(task), abort })
    }
}

impl fmt::Debug for PushWorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushWorkerBuilder")
            .field("name", &self.name)
            .field("patterns", &self.patterns)
            .finish_non_exhaustive()
    }
}
