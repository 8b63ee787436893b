//! Whether writes are taken, without writing each time somebody asks.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// For how long a commit shows that the next one will be taken too.
const FRESH: Duration = Duration::from_secs(1);

/// The last sign of how writing goes.
#[derive(Debug, Default)]
pub(crate) struct Proof(Mutex<Option<Instant>>);

impl Proof {
    /// A commit was taken, or something failed.
    pub(crate) fn note(&self, taken: bool) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = taken.then(Instant::now);
    }

    /// Whether a commit was taken a moment ago, and nothing failed since.
    pub(crate) fn is_fresh(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|taken| taken.elapsed() < FRESH)
    }
}
