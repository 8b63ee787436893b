//! Kafka, by way of librdkafka.
//!
//! A [`KafkaCluster`] says where the brokers are and how to get in. [`KafkaSink`] publishes messages to topics,
//! [`KafkaProducer`] writes records, [`TransactionalProducer`] writes several of them, and consumed offsets, or nothing.

mod client;
mod cluster;
mod consumer;
mod exactly_once;
mod options;
mod producer;
mod record;
mod sink;
mod transaction;

pub use cluster::{KafkaCluster, KafkaSettingsError, Sasl};
pub use consumer::{
    CommitPolicy, KafkaConsumer, KafkaConsumerOptions, KafkaConsumerStatus, KafkaDelivery, KafkaEvent, PartitionStatus,
    Partitions, RecordKey, StartAt, dead_letter_header,
};
pub use exactly_once::{ExactlyOnceError, ExactlyOnceOptions, ExactlyOnceWorker};
pub use options::KafkaSinkOptions;
pub use producer::{Acks, Compression, Delivered, KafkaProducer, ProduceError, ProducerOptions};
pub use record::{KafkaRecord, NewRecord, RecordHeaders};
pub use sink::KafkaSink;
pub use transaction::{ConsumedOffsets, Transaction, TransactionError, TransactionOptions, TransactionalProducer};
