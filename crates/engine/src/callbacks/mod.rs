//! Callbacks: who carries them, when they are tried again, and the round that sends them.
//!
//! What is to be told lies in the store, in lanes: one for each client and endpoint. The [`post`] takes what is due, lane by
//! lane, sends it, and writes down what became of it. An endpoint that does not answer is left alone for a while; that
//! holds up its own lane and no other.

mod admin;
mod dispatcher;
mod lanes;
mod schedule;

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use relais_core::{CallbackSender, CallbackType};

pub(crate) use self::dispatcher::run;
pub use self::{admin::CallbackQuery, schedule::MAX_RETRIES};

/// Who carries which kind of callback.
#[derive(Clone, Default)]
pub struct CallbackSenders(HashMap<CallbackType, Arc<dyn CallbackSender>>);

impl CallbackSenders {
    /// From now on `callback_sender` carries callbacks of this kind.
    #[must_use]
    pub fn with(mut self, kind: CallbackType, callback_sender: Arc<dyn CallbackSender>) -> Self {
        self.0.insert(kind, callback_sender);
        self
    }

    /// Who carries callbacks of this kind, if anybody does.
    pub fn get(&self, kind: CallbackType) -> Option<&Arc<dyn CallbackSender>> {
        self.0.get(&kind)
    }
}

impl fmt::Debug for CallbackSenders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// How callbacks are sent.
#[derive(Debug, Clone)]
pub struct CallbackOptions {
    /// How long to wait before each new try, unless the service says otherwise.
    pub retries: Vec<Duration>,
    /// A callback sender's own limit for one try; what is not settled within a few of these is sent again.
    pub timeout: Duration,
    /// So many are sent at once.
    pub at_once: usize,
    /// So many are sent at once to one endpoint, for one client.
    pub per_lane: usize,
    /// After so many failures in a row, an endpoint is left alone.
    pub park_after: u32,
    /// For so long, the first time; twice as long each time.
    pub park_first: Duration,
    /// For so long at most.
    pub park_most: Duration,
    /// What waits for an endpoint that long is given up.
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
    /// What a process that sends is silent about for so long is sent by another.
    fn lease(&self) -> Duration {
        self.timeout * 3 + Duration::from_secs(5)
    }
}
