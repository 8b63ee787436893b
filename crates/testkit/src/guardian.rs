//! Cleaning up after this process, whatever becomes of it.
//!
//! A test process that is killed runs no destructor, nor does any process for its statics. So a
//! *guardian*, a few lines of `sh`, waits on a pipe that only this process holds; when the pipe
//! closes, for whatever reason, it kills what was started and deletes what was written.
//!
//! Only for what a directory and one process group can hold; does not watch over the network or
//! other people's servers.

use std::{
    io::Write,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// A temporary directory that goes away even when this process is killed.
#[derive(Debug)]
pub(crate) struct Scratch {
    directory: TempDir,
    guardian: Arc<Guardian>,
}

impl Scratch {
    /// Creates one in `parent`; its name begins with `prefix`.
    pub(crate) fn create(parent: &Path, prefix: &str) -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir_in(parent)
            .with_context(|| format!("create a directory in {}", parent.display()))?;
        let guardian = Arc::new(Guardian::spawn(directory.path())?);
        Ok(Self { directory, guardian })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn guardian(&self) -> &Arc<Guardian> {
        &self.guardian
    }
}

/// The `sh` that outlives us by the moment it takes to clean up.
#[derive(Debug)]
pub(crate) struct Guardian {
    /// Locked to write whole lines.
    shell: Mutex<Child>,
}

impl Guardian {
    /// `$1` is the directory to delete. Lines on standard input: `leader PID`, the group to kill;
    /// `ended`, it is gone. The end of the input says that it is time.
    const SCRIPT: &str = r#"
        while read -r word pid; do
            case "$word" in
                leader) leader="$pid" ;;
                ended) leader= ;;
            esac
        done
        if [ -n "$leader" ]; then
            kill -s STOP "$leader"
            for stat in /proc/[0-9]*/stat; do
                read -r pid _ _ parent _ <"$stat" || continue
                if [ "$parent" = "$leader" ]; then kill -s KILL "$pid"; fi
            done
            kill -s KILL -- "-$leader"
        fi
        rm -rf -- "$1"
    "#;

    fn spawn(directory: &Path) -> Result<Self> {
        let shell = Command::new("/bin/sh")
            .args(["-c", Self::SCRIPT, "guardian"])
            .arg(directory)
            .env_remove("leader")
            .current_dir("/")
            .stdin(Stdio::piped())
            // Not ours to hold open: whoever reads this process's output waits for its end.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C in a terminal ends the tests, not the one who cleans up after them.
            .process_group(0)
            .spawn()
            .context("start /bin/sh as a guardian")?;
        Ok(Self { shell: Mutex::new(shell) })
    }

    /// Best effort: without its guardian, a group still ends when it is dropped.
    pub(crate) fn tell(&self, line: &str) {
        let mut shell = self.shell.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipe) = &mut shell.stdin {
            let _ = pipe.write_all(format!("{line}\n").as_bytes());
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        let shell = self.shell.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(shell.stdin.take());
        let _ = shell.wait();
    }
}
