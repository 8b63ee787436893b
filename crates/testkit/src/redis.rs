//! A private Redis: its own port, its own data, and nobody minds when it is killed.
//!
//! Every write is on disk before it is answered (`appendfsync always`), so that streams and pending lists survive a
//! kill -9, and a test that loses something has found something. Runs the machine's own `redis-server` and does not
//! install it (package `redis-server`). Does not speak Redis beyond "is it ready".

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{free_port, guardian::Scratch, lifecycle::Lifecycle};

/// A start takes 0.05 s; the reading of much data, on a busy machine, some seconds.
const READY: Duration = Duration::from_secs(30);

/// A server that runs until it is stopped, killed or dropped.
#[derive(Debug)]
pub struct RedisServer {
    life: Lifecycle,
    port: u16,
}

impl RedisServer {
    /// Starts a server and waits until it answers.
    pub async fn start() -> Result<Self> {
        let directory = Scratch::create(&std::env::temp_dir(), "relais-test-redis-")?;
        let life = Lifecycle::new("Redis", Signal::TERM, READY, directory);
        let mut server = Self { life, port: free_port().context("find a port for Redis")? };
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
        self.life.kill9()
    }

    /// Stops it in good order.
    pub async fn stop(&mut self) -> Result<()> {
        self.life.stop().await
    }

    /// Starts it again after [`kill9`](Self::kill9) or [`stop`](Self::stop), on the same port with the same data; stops
    /// it first if it runs.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        self.launch().await
    }

    /// Freezes it: connections stay open and nothing answers.
    pub fn pause(&mut self) -> Result<()> {
        self.life.pause()
    }

    /// Ends a [`pause`](Self::pause).
    pub fn resume(&mut self) -> Result<()> {
        self.life.resume()
    }

    async fn launch(&mut self) -> Result<()> {
        let mut command = Command::new("redis-server");
        command
            .args(["--port", &self.port.to_string()])
            .args(["--bind", "127.0.0.1"])
            .arg("--dir")
            .arg(self.life.directory())
            .args(["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--daemonize", "no"]);
        // Ready is when it answers a PING with a PONG: while it reads its data, it answers with an error.
        let address = self.addr();
        let is_ready = async || match ping(address).await {
            Ok(answer) if answer.starts_with("+PONG") => Ok(()),
            Ok(answer) => Err(answer),
            Err(error) => Err(error.to_string()),
        };
        let launched = self.life.launch(command, is_ready).await;
        launched.context("is redis-server installed? (apt-get install redis-server)")
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
