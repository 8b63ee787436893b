//! Python environments of our own, under the target directory.
//!
//! Nothing is installed on the machine but what Debian splits from Python itself.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result};

use crate::{cargo::run as execute, packages};

/// Makes sure that the environment at `directory` has the packages that `requirements` names, one per line, as pip
/// reads them; installs them on first use and when they change. Returns the directory of its programs.
pub fn environment(directory: &Path, requirements: &str) -> Result<PathBuf> {
    install(directory, requirements, &[])
}

/// The same, without what those packages depend on.
pub fn environment_without_dependencies(directory: &Path, requirements: &str) -> Result<PathBuf> {
    install(directory, requirements, &["--no-deps"])
}

fn install(directory: &Path, requirements: &str, options: &[&str]) -> Result<PathBuf> {
    let programs = directory.join("bin");
    let installed = directory.join("installed");
    if fs::read_to_string(&installed).is_ok_and(|present| present == requirements) {
        return Ok(programs);
    }
    // Debian's python3 comes without the part that makes environments.
    if !can_make_environments() {
        packages::install("python3 with the module venv", "python3-venv")?;
    }
    execute(Command::new("python3").args(["-m", "venv", "--clear"]).arg(directory))?;
    let list = directory.join("requirements.txt");
    fs::write(&list, requirements).context("cannot write the requirements")?;
    let mut install = Command::new(programs.join("pip"));
    install.args(["install", "--quiet", "--disable-pip-version-check"]).args(options).arg("--requirement").arg(list);
    execute(&mut install).context("cannot install from PyPI")?;
    // Written last: an interrupted installation is done again.
    fs::write(&installed, requirements).context("cannot note the installation")?;
    Ok(programs)
}

/// A file that a package has brought into an environment, by the end of its path.
pub fn find(environment: &Path, end: &str) -> Option<PathBuf> {
    find_below(&environment.join("lib"), Path::new(end))
}

fn find_below(folder: &Path, end: &Path) -> Option<PathBuf> {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    entries.sort_unstable();
    entries.into_iter().find_map(|path| match path.is_dir() {
        true => find_below(&path, end),
        false => path.ends_with(end).then_some(path),
    })
}

fn can_make_environments() -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", "import venv, ensurepip"]).stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}
