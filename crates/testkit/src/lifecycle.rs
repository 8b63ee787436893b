//! The life of a private server, whichever it is: started, killed, stopped, frozen, and started again on the same data.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::{
    group::{Group, POLL},
    guardian::Scratch,
};

/// The processes of a server, and the folder that they work in.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    /// What it is called in an error.
    name: &'static str,
    /// What asks it to stop in good order.
    stop: Signal,
    /// How long a start and a stop may take.
    ready: Duration,
    // Declared before the directory: the processes must be gone when that is deleted.
    group: Option<Group>,
    directory: Scratch,
}

impl Lifecycle {
    pub(crate) fn new(name: &'static str, stop: Signal, ready: Duration, directory: Scratch) -> Self {
        Self { name, stop, ready, group: None, directory }
    }

    /// The folder that it works in.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The first process, while there is one.
    pub(crate) fn group(&self) -> Option<&Group> {
        self.group.as_ref()
    }

    /// Kills every process with SIGKILL, and waits until they are gone.
    pub(crate) fn kill9(&mut self) -> Result<()> {
        match &mut self.group {
            Some(group) => group.kill(),
            None => Ok(()),
        }
    }

    /// Stops it in good order, if it runs.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        if let Some(group) = &mut self.group
            && group.try_wait()?.is_none()
        {
            group.signal_leader(self.stop)?;
            group.wait(self.ready).await.with_context(|| format!("stop {}", self.name))?;
        }
        Ok(())
    }

    /// Freezes every process: connections stay open and nothing answers.
    pub(crate) fn pause(&mut self) -> Result<()> {
        self.running()?.signal_all(Signal::STOP).map(drop)
    }

    /// Ends a [`pause`](Self::pause).
    pub(crate) fn resume(&mut self) -> Result<()> {
        self.running()?.signal_all(Signal::CONT).map(drop)
    }

    /// Starts a program in the folder; what it prints goes to a log there. Then asks `is_ready`, whose error says why
    /// not, until it is.
    pub(crate) async fn launch(
        &mut self,
        mut command: Command,
        mut is_ready: impl AsyncFnMut() -> Result<(), String>,
    ) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.log())?;
        command.current_dir(self.directory.path()).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.group = Some(Group::spawn(command, &self.directory)?);
        let start = Instant::now();
        loop {
            if let Some(status) = self.running()?.try_wait()? {
                bail!("{} ended ({status}) instead of starting\n{}", self.name, self.log_tail());
            }
            let last = match tokio::time::timeout(self.ready, is_ready()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => "no answer".to_owned(),
            };
            if start.elapsed() > self.ready {
                bail!("{} not ready after {:?} (last: {last})\n{}", self.name, self.ready, self.log_tail());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn running(&mut self) -> Result<&mut Group> {
        self.group.as_mut().with_context(|| format!("{} is not running", self.name))
    }

    /// What it prints, of all its starts.
    pub(crate) fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}
