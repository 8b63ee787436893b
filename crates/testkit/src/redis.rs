//! A private Redis: its own port, its own data, and nobody minds when it is killed.
//!
//! Every write is on disk before it is answered (`appendfsync always`), so that streams and pending lists survive a
//! kill -9, and a test that loses something has found something. Runs the machine's own `redis-server` and does not install
//! it (package `redis-server`). Does not speak Redis beyond "is it ready".

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    free_port,
    group::{Group, POLL},
    guardian::Scratch,
};

/// A start takes 0.05 s; the reading of much data, on a busy machine, some seconds.
const READY: Duration = Duration::from_secs(30);

/// A server that runs until it is stopped, killed or dropped.
#[derive(Debug)]
pub struct RedisServer {
    // Declared before the directory: the process must be gone when that is deleted.
    group: Option<Group>,
    directory: Scratch,
    port: u16,
}

impl RedisServer {
    /// Starts a server and waits until it answers.
    pub async fn start() -> Result<Self> {
        let mut server = Self {
            group: None,
            directory: Scratch::create(&std::env::temp_dir(), "relais-test-redis-")?,
            port: free_port().context("find a port for Redis")?,
        };
        server.launch().await?;
        Ok(server)
    }

    /// How to connect to it.
    pub fn url(&self) -> String {
        self.url_via(self.addr())
    }

    /// The same through another address: a [`TcpProxy`](crate::TcpProxy) in front of the server.
    pub fn url_via(&self, address: SocketAddr) -> String {
        format!("redis://{address}/")
    }

    /// Where it listens, also while it is down.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Kills it with SIGKILL, and waits until it is gone.
    pub fn kill9(&mut self) -> Result<()> {
        match &mut self.group {
            Some(group) => group.kill(),
            None => Ok(()),
        }
    }

    /// Stops it in good order.
    pub async fn stop(&mut self) -> Result<()> {
        if let Some(group) = &mut self.group
            && group.try_wait()?.is_none()
        {
            group.signal_leader(Signal::TERM)?;
            group.wait(READY).await.context("stop Redis")?;
        }
        Ok(())
    }

    /// Starts it again after [`kill9`](Self::kill9) or [`stop`](Self::stop), on the same port with the same data; stops it
    /// first if it runs.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        self.launch().await
    }

    /// Freezes it: connections stay open and nothing answers.
    pub fn pause(&mut self) -> Result<()> {
        self.running()?.signal_all(Signal::STOP).map(drop)
    }

    /// Ends a [`pause`](Self::pause).
    pub fn resume(&mut self) -> Result<()> {
        self.running()?.signal_all(Signal::CONT).map(drop)
    }

    fn running(&mut self) -> Result<&mut Group> {
        self.group.as_mut().context("Redis is not running")
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    async fn launch(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = Command::new("redis-server");
        command
            .args(["--port", &self.port.to_string()])
            .args(["--bind", "127.0.0.1"])
            .arg("--dir")
            .arg(self.directory.path())
            .args(["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--daemonize", "no"])
            .current_dir(self.directory.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let started = Group::spawn(command, &self.directory);
        self.group = Some(started.context("is redis-server installed? (apt-get install redis-server)")?);
        self.wait_until_ready().await
    }

    /// Ready is when it answers a PING with a PONG: while it reads its data, it answers with an error.
    async fn wait_until_ready(&mut self) -> Result<()> {
        let (start, address) = (Instant::now(), self.addr());
        loop {
            if let Some(status) = self.running()?.try_wait()? {
                bail!("Redis ended ({status}) instead of starting\n{}", self.log_tail());
            }
            let last = match timeout(READY, ping(address)).await {
                Ok(Ok(answer)) if answer.starts_with("+PONG") => return Ok(()),
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            if start.elapsed() > READY {
                bail!("Redis not ready after {READY:?} (last: {last})\n{}", self.log_tail());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

/// By hand: a Redis client would be a heavy dependency for one word.
async fn ping(address: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"PING\r\n").await?;
    let mut answer = [0; 64];
    let count = stream.read(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer[..count]).into_owned())
}
