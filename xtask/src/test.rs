//! `cargo xtask test`: everything that needs running code.
//!
//! From a fresh clone to a verdict. Does not lint: that is `cargo xtask check`.

use std::time::Instant;

use anyhow::Result;

use crate::{
    browser,
    cargo::{self, cargo, run as execute},
    chart, fuzz_api, graphs, packages, postgres, rabbitmq, sdk_javascript, sdk_python,
};

/// Runs all tests, or those whose name contains one of `filters`, and says how long it took.
pub fn run(filters: &[String]) -> Result<()> {
    let start = Instant::now();
    let result = test(filters);
    let verdict = if result.is_ok() { "passed" } else { "FAILED" };
    println!("test: {verdict} in {:.0} s", start.elapsed().as_secs_f64());
    result
}

fn test(filters: &[String]) -> Result<()> {
    postgres::ensure_installed()?;
    rabbitmq::ensure_installed()?;
    // The examples are workers in Python and in shell, and are run as they are.
    packages::ensure(&["curl", "jq", "python3", "redis-server"])?;
    // Receivers of callbacks are in JavaScript too.
    sdk_javascript::ensure_installed()?;
    // The dashboard is looked at in a real browser.
    let axe = browser::ensure_installed()?;
    graphs::ensure_installed()?;
    // RabbitMQ takes seconds to start, and does so while everything else is compiled. A test and the
    // whole workspace are named although this is for one binary: with them, dependencies get the
    // very features that `cargo test` wants, and are compiled once instead of twice.
    execute(&mut cargo("build --workspace --bin relais-testkit-rabbitmq --test rabbitmq".split(' ')))?;
    let mut broker = rabbitmq::Server::begin()?;
    // `--tests` for the same reason.
    execute(&mut cargo(["build", "--workspace", "--bins", "--tests"]))?;
    let server = postgres::Server::start()?;

    let mut tests = cargo(["test", "--workspace", "--no-fail-fast"]);
    if !filters.is_empty() {
        tests.arg("--").args(filters);
    }
    tests.env(postgres::VARIABLE, server.url()).env(rabbitmq::VARIABLE, broker.url()?);
    let relais = cargo::binary("debug", "relais")?;
    tests.env("RELAIS_BIN", &relais).env(browser::AXE, &axe);
    execute(&mut tests)?;

    if filters.is_empty() {
        fuzz_api::run_built()?;
        sdk_javascript::run(&broker.url()?)?;
        sdk_python::run(&relais, &broker.url()?)?;
        chart::run_built()?;
        graphs::run_built()?;
        // The transports of the bus are behind features that nothing else turns on.
        let mut bus = cargo("test --package relais-bus --all-features --test redis --test postgres".split(' '));
        execute(bus.env(postgres::VARIABLE, server.url()))?;
        // Last, since it replaces the binary by one with traces and KEDA's scaler, which nobody else needs.
        let features = "test --package relais-server --features otlp,keda --test otlp --test scaler";
        execute(&mut cargo(features.split(' ')))?;
    }
    Ok(())
}
