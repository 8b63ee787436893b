//! The one task that decides what a worker does next.
//!
//! It owns everything, so that nothing needs a lock; handlers, hooks and dead letters run in tasks beside it, which
//! tell it how they ended. Nothing in its loop waits for anything but the next thing that happens.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::FutureExt;
use tokio::{
    sync::watch,
    task::{Id, JoinError, JoinSet},
    time::{Instant, sleep_until},
};

use super::{
    Handler, Order, PushWorkerBuilder, PushWorkerReport, WorkerState,
    lanes::{Job, Lane, Lanes},
    stats::WorkerProgress,
};
use crate::{
    Event, Metadata, SubscriberError,
    hub::{Membership, TaskGuard},
    subscribe::panic_message,
    subscriber::Item,
    telemetry::WorkerMetrics,
};

pub(crate) struct PushDispatcher {
    settings: PushWorkerBuilder,
    context: Arc<Shared>,
    lanes: Lanes<Item>,
    running: JoinSet<Ended>,
    /// What those are doing. Kept here and not in their tasks: a task that is cut off must not take its event with it.
    jobs: HashMap<Id, Job<Item>>,
    batch: VecDeque<Item>,
    /// The queue is closed and empty.
    drained: bool,
    /// When to give up, once it is stopping.
    deadline: Option<Instant>,
    _task: TaskGuard,
}

/// What handlers' tasks need.
struct Shared {
    membership: Membership,
    handler: Handler,
    settings: PushWorkerBuilder,
    progress: Arc<WorkerProgress>,
    metrics: WorkerMetrics,
}

/// How a handler's task ended.
enum Ended {
    Well,
    /// To be tried again.
    Failed,
    /// In the dead letters.
    DeadLettered,
    /// It failed for good, and could not even be kept as a dead letter.
    Lost,
}

impl PushDispatcher {
    pub(crate) fn new(
        settings: PushWorkerBuilder,
        membership: Membership,
        handler: Handler,
        progress: Arc<WorkerProgress>,
    ) -> Self {
        let metrics = membership.hub.telemetry.worker(&settings.name);
        let task = membership.hub.task();
        let context = Shared { membership, handler, settings: settings.clone(), progress, metrics };
        Self {
            settings,
            context: Arc::new(context),
            lanes: Lanes::new(),
            running: JoinSet::new(),
            jobs: HashMap::new(),
            batch: VecDeque::new(),
            drained: false,
            deadline: None,
            _task: task,
        }
    }

    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) -> PushWorkerReport {
        let context = Arc::clone(&self.context);
        let queue = &context.membership.subscriber.queue;
        loop {
            self.fill();
            context.metrics.queue_size.set(queue.len() as f64);
            if self.is_done() {
                break;
            }
            // A queue that never runs dry must not keep other tasks from their turn.
            tokio::task::consume_budget().await;
            let due = self.lanes.next_due();
            tokio::select! {
                Some(ended) = self.running.join_next_with_id() => self.ended(ended),
                more = poll_fn(|cx| queue.poll_take(&mut self.batch, cx)), if !self.drained => {
                    self.take(more);
                    if !more && self.deadline.is_none() {
                        // The bus stops, and so does its worker.
                        self.begin_stop().await;
                    }
                }
                () = until(due) => self.lanes.wake(Instant::now()),
                () = asked(&mut stop), if self.deadline.is_none() => self.begin_stop().await,
                () = until(self.deadline) => break,
            }
        }
        self.end().await
    }

    /// Starts as many handlers as there are places.
    fn fill(&mut self) {
        while self.running.len() < self.settings.concurrency
            && let Some(job) = self.lanes.next()
        {
            self.context.membership.subscriber.queue.release(1);
            let task = execute(Arc::clone(&self.context), Arc::clone(&job.what.event), job.retries);
            let id = self.running.spawn(task).id();
            self.jobs.insert(id, job);
        }
    }

    fn take(&mut self, more: bool) {
        self.drained = !more;
        self.context.membership.subscriber.report();
        for item in self.batch.drain(..) {
            let lane: Lane = match self.settings.order {
                Order::None => None,
                Order::Channel => Some(Arc::clone(&item.event.channel)),
                Order::Key => (self.settings.key)(&item.event).map(Arc::from),
            };
            self.lanes.add(item, lane);
        }
    }

    fn ended(&mut self, ended: Result<(Id, Ended), JoinError>) {
        let (id, ended) = match ended {
            Ok(ended) => ended,
            // A hook panicked, or the runtime ends. Handlers' own panics are caught where they happen.
            Err(error) => (error.id(), Ended::Lost),
        };
        let Some(mut job) = self.jobs.remove(&id) else { return };
        match ended {
            Ended::Well => job.what.complete(true),
            Ended::DeadLettered => job.what.complete(false),
            Ended::Lost => self.context.lost(&job.what.event),
            Ended::Failed => {
                // Waits again, and counts as waiting, so that a failing handler can not fill the memory.
                self.context.membership.subscriber.queue.readmit();
                let wait = retry_wait(self.settings.retry_unit, job.retries);
                job.retries += 1;
                self.lanes.park(with_retry_count(job), Instant::now() + wait);
                return;
            }
        }
        self.lanes.finished(job.lane);
    }

    /// Nothing is left that could be done in time.
    fn is_done(&self) -> bool {
        let Some(deadline) = self.deadline else { return false };
        let waits = self.lanes.next_due().is_some_and(|due| due < deadline);
        self.drained && self.running.is_empty() && !self.lanes.has_ready() && !waits
    }

    async fn begin_stop(&mut self) {
        self.deadline = Some(Instant::now() + self.settings.stop_timeout);
        self.context.progress.enter(WorkerState::Stopping);
        self.context.membership.leave();
        self.settings.hooks.stopping().await;
    }

    async fn end(mut self) -> PushWorkerReport {
        let Shared { membership, progress, .. } = &*self.context;
        self.running.shutdown().await;
        let mut left: Vec<Item> = self.jobs.drain().map(|(_, job)| job.what).collect();
        let waited = self.lanes.len();
        left.extend(self.lanes.drain());
        if !self.drained && membership.subscriber.queue.take_now(&mut self.batch) {
            left.extend(self.batch.drain(..));
        }
        membership.subscriber.queue.release(waited);
        left.iter().for_each(|item| self.context.lost(&item.event));
        let report = PushWorkerReport {
            executed: progress.executions.load(Ordering::Relaxed),
            errors: progress.errors.load(Ordering::Relaxed),
            dead_lettered: progress.dead_lettered.load(Ordering::Relaxed),
            // Their receipts go with the items, unsettled: a transport that keeps events delivers these again.
            left: left.into_iter().map(|item| item.event).collect(),
        };
        if !report.left.is_empty() {
            tracing::warn!(worker = self.settings.name, left = report.left.len(), "a worker stops before it is done");
        }
        progress.enter(WorkerState::Stopped);
        self.context.metrics.queue_size.set(0.0);
        self.settings.hooks.stopped(&report).await;
        report
    }
}

impl Shared {
    fn lost(&self, event: &Event) {
        let Membership { hub, subscriber } = &self.membership;
        // What the transport keeps comes again.
        let kept = hub.transport.as_ref().is_some_and(|transport| transport.features().at_least_once);
        if !kept && let Ok(channel) = hub.channels.get(&event.channel, &hub.telemetry) {
            hub.count_dropped(subscriber, &channel);
        }
    }
}

/// Runs the handler once and sees to its failure.
async fn execute(context: Arc<Shared>, event: Arc<Event>, retries: u32) -> Ended {
    let begin = Instant::now();
    let called = AssertUnwindSafe(async { (context.handler)(Arc::clone(&event)).await }).catch_unwind().await;
    let took = begin.elapsed();
    let result = called.unwrap_or_else(|panic| Err(SubscriberError::retryable(panic_message(&*panic))));
    context.progress.executed(took, result.is_ok());
    context.metrics.processed.increment(1);
    context.metrics.duration.record(took);
    let Err(error) = result else { return Ended::Well };
    context.metrics.errors.increment(1);
    let Membership { hub, subscriber } = &context.membership;
    let again = error.is_retryable() && retries < context.settings.retries;
    context.settings.hooks.error(&event, &error, again.then_some(retries + 1)).await;
    let worker = &*context.settings.name;
    if again {
        tracing::debug!(worker, id = %event.id, channel = %event.channel, %error, retries, "a handler failed; again later");
        return Ended::Failed;
    }
    hub.count_failed(subscriber, &event);
    tracing::warn!(worker, id = %event.id, channel = %event.channel, %error, retries, "a handler failed for good");
    let Ok(channel) = hub.channels.get(&event.channel, &hub.telemetry) else { return Ended::Lost };
    // A dead letter that fails again does not become one twice: it is where it was.
    if !channel.reserved && hub.dead_letter(&channel, &event, &error.to_string(), worker).await {
        context.progress.dead_lettered.fetch_add(1, Ordering::Relaxed);
        subscriber.counts.dead_lettered.fetch_add(1, Ordering::Relaxed);
        return Ended::DeadLettered;
    }
    if channel.reserved { Ended::DeadLettered } else { Ended::Lost }
}

/// 2^n units, where n is how often it was tried again before.
fn retry_wait(unit: Duration, retries: u32) -> Duration {
    unit.saturating_mul(2_u32.saturating_pow(retries))
}

/// The event says how often it was tried again. Only its metadata is copied, the payload stays where it is.
fn with_retry_count(mut job: Job<Item>) -> Job<Item> {
    let mut event = Event::clone(&job.what.event);
    event.metadata.set(Metadata::RETRY_COUNT, job.retries.to_string());
    job.what.event = Arc::new(event);
    job
}

/// At that time, or never.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// When its owner wants it to stop. An owner who is gone has aborted it.
async fn asked(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending().await
    }
}
