//! A private PostgreSQL: its own port, its own data, and nobody minds when it is killed.
//!
//! Runs the machine's own PostgreSQL programs; [`programs`] finds them and does not install
//! anything (`cargo xtask test` does). [`template`] prepares one empty cluster per machine and
//! version, because `initdb` takes two seconds and a copy a tenth of one.

mod programs;
mod template;

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use sqlx::{Connection, PgConnection};
use tokio::time::timeout;

use self::programs::Programs;
use crate::{
    free_port,
    group::{Group, POLL},
    guardian::Scratch,
};

/// A start takes 0.1 s; recovery after a crash, on a busy machine, some seconds.
const READY: Duration = Duration::from_secs(60);

/// A server that runs until it is stopped, killed or dropped.
#[derive(Debug)]
pub struct PostgresServer {
    // Declared before the directory: the processes must be gone when that is deleted.
    group: Option<Group>,
    directory: Scratch,
    programs: Programs,
    options: PostgresOptions,
    port: u16,
}

/// How a private server is started.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    fsync: bool,
    max_connections: u32,
    settings: Vec<(String, String)>,
    environment: Vec<(String, String)>,
}

impl PostgresOptions {
    /// Whether a commit waits for the disk. Off by default: a test's data may die with the
    /// machine. On for crash tests and benches, which are about exactly that.
    pub fn fsync(mut self, on: bool) -> Self {
        self.fsync = on;
        self
    }

    /// How many connections it accepts; 300 unless told, for many tests on one server.
    pub fn max_connections(mut self, number: u32) -> Self {
        self.max_connections = number;
        self
    }

    /// Any other setting of postgresql.conf; wins over what is set here.
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Variables of its environment.
    pub fn environment(mut self, variables: Vec<(String, String)>) -> Self {
        self.environment = variables;
        self
    }

    /// Starts the server and waits until it accepts connections.
    pub async fn start(self) -> Result<PostgresServer> {
        let programs = Programs::find()?;
        let directory = template::copy(&programs).await?;
        let mut server = PostgresServer {
            group: None,
            directory,
            programs,
            options: self,
            port: free_port().context("find a port for PostgreSQL")?,
        };
        server.launch().await?;
        Ok(server)
    }
}

impl PostgresServer {
    /// Starts a server with the default options.
    pub async fn start() -> Result<Self> {
        Self::options().start().await
    }

    /// The options to start a server with.
    pub fn options() -> PostgresOptions {
        PostgresOptions { fsync: false, max_connections: 300, settings: Vec::new(), environment: Vec::new() }
    }

    /// The URL of a database on this server, as its superuser. `postgres` always exists.
    pub fn url(&self, database: &str) -> String {
        self.url_via(self.addr(), database)
    }

    /// The same through another address: a [`TcpProxy`](crate::TcpProxy) in front of the server.
    pub fn url_via(&self, address: SocketAddr, database: &str) -> String {
        format!("postgres://postgres@{address}/{database}")
    }

    /// Where it listens, also while it is down.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Kills every process of the server with SIGKILL, and waits until they are gone.
    pub fn kill9(&mut self) -> Result<()> {
        match &mut self.group {
            Some(group) => group.kill(),
            None => Ok(()),
        }
    }

    /// Stops the server in good order, closing its clients' connections ("fast" shutdown).
    pub async fn stop(&mut self) -> Result<()> {
        if let Some(group) = &mut self.group
            && group.try_wait()?.is_none()
        {
            group.signal_leader(Signal::INT)?;
            group.wait(READY).await.context("stop PostgreSQL")?;
        }
        Ok(())
    }

    /// Starts it again after [`kill9`](Self::kill9) or [`stop`](Self::stop), on the same port with
    /// the same data; stops it first if it runs.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        self.launch().await
    }

    /// Freezes every process of the server: connections stay open and nothing answers.
    pub fn pause(&mut self) -> Result<()> {
        self.running()?.signal_all(Signal::STOP).map(drop)
    }

    /// Ends a [`pause`](Self::pause).
    pub fn resume(&mut self) -> Result<()> {
        self.running()?.signal_all(Signal::CONT).map(drop)
    }

    fn running(&mut self) -> Result<&mut Group> {
        self.group.as_mut().context("PostgreSQL is not running")
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    async fn launch(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = Command::new(self.programs.postgres());
        command
            .arg("-D")
            .arg(template::data(&self.directory))
            .args(["-p", &self.port.to_string()])
            .current_dir(self.directory.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let on_off = |on| if on { "on" } else { "off" };
        for (name, value) in [
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", ""),
            ("fsync", on_off(self.options.fsync)),
            ("max_connections", &self.options.max_connections.to_string()),
            // Change capture needs it, and it can only be set at start.
            ("wal_level", "logical"),
        ] {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        for (name, value) in &self.options.settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command.envs(self.options.environment.iter().cloned());
        programs::as_server_user(&mut command);
        self.group = Some(Group::spawn(command, &self.directory)?);
        self.wait_until_ready().await
    }

    /// Ready is when a client is let in; the port opens well before that.
    async fn wait_until_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        let url = self.url("postgres");
        loop {
            if let Some(status) = self.running()?.try_wait()? {
                bail!("PostgreSQL ended ({status}) instead of starting\n{}", self.log_tail());
            }
            let last = match timeout(READY, PgConnection::connect(&url)).await {
                Ok(Ok(connection)) => return Ok(connection.close().await?),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            if start.elapsed() > READY {
                bail!("PostgreSQL not ready after {READY:?} (last: {last})\n{}", self.log_tail());
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
