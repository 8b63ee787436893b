//! Another engine, in a process of its own: `relais-bench-peers`, which `cargo xtask bench` builds.

use std::{path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use super::{Measured, meter::Meter};

/// How long one run may take, with all that is done before it measures.
const PATIENCE: Duration = Duration::from_secs(1800);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    ran: u64,
    again: u64,
    #[serde(default)]
    seconds: f64,
    finished: u64,
    keeps_history: bool,
    #[serde(default)]
    latencies: Vec<u64>,
}

/// Makes so many finished tasks.
pub async fn fill(peer: &str, url: &str, finished: u64) -> Result<()> {
    let mut run = Run::start(peer, url, &["fill", "--finished", &finished.to_string()], false)?;
    let report = run.report().await?;
    ensure!(report.finished == finished || !report.keeps_history, "{peer} was not filled: {report:?}");
    Ok(())
}

/// Drains so many tasks.
pub async fn drain(peer: &str, url: &str, tasks: u64, settings: &[&str], meter: &Meter) -> Result<Measured> {
    let tasks_said = tasks.to_string();
    let mut arguments = vec!["drain", "--tasks", &tasks_said];
    arguments.extend(settings);
    let mut run = Run::start(peer, url, &arguments, true)?;
    run.ready().await?;
    let before = meter.read(run.pid()?).await?;
    run.go_on().await?;
    let report = run.report().await?;
    let spent = meter.read(run.pid()?).await?.since(before, tasks as f64);
    run.go_on().await?;
    ensure!(report.again == 0, "{peer} did tasks twice: {report:?}");
    Ok(Measured {
        ran: report.ran,
        finished: report.finished,
        keeps_history: report.keeps_history,
        time: Duration::from_secs_f64(report.seconds),
        spent,
    })
}

/// How long single tasks take to begin.
pub async fn pick_up(peer: &str, url: &str, samples: usize) -> Result<Vec<Duration>> {
    let mut run = Run::start(peer, url, &["idle", "--samples", &samples.to_string()], false)?;
    let report = run.report().await?;
    ensure!(report.latencies.len() == samples, "{peer} was given {samples} tasks: {report:?}");
    Ok(report.latencies.into_iter().map(Duration::from_micros).collect())
}

/// A run of the program; ended when dropped.
struct Run {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Run {
    fn start(peer: &str, url: &str, arguments: &[&str], step: bool) -> Result<Self> {
        let program =
            std::env::var_os("BENCH_PEERS").context("BENCH_PEERS names no program: run `cargo xtask bench`")?;
        let mut command = Command::new(PathBuf::from(program));
        command.args(["--peer", peer, "--database", url]).args(step.then_some("--step")).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("start a peer")?;
        let lines = BufReader::new(child.stdout.take().context("a peer without output")?).lines();
        Ok(Self { child, lines })
    }

    fn pid(&self) -> Result<u32> {
        self.child.id().context("a peer has ended")
    }

    async fn line(&mut self) -> Result<String> {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await.context("a peer took too long")??;
        match line {
            Some(line) => Ok(line),
            None => anyhow::bail!("a peer came to a bad end: {:?}", self.child.wait().await),
        }
    }

    async fn ready(&mut self) -> Result<()> {
        let line = self.line().await?;
        ensure!(line == "ready", "a peer said {line:?}");
        Ok(())
    }

    async fn go_on(&mut self) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("a peer without input")?;
        stdin.write_all(b"\n").await.context("tell a peer to go on")
    }

    async fn report(&mut self) -> Result<Report> {
        let line = self.line().await?;
        serde_json::from_str(&line).with_context(|| format!("what is {line:?}?"))
    }
}
