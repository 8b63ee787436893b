//! Repeatable random numbers: set `RELAIS_SEED` to the number that a failed test printed.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A small generator (SplitMix64) that shuffles operations and makes values. It is good for nothing else.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// A new seed, which is printed, or the one that the environment names.
    #[expect(clippy::print_stderr, reason = "a test's output, shown when it fails")]
    pub fn new() -> Self {
        let seed = std::env::var("RELAIS_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or_else(|| RandomState::new().build_hasher().finish());
        eprintln!("RELAIS_SEED={seed}");
        Self(seed)
    }

    /// From a seed of one's own.
    pub const fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    /// True once in this many times on average.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }
}

impl Default for Random {
    fn default() -> Self {
        Self::new()
    }
}
