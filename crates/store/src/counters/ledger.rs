//! Collects what one transaction adds to the counters: which tasks moved from which status to which, and which left
//! their queue.

use std::collections::BTreeMap;

use relais_core::{BatchCounts, BatchId, ClientKey, ServiceKey, Status, position, position::Node};

use crate::{
    batches::statements::BatchMoves,
    counters::statements::{ALL_CLIENTS, Accounts, Counter},
};

/// What one transaction adds to the counters. Sorted, so that rows are always locked in the same order.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    counts: BTreeMap<Counter, i64>,
    departures: BTreeMap<(ServiceKey, Node), i64>,
    batches: BTreeMap<BatchId, BatchMoves>,
}

impl Ledger {
    /// Counts a new pending task.
    pub(crate) fn arrived(&mut self, service: ServiceKey, client: ClientKey) {
        self.add(service, client, Status::Pending, false, 1);
    }

    /// Counts a task that changed its status. If both are the same, nothing is counted.
    pub(crate) fn moved(&mut self, service: ServiceKey, client: ClientKey, seq: i64, from: Status, to: Status) {
        if from == to {
            return;
        }
        self.add(service, client, from, true, 1);
        if to == Status::Pending {
            // It takes its old place again, as if it had never left. Arrivals number the tasks: this is not one.
            self.add(service, client, Status::Pending, true, -1);
            self.depart(service, seq, -1);
            return;
        }
        self.add(service, client, to, false, 1);
        if from == Status::Pending {
            self.depart(service, seq, 1);
        }
    }

    /// Counts a task of a batch that changed its status; `from` is none for a new task.
    pub(crate) fn moved_in_batch(&mut self, batch: Option<BatchId>, from: Option<Status>, to: Status) {
        let (from, to) = (from.map(BatchCounts::slot), BatchCounts::slot(to));
        let Some(batch) = batch.filter(|_| from != Some(to)) else { return };
        let moves = self.batches.entry(batch).or_default();
        moves[to] += 1;
        if let Some(from) = from {
            moves[from] -= 1;
        }
    }

    /// Counts a task that was removed.
    pub(crate) fn removed(&mut self, service: ServiceKey, client: ClientKey, seq: i64, from: Status) {
        // Totals of finished tasks are kept: they say how many there were, ever.
        if !from.is_final() {
            self.add(service, client, from, true, 1);
        }
        if from == Status::Pending {
            self.depart(service, seq, 1);
        }
    }

    /// What is to be written. Sums of zero are left out.
    pub(crate) fn close(self) -> Accounts {
        let departures = self.departures.into_iter().filter(|&(_, n)| n != 0);
        Accounts {
            counts: self.counts.into_iter().filter(|&(_, n)| n != 0).collect(),
            departures: departures.map(|((service, node), n)| (service, node, n)).collect(),
            batches: self.batches.into_iter().filter(|(_, moves)| *moves != BatchMoves::default()).collect(),
        }
    }

    fn add(&mut self, service: ServiceKey, client: ClientKey, status: Status, departed: bool, n: i64) {
        *self.counts.entry(Counter { service, client: ALL_CLIENTS, status, departed }).or_default() += n;
        // A client's share is what is not finished.
        if !status.is_final() {
            *self.counts.entry(Counter { service, client, status, departed }).or_default() += n;
        }
    }

    fn depart(&mut self, service: ServiceKey, seq: i64, n: i64) {
        for node in position::nodes(seq) {
            *self.departures.entry((service, node)).or_default() += n;
        }
    }
}
