//! Clients of message brokers, as a service needs them: they connect when they are needed, come back by themselves, and
//! tell apart what is worth another try from what is not.
//!
//! [`rabbitmq`] is a client and its guide, and a [`Sink`](relais_message::Sink). `redis` (feature `redis`) is a sink on Redis
//! Streams, `kafka` (feature `kafka`) one on Kafka topics. Nothing here knows tasks or callbacks; whoever uses it does.
//!
//! ```no_run
//! use relais_messaging::rabbitmq::{Broker, BrokerOptions, Publish};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let broker = Broker::new("amqps://relais:secret@rabbitmq.example.org/orders", BrokerOptions::default())?;
//! let message = Publish::new("events", "order.paid", br#"{"order":7}"#.to_vec()).message_id("order-7");
//! broker.publish(message).await?; // The broker has it, on disk.
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "kafka")]
pub mod kafka;
// Its tests need no broker and no client: they run with all others.
#[cfg(any(feature = "kafka", test))]
mod offsets;
pub mod rabbitmq;
#[cfg(feature = "redis")]
pub mod redis;
