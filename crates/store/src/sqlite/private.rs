//! The files of a database are for the user that the process runs as, and for nobody else: requests, results and
//! signing secrets lie in them.
//!
//! SQLite gives `-wal` and `-shm` the mode of the database, so it is enough that the database has the right one before
//! SQLite opens it. A file that is there already is left as it is, since somebody may have shared it on purpose; there
//! is a warning. Where files have no mode, nothing is done.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

/// How to open a file that is to be written, and is made for its owner alone if there is none.
pub(crate) fn options() -> OpenOptions {
    let mut options = File::options();
    options.create(true).truncate(false).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Makes an empty database, unless there is one. Links are followed, as SQLite follows them.
pub(crate) fn create(file: &Path) -> io::Result<()> {
    if file.try_exists()? {
        // Not even opened: when a file is closed, POSIX drops all locks that the process has on it.
        return Ok(());
    }
    options().open(file).map(drop)
}

/// What to tell the operator if others can read the database, with the command that ends it.
pub(crate) fn warning(file: &Path) -> Option<String> {
    let beside = ["-wal", "-shm"].map(|suffix| with_suffix(file, suffix));
    let open: Vec<String> = std::iter::once(file.to_owned())
        .chain(beside)
        .filter(|path| is_readable_by_others(path))
        .map(|path| path.display().to_string())
        .collect();
    (!open.is_empty()).then(|| {
        format!(
            "other users of this machine can read the database, and signing secrets with it; chmod 600 {}",
            open.join(" ")
        )
    })
}

/// The path of a file beside another: the same name, with a suffix.
pub(crate) fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(suffix);
    name.into()
}

#[cfg(unix)]
fn is_readable_by_others(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;

    std::fs::metadata(file).is_ok_and(|found| found.permissions().mode() & 0o044 != 0)
}

#[cfg(not(unix))]
fn is_readable_by_others(_: &Path) -> bool {
    false
}
