//! How far a partition is done.

use std::collections::VecDeque;

/// The watermark of a partition: everything before it is done or durably parked.
///
/// It knows the records that were delivered, in their order, from the first that is not done. It follows these and not numbers:
/// the offsets of a partition have gaps where transactions were marked and where topics were compacted.
#[derive(Debug, Default)]
pub(crate) struct Watermark {
    /// From the first that is not done.
    window: VecDeque<Delivered>,
    /// Behind the last that was delivered. None before the first.
    end: Option<i64>,
    unfinished: usize,
}

#[derive(Debug)]
struct Delivered {
    offset: i64,
    done: bool,
}

impl From<i64> for Watermark {
    /// The watermark of a partition that is read from this offset on.
    fn from(start: i64) -> Self {
        Self { end: Some(start), ..Self::default() }
    }
}

impl Watermark {
    /// The next record of the partition was delivered. False if it was delivered before: a fetch may begin anew, in front of it.
    pub(crate) fn deliver(&mut self, offset: i64) -> bool {
        if self.end.is_some_and(|end| offset < end) {
            return false;
        }
        self.window.push_back(Delivered { offset, done: false });
        self.unfinished += 1;
        self.end = Some(offset + 1);
        true
    }

    /// A record is done, or durably parked. Whether the watermark has moved.
    pub(crate) fn done(&mut self, offset: i64) -> bool {
        let Ok(place) = self.window.binary_search_by_key(&offset, |delivered| delivered.offset) else { return false };
        let delivered = &mut self.window[place];
        if delivered.done {
            return false;
        }
        delivered.done = true;
        self.unfinished -= 1;
        let before = self.window.len();
        while self.window.pop_front_if(|first| first.done).is_some() {}
        self.window.len() < before
    }

    /// What may be committed: the offset to begin with next time. None before the first record.
    pub(crate) fn committable(&self) -> Option<i64> {
        self.window.front().map(|first| first.offset).or(self.end)
    }

    /// How many records were delivered and are neither done nor parked.
    pub(crate) fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// How many records a crash would repeat, at most.
    pub(crate) fn ahead(&self) -> usize {
        self.window.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_watermark_waits_for_the_first_record_that_is_not_done() {
        let mut watermark = Watermark::default();
        assert_eq!(watermark.committable(), None);
        // A marker is at 6, and 8 to 10 were compacted.
        for offset in [5, 7, 11] {
            assert!(watermark.deliver(offset));
        }
        assert_eq!(watermark.committable(), Some(5));
        assert!(!watermark.done(11));
        assert!(!watermark.done(7));
        assert_eq!((watermark.unfinished(), watermark.ahead()), (1, 3));
        assert!(watermark.done(5));
        assert_eq!((watermark.committable(), watermark.ahead()), (Some(12), 0));
    }

    #[test]
    fn a_partition_without_a_record_can_be_committed_where_it_begins() {
        let mut watermark = Watermark::from(7);
        assert_eq!(watermark.committable(), Some(7));
        assert!(!watermark.deliver(6) && watermark.deliver(9));
        assert_eq!(watermark.committable(), Some(9));
    }

    #[test]
    fn a_record_that_comes_again_is_known() {
        let mut watermark = Watermark::default();
        assert!(watermark.deliver(5) && watermark.deliver(6));
        assert!(!watermark.deliver(5) && !watermark.deliver(6) && watermark.deliver(7));
        assert!(watermark.done(5) && !watermark.done(5));
        assert_eq!(watermark.committable(), Some(6));
    }

    proptest! {
        /// Whatever the gaps and the order: never past what is not done, never in front of where it could be.
        #[test]
        fn the_watermark_is_the_first_that_is_not_done(
            gaps in prop::collection::vec(1_i64..4, 1..60),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..80),
        ) {
            let mut watermark = Watermark::default();
            let mut offsets = Vec::new();
            let mut done = BTreeSet::new();
            let mut steps = order.iter();
            for gap in gaps {
                let offset = offsets.last().map_or(0, |last| last + gap);
                offsets.push(offset);
                prop_assert!(watermark.deliver(offset));
                if let Some(step) = steps.next() {
                    let chosen = *step.get(&offsets);
                    let before = watermark.committable();
                    let moved = watermark.done(chosen);
                    done.insert(chosen);
                    prop_assert_eq!(moved, watermark.committable() != before);
                }
                let expected = offsets.iter().copied().find(|offset| !done.contains(offset)).unwrap_or(offset + 1);
                prop_assert_eq!(watermark.committable(), Some(expected));
                prop_assert_eq!(watermark.unfinished(), offsets.len() - done.len());
            }
        }
    }
}
