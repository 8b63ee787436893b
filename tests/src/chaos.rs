//! Faults under load, and a verdict: whatever is killed, whenever, no task that was answered 201 is lost, none ends
//! twice and none is stuck.
//!
//! [`Load`] submits and works over HTTP all the while, and writes down what it was promised in a [`Ledger`]. A test (or
//! a longer soak run) kills, cuts and restores in the meantime. At the end [`judge`] compares the promises with what
//! the servers say. What a fault is, is the test's business; nothing here knows.

mod api;
mod broker;
mod judge;
mod ledger;
mod load;
mod random;

pub use self::{
    api::{Answer, Api},
    broker::{BrokerWorkers, Watchers},
    judge::{Verdict, judge, wait_until_drained},
    ledger::Ledger,
    load::{Load, LoadOptions, SERVICE, consumer, declare, declare_service},
    random::{Random, seed},
};

/// How often a fault happens in a run: so many times, or as often as `RELAIS_CHAOS_ROUNDS` says.
pub fn rounds(usual: usize) -> usize {
    std::env::var("RELAIS_CHAOS_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(usual)
}
