//! The JavaScript library: its types are checked, and its tests run against the server that was built, a real
//! broker, and a real PostgreSQL and Redis.

use std::{path::PathBuf, time::Instant};

use anyhow::Result;

use crate::{
    cargo::{self, cargo, run as execute},
    node, packages, postgres, rabbitmq,
};

/// Where it is in the tree.
const PACKAGE: &str = "sdk/javascript";

/// Names the copy, for the workspace's tests that run workers of the library: they take what npm installed there.
pub const VARIABLE: &str = "RELAIS_TEST_JAVASCRIPT";

/// The oldest Node that the library promises to run on.
const OLDEST_NODE: u32 = 18;

/// Makes sure that there are Node and npm.
pub fn ensure_installed() -> Result<()> {
    node::ensure_installed(OLDEST_NODE)
}

/// Builds the server, then checks and tests the library.
pub fn run_alone() -> Result<()> {
    ensure_installed()?;
    rabbitmq::ensure_installed()?;
    postgres::ensure_installed()?;
    packages::ensure(&["redis-server"])?;
    let programs = "build --workspace --bin relais --bin relais-testkit-rabbitmq --bin relais-testkit-postgres";
    execute(&mut cargo(programs.split(' ')))?;
    let (mut broker, database) = (rabbitmq::Server::begin()?, postgres::Server::start()?);
    run(&broker.url()?, database.url())
}

/// Makes a copy that has what the library needs.
pub fn prepare() -> Result<PathBuf> {
    node::prepare(PACKAGE)
}

/// Checks and tests the library with the server that has been built, the broker at `broker` and the PostgreSQL at `database`.
pub fn run(broker: &str, database: &str) -> Result<()> {
    let copy = prepare()?;
    let start = Instant::now();
    execute(node::command(&copy, "npm").args(["run", "--silent", "check"]))?;
    let mut tests = node::command(&copy, "node");
    tests.args(["--test", "--test-concurrency=2", "--test-reporter=spec"]).args(node::test_files(&copy.join("test"))?);
    tests.env("RELAIS_BIN", cargo::binary("debug", "relais")?).env(rabbitmq::VARIABLE, broker);
    tests.env(postgres::VARIABLE, database);
    execute(&mut tests)?;
    println!("sdk-javascript: passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
