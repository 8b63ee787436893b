//! The ordering watermark: which services may have dispatches left to the sweep, so that new tasks must not overtake
//! them.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use relais_core::ServiceKey;

/// When dispatches of each service were last left to the sweep, and up to when it has found them all.
#[derive(Debug)]
pub(crate) struct Watermark(Mutex<Marks>);

#[derive(Debug)]
struct Marks {
    /// Counts the marks.
    now: u64,
    /// When dispatches of any service may have been left.
    anything: u64,
    /// When something was last left, and up to when all was found. Bounded by the number of services.
    services: HashMap<ServiceKey, (u64, u64)>,
}

impl Default for Watermark {
    /// Before the first sweep.
    fn default() -> Self {
        Self(Mutex::new(Marks { now: 1, anything: 1, services: HashMap::new() }))
    }
}

impl Watermark {
    /// Dispatches of these services were left to the sweep, or may be there, or it has found some. For new tasks this
    /// is called before the submitter gets its answer.
    pub(crate) fn note(&self, services: impl IntoIterator<Item = ServiceKey>) {
        let mut marks = self.marks();
        for service in services {
            marks.now += 1;
            let now = marks.now;
            marks.services.entry(service).or_default().0 = now;
        }
    }

    /// Dispatches of any service may have been left to the sweep.
    pub(crate) fn note_all(&self) {
        let mut marks = self.marks();
        marks.now += 1;
        marks.anything = marks.now;
    }

    /// The sweep starts to look.
    pub(super) fn look(&self) -> Look {
        Look(self.marks().now)
    }

    /// The sweep has found nothing of these services. It may not have seen what was left after it started.
    pub(super) fn found_nothing(&self, look: Look, services: impl IntoIterator<Item = ServiceKey>) {
        let mut marks = self.marks();
        for service in services {
            let (_, found) = marks.services.entry(service).or_default();
            *found = look.0.max(*found);
        }
    }

    /// Whether dispatches of the service may be left to the sweep.
    pub(super) fn is_behind(&self, service: ServiceKey) -> bool {
        let marks = self.marks();
        let (left, found) = marks.services.get(&service).copied().unwrap_or_default();
        found < left.max(marks.anything)
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        // Numbers that only grow: whatever was written half way is a mark all the same.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When a sweep started.
#[derive(Clone, Copy)]
pub(super) struct Look(u64);

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ServiceKey = ServiceKey(1);
    const TWO: ServiceKey = ServiceKey(2);

    #[test]
    fn tasks_left_during_a_sweep_keep_the_ordering_watermark() {
        let watermark = Watermark::default();
        assert!(watermark.is_behind(ONE), "nobody has looked");
        watermark.found_nothing(watermark.look(), [ONE]);
        assert!(!watermark.is_behind(ONE) && watermark.is_behind(TWO), "of one of them");
        let look = watermark.look();
        watermark.note([ONE]);
        watermark.found_nothing(look, [ONE, TWO]);
        assert!(watermark.is_behind(ONE), "it came after the look had begun");
        assert!(!watermark.is_behind(TWO), "nobody else is held up");
        watermark.found_nothing(watermark.look(), [ONE]);
        assert!(!watermark.is_behind(ONE));
        let look = watermark.look();
        watermark.note_all();
        watermark.found_nothing(look, [ONE]);
        assert!(watermark.is_behind(ONE) && watermark.is_behind(TWO));
    }
}
