//! The store without a server: for one process, as long as it runs.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::Instant;

use crate::{ClaimOutcome, ClaimToken, DedupError, DedupKey, DedupStore, Hold};

/// So many ids, unless it is said.
const CAPACITY: usize = 1_000_000;

/// Claims and marks in memory. They are gone when the process ends, and no other process knows them.
#[derive(Debug)]
pub struct MemoryDedup {
    entries: Mutex<Entries>,
    capacity: usize,
}

#[derive(Debug, Default)]
struct Entries {
    by_key: HashMap<DedupKey, Entry>,
    /// When entries end. One that was extended since is here twice.
    ends: BinaryHeap<Reverse<(Instant, DedupKey)>>,
}

#[derive(Debug, Clone)]
struct Entry {
    /// None: the message is marked.
    claimed_by: Option<ClaimToken>,
    end: Instant,
}

impl Default for MemoryDedup {
    fn default() -> Self {
        Self::with_capacity(CAPACITY)
    }
}

impl MemoryDedup {
    /// For so many ids at once; a claim of another one fails. An id takes some 200 bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { entries: Mutex::default(), capacity }
    }

    /// Lets time pass for what is stored, for tests.
    pub fn advance(&self, time: Duration) {
        let mut entries = self.entries();
        entries.by_key.values_mut().for_each(|entry| entry.end -= time);
        entries.ends = entries.by_key.iter().map(|(key, entry)| Reverse((entry.end, key.clone()))).collect();
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    /// The entry, unless its time is over.
    fn get(&self, key: &DedupKey, now: Instant) -> Option<&Entry> {
        self.by_key.get(key).filter(|entry| entry.end > now)
    }

    fn put(&mut self, key: &DedupKey, claimed_by: Option<&ClaimToken>, end: Instant) {
        self.by_key.insert(key.clone(), Entry { claimed_by: claimed_by.cloned(), end });
        self.ends.push(Reverse((end, key.clone())));
    }

    /// Replaces the entry if it is this claim, or if there is none.
    fn replace(&mut self, key: &DedupKey, token: &ClaimToken, claimed_by: Option<&ClaimToken>, time: Duration) -> Hold {
        let now = Instant::now();
        match self.get(key, now) {
            Some(entry) if entry.claimed_by.as_ref() != Some(token) => Hold::Lost,
            _ => {
                self.put(key, claimed_by, now + time);
                Hold::Held
            }
        }
    }

    /// Removes what is over. Each entry is removed once, so a call costs as much as was added since the last one.
    fn purge(&mut self, now: Instant) {
        while let Some(Reverse((end, _))) = self.ends.peek()
            && *end <= now
        {
            let Some(Reverse((end, key))) = self.ends.pop() else { return };
            if self.by_key.get(&key).is_some_and(|entry| entry.end == end) {
                self.by_key.remove(&key);
            }
        }
    }
}

#[async_trait]
impl DedupStore for MemoryDedup {
    async fn claim(&self, key: &DedupKey, token: &ClaimToken, claim: Duration) -> Result<ClaimOutcome, DedupError> {
        let (mut entries, now) = (self.entries(), Instant::now());
        entries.purge(now);
        match entries.get(key, now) {
            Some(Entry { claimed_by: None, .. }) => return Ok(ClaimOutcome::AlreadyDone),
            Some(Entry { end, .. }) => return Ok(ClaimOutcome::Busy { wait: *end - now }),
            None if entries.by_key.len() >= self.capacity => return Err(DedupError::Full(self.capacity)),
            None => entries.put(key, Some(token), now + claim),
        }
        Ok(ClaimOutcome::Claimed)
    }

    async fn extend(&self, key: &DedupKey, token: &ClaimToken, claim: Duration) -> Result<Hold, DedupError> {
        Ok(self.entries().replace(key, token, Some(token), claim))
    }

    async fn mark(&self, key: &DedupKey, token: &ClaimToken, window: Duration) -> Result<Hold, DedupError> {
        Ok(self.entries().replace(key, token, None, window))
    }

    async fn release(&self, key: &DedupKey, token: &ClaimToken) -> Result<(), DedupError> {
        let mut entries = self.entries();
        if entries.by_key.get(key).is_some_and(|entry| entry.claimed_by.as_ref() == Some(token)) {
            entries.by_key.remove(key);
        }
        Ok(())
    }

    async fn is_marked(&self, key: &DedupKey) -> Result<bool, DedupError> {
        Ok(self.entries().get(key, Instant::now()).is_some_and(|entry| entry.claimed_by.is_none()))
    }
}
