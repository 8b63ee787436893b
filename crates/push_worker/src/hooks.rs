//! What a worker's owner can have done around the handling of messages.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{PushWorkerReport, SubscriberError};

/// Called at the turns of the life of a worker whose messages are of type `M`. Each does nothing unless written.
#[async_trait]
pub trait Hooks<M: Send + Sync + 'static>: Send + Sync + 'static {
    /// Before it subscribes. An error, and it does not start.
    async fn initialize(&self) -> Result<(), SubscriberError> {
        Ok(())
    }

    /// It is subscribed and takes messages.
    async fn started(&self) {}

    /// It takes no more and finishes what it has.
    async fn stopping(&self) {}

    /// It has ended.
    async fn stopped(&self, report: &PushWorkerReport<M>) {
        let _ = report;
    }

    /// The handler failed; what happens to the message now?
    async fn error(&self, failed: &FailedMessage<'_, M>) -> ErrorDecision {
        let _ = failed;
        ErrorDecision::default()
    }
}

/// A message whose handler failed.
#[derive(Debug)]
#[non_exhaustive]
pub struct FailedMessage<'a, M> {
    /// The message.
    pub message: &'a Arc<M>,
    /// Why.
    pub error: &'a SubscriberError,
    /// The worker's name.
    pub worker: &'a str,
    /// How often it was retried before.
    pub retries: u32,
    /// The number of the retry that follows by the worker's settings; `None` if they leave none.
    pub retry: Option<u32>,
}

/// What an [error hook](Hooks::error) wants done with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ErrorDecision {
    /// What the worker's settings say: a retryable error is retried as often as they allow, then the message becomes a dead
    /// letter.
    #[default]
    BySettings,
    /// Retry, whatever the error is and however often it was retried before.
    Retry,
    /// No further retry: to the dead letters.
    DeadLetter,
    /// Forget it. It is counted as failed.
    Drop,
}

/// For workers without hooks.
pub(crate) struct NoHooks;

impl<M: Send + Sync + 'static> Hooks<M> for NoHooks {}
