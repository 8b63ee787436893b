//! Debian packages: installed where that is possible, named where it is not. And single packages of npm.
//!
//! Only what the tests cannot do without. Never touches a machine whose owner did not run this as
//! root.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::cargo::{output, run};

/// Installs a Debian package, or explains how to. `what` completes "… is missing".
pub fn install(what: &str, package: &str) -> Result<()> {
    let family = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let debian = family.contains("debian") || family.contains("ubuntu");
    if !debian {
        bail!("{what} is missing. On Debian or Ubuntu it is the package {package}; install your system's");
    }
    if !is_root()? {
        bail!("{what} is missing. Get it with: sudo apt-get install --no-install-recommends {package}");
    }
    eprintln!("{what} is missing; installing the package {package}");
    run(&mut apt(&["update"]))?;
    run(&mut apt(&["install", "-y", "--no-install-recommends", package]))
        .with_context(|| format!("cannot install {package}"))
}

/// Makes sure that these programs are in PATH; each is in the package of its own name.
pub fn ensure(programs: &[&str]) -> Result<()> {
    programs.iter().filter(|program| !has(program)).try_for_each(|program| install(program, program))
}

/// Makes sure that OpenSSL's headers are there, which librdkafka is built with.
pub fn ensure_openssl() -> Result<()> {
    ensure(&["pkg-config"])?;
    let found = Command::new("pkg-config").args(["--exists", "openssl"]).status().context("cannot run pkg-config")?;
    if found.success() { Ok(()) } else { install("OpenSSL to build with", "libssl-dev") }
}

/// Whether a program is in PATH.
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Installs one version of an npm package into a folder, if it is not there already; where it is. Its scripts are not run.
pub fn npm(folder: &Path, package: &str, version: &str) -> Result<PathBuf> {
    let place = folder.join("node_modules").join(package);
    let installed = fs::read_to_string(place.join("package.json")).unwrap_or_default();
    if !installed.contains(&format!("\"version\": \"{version}\"")) {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        run(Command::new("npm")
            .args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--prefix"])
            .arg(folder)
            .arg(format!("{package}@{version}")))?;
    }
    Ok(place)
}

fn apt(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Whether this runs as root.
pub fn is_root() -> Result<bool> {
    Ok(output(Command::new("id").arg("-u"))?.trim_ascii() == b"0")
}
