//! The port for where messages go.

use async_trait::async_trait;

use crate::Message;

/// A message and where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutedMessage {
    /// The topic, exchange, stream, channel, URL or service.
    pub destination: String,
    /// RabbitMQ's routing key. Sinks without one ignore it.
    pub routing_key: String,
    /// The message.
    pub message: Message,
}

/// What is safe once a sink has confirmed a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Somebody has it, perhaps in memory only.
    HandedOver,
    /// It is on a disk: it survives a crash of the server that confirmed it.
    Disk,
    /// It is on several servers: it survives the loss of one.
    Replicated,
}

/// What became of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishOutcome {
    /// The sink has it, as durably as it declares.
    Confirmed,
    /// The sink does not have it and says why: too large, no such destination, not allowed. The next try may be answered
    /// otherwise, once somebody has changed something.
    Refused(String),
    /// Nobody knows whether the sink has it: the connection was lost, or the answer was late. The next try may repeat it.
    Unknown(String),
    /// It was not sent, because an earlier message of its key in the same batch was not confirmed.
    NotSent,
}

impl PublishOutcome {
    /// Whether the sink has it.
    pub fn is_confirmed(&self) -> bool {
        matches!(self, Self::Confirmed)
    }
}

/// Where messages go.
///
/// # Contract
///
/// - [`publish`](Self::publish) answers once per message, in the order of the batch. It does not fail as a whole.
/// - Messages of one key and destination arrive in the order of the batch. Once one of them is not confirmed, the later ones
///   are not sent ([`PublishOutcome::NotSent`]). [`crate::in_waves`] does that for a sink that cannot do better.
/// - A message that is [`Confirmed`](PublishOutcome::Confirmed) survives what [`durability`](Self::durability) promises.
/// - [`Refused`](PublishOutcome::Refused) is certain: the message has not arrived, and never will by that call.
/// - A call ends within the sink's own deadline, even if the server hangs. A call that is dropped may still deliver.
/// - Calls may overlap. Order holds within a call only: whoever keeps order between calls waits for the one before.
/// - After [`close`](Self::close) every message is refused.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// What a confirmation means.
    fn durability(&self) -> Durability;

    /// Publishes a batch, and says what became of each message.
    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome>;

    /// Lets go of connections.
    async fn close(&self);
}
