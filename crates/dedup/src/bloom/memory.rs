//! A filter in the process: nobody else knows it, and it is empty after a restart.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::Instant;

use super::{BloomOptions, SeenFilter, bits::Bits};
use crate::{DedupError, DedupKey};

/// A Bloom filter in memory: 40 MB for 10 million ids in a window with 0.1 % false answers, half of that in the first window.
///
/// More ids than it was made for shorten what it remembers, not the precision of its answers: a generation that is full
/// becomes the older one at once.
#[derive(Debug)]
pub struct MemoryBloom {
    options: BloomOptions,
    generations: RwLock<Generations>,
    /// Nobody can choose ids that are taken for others.
    keys: (RandomState, RandomState),
}

#[derive(Debug)]
struct Generations {
    current: Bits,
    previous: Option<Bits>,
    /// Since when ids are added to the current one.
    since: Instant,
    added: AtomicU64,
}

impl MemoryBloom {
    /// An empty one.
    pub fn new(options: BloomOptions) -> Self {
        let current = Bits::new(options.ids, options.of_a_generation());
        let generations = Generations { current, previous: None, since: Instant::now(), added: AtomicU64::new(0) };
        Self { options, generations: RwLock::new(generations), keys: Default::default() }
    }

    /// How much memory it takes at present.
    pub fn bytes(&self) -> usize {
        let generations = self.generations.read().unwrap_or_else(PoisonError::into_inner);
        generations.current.bytes() + generations.previous.as_ref().map_or(0, Bits::bytes)
    }

    fn hashes(&self, key: &DedupKey) -> (u64, u64) {
        (self.keys.0.hash_one(key), self.keys.1.hash_one(key))
    }

    fn has(&self, key: &DedupKey) -> bool {
        let hashes = self.hashes(key);
        let generations = self.generations.read().unwrap_or_else(PoisonError::into_inner);
        generations.current.has(hashes) || generations.previous.as_ref().is_some_and(|bits| bits.has(hashes))
    }

    fn insert(&self, key: &DedupKey) {
        self.rotate_if_due();
        let hashes = self.hashes(key);
        let generations = self.generations.read().unwrap_or_else(PoisonError::into_inner);
        if !generations.current.has(hashes) {
            generations.added.fetch_add(1, Ordering::Relaxed);
            generations.current.add(hashes);
        }
    }

    fn rotate_if_due(&self) {
        let is_due = |generations: &Generations| {
            generations.since.elapsed() >= self.options.window
                || generations.added.load(Ordering::Relaxed) >= self.options.ids
        };
        if !is_due(&self.generations.read().unwrap_or_else(PoisonError::into_inner)) {
            return;
        }
        let empty = Bits::new(self.options.ids, self.options.of_a_generation());
        let mut generations = self.generations.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been faster.
        if is_due(&generations) {
            let full = std::mem::replace(&mut generations.current, empty);
            generations.previous = Some(full);
            generations.since = Instant::now();
            generations.added = AtomicU64::new(0);
        }
    }
}

#[async_trait]
impl SeenFilter for MemoryBloom {
    async fn maybe_seen(&self, key: &DedupKey) -> Result<bool, DedupError> {
        Ok(self.has(key))
    }

    async fn add(&self, key: &DedupKey) -> Result<(), DedupError> {
        self.insert(key);
        Ok(())
    }

    fn remembers(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: Duration = Duration::from_secs(100);

    fn key(number: usize) -> DedupKey {
        DedupKey::new("billing", &format!("order-{number}")).unwrap()
    }

    proptest! {
        /// However long it takes from one to the next.
        #[test]
        fn an_id_is_seen_for_a_window(pauses in proptest::collection::vec(0_u64..150, 1..40)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let filter = MemoryBloom::new(BloomOptions { ids: 1000, false_positives: 0.001, window: WINDOW });
                let mut added: Vec<(usize, Instant)> = Vec::new();
                for (number, pause) in pauses.into_iter().enumerate() {
                    tokio::time::advance(Duration::from_secs(pause)).await;
                    filter.insert(&key(number));
                    added.push((number, Instant::now()));
                    let lost = added.iter().find(|(number, at)| at.elapsed() < WINDOW && !filter.has(&key(*number)));
                    assert!(lost.is_none(), "{lost:?} is forgotten");
                }
            });
        }
    }

    #[test]
    fn a_full_filter_forgets_the_oldest_and_stays_precise() {
        let filter = MemoryBloom::new(BloomOptions { ids: 2000, false_positives: 0.001, window: WINDOW });
        (0..20_000).for_each(|number| filter.insert(&key(number)));
        assert!((18_000..20_000).all(|number| filter.has(&key(number))), "the last ones are there");
        assert!(!(0..10_000).all(|number| filter.has(&key(number))), "the first ones are not");
        let wrong = (100_000..120_000).filter(|number| filter.has(&key(*number))).count();
        // 20 are expected at most.
        assert!(wrong < 50, "{wrong} of 20,000 others are found");
    }
}
