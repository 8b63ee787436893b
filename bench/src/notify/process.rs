//! This program again, as a process of its own that is told what to do by lines: one process has not the descriptors for both
//! ends of all links.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use super::links::PATIENCE;

/// A process that does a part of the benchmark. It ends with its input.
pub struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts it.
    pub fn start(arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        Ok(Self { child, lines })
    }

    /// Tells it something.
    pub async fn tell(&mut self, line: &str) -> Result<()> {
        let input = self.child.stdin.as_mut().context("no input")?;
        Ok(input.write_all(format!("{line}\n").as_bytes()).await?)
    }

    /// What it says next.
    pub async fn said(&mut self) -> Result<String> {
        loop {
            let line = timeout(PATIENCE, self.lines.next_line()).await??;
            let line = line.context("a part of the benchmark has ended")?;
            if !line.is_empty() {
                return Ok(line);
            }
        }
    }

    /// Ends it.
    pub async fn stop(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        ensure!(timeout(PATIENCE, self.child.wait()).await??.success(), "a part of the benchmark has failed");
        Ok(())
    }
}

/// What such a process is told next; nothing at its end.
pub async fn told() -> Result<String> {
    let read = || {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    };
    Ok(tokio::task::spawn_blocking(read).await??)
}
