//! The long runs with faults, which the suite has short versions of.

use anyhow::{Result, bail};

use crate::test;

/// A long run: its name, its test, and how long it is unless the environment says otherwise.
type Run = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const RUNS: [Run; 3] = [
    (
        "outbox",
        "nothing_is_lost_or_out_of_order_whatever_fails",
        &[("RELAIS_CHAOS_MESSAGES", "100000"), ("RELAIS_CHAOS_FAULTS", "100")],
    ),
    (
        "notifications",
        "nothing_is_lost_or_out_of_order_when_",
        &[
            ("RELAIS_CHAOS_LINKS", "1000"),
            ("RELAIS_CHAOS_INSTANCES", "3"),
            ("RELAIS_CHAOS_DELIVERIES", "100000"),
            ("RELAIS_CHAOS_FAULTS", "100"),
        ],
    ),
    (
        "kafka",
        "nothing_is_lost_or_passed_while_workers_on_kafka_are_killed",
        &[("RELAIS_CHAOS_MESSAGES", "100000"), ("RELAIS_CHAOS_FAULTS", "50")],
    ),
];

/// Breaks what is named, or everything, for minutes, and prints what became of the messages.
pub fn run(names: &[String]) -> Result<()> {
    if let Some(unknown) = names.iter().find(|name| RUNS.iter().all(|(run, ..)| run != *name)) {
        bail!("there is no chaos of {unknown}, but of outbox, notifications and kafka");
    }
    for (_, test, length) in RUNS.iter().filter(|(run, ..)| names.is_empty() || names.iter().any(|name| name == run)) {
        let unset = length.iter().filter(|(name, _)| std::env::var_os(name).is_none());
        test::run_long(test, &unset.copied().collect::<Vec<_>>())?;
    }
    Ok(())
}
