//! The Python library's part of `cargo xtask test`: ruff, mypy, and its tests against the server that has been built.
//!
//! Needs that server and a broker, and starts neither.

use std::{fs, path::Path, process::Command, time::Instant};

use anyhow::{Context, Result};

use crate::{
    cargo::{self, root, run as execute},
    python, rabbitmq,
};

const LIBRARY: &str = "sdk/python";

/// Tests wait for servers more than they compute.
const AT_ONCE: &str = "3";

/// Checks the library and runs its tests with the server `relais` and the broker at `broker`.
pub fn run(relais: &Path, broker: &str) -> Result<()> {
    let library = root().join(LIBRARY);
    let requirements =
        fs::read_to_string(library.join("requirements-dev.txt")).context("cannot read the requirements")?;
    let target = cargo::target_directory()?;
    let programs = python::environment(&target.join("sdk-python"), &requirements)?;
    let start = Instant::now();
    let program = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(programs.join(name));
        command.args(arguments).current_dir(&library);
        // Nothing is left behind in the sources.
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("RUFF_NO_CACHE", "true");
        command.env("MYPY_CACHE_DIR", target.join("sdk-python-mypy"));
        command
    };
    execute(&mut program("ruff", &["check", "--quiet"]))?;
    execute(&mut program("ruff", &["format", "--check", "--quiet"]))?;
    execute(&mut program("mypy", &[]))?;
    let mut tests = program("python", &["-m", "pytest", "--quiet", "--numprocesses", AT_ONCE]);
    execute(tests.env("RELAIS_BIN", relais).env(rabbitmq::VARIABLE, broker))?;
    println!("sdk/python: passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
