//! A browser for the tests of the dashboard and of the browser library, and axe, which finds what keeps people out of it.

use std::{env, path::PathBuf};

use anyhow::Result;

use crate::{
    cargo::{cargo, root, run, target_directory},
    packages,
};

/// Names the browser to the tests.
pub const CHROMIUM: &str = "RELAIS_TEST_CHROMIUM";

/// Names axe to the tests.
pub const AXE: &str = "RELAIS_TEST_AXE";

/// The version that judges.
const VERSION: &str = "4.10.3";

/// Makes sure that both are there; tells where axe is. It is kept under the target directory.
pub fn ensure_installed() -> Result<PathBuf> {
    ensure_chromium()?;
    Ok(packages::npm(&target_directory()?.join("axe"), "axe-core", VERSION)?.join("axe.min.js"))
}

/// Makes sure that there is a browser.
pub fn ensure_chromium() -> Result<()> {
    if chromium().is_none() { packages::ensure(&["chromium"]) } else { Ok(()) }
}

/// The browser: the one that the environment names, or the first one in PATH.
pub fn chromium() -> Option<PathBuf> {
    if let Some(named) = env::var_os(CHROMIUM) {
        return Some(named.into());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let known = ["chromium", "chromium-browser", "google-chrome"];
    known.iter().find_map(|name| env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file()))
}

/// Draws the pictures of the README, by the test that shows that they can be drawn.
pub fn pictures() -> Result<()> {
    let axe = ensure_installed()?;
    let mut test = cargo(["test", "--package", "relais-tests", "--test", "ui", "--", "drawn::"]);
    run(test.env("RELAIS_PICTURES", root().join("docs/images")).env(AXE, axe))
}
