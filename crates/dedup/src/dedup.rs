//! What a program calls: a handler runs unless its message was processed before.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    Claim, ClaimOutcome, ClaimToken, DedupError, DedupStore, Hold, Loss,
    claim::{Asking, Held},
    consumer::Consumer,
};

/// How long a claim lasts, unless it is said. It is extended while a handler runs.
const CLAIM: Duration = Duration::from_secs(30);

/// What became of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "it says whether the message may be acknowledged"]
pub enum Outcome<T, E> {
    /// The handler has processed it now.
    Done(T),
    /// It was processed before, within the window. The handler did not run.
    AlreadyDone,
    /// Somebody else is processing it, so the handler did not run, or was stopped. Do not acknowledge it: if the other one
    /// fails, it must come again.
    Busy {
        /// Ask again after this time: the other one is done by then, or dead, or goes on.
        wait: Duration,
    },
    /// The handler failed. There is no mark, so the message can be tried again.
    Failed(E),
}

impl<T, E> Outcome<T, E> {
    /// Whether the message is done with: it may be acknowledged.
    pub fn is_processed(&self) -> bool {
        matches!(self, Self::Done(_) | Self::AlreadyDone)
    }
}

/// What became of a claim.
#[derive(Debug)]
#[must_use = "a claim that is dropped is given up"]
pub enum Claiming {
    /// The message is the caller's to process.
    Claimed(Claim),
    /// It was processed before, within the window.
    AlreadyDone,
    /// Somebody else is processing it.
    Busy {
        /// Ask again after this time.
        wait: Duration,
    },
}

/// Processes messages once. Cheap to clone.
#[derive(Clone)]
pub struct Dedup {
    store: Arc<dyn DedupStore>,
    consumer: Consumer,
    claim: Duration,
}

impl fmt::Debug for Dedup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { consumer, claim, .. } = self;
        let mut shown = f.debug_struct("Dedup");
        shown.field("consumer", &consumer.name).field("window", &consumer.window).field("claim", claim);
        shown.finish_non_exhaustive()
    }
}

impl Dedup {
    /// For a consumer without a name, with a window of 24 h and claims of 30 s.
    pub fn new(store: impl DedupStore) -> Self {
        Self { store: Arc::new(store), consumer: Consumer::default(), claim: CLAIM }
    }

    /// For the consumer of this name. Consumers with different names process each message for themselves; processes that share
    /// the work have the same name.
    ///
    /// # Errors
    ///
    /// If that can not be a name.
    pub fn for_consumer(self, name: &str) -> Result<Self, DedupError> {
        Ok(Self { consumer: self.consumer.named(name)?, ..self })
    }

    /// How long a message counts as processed.
    pub fn with_window(mut self, window: Duration) -> Self {
        self.consumer.window = window;
        self
    }

    /// How long a claim lasts without a sign of its process. A message whose process died is busy for so long. A process that
    /// is paused for longer may find that somebody else has run the handler too.
    pub fn with_claim(self, claim: Duration) -> Self {
        Self { claim, ..self }
    }

    /// What the names of metrics begin with: `relais_` makes `relais_dedup_total`.
    pub fn with_metrics_prefix(self, prefix: &str) -> Self {
        Self { consumer: self.consumer.with_prefix(prefix), ..self }
    }

    /// Checks at the start that a repeat finds the mark: the window must be longer than the longest time from a message's first
    /// delivery to its last retry.
    ///
    /// # Errors
    ///
    /// If it is not, or if the store can not keep a mark for so long.
    pub fn check(&self, longest_retry: Duration) -> Result<(), DedupError> {
        let window = self.consumer.window;
        if self.claim.is_zero() {
            return Err(DedupError::NoTime);
        }
        if let Some(remembers) = self.store.longest_window().filter(|longest| *longest < window) {
            return Err(DedupError::LongWindow { window, remembers });
        }
        self.consumer.check(longest_retry)
    }

    /// Runs the handler unless the message was processed within the window, or is being processed.
    ///
    /// The claim is extended while the handler runs. If somebody else has taken it over (this process was paused for longer
    /// than a claim lasts), the handler is dropped where it waits, and the message is [`Outcome::Busy`].
    ///
    /// # Errors
    ///
    /// If the store fails before the handler runs; or if the claim ran out because the store could not be reached, and the
    /// handler was stopped. In both cases there is no mark. If the store fails after the handler has succeeded, the message is
    /// [`Outcome::Done`], and the log and the metric (`unmarked`) say that a repeat would run again.
    pub async fn once<T, E, F>(&self, id: &str, handler: impl FnOnce() -> F) -> Result<Outcome<T, E>, DedupError>
    where
        F: Future<Output = Result<T, E>>,
    {
        let outcome = self.try_once(id, handler).await;
        self.consumer.metrics().count(&outcome);
        outcome
    }

    async fn try_once<T, E, F>(&self, id: &str, handler: impl FnOnce() -> F) -> Result<Outcome<T, E>, DedupError>
    where
        F: Future<Output = Result<T, E>>,
    {
        let mut claim = match self.claim(id).await? {
            Claiming::Claimed(claim) => claim,
            Claiming::AlreadyDone => return Ok(Outcome::AlreadyDone),
            Claiming::Busy { wait } => return Ok(Outcome::Busy { wait }),
        };
        // What is lost first is dropped first: the handler before its claim.
        let result = tokio::select! {
            biased;
            result = handler() => result,
            loss = claim.lost() => {
                let consumer = &*self.consumer.name;
                tracing::warn!(consumer, id, ?loss, "a handler was stopped: it has lost its claim");
                return match loss {
                    Loss::Taken => Ok(Outcome::Busy { wait: self.claim }),
                    Loss::Expired => Err(DedupError::ClaimExpired),
                };
            }
        };
        match result {
            Ok(value) => {
                self.mark(id, claim).await;
                Ok(Outcome::Done(value))
            }
            Err(error) => {
                if let Err(error) = claim.release().await {
                    tracing::debug!(consumer = &*self.consumer.name, id, %error, "a claim is left to expire");
                }
                Ok(Outcome::Failed(error))
            }
        }
    }

    async fn mark(&self, id: &str, claim: Claim) {
        let consumer = &*self.consumer.name;
        match claim.mark().await {
            Ok(Hold::Held) => return,
            Ok(Hold::Lost) => {
                tracing::warn!(consumer, id, "a message was processed, but its claim had expired and was taken over");
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(consumer, id, error, "a message was processed, but could not be marked");
            }
        }
        self.consumer.metrics().count_unmarked();
    }

    /// Claims a message, for who wants to decide by himself when it is processed. The claim is kept until it is marked, released
    /// or dropped.
    ///
    /// # Errors
    ///
    /// If the store fails, or the id can not be one.
    pub async fn claim(&self, id: &str) -> Result<Claiming, DedupError> {
        let (key, token) = (self.consumer.key(id)?, ClaimToken::generate()?);
        let asked = Instant::now();
        let held = Held { store: Arc::clone(&self.store), key, token, claim: self.claim };
        let mut asking = Asking::begin(held);
        Ok(match asking.answer().await? {
            ClaimOutcome::Claimed => Claiming::Claimed(asking.keep(self.consumer.window, asked)),
            ClaimOutcome::AlreadyDone => Claiming::AlreadyDone,
            ClaimOutcome::Busy { wait } => Claiming::Busy { wait },
        })
    }
}
