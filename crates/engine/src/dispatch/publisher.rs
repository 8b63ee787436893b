//! The publisher: publishes tasks from memory after a commit, and those that the sweep found. A row is removed after
//! the broker's confirmation.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use relais_core::{
    DispatchName, Dispatched, DueDispatch, Event, Failure, Mailbox, OutgoingMessage, Service, ServiceKey, Store,
    TaskBroker, TaskBrokerError, TaskEvent, TaskId, TraceContext,
};
use relais_protocol::worker::SubmissionMessage;
use tokio::sync::mpsc;

use super::Publication;
use crate::{Engine, EngineError, error::chain, follow::hub::WakeupHub};

/// How many tasks are published together.
const BATCH: usize = 500;

/// How many bytes they may have.
const BATCH_BYTES: usize = 8 << 20;

/// How long to wait for more confirmations.
const GATHER: Duration = Duration::from_millis(25);

/// How many confirmations do not wait.
const MOST_SETTLED: usize = 4 * BATCH;

/// How long publishing pauses for a service whose queue is full or forbidden.
const REFUSED: Duration = Duration::from_secs(5);

/// How long publishing pauses while its queue is missing.
const MISSING: Duration = Duration::from_secs(1);

/// The dispatches that the broker has confirmed.
pub(super) type Confirmed = mpsc::Sender<Vec<DispatchName>>;

/// Publishes new tasks until the engine closes; then what is left.
pub(super) async fn run(
    engine: Engine,
    task_broker: Arc<dyn TaskBroker>,
    mut publications: mpsc::Receiver<Publication>,
    confirmed: Confirmed,
) {
    let mut batch = Vec::with_capacity(BATCH);
    let mut last = false;
    while !last {
        tokio::select! {
            biased;
            taken = publications.recv_many(&mut batch, BATCH) => last = taken == 0,
            () = engine.0.closing.cancelled() => {
                last = true;
                // New tasks are left to other processes.
                publications.close();
                while let Ok(publication) = publications.try_recv() {
                    batch.push(publication);
                }
            }
        }
        let mut rest = batch.drain(..).peekable();
        while rest.peek().is_some() {
            let mut bytes = 0;
            let mut part: Vec<Publication> = Vec::new();
            while let Some(publication) = rest.next_if(|_| bytes < BATCH_BYTES) {
                bytes += publication.task.request.as_ref().map_or(0, |request| request.get().len());
                part.push(publication);
            }
            // Their memory is freed when they are published.
            let (tasks, _rooms): (Vec<_>, Vec<_>) =
                part.into_iter().map(|Publication { task, _room }| (task, _room)).unzip();
            publish(&engine, task_broker.as_ref(), tasks, &confirmed).await;
        }
    }
}

/// Publishes tasks, and returns whether the broker accepted all of them.
pub(super) async fn publish(
    engine: &Engine,
    task_broker: &dyn TaskBroker,
    tasks: Vec<DueDispatch>,
    confirmed: &Confirmed,
) -> bool {
    let Ok(snapshot) = engine.snapshot() else { return false };
    let mut services: HashMap<ServiceKey, Option<Arc<Service>>> = HashMap::new();
    let (mut named, mut messages, mut done, mut again) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for task in tasks {
        let name = task.name;
        // The task ended before it was published: nobody needs it any more.
        let Some(request) = task.request else {
            done.push(name);
            continue;
        };
        let service = services.entry(name.service).or_insert_with(|| {
            snapshot.declared.service_by_key(name.service).filter(|service| !service.paused).cloned()
        });
        let Some(service) = service else {
            again.push(name);
            continue;
        };
        let timeout = task.timeout.or(service.limits.timeout);
        let (correlation_id, trace) = (task.correlation_id.clone(), task.trace.as_ref());
        messages.push(OutgoingMessage {
            task_id: name.task_id,
            queue: Mailbox::tasks_of(&name.queue),
            body: encode(name.task_id, &request, correlation_id, trace, timeout, task.revision),
            correlation_id: task.correlation_id,
            trace: task.trace,
            priority: task.priority,
        });
        named.push(name);
    }
    let results = if messages.is_empty() { Vec::new() } else { task_broker.send(messages).await };
    let mut all = again.is_empty();
    let mut sent: HashMap<ServiceKey, u64> = HashMap::new();
    let mut hopeless = Vec::new();
    for (name, result) in named.into_iter().zip(results) {
        match result {
            Ok(()) => {
                *sent.entry(name.service).or_default() += 1;
                done.push(name);
            }
            Err(TaskBrokerError::Unacceptable(why)) => hopeless.push((name, why)),
            Err(error) => {
                all = false;
                troubled(engine, name.service, &error);
                again.push(name);
            }
        }
    }
    for (service, count) in sent {
        if let Some(Some(service)) = services.get(&service) {
            metrics::counter!("relais_tasks_dispatched_total", "service" => service.name.to_string()).increment(count);
        }
    }
    if !hopeless.is_empty() {
        match give_up(engine, &hopeless).await {
            Ok(()) => done.extend(hopeless.into_iter().map(|(name, _)| name)),
            Err(error) => {
                tracing::debug!(error = %chain(&error), "that tasks can not be dispatched could not be noted");
                again.extend(hopeless.into_iter().map(|(name, _)| name));
            }
        }
    }
    if !done.is_empty() {
        // The other end outlives this one.
        let _ = confirmed.send(done).await;
    }
    if !again.is_empty() {
        give_back(engine.0.store.as_ref(), &engine.0.hub, again).await;
    }
    all
}

/// Leaves tasks of this process to the sweep.
pub(crate) async fn give_back(store: &dyn Store, hub: &WakeupHub, tasks: Vec<DispatchName>) {
    let services: HashSet<ServiceKey> = tasks.iter().map(|name| name.service).collect();
    if let Err(error) = store.complete_dispatches(tasks, Dispatched::Again).await {
        // They are found when their lease expires.
        tracing::debug!(error = %chain(&error), "tasks that could not be dispatched could not be given back");
    }
    hub.watermark.note(services);
    hub.dispatch_bell.notify_one();
}

/// Fails tasks that the broker will never accept.
async fn give_up(engine: &Engine, hopeless: &[(DispatchName, String)]) -> Result<(), EngineError> {
    let events = hopeless.iter().map(|(name, why)| {
        let failure = Failure::new(format!("The broker does not take it: {why}")).of_kind("undelivered");
        let event = Event::failure(None, Failure { retryable: Some(false), ..failure });
        TaskEvent { task_id: name.task_id, service: name.service, client: None, event }
    });
    let events: Vec<TaskEvent> = events.collect();
    tracing::warn!(tasks = events.len(), why = hopeless[0].1, "tasks fail: the broker does not take such messages");
    metrics::counter!("relais_dispatch_failures_total", "reason" => "unacceptable").increment(events.len() as u64);
    engine.record_all(events).await.map(drop)
}

/// The message that a worker gets, in both spellings.
fn encode(
    task_id: TaskId,
    request: &relais_core::Json,
    correlation_id: Option<String>,
    trace: Option<&TraceContext>,
    timeout: Option<Duration>,
    revision: u64,
) -> Vec<u8> {
    let message = SubmissionMessage {
        correlation_id,
        traceparent: trace.map(|trace| trace.traceparent().to_owned()),
        tracestate: trace.and_then(TraceContext::tracestate).map(str::to_owned),
        timeout_ms: timeout.and_then(|timeout| timeout.as_millis().try_into().ok()),
        revision: Some(revision).filter(|revision| *revision > 0),
        ..SubmissionMessage::new(task_id.to_string(), request.as_raw().to_owned())
    };
    // Texts and JSON always can be written.
    serde_json::to_vec(&message).unwrap_or_default()
}

/// What happens to a task that could not be published.
fn troubled(engine: &Engine, service: ServiceKey, error: &TaskBrokerError) {
    let dispatcher = &engine.0.dispatcher;
    let (reason, news) = match error {
        // Everybody waits for the broker; the connection logs it.
        TaskBrokerError::Away(_) => ("away", false),
        TaskBrokerError::NoQueue(_) => {
            dispatcher.queues_bell.notify_one();
            ("no_queue", dispatcher.park(service, MISSING, true))
        }
        TaskBrokerError::Unacceptable(_) | TaskBrokerError::Refused(_) => {
            ("refused", dispatcher.park(service, REFUSED, false))
        }
    };
    metrics::counter!("relais_dispatch_failures_total", "reason" => reason).increment(1);
    if news {
        let name = engine.snapshot().ok();
        let name = name.as_ref().and_then(|snapshot| snapshot.declared.service_by_key(service));
        tracing::warn!(service = name.map(|service| service.name.as_str()), %error, "tasks wait: the broker does not take them");
    }
}

/// Removes the rows of confirmed dispatches, many at once, because nobody waits for it. If the process dies before,
/// those tasks are published again.
pub(super) async fn complete(engine: Engine, mut confirmed: mpsc::Receiver<Vec<DispatchName>>) {
    // Ends when those who publish have.
    while let Some(mut done) = confirmed.recv().await {
        let gathered = tokio::time::Instant::now() + GATHER;
        while done.len() < MOST_SETTLED
            && let Ok(Some(more)) = tokio::time::timeout_at(gathered, confirmed.recv()).await
        {
            done.extend(more);
        }
        while let Err(error) = engine.0.store.complete_dispatches(done.clone(), Dispatched::Done).await {
            tracing::debug!(error = %chain(&error), "what was dispatched could not be noted; tried again");
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
                // They will be published once more.
                () = engine.0.closing.cancelled() => return,
            }
        }
        // What has ended while this was noted still took its place in the window.
        let snapshot = engine.snapshot().ok();
        let is_windowed = |name: &DispatchName| {
            let service = snapshot.as_ref().and_then(|snapshot| snapshot.declared.service_by_key(name.service));
            service.is_some_and(|service| service.limits.flow.dispatch_window.is_some())
        };
        if done.iter().any(is_windowed) {
            engine.0.hub.dispatch_bell.notify_one();
        }
    }
}
