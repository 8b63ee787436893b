//! Runs the tasks of one service in this process: leases them, runs them, and writes their results.
//!
//! It has three loops. The first leases tasks while there is room. The room follows the pace: as many tasks as end
//! within a moment, and never fewer than the concurrency. The second runs them. The third writes results, as many at
//! once as arrived during the last write. Unwritten results do not stop new leases, unless there are far too many.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use futures::FutureExt;
use relais_core::{ClaimRequest, Event, Json, Outcome, Service, Task, TaskEvent, TaskId, Timestamp};
use relais_handler::{Context, Failure, Known, Return, Verdict, trace};
use tokio::{
    sync::{Notify, Semaphore, mpsc},
    task::{JoinError, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, field::Empty};

use super::{
    Registered, TaskHooks,
    life::InstanceLife,
    running::{Run, Running},
};
use crate::{Engine, EngineError, claims::work::wording, error::chain, submit::links::as_trail};

/// How long a claim waits for a first task before it asks again.
const CLAIM_WAIT: Duration = Duration::from_secs(30);

/// The most tasks of one claim, and of one write. Each write waits for the disk once, and for the counters of the one
/// before it.
const BATCH: usize = 2000;

/// The most writes under way at once, and how many results there must be for one beside another.
const WRITES: usize = 2;
const MANY: usize = 1000;

/// The most leased tasks of one service that have not ended, and the most whose results are not written besides.
const MOST_AHEAD: usize = 4000;
const MOST_UNWRITTEN: usize = 8000;

/// As many tasks are leased as end within this time, at the current pace.
const AHEAD: Duration = Duration::from_millis(40);

/// The wait before a store that does not answer is asked again.
const AGAIN: Duration = Duration::from_millis(500);

/// How long results are kept for a store that does not answer, once the instance stops.
const FLUSH: Duration = Duration::from_secs(7);

/// How long a task is kept that asked for another time; twice as long each time, up to the longest.
const HELD: Duration = Duration::from_millis(500);
const LONGEST_HELD: Duration = Duration::from_secs(30);

/// The runner of one service.
pub(crate) struct Runner {
    pub(super) engine: Engine,
    pub(super) life: Arc<InstanceLife>,
    pub(super) service: Arc<Service>,
    pub(super) registered: Registered,
    pub(super) hooks: TaskHooks,
    pub(super) running: Arc<Running>,
    pub(super) stop: CancellationToken,
    pub(super) stop_limit: Duration,
    /// For an instance that runs only one task: whether that has begun.
    pub(super) only: Option<Arc<AtomicBool>>,
}

/// The leased tasks, and their pace.
#[derive(Debug, Default)]
struct LeaseRoom {
    /// Tasks that have not ended.
    ahead: AtomicUsize,
    /// Tasks that have ended and are not written.
    unwritten: AtomicUsize,
    /// How many tasks to prefetch.
    wanted: AtomicUsize,
    /// Notified when there is room for more.
    bell: Notify,
}

impl LeaseRoom {
    /// How many to lease now, with this concurrency: when a slot is free, and otherwise when half of the prefetched
    /// ones have ended.
    fn left(&self, concurrency: usize) -> Option<usize> {
        let (ahead, wanted) = (self.ahead.load(Ordering::Acquire), self.wanted.load(Ordering::Relaxed));
        let free = ahead < concurrency || ahead * 2 <= wanted;
        let written = self.unwritten.load(Ordering::Acquire) < MOST_UNWRITTEN.max(concurrency);
        (free && written).then(|| wanted.saturating_sub(ahead).clamp(1, BATCH))
    }

    fn took(&self, tasks: usize) {
        self.ahead.fetch_add(tasks, Ordering::AcqRel);
    }

    /// A task has ended, and must be written.
    fn ended(&self, concurrency: usize) {
        self.unwritten.fetch_add(1, Ordering::AcqRel);
        let ahead = self.ahead.fetch_sub(1, Ordering::AcqRel) - 1;
        if ahead < concurrency || ahead * 2 <= self.wanted.load(Ordering::Relaxed) {
            self.bell.notify_one();
        }
    }

    /// So many results were written; at this pace, so many tasks are prefetched.
    fn wrote(&self, tasks: usize, wanted: usize) {
        self.unwritten.fetch_sub(tasks, Ordering::AcqRel);
        self.wanted.store(wanted, Ordering::Relaxed);
        self.bell.notify_one();
    }
}

/// The outcome of a task.
struct EndedTask {
    task_id: TaskId,
    attempt: u32,
    /// None if there is nothing to write, because the task was taken away.
    what: Option<Return>,
}

impl Runner {
    /// Leases, runs and writes until the instance stops and running tasks have ended.
    pub(super) async fn run(self) {
        let concurrency = self.registered.concurrency;
        let room = Arc::new(LeaseRoom { wanted: AtomicUsize::new(concurrency), ..LeaseRoom::default() });
        let (deliver, deliveries) = mpsc::unbounded_channel();
        let (report, results) = mpsc::unbounded_channel();
        let this = Arc::new(self);
        tokio::join!(
            Arc::clone(&this).take(Arc::clone(&room), deliver),
            Arc::clone(&this).run_all(Arc::clone(&room), deliveries, report),
            this.write_all(room, results),
        );
    }

    /// Leases tasks while there is room.
    async fn take(self: Arc<Self>, room: Arc<LeaseRoom>, deliver: mpsc::UnboundedSender<Task>) {
        let mut failing = false;
        while !self.stop.is_cancelled() {
            let (Some(max), Some(instance)) = (room.left(self.registered.concurrency), self.life.key()) else {
                tokio::select! {
                    () = room.bell.notified() => {}
                    // The instance may have registered again.
                    () = tokio::time::sleep(AGAIN) => {}
                    () = self.stop.cancelled() => {}
                }
                continue;
            };
            let request = ClaimRequest {
                service: self.service.key,
                max,
                lease: None,
                worker_host: Some(self.life.name().to_owned()),
                instance: Some(instance),
            };
            let claimed = tokio::select! {
                claimed = self.engine.0.claims.claim(request, CLAIM_WAIT) => claimed,
                // The coordinator returns what is being claimed.
                () = self.stop.cancelled() => break,
                // The instance was reaped, and may have registered again.
                () = self.life.changed(instance) => continue,
            };
            match claimed {
                Ok(tasks) => {
                    failing = false;
                    room.took(tasks.len());
                    metrics::counter!("relais_tasks_claimed_total", "service" => self.service.name.to_string())
                        .increment(tasks.len() as u64);
                    tasks.into_iter().for_each(|task| drop(deliver.send(task)));
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(service = %self.service.name, error = %chain(&error), "no tasks can be taken");
                    }
                    tokio::select! {
                        () = tokio::time::sleep(AGAIN) => {}
                        () = self.stop.cancelled() => {}
                    }
                }
            }
        }
    }

    /// Runs tasks concurrently. A leased task that has not begun when the instance stops is returned when the instance
    /// ends, as if it had never been leased.
    async fn run_all(
        self: Arc<Self>,
        room: Arc<LeaseRoom>,
        mut deliveries: mpsc::UnboundedReceiver<Task>,
        report: mpsc::UnboundedSender<EndedTask>,
    ) {
        let slots = Arc::new(Semaphore::new(self.registered.concurrency));
        while let Some(task) = deliveries.recv().await {
            let slot = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                slot = Arc::clone(&slots).acquire_owned() => slot,
            };
            if let Some(begun) = &self.only {
                if begun.swap(true, Ordering::AcqRel) {
                    break;
                }
                self.stop.cancel();
            }
            let (this, room, report) = (Arc::clone(&self), Arc::clone(&room), report.clone());
            let (task_id, attempt) = (task.task_id, task.state.attempt);
            // On the heap at once: what is spawned is moved about, and this is large.
            let run = Box::pin(Arc::clone(&self).run_owned(task));
            tokio::spawn(async move {
                let what = AssertUnwindSafe(run).catch_unwind().await;
                // The handler's own panics are its failures already: this one is of a hook.
                let what = what.unwrap_or_else(|_| Some(failure("panic", "a hook panicked")));
                drop(slot);
                let run = this.running.end(task_id, attempt);
                let what = match &run {
                    Some(run) if run.overdue => Some(failure("timeout", "It ran for longer than it may.")),
                    _ => what,
                };
                let ours = run.is_some();
                // An interrupted task had begun, so its next run is another attempt.
                let what = what.or_else(|| Some(Return::Again("the process stops".to_owned())));
                room.ended(this.registered.concurrency);
                let _ = report.send(EndedTask { task_id, attempt, what: what.filter(|_| ours) });
            });
        }
    }

    /// The same as [`Self::run_one`], of one's own.
    async fn run_owned(self: Arc<Self>, task: Task) -> Option<Return> {
        self.run_one(task).await
    }

    /// Runs one task; none if it was dropped.
    async fn run_one(&self, task: Task) -> Option<Return> {
        let cancel = self.life.interrupted().child_token();
        let (task_id, attempt) = (task.task_id, task.state.attempt);
        self.running.begin(
            task_id,
            Run {
                service: self.service.key,
                attempt,
                since: Instant::now(),
                overdue: false,
                begun: false,
                progress: None,
                cancel: cancel.clone(),
            },
        );
        let running = Arc::clone(&self.running);
        let span = tracing::debug_span!("task", %task_id, attempt, otel.kind = "consumer", otel.status_code = Empty);
        let trail = trace::go_on(&span, task.links.trace.as_ref().map(as_trail).unwrap_or_default());
        let known = Known {
            task_id: task_id.to_string().into(),
            attempt: Some(attempt),
            redelivered: attempt > 1,
            correlation_id: task.correlation_id,
            traceparent: trail.traceparent,
            tracestate: trail.tracestate,
            deadline: task.state.deadline.map(system_time),
        };
        let progress = Arc::new(move |percent| running.progress(task_id, attempt, percent));
        let context = Context::new(known, cancel.clone(), progress);
        let work = async {
            for before in &self.hooks.before {
                before(context.clone()).await;
            }
            let returned = (self.registered.handler)(task.request.as_raw().to_owned(), context.clone()).await;
            if cancel.is_cancelled() {
                // It was stopped, so its result is not trusted.
                return Return::Again("it was told to stop".to_owned());
            }
            if let Return::Ended(verdict) = &returned {
                if matches!(verdict, Verdict::Failure(_)) {
                    tracing::Span::current().record("otel.status_code", "ERROR");
                }
                for after in &self.hooks.after {
                    after(context.clone(), verdict).await;
                }
            }
            if let Return::Again(why) = &returned {
                self.hold(why, attempt, &cancel).await;
            }
            returned
        };
        let stopped = async {
            cancel.cancelled().await;
            tokio::time::sleep(self.stop_limit).await;
        };
        tokio::select! {
            returned = work.instrument(span) => Some(returned),
            () = stopped => None,
        }
    }

    /// Runs one task and writes its result.
    pub(crate) async fn run_by_hand(&self, task: Task) -> Result<Return, EngineError> {
        let (task_id, attempt) = (task.task_id, task.state.attempt);
        let Some(returned) = self.run_one(task).await else { return Ok(Return::Again("interrupted".to_owned())) };
        self.running.end(task_id, attempt);
        let what = match &returned {
            Return::Again(why) => Return::Again(why.clone()),
            Return::Ended(verdict) => Return::Ended(verdict.clone()),
        };
        if let Some(event) = self.event(EndedTask { task_id, attempt, what: Some(what) }) {
            self.engine.0.store.record_events(vec![event]).await?;
        }
        Ok(returned)
    }

    /// A task asked for another time. If it were returned at once, it would be claimed at once.
    async fn hold(&self, why: &str, attempt: u32, cancel: &CancellationToken) {
        let pause = HELD.saturating_mul(2_u32.saturating_pow(attempt.saturating_sub(1))).min(LONGEST_HELD);
        tracing::info!(why, pause_ms = pause.as_millis() as u64, "the task is to be tried again");
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = cancel.cancelled() => {}
            // An instance for one task stops when that begins.
            () = self.stop.cancelled(), if self.only.is_none() => {}
        }
    }

    /// Writes results as they arrive, many at once. If many arrive during a write, a second write starts beside it, so
    /// that the store has work while it waits for its disk.
    async fn write_all(self: Arc<Self>, room: Arc<LeaseRoom>, mut results: mpsc::UnboundedReceiver<EndedTask>) {
        let mut pace = EndPace::new(Instant::now());
        let (mut batch, mut open) = (Vec::with_capacity(BATCH), true);
        // Each on its own: while one is put into words, the store is not to wait for the other.
        let mut written = JoinSet::new();
        while open || !written.is_empty() {
            let space = BATCH - batch.len();
            tokio::select! {
                came = results.recv_many(&mut batch, space), if open && space > 0 => open = came > 0,
                Some(number) = written.join_next() => {
                    let number = match number.map_err(JoinError::try_into_panic) {
                        Ok(number) => number,
                        // A fault of ours does not go by in silence.
                        Err(Ok(fault)) => std::panic::resume_unwind(fault),
                        // The runtime ends, and with it all that runs.
                        Err(Err(_)) => return,
                    };
                    room.wrote(number, pace.wanted(number, Instant::now(), self.registered.concurrency));
                }
            }
            let enough = if written.is_empty() { 1 } else { MANY };
            if batch.len() >= enough && written.len() < WRITES {
                let batch = std::mem::replace(&mut batch, Vec::with_capacity(BATCH));
                written.spawn(Arc::clone(&self).write_batch(batch));
            }
        }
    }

    /// Writes these results, and returns how many there were.
    async fn write_batch(self: Arc<Self>, batch: Vec<EndedTask>) -> usize {
        let number = batch.len();
        let (done, rest): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .filter_map(|ended| self.event(ended))
            .partition(|event: &TaskEvent| matches!(event.event, Event::Succeeded { .. }));
        for events in [done, rest] {
            if !events.is_empty() {
                self.write(events).await;
            }
        }
        number
    }

    fn event(&self, EndedTask { task_id, attempt, what }: EndedTask) -> Option<TaskEvent> {
        let attempt = Some(attempt);
        let event = match what? {
            Return::Again(_) => Event::Returned { attempt },
            Return::Ended(Verdict::Success(response)) => match Json::try_from(response) {
                Ok(response) => Event::Succeeded { attempt, response },
                Err(error) => {
                    let failure = Failure::new(format!("the handler's result is not taken: {error}"));
                    failed(attempt, Failure { kind: Some("result".to_owned()), ..failure })
                }
            },
            Return::Ended(Verdict::Failure(failure)) => failed(attempt, failure),
        };
        Some(TaskEvent { task_id, service: self.service.key, client: None, event })
    }

    /// Writes until the store accepts it; after the instance was stopped, only for a while.
    async fn write(&self, events: Vec<TaskEvent>) {
        let mut failing = false;
        let mut deadline = None;
        loop {
            match self.engine.0.store.record_events(events.clone()).await {
                Ok(outcomes) => {
                    self.count(&events, &outcomes);
                    return;
                }
                Err(error) if !std::mem::replace(&mut failing, true) => {
                    tracing::warn!(service = %self.service.name, error = %chain(&error), "results can not be written");
                }
                Err(_) => {}
            }
            if self.stop.is_cancelled() && *deadline.get_or_insert(Instant::now() + FLUSH) < Instant::now() {
                tracing::warn!(
                    tasks = events.len(),
                    "results could not be written in time; their tasks are done again"
                );
                return;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn count(&self, events: &[TaskEvent], outcomes: &[Outcome]) {
        let (mut done, mut failed, mut returned, mut lost) = (0, 0, 0, 0);
        for (event, outcome) in events.iter().zip(outcomes) {
            match (outcome, &event.event) {
                (Outcome::Ignored(_) | Outcome::NotFound, _) => lost += 1,
                (_, Event::Succeeded { .. }) => done += 1,
                (_, Event::Returned { .. }) => returned += 1,
                _ => failed += 1,
            }
        }
        let counters = &self.life.counters;
        for (tally, number) in
            [(&counters.done, done), (&counters.failed, failed), (&counters.returned, returned), (&counters.lost, lost)]
        {
            tally.fetch_add(number, Ordering::Relaxed);
        }
        let service = self.service.name.as_str();
        for (outcome, number) in [("success", done), ("failure", failed)] {
            if number > 0 {
                metrics::counter!("relais_tasks_ended_in_process_total", "service" => service.to_owned(), "outcome" => outcome)
                    .increment(number);
            }
        }
    }
}

/// A failure that is not the handler's.
fn failure(kind: &str, message: &str) -> Return {
    Return::Ended(Verdict::Failure(Failure { kind: Some(kind.to_owned()), ..Failure::new(message) }))
}

fn failed(attempt: Option<u32>, failure: Failure) -> Event {
    let failure = relais_core::Failure {
        retryable: failure.retryable,
        kind: failure.kind,
        trace: failure.trace,
        retry_after: failure.retry_after,
        ..relais_core::Failure::new(failure.message)
    };
    Event::failure(attempt, wording::clipped(failure))
}

fn system_time(moment: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(moment.as_millis()).unwrap_or(0))
}

/// The pace at which tasks end.
#[derive(Debug)]
struct EndPace {
    since: Instant,
    ended: usize,
    per_second: f64,
}

impl EndPace {
    fn new(now: Instant) -> Self {
        Self { since: now, ended: 0, per_second: 0.0 }
    }

    /// So many tasks ended: returns how many to prefetch.
    fn wanted(&mut self, ended: usize, now: Instant, concurrency: usize) -> usize {
        self.ended += ended;
        let elapsed = now.duration_since(self.since);
        if elapsed >= AHEAD {
            self.per_second = self.ended as f64 / elapsed.as_secs_f64();
            (self.since, self.ended) = (now, 0);
        }
        let ahead = (self.per_second * AHEAD.as_secs_f64()) as usize;
        (ahead + concurrency).clamp(concurrency, MOST_AHEAD.max(concurrency))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwritten_results_stop_new_leases_only_beyond_a_limit() {
        let room = LeaseRoom { wanted: AtomicUsize::new(100), ..LeaseRoom::default() };
        assert_eq!(room.left(10), Some(100));
        room.took(100);
        assert_eq!(room.left(10), None, "all are ahead");
        (0..49).for_each(|_| room.ended(10));
        assert_eq!(room.left(10), None, "more than half are");
        room.ended(10);
        assert_eq!(room.left(10), Some(50), "and nothing is written yet");
        room.took(MOST_UNWRITTEN);
        (0..MOST_UNWRITTEN).for_each(|_| room.ended(10));
        assert_eq!(room.left(10), None, "the store does not follow");
        room.wrote(MOST_UNWRITTEN, 100);
        assert_eq!(room.left(10), Some(50));
    }

    #[test]
    fn an_instance_prefetches_as_many_tasks_as_it_runs_in_a_moment() {
        let start = Instant::now();
        let mut pace = EndPace::new(start);
        assert_eq!(pace.wanted(1, start, 10), 10, "nothing is known yet");
        let later = start + Duration::from_secs(1);
        assert_eq!(pace.wanted(9_999, later, 10), 410, "10,000 a second");
        assert_eq!(pace.wanted(1, later + Duration::from_secs(10), 10), 10, "slow ones are taken when they can begin");
        assert_eq!(pace.wanted(1_000_000, later + Duration::from_secs(11), 10), MOST_AHEAD);
    }
}
