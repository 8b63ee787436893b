//! A Bloom filter: bits that are set and never unset. Many threads may add and ask at once.

use std::{
    f64::consts::LN_2,
    sync::atomic::{AtomicU64, Ordering},
};

/// So many bits for so many entries.
#[derive(Debug)]
pub(crate) struct Bits {
    words: Box<[AtomicU64]>,
    /// How many bits stand for an entry.
    hashes: u64,
}

impl Bits {
    /// With at most this share of false answers while there are at most so many entries.
    pub(crate) fn new(entries: u64, false_positives: f64) -> Self {
        let for_each = -false_positives.ln() / (LN_2 * LN_2);
        let words = (entries.max(64) as f64 * for_each / 64.0).ceil() as usize;
        let hashes = (for_each * LN_2).round().max(1.0) as u64;
        Self { words: (0..words).map(|_| AtomicU64::new(0)).collect(), hashes }
    }

    /// The places of the bits that stand for an entry, of which two hashes are known: word, and bit in the word.
    fn places(&self, (one, other): (u64, u64)) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let bits = self.words.len() as u64 * 64;
        (0..self.hashes).map(move |number| {
            let hash = one.wrapping_add(number.wrapping_mul(other | 1));
            // The higher half of the product is evenly spread below `bits`.
            let place = ((u128::from(hash) * u128::from(bits)) >> 64) as u64;
            (&self.words[(place / 64) as usize], 1 << (place % 64))
        })
    }

    pub(crate) fn add(&self, hashes: (u64, u64)) {
        for (word, bit) in self.places(hashes) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    pub(crate) fn has(&self, hashes: (u64, u64)) -> bool {
        self.places(hashes).all(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// How much memory it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.words.len() * size_of::<AtomicU64>()
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher as _, RandomState};

    use super::*;

    #[test]
    fn what_was_added_is_found_and_few_others_are() {
        const ENTRIES: u64 = 100_000;
        let (bits, one, other) = (Bits::new(ENTRIES, 0.0005), RandomState::new(), RandomState::new());
        let hashes = |number: u64| (one.hash_one(number), other.hash_one(number));
        (0..ENTRIES).for_each(|number| bits.add(hashes(number)));
        assert!((0..ENTRIES).all(|number| bits.has(hashes(number))), "what was added is found");
        let wrong = (ENTRIES..3 * ENTRIES).filter(|number| bits.has(hashes(*number))).count();
        // 100 are expected; the deviation is 10.
        assert!(wrong < 150, "{wrong} of 200,000 others are found");
        assert!(bits.bytes() < 2 * 100_000, "{} bytes", bits.bytes());
    }
}
