//! A Bloom filter in front of a store: it says *not seen* for certain, and *maybe seen* with a small share of false answers.
//!
//! **The filter decides nothing, unless it is told to.** A *maybe seen* is looked up in the store, and whoever was *not seen* is
//! claimed in the store, which finds a mark there may be. So a filter that is empty after a restart, that does not know the marks
//! of other processes, or that can not be reached costs a look-up, and never a second run. What it saves: a repeat that the
//! filter knows is answered by one read, where a claim that fails takes a write and a read; and a new id is claimed without a
//! read before it.
//!
//! **[`BloomDedup::trusting`] makes the filter the only memory**, for so many ids that marks would not fit: the store keeps
//! claims, which end with their handlers, and the filter keeps marks, in some 16 bits each. What that gives up:
//!
//! - a *maybe seen* that is false is a message that is never processed: one in a thousand, by default;
//! - a filter that is lost lets every repeat run again. A filter in a process would be lost with each restart, so only
//!   one that all processes share can be trusted.
//!
//! The id is claimed before the trusted filter is asked, and added before the claim is released: so of two deliveries at once
//! the second finds either the claim or the id.
//!
//! The folder by file: `bits` is a filter, `memory` has two of them in turn in a process, `redis` the same with `BF.*`.

mod bits;
mod memory;
#[cfg(feature = "redis")]
mod redis;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

pub use self::memory::MemoryBloom;
#[cfg(feature = "redis")]
pub use self::redis::{RedisBloom, redis_or_memory_bloom};
use crate::{ClaimOutcome, ClaimToken, DedupError, DedupKey, DedupStore, Hold};

/// How a filter is made. It has two generations: ids are added to the younger one, which becomes the older one after a window,
/// and each id is remembered for at least a window, and at most two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BloomOptions {
    /// So many ids in a window.
    pub ids: u64,
    /// The share of new ids that are *maybe seen*, with so many ids in both generations.
    pub false_positives: f64,
    /// How long an id is remembered at least.
    pub window: Duration,
}

impl Default for BloomOptions {
    fn default() -> Self {
        Self { ids: 10_000_000, false_positives: 0.001, window: Duration::from_secs(24 * 3600) }
    }
}

impl BloomOptions {
    /// Each of the two generations has half of the false answers.
    fn of_a_generation(self) -> f64 {
        (self.false_positives / 2.0).clamp(1e-9, 0.5)
    }
}

/// Remembers ids, more or less.
#[async_trait]
pub trait SeenFilter: Send + Sync + 'static {
    /// False: it was not added within the window. True: it was, or the answer is one of the false ones.
    async fn maybe_seen(&self, key: &DedupKey) -> Result<bool, DedupError>;

    /// Remembers an id for at least a window.
    async fn add(&self, key: &DedupKey) -> Result<(), DedupError>;

    /// How long an id is remembered if the filter is kept and all processes ask the same one; none where it is lost with
    /// the process.
    fn remembers(&self) -> Option<Duration>;
}

#[async_trait]
impl<F: SeenFilter + ?Sized> SeenFilter for Arc<F> {
    async fn maybe_seen(&self, key: &DedupKey) -> Result<bool, DedupError> {
        (**self).maybe_seen(key).await
    }

    async fn add(&self, key: &DedupKey) -> Result<(), DedupError> {
        (**self).add(key).await
    }

    fn remembers(&self) -> Option<Duration> {
        (**self).remembers()
    }
}

/// A store behind a Bloom filter.
#[derive(Debug, Clone)]
pub struct BloomDedup<S, F> {
    store: S,
    filter: F,
    trusts: bool,
}

impl<S: DedupStore, F: SeenFilter> BloomDedup<S, F> {
    /// The store decides, the filter saves it work.
    pub fn new(store: S, filter: F) -> Self {
        Self { store, filter, trusts: false }
    }

    /// The filter decides what was processed, and the store keeps claims only. Some messages are never processed: the module
    /// says how many, and what else is given up.
    ///
    /// # Errors
    ///
    /// If the filter is lost with the process.
    pub fn trusting(self) -> Result<Self, DedupError> {
        match self.filter.remembers() {
            Some(_) => Ok(Self { trusts: true, ..self }),
            None => Err(DedupError::ForgetfulFilter),
        }
    }

    /// Whether a look-up in the store is worth its while.
    async fn suspects(&self, key: &DedupKey) -> bool {
        self.filter.maybe_seen(key).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "a Bloom filter can not be asked, and is done without");
            false
        })
    }

    /// What a filter is not told costs a look-up at most.
    async fn learn(&self, key: &DedupKey) {
        if let Err(error) = self.filter.add(key).await {
            tracing::debug!(%error, "a Bloom filter can not be told, and is done without");
        }
    }

    async fn claim_trusting(
        &self,
        key: &DedupKey,
        token: &ClaimToken,
        claim: Duration,
    ) -> Result<ClaimOutcome, DedupError> {
        let outcome = self.store.claim(key, token, claim).await?;
        if outcome != ClaimOutcome::Claimed {
            return Ok(outcome);
        }
        match self.filter.maybe_seen(key).await {
            Ok(false) => Ok(ClaimOutcome::Claimed),
            seen => {
                // If this fails, the claim expires.
                let _ = self.store.release(key, token).await;
                seen.map(|_| ClaimOutcome::AlreadyDone)
            }
        }
    }
}

#[async_trait]
impl<S: DedupStore, F: SeenFilter> DedupStore for BloomDedup<S, F> {
    async fn claim(&self, key: &DedupKey, token: &ClaimToken, claim: Duration) -> Result<ClaimOutcome, DedupError> {
        if self.trusts {
            return self.claim_trusting(key, token, claim).await;
        }
        if self.suspects(key).await && self.store.is_marked(key).await? {
            return Ok(ClaimOutcome::AlreadyDone);
        }
        let outcome = self.store.claim(key, token, claim).await?;
        if outcome == ClaimOutcome::AlreadyDone {
            // Somebody else has marked it, or this process before it was started again.
            self.learn(key).await;
        }
        Ok(outcome)
    }

    async fn extend(&self, key: &DedupKey, token: &ClaimToken, claim: Duration) -> Result<Hold, DedupError> {
        self.store.extend(key, token, claim).await
    }

    async fn mark(&self, key: &DedupKey, token: &ClaimToken, window: Duration) -> Result<Hold, DedupError> {
        if !self.trusts {
            let hold = self.store.mark(key, token, window).await?;
            self.learn(key).await;
            return Ok(hold);
        }
        // For long enough to be released.
        let hold = self.store.extend(key, token, Duration::from_secs(10)).await?;
        if hold == Hold::Held {
            self.filter.add(key).await?;
            // If this fails, the claim expires: others find the message busy, and then done.
            let _ = self.store.release(key, token).await;
        }
        Ok(hold)
    }

    async fn release(&self, key: &DedupKey, token: &ClaimToken) -> Result<(), DedupError> {
        self.store.release(key, token).await
    }

    async fn is_marked(&self, key: &DedupKey) -> Result<bool, DedupError> {
        match self.trusts {
            true => self.filter.maybe_seen(key).await,
            false => self.store.is_marked(key).await,
        }
    }

    fn longest_window(&self) -> Option<Duration> {
        if self.trusts { self.filter.remembers() } else { self.store.longest_window() }
    }
}
