//! `cargo xtask check`: what can be said about the code without running its tests.
//!
//! All checks run, and all that they find is shown, before the command fails: one round of
//! corrections, not seven.

mod dependencies;
mod licences;
mod spdx;
mod tidy;

use std::time::Instant;

use anyhow::{Result, bail};

use crate::{
    cargo::{cargo, run as execute},
    gen_files, packages,
};

type Check = fn() -> Result<()>;

/// In the order of what they cost.
const CHECKS: [(&str, Check); 6] = [
    ("formatting", formatting),
    ("tidiness", tidy::check),
    ("which crate knows which", dependencies::check),
    ("licences", licences::check),
    ("clippy", clippy),
    ("committed contracts", gen_files::check),
];

/// Runs every check.
pub fn run() -> Result<()> {
    let start = Instant::now();
    let mut failed = Vec::new();
    for (name, check) in CHECKS {
        match check() {
            Ok(()) => println!("check: {name}: fine"),
            Err(error) => {
                eprintln!("check: {name}: FAILED: {error:#}");
                failed.push(name);
            }
        }
    }
    let verdict = if failed.is_empty() { "passed" } else { "FAILED" };
    println!("check: {verdict} in {:.0} s", start.elapsed().as_secs_f64());
    if !failed.is_empty() {
        bail!("not in order: {}", failed.join(", "));
    }
    Ok(())
}

fn formatting() -> Result<()> {
    execute(&mut cargo(["fmt", "--all", "--check"]))
}

fn clippy() -> Result<()> {
    packages::ensure_openssl()?;
    let arguments = "clippy --workspace --all-targets --all-features -- -D warnings";
    execute(&mut cargo(arguments.split(' ')))
}

/// Fails with all findings at once, one per line.
fn verdict(findings: &[String]) -> Result<()> {
    if findings.is_empty() {
        return Ok(());
    }
    bail!("{} finding(s)\n  {}", findings.len(), findings.join("\n  "));
}
