//! The locks and atomics of the concurrent core, behind one name.
//!
//! `tests/shuttle.rs` compiles the core's files with a `sync` of its own that schedules every interleaving on purpose.
//! That is all this module is for: outside the core, use `std::sync`.

pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};
