//! A worker of a library in another language: a program beside this file, which plays the orders of `stage.rs`.
//!
//! The two talk over the program's standard streams, in lines of JSON. In go the settings, then the ids of waiting
//! tasks as they are let go; out comes what it does, and in the end its report. It is told to stop by a signal, as all
//! processes are.

use std::{
    collections::{HashMap, VecDeque},
    path::Path,
    process::Stdio,
};

use anyhow::{Context, Result, bail, ensure};
use relais_tests::{app::DEADLINE, prepared};
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{hired::Report, stage::Stage};

/// In which the library is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    Python,
    JavaScript,
}

impl Language {
    /// The program, with what the library needs as `cargo xtask test` prepares it.
    pub fn program(self) -> Result<Command> {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
        let beside = |file: &str| tests.join("tests/worker").join(file);
        let mut command;
        match self {
            Self::Python => {
                command = Command::new(prepared::python()?);
                command.arg(beside("play.py")).env("PYTHONPATH", tests.join("../sdk/python/src"));
                // Compiled once, whatever the environment says, and nothing is left behind in the sources.
                command.env("PYTHONPYCACHEPREFIX", prepared::target()?.join("sdk-python-cache"));
                command.env_remove("PYTHONDONTWRITEBYTECODE");
            }
            Self::JavaScript => {
                command = Command::new("node");
                command.arg(beside("play.mjs")).arg(prepared::javascript()?);
            }
        }
        Ok(command)
    }
}

/// A worker to be.
pub struct Foreign {
    language: Language,
    settings: Value,
}

/// What the program says.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Said {
    /// From now on it hears signals.
    Up(bool),
    Start(String),
    /// It waits to be let go.
    Wait(String),
    /// It was told to stop while it waited.
    Stop(String),
    Leave(String),
    Report(Report),
}

impl Foreign {
    pub fn new(language: Language, settings: Value) -> Self {
        Self { language, settings }
    }

    pub fn told(mut self, name: &str, value: Value) -> Self {
        self.settings[name] = value;
        self
    }

    /// Does tasks until it is told to stop. Whoever drops this kills the process.
    pub async fn run(self, stage: Stage, shutdown: CancellationToken) -> Result<Report> {
        let mut command = self.language.program()?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().with_context(|| format!("start a worker in {:?}", self.language))?;
        let (Some(mut orders), Some(said), Some(log)) =
            (process.stdin.take(), process.stdout.take(), process.stderr.take())
        else {
            bail!("a process without standard streams");
        };
        tokio::spawn(show(log));
        send(&mut orders, &self.settings).await?;
        let mut lines = BufReader::new(said).lines();
        let (mut on_stage, mut waiting) = (HashMap::new(), VecDeque::new());
        let (mut is_up, mut is_told, mut report) = (false, false, None);
        loop {
            tokio::select! {
                // What was wanted first is done first.
                biased;
                () = shutdown.cancelled(), if is_up && !is_told => {
                    is_told = true;
                    terminate(&process).await?;
                }
                () = stage.one_may_go(), if !waiting.is_empty() => {
                    send(&mut orders, &waiting.pop_front().into()).await?;
                }
                line = lines.next_line() => {
                    let Some(line) = line? else { break };
                    match serde_json::from_str(&line).with_context(|| format!("it says {line}"))? {
                        Said::Up(up) => is_up = up,
                        Said::Start(task) => drop(on_stage.insert(task.clone(), stage.enter(&task))),
                        Said::Wait(task) => waiting.push_back(task),
                        Said::Stop(task) => {
                            waiting.retain(|other| *other != task);
                            stage.one_is_told_to_stop();
                        }
                        Said::Leave(task) => drop(on_stage.remove(&task)),
                        Said::Report(told) => report = Some(told),
                    }
                }
            }
        }
        let status = timeout(DEADLINE, process.wait()).await.context("it is silent, and does not end")??;
        ensure!(status.success(), "a worker in {:?} ended: {status}", self.language);
        report.context("it ended without a report")
    }
}

async fn send(orders: &mut ChildStdin, line: &Value) -> Result<()> {
    orders.write_all(format!("{line}\n").as_bytes()).await.context("tell the worker")
}

async fn terminate(process: &Child) -> Result<()> {
    let id = process.id().context("it has ended")?.to_string();
    ensure!(Command::new("kill").args(["-s", "TERM", &id]).status().await?.success(), "it can not be told to stop");
    Ok(())
}

#[expect(clippy::print_stdout, reason = "what it logs, shown when a test fails")]
async fn show(log: impl AsyncRead + Unpin) {
    let mut lines = BufReader::new(log).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        println!("{line}");
    }
}
