//! The Python library's part of `cargo xtask test`: ruff, mypy, and its tests against the server that has been built.
//!
//! Needs that server, a broker and a PostgreSQL, and starts none of them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result};

use crate::{
    cargo::{self, root, run as execute},
    postgres, python, rabbitmq,
};

const LIBRARY: &str = "sdk/python";

/// Names the interpreter that has what the library needs, for the workspace's tests that run workers of it.
pub const VARIABLE: &str = "RELAIS_TEST_PYTHON";

/// Tests wait for servers more than they compute.
const AT_ONCE: &str = "3";

/// Makes sure that what the library needs is there. Returns the directory of the programs.
pub fn prepare() -> Result<PathBuf> {
    let requirements = root().join(LIBRARY).join("requirements-dev.txt");
    let requirements = fs::read_to_string(requirements).context("cannot read the requirements")?;
    python::environment(&cargo::target_directory()?.join("sdk-python"), &requirements)
}

/// Checks the library and runs its tests with the server `relais`, the broker at `broker` and the PostgreSQL at `database`.
pub fn run(relais: &Path, broker: &str, database: &str) -> Result<()> {
    let (library, target, programs) = (root().join(LIBRARY), cargo::target_directory()?, prepare()?);
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
    tests.env("RELAIS_BIN", relais).env(rabbitmq::VARIABLE, broker).env(postgres::VARIABLE, database);
    execute(&mut tests)?;
    println!("sdk/python: passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
