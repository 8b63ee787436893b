//! The main loop: claims up to the free slots, starts a handler for each task, and stops without losing anything.
//!
//! Only here tasks are started and ended. The reporter sends reports, and the heartbeat keeps leases; both run beside
//! the loop and end with it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use relais_handler::{Failure, Handler, Return, Verdict};
use relais_protocol::worker::{MAX_CLAIM, MAX_MESSAGES, OutcomeKind, SubmissionMessage};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, field::Empty};

use crate::{
    CallError, Worker, WorkerError, WorkerReport,
    again::Agains,
    backoff::{Backoff, Call, Outage},
    context, heartbeat,
    report_queue::ReportQueue,
    reporter,
    slots::{Ending, Slots, TaskKey},
    transport::{Delivery, News, Transport},
};

/// How long a claim waits at the server for a first task.
const CLAIM_WAIT: Duration = Duration::from_secs(30);

/// An answer without tasks that comes sooner than this is not a long poll that ran out.
const EARLY: Duration = Duration::from_secs(1);

/// How long to wait for a running claim when the worker stops. With tasks it answers in far less; without, nothing is
/// lost.
const CLAIM_LIMIT: Duration = Duration::from_secs(2);

/// How long a handler may take to be gone after it was dropped.
const DROP_LIMIT: Duration = Duration::from_secs(1);

/// How long to try to send the last results and to return tasks.
const FLUSH_LIMIT: Duration = Duration::from_secs(7);

/// How long to try to return a task that asks for another time. The worker goes on meanwhile.
const AGAIN_LIMIT: Duration = Duration::from_secs(60);

/// The state that the parts of a running worker share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub transport: Box<dyn Transport>,
    pub slots: Slots,
    pub report_queue: Arc<ReportQueue>,
    pub outage: Outage,
    agains: Agains,
    /// How long a task may take, unless it says less.
    time_limit: Option<Duration>,
    /// How long a handler that is told to stop may take to end.
    stop_limit: Duration,
    /// Cancelled when no more tasks are claimed.
    pub stopping: CancellationToken,
    /// Cancelled when the worker is stopped.
    shutdown: CancellationToken,
    counts: Mutex<WorkerReport>,
}

impl Shared {
    pub fn counts(&self, count: impl FnOnce(&mut WorkerReport)) {
        count(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Handlers of these tasks, which were taken away, have ended.
    fn lose(&self, keys: &[TaskKey]) {
        self.counts(|counts| counts.lost += keys.len() as u64);
        self.transport.let_go(keys);
    }

    /// What was done so far.
    pub fn report(&self) -> WorkerReport {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A claim on its way.
type Claim = BoxFuture<'static, Result<Vec<Delivery>, CallError>>;

pub(crate) async fn run(
    worker: Worker,
    handler: Handler,
    shutdown: CancellationToken,
) -> Result<WorkerReport, WorkerError> {
    let shared = Arc::new(Shared {
        transport: worker.transport,
        slots: Slots::new(worker.concurrency),
        report_queue: Arc::default(),
        outage: Outage::default(),
        agains: Agains::default(),
        time_limit: worker.time_limit,
        stop_limit: worker.stop_limit,
        stopping: CancellationToken::new(),
        shutdown: shutdown.clone(),
        counts: Mutex::default(),
    });
    // Dropped with this future, and with them whatever runs in them.
    let mut beside = JoinSet::new();
    #[cfg(feature = "health")]
    if let Some(address) = worker.health {
        beside.spawn(crate::health::listen(address).await?.serve(shared.clone()));
    }
    beside.spawn(heartbeat::run(shared.clone()));
    beside.spawn(reporter::tell_notes(shared.clone()));
    let mut results = JoinSet::new();
    results.spawn(reporter::tell_results(shared.clone()));
    let mut running = JoinSet::new();

    let claim = take_tasks(&shared, &handler, &mut running, worker.once, worker.idle).await?;
    shared.stopping.cancel();

    // A running claim may bring tasks until the server knows that nobody waits, so it is waited for while there is
    // time.
    let drained = CancellationToken::new();
    tokio::join!(shared.transport.stop_claiming(), hear_out(&shared, claim, &drained), async {
        // The one task of a worker that takes only one has all the time that it needs.
        tokio::select! {
            () = all_ended(&mut running) => {}
            () = shutdown.cancelled() => drain(&shared, &mut running, worker.grace).await,
        }
        drained.cancel();
        let leftovers = shared.slots.leftovers();
        shared.lose(&leftovers.gone);
        shared.report_queue.close();
        tokio::join!(give_back(&shared, leftovers.unfinished), async {
            let _ = timeout(FLUSH_LIMIT, results.join_next()).await;
        });
    });

    let unsent = shared.slots.unsent() as u64;
    if unsent > 0 {
        tracing::error!(unsent, "results could not be sent in time; the server will hand their tasks out again");
    }
    shared.transport.close().await;
    shared.counts(|counts| counts.unsent += unsent);
    Ok(shared.report())
}

/// Claims and starts tasks until it is stopped, until there was one, or until there was none for too long. Returns the
/// running claim.
async fn take_tasks(
    shared: &Arc<Shared>,
    handler: &Handler,
    running: &mut JoinSet<()>,
    once: bool,
    idle: Option<Duration>,
) -> Result<Option<Claim>, WorkerError> {
    let mut enough = std::pin::pin!(enough(shared, idle));
    let mut backoff = Backoff::default();
    let mut welcome = false;
    loop {
        let free = tokio::select! {
            biased;
            () = &mut enough => return Ok(None),
            free = shared.slots.wait_for_free() => free,
        };
        while running.try_join_next().is_some() {}
        let asked = Instant::now();
        let mut claim = claim(shared.clone(), if once { 1 } else { free.min(MAX_CLAIM) });
        let answer = tokio::select! {
            biased;
            answer = &mut claim => answer,
            () = &mut enough => return Ok(Some(claim)),
        };
        let wait = match answer {
            Ok(tasks) => {
                welcome = true;
                shared.outage.worked(Call::Claim);
                if !tasks.is_empty() || asked.elapsed() >= EARLY {
                    backoff.reset();
                    let started = tasks.into_iter().filter_map(|task| start(shared, handler, running, task)).count();
                    if once && started > 0 {
                        return Ok(None);
                    }
                    continue;
                }
                backoff.next()
            }
            Err(error) if error.is_for_good() || !welcome && !error.is_passing() => return Err(hopeless(error)),
            Err(error) => {
                shared.outage.failed(Call::Claim, &error);
                backoff.next()
            }
        };
        tokio::select! {
            () = sleep(wait) => {}
            () = &mut enough => return Ok(None),
        }
    }
}

/// Waits until no more tasks are claimed: the worker is stopped, or was idle for too long.
async fn enough(shared: &Shared, idle: Option<Duration>) {
    tokio::select! {
        () = shared.shutdown.cancelled() => {}
        idle = idled(&shared.slots, idle) => tracing::info!(idle_ms = idle.as_millis() as u64, "no task came: the worker ends"),
    }
}

/// Waits until there was no task for so long.
async fn idled(slots: &Slots, idle: Option<Duration>) -> Duration {
    let Some(idle) = idle else { return std::future::pending().await };
    let mut held = slots.count();
    loop {
        let none = *held.borrow_and_update() == 0;
        tokio::select! {
            biased;
            _ = held.changed() => {}
            () = sleep(idle), if none => return idle,
        }
    }
}

fn hopeless(error: CallError) -> WorkerError {
    match error {
        CallError::Refused { number, description, .. } => WorkerError::Refused { number, description },
        #[cfg(feature = "rabbitmq")]
        CallError::BrokerRefused { why } => WorkerError::BrokerRefused { why },
        error => WorkerError::Setup(error),
    }
}

fn claim(shared: Arc<Shared>, max: usize) -> Claim {
    async move { shared.transport.claim(max, CLAIM_WAIT).await }.boxed()
}

/// Starts the handler of a claimed task.
fn start(shared: &Arc<Shared>, handler: &Handler, running: &mut JoinSet<()>, mut delivery: Delivery) -> Option<()> {
    let key = delivery.key.clone();
    let Some(cancel) = shared.slots.take(key.clone()) else {
        tracing::warn!(task_id = %key.task_id, attempt = key.attempt, "the server handed out the same attempt twice");
        return None;
    };
    if !shared.transport.is_wanted(&key) {
        // Taken away before it had a slot, so the revocation did not find it there.
        shared.slots.gone(&key);
        shared.slots.finish(&key);
        shared.lose(&[key]);
        return None;
    }
    // Its previous worker may have been killed by it before it reported the start. This time the start is reported
    // before it begins, because only reported starts count as losses.
    let tell_first = shared.transport.tells_start() && delivery.redelivered;
    if shared.transport.tells_start() && !tell_first {
        shared.report_queue.put_started(&key);
    }
    let span = tracing::info_span!("task", task_id = %key.task_id, attempt = key.attempt, otel.status_code = Empty);
    context::go_on(&mut delivery, &span);
    let (shared, handler) = (shared.clone(), handler.clone());
    let work = async move {
        if tell_first && !told_start(&shared, &key, &cancel).await {
            // Taken away before it began; or the worker stops, and returns it with the rest.
            if shared.slots.finish(&key) == Ending::Gone {
                shared.lose(&[key]);
            }
            return;
        }
        match done(&shared, &handler, delivery, &cancel).await {
            Return::Again(why) => try_again(&shared, key, &why, &cancel).await,
            Return::Ended(verdict) => match shared.slots.finish(&key) {
                Ending::Report => {
                    if matches!(verdict, Verdict::Failure(_)) {
                        Span::current().record("otel.status_code", "ERROR");
                    }
                    shared.agains.forget(&key);
                    shared.report_queue.put_result(key, verdict);
                }
                Ending::Gone => shared.lose(&[key]),
                Ending::Stopped => {}
            },
        }
    };
    running.spawn(work.instrument(span));
    Some(())
}

/// Reports the start of a task until it is accepted; false if the task must not begin any more.
async fn told_start(shared: &Shared, key: &TaskKey, cancel: &CancellationToken) -> bool {
    let telling = async {
        let mut backoff = Backoff::default();
        while let Err(error) = shared.transport.report(&[(key, News::Started)]).await {
            tracing::debug!(error = error.chain(), "the start of the task could not be sent");
            sleep(backoff.next()).await;
        }
    };
    tokio::select! {
        biased;
        () = cancel.cancelled() => false,
        () = telling => true,
    }
}

/// Runs the handler of a task with its time limit.
async fn done(shared: &Shared, handler: &Handler, delivery: Delivery, cancel: &CancellationToken) -> Return {
    let limit = limit(shared.time_limit, &delivery.task);
    let context = context::context(&delivery, limit, cancel.clone(), shared.report_queue.clone());
    let mut work = handler(delivery.task.data.body, context);
    let Some(limit) = limit else { return work.await };
    if let Ok(returned) = timeout(limit, &mut work).await {
        return returned;
    }
    tracing::info!(limit_ms = limit.as_millis() as u64, "the task takes longer than it may; told to stop");
    cancel.cancel();
    // What it returns now may well be the error that says so.
    let _ = timeout(shared.stop_limit, work).await;
    let late = Failure { kind: Some("timeout".to_owned()), ..Failure::new("It ran for longer than it may.") };
    Return::Ended(Verdict::Failure(late))
}

/// The time limit of a task. A task with a deadline is watched by the server.
fn limit(own: Option<Duration>, task: &SubmissionMessage) -> Option<Duration> {
    let told = task.timeout_ms.filter(|_| task.deadline.is_none()).map(Duration::from_millis);
    own.into_iter().chain(told).min()
}

/// Keeps a task for a while and returns it, because it would be claimed at once otherwise. Returns it at once when the
/// worker stops.
async fn try_again(shared: &Shared, key: TaskKey, why: &str, cancel: &CancellationToken) {
    let pause = shared.agains.pause(&key);
    tracing::info!(why, pause_ms = pause.as_millis() as u64, "the task is to be tried again");
    tokio::select! {
        () = sleep(pause) => {}
        () = cancel.cancelled() => {}
        () = shared.shutdown.cancelled() => {}
    }
    match shared.slots.hand_over(&key) {
        Ending::Report => {
            give_back_by(Instant::now() + AGAIN_LIMIT, shared, std::slice::from_ref(&key)).await;
            shared.slots.release(&key);
        }
        Ending::Gone => shared.lose(&[key]),
        Ending::Stopped => {}
    }
}

/// Returns the tasks of the last claim, if it brings some before everything else has ended.
async fn hear_out(shared: &Shared, claim: Option<Claim>, drained: &CancellationToken) {
    let Some(claim) = claim else { return };
    let limit = async {
        sleep(CLAIM_LIMIT).await;
        drained.cancelled().await;
    };
    let tasks = tokio::select! {
        answer = claim => answer.unwrap_or_default(),
        () = limit => return,
    };
    give_back(shared, tasks.into_iter().map(|delivery| delivery.key).collect()).await;
}

/// Lets the handlers finish within the grace period, then stops them, then drops them.
async fn drain(shared: &Shared, running: &mut JoinSet<()>, grace: Duration) {
    if timeout(grace, all_ended(running)).await.is_ok() {
        return;
    }
    tracing::info!(running = running.len(), "the grace period is over: the tasks that still run are given back");
    shared.slots.stop();
    if timeout(shared.stop_limit, all_ended(running)).await.is_err() {
        running.abort_all();
        // A handler that never awaits can not be dropped, and must not keep the worker either.
        let _ = timeout(DROP_LIMIT, all_ended(running)).await;
    }
}

async fn all_ended(running: &mut JoinSet<()>) {
    while running.join_next().await.is_some() {}
}

/// Returns tasks unfinished; tries for a while, after which their leases must expire.
async fn give_back(shared: &Shared, keys: Vec<TaskKey>) {
    let deadline = Instant::now() + FLUSH_LIMIT;
    for keys in keys.chunks(MAX_MESSAGES) {
        give_back_by(deadline, shared, keys).await;
    }
}

async fn give_back_by(deadline: Instant, shared: &Shared, keys: &[TaskKey]) {
    // Unsent reports about them would be wrong afterwards.
    keys.iter().for_each(|key| shared.report_queue.forget(key));
    if timeout_at(deadline, give_back_all(shared, keys)).await.is_err() {
        tracing::warn!(tasks = keys.len(), "tasks could not be given back in time; their leases will run out");
        shared.counts(|counts| counts.lost += keys.len() as u64);
    }
}

async fn give_back_all(shared: &Shared, keys: &[TaskKey]) {
    let mut backoff = Backoff::default();
    let mut sent_before = false;
    loop {
        match shared.transport.give_back(keys).await {
            Ok(outcomes) => {
                shared.outage.worked(Call::Return);
                for outcome in outcomes {
                    // Lost at the second try: returned by the first one, which had no answer.
                    let returned = outcome.outcome == OutcomeKind::Accepted
                        || (sent_before && outcome.outcome == OutcomeKind::Lost);
                    shared.counts(|counts| if returned { counts.returned += 1 } else { counts.lost += 1 });
                }
                return;
            }
            Err(error) => {
                sent_before = true;
                shared.outage.failed(Call::Return, &error);
                sleep(backoff.next()).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_worker_is_idle_from_when_its_last_task_is_acknowledged() {
        let slots = Slots::new(2);
        let key = TaskKey { task_id: "t".into(), attempt: Some(1), delivery: 0 };
        slots.take(key.clone()).unwrap();
        let mut idled = std::pin::pin!(idled(&slots, Some(Duration::from_millis(20))));
        // Time with a running task, or an unsent result, does not count.
        assert!(timeout(Duration::from_millis(60), &mut idled).await.is_err());
        slots.finish(&key);
        assert!(timeout(Duration::from_millis(60), &mut idled).await.is_err());
        let released = Instant::now();
        slots.release(&key);
        idled.await;
        assert!(released.elapsed() >= Duration::from_millis(20));
        assert!(super::idled(&slots, None).now_or_never().is_none(), "it waits for ever unless it is told");
    }

    #[test]
    fn the_timeout_of_a_task_is_the_shorter_of_task_and_worker() {
        let task = |timeout_ms, deadline: Option<&str>| {
            let body = serde_json::value::RawValue::NULL.to_owned();
            let deadline = deadline.map(str::to_owned);
            SubmissionMessage { timeout_ms, deadline, ..SubmissionMessage::new("t".to_owned(), body) }
        };
        let (short, long) = (Duration::from_millis(10), Duration::from_millis(20));
        assert_eq!(limit(None, &task(None, None)), None);
        assert_eq!(limit(None, &task(Some(20), None)), Some(long));
        assert_eq!(limit(Some(short), &task(Some(20), None)), Some(short));
        assert_eq!(limit(Some(long), &task(Some(10), None)), Some(short));
        assert_eq!(limit(None, &task(Some(20), Some("2030-01-01T12:00:00Z"))), None);
    }
}
