//! Why a handler did not do its work, and what that asks of the worker.

use std::{any::Any, error::Error, fmt, time::Duration};

use thiserror::Error;

/// Why a handler did not do its work, and whether it makes sense to try again.
///
/// Any error becomes one by `?`, and is then *retryable*. Deliberately no [`Error`] itself, which makes that possible.
///
/// ```
/// use relais_push_worker::SubscriberError;
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
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Retryable,
    Fatal,
    Busy,
}

impl SubscriberError {
    /// May work the next time.
    pub fn retryable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { source: source.into(), kind: Kind::Retryable }
    }

    /// Will never work; to the dead letters at once.
    pub fn fatal(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { source: source.into(), kind: Kind::Fatal }
    }

    /// Somebody else works on this message now. A push worker lets it wait, in its place in the order, and asks again. This
    /// is neither an error nor a retry. Handlers outside a push worker count it as an error.
    pub fn busy(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { source: source.into(), kind: Kind::Busy }
    }

    /// Whether it makes sense to try again.
    pub fn is_retryable(&self) -> bool {
        self.kind != Kind::Fatal
    }

    /// Whether somebody else works on the message.
    pub fn is_busy(&self) -> bool {
        self.kind == Kind::Busy
    }

    /// The error underneath.
    pub fn source(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.source
    }

    /// Of a handler that panicked: it may work the next time.
    pub fn panicked(panic: &(dyn Any + Send)) -> Self {
        Self::retryable(Panicked(panic_text(panic).to_owned()))
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
        write!(f, "{}", chain(&*self.source))
    }
}

impl fmt::Debug for SubscriberError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Retryable => "retryable",
            Kind::Fatal => "fatal",
            Kind::Busy => "busy",
        };
        write!(f, "{kind}: {self}")
    }
}

#[derive(Debug, Error)]
#[error("the handler panicked: {0}")]
struct Panicked(String);

/// What a panic says.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("(without a message)")
}

/// A handler took longer than its `handler_timeout`.
#[derive(Debug, Error)]
#[error("the handler took longer than {0:?}")]
pub(crate) struct TimedOut(pub(crate) Duration);

/// The `initialize` hook refused, so the worker does not start.
#[derive(Debug, Error)]
#[error("initialize the worker: {0}")]
pub struct InitializeError(pub SubscriberError);

/// An error with what is underneath, for a log.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
