//! RabbitMQ, over AMQP 0-9-1.
//!
//! A [`Broker`] is one connection that is kept: opened when it is first needed, opened again whenever it is lost. A
//! keeper of its own (`keeper`) does that and nothing else, so that whoever publishes only ever waits or is told.
//!
//! # Two brokers: one to publish, one to consume
//!
//! A broker that runs out of memory or disk stops reading from connections that publish. What is acknowledged on such a
//! connection does not arrive either, so nothing is consumed any more, which would have freed memory. A process that
//! does both takes a [`Broker`] for each.
//!
//! # Publishing
//!
//! ```no_run
//! use relais_messaging::rabbitmq::{Broker, BrokerOptions, Publish, Queue, QueueKind};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let publisher = Broker::new("amqp://relais:secret@rabbitmq.example.org", BrokerOptions::default())?;
//! publisher.declare(&Queue { name: "orders-in".to_owned(), kind: QueueKind::Classic }).await?;
//! let orders = (1..=500).map(|order| {
//!     Publish::new("", "orders-in", format!(r#"{{"order":{order}}}"#)).message_id(format!("order-{order}"))
//! });
//! let mut unsent = Vec::new();
//! let orders: Vec<Publish> = orders.collect();
//! for (order, answer) in orders.iter().zip(publisher.publish_all(orders.clone()).await) {
//!     match answer {
//!         Ok(()) => {} // In the queue, on disk.
//!         Err(error) if error.is_away() => unsent.push(order), // Perhaps. Send it again, under the same id.
//!         Err(error) => return Err(error.into()), // In no queue.
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! - `Ok` means that the broker has confirmed: the message is in every queue that it was routed to, on disk where the queue
//!   is durable.
//! - An error that [is away](PublishError::is_away) means that nobody knows: the message may have arrived, if only the
//!   confirmation was lost. Send it again under the same [`message_id`](Publish::message_id), and receivers can drop it.
//! - Any other error means that the message is in no queue.
//!
//! Throughput comes from batches ([`Broker::publish_all`]): a message alone in a channel is a round trip.
//!
//! # Consuming
//!
//! ```no_run
//! use relais_messaging::rabbitmq::{Broker, BrokerOptions, BrokerState, ConsumeError, ConsumeOptions};
//!
//! # async fn work(_: Vec<u8>) -> bool { true }
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let reader = Broker::new("amqp://relais:secret@rabbitmq.example.org", BrokerOptions::default())?;
//! loop {
//!     // However long that takes.
//!     reader.until(BrokerState::is_connected).await;
//!     let mut consumer = match reader.consume("orders-in", ConsumeOptions::default()).await {
//!         Ok(consumer) => consumer,
//!         Err(error) if error.is_away() => continue,
//!         Err(error) => return Err(error.into()), // There is no such queue, or we may not.
//!     };
//!     let end = loop {
//!         let delivery = match consumer.next().await {
//!             Ok(delivery) => delivery,
//!             Err(end) => break end,
//!         };
//!         let settled = if work(delivery.body).await {
//!             consumer.ack(delivery.tag)
//!         } else {
//!             consumer.nack(delivery.tag, true) // Back to the queue.
//!         };
//!         if let Err(end) = settled {
//!             break end; // It will be handed out again: doing it twice must do no harm.
//!         }
//!     };
//!     match end {
//!         ConsumeError::Cancelled => return Ok(()),
//!         end if end.is_away() => {} // What was not settled is handed out again.
//!         end => return Err(end.into()),
//!     }
//! }
//! # }
//! ```
//!
//! A [`Consumer`] hands out until its channel, its connection or its queue ends; it then says which, and never hangs.
//! It does not begin again by itself: tags mean nothing in another channel, and only its user knows what is half done.
//!
//! # One batch at a time in a channel
//!
//! A channel is lent to one publish or batch at a time, and there are up to [`channels`](BrokerOptions::channels) of
//! them. So a channel that the broker closes takes nobody else's messages with it. And the broker says which message it
//! could not route, but not which confirmation is that message's: the library below attaches the one to the other by
//! guess. Within a batch they are told apart by their ids, when all are confirmed (`batch`).
//!
//! # Beside the messages
//!
//! [`Broker::declare`] makes plain durable queues and leaves others as they are; [`Broker::browse`] looks into a queue,
//! at dead letters for example; [`Broker::listen`] hears what is said to everybody at a fan-out exchange;
//! [`Management`] sets policies over HTTP; a [`topology`] declares exchanges, queues and bindings of any kind. What is not
//! here: any memory of what was not sent.

mod batch;
mod broker;
mod browse;
mod consume;
mod delivery;
mod error;
mod fanout;
mod keeper;
mod link;
mod management;
mod options;
mod publish;
mod queue;
mod sink;
mod tls;
pub mod topology;
mod wire;
mod witness;

pub use broker::{Broker, BrokerState};
pub use browse::Browser;
pub use consume::{Acker, ConsumeOptions, Consumer};
pub use delivery::{Delivery, HeaderValue};
pub use error::{BrokerError, ConsumeError, PublishError};
pub use management::{Management, ManagementError, QueueInfo};
pub use options::BrokerOptions;
pub use publish::Publish;
pub use queue::{DeclaredQueue, Queue, QueueKind};
pub use sink::RabbitMqSink;

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
        sent(|broker| async move { broker.listen("", "").await?.next().await });
    }
}
