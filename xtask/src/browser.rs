//! A browser for the tests of the dashboard, and axe, which finds what keeps people out of it.

use std::path::PathBuf;

use anyhow::Result;

use crate::{
    cargo::{cargo, root, run, target_directory},
    packages,
};

/// Names axe to the tests.
pub const AXE: &str = "RELAIS_TEST_AXE";

/// The version that judges.
const VERSION: &str = "4.10.3";

/// Makes sure that both are there; tells where axe is. It is kept under the target directory.
pub fn ensure_installed() -> Result<PathBuf> {
    if std::env::var_os("RELAIS_TEST_CHROMIUM").is_none() && !is_there() {
        packages::ensure(&["chromium"])?;
    }
    Ok(packages::npm(&target_directory()?.join("axe"), "axe-core", VERSION)?.join("axe.min.js"))
}

/// Draws the pictures of the README, by the test that shows that they can be drawn.
pub fn pictures() -> Result<()> {
    let axe = ensure_installed()?;
    let mut test = cargo(["test", "--package", "relais-tests", "--test", "ui", "--", "drawn::"]);
    run(test.env("RELAIS_PICTURES", root().join("docs/images")).env(AXE, axe))
}

fn is_there() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let known = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&path).any(|folder| known.iter().any(|name| folder.join(name).is_file()))
}
