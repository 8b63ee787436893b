//! `cargo xtask bench`: the benchmarks, on the binary that would ship.
//!
//! What is measured, and against what, is in the package relais-bench.

use std::process::Command;

use anyhow::Result;

use crate::cargo::{self, cargo, run as execute};

/// Builds for release and runs relais-bench with `arguments`.
pub fn run(arguments: &[String]) -> Result<()> {
    // In one go: built one after the other, their features differ and both would be compiled twice.
    execute(&mut cargo(["build", "--release", "-p", "relais-server", "-p", "relais-bench"]))?;
    let mut bench = Command::new(cargo::binary("release", "relais-bench")?);
    bench.args(arguments).env("RELAIS_BIN", cargo::binary("release", "relais")?);
    execute(&mut bench)
}
