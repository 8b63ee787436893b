//! What can go wrong with deduplication.

use std::time::Duration;

/// Why nobody knows whether a message was processed, or why deduplication can not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DedupError {
    /// A message without an id, or with one that can not be stored.
    #[error("a message id has 1 to {longest} bytes, and no zero byte")]
    Id {
        /// How long an id may be.
        longest: usize,
    },
    /// The name can not be one.
    #[error("a consumer's name has 1 to {longest} bytes, and no zero byte")]
    Consumer {
        /// How long a name may be.
        longest: usize,
    },
    /// A repeat would come when the mark is gone.
    #[error(
        "the window of deduplication is {window:?}, and a message may be retried {longest_retry:?} after it was first delivered: \
         the window must be longer"
    )]
    ShortWindow {
        /// How long a message counts as processed.
        window: Duration,
        /// The longest time from a message's first delivery to its last retry.
        longest_retry: Duration,
    },
    /// The table's name can not be used.
    #[error(
        "`{0}` is not the name of a table: write name or schema.name, each of at most 40 letters, digits and underscores"
    )]
    Table(String),
    /// A mark would be gone before the window is over.
    #[error("the window of deduplication is {window:?}, and the Bloom filter remembers for {remembers:?}")]
    LongWindow {
        /// How long a message counts as processed.
        window: Duration,
        /// How long the store remembers.
        remembers: Duration,
    },
    /// A filter in the process was to be the only memory.
    #[error("a Bloom filter that is lost with the process can not be trusted: use one in a server that has BF.*")]
    ForgetfulFilter,
    /// The server lacks the commands of Bloom filters.
    #[error("the server has no Bloom filters (BF.*): it needs Redis 8, RedisBloom or valkey-bloom")]
    NoBloom,
    /// A duration of zero.
    #[error("the window and the duration of a claim must be longer than zero")]
    NoTime,
    /// A claim ran out while its handler ran, because the store could not be reached. The handler was stopped.
    #[error("the claim ran out while the store could not be reached, and its handler was stopped")]
    ClaimExpired,
    /// The store in memory has as many ids as it may have.
    #[error("{0} ids are stored, and no more may be")]
    Full(usize),
    /// The store failed.
    #[error("the store of processed messages failed")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl DedupError {
    /// An error of a store.
    pub fn store(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Store(error.into())
    }
}
