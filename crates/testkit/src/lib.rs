//! What Relais's tests stand on: real private servers that a test may kill, and faults on demand.
//!
//! Nothing here imitates a server. PostgreSQL and RabbitMQ are the real ones, on free loopback ports, with
//! their own temporary data; the network between two processes is cut by a proxy, not by a mock. When a
//! server's program is missing, the test **fails** and the message says which package brings it:
//! a test that skips itself proves nothing and looks as if it did.
//!
//! Everything that is started here dies with the process that started it, even when that process
//! is killed: a small guardian process sees to it.
//!
//! This crate is a dev-dependency; no crate that ships may depend on it (`cargo xtask check`).
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use relais_testkit::{PostgresServer, TestDatabase};
//!
//! // A database of one's own, on a server that the tests share:
//! let database = TestDatabase::create().await?;
//! println!("{}", database.url());
//!
//! // A server of one's own, to be killed:
//! let mut server = PostgresServer::options().fsync(true).start().await?;
//! server.kill9()?;
//! server.restart().await?;
//! # Ok(())
//! # }
//! ```

pub mod audience_suite;
pub mod broker_suite;
pub mod consumer_suite;
mod database;
pub mod dedup_suite;
mod faked_clock;
pub mod faulty;
mod group;
mod guardian;
pub mod kafka;
mod lifecycle;
mod memory_sink;
pub mod notification_suite;
mod outage;
mod port;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod push_suite;
pub mod rabbitmq;
mod random;
pub mod redis;
pub mod relay_suite;
pub mod sink_suite;
pub mod store_suite;

pub use database::{POSTGRES_VARIABLE, TestDatabase};
pub use faked_clock::FakedClock;
pub use faulty::{FaultCount, FaultPlan, Faulty, break_off};
pub use kafka::{KAFKA_VARIABLE, KafkaServer};
pub use memory_sink::MemorySink;
pub use outage::OutageDatabase;
pub use port::free_port;
pub use postgres::{PostgresOptions, PostgresServer};
pub use process::ServerProcess;
pub use proxy::TcpProxy;
pub use rabbitmq::{RABBITMQ_VARIABLE, RabbitMqServer, RabbitMqServerOptions, TakenMessage, TestVhost};
pub use random::Random;
pub use redis::RedisServer;
