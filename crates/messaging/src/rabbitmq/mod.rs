//! RabbitMQ, over AMQP 0-9-1.
//!
//! A [`Broker`] is one connection that is kept: opened when it is first needed, opened again whenever it is lost. A keeper
//! of its own (`keeper`) does that and nothing else, so that whoever publishes only ever waits or is told.
//!
//! # What a publish promises
//!
//! - `Ok` means that the broker has confirmed: the message is in every queue that it was routed to, on disk where the queue
//!   is durable.
//! - An error that [is away](PublishError::is_away) means that nobody knows: the message may have arrived, if only the
//!   confirmation was lost. Send it again under the same [`message_id`](Publish::message_id), and receivers can drop it.
//! - Any other error means that the message is in no queue.
//!
//! # One message at a time in a channel
//!
//! A channel is lent to one publish at a time, and there are up to [`channels`](BrokerOptions::channels) of them. So a
//! channel that the broker closes (because an exchange does not exist) takes nobody else's message with it. And the broker
//! says which message it could not route, but not which confirmation is that message's: with several under way in a channel,
//! the library below attaches the one to the other by guess, and guesses wrong now and then.
//!
//! What is not here: consuming, declaring, and any memory of what was not sent.

mod batch;
mod broker;
mod browse;
mod consume;
mod delivery;
mod error;
mod keeper;
mod link;
mod management;
mod options;
mod publish;
mod queue;
mod tls;
mod wire;

pub use broker::{Broker, BrokerState};
pub use browse::Browser;
pub use consume::{Acker, ConsumeOptions, Consumer};
pub use delivery::{Delivery, HeaderValue};
pub use error::{BrokerError, ConsumeError, PublishError};
pub use management::{Management, ManagementError, QueueFacts};
pub use options::BrokerOptions;
pub use publish::Publish;
pub use queue::{Declared, Queue, QueueKind};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_can_be_awaited_in_a_task_of_its_own() {
        fn sent<T: Send>(_: impl FnOnce(Broker) -> T) {}
        sent(|broker| async move { broker.publish_all(Vec::new()).await });
        sent(|broker| async move { broker.declare(&Queue { name: String::new(), kind: QueueKind::Classic }).await });
        sent(|broker| async move { broker.consume("", ConsumeOptions::default()).await?.next_batch(1).await });
        sent(|broker| async move { broker.consume("", ConsumeOptions::default()).await?.cancel().await });
        sent(|broker| async move { broker.browse("").await?.next().await });
    }
}
