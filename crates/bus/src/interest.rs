//! Whether anybody in this instance wants events of some kind, for publishers to whom making them is the cost.
//!
//! Knows of the subscriptions of this instance only: what others want, a transport does not tell.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::watch;

use crate::{Bus, NameError, Pattern, hub::Hub};

/// Asks again and again whether anybody here subscribes to events of a pattern. Cheap: the answer is remembered until a
/// subscription comes or goes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let bus = relais_bus::Bus::in_memory();
/// let mut interest = bus.interest("task.>")?;
/// assert!(!interest.any());
/// let subscription = bus.subscribe("*.orders.created").await?; // Matches `task.orders.created`.
/// interest.changed().await;
/// assert!(interest.any());
/// drop(subscription);
/// assert!(!interest.any());
/// # Ok(()) }
/// ```
pub struct Interest {
    hub: Arc<Hub>,
    pattern: Pattern,
    /// The last answer in the lowest bit, and above it the generation of subscriptions that it is about.
    known: AtomicU64,
    changes: watch::Receiver<()>,
}

impl Bus {
    /// Follows whether anybody in this instance subscribes to events that `pattern` matches.
    ///
    /// # Errors
    ///
    /// If it is not a pattern.
    pub fn interest(&self, pattern: &str) -> Result<Interest, NameError> {
        let pattern = Pattern::new(pattern)?;
        let changes = self.hub.subscriptions_changed.subscribe();
        Ok(Interest { hub: Arc::clone(&self.hub), pattern, known: AtomicU64::new(0), changes })
    }
}

impl Interest {
    /// Whether anybody does, now.
    pub fn any(&self) -> bool {
        // Read first: who subscribed before that is found below.
        let generation = self.hub.router.generation();
        let known = self.known.load(Ordering::Acquire);
        if known >> 1 == generation {
            return known & 1 == 1;
        }
        let overlaps = |pattern: &Pattern| pattern.overlaps(&self.pattern);
        let any = self.hub.subscribers().values().any(|subscriber| subscriber.patterns.iter().any(overlaps));
        self.known.store(generation << 1 | u64::from(any), Ordering::Release);
        any
    }

    /// Returns when a subscription came or went since the last call, whatever it is to. Cancel-safe.
    pub async fn changed(&mut self) {
        // The sender is in the hub that this holds.
        let _ = self.changes.changed().await;
    }
}

impl std::fmt::Debug for Interest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interest").field("pattern", &self.pattern).finish_non_exhaustive()
    }
}
