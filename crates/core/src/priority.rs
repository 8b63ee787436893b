//! Priority: the order of pending tasks.
//!
//! Tasks are claimed in the order of their rank. The rank is a time: the submission, less a head start for each level
//! of priority. So an urgent task overtakes tasks that were submitted a while before, and no task waits for ever. The
//! rank is written once and never changes.

use std::time::Duration;

/// The default head start of each level.
pub const DEFAULT_PRIORITY_STEP: Duration = Duration::from_secs(60);

/// The priority of a task: from 0, the lowest, to 9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(u8);

impl Default for Priority {
    /// The default, in the middle, so that tasks can also be less urgent than others.
    fn default() -> Self {
        Self(4)
    }
}

impl Priority {
    /// The highest.
    pub const MOST: Self = Self(9);

    /// A priority, if it is one.
    pub fn new(level: u8) -> Option<Self> {
        (level <= Self::MOST.0).then_some(Self(level))
    }

    /// From 0 to 9.
    pub const fn level(self) -> u8 {
        self.0
    }

    /// By how many milliseconds the rank comes before the submission; negative if it comes after.
    pub fn head_start(self, step: Duration) -> i64 {
        let levels = i64::from(self.0) - i64::from(Self::default().0);
        levels.saturating_mul(i64::try_from(step.as_millis()).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_gives_a_bounded_head_start() {
        let step = Duration::from_secs(60);
        let rank = |submitted: i64, level| submitted - Priority::new(level).unwrap().head_start(step);
        assert!(rank(300_000, 9) < rank(1, 4), "five levels are five minutes");
        assert!(rank(300_001, 9) > rank(0, 4));
        assert!(rank(0, 0) > rank(239_999, 4) && rank(0, 0) < rank(240_001, 4), "the least urgent does move");
        assert_eq!(Priority::default().head_start(Duration::MAX), 0);
        assert_eq!(Priority::new(10), None);
    }
}
