//! Kafka: the sink, producers, transactions and consumers.
//!
//! What needs a broker that can be killed, or real groups and transactions, starts one: see `relais_testkit::kafka`. Without a
//! program to start, those tests say by name that they were not run. The others use the mock cluster of librdkafka, which can
//! be told to fail.

#![expect(clippy::unwrap_used, reason = "tests")]

mod broker;
mod chaos;
mod consumer;
mod consumer_suite;
mod exactly_once;
mod kafkajs;
mod producer;
mod settings;
mod sink;
mod transaction;
mod worker;
