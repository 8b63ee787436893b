//! The one task that decides what a worker does next.
//!
//! It owns everything, so that nothing needs a lock; handlers, error hooks and dead letters run in tasks beside it, which
//! tell it how they ended. Nothing in its loop waits for anything but the next thing that happens.

use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::FutureExt;
use tokio::{
    sync::watch,
    task::{Id, JoinError, JoinSet},
    time::{Instant, Sleep, sleep, sleep_until, timeout_at},
};

use crate::{
    Consumer, ConsumerMonitor, Covers, Handler, Incoming, Order, PushWorkerReport, Settled, WorkerSettings,
    WorkerState,
    execute::{Context, Ended, execute},
    lanes::{Job, Lane, Lanes},
    revocation::Revocations,
    stats::WorkerProgress,
    telemetry::WorkerMetrics,
};

pub(crate) struct Dispatcher<C: Consumer> {
    context: Arc<Context<C>>,
    monitor: Arc<dyn ConsumerMonitor>,
    lanes: Lanes<C::Delivery>,
    running: JoinSet<Ended>,
    /// What those are doing. Kept here and not in their tasks: a task that is cut off must not take its delivery with it.
    jobs: HashMap<Id, Running<C::Delivery>>,
    batch: VecDeque<C::Delivery>,
    revocations: Revocations,
    /// When to look for handlers that run for too long. One timer for all of them, which is set when it has fired and not
    /// for each.
    slow: Pin<Box<Sleep>>,
    slow_is_set: bool,
    /// There will be no more deliveries.
    closed: bool,
    /// When to give up, once it is stopping.
    deadline: Option<Instant>,
}

/// A delivery whose handler runs.
struct Running<D> {
    job: Job<D>,
    since: Instant,
    is_slow: bool,
    hold: Hold,
}

/// What still belongs to this worker of a delivery that is being handled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Hold {
    /// All of it.
    Whole,
    /// Its partition is to be handed over: it is finished and settled, and not retried here.
    Revoked,
    /// Nothing: what becomes of it does not count.
    Lost,
}

impl<C: Consumer> Dispatcher<C> {
    pub(crate) fn new(
        settings: WorkerSettings<C::Message>,
        consumer: C,
        handler: Handler<C::Message>,
        progress: Arc<WorkerProgress>,
    ) -> Self {
        let metrics = WorkerMetrics::new(&settings.metrics_prefix, &settings.name);
        let (monitor, slow) = (consumer.monitor(), Box::pin(sleep(settings.slow_after)));
        Self {
            context: Arc::new(Context { consumer, handler, settings, progress, metrics }),
            monitor,
            lanes: Lanes::new(),
            running: JoinSet::new(),
            jobs: HashMap::new(),
            batch: VecDeque::new(),
            revocations: Revocations::default(),
            slow,
            slow_is_set: false,
            closed: false,
            deadline: None,
        }
    }

    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) -> PushWorkerReport<C::Message> {
        let context = Arc::clone(&self.context);
        loop {
            self.fill();
            context.metrics.queue_size.set(self.monitor.queue_size() as f64);
            if self.is_done() {
                break;
            }
            // A queue that never runs dry must not keep other tasks from their turn.
            tokio::task::consume_budget().await;
            let due = self.lanes.next_due();
            tokio::select! {
                Some(ended) = self.running.join_next_with_id() => self.ended(ended),
                incoming = context.consumer.receive(&mut self.batch), if !self.closed => self.take(incoming).await,
                () = until(due) => self.lanes.wake(Instant::now()),
                () = asked(&mut stop), if self.deadline.is_none() => self.begin_stop().await,
                () = &mut self.slow, if self.slow_is_set => self.warn_of_slow(),
                () = until(self.deadline) => break,
            }
        }
        self.end().await
    }

    /// Starts as many handlers as there are places.
    fn fill(&mut self) {
        let context = &self.context;
        let mut now = None;
        while self.running.len() < context.settings.concurrency
            && let Some(job) = self.lanes.next()
        {
            context.consumer.leave_queue(&job.what);
            let message = context.consumer.message(&job.what);
            let id = self.running.spawn(execute(Arc::clone(context), message, job.retries)).id();
            let since = *now.get_or_insert_with(Instant::now);
            self.jobs.insert(id, Running { job, since, is_slow: false, hold: Hold::Whole });
            if !self.slow_is_set {
                self.slow.as_mut().reset(later(since, context.settings.slow_after));
                self.slow_is_set = true;
            }
        }
        context.progress.running.store(self.running.len(), Ordering::Relaxed);
    }

    /// Puts what was received into lanes, then does what came after it.
    async fn take(&mut self, incoming: Incoming<C::Delivery>) {
        self.add_batch();
        match incoming {
            Incoming::Deliveries => {}
            Incoming::Revoked(revoked) => {
                let running = self.give_back(&revoked.covers, Hold::Revoked);
                self.revocations.add(running, revoked.done);
            }
            Incoming::Lost(covers) => drop(self.give_back(&covers, Hold::Lost)),
            Incoming::Closed => {
                self.closed = true;
                if self.deadline.is_none() {
                    // Its source ends, and so does the worker.
                    self.begin_stop().await;
                }
            }
        }
    }

    fn add_batch(&mut self) {
        let Context { consumer, settings, .. } = &*self.context;
        for delivery in self.batch.drain(..) {
            let lane: Lane = match (settings.order, &settings.key) {
                (Order::None, _) => None,
                (Order::Key, Some(key)) => key(&consumer.message(&delivery)).map(Arc::from),
                (order, _) => consumer.lane(&delivery, order),
            };
            let retries = consumer.retries(&delivery);
            self.lanes.add(delivery, lane, retries);
        }
    }

    /// Gives back what has not started, and marks what runs. Returns the latter.
    fn give_back(&mut self, covers: &Covers<C::Delivery>, hold: Hold) -> Vec<Id> {
        for delivery in self.lanes.remove(covers) {
            self.context.consumer.leave_queue(&delivery);
            self.context.consumer.settle(delivery, Settled::Left);
        }
        let running = self.jobs.iter_mut().filter(|(_, running)| covers(&running.job.what));
        running
            .map(|(id, running)| {
                // What is lost stays lost.
                running.hold = running.hold.max(hold);
                *id
            })
            .collect()
    }

    fn ended(&mut self, ended: Result<(Id, Ended), JoinError>) {
        let (id, ended) = match ended {
            Ok(ended) => ended,
            // The consumer's own code panicked, or the runtime ends. What handlers and hooks do is caught where it happens.
            Err(error) => (error.id(), Ended::Failed),
        };
        let Some(Running { mut job, is_slow, hold, .. }) = self.jobs.remove(&id) else { return };
        let Context { consumer, progress, .. } = &*self.context;
        if is_slow {
            progress.slow.fetch_sub(1, Ordering::Relaxed);
        }
        let settled = match (ended, hold) {
            (_, Hold::Lost) | (Ended::Again { .. }, Hold::Revoked) => Settled::Left,
            (Ended::Well, _) => Settled::Done,
            (Ended::RetriedByBroker, _) => Settled::Retried,
            (Ended::DeadLettered, _) => Settled::DeadLettered,
            (Ended::Dropped, _) => Settled::Dropped,
            (Ended::Failed, _) => Settled::Failed,
            (Ended::Again { pause, counts }, Hold::Whole) => {
                job.retries += u32::from(counts);
                // Waits again, and counts as waiting, so that a failing handler can not fill the memory.
                consumer.rejoin_queue(&mut job.what, job.retries);
                self.lanes.park(job, later(Instant::now(), pause));
                return;
            }
        };
        consumer.settle(job.what, settled);
        self.revocations.ended(id);
        self.lanes.finished(job.lane);
    }

    /// Says once of each handler that it runs for too long.
    fn warn_of_slow(&mut self) {
        let Context { consumer, settings, progress, .. } = &*self.context;
        let now = Instant::now();
        let mut next = None;
        for running in self.jobs.values_mut().filter(|running| !running.is_slow) {
            let due = later(running.since, settings.slow_after);
            if due > now {
                next = Some(next.map_or(due, |next: Instant| next.min(due)));
                continue;
            }
            running.is_slow = true;
            progress.slow.fetch_add(1, Ordering::Relaxed);
            let message = consumer.message(&running.job.what);
            let (id, channel) = (consumer.id(&message), consumer.channel(&message));
            let seconds = (now - running.since).as_secs();
            tracing::warn!(worker = settings.name, %id, channel, seconds, "a handler still runs");
        }
        self.slow_is_set = next.is_some();
        if let Some(next) = next {
            self.slow.as_mut().reset(next);
        }
    }

    /// Nothing is left that could be done in time.
    fn is_done(&self) -> bool {
        let Some(deadline) = self.deadline else { return false };
        let waits = self.lanes.next_due().is_some_and(|due| due < deadline);
        self.closed && self.running.is_empty() && !self.lanes.has_ready() && !waits
    }

    async fn begin_stop(&mut self) {
        let Context { consumer, settings, progress, .. } = &*self.context;
        let deadline = later(Instant::now(), settings.stop_timeout);
        self.deadline = Some(deadline);
        progress.enter(WorkerState::Stopping);
        // Even if it takes no end: what is received later is left.
        let _ = timeout_at(deadline, consumer.stop_receiving()).await;
        settings.hooks.stopping().await;
    }

    async fn end(mut self) -> PushWorkerReport<C::Message> {
        self.running.shutdown().await;
        let Context { consumer, settings, progress, metrics, .. } = &*self.context;
        let mut waiting = self.lanes.drain();
        while !self.closed
            && let Some(incoming) = consumer.receive(&mut self.batch).now_or_never()
        {
            self.closed = matches!(incoming, Incoming::Closed);
            waiting.extend(self.batch.drain(..));
        }
        waiting.iter().for_each(|delivery| consumer.leave_queue(delivery));
        let running = self.jobs.drain().map(|(_, running)| running.job.what);
        let mut left = Vec::new();
        for delivery in running.chain(waiting) {
            left.push(consumer.message(&delivery));
            consumer.settle(delivery, Settled::Left);
        }
        self.revocations.abandon();
        progress.running.store(0, Ordering::Relaxed);
        progress.slow.store(0, Ordering::Relaxed);
        consumer.close().await;
        if !left.is_empty() {
            tracing::warn!(worker = settings.name, left = left.len(), "a worker stops before it is done");
        }
        let report = progress.report(left);
        progress.enter(WorkerState::Stopped);
        metrics.queue_size.set(0.0);
        settings.hooks.stopped(&report).await;
        report
    }
}

/// Some time later. A pause that is longer than clocks can tell is one of a year.
fn later(from: Instant, by: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    from.checked_add(by).unwrap_or_else(|| from + YEAR)
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
