//! The port of what makes sinks, and the span around each batch.

use std::sync::Arc;

use async_trait::async_trait;
use relais_message::{Durability, PublishOutcome, RoutedMessage, Sink};
use relais_protocol::outbox::OutboxDeclaration;
use tracing::Instrument as _;

/// Why there is no sink.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SinkError {
    /// What is declared can not be used.
    #[error("{message}")]
    Declaration {
        /// Which key, below `sink`: `rabbitmq/url`.
        field: String,
        /// What is wrong, and what to do.
        message: String,
    },
    /// The server is away, or refuses the connection.
    #[error("{message}")]
    Away {
        /// Which key, below `sink`.
        field: String,
        /// Why.
        message: String,
    },
}

/// Makes sinks of declarations. Declarations come with their secrets in clear.
#[async_trait]
pub trait SinkFactory: Send + Sync + 'static {
    /// Makes the sink of an outbox. It need not be connected yet.
    async fn open(&self, outbox: &OutboxDeclaration) -> Result<Arc<dyn Sink>, SinkError>;

    /// Connects to where the messages of an outbox are to go, and lets go again. Publishes nothing.
    async fn check(&self, outbox: &OutboxDeclaration) -> Result<(), SinkError>;
}

/// A sink with a span around each batch.
pub(crate) struct TracedSink {
    pub(crate) outbox: String,
    pub(crate) sink: Arc<dyn Sink>,
}

#[async_trait]
impl Sink for TracedSink {
    fn durability(&self) -> Durability {
        self.sink.durability()
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        // The messages keep the trace context of whoever wrote them: a batch has those of many.
        let span = tracing::debug_span!(
            "publish", otel.name = %format_args!("publish outbox {}", self.outbox), otel.kind = "producer",
            outbox = self.outbox, messages = batch.len(), confirmed = tracing::field::Empty,
        );
        let outcomes = self.sink.publish(batch).instrument(span.clone()).await;
        span.record("confirmed", outcomes.iter().filter(|outcome| outcome.is_confirmed()).count());
        outcomes
    }

    async fn close(&self) {
        self.sink.close().await;
    }
}
