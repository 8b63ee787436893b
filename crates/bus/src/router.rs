//! Who gets an event: the tree of subscriptions, and routes that remember the answer.
//!
//! A publisher keeps the route of its channel and asks only whether it is still current, which is one atomic load. A
//! subscription that comes or goes makes all routes stale; the next event on each channel walks the tree again.
//! Part of the core that `tests/shuttle.rs` runs under every interleaving.

use crate::{
    sync::{Arc, AtomicU64, Ordering, PoisonError, RwLock},
    trie::Trie,
};

/// Subscribers by pattern.
#[derive(Debug)]
pub(crate) struct Router<V> {
    trie: RwLock<Trie<V>>,
    /// Counts changes of the tree, under its lock.
    generation: AtomicU64,
}

/// The subscribers of one channel, at one moment.
#[derive(Debug)]
pub(crate) struct Route<V> {
    generation: u64,
    pub(crate) subscribers: Box<[V]>,
}

impl<V: Clone> Router<V> {
    pub(crate) fn new() -> Self {
        Self { trie: RwLock::new(Trie::new()), generation: AtomicU64::new(1) }
    }

    /// Adds a subscriber under all its patterns at once. Events that are published from now on find it.
    pub(crate) fn insert<'a>(&self, patterns: impl Iterator<Item = &'a str>, id: u64, value: &V) {
        let mut trie = self.trie.write().unwrap_or_else(PoisonError::into_inner);
        for pattern in patterns {
            trie.insert(pattern.split('.'), id, value.clone());
        }
        self.generation.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn remove<'a>(&self, patterns: impl Iterator<Item = &'a str>, id: u64) {
        let mut trie = self.trie.write().unwrap_or_else(PoisonError::into_inner);
        for pattern in patterns {
            trie.remove(pattern.split('.'), id);
        }
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Grows whenever a subscriber was added or removed.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn resolve(&self, channel: &str, reserved: bool) -> Route<V> {
        let trie = self.trie.read().unwrap_or_else(PoisonError::into_inner);
        let subscribers = trie.find(channel, reserved).into_iter().map(|(_, value)| value).collect();
        Route { generation: self.generation.load(Ordering::Acquire), subscribers }
    }
}

/// A channel's route as last seen.
#[derive(Debug)]
pub(crate) struct RouteCell<V>(RwLock<Arc<Route<V>>>);

impl<V: Clone> RouteCell<V> {
    pub(crate) fn new() -> Self {
        Self(RwLock::new(Arc::new(Route { generation: 0, subscribers: Box::new([]) })))
    }

    /// The current route. A subscriber that was added before the call is in it.
    pub(crate) fn get(&self, router: &Router<V>, channel: &str, reserved: bool) -> Arc<Route<V>> {
        let generation = router.generation.load(Ordering::Acquire);
        {
            let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
            if known.generation == generation {
                return Arc::clone(&known);
            }
        }
        let fresh = Arc::new(router.resolve(channel, reserved));
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // Another publisher may have been here in between, with a newer answer.
        if fresh.generation > known.generation {
            known.clone_from(&fresh);
        }
        fresh
    }
}
