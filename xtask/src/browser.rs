//! A browser for the tests of the dashboard, and axe, which finds what keeps people out of it.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result};

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
    let folder = target_directory()?.join("axe");
    let package = folder.join("node_modules/axe-core");
    let script = package.join("axe.min.js");
    let installed = fs::read_to_string(package.join("package.json")).unwrap_or_default();
    if script.is_file() && installed.contains(&format!("\"version\": \"{VERSION}\"")) {
        return Ok(script);
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let wanted = format!("axe-core@{VERSION}");
    run(Command::new("npm")
        .args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--prefix"])
        .arg(&folder)
        .arg(&wanted))?;
    Ok(script)
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
