//! What a worker's owner can have done around the handling of events.

use async_trait::async_trait;

use super::PushWorkerReport;
use crate::{Event, SubscriberError};

/// Called at the turns of a worker's life. Each does nothing unless written.
#[async_trait]
pub trait Hooks: Send + Sync + 'static {
    /// Before it subscribes. An error, and it does not start.
    async fn initialize(&self) -> Result<(), SubscriberError> {
        Ok(())
    }

    /// It is subscribed and takes events.
    async fn started(&self) {}

    /// It takes no more and finishes what it has.
    async fn stopping(&self) {}

    /// It has ended.
    async fn stopped(&self, report: &PushWorkerReport) {
        let _ = report;
    }

    /// The handler failed. `retry` is the number of the try that follows; `None` if this was the last.
    async fn error(&self, event: &Event, error: &SubscriberError, retry: Option<u32>) {
        let _ = (event, error, retry);
    }
}

/// For workers without hooks.
pub(crate) struct NoHooks;

impl Hooks for NoHooks {}
