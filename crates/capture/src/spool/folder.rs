//! The folder of one stream in a spool's directory. A lock says that it is in use, so that what a dead process left is
//! told from what another one needs.

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// What the names of folders end with. Nothing else in the directory is ever touched.
const SUFFIX: &str = "spool";

/// What the names of files in a folder end with.
const CHANGES: &str = "changes";

/// Locked for as long as the folder is in use.
const LOCK: &str = "lock";

/// Locked while folders are made and removed.
const DIRECTORY_LOCK: &str = "spool.lock";

/// A folder for the files of one stream. Removed with its files when it is dropped.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Let go by the kernel if the process dies.
    _lock: File,
}

impl Folder {
    /// Makes a folder, and removes those of dead processes.
    pub(super) fn create(directory: &Path, name: &str) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let door = lock_file(&directory.join(DIRECTORY_LOCK))?;
        // Between the making of a folder and its lock, nobody may take it for one that is left over.
        door.lock()?;
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.extension() == Some(OsStr::new(SUFFIX)) && path.is_dir() {
                remove_if_unused(&path);
            }
        }
        let process = std::process::id();
        let mut number = 0_u64;
        let path = loop {
            let path = directory.join(format!("{name}-{process}-{number}.{SUFFIX}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => break path,
                // Of another stream of this process, or of another machine with the same disk.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
            }
        };
        let lock = lock_file(&path.join(LOCK)).and_then(|lock| {
            lock.lock()?;
            Ok(lock)
        });
        match lock {
            Ok(_lock) => Ok(Self { path, _lock }),
            Err(error) => {
                remove(&path);
                Err(error)
            }
        }
    }

    /// Makes the file of a transaction, for this user only.
    pub(super) fn create_file(&self, transaction: u32) -> io::Result<(File, PathBuf)> {
        let path = self.path.join(format!("{transaction}.{CHANGES}"));
        let file = OpenOptions::new().create_new(true).read(true).append(true).mode(0o600).open(&path)?;
        Ok((file, path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn lock_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
}

/// Removes the folder of a process that is gone.
fn remove_if_unused(path: &Path) {
    let unused = match File::open(path.join(LOCK)) {
        Ok(lock) => match lock.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
        },
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    if unused {
        remove(path);
        if !path.exists() {
            tracing::info!(path = %path.display(), "removed what a process that is gone had left in the spool");
        }
    }
}

/// Removes the files that are ours, then the folder; one that has others stays.
fn remove(path: &Path) {
    let Ok(entries) = fs::read_dir(path) else { return };
    let files = entries.flatten().map(|entry| entry.path());
    for file in files.filter(|file| file.extension() == Some(OsStr::new(CHANGES))) {
        let _ = fs::remove_file(file);
    }
    let _ = fs::remove_file(path.join(LOCK));
    if let Err(error) = fs::remove_dir(path) {
        tracing::warn!(path = %path.display(), %error, "failed to remove a folder of the spool");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name != DIRECTORY_LOCK).collect();
        names.sort();
        names
    }

    #[test]
    fn what_dead_processes_left_is_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let alive = Folder::create(directory.path(), "orders").unwrap();
        let (_file, used) = alive.create_file(7).unwrap();
        // As a process leaves it that is killed.
        fs::create_dir(at("orders-1-0.spool")).unwrap();
        fs::write(at("orders-1-0.spool/9.changes"), "rows").unwrap();
        fs::write(at("orders-1-0.spool/lock"), "").unwrap();
        fs::create_dir(at("other-1-0.spool")).unwrap();
        // Somebody else's.
        fs::create_dir(at("photos")).unwrap();
        fs::write(at("notes.changes"), "mine").unwrap();
        fs::create_dir(at("strange.spool")).unwrap();
        fs::write(at("strange.spool/keep"), "mine").unwrap();

        let next = Folder::create(directory.path(), "orders").unwrap();

        let process = std::process::id();
        let kept = [format!("orders-{process}-0.spool"), format!("orders-{process}-1.spool")];
        let others = ["notes.changes", "photos", "strange.spool"].map(str::to_owned);
        assert_eq!(
            names(directory.path()),
            others
                .iter()
                .chain(&kept)
                .cloned()
                .collect::<std::collections::BTreeSet<_>>()
                .into_iter()
                .collect::<Vec<_>>()
        );
        assert!(used.exists() && at("strange.spool/keep").exists());
        drop((alive, next));
        assert_eq!(names(directory.path()), others);
    }

    #[test]
    fn only_this_user_can_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("made");
        let folder = Folder::create(&inner, "orders").unwrap();
        let (_file, path) = folder.create_file(7).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&inner), mode(&folder.path), mode(&path)), (0o700, 0o700, 0o600));
    }
}
