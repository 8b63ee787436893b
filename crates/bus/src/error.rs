//! What can go wrong, from the user's side of the bus. What can with handlers is in `relais-push-worker`.

use std::error::Error;

use relais_push_worker::InitializeError;
use thiserror::Error;

use crate::{NameError, PayloadError};

/// Why the bus did not do what it was asked. Fits "failed to publish: …", and keeps what is underneath as its source.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BusError {
    /// It was not started, or is stopped.
    #[error("the bus is not running")]
    NotRunning,
    /// A channel or pattern is misspelt.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Channels that begin with `$` are the bus's own, and `dlq.` is where it puts dead letters.
    #[error("{0:?} is reserved")]
    Reserved(String),
    /// The payload can not be carried.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// Something that is not an event came in, or an event can not be written.
    #[error("read or write an event")]
    Envelope(#[source] serde_json::Error),
    /// A message's payload is not JSON, and a bus carries nothing else.
    #[error("the payload is not JSON")]
    NotJson(#[source] serde_json::Error),
    /// The event is larger than the transport carries.
    #[error("the event has {size} bytes, the transport carries {limit}")]
    TooLarge {
        /// Its size, as it would be sent.
        size: usize,
        /// What the transport carries.
        limit: usize,
    },
    /// There is no such dead letter, or no longer.
    #[error("no dead letter {0}")]
    NoDeadLetter(uuid::Uuid),
    /// The server underneath did not do its part.
    #[error("the transport failed to {what}")]
    Transport {
        /// What it was asked.
        what: &'static str,
        /// What its driver says.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A worker's `initialize` hook refused.
    #[error(transparent)]
    Initialize(#[from] InitializeError),
    /// A setting makes no sense.
    #[error("{0}")]
    Setting(&'static str),
}

impl BusError {
    /// For transports: `what` completes "failed to …".
    pub fn transport(what: &'static str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Transport { what, source: source.into() }
    }
}
