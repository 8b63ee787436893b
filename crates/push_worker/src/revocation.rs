//! Partitions that are being handed over: what still runs of each, and who waits for it.

use std::collections::HashSet;

use tokio::{sync::oneshot, task::Id};

/// Not yet handed over. Empty nearly always.
#[derive(Default)]
pub(crate) struct Revocations {
    open: Vec<(HashSet<Id>, oneshot::Sender<()>)>,
}

impl Revocations {
    /// `done` is told when all of `running` have ended; at once if there are none.
    pub(crate) fn add(&mut self, running: Vec<Id>, done: oneshot::Sender<()>) {
        self.open.push((running.into_iter().collect(), done));
        self.tell();
    }

    /// One has ended and is settled.
    pub(crate) fn ended(&mut self, id: Id) {
        if !self.open.is_empty() {
            for (running, _) in &mut self.open {
                running.remove(&id);
            }
            self.tell();
        }
    }

    /// Nothing runs any more.
    pub(crate) fn abandon(&mut self) {
        self.open.iter_mut().for_each(|(running, _)| running.clear());
        self.tell();
    }

    fn tell(&mut self) {
        for (_, done) in self.open.extract_if(.., |(running, _)| running.is_empty()) {
            // Who waited may have lost patience.
            let _ = done.send(());
        }
    }
}
