//! A private Kafka broker: its own port, its own data, and nobody minds when it is killed.
//!
//! There is no package of one to install. The environment names a program ([`KAFKA_VARIABLE`]) that is started as
//! `program PORT CONTROLLER_PORT DIRECTORY` and prints `ready` when it is. Without it there is no broker, and whoever runs the
//! tests is told which ones were not run.

use std::{
    env,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::{free_port, guardian::Scratch, lifecycle::Lifecycle};

/// The environment variable that names the program of a Kafka broker.
pub const KAFKA_VARIABLE: &str = "RELAIS_TEST_KAFKA_BROKER";

/// A start takes 0.2 s; on a busy machine, some seconds.
const READY: Duration = Duration::from_secs(30);

/// A broker that runs until it is stopped, killed or dropped.
#[derive(Debug)]
pub struct KafkaServer {
    life: Lifecycle,
    program: PathBuf,
    port: u16,
    controller_port: u16,
    starts: usize,
    paused: bool,
}

impl KafkaServer {
    /// Whether there is a program to start.
    pub fn is_available() -> bool {
        env::var_os(KAFKA_VARIABLE).is_some_and(|program| !program.is_empty())
    }

    /// Starts a broker and waits until it is ready.
    pub async fn start() -> Result<Self> {
        let program = env::var_os(KAFKA_VARIABLE).with_context(|| format!("{KAFKA_VARIABLE} names no program"))?;
        let directory = Scratch::create(&env::temp_dir(), "relais-test-kafka-")?;
        let life = Lifecycle::new("Kafka", Signal::INT, READY, directory);
        let find = || free_port().context("find a port for Kafka");
        let mut server =
            Self { life, program: program.into(), port: find()?, controller_port: find()?, starts: 0, paused: false };
        server.launch().await?;
        Ok(server)
    }

    /// What clients connect to.
    pub fn bootstrap_servers(&self) -> String {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)).to_string()
    }

    /// Kills it with SIGKILL, and waits until it is gone.
    pub fn kill9(&mut self) -> Result<()> {
        self.life.kill9()
    }

    /// Starts it again after [`kill9`](Self::kill9), on the same port with the same data; stops it first if it runs.
    pub async fn restart(&mut self) -> Result<()> {
        self.life.stop().await?;
        self.launch().await
    }

    /// Freezes it: connections stay open and nothing answers.
    pub fn pause(&mut self) -> Result<()> {
        self.paused = true;
        self.life.pause()
    }

    /// Whether it is frozen.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Ends a [`pause`](Self::pause).
    pub fn resume(&mut self) -> Result<()> {
        self.paused = false;
        self.life.resume()
    }

    async fn launch(&mut self) -> Result<()> {
        self.starts += 1;
        let (data, log, starts) = (self.life.directory().join("data"), self.life.log(), self.starts);
        let mut command = Command::new(&self.program);
        command.args([self.port.to_string(), self.controller_port.to_string()]).arg(data);
        // The log has a line of each start.
        let is_ready = async || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let ready = text.lines().filter(|line| line.starts_with("ready")).count();
            if ready >= starts { Ok(()) } else { Err("it has not printed `ready`".to_owned()) }
        };
        self.life.launch(command, is_ready).await
    }
}
