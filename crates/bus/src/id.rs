//! Event ids: UUIDs of version 7, made without asking the system for randomness each time.
//!
//! The time comes first, so ids sort by when they were made, to the millisecond. Not secrets: whoever has seen some can
//! guess others.

use std::cell::Cell;

use jiff::Timestamp;
use uuid::{Builder, Uuid};

thread_local! {
    /// Two numbers that begin at random in each thread: a counter that is scrambled, and a tag.
    static STATE: Cell<(u64, u16)> = Cell::new({
        let seed = |error| {
            tracing::warn!(%error, "no randomness from the system; event ids rest on the clock");
            u64::try_from(Timestamp::now().as_nanosecond() & i128::from(u64::MAX)).unwrap_or_default()
        };
        let first = getrandom::u64().unwrap_or_else(seed);
        let second = getrandom::u32().unwrap_or_default();
        (first, (second & 0xffff) as u16)
    });
}

/// An id that nobody else has.
pub(crate) fn new(now: Timestamp) -> Uuid {
    let (random, tag) = STATE.with(|state| {
        let (counter, tag) = state.get();
        let counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        state.set((counter, tag));
        (scramble(counter), tag)
    });
    let mut bytes = [0; 10];
    bytes[..8].copy_from_slice(&random.to_be_bytes());
    bytes[8..].copy_from_slice(&tag.to_be_bytes());
    Builder::from_unix_timestamp_millis(now.as_millisecond().try_into().unwrap_or_default(), &bytes).into_uuid()
}

/// A permutation of the numbers (the finisher of splitmix64), so that counters of two threads do not look alike.
fn scramble(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_differ_across_threads_and_sort_by_time() {
        let make = || std::thread::spawn(|| (0..10_000).map(|_| new(Timestamp::UNIX_EPOCH)).collect::<Vec<_>>());
        let made: Vec<_> = [make(), make(), make()].into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(made.iter().collect::<HashSet<_>>().len(), made.len());
        let later = new(Timestamp::from_millisecond(1).unwrap());
        assert!(made.iter().all(|id| *id < later && id.get_version_num() == 7));
    }
}
