//! A private Redis or Valkey: its own port, its own data, and nobody minds when it is killed.
//!
//! Every write is on disk before it is answered (`appendfsync always`), so that streams and pending lists survive a
//! kill -9, and a test that loses something has found something. Runs the machine's own `redis-server` and does not
//! install it (package `redis-server`); Valkey is the program that [`VALKEY_VARIABLE`] names, and the module of Bloom filters the
//! file that [`BLOOM_VARIABLE`] names. Speaks as little Redis as can be.

use std::{
    ffi::OsString,
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

/// Names the program of Valkey. `cargo xtask test` fetches it and sets this.
pub const VALKEY_VARIABLE: &str = "RELAIS_TEST_VALKEY";

/// Names the module RedisBloom (`redisbloom.so`). `cargo xtask test` fetches it and sets this.
pub const BLOOM_VARIABLE: &str = "RELAIS_TEST_REDISBLOOM";

/// A start takes 0.05 s; the reading of much data, on a busy machine, some seconds.
const READY: Duration = Duration::from_secs(30);

/// Every write is on disk before it is answered.
const DURABLE: [&str; 6] = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""];

/// A server that runs until it is stopped, killed or dropped.
#[derive(Debug)]
pub struct RedisServer {
    life: Lifecycle,
    port: u16,
    program: OsString,
    settings: Vec<String>,
}

impl RedisServer {
    /// Starts a server and waits until it answers.
    pub async fn start() -> Result<Self> {
        Self::start_with(&DURABLE).await
    }

    /// Starts one with these settings, which say all about what is on disk.
    pub async fn start_with(settings: &[&str]) -> Result<Self> {
        Self::start_program("redis-server".into(), settings).await
    }

    /// Starts a Valkey.
    pub async fn start_valkey() -> Result<Self> {
        let program = std::env::var_os(VALKEY_VARIABLE).unwrap_or_else(|| "valkey-server".into());
        let started = Self::start_program(program, &DURABLE).await;
        started.with_context(|| {
            format!("is there a Valkey? Run `cargo xtask test`, or name its valkey-server in {VALKEY_VARIABLE}")
        })
    }

    /// Starts a Redis that has Bloom filters (`BF.*`). Redis 8 has them built in.
    pub async fn start_with_bloom() -> Result<Self> {
        let hint =
            || format!("is there RedisBloom? Run `cargo xtask test`, or name its redisbloom.so in {BLOOM_VARIABLE}");
        let module = std::env::var(BLOOM_VARIABLE).with_context(hint)?;
        let settings: Vec<&str> = DURABLE.into_iter().chain(["--loadmodule", &module]).collect();
        Self::start_with(&settings).await.with_context(hint)
    }

    async fn start_program(program: OsString, settings: &[&str]) -> Result<Self> {
        let directory = Scratch::create(&std::env::temp_dir(), "relais-test-redis-")?;
        let life = Lifecycle::new("Redis", Signal::TERM, READY, directory);
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let mut server = Self { life, port: free_port().context("find a port for Redis")?, program, settings };
        server.launch().await?;
        Ok(server)
    }

    /// Sends one command of words without blanks, such as `FLUSHALL`; answers the first line of what comes.
    pub async fn tell(&self, command: &str) -> Result<String> {
        Ok(self.tell_all(command).await?.lines().next().unwrap_or_default().to_owned())
    }

    /// The same for one who needs a password.
    pub async fn tell_with(&self, password: &str, command: &str) -> Result<String> {
        exchange(self.addr(), &format!("AUTH {password}\r\n{command}")).await
    }

    /// Sends one, and answers all that comes.
    pub async fn tell_all(&self, command: &str) -> Result<String> {
        exchange(self.addr(), command).await
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
        let mut command = Command::new(&self.program);
        command
            .args(["--port", &self.port.to_string()])
            .args(["--bind", "127.0.0.1"])
            .arg("--dir")
            .arg(self.life.directory())
            .args(["--daemonize", "no"])
            .args(&self.settings);
        // Ready is when it answers a PING with a PONG: while it reads its data, it answers with an error.
        let address = self.addr();
        let is_ready = async || match exchange(address, "PING").await {
            Ok(answer) if answer.starts_with("+PONG") => Ok(()),
            Ok(answer) => Err(answer),
            Err(error) => Err(error.to_string()),
        };
        let launched = self.life.launch(command, is_ready).await;
        launched.context("is redis-server installed? (apt-get install redis-server)")
    }
}

/// By hand: a Redis client would be a heavy dependency for a few words.
async fn exchange(address: SocketAddr, command: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
