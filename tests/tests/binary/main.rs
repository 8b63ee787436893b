//! The binary as its users meet it: commands, messages, exit codes, files that are watched, examples that run.

mod callbacks;
mod commands;
mod declarations;
mod demo;
mod encryption;
mod events;
mod examples;
mod instances;
mod notifications;
mod operations;
mod schedules;
mod start;
mod topology;
mod worker;

use std::{
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use relais_tests::instance::{Instance, command};

/// For whatever should happen soon, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A database for one test.
fn sqlite(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("relais.db").display())
}

/// What a command said, and how it ended.
#[derive(Debug)]
struct Said {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Said {
    fn of(output: &Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Its data, if it was done.
    fn data(self) -> Result<String> {
        ensure!(self.code == 0, "it should have been done: {self:?}");
        Ok(self.stdout)
    }

    /// Its words, if it could not be done.
    fn refusal(self) -> Result<String> {
        ensure!(self.code == 1, "it should not have been done: {self:?}");
        Ok(self.stderr)
    }
}

/// The commands that talk to a server, with it in their environment.
fn relais(server: &Instance) -> Result<Command> {
    let mut command = command()?;
    command.env("RELAIS_URL", server.url()).current_dir(server.folder());
    Ok(command)
}

/// Types a command, words separated by spaces.
fn type_in(server: &Instance, line: &str) -> Result<Said> {
    Ok(Said::of(&relais(server)?.args(line.split(' ')).output().context("run relais")?))
}

/// Asks until it is so.
async fn until(what: &str, mut so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !so().await? {
        ensure!(begun.elapsed() < PATIENCE, "after {PATIENCE:?} it is not so that {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
