//! Task brokers: drivers of the `TaskBroker` port, which publish tasks to a message broker and consume the messages of
//! workers.
//!
//! A task broker knows queues, and not the content of a message, which belongs to the engine. There is one:
//! [`RabbitMq`].

mod dead_letters;
mod error;
mod follow;
mod policy;
mod rabbitmq;

pub use rabbitmq::{RabbitMq, RabbitMqError, RabbitMqOptions};
