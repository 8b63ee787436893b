//! The JavaScript library: its types are checked, and its tests run against the server that was built and a real
//! broker.
//!
//! Works in a copy under the target directory, so that what npm installs is neither in the tree nor fetched again for
//! every clone.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, bail};

use crate::{
    cargo::{self, cargo, output, root, run as execute},
    packages, rabbitmq,
};

/// Where it is in the tree.
const PACKAGE: &str = "sdk/javascript";

/// Names the copy, for the workspace's tests that run workers of the library: they take what npm installed there.
pub const VARIABLE: &str = "RELAIS_TEST_JAVASCRIPT";

/// The oldest Node that the library promises to run on.
const OLDEST_NODE: u32 = 18;

/// Makes sure that there are Node and npm, before minutes are spent on building.
pub fn ensure_installed() -> Result<()> {
    if Command::new("node").arg("--version").output().is_err() {
        packages::install("node", "nodejs")?;
    }
    let version = String::from_utf8_lossy(&output(Command::new("node").arg("--version"))?).trim().to_owned();
    match major(&version) {
        Some(major) if major >= OLDEST_NODE => packages::ensure(&["npm"]),
        _ => bail!("node is {version}; the JavaScript library needs {OLDEST_NODE} or later"),
    }
}

/// Builds the server, then checks and tests the library.
pub fn run_alone() -> Result<()> {
    ensure_installed()?;
    rabbitmq::ensure_installed()?;
    execute(&mut cargo("build --workspace --bin relais --bin relais-testkit-rabbitmq".split(' ')))?;
    let mut broker = rabbitmq::Server::begin()?;
    run(&broker.url()?)
}

/// Makes a copy that has what the library needs.
pub fn prepare() -> Result<PathBuf> {
    let copy = copy()?;
    install(&copy)?;
    Ok(copy)
}

/// Checks and tests the library with the server that has been built and the broker at `broker`.
pub fn run(broker: &str) -> Result<()> {
    let copy = prepare()?;
    let start = Instant::now();
    execute(Command::new("npm").args(["run", "--silent", "check"]).current_dir(&copy))?;
    let mut tests = Command::new("node");
    tests.args(["--test", "--test-concurrency=2", "--test-reporter=spec"]).args(test_files(&copy)?).current_dir(&copy);
    tests.env("RELAIS_BIN", cargo::binary("debug", "relais")?).env(rabbitmq::VARIABLE, broker);
    execute(&mut tests)?;
    println!("sdk-javascript: passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// What is, or could be, committed; what was copied before and is no more goes away. What npm installed stays.
fn copy() -> Result<PathBuf> {
    let copy = cargo::target_directory()?.join("sdk-javascript");
    let list = output(
        Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", PACKAGE])
            .current_dir(root()),
    )?;
    for entry in copy.read_dir().into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_name().to_str() {
            Some("node_modules" | INSTALLED) => {}
            _ if path.is_dir() => {
                fs::remove_dir_all(&path).with_context(|| format!("cannot clear {}", path.display()))?
            }
            _ => fs::remove_file(&path).with_context(|| format!("cannot clear {}", path.display()))?,
        }
    }
    for path in String::from_utf8_lossy(&list).split_terminator('\0') {
        let (from, to) = (root().join(path), copy.join(Path::new(path).strip_prefix(PACKAGE)?));
        // Listed but deleted.
        if !from.is_file() {
            continue;
        }
        let folder = to.parent().context("a file without a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(copy)
}

/// Keeps the lock file of what is installed.
const INSTALLED: &str = "installed.lock";

/// Installs what the lock file names, if that is not there already.
fn install(copy: &Path) -> Result<()> {
    let wanted = fs::read(copy.join("package-lock.json")).context("there is no lock file")?;
    let installed = copy.join(INSTALLED);
    if fs::read(&installed).is_ok_and(|there| there == wanted) {
        return Ok(());
    }
    execute(Command::new("npm").args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(copy))?;
    fs::write(&installed, wanted).context("cannot note what is installed")
}

/// By name: which files a folder stands for differs between versions of Node.
fn test_files(copy: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in copy.join("test").read_dir().context("there are no tests")? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(".test.js") {
            files.push(path);
        }
    }
    if files.is_empty() {
        bail!("there are no tests in {}", copy.display());
    }
    files.sort();
    Ok(files)
}

fn major(version: &str) -> Option<u32> {
    version.strip_prefix('v')?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::major;

    #[test]
    fn the_version_of_node_is_understood() {
        assert_eq!(major("v20.20.2"), Some(20));
        assert_eq!(major("v18.19.1"), Some(18));
        assert_eq!(major("nonsense"), None);
    }
}
