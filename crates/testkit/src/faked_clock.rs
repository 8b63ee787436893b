//! A clock that a test sets while programs run by it: libfaketime, which tells the time in the place of the C library.
//!
//! The programs are the real ones, and so is the clock that nobody can set: only the time of day is told otherwise.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// Where Debian's package has it, on whatever machine.
const LIBRARIES: &str = "/usr/lib";
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// A clock that is right until it is set.
#[derive(Debug)]
pub struct FakedClock {
    directory: TempDir,
    library: PathBuf,
}

impl FakedClock {
    /// A clock for programs that are started with its [`environment`](Self::environment).
    pub fn create() -> Result<Self> {
        let directory = tempfile::tempdir().context("make a folder for a clock")?;
        // Servers run as somebody else.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).context("open a clock's folder")?;
        let clock = Self { directory, library: library()? };
        clock.set(0)?;
        Ok(clock)
    }

    /// Sets it so many seconds ahead of what it would be, or behind.
    pub fn set(&self, seconds: i64) -> Result<()> {
        // As a whole: it is read at every look at the clock.
        let (new, file) = (self.directory.path().join("new"), self.file());
        fs::write(&new, format!("{seconds:+}\n")).context("write what the clock is to say")?;
        fs::rename(new, file).context("set the clock")
    }

    /// What programs are started with that are to live by it.
    pub fn environment(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.display().to_string();
        [
            ("LD_PRELOAD", text(&self.library)),
            ("FAKETIME_TIMESTAMP_FILE", text(&self.file())),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("clock")
    }
}

fn library() -> Result<PathBuf> {
    let folders = fs::read_dir(LIBRARIES).context("look for libraries")?;
    let found = folders.flatten().map(|folder| folder.path().join(LIBRARY)).find(|path| path.is_file());
    found.context("libfaketime is missing: on Debian or Ubuntu it is the package faketime")
}
