//! Reasons why the engine is not ready, besides a store that does not answer; and what is wrong although it is.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{Engine, EngineError};

/// The reasons that there are, and what is wrong besides.
#[derive(Debug, Default)]
pub(crate) struct Readiness {
    reasons: Mutex<BTreeMap<u64, String>>,
    troubles: Mutex<BTreeMap<u64, (&'static str, String)>>,
    next: AtomicU64,
}

impl Readiness {
    fn reasons(&self) -> MutexGuard<'_, BTreeMap<u64, String>> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn troubles(&self) -> MutexGuard<'_, BTreeMap<u64, (&'static str, String)>> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wrong: a part of the server, and why.
    pub(crate) fn in_trouble(&self) -> Vec<(&'static str, String)> {
        self.troubles().values().cloned().collect()
    }

    pub(crate) fn check(&self) -> Result<(), EngineError> {
        match self.reasons().values().next() {
            Some(why) => Err(EngineError::NotReady(why.clone())),
            None => Ok(()),
        }
    }
}

/// As long as this is kept, the engine is not ready.
#[derive(Debug)]
#[must_use = "dropped, it is no reason any more"]
pub struct NotReady {
    readiness: Arc<Readiness>,
    number: u64,
}

impl NotReady {
    /// Says better why.
    pub fn because(&self, why: impl Into<String>) {
        self.readiness.reasons().insert(self.number, why.into());
    }
}

impl Drop for NotReady {
    fn drop(&mut self) {
        self.readiness.reasons().remove(&self.number);
    }
}

/// As long as this is kept, a part of the server is in trouble.
#[derive(Debug)]
#[must_use = "dropped, the trouble is over"]
pub struct InTrouble {
    readiness: Arc<Readiness>,
    number: u64,
}

impl Drop for InTrouble {
    fn drop(&mut self) {
        self.readiness.troubles().remove(&self.number);
    }
}

impl Engine {
    /// Says that a part of the server, by its name in the dashboard, is in trouble, until it is dropped: the engine is ready all the same, and
    /// [`Engine::notes`] and the overview name it.
    pub fn in_trouble(&self, part: &'static str, why: impl Into<String>) -> InTrouble {
        let readiness = Arc::clone(&self.0.readiness);
        let number = readiness.next.fetch_add(1, Ordering::Relaxed);
        readiness.troubles().insert(number, (part, why.into()));
        InTrouble { readiness, number }
    }

    /// A reason why [`Engine::ready`] says no, until it is dropped. Nothing else asks for it: requests are taken.
    pub fn not_ready(&self, why: impl Into<String>) -> NotReady {
        let readiness = Arc::clone(&self.0.readiness);
        let number = readiness.next.fetch_add(1, Ordering::Relaxed);
        let held = NotReady { readiness, number };
        held.because(why);
        held
    }
}
