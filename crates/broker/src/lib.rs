//! Task brokers: they take tasks to workers by way of a message broker, and bring back what the workers say.
//!
//! A task broker knows queues, and nothing of what is in a message: that is the engine's. What there is: [`RabbitMq`].

mod error;
mod follow;
mod letters;
mod policy;
mod rabbitmq;

pub use rabbitmq::{RabbitMq, RabbitMqError, RabbitMqOptions};
