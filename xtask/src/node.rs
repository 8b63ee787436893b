//! JavaScript libraries of the tree: where they are checked and tested, and what npm installs for them.
//!
//! Each works in a copy under the target directory, so that what npm installs is neither in the tree nor fetched again for
//! every clone. What a library's commands are is its own module's.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    cargo::{output, root, run, target_directory},
    packages,
};

/// Makes sure that there are npm and Node, of this version or later, before minutes are spent on building.
pub fn ensure_installed(oldest: u32) -> Result<()> {
    if Command::new("node").arg("--version").output().is_err() {
        packages::install("node", "nodejs")?;
    }
    let version = String::from_utf8_lossy(&output(Command::new("node").arg("--version"))?).trim().to_owned();
    match major(&version) {
        Some(major) if major >= oldest => packages::ensure(&["npm"]),
        _ => bail!("node is {version}; the JavaScript libraries need {oldest} or later"),
    }
}

/// A command of a package's copy.
pub fn command(copy: &Path, program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(copy);
    command
}

/// Makes a copy of a package (`sdk/javascript`) that has what it needs.
pub fn prepare(package: &str) -> Result<PathBuf> {
    let copy = copy(package)?;
    install(&copy)?;
    Ok(copy)
}

/// What is, or could be, committed; what was copied before and is no more goes away. What npm installed stays.
fn copy(package: &str) -> Result<PathBuf> {
    let copy = target_directory()?.join(package.replace('/', "-"));
    let list = output(
        Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", package])
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
        let (from, to) = (root().join(path), copy.join(Path::new(path).strip_prefix(package)?));
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
    run(Command::new("npm").args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(copy))?;
    fs::write(&installed, wanted).context("cannot note what is installed")
}

/// By name: which files a folder stands for differs between versions of Node.
pub fn test_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in folder.read_dir().context("there are no tests")? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(".test.js") {
            files.push(path);
        }
    }
    if files.is_empty() {
        bail!("there are no tests in {}", folder.display());
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
