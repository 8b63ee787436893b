//! What can go wrong, from the user's side of the bus and from the handler's.

use std::{error::Error, fmt};

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
    #[error("initialize the worker: {0}")]
    Initialize(SubscriberError),
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

/// Why a handler did not do its work, and whether it makes sense to try again.
///
/// Any error becomes one by `?`, and is then *retryable*. Deliberately no [`Error`] itself, which makes that possible.
///
/// ```
/// use relais_bus::SubscriberError;
///
/// fn handle(amount: &str) -> Result<u32, SubscriberError> {
///     let amount: u32 = amount.parse().map_err(SubscriberError::fatal)?; // Will never parse.
///     let _ledger = std::fs::metadata("/")?; // May work the next time.
///     Ok(amount)
/// }
/// assert!(!handle("many").unwrap_err().is_retryable());
/// ```
pub struct SubscriberError {
    source: Box<dyn Error + Send + Sync>,
    retryable: bool,
}

impl SubscriberError {
    /// May work the next time.
    pub fn retryable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { source: source.into(), retryable: true }
    }

    /// Will never work; to the dead letters at once.
    pub fn fatal(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { source: source.into(), retryable: false }
    }

    /// Whether it makes sense to try again.
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// The error underneath.
    pub fn source(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.source
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for SubscriberError {
    fn from(error: E) -> Self {
        Self::retryable(error)
    }
}

impl fmt::Display for SubscriberError {
    /// With what is underneath: this ends up in a dead letter, where nobody can ask further.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source)?;
        let mut next = self.source.source();
        while let Some(error) = next {
            write!(f, ": {error}")?;
            next = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for SubscriberError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.retryable { "retryable" } else { "fatal" };
        write!(f, "{kind}: {self}")
    }
}
