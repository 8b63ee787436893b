//! The browser library: its types and its size are checked, and its tests run: in Node, and in a real Chromium against
//! the server that was built.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::{
    browser,
    cargo::{self, cargo, run as execute},
    node,
};

/// Where it is in the tree.
const PACKAGE: &str = "sdk/browser";

/// The oldest Node that its tests run on; the library itself runs in browsers.
const OLDEST_NODE: u32 = 20;

/// Makes sure that there are Node, npm and a browser.
pub fn ensure_installed() -> Result<()> {
    node::ensure_installed(OLDEST_NODE)?;
    browser::ensure_chromium()
}

/// Builds the server, then checks and tests the library.
pub fn run_alone() -> Result<()> {
    ensure_installed()?;
    execute(&mut cargo("build --workspace --bin relais".split(' ')))?;
    run()
}

/// Checks and tests the library with the server that has been built.
pub fn run() -> Result<()> {
    let copy = node::prepare(PACKAGE)?;
    let start = Instant::now();
    execute(node::command(&copy, "npm").args(["run", "--silent", "check"]))?;
    execute(node::command(&copy, "npm").args(["run", "--silent", "size"]))?;
    let mut tests = node::command(&copy, "node");
    tests.args(["--test", "--test-concurrency=2", "--test-reporter=spec"]);
    // Those in the browser first: they take longest.
    tests.args(node::test_files(&copy.join("test/browser"))?).args(node::test_files(&copy.join("test"))?);
    tests.env("RELAIS_BIN", cargo::binary("debug", "relais")?);
    execute(tests.env(browser::CHROMIUM, browser::chromium().context("there is no chromium")?))?;
    println!("sdk-browser: passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
