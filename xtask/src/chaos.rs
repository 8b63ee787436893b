//! The long runs with faults, which the suite has short versions of.

use anyhow::Result;

use crate::cargo::{cargo, run as execute};

/// How long the run is, unless the environment says otherwise.
const LENGTH: [(&str, &str); 2] = [("RELAIS_CHAOS_MESSAGES", "100000"), ("RELAIS_CHAOS_FAULTS", "100")];

/// Breaks the outbox for minutes, and prints what became of its messages.
pub fn run() -> Result<()> {
    let mut test = cargo(["test", "-p", "relais-outbox", "--test", "outbox_chaos", "--", "--nocapture"]);
    for (name, value) in LENGTH {
        if std::env::var_os(name).is_none() {
            test.env(name, value);
        }
    }
    execute(&mut test)
}
