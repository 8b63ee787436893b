//! Repeatable random numbers: set `RELAIS_SEED` to the number that a failed test printed.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A small generator (SplitMix64). Good enough to choose a moment; for nothing else.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// A new seed, which is printed, or the one that the environment names.
    #[expect(clippy::print_stdout, reason = "a test's output, shown when it fails")]
    pub fn new() -> Self {
        let seed = seed();
        println!("RELAIS_SEED={seed}");
        Self(seed)
    }

    /// From a seed of one's own.
    pub const fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.between(0, times) == 0
    }

    /// A number from `least` to below `bound`.
    pub fn between(&mut self, least: usize, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        least + ((z ^ (z >> 31)) % (bound - least) as u64) as usize
    }
}

/// A new seed, or the one that the environment names.
pub fn seed() -> u64 {
    let named = std::env::var("RELAIS_SEED").ok().and_then(|seed| seed.parse().ok());
    named.unwrap_or_else(|| RandomState::new().build_hasher().finish())
}

impl Default for Random {
    fn default() -> Self {
        Self::new()
    }
}
