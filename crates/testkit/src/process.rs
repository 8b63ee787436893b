//! Running a compiled program of ours the way an operator would: as a process, with signals.
//!
//! For end-to-end and crash tests, which must not share memory with what they test. The program
//! runs in a process group of its own, its output goes to files that a failing test can show, and
//! it dies with the test. Does not build the program, nor speak HTTP beyond "does it answer".

use std::{
    ffi::OsStr,
    fs::{self, File},
    net::ToSocketAddrs,
    path::Path,
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use url::Url;

use crate::{
    group::{Group, POLL, stat_field},
    guardian::Scratch,
};

/// A running program, killed when dropped.
#[derive(Debug)]
pub struct ServerProcess {
    // Declared before the directory: the process must be gone when that is deleted.
    group: Group,
    output: Scratch,
    program: String,
}

impl ServerProcess {
    /// Starts `program` with `arguments`, and `environment` on top of this process's own.
    pub fn spawn<A, K, V>(
        program: impl AsRef<Path>,
        arguments: impl IntoIterator<Item = A>,
        environment: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self>
    where
        A: AsRef<OsStr>,
        K: AsRef<OsStr>,
        V: AsRef<OsStr>,
    {
        let mut command = Command::new(program.as_ref());
        command.args(arguments).envs(environment);
        Self::spawn_command(command)
    }

    /// Starts a prepared command, for a working directory or a cleared environment. Its standard
    /// streams are replaced.
    pub fn spawn_command(mut command: Command) -> Result<Self> {
        let output = Scratch::create(&std::env::temp_dir(), "relais-test-output-")?;
        command
            .stdin(Stdio::null())
            .stdout(File::create(output.path().join("stdout"))?)
            .stderr(File::create(output.path().join("stderr"))?);
        let program = command.get_program().display().to_string();
        let group = Group::spawn(command, &output)?;
        Ok(Self { group, output, program })
    }

    /// The process's number.
    pub fn id(&self) -> u32 {
        self.group.id()
    }

    /// What it has written to standard output so far.
    pub fn stdout(&self) -> Result<String> {
        self.read("stdout")
    }

    /// What it has written to standard error so far: its log.
    pub fn stderr(&self) -> Result<String> {
        self.read("stderr")
    }

    fn read(&self, name: &str) -> Result<String> {
        let bytes = fs::read(self.output.path().join(name)).context("read a program's output")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Waits until `GET url` (plain `http://`) is answered with a 2xx status. Fails at once, with
    /// the end of its log, when the program ends instead.
    pub async fn wait_for_http(&mut self, url: &str, deadline: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.group.try_wait()? {
                bail!("{} ended ({status}) before {url} answered\n{}", self.program, self.tail());
            }
            let left = deadline.saturating_sub(start.elapsed());
            let last = match timeout(left, get_status(url)).await {
                Ok(Ok(status)) if (200..300).contains(&status) => return Ok(()),
                Ok(Ok(status)) => format!("status {status}"),
                Ok(Err(error)) => format!("{error:#}"),
                Err(_) => "no answer".to_owned(),
            };
            if start.elapsed() >= deadline {
                bail!("{url} not ready after {deadline:?} (last: {last})\n{}", self.tail());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Kills the whole process group, as a crash would, and waits until it is gone.
    pub fn kill9(&mut self) -> Result<()> {
        self.group.kill()
    }

    /// Asks the process to end (SIGTERM), as a supervisor does; [`wait_exit`](Self::wait_exit) waits for it.
    pub fn terminate(&mut self) -> Result<()> {
        self.group.signal_leader(Signal::TERM)
    }

    /// Freezes the process (SIGSTOP): it holds its connections and its leases, and does nothing.
    pub fn pause(&mut self) -> Result<()> {
        self.group.signal_all(Signal::STOP).map(drop)
    }

    /// Lets a frozen process go on (SIGCONT).
    pub fn resume(&mut self) -> Result<()> {
        self.group.signal_all(Signal::CONT).map(drop)
    }

    /// Whether the process still runs.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.group.try_wait()?.is_none())
    }

    /// Waits for the process to end by itself.
    pub async fn wait_exit(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let waited = self.group.wait(deadline).await;
        waited.with_context(|| format!("{} should have ended\n{}", self.program, self.tail()))
    }

    /// Resident memory.
    pub fn rss_bytes(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).context("read a process's status")?;
        let kilobytes: u64 = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|value| value.trim().strip_suffix(" kB"))
            .and_then(|value| value.trim().parse().ok())
            .with_context(|| format!("process {} has no memory: it has ended", self.id()))?;
        Ok(kilobytes * 1024)
    }

    /// Processor time used since the start, user and system together.
    pub fn cpu_time(&self) -> Result<Duration> {
        let mut ticks = 0;
        for field in [14, 15] {
            ticks += stat_field(self.id().cast_signed(), field)
                .context("read a process's times")?
                .parse::<u64>()
                .context("parse a process's times")?;
        }
        let per_second = rustix::param::clock_ticks_per_second();
        Ok(Duration::from_millis(ticks * 1000 / per_second))
    }

    /// The end of its log, for error messages.
    fn tail(&self) -> String {
        let log = self.stderr().unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

/// The status of one `GET`, by hand: an HTTP client would be the crate's heaviest dependency.
async fn get_status(url: &str) -> Result<u16> {
    let url = Url::parse(url).context("parse the URL")?;
    if url.scheme() != "http" {
        bail!("only http:// is spoken here, not {url}");
    }
    let host = url.host_str().context("the URL names no host")?;
    let address = (host.trim_matches(['[', ']']), url.port().unwrap_or(80))
        .to_socket_addrs()?
        .next()
        .context("the host has no address")?;
    let mut stream = TcpStream::connect(address).await.context("connect")?;
    let target = url.query().map_or(url.path().to_owned(), |query| format!("{}?{query}", url.path()));
    let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.context("send")?;
    let mut head = [0; 12]; // "HTTP/1.1 200"
    stream.read_exact(&mut head).await.context("read the status")?;
    let head = String::from_utf8_lossy(&head);
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.with_context(|| format!("not HTTP: {head:?}"))
}
