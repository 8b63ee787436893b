//! The port of what makes sinks, and the span around each batch.

use std::sync::Arc;

use async_trait::async_trait;
use relais_message::{Durability, PublishOutcome, RoutedMessage, Sink};
use relais_protocol::outbox::SinkDeclaration;
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
    /// Makes a sink. It need not be connected yet. `source` says whose messages it takes: the name of an outbox, or
    /// `capture/` and the name of a capture.
    async fn open(&self, source: &str, sink: &SinkDeclaration) -> Result<Arc<dyn Sink>, SinkError>;

    /// Connects to where messages are to go, and lets go again. Publishes nothing.
    async fn check(&self, source: &str, sink: &SinkDeclaration) -> Result<(), SinkError>;
}

/// A sink with a span around each batch.
pub(crate) struct TracedSink {
    /// `outbox` and its name, or `capture` and its name.
    pub(crate) source: String,
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
            "publish", otel.name = %format_args!("publish {}", self.source), otel.kind = "producer",
            source = self.source, messages = batch.len(), confirmed = tracing::field::Empty,
        );
        let outcomes = self.sink.publish(batch).instrument(span.clone()).await;
        span.record("confirmed", outcomes.iter().filter(|outcome| outcome.is_confirmed()).count());
        outcomes
    }

    async fn close(&self) {
        self.sink.close().await;
    }
}
