//! The metrics of deduplication, through the `metrics` facade. Install the recorder first.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use metrics::{Counter, counter};

use crate::{DedupError, Outcome};

/// So many consumers of a process have a label of their own.
const MOST_CONSUMERS: usize = 100;

/// The label of all others.
const OTHER: &str = "other";

/// What is counted for one consumer.
pub(crate) struct Metrics {
    done: Counter,
    already_done: Counter,
    busy: Counter,
    failed: Counter,
    unmarked: Counter,
    error: Counter,
}

impl Metrics {
    pub(crate) fn new(prefix: &str, consumer: &str) -> Self {
        let name = format!("{prefix}dedup_total");
        metrics::describe_counter!(name.clone(), "Messages that were to be processed once, by what became of them.");
        let consumer = label(consumer);
        let of = |outcome: &'static str| counter!(name.clone(), "consumer" => consumer.clone(), "outcome" => outcome);
        Self {
            done: of("done"),
            already_done: of("already_done"),
            busy: of("busy"),
            failed: of("failed"),
            unmarked: of("unmarked"),
            error: of("error"),
        }
    }

    pub(crate) fn count<T, E>(&self, outcome: &Result<Outcome<T, E>, DedupError>) {
        match outcome {
            Ok(Outcome::Done(_)) => &self.done,
            Ok(Outcome::AlreadyDone) => &self.already_done,
            Ok(Outcome::Busy { .. }) => &self.busy,
            Ok(Outcome::Failed(_)) => &self.failed,
            Err(_) => &self.error,
        }
        .increment(1);
    }

    /// A message was processed, and that is not stored.
    pub(crate) fn count_unmarked(&self) {
        self.unmarked.increment(1);
    }
}

/// Names may be made of ids: their number is limited.
fn label(consumer: &str) -> String {
    static KNOWN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if known.contains(consumer) || (known.len() < MOST_CONSUMERS && known.insert(consumer.to_owned())) {
        consumer.to_owned()
    } else {
        OTHER.to_owned()
    }
}
