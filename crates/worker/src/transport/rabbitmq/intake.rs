//! The consumer of tasks, the delivered tasks, and their acknowledgements.
//!
//! An async task consumes all the time, also while nobody waits for more: this is how a lost connection is noticed. It
//! gets at most as many tasks as the prefetch, so it need not be bounded once more here.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use relais_messaging::rabbitmq::{self, Acker, Broker, ConsumeError, ConsumeOptions, Consumer, Queue};
use relais_protocol::worker::{OutcomeKind, StopMessage};
use tokio::sync::{Mutex as AsyncMutex, mpsc, watch};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{control::Control, submission::understand};
use crate::{CallError, backoff::Backoff, slots::TaskKey, transport::Delivery};

/// The consumer, and the delivered tasks.
pub(super) struct Intake {
    broker: Broker,
    queues: [Queue; 2],
    control: Control,
    prefetch: u16,
    state: Arc<IntakeState>,
    arrived: AsyncMutex<mpsc::UnboundedReceiver<Delivery>>,
    revoked: AsyncMutex<mpsc::UnboundedReceiver<Vec<(TaskKey, OutcomeKind)>>>,
    consuming: OnceLock<AbortOnDropHandle<()>>,
}

/// The state that the consuming task and those who acknowledge share.
struct IntakeState {
    /// Locked for moments only, never across an await.
    held: Mutex<HashMap<TaskKey, Held>>,
    deliveries: AtomicU64,
    arrive: mpsc::UnboundedSender<Delivery>,
    withdraw: mpsc::UnboundedSender<Vec<(TaskKey, OutcomeKind)>>,
    is_consuming: AtomicBool,
    /// Why the broker did not let this worker in when it first came.
    refused: watch::Sender<Option<String>>,
    /// Nothing more is wanted.
    stop: CancellationToken,
    /// Nothing more will arrive.
    stopped: CancellationToken,
    /// Nothing more will be acknowledged.
    close: CancellationToken,
    /// The broker has all acknowledgements, or never will.
    closed: CancellationToken,
}

/// A task that was delivered and is not acknowledged.
struct Held {
    acker: Acker,
    tag: u64,
    /// How often it had changed when it was published.
    revision: u64,
    /// Somebody here has it.
    taken: bool,
    /// Its start was reported.
    told: bool,
    /// It was revoked. It is acknowledged when its handler has ended, so that no other worker gets it before.
    unwanted: bool,
}

impl std::fmt::Debug for Intake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {:?}", self.queues[0].name, self.broker)
    }
}

impl Intake {
    /// Consumes the first of the queues, once both are there.
    pub fn new(broker: Broker, queues: [Queue; 2], control: Control, prefetch: u16) -> Self {
        let (arrive, arrived) = mpsc::unbounded_channel();
        let (withdraw, revoked) = mpsc::unbounded_channel();
        let state = IntakeState {
            held: Mutex::default(),
            deliveries: AtomicU64::new(0),
            arrive,
            withdraw,
            is_consuming: AtomicBool::new(false),
            refused: watch::Sender::default(),
            stop: CancellationToken::new(),
            stopped: CancellationToken::new(),
            close: CancellationToken::new(),
            closed: CancellationToken::new(),
        };
        Self {
            broker,
            queues,
            control,
            prefetch,
            state: Arc::new(state),
            arrived: AsyncMutex::new(arrived),
            revoked: AsyncMutex::new(revoked),
            consuming: OnceLock::new(),
        }
    }

    /// Begins to consume, the first time.
    pub fn start(&self) {
        self.consuming.get_or_init(|| {
            let (broker, queues, control) = (self.broker.clone(), self.queues.clone(), self.control.clone());
            AbortOnDropHandle::new(tokio::spawn(self.state.clone().consume(broker, queues, control, self.prefetch)))
        });
    }

    /// Waits for tasks and takes up to `max` of those that are there. None once nothing more is wanted.
    pub async fn take(&self, max: usize) -> Result<Vec<Delivery>, CallError> {
        let mut arrived = self.arrived.lock().await;
        let mut refused = self.state.refused.subscribe();
        let mut taken = Vec::new();
        while taken.is_empty() {
            let first = tokio::select! {
                biased;
                () = self.state.stop.cancelled() => break,
                first = arrived.recv() => first,
                why = refused.wait_for(Option::is_some) => {
                    let why = why.ok().and_then(|why| why.clone()).unwrap_or_default();
                    return Err(CallError::BrokerRefused { why });
                }
            };
            let rest = std::iter::from_fn(|| arrived.try_recv().ok());
            // What was lost or given up before anybody took it is no longer ours to take.
            taken
                .extend(first.into_iter().chain(rest.take(max - 1)).filter(|delivery| self.state.takes(&delivery.key)));
        }
        Ok(taken)
    }

    /// Wants nothing more, and puts back what nobody took.
    pub async fn stop(&self) {
        self.state.stop.cancel();
        if self.consuming.get().is_some() {
            self.state.stopped.cancelled().await;
        }
        let mut arrived = self.arrived.lock().await;
        while let Ok(delivery) = arrived.try_recv() {
            self.give_back(&delivery.key);
        }
    }

    /// Waits until the broker has all acknowledgements.
    pub async fn close(&self) {
        self.state.close.cancel();
        if self.consuming.get().is_some() {
            self.state.closed.cancelled().await;
        }
    }

    /// Waits until tasks are lost or revoked, and returns which.
    pub async fn revoked(&self) -> Vec<(TaskKey, OutcomeKind)> {
        match self.revoked.lock().await.recv().await {
            Some(tasks) => tasks,
            None => std::future::pending().await,
        }
    }

    pub fn is_consuming(&self) -> bool {
        self.state.is_consuming.load(Ordering::Relaxed)
    }

    /// The server is being told that the task was started.
    pub fn mark_start_reported(&self, key: &TaskKey) {
        if let Some(held) = self.state.held().get_mut(key) {
            held.told = true;
        }
    }

    /// Whether the server has to be told that it comes back.
    pub fn start_was_reported(&self, key: &TaskKey) -> bool {
        self.state.held().get(key).is_some_and(|held| held.told && !held.unwanted)
    }

    /// Whether anybody wants a task that was taken. One that was lost is somebody else's.
    pub fn is_wanted(&self, key: &TaskKey) -> bool {
        self.state.held().get(key).is_some_and(|held| !held.unwanted)
    }

    /// The tasks are done with. Those that were lost can not be acknowledged, and need not be.
    ///
    /// The broker is told of each by itself only where an earlier one is still at work: all before that are one word to
    /// it. Said while `held` is locked, so that nothing is given back meanwhile that this would acknowledge.
    pub fn ack<'a>(&self, keys: impl Iterator<Item = &'a TaskKey>) {
        let mut held = self.state.held();
        let mut done: Vec<Held> = keys.filter_map(|key| held.remove(key)).collect();
        done.sort_unstable_by_key(|done| done.tag);
        let first_open = held.values().map(|open| open.tag).min().unwrap_or(u64::MAX);
        let (together, apart) = done.split_at(done.partition_point(|done| done.tag < first_open));
        let together = together.last().map(|last| last.acker.ack_through(last.tag));
        for answer in together.into_iter().chain(apart.iter().map(|done| done.acker.ack(done.tag))) {
            if let Err(error) = answer {
                tracing::debug!(%error, "tasks could not be acknowledged");
            }
        }
    }

    /// Puts a task back into its queue; false if it was lost, or nobody wants it.
    pub fn give_back(&self, key: &TaskKey) -> bool {
        let mut held = self.state.held();
        match held.remove(key) {
            Some(given) if given.unwanted => {
                given.done();
                false
            }
            Some(given) => given.acker.nack(given.tag, true).is_ok(),
            None => false,
        }
    }
}

impl Held {
    /// It is done with, alone.
    fn done(&self) {
        if let Err(error) = self.acker.ack(self.tag) {
            tracing::debug!(%error, "a task could not be acknowledged");
        }
    }
}

impl IntakeState {
    /// Consumes for as long as something is wanted, however often the connection is lost.
    async fn consume(self: Arc<Self>, broker: Broker, queues: [Queue; 2], control: Control, prefetch: u16) {
        let mut backoff = Backoff::default();
        let mut reported = None;
        let mut unheard = None;
        // Whoever was let in once is let in again, sooner or later: passwords are changed, and brokers set up anew.
        let mut welcome = false;
        while !self.stop.is_cancelled() {
            let opening = async {
                // First: what is given up from when a task is here is heard.
                let state = self.clone();
                let hearing = match control.hear(move |told| state.heed(told)).await {
                    // It will be heard, so it is worth another try.
                    Err(error) if error.is_away() => return Err(error),
                    hearing => hearing,
                };
                Ok((open(&broker, &queues, prefetch).await?, hearing))
            };
            let opened = tokio::select! {
                opened = opening => opened,
                () = self.stop.cancelled() => break,
            };
            match opened {
                Ok((consumer, hearing)) => {
                    if let Err(error) = &hearing
                        && unheard.replace(error.clone()).as_ref() != Some(error)
                    {
                        tracing::warn!(%error, "it is not heard here if a task is cancelled while it runs");
                    }
                    tracing::info!(queue = queues[0].name, prefetch, "consuming");
                    (backoff, reported, welcome) = (Backoff::default(), None, true);
                    self.is_consuming.store(true, Ordering::Relaxed);
                    let end = self.follow(consumer, prefetch).await;
                    self.is_consuming.store(false, Ordering::Relaxed);
                    self.lose_all();
                    if self.stop.is_cancelled() {
                        break;
                    }
                    tracing::warn!(queue = queues[0].name, error = %end, "no longer consuming; trying again");
                }
                Err(ConsumeError::Away { why } | ConsumeError::Refused { why }) if !welcome && is_refusal(&why) => {
                    self.refused.send_replace(Some(why));
                    break;
                }
                // Said once, not at every attempt.
                Err(error) if reported.as_ref() == Some(&error) => {}
                Err(error) => {
                    tracing::warn!(queue = queues[0].name, %error, "failed to consume; trying again");
                    reported = Some(error);
                }
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.next()) => {}
                () = self.stop.cancelled() => {}
            }
        }
        self.stopped.cancel();
        self.closed.cancel();
    }

    /// Takes what a consumer hands out, until its end. Once nothing more is wanted it only stays: what was handed out
    /// is to be settled in its channel.
    async fn follow(&self, mut consumer: Consumer, prefetch: u16) -> ConsumeError {
        let acker = consumer.acker();
        let batch = usize::from(prefetch.max(1));
        loop {
            let next = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                next = consumer.next_batch(batch) => next,
            };
            match next {
                Ok(deliveries) => deliveries.into_iter().for_each(|delivery| self.arrived(delivery, &acker)),
                Err(end) => return end,
            }
        }
        self.is_consuming.store(false, Ordering::Relaxed);
        if let Err(error) = consumer.cancel().await {
            return error;
        }
        loop {
            match consumer.next_batch(batch).await {
                // Never begun: nobody need be told.
                Ok(deliveries) => deliveries.iter().for_each(|delivery| drop(acker.nack(delivery.tag, true))),
                Err(ConsumeError::Cancelled) => break,
                Err(end) => return end,
            }
        }
        self.stopped.cancel();
        self.close.cancelled().await;
        // It is cancelled already. But whoever gets the answer knows that the broker has seen all that was settled
        // before.
        consumer.cancel().await.err().unwrap_or(ConsumeError::Cancelled)
    }

    fn arrived(&self, delivery: rabbitmq::Delivery, acker: &Acker) {
        let mut task = match understand(&delivery.body) {
            Ok(task) => task,
            Err(why) => {
                let (message_id, bytes) = (delivery.message_id, delivery.body.len());
                tracing::error!(message_id, bytes, why, "a message is no submission and is rejected");
                let _ = acker.nack(delivery.tag, false);
                return;
            }
        };
        task.correlation_id = task.correlation_id.or(delivery.correlation_id);
        let key = TaskKey {
            task_id: task.task_id.as_str().into(),
            attempt: task.attempt,
            delivery: self.deliveries.fetch_add(1, Ordering::Relaxed) + 1,
        };
        let held = Held {
            acker: acker.clone(),
            tag: delivery.tag,
            revision: task.revision.unwrap_or_default(),
            taken: false,
            told: false,
            unwanted: false,
        };
        self.held().insert(key.clone(), held);
        // Nobody is there to receive it only when everything is being dropped.
        let _ = self.arrive.send(Delivery { key, task, redelivered: delivery.redelivered });
    }

    /// The connection is gone, and with it everything that it brought.
    fn lose_all(&self) {
        let lost: Vec<_> = self.held().drain().map(|(key, _)| (key, OutcomeKind::Lost)).collect();
        if !lost.is_empty() {
            let _ = self.withdraw.send(lost);
        }
    }

    /// The server says that nobody wants these tasks any more. What nobody has begun is done with.
    fn heed(&self, told: StopMessage) {
        let told: HashMap<_, _> = told.outcomes.iter().map(|told| (told.task_id.as_str(), told)).collect();
        let mut unwanted = Vec::new();
        self.held().retain(|key, held| {
            let Some(told) = told.get(&*key.task_id).filter(|told| held.revision < told.revision) else { return true };
            if !held.taken {
                tracing::info!(task_id = %key.task_id, outcome = ?told.outcome, "the task is not begun any more");
                held.done();
                return false;
            }
            if !std::mem::replace(&mut held.unwanted, true) {
                unwanted.push((key.clone(), told.outcome));
            }
            true
        });
        if !unwanted.is_empty() {
            let _ = self.withdraw.send(unwanted);
        }
    }

    /// Takes a task, if it is still here.
    fn takes(&self, key: &TaskKey) -> bool {
        self.held().get_mut(key).map(|held| held.taken = true).is_some()
    }

    fn held(&self) -> MutexGuard<'_, HashMap<TaskKey, Held>> {
        // Nothing in here panics half way: a poisoned map is still a good one.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether these words of RabbitMQ's mean that it knows who asks, and will not have it: the login is wrong, there is no
/// such virtual host, or no right to it or to its queues. That there are too many connections is also said so, and
/// passes.
fn is_refusal(why: &str) -> bool {
    ["ACCESS_REFUSED", "NOT_ALLOWED"].iter().any(|word| why.starts_with(word)) && !why.contains("connection limit")
}

/// Makes sure of the queues, and consumes the first one.
async fn open(broker: &Broker, queues: &[Queue; 2], prefetch: u16) -> Result<Consumer, ConsumeError> {
    for queue in queues {
        broker.declare(queue).await?;
    }
    broker.consume(&queues[0].name, ConsumeOptions { prefetch, tag: String::new() }).await
}
