//! Which tasks have run in this process. Handlers of some peers carry nothing with them, so there is one place for all.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::Notify;

static SEEN: OnceLock<Seen> = OnceLock::new();

struct Seen {
    start: Instant,
    /// When each began, in nanoseconds since the start; 0 is not yet.
    begun: Vec<AtomicU64>,
    /// Whether each begin is waited for, or only the last.
    single: bool,
    first: AtomicU64,
    again: AtomicU64,
    changed: Notify,
}

fn seen() -> &'static Seen {
    SEEN.get().expect("what is expected is said first")
}

/// Says how many tasks will run, and whether each is waited for.
pub fn expect(tasks: u64, single: bool) {
    let _ = SEEN.set(Seen {
        start: Instant::now(),
        begun: (0..tasks).map(|_| AtomicU64::new(0)).collect(),
        single,
        first: AtomicU64::new(0),
        again: AtomicU64::new(0),
        changed: Notify::new(),
    });
}

/// A handler begins.
pub fn begin(number: u64) {
    let seen = seen();
    let now = u64::try_from(seen.start.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1);
    let place = usize::try_from(number).ok().and_then(|number| seen.begun.get(number));
    if place.is_some_and(|place| place.compare_exchange(0, now, Ordering::AcqRel, Ordering::Relaxed).is_ok()) {
        let count = seen.first.fetch_add(1, Ordering::AcqRel) + 1;
        if seen.single || count == seen.begun.len() as u64 {
            seen.changed.notify_one();
        }
    } else {
        seen.again.fetch_add(1, Ordering::AcqRel);
    }
}

/// Waits until every task has run.
pub async fn all() {
    let seen = seen();
    while seen.first.load(Ordering::Acquire) < seen.begun.len() as u64 {
        seen.changed.notified().await;
    }
}

/// When a task began, once it has.
pub async fn begun(number: usize) -> Instant {
    let seen = seen();
    loop {
        match seen.begun[number].load(Ordering::Acquire) {
            0 => seen.changed.notified().await,
            nanos => return seen.start + Duration::from_nanos(nanos),
        }
    }
}

/// How often a handler began, and how often for a task that had run before.
pub fn counts() -> (u64, u64) {
    let (first, again) = (seen().first.load(Ordering::Acquire), seen().again.load(Ordering::Acquire));
    (first + again, again)
}
