//! Whether tasks may wait in the store to be published: what comes later must not overtake them.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often tasks were left to the sweep, and up to which time it has found them all.
#[derive(Debug)]
pub(crate) struct Behind {
    left: AtomicU64,
    caught_up: AtomicU64,
}

impl Default for Behind {
    /// Nobody has looked yet.
    fn default() -> Self {
        Self { left: AtomicU64::new(1), caught_up: AtomicU64::new(0) }
    }
}

impl Behind {
    /// Tasks were left to the sweep, or it has found some. Said after the commit, and before whoever submitted them knows.
    pub(crate) fn note(&self) {
        self.left.fetch_add(1, Ordering::AcqRel);
    }

    /// The sweep looks from now on.
    pub(super) fn look(&self) -> Look {
        Look(self.left.load(Ordering::Acquire))
    }

    /// It has found nothing. What was left since it began to look, it may not have seen.
    pub(super) fn found_nothing(&self, look: Look) {
        self.caught_up.fetch_max(look.0, Ordering::AcqRel);
    }

    pub(super) fn is_so(&self) -> bool {
        self.caught_up.load(Ordering::Acquire) < self.left.load(Ordering::Acquire)
    }
}

/// A look of the sweep.
#[must_use]
pub(super) struct Look(u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_while_the_sweep_looked_is_not_taken_for_found() {
        let behind = Behind::default();
        assert!(behind.is_so(), "nobody has looked");
        let look = behind.look();
        behind.found_nothing(look);
        assert!(!behind.is_so());
        let look = behind.look();
        behind.note();
        behind.found_nothing(look);
        assert!(behind.is_so(), "it came after the look had begun");
        let look = behind.look();
        behind.found_nothing(look);
        assert!(!behind.is_so());
    }
}
