//! Consumes the messages of workers, with one consumer for each service and queue.
//!
//! A batch is recorded, malformed messages become dead letters, and then the batch is acknowledged. What fails before
//! that is redelivered; what was recorded already is then ignored by [`relais_core::apply`].

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use relais_core::{
    Event, Failure, Ignored, Incoming, Mailbox, Outcome, Rejected, Service, ServiceKey, Side, State, TaskBroker,
    TaskBrokerError, TaskEvent, TaskId,
};
use relais_protocol::worker::{Report, SubmissionMessage, WireMessage, WorkerMessage};
use serde_json::value::RawValue;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::mailbox;
use crate::{Engine, EngineError, claims::work::wording, error::chain};

/// The wait after an error.
const PAUSE: Duration = Duration::from_secs(1);

/// RabbitMQ takes a worker that acknowledges at the end for lost after 30 minutes. A warning is logged somewhat before.
const LONG: Duration = Duration::from_secs(25 * 60);

/// How many bytes are recorded at once.
const MOST_BYTES: usize = 8 << 20;

/// How long to wait for more messages under load: a batch costs the store little more than one message.
const GATHER: Duration = Duration::from_millis(10);

/// How many messages together count as load.
const DOZEN: usize = 8;

/// How many messages a worker may put into one.
const MOST_IN_ONE: usize = 1000;

/// Consumes the queues of all services that use the broker.
pub(super) async fn run(engine: Engine, task_broker: Arc<dyn TaskBroker>) {
    let mut declared = engine.0.registry.changes();
    let mut running: BTreeMap<ServiceKey, (Mailbox, CancellationToken)> = BTreeMap::new();
    let mut consumers = JoinSet::new();
    loop {
        let services: BTreeMap<ServiceKey, Arc<Service>> =
            engine.brokered().into_iter().map(|service| (service.key, service)).collect();
        running.retain(|key, (known, over)| {
            let keep = services.get(key).is_some_and(|service| mailbox(service) == *known);
            if !keep {
                over.cancel();
            }
            keep
        });
        for (key, service) in services {
            running.entry(key).or_insert_with(|| {
                let (mailbox, over) = (mailbox(&service), engine.0.stopping.child_token());
                for side in [Side::Reports, Side::RefusedTasks] {
                    let consumer = Track {
                        engine: engine.clone(),
                        task_broker: Arc::clone(&task_broker),
                        service: Arc::clone(&service),
                        mailbox: mailbox.clone(),
                        side,
                        warned: AtomicBool::new(false),
                    };
                    let over = over.clone();
                    consumers.spawn(async move {
                        tokio::select! {
                            () = consumer.follow() => {}
                            () = over.cancelled() => {}
                        }
                    });
                }
                (mailbox, over)
            });
        }
        tokio::select! {
            // The other end is the engine's.
            _ = declared.changed() => {}
            Some(ended) = consumers.join_next(), if !consumers.is_empty() => {
                if let Err(error) = ended {
                    // A fault of Relais. Its service is consumed anew.
                    tracing::error!(%error, "following workers ended badly");
                    running.clear();
                    consumers.shutdown().await;
                }
            }
            () = engine.0.stopping.cancelled() => break,
        }
    }
    while consumers.join_next().await.is_some() {}
}

/// Consumes one queue of one service.
struct Track {
    engine: Engine,
    task_broker: Arc<dyn TaskBroker>,
    service: Arc<Service>,
    mailbox: Mailbox,
    side: Side,
    /// Whether the warning about long tasks was logged.
    warned: AtomicBool,
}

impl Track {
    /// Consumes until it is dropped.
    async fn follow(&self) {
        let mut reported = None;
        loop {
            self.task_broker.until_up().await;
            let Err(error) = self.follow_once().await else { return };
            // Logged once, not at every attempt.
            if reported.as_ref() != Some(&error) {
                tracing::debug!(service = %self.service.name, %error, "does not follow its workers for now");
                reported = Some(error);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Consumes until an error. A queue that the broker does not have ends without an error.
    async fn follow_once(&self) -> Result<(), TaskBrokerError> {
        let ahead = self.engine.0.options.dispatch.ahead;
        let Some(mut consumer) = self.task_broker.follow(&self.mailbox, self.side, ahead).await? else { return Ok(()) };
        // The broker delivers more while these are recorded.
        let most = usize::from(ahead / 2).max(1);
        let mut flowing = false;
        loop {
            if flowing {
                tokio::time::sleep(GATHER).await;
            }
            let batch = consumer.next(most).await?;
            let (messages, mut said) = (batch.len(), 0);
            let mut rest = batch.into_iter().peekable();
            // One transaction is not made longer than this by large messages.
            while rest.peek().is_some() {
                let (mut part, mut bytes, mut last) = (Vec::new(), 0, 0);
                while let Some(incoming) = rest.next_if(|_| bytes < MOST_BYTES) {
                    (bytes, last) = (bytes + incoming.body.len(), incoming.tag);
                    part.push(incoming);
                }
                said += self.take_in(part).await?;
                consumer.done(last).await?;
            }
            flowing = said >= DOZEN && messages < most;
        }
    }

    /// Records a batch, however long the store takes, and stores dead letters. Returns how many messages there were.
    async fn take_in(&self, batch: Vec<Incoming>) -> Result<usize, TaskBrokerError> {
        let mut understood = Understood::default();
        for incoming in batch {
            match self.side {
                Side::Reports => self.read_reports(&incoming, &mut understood),
                Side::RefusedTasks => self.read_refused(&incoming, &mut understood),
            }
        }
        // Counted before stale progress is dropped: many messages about few tasks are batched too.
        let said = understood.events.len();
        let (mut events, bodies) = understood.close();
        let mut rejected = bodies.rejected;
        if !events.is_empty() {
            let outcomes = loop {
                match self.engine.record_all(events.clone()).await {
                    Ok(outcomes) => break outcomes,
                    Err(EngineError::Stopping) => return Err(TaskBrokerError::Away("the process stops".to_owned())),
                    Err(error) => {
                        tracing::debug!(error = %chain(&error), "what workers said could not be recorded; tried again");
                        // Some of it may have been recorded.
                        for event in &mut events {
                            if let Event::Delivered { again, .. } | Event::Failed { again, .. } = &mut event.event {
                                *again = true;
                            }
                        }
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            };
            self.count(&outcomes);
            for ((event, body), outcome) in events.iter().zip(bodies.of_events).zip(outcomes) {
                if outcome == Outcome::NotFound {
                    let reason = format!("there is no task {} of this service", event.task_id);
                    rejected.push(Rejected { body, reason });
                }
                self.warn_of_long_runs(&outcome);
            }
        }
        if rejected.is_empty() {
            return Ok(said);
        }
        let service = self.service.name.as_str();
        for letter in &rejected {
            tracing::warn!(service, reason = letter.reason, "a worker's message was set aside");
        }
        metrics::counter!("relais_dead_letters_total", "service" => service.to_owned())
            .increment(rejected.len() as u64);
        metrics::counter!("relais_worker_messages_total", "service" => service.to_owned(), "outcome" => "rejected")
            .increment(rejected.len() as u64);
        self.engine.0.dispatcher.count_dead_letters(self.service.key, rejected.len() as u64);
        self.task_broker.set_aside(&self.mailbox, rejected).await?;
        Ok(said)
    }

    fn warn_of_long_runs(&self, outcome: &Outcome) {
        let Outcome::Applied(State { started: Some(started), ended: Some(ended), .. }) = outcome else { return };
        let ran = ended.since(*started);
        if ran > LONG && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                service = %self.service.name,
                minutes = ran.as_secs() / 60,
                "a task ran for long: RabbitMQ gives a message to another worker that was not acknowledged within its \
                 consumer_timeout, 30 minutes unless it is set"
            );
        }
    }

    fn count(&self, outcomes: &[Outcome]) {
        let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
        for outcome in outcomes {
            let outcome = match outcome {
                Outcome::Applied(_) => "accepted",
                Outcome::Ignored(Ignored::Ended(relais_core::Status::Cancelled)) => "cancelled",
                Outcome::Ignored(Ignored::Ended(_)) => "ended",
                Outcome::Ignored(Ignored::NoEffect | Ignored::KeyTaken) => "unchanged",
                Outcome::Ignored(Ignored::OtherAttempt(_) | Ignored::NotHeld | Ignored::Overdue) => "lost",
                Outcome::NotFound => continue,
            };
            *counts.entry(outcome).or_default() += 1;
        }
        for (outcome, count) in counts {
            let service = self.service.name.to_string();
            metrics::counter!("relais_worker_messages_total", "service" => service, "outcome" => outcome)
                .increment(count);
        }
    }

    /// Decodes a delivery: one message, or a list of them.
    fn read_reports(&self, incoming: &Incoming, understood: &mut Understood) {
        let body = &incoming.body;
        let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
        if first != Some(&b'[') {
            return self.read_report(body, incoming.redelivered, understood);
        }
        match serde_json::from_slice::<Vec<&RawValue>>(body) {
            Ok(messages) if messages.len() <= MOST_IN_ONE => {
                for message in messages {
                    self.read_report(message.get().as_bytes(), incoming.redelivered, understood);
                }
            }
            Ok(_) => understood.reject(body, format!("a list of more than {MOST_IN_ONE} messages")),
            Err(error) => understood.reject(body, format!("not JSON: {error}")),
        }
    }

    fn read_report(&self, body: &[u8], again: bool, understood: &mut Understood) {
        let message = match serde_json::from_slice::<WireMessage>(body) {
            Ok(message) => message,
            Err(error) => return understood.reject(body, format!("not a message: {error}")),
        };
        let read = message.understand().map_err(|why| why.0).and_then(|message| self.events(message, again));
        match read {
            Ok((task_id, events)) => {
                for event in events {
                    understood.add(self.service.key, task_id, event, body);
                }
            }
            Err(why) => understood.reject(body, why),
        }
    }

    /// The event of a message where a broker watches the workers.
    fn events(&self, message: WorkerMessage, again: bool) -> Result<(TaskId, Vec<Event>), String> {
        let delivery_limit = self.service.limits.delivery_limit;
        let worker_host = message.host_name.clone().map(wording::host);
        if let Some(host) = &worker_host {
            self.engine.0.worker_registry.hears(self.service.key, host);
        }
        match &message.report {
            Report::Started => {
                let task_id = wording::task_id(&message)?;
                Ok((task_id, vec![Event::Delivered { worker_host, again, delivery_limit }]))
            }
            Report::Returned => Ok((wording::task_id(&message)?, vec![Event::GivenBack { worker_host }])),
            // Its progress; it may be about an earlier attempt.
            Report::Progress { .. } if again => Ok((wording::task_id(&message)?, Vec::new())),
            Report::Progress { .. } => wording::event(message, None).map(|(task_id, event)| (task_id, vec![event])),
            // The host decides whether it counts: a slow worker does not speak for its successor.
            Report::Failure(_) => {
                let (task_id, mut event) = wording::event(message, None)?;
                if let Event::Failed { again: doubt, worker_host: who, .. } = &mut event {
                    (*doubt, *who) = (again, worker_host);
                }
                Ok((task_id, vec![event]))
            }
            Report::Success { .. } => {
                let (task_id, event) = wording::event(message, None)?;
                // A result that names its host replaces the `started` that was not sent. The worker before it was lost,
                // but there is a result, so that no limit matters any more.
                let named = worker_host.map(|host| Event::Delivered {
                    worker_host: Some(host),
                    again: true,
                    delivery_limit: u32::MAX,
                });
                Ok((task_id, named.into_iter().chain([event]).collect()))
            }
        }
    }

    /// A task that no worker takes fails with the reason.
    fn read_refused(&self, incoming: &Incoming, understood: &mut Understood) {
        let message = match serde_json::from_slice::<SubmissionMessage>(&incoming.body) {
            Ok(message) => message,
            Err(error) => return understood.reject(&incoming.body, format!("not a submission: {error}")),
        };
        let Some(task_id) = TaskId::parse(&message.task_id) else {
            return understood.reject(&incoming.body, "taskId is not a UUID".to_owned());
        };
        let error_message = match incoming.reason.as_deref() {
            Some("expired") => "It was not started in time: it expired in the broker's queue.".to_owned(),
            Some("delivery_limit") => {
                format!("Delivered {} times without a result.", self.service.limits.delivery_limit)
            }
            Some("rejected") | None => "A worker rejected it without saying why.".to_owned(),
            Some(other) => format!("The broker gave it up: {other}."),
        };
        // A retry would end the same way, whatever the policy.
        let failure = Failure { retryable: Some(false), ..Failure::new(error_message).of_kind("undelivered") };
        understood.add(self.service.key, task_id, Event::failure(None, failure), &incoming.body);
    }
}

/// The events of a batch.
#[derive(Default)]
struct Understood {
    events: Vec<Option<(TaskEvent, Vec<u8>)>>,
    /// The index of the last event of each task, if it is its progress: newer progress and a success make it stale. A
    /// failure does not, because it keeps the last progress.
    progress: HashMap<TaskId, usize>,
    rejected: Vec<Rejected>,
}

/// The messages of the events, and those without events.
struct Bodies {
    of_events: Vec<Vec<u8>>,
    rejected: Vec<Rejected>,
}

impl Understood {
    fn add(&mut self, service: ServiceKey, task_id: TaskId, event: Event, body: &[u8]) {
        let progress = matches!(event, Event::Progressed { .. });
        let stale = self.progress.remove(&task_id);
        if let Some(at) = stale
            && (progress || matches!(event, Event::Succeeded { .. }))
        {
            self.events[at] = None;
        }
        if progress {
            self.progress.insert(task_id, self.events.len());
        }
        self.events.push(Some((TaskEvent { task_id, service, client: None, event }, body.to_vec())));
    }

    fn reject(&mut self, body: &[u8], reason: String) {
        self.rejected.push(Rejected { body: body.to_vec(), reason });
    }

    fn close(self) -> (Vec<TaskEvent>, Bodies) {
        let (events, of_events) = self.events.into_iter().flatten().unzip();
        (events, Bodies { of_events, rejected: self.rejected })
    }
}
