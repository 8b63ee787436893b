//! The port for where a push worker's messages come from, and where it is said what became of them.
//!
//! A consumer receives, and settles. Which message is next, how many at a time, when to retry and when to give up is the
//! worker's, the same whatever feeds it. The conformance suite is in `relais-testkit` (`consumer_suite`).

use std::{borrow::Cow, collections::VecDeque, error::Error, fmt, future::ready, sync::Arc, time::Duration};

use serde::Serialize;
use tokio::sync::oneshot;

use crate::{FailedMessage, Order};

/// An error of a driver, of whatever type.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// What a consumer can do. What it can not, it says here, and the suite holds it to the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConsumerFeatures {
    /// A message that is not settled is delivered again: after a crash, a stop that ran out of time, a lost connection.
    pub redelivers: bool,
    /// Workers of the same name or group share the messages; else each gets all of them.
    pub shares_work: bool,
    /// Messages of a key stay in order when one of them is retried: those behind it wait.
    pub keeps_order: bool,
    /// A message that waits for its retry waits at the broker, not in the worker.
    pub retries_at_broker: bool,
    /// Messages come in partitions, which can be taken away ([`Incoming::Revoked`], [`Incoming::Lost`]).
    pub has_partitions: bool,
    /// Dead letters outlive the process.
    pub keeps_dead_letters: bool,
}

/// Where a push worker's messages come from.
///
/// A worker owns its consumer, and drops it when it ends, however it ends: connections that live longer belong elsewhere.
///
/// # Contract
///
/// - Each delivery is settled once ([`settle`](Self::settle)), or dropped by a worker that is cut off. A consumer that
///   [redelivers](ConsumerFeatures::redelivers) delivers again what was dropped, and what was settled as
///   [`Settled::Left`] or [`Settled::Failed`].
/// - `settle` may be called in any order. A consumer of a log commits nothing behind a delivery that is not settled.
/// - A consumer that loses its connection restores it by itself, for as long as it takes. Receipts of the connection before
///   are worth nothing then: to settle them does nothing, and [`Incoming::Lost`] takes back those that have not started.
/// - What `retry` and `dead_letter` have answered with success is safe: only then the worker settles the delivery.
pub trait Consumer: Send + Sync + 'static {
    /// What handlers and hooks see.
    type Message: Send + Sync + 'static;

    /// A message with the receipt by which it is settled.
    type Delivery: Send + 'static;

    /// What it can do.
    fn features(&self) -> ConsumerFeatures;

    /// What can be asked about it from outside, also when it is gone.
    fn monitor(&self) -> Arc<dyn ConsumerMonitor>;

    /// Waits for deliveries and puts them into `batch`, which is empty. Cancel-safe: if it is dropped before it returns,
    /// nothing has been put there. Deliveries in the batch came before what is returned.
    fn receive(&self, batch: &mut VecDeque<Self::Delivery>) -> impl Future<Output = Incoming<Self::Delivery>> + Send;

    /// The message of a delivery.
    fn message(&self, delivery: &Self::Delivery) -> Arc<Self::Message>;

    /// What names a message among all others, the same each time that it is delivered.
    fn id<'a>(&self, message: &'a Self::Message) -> Cow<'a, str>;

    /// The channel, queue or topic that it came by.
    fn channel<'a>(&self, message: &'a Self::Message) -> &'a str;

    /// What orders it: deliveries of the same lane are handled one after the other. None for those without an order.
    fn lane(&self, delivery: &Self::Delivery, order: Order) -> Option<Arc<str>>;

    /// How often it was retried before it was delivered, where the broker keeps that.
    fn retries(&self, delivery: &Self::Delivery) -> u32 {
        let _ = delivery;
        0
    }

    /// It waits no longer: its handler starts, or the worker gives it back.
    fn leave_queue(&self, delivery: &Self::Delivery) {
        let _ = delivery;
    }

    /// It waits again, having been retried `retries` times, the next one included. Its message says so from now on
    /// (`retry_count`).
    fn rejoin_queue(&self, delivery: &mut Self::Delivery, retries: u32) {
        let _ = (delivery, retries);
    }

    /// Says what became of a delivery. Does not wait: what has to be sent is sent behind it.
    fn settle(&self, delivery: Self::Delivery, settled: Settled);

    /// A message is to be retried after `pause`, for the `failed.retries + 1`st time. A consumer that retries at the broker
    /// hands it over here. After an error the worker keeps it.
    fn retry(
        &self,
        failed: &FailedMessage<'_, Self::Message>,
        pause: Duration,
    ) -> impl Future<Output = Result<RetriedBy, BoxError>> + Send {
        let _ = (failed, pause);
        ready(Ok(RetriedBy::Worker))
    }

    /// Keeps a message as a dead letter, with the error. `false`: it is one already, and stays where it is. After an error
    /// the delivery is settled as [`Settled::Failed`]; a consumer that can not do with that tries again in here.
    fn dead_letter(
        &self,
        failed: &FailedMessage<'_, Self::Message>,
    ) -> impl Future<Output = Result<bool, BoxError>> + Send;

    /// Takes nothing new. What was taken before is still received; then comes [`Incoming::Closed`].
    fn stop_receiving(&self) -> impl Future<Output = ()> + Send;

    /// The worker is done and everything is settled: sends what is still to be sent, and leaves. Has a limit of its own.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// What can be asked about a consumer while it runs, and afterwards.
pub trait ConsumerMonitor: Send + Sync + 'static {
    /// Channels, patterns, queues or topics.
    fn channels(&self) -> Vec<String>;

    /// How many messages wait: received, and not started.
    fn queue_size(&self) -> usize;

    /// How many can.
    fn queue_capacity(&self) -> usize;

    /// Where its messages come from, one by one.
    fn subscriptions(&self) -> Vec<WorkerSubscription>;

    /// Whether messages can come: it is connected.
    fn is_healthy(&self) -> bool {
        true
    }
}

/// One of the things that a worker is subscribed to. As JSON it has exactly these keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkerSubscription {
    /// What names it among the subscriptions of its kind.
    pub id: String,
    /// A channel, pattern, queue or topic.
    pub channel: String,
    /// Messages that wait in the worker.
    pub pending: usize,
}

/// What [`Consumer::receive`] has to say, after what is in the batch.
pub enum Incoming<D> {
    /// Nothing but the batch.
    Deliveries,
    /// Partitions are to be handed over.
    Revoked(Revoked<D>),
    /// Deliveries are lost: to settle them does nothing any more. Those that have not started are forgotten, and what
    /// becomes of those that run does not count.
    Lost(Covers<D>),
    /// There will never be more.
    Closed,
}

/// Which deliveries something is about.
pub type Covers<D> = Box<dyn Fn(&D) -> bool + Send>;

/// Partitions that are to be handed over. The worker gives back what has not started ([`Settled::Left`]), lets finish what
/// runs and settles it, and then says so. How long to wait for that is the consumer's to decide.
pub struct Revoked<D> {
    pub(crate) covers: Covers<D>,
    pub(crate) done: oneshot::Sender<()>,
}

impl<D> Revoked<D> {
    /// The deliveries that `covers` says, and what tells that the worker is done with them.
    pub fn new(covers: impl Fn(&D) -> bool + Send + 'static) -> (Self, oneshot::Receiver<()>) {
        let (done, told) = oneshot::channel();
        (Self { covers: Box::new(covers), done }, told)
    }
}

impl<D> fmt::Debug for Incoming<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deliveries => "Deliveries",
            Self::Revoked(_) => "Revoked",
            Self::Lost(_) => "Lost",
            Self::Closed => "Closed",
        })
    }
}

impl<D> fmt::Debug for Revoked<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Revoked")
    }
}

/// What became of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It was handled.
    Done,
    /// The broker has it and brings it again for its retry.
    Retried,
    /// It failed for good and is in the dead letters.
    DeadLettered,
    /// It failed for good, and the error hook wanted it forgotten.
    Dropped,
    /// It failed for good, and could not be kept as a dead letter.
    Failed,
    /// It is not done, and goes back.
    Left,
}

/// Who brings a message again for its retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetriedBy {
    /// The worker keeps it, in its lane.
    Worker,
    /// The broker has it.
    Broker,
}
