//! The bus's side of a subscription: its queue, its policy, and what became of the events that were meant for it.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use metrics::Gauge;
use serde::Serialize;
use tokio::task::AbortHandle;

use crate::{Event, Pattern, queue::Queue, receipt::Receipt};

/// The gauge of waiting events is brought up to date when a batch is taken, and on every so many events.
const REPORT_EVERY: usize = 64;

/// What happens to an event that finds a subscriber's queue full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Backpressure {
    /// Wait for the offer timeout (100 ms), then drop it and count it.
    Drop,
    /// Wait for the offer timeout, then make it a dead letter.
    DeadLetter,
    /// Wait as long as it takes. The publisher waits too.
    Block,
}

/// Who takes the events out of the queue. Decides when an event counts as delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SubscriberKind {
    /// A stream, read by its owner.
    Stream,
    /// A handler, called for each.
    Handler,
    /// A push worker.
    Worker,
}

/// An event on its way to one subscriber.
pub(crate) struct Item {
    pub(crate) event: Arc<Event>,
    pub(crate) receipt: Option<Receipt>,
}

impl Item {
    pub(crate) fn complete(&mut self, well: bool) {
        if let Some(receipt) = self.receipt.take() {
            receipt.complete(well);
        }
    }
}

pub(crate) struct Subscriber {
    pub(crate) id: u64,
    pub(crate) name: Arc<str>,
    pub(crate) kind: SubscriberKind,
    pub(crate) patterns: Vec<Pattern>,
    pub(crate) queue: Queue<Item>,
    pub(crate) backpressure: Backpressure,
    pub(crate) patience: Duration,
    pub(crate) counts: Counts,
    /// The task of a handler, for a bus that can not wait any longer.
    pub(crate) task: OnceLock<AbortHandle>,
    /// How many of ours the gauge knows of.
    reported: AtomicI64,
    gone: AtomicBool,
    gauge: Gauge,
}

/// What became of the events that were meant for a subscriber, or came through a channel.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) delivered: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) dead_lettered: AtomicU64,
}

impl Subscriber {
    pub(crate) fn new(
        id: u64,
        name: Arc<str>,
        kind: SubscriberKind,
        patterns: Vec<Pattern>,
        capacity: usize,
        (backpressure, patience): (Backpressure, Duration),
        gauge: Gauge,
    ) -> Self {
        Self {
            id,
            name,
            kind,
            patterns,
            queue: Queue::new(capacity),
            backpressure,
            patience,
            counts: Counts::default(),
            task: OnceLock::new(),
            reported: AtomicI64::new(0),
            gone: AtomicBool::new(false),
            gauge,
        }
    }

    /// After a push: `len` wait now.
    pub(crate) fn pushed(&self, len: usize) {
        self.counts.delivered.fetch_add(1, Ordering::Relaxed);
        if len.is_multiple_of(REPORT_EVERY) {
            self.report();
        }
    }

    /// Tells the gauge how many wait, as a difference: it is the sum of all subscribers.
    pub(crate) fn report(&self) {
        let len = i64::try_from(self.queue.len()).unwrap_or(i64::MAX);
        let difference = len - self.reported.swap(len, Ordering::SeqCst);
        if difference != 0 {
            self.gauge.increment(difference as f64);
        }
        // One that left in between, or before, has nothing on the gauge.
        if self.gone.load(Ordering::SeqCst) {
            self.report_gone();
        }
    }

    /// Takes it off the gauge for good.
    pub(crate) fn report_gone(&self) {
        self.gone.store(true, Ordering::SeqCst);
        let known = self.reported.swap(0, Ordering::SeqCst);
        if known != 0 {
            self.gauge.decrement(known as f64);
        }
    }

    pub(crate) fn stats(&self) -> SubscriptionStats {
        SubscriptionStats {
            id: self.id,
            name: self.name.to_string(),
            kind: self.kind,
            patterns: self.patterns.iter().map(Pattern::to_string).collect(),
            backpressure: self.backpressure,
            waiting: self.queue.len(),
            capacity: self.queue.capacity(),
            delivered: self.counts.delivered.load(Ordering::Relaxed),
            failed: self.counts.failed.load(Ordering::Relaxed),
            dropped: self.counts.dropped.load(Ordering::Relaxed),
            dead_lettered: self.counts.dead_lettered.load(Ordering::Relaxed),
        }
    }
}

impl std::fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscriber").field("id", &self.id).field("name", &self.name).finish_non_exhaustive()
    }
}

/// One subscription, as [`Bus::subscriptions`](crate::Bus::subscriptions) shows it.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct SubscriptionStats {
    /// Its number in this bus.
    pub id: u64,
    /// Its name; the patterns unless given.
    pub name: String,
    /// Who takes its events.
    pub kind: SubscriberKind,
    /// What it is subscribed to.
    pub patterns: Vec<String>,
    /// What happens when its queue is full.
    pub backpressure: Backpressure,
    /// Events that wait.
    pub waiting: usize,
    /// Events that can wait.
    pub capacity: usize,
    /// Events that were put into its queue.
    pub delivered: u64,
    /// Events that its handler failed on.
    pub failed: u64,
    /// Events that were lost to it: its queue stayed full, or it was stopped before it got to them.
    pub dropped: u64,
    /// Events that went to the dead letters instead.
    pub dead_lettered: u64,
}
