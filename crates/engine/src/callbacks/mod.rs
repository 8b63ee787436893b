//! Callbacks: senders, retries, and the dispatcher.
//!
//! Callbacks are stored in lanes: one for each client and endpoint. The [`dispatcher`] takes what is due, lane by lane,
//! sends it, and writes the outcome. An endpoint that does not answer is parked for a while; that delays its own lane
//! and no other.

mod admin;
mod dispatcher;
mod lanes;
mod schedule;

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use relais_core::{CallbackSender, CallbackType};

pub(crate) use self::dispatcher::run;
pub use self::{admin::CallbackQuery, schedule::MAX_RETRIES};

/// The senders, by kind of callback.
#[derive(Clone, Default)]
pub struct CallbackSenders(HashMap<CallbackType, Arc<dyn CallbackSender>>);

impl CallbackSenders {
    /// Registers a sender for a kind of callback.
    #[must_use]
    pub fn with(mut self, kind: CallbackType, callback_sender: Arc<dyn CallbackSender>) -> Self {
        self.0.insert(kind, callback_sender);
        self
    }

    /// The sender for a kind of callback, if any.
    pub fn get(&self, kind: CallbackType) -> Option<&Arc<dyn CallbackSender>> {
        self.0.get(&kind)
    }
}

impl fmt::Debug for CallbackSenders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The settings of callbacks.
#[derive(Debug, Clone)]
pub struct CallbackOptions {
    /// The backoff, unless the service says otherwise.
    pub retries: Vec<Duration>,
    /// A sender's timeout for one try. A callback that is not completed within a few of these is sent again.
    pub timeout: Duration,
    /// How many are sent at once.
    pub at_once: usize,
    /// How many are sent at once to one endpoint, for one client.
    pub per_lane: usize,
    /// After how many failures in a row a lane is parked.
    pub park_after: u32,
    /// For how long the first time; twice as long each time.
    pub park_first: Duration,
    /// For how long at most.
    pub park_most: Duration,
    /// How long a callback may be overdue before it fails.
    pub give_up_after: Duration,
}

impl Default for CallbackOptions {
    fn default() -> Self {
        Self {
            retries: vec![Duration::from_secs(10), Duration::from_secs(60), Duration::from_secs(360)],
            timeout: Duration::from_secs(10),
            at_once: 256,
            per_lane: 16,
            park_after: 5,
            park_first: Duration::from_secs(10),
            park_most: Duration::from_secs(300),
            give_up_after: Duration::from_secs(24 * 3600),
        }
    }
}

impl CallbackOptions {
    /// The lease of callbacks: after this time of silence another process sends them.
    fn lease(&self) -> Duration {
        self.timeout * 3 + Duration::from_secs(5)
    }
}
