//! What can be set about a push worker, whatever feeds it.

use std::{fmt, sync::Arc, time::Duration};

use relais_dedup::Dedup;

use crate::{Hooks, Order, hooks::NoHooks};

/// What orders a message: messages of the same key are handled one after the other.
pub type KeyOf<M> = Arc<dyn Fn(&M) -> Option<String> + Send + Sync>;

/// The settings of a push worker. Builders of workers hold one and have its methods
/// ([`worker_settings!`](crate::worker_settings)).
#[derive(Clone)]
#[non_exhaustive]
#[must_use]
pub struct WorkerSettings<M> {
    /// The worker's name, its label in metrics and dead letters.
    pub name: String,
    /// How many messages at the same time.
    pub concurrency: usize,
    /// Which messages wait for each other.
    pub order: Order,
    /// What orders them, if not what the consumer says.
    pub key: Option<KeyOf<M>>,
    /// How often a retryable error is retried.
    pub retries: u32,
    /// What 2^n is multiplied with to be the pause before the nth retry.
    pub retry_unit: Duration,
    /// The longest pause before a retry.
    pub max_retry_pause: Duration,
    /// The pause before a message is looked at again that was busy.
    pub busy_pause: Duration,
    /// How long a handler may run.
    pub handler_timeout: Option<Duration>,
    /// After how long a warning says that a handler still runs.
    pub slow_after: Duration,
    /// How long a stop waits for what was taken.
    pub stop_timeout: Duration,
    /// Who knows which messages were handled before.
    pub dedup: Option<Dedup>,
    /// What is done around the handling of messages.
    pub hooks: Arc<dyn Hooks<M>>,
    /// What the names of the metrics begin with.
    pub metrics_prefix: String,
}

/// Pauses that are added up one by one. The ones behind them are the longest.
const MOST_PAUSES: u32 = 64;

impl<M: Send + Sync + 'static> WorkerSettings<M> {
    /// The settings of a worker of that name, which is its label in metrics and dead letters.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            concurrency: 1,
            order: Order::None,
            key: None,
            retries: 3,
            retry_unit: Duration::from_secs(1),
            max_retry_pause: Duration::from_secs(3600),
            busy_pause: Duration::from_secs(1),
            handler_timeout: None,
            slow_after: Duration::from_secs(60),
            stop_timeout: Duration::from_secs(30),
            dedup: None,
            hooks: Arc::new(NoHooks),
            metrics_prefix: String::new(),
        }
    }

    crate::worker_settings!(M);

    /// The pause before the nth retry: 2^n units, up to the longest.
    pub(crate) fn retry_pause(&self, retry: u32) -> Duration {
        self.retry_unit.saturating_mul(2_u32.saturating_pow(retry)).min(self.max_retry_pause)
    }

    /// How long after its first delivery a message is handled for the last time: all pauses, and all executions before, each
    /// as long as it may be.
    pub(crate) fn longest_retry(&self) -> Duration {
        let pauses = (1..=self.retries.min(MOST_PAUSES)).map(|retry| self.retry_pause(retry));
        let rest = self.max_retry_pause.saturating_mul(self.retries.saturating_sub(MOST_PAUSES));
        let handlers = self.handler_timeout.unwrap_or_default().saturating_mul(self.retries);
        pauses.fold(rest.saturating_add(handlers), Duration::saturating_add)
    }
}

impl<M> fmt::Debug for WorkerSettings<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerSettings").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Writes the methods of [`WorkerSettings`] into the `impl` of a builder that holds one, so that all builders of push workers
/// have the same: the type of messages, then the field.
#[macro_export]
macro_rules! worker_settings {
    ($message:ty $(, $field:ident)?) => {
        /// How many messages at the same time; 1 unless set.
        pub fn concurrency(mut self, messages: usize) -> Self {
            self$(.$field)?.concurrency = messages.max(1);
            self
        }

        /// Which messages wait for each other; none unless set.
        pub fn order(mut self, order: $crate::Order) -> Self {
            self$(.$field)?.order = order;
            self
        }

        /// Orders messages by what this function says of them, instead of by their own key.
        pub fn key_by(mut self, key: impl Fn(&$message) -> Option<String> + Send + Sync + 'static) -> Self {
            self$(.$field)?.order = $crate::Order::Key;
            self$(.$field)?.key = Some(::std::sync::Arc::new(key));
            self
        }

        /// How often a retryable error is retried; 3 times unless set, after 2, 4 and 8 seconds.
        pub fn retries(mut self, retries: u32) -> Self {
            self$(.$field)?.retries = retries;
            self
        }

        /// What 2^n is multiplied with to be the pause before the nth retry; a second unless set.
        pub fn retry_unit(mut self, unit: ::std::time::Duration) -> Self {
            self$(.$field)?.retry_unit = unit;
            self
        }

        /// The longest pause before a retry; an hour unless set.
        pub fn max_retry_pause(mut self, pause: ::std::time::Duration) -> Self {
            self$(.$field)?.max_retry_pause = pause;
            self
        }

        /// How long a message waits that is busy (`SubscriberError::busy`); a second unless set.
        pub fn busy_pause(mut self, pause: ::std::time::Duration) -> Self {
            self$(.$field)?.busy_pause = pause;
            self
        }

        /// How long a handler may run; for ever unless set. One that takes longer is cut off at its next `await`, which is a
        /// retryable error.
        pub fn handler_timeout(mut self, timeout: ::std::time::Duration) -> Self {
            self$(.$field)?.handler_timeout = Some(timeout);
            self
        }

        /// After how long a warning says that a handler still runs; a minute unless set. A worker all of whose places are
        /// taken by such handlers is not healthy.
        pub fn slow_after(mut self, time: ::std::time::Duration) -> Self {
            self$(.$field)?.slow_after = time;
            self
        }

        /// How long a stop waits for what was taken; 30 s unless set.
        pub fn stop_timeout(mut self, timeout: ::std::time::Duration) -> Self {
            self$(.$field)?.stop_timeout = timeout;
            self
        }

        /// Handles each message once: one that was handled before, within the window of `dedup`, is settled without its handler.
        /// One that is being handled elsewhere waits, and so does one of which nobody knows because the store is away. Marks
        /// are of the consumer that `dedup` names ([`for_consumer`]($crate::Dedup::for_consumer)): two workers that both
        /// want each message need two names. The worker does not start if a message could be retried after the window.
        pub fn once(mut self, dedup: $crate::Dedup) -> Self {
            self$(.$field)?.dedup = Some(dedup);
            self
        }

        /// What is done around the handling of messages.
        pub fn hooks(mut self, hooks: impl $crate::Hooks<$message>) -> Self {
            self$(.$field)?.hooks = ::std::sync::Arc::new(hooks);
            self
        }
    };
}
