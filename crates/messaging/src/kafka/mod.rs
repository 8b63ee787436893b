//! Kafka, by way of librdkafka.
//!
//! A [`KafkaCluster`] says where the brokers are and how to get in. [`KafkaSink`] publishes messages to topics,
//! [`KafkaProducer`] writes records, [`TransactionalProducer`] writes several of them, and consumed offsets, or nothing.

mod client;
mod cluster;
mod options;
mod producer;
mod record;
mod sink;
mod transaction;

pub use cluster::{KafkaCluster, KafkaSettingsError, Sasl};
pub use options::KafkaSinkOptions;
pub use producer::{Acks, Compression, Delivered, KafkaProducer, ProduceError, ProducerOptions};
pub use record::{NewRecord, RecordHeaders};
pub use sink::KafkaSink;
pub use transaction::{ConsumedOffsets, Transaction, TransactionError, TransactionOptions, TransactionalProducer};
