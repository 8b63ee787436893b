//! Processing a message once: a delivery that comes again within a window does nothing.
//!
//! Brokers deliver at least once: after a lost acknowledgement, a crash or a rebalance the same message comes again.
//! [`Dedup::once`] runs a handler unless the message's id was processed within the window (24 h).
//!
//! ```
//! use relais_dedup::{Dedup, MemoryDedup, Outcome};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), relais_dedup::DedupError> {
//! let dedup = Dedup::new(MemoryDedup::default()).for_consumer("billing")?;
//! let bill = || async { Ok::<_, std::io::Error>("billed") };
//!
//! assert!(matches!(dedup.once("order-7", bill).await?, Outcome::Done("billed")));
//! assert!(matches!(dedup.once("order-7", bill).await?, Outcome::AlreadyDone));
//! # Ok(())
//! # }
//! ```
//!
//! Before the handler runs, the id is **claimed**, so that nobody else runs it at the same time: to others it is *busy*. When the
//! handler has succeeded, the id is **marked**. A handler that fails, panics or is dropped leaves no mark and gives up its
//! claim. A process that dies leaves a claim that expires. A running handler keeps its claim; one that has lost it is stopped.
//!
//! The folder by file: `dedup` has what a program calls, `claim` a claim that is kept, `port` what a store must do, `memory`
//! the store without a server. What is deliberately not here: any consumer of messages, and what becomes of a message
//! that is busy or has failed.

mod bloom;
mod claim;
mod consumer;
mod dedup;
mod error;
mod memory;
mod port;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod sql;
mod telemetry;

#[cfg(feature = "redis")]
pub use crate::redis::RedisDedup;
pub use bloom::{BloomDedup, BloomOptions, MemoryBloom, SeenFilter};
#[cfg(feature = "redis")]
pub use bloom::{RedisBloom, redis_or_memory_bloom};
pub use claim::{Claim, Loss};
pub use dedup::{Claiming, Dedup, Outcome};
pub use error::DedupError;
pub use memory::MemoryDedup;
pub use port::{ClaimOutcome, ClaimToken, DedupKey, DedupStore, Hold};
#[cfg(feature = "postgres")]
pub use sql::PostgresDedup;
#[cfg(feature = "sqlite")]
pub use sql::SqliteDedup;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use sql::{DedupConnection, DedupTable, Dialect, Mark, SqlDedup, TransactionDedup};
