//! Kafka, by way of librdkafka.
//!
//! A [`KafkaCluster`] says where the brokers are and how to get in. [`KafkaSink`] publishes messages to topics,
//! [`KafkaProducer`] writes records, [`TransactionalProducer`] writes several of them, and consumed offsets, or nothing.
//!
//! Topics are read by [`KafkaPushWorker`]s: handlers side by side, with order per key, retries and dead letters. Underneath is
//! the [`KafkaConsumer`], a member of a group that commits by watermark. [`ExactlyOnceWorker`] makes records of records, in
//! transactions.

mod client;
mod cluster;
mod consumer;
mod exactly_once;
mod options;
mod producer;
mod record;
mod replay;
mod sink;
mod transaction;
mod worker;

pub use cluster::{KafkaCluster, KafkaSettingsError, Sasl};
pub use consumer::{
    CommitPolicy, KafkaBatch, KafkaConsumer, KafkaConsumerOptions, KafkaConsumerStatus, KafkaDelivery, KafkaEvent,
    KafkaMonitor, PartitionStatus, Partitions, RecordKey, StaleBatch, StartAt, dead_letter_header,
};
pub use exactly_once::{ExactlyOnceError, ExactlyOnceOptions, ExactlyOnceWorker};
pub use options::KafkaSinkOptions;
pub use producer::{Acks, Compression, Delivered, KafkaProducer, ProduceError, ProducerOptions};
pub use record::{KafkaRecord, NewRecord, RecordHeaders};
pub use replay::{DeadLetter, DeadLetters, ReplayError};
pub use sink::KafkaSink;
pub use transaction::{ConsumedOffsets, Transaction, TransactionError, TransactionOptions, TransactionalProducer};
pub use worker::{Codec, DecodeError, KafkaPushWorker, KafkaPushWorkerBuilder, KafkaWorkerError, TypedRecord};
