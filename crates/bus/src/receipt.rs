//! Receipts of one event: for publishers who wait for confirmation, and for transports that acknowledge.
//!
//! An event with confirmation carries a [`Receipt`] for each subscriber. Each is completed once; one that is dropped
//! instead (the subscriber went away, the process stops) says *abandoned*, so that a transport knows not to
//! acknowledge.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

/// The outcome of an event at all its subscribers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeliveryOutcome {
    /// Subscribers that have it: in a stream's or worker's queue, or handled.
    pub delivered: usize,
    /// Subscribers that failed on it, or had no room.
    pub failed: usize,
    /// Subscribers that went away with it.
    pub abandoned: usize,
}

type Done = Box<dyn FnOnce(DeliveryOutcome) + Send>;

/// Counts the receipts of one event and notifies when the last is complete.
pub(crate) struct Tracker {
    /// The open receipts, and one for the code that still makes them.
    open: AtomicUsize,
    delivered: AtomicUsize,
    failed: AtomicUsize,
    abandoned: AtomicUsize,
    done: Mutex<Option<Done>>,
    /// Whether it is enough for streams and workers to have it in their queue.
    pub(crate) queued_is_delivered: bool,
}

impl Tracker {
    /// For a publisher, who does not want to wait until somebody reads a stream.
    pub(crate) fn for_publisher(done: impl FnOnce(DeliveryOutcome) + Send + 'static) -> Arc<Self> {
        Self::new(done, true)
    }

    /// For a transport, which acknowledges what is done and not what is queued.
    pub(crate) fn for_ack(done: impl FnOnce(DeliveryOutcome) + Send + 'static) -> Arc<Self> {
        Self::new(done, false)
    }

    fn new(done: impl FnOnce(DeliveryOutcome) + Send + 'static, queued_is_delivered: bool) -> Arc<Self> {
        Arc::new(Self {
            queued_is_delivered,
            open: AtomicUsize::new(1),
            delivered: AtomicUsize::new(0),
            failed: AtomicUsize::new(0),
            abandoned: AtomicUsize::new(0),
            done: Mutex::new(Some(Box::new(done))),
        })
    }

    pub(crate) fn receipt(self: &Arc<Self>) -> Receipt {
        self.open.fetch_add(1, Ordering::Relaxed);
        Receipt(Some(Arc::clone(self)))
    }

    /// It is in a queue, where that is enough.
    pub(crate) fn queued(&self) {
        self.delivered.fetch_add(1, Ordering::Relaxed);
    }

    /// There was no room for it, or it failed, without a receipt.
    pub(crate) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Nobody here takes it.
    pub(crate) fn abandoned(self: &Arc<Self>) {
        drop(self.receipt());
        self.sealed();
    }

    /// No more receipts will be handed out.
    pub(crate) fn sealed(&self) {
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            let done = self.done.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(done) = done {
                done(DeliveryOutcome {
                    delivered: self.delivered.load(Ordering::Relaxed),
                    failed: self.failed.load(Ordering::Relaxed),
                    abandoned: self.abandoned.load(Ordering::Relaxed),
                });
            }
        }
    }
}

/// One subscriber's part in an event that is followed.
pub(crate) struct Receipt(Option<Arc<Tracker>>);

impl Receipt {
    pub(crate) fn complete(mut self, well: bool) {
        if let Some(tracker) = self.0.take() {
            let counter = if well { &tracker.delivered } else { &tracker.failed };
            counter.fetch_add(1, Ordering::Relaxed);
            tracker.sealed();
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if let Some(tracker) = self.0.take() {
            tracker.abandoned.fetch_add(1, Ordering::Relaxed);
            tracker.sealed();
        }
    }
}
