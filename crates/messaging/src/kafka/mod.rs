//! Kafka, by way of librdkafka.
//!
//! [`KafkaSink`] publishes messages to topics, with an idempotent producer.

mod options;
mod sink;

pub use options::{KafkaSinkError, KafkaSinkOptions};
pub use sink::KafkaSink;
