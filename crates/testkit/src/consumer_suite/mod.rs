//! The conformance suite of the [`Consumer`](relais_push_worker::Consumer) port: what a push worker promises, whatever feeds
//! it.
//!
//! A driver's own test implements [`ConsumerHarness`], which publishes, and names it to
//! [`consumer_suite!`](crate::consumer_suite). What a consumer can not do, its features say; a case asks them only where the
//! contract depends on them. Nothing here knows a broker.

mod failures;
mod faults;
mod order;
mod stops;

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use relais_push_worker::{
    ConsumerFeatures, Handler, PushWorker, PushWorkerReport, SubscriberError, WorkerSettings, handler,
};
use tokio::{sync::mpsc, time::timeout};

pub use self::{failures::*, faults::*, order::*, stops::*};

/// For whatever should happen soon, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// A message of this suite, as a handler sees it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seen {
    /// Its key.
    pub key: String,
    /// Its number among those of its key.
    pub number: usize,
    /// How often it was retried.
    pub retries: u32,
}

/// A dead letter of this suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenDeadLetter {
    /// The key of the message that it was.
    pub key: String,
    /// Its number.
    pub number: usize,
    /// Why it failed.
    pub error: String,
}

/// A queue, topic or channel with nothing in it, and whoever publishes there.
#[async_trait(?Send)]
pub trait ConsumerHarness {
    /// What handlers get.
    type Message: Send + Sync + 'static;

    /// What its consumers can do.
    fn features(&self) -> ConsumerFeatures;

    /// Starts a worker, as in a process of its own. All workers of a harness have the same group, where there are groups.
    /// They reach their server through something that can be cut.
    async fn start(
        &self,
        settings: WorkerSettings<Self::Message>,
        handler: Handler<Self::Message>,
    ) -> Result<Box<dyn SuiteWorker<Self::Message>>>;

    /// Publishes messages with these keys and numbers, in this order, past what can be cut.
    async fn publish(&self, messages: &[(String, usize)]) -> Result<()>;

    /// Reads a message of this suite.
    fn read(message: &Self::Message) -> Seen;

    /// All dead letters, in any order.
    async fn dead_letters(&self) -> Result<Vec<SeenDeadLetter>>;

    /// Cuts the connections of all workers; false where there are none.
    async fn cut(&self) -> Result<bool>;

    /// Ends a cut.
    async fn restore(&self) -> Result<()>;

    /// Kills the server and starts it again on the same data; false where it cannot be.
    async fn crash(&self) -> Result<bool>;

    /// For how long a worker may be silent before its deliveries go to another one.
    fn patience(&self) -> Duration;

    /// The unit of pauses between retries.
    fn retry_unit(&self) -> Duration {
        Duration::from_millis(10)
    }
}

/// A worker of this suite, with what it needs.
#[async_trait(?Send)]
pub trait SuiteWorker<M> {
    /// The worker itself.
    fn worker(&self) -> &PushWorker<M>;

    /// Stops it in good order.
    async fn stop(self: Box<Self>) -> PushWorkerReport<M>;

    /// Ends it without a word to anybody, as a crash of its process would.
    fn kill(self: Box<Self>) {}
}

#[async_trait(?Send)]
impl<M: Send + Sync + 'static> SuiteWorker<M> for PushWorker<M> {
    fn worker(&self) -> &PushWorker<M> {
        self
    }

    async fn stop(self: Box<Self>) -> PushWorkerReport<M> {
        PushWorker::stop(*self).await
    }
}

/// Makes one test of each promise. The argument is an async function without parameters that returns
/// `anyhow::Result<impl ConsumerHarness>`. With `crash`, another such function is for the one promise about a crash of the
/// server, so that all others can share one.
#[macro_export]
macro_rules! consumer_suite {
    ($harness:ident) => {
        $crate::consumer_suite!($harness, crash: $harness);
    };
    ($harness:ident, crash: $crash:ident) => {
        $crate::consumer_suite! { @tests $harness;
            every_message_is_handled_once_and_counted,
            messages_of_a_key_are_handled_one_after_the_other,
            messages_without_order_are_handled_at_the_same_time,
            a_failed_message_is_retried_with_its_count,
            later_messages_of_a_key_wait_for_a_retry,
            retries_that_are_used_up_make_a_dead_letter,
            a_poison_message_becomes_a_dead_letter_and_the_rest_goes_on,
            a_panic_fails_its_message_only,
            a_handler_that_does_not_return_fails_its_message_only,
            a_busy_message_waits_and_counts_neither_as_error_nor_as_retry,
            an_error_hook_decides,
            a_stop_finishes_what_runs_and_nothing_is_lost_or_repeated,
            what_a_stop_leaves_at_its_deadline_comes_again,
            a_stopped_worker_is_not_healthy,
            what_a_killed_worker_had_comes_again,
            workers_share_the_messages,
            a_slow_handler_keeps_its_message,
            a_lost_connection_loses_nothing,
        }
        $crate::consumer_suite! { @tests $crash;
            a_crash_of_the_server_loses_nothing,
        }
    };
    (@tests $harness:ident; $($promise:ident),* $(,)?) => {
        $(#[tokio::test]
        async fn $promise() -> anyhow::Result<()> {
            $crate::consumer_suite::$promise(&$harness().await?).await
        })*
    };
}

/// A worker of this suite, whatever feeds it.
type Started<H> = Box<dyn SuiteWorker<<H as ConsumerHarness>::Message>>;

/// What handlers see, in the order in which they begin.
struct Sight(mpsc::UnboundedReceiver<Seen>);

impl Sight {
    async fn next(&mut self) -> Result<Seen> {
        let seen = timeout(DEADLINE, self.0.recv()).await.context("a message should have come by now")?;
        seen.context("the worker is gone")
    }

    async fn next_many(&mut self, count: usize) -> Result<Vec<Seen>> {
        let mut all = Vec::new();
        while all.len() < count {
            all.push(self.next().await.with_context(|| format!("{} of {count} have come", all.len()))?);
        }
        Ok(all)
    }

    /// Until each of these messages has come, however often, and whatever else.
    async fn until_all(&mut self, messages: &[(String, usize)]) -> Result<Vec<Seen>> {
        let mut missing: std::collections::HashSet<_> = messages.iter().cloned().collect();
        let mut all = Vec::new();
        while !missing.is_empty() {
            let seen = self.next().await.with_context(|| format!("{} have not come", missing.len()))?;
            missing.remove(&(seen.key.clone(), seen.number));
            all.push(seen);
        }
        Ok(all)
    }

    /// What has come and was not asked for.
    fn rest(&mut self) -> Vec<Seen> {
        std::iter::from_fn(|| self.0.try_recv().ok()).collect()
    }
}

/// Makes workers whose handlers tell what they see.
fn settings<H: ConsumerHarness>(harness: &H) -> WorkerSettings<H::Message> {
    WorkerSettings::new("suite").concurrency(8).retry_unit(harness.retry_unit()).busy_pause(harness.retry_unit())
}

/// Starts a worker whose handler tells that it begins, then does `act`.
async fn start<H, F>(
    harness: &H,
    settings: WorkerSettings<H::Message>,
    act: impl Fn(Seen) -> F + Send + Sync + 'static,
) -> Result<(Started<H>, Sight)>
where
    H: ConsumerHarness,
    F: Future<Output = Result<(), SubscriberError>> + Send + 'static,
{
    let (sender, receiver) = mpsc::unbounded_channel();
    let handle = handler(move |message: Arc<H::Message>| {
        let seen = H::read(&message);
        // A test that has seen enough does not listen any more.
        let _ = sender.send(seen.clone());
        act(seen)
    });
    let worker = timeout(DEADLINE, harness.start(settings, handle)).await.context("the worker starts")??;
    Ok((worker, Sight(receiver)))
}

async fn stop<M>(worker: Box<dyn SuiteWorker<M>>) -> Result<PushWorkerReport<M>> {
    timeout(DEADLINE, worker.stop()).await.context("the worker stops")
}

async fn well(_: Seen) -> Result<(), SubscriberError> {
    Ok(())
}

/// `each` messages of each of `keys` keys, in turn.
fn messages(keys: usize, each: usize) -> Vec<(String, usize)> {
    (0..each).flat_map(|number| (0..keys).map(move |key| (format!("k{key}"), number))).collect()
}

fn one(key: &str, number: usize) -> (String, usize) {
    (key.to_owned(), number)
}

fn names(seen: &[Seen]) -> Vec<(String, usize)> {
    seen.iter().map(|seen| (seen.key.clone(), seen.number)).collect()
}

fn sorted<T: Ord>(mut all: Vec<T>) -> Vec<T> {
    all.sort();
    all
}

/// Waits until something is so.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, waiting).await.with_context(|| what.to_owned())
}

/// Waits for a number of dead letters.
async fn dead_letters<H: ConsumerHarness>(harness: &H, count: usize) -> Result<Vec<SeenDeadLetter>> {
    let waiting = async {
        loop {
            let letters = harness.dead_letters().await?;
            if letters.len() >= count {
                return anyhow::Ok(letters);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(DEADLINE, waiting).await.context("the dead letters should be there by now")?
}

/// Checks that the first arrivals of each key are in order, without a gap.
fn check_order(seen: &[Seen]) -> Result<()> {
    let mut next = std::collections::HashMap::<&str, usize>::new();
    for Seen { key, number, .. } in seen {
        let expected = next.entry(key).or_default();
        anyhow::ensure!(number <= expected, "{key}-{number} came where {key}-{expected} was expected");
        *expected = (*expected).max(number + 1);
    }
    Ok(())
}
