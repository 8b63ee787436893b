//! A cache of verified credentials, keyed by a digest that reveals neither client nor secret.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::Digest;

/// How long a refused credential is refused again without another check.
const REFUSED: Duration = Duration::from_secs(5);

/// What is known of a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CachedCheck {
    /// It is valid.
    Verified,
    /// It is invalid.
    Refused,
    /// It was valid at its last check, which is too old.
    VerifiedBefore,
    /// Nothing.
    Nothing,
}

struct Entry {
    verified: bool,
    checked: Instant,
    used: Instant,
}

/// Caches the results of checks.
pub(super) struct Memory {
    entries: Mutex<HashMap<Digest, Entry>>,
    most: usize,
    /// How long a valid credential counts after its last use.
    unused: Duration,
    /// How long it counts after its last check.
    unchecked: Duration,
}

impl Memory {
    pub(super) fn new(most: usize, unused: Duration, unchecked: Duration) -> Self {
        Self { entries: Mutex::default(), most, unused, unchecked }
    }

    /// What is known of a credential that is being used.
    pub(super) fn recall(&self, digest: &Digest) -> CachedCheck {
        let now = Instant::now();
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(digest) else { return CachedCheck::Nothing };
        match (entry.verified, self.is_fresh(entry, now)) {
            (true, true) => {
                entry.used = now;
                CachedCheck::Verified
            }
            (true, false) => CachedCheck::VerifiedBefore,
            (false, true) => CachedCheck::Refused,
            (false, false) => CachedCheck::Nothing,
        }
    }

    /// Stores the result of a check. Wrong secrets never evict a valid credential.
    pub(super) fn remember(&self, digest: Digest, verified: bool) {
        let now = Instant::now();
        let mut entries = self.entries();
        if entries.len() >= self.most {
            entries.retain(|_, entry| entry.verified || self.is_fresh(entry, now));
        }
        if entries.len() >= self.most {
            entries.retain(|_, entry| entry.verified);
        }
        if entries.len() >= self.most {
            if !verified {
                return;
            }
            // The half that was used last is kept.
            let mut used: Vec<Instant> = entries.values().map(|entry| entry.used).collect();
            used.sort_unstable();
            let middle = used.get(used.len() / 2).copied();
            entries.retain(|_, entry| Some(entry.used) > middle);
        }
        entries.insert(digest, Entry { verified, checked: now, used: now });
    }

    fn is_fresh(&self, entry: &Entry, now: Instant) -> bool {
        let since = |then: Instant| now.saturating_duration_since(then);
        match entry.verified {
            true => since(entry.used) < self.unused && since(entry.checked) < self.unchecked,
            false => since(entry.checked) < REFUSED,
        }
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<Digest, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    #[test]
    fn wrong_secrets_neither_grow_the_cache_nor_evict_right_ones() {
        let memory = Memory::new(8, LONG, LONG);
        memory.remember([1; 32], true);
        for guess in 2..100 {
            memory.remember([guess; 32], false);
            assert!(memory.entries().len() <= 8);
        }
        assert_eq!(memory.recall(&[1; 32]), CachedCheck::Verified);
        assert_eq!(memory.recall(&[99; 32]), CachedCheck::Refused);
        for right in 100..120 {
            memory.remember([right; 32], true);
            assert!(memory.entries().len() <= 8);
        }
        assert_eq!(memory.recall(&[119; 32]), CachedCheck::Verified);
    }

    #[test]
    fn a_credential_verified_long_ago_is_recognised() {
        let unused = Memory::new(8, Duration::ZERO, LONG);
        let unchecked = Memory::new(8, LONG, Duration::ZERO);
        for memory in [unused, unchecked] {
            memory.remember([1; 32], true);
            assert_eq!(memory.recall(&[1; 32]), CachedCheck::VerifiedBefore);
            assert_eq!(memory.recall(&[2; 32]), CachedCheck::Nothing);
        }
    }
}
