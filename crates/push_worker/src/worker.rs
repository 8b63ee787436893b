//! A push worker as its owner sees it: start, look, stop.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use futures::future::{BoxFuture, FutureExt};
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinHandle},
};

use crate::{
    Consumer, ConsumerFeatures, ConsumerMonitor, InitializeError, SubscriberError, WorkerSettings, WorkerState,
    WorkerStats, dispatch::Dispatcher, stats::WorkerProgress,
};

/// What is called for each message.
pub type Handler<M> = Arc<dyn Fn(Arc<M>) -> BoxFuture<'static, Result<(), SubscriberError>> + Send + Sync>;

/// Makes a [`Handler`] of an async function.
pub fn handler<M, H, F>(handle: H) -> Handler<M>
where
    H: Fn(Arc<M>) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), SubscriberError>> + Send + 'static,
{
    Arc::new(move |message| handle(message).boxed())
}

/// Which messages wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// None does.
    None,
    /// Those of the same channel, one after the other.
    Channel,
    /// Those of the same key, one after the other. Messages without a key wait for none.
    Key,
}

/// What a worker did, and what it did not get to.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PushWorkerReport<M> {
    /// Times that the handler succeeded.
    pub processed: u64,
    /// Times that it failed.
    pub errors: u64,
    /// Messages that went to the dead letters.
    pub dead_lettered: u64,
    /// Messages that an error hook had dropped.
    pub dropped: u64,
    /// Messages that were taken and are not done. Where deliveries are repeated they will come again; else this is the last
    /// that is seen of them.
    pub left: Vec<Arc<M>>,
}

impl<M> Default for PushWorkerReport<M> {
    fn default() -> Self {
        Self { processed: 0, errors: 0, dead_lettered: 0, dropped: 0, left: Vec::new() }
    }
}

/// A message type that says how a push worker for it is built. It makes `PushWorker::builder` the same everywhere.
pub trait Pushed: Sized + Send + Sync + 'static {
    /// The settings of such a worker, and what it consumes.
    type Builder;

    /// A builder with default settings.
    fn push_worker(name: String) -> Self::Builder;
}

/// A worker that runs. Dropped, it ends at once; [`stop`](Self::stop) lets it finish.
pub struct PushWorker<M> {
    name: Arc<str>,
    progress: Arc<WorkerProgress>,
    monitor: Arc<dyn ConsumerMonitor>,
    features: ConsumerFeatures,
    concurrency: usize,
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<PushWorkerReport<M>>>,
    abort: AbortHandle,
}

impl<M: Pushed> PushWorker<M> {
    /// The settings of a worker of that name, which is its label in metrics and dead letters.
    pub fn builder(name: impl Into<String>) -> M::Builder {
        M::push_worker(name.into())
    }
}

impl<M: Send + Sync + 'static> WorkerSettings<M> {
    /// Starts a worker with these settings on a consumer, which is made once the `initialize` hook has agreed.
    ///
    /// Handlers run in tokio tasks of their own, up to the concurrency.
    ///
    /// # Errors
    ///
    /// If the hook refuses, if there is no consumer, or if a message could be retried after the window in which it is handled
    /// [once](WorkerSettings::once).
    pub async fn start<C, E>(
        self,
        consumer: impl Future<Output = Result<C, E>>,
        handler: Handler<M>,
    ) -> Result<PushWorker<M>, E>
    where
        C: Consumer<Message = M>,
        E: From<InitializeError>,
    {
        if let Some(dedup) = &self.dedup {
            dedup.check(self.longest_retry()).map_err(|error| InitializeError(SubscriberError::fatal(error)))?;
        }
        self.hooks.initialize().await.map_err(InitializeError)?;
        let consumer = consumer.await?;
        let (monitor, features, progress) = (consumer.monitor(), consumer.features(), Arc::new(WorkerProgress::new()));
        let (stop, stopping) = watch::channel(false);
        let (name, concurrency): (Arc<str>, _) = (self.name.as_str().into(), self.concurrency);
        self.hooks.started().await;
        let dispatcher = Dispatcher::new(self, consumer, handler, Arc::clone(&progress));
        let task = tokio::spawn(dispatcher.run(stopping));
        let abort = task.abort_handle();
        Ok(PushWorker { name, progress, monitor, features, concurrency, stop, task: Some(task), abort })
    }
}

impl<M> PushWorker<M> {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What can be expected of where its messages come from.
    pub fn features(&self) -> ConsumerFeatures {
        self.features
    }

    /// Its numbers.
    pub fn stats(&self) -> WorkerStats {
        self.progress.stats(self.concurrency, &*self.monitor)
    }

    /// Whether it does its work: it runs, messages can come, and there is a place for one that is not taken by a handler
    /// that runs for [too long](WorkerSettings::slow_after).
    pub fn is_healthy(&self) -> bool {
        self.progress.state() == WorkerState::Running
            && !self.abort.is_finished()
            && self.progress.slow.load(Ordering::Relaxed) < self.concurrency
            && self.monitor.is_healthy()
    }

    /// How many messages it has that are not done: those that wait and those that are being handled.
    pub fn backlog(&self) -> usize {
        self.monitor.queue_size() + self.progress.running.load(Ordering::Relaxed)
    }

    /// Takes no more messages, finishes those it has, within the stop timeout (30 s), and says what it left. Retries that are
    /// due within that time are waited for.
    pub async fn stop(mut self) -> PushWorkerReport<M> {
        self.stop.send_replace(true);
        match self.task.take() {
            // It ends early only if its runtime does.
            Some(task) => task.await.unwrap_or_default(),
            None => PushWorkerReport::default(),
        }
    }

    /// Ends it at once, from elsewhere: for whoever can not wait for its owner.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }
}

impl<M> Drop for PushWorker<M> {
    fn drop(&mut self) {
        if self.task.is_some() {
            self.abort.abort();
        }
    }
}

impl<M> fmt::Debug for PushWorker<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushWorker").field("name", &self.name).finish_non_exhaustive()
    }
}
