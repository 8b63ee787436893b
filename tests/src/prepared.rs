//! What `cargo xtask test` installs for tests that run programs in other languages.

use std::{env, path::PathBuf};

use anyhow::{Context, Result, ensure};

/// An interpreter of Python with what the Python library and the examples need.
pub fn python() -> Result<PathBuf> {
    prepared("RELAIS_TEST_PYTHON", "sdk-python/bin/python")
}

/// A folder with the `node_modules` that the JavaScript library and the examples need.
pub fn javascript() -> Result<PathBuf> {
    prepared("RELAIS_TEST_JAVASCRIPT", "sdk-javascript")
}

/// target/debug/deps/worker-0123 → target
pub fn target() -> Result<PathBuf> {
    let this = env::current_exe().context("where is this test?")?;
    Ok(this.ancestors().nth(3).context("this test is not in a target folder")?.to_owned())
}

/// What `variable` names, or what is at `path` in the target folder.
fn prepared(variable: &str, path: &str) -> Result<PathBuf> {
    let prepared = match env::var_os(variable) {
        Some(named) => PathBuf::from(named),
        None => target()?.join(path),
    };
    ensure!(
        prepared.exists(),
        "{} is not there: `cargo xtask test` makes it; or name another one in {variable}",
        prepared.display()
    );
    Ok(prepared)
}
