//! `cargo xtask bench`: the benchmarks, on the binary that would ship.
//!
//! What is measured, and against what, is in the package relais-bench.

use anyhow::Result;

use crate::cargo::{self, cargo, run as execute};

/// Builds for release and runs relais-bench with `arguments`.
pub fn run(arguments: &[String]) -> Result<()> {
    execute(&mut cargo(["build", "--release", "-p", "relais-server"]))?;
    let mut bench = cargo(["run", "--release", "-p", "relais-bench", "--"]);
    bench.args(arguments).env("RELAIS_BIN", cargo::binary("release", "relais")?);
    execute(&mut bench)
}
