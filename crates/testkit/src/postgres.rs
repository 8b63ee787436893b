//! A private PostgreSQL: its own port, its own data, and nobody minds when it is killed.
//!
//! Runs the machine's own PostgreSQL programs; [`programs`] finds them and does not install
//! anything (`cargo xtask test` does). [`template`] prepares one empty cluster per machine and
//! version, because `initdb` takes two seconds and a copy a tenth of one.

mod programs;
mod template;

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};
use rustix::process::Signal;
use sqlx::{Connection, PgConnection};

use self::programs::Programs;
use crate::{free_port, guardian::Scratch, lifecycle::Lifecycle};

/// A start takes 0.1 s; recovery after a crash, on a busy machine, some seconds.
const READY: Duration = Duration::from_secs(60);

/// A server that runs until it is stopped, killed or dropped.
#[derive(Debug)]
pub struct PostgresServer {
    life: Lifecycle,
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
    files: Vec<(String, String)>,
    is_18: bool,
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

    /// A file in its data directory, which only the server's user may read: `pg_hba.conf`, `server.key`. The superuser must
    /// still be let in without a password from 127.0.0.1.
    pub fn file(mut self, name: &str, content: &str) -> Self {
        self.files.push((name.to_owned(), content.to_owned()));
        self
    }

    /// Variables of its environment.
    pub fn environment(mut self, variables: Vec<(String, String)>) -> Self {
        self.environment = variables;
        self
    }

    /// PostgreSQL 18, whatever else is installed: for what older ones do not have.
    pub fn version_18(mut self) -> Self {
        self.is_18 = true;
        self
    }

    /// Starts the server and waits until it accepts connections.
    pub async fn start(self) -> Result<PostgresServer> {
        let programs = if self.is_18 { Programs::find_18()? } else { Programs::find()? };
        let directory = template::copy(&programs).await?;
        self.start_in(directory, programs).await
    }

    /// Starts a standby that follows a server, which is stopped for as long as its data is copied. `slot` is made for it on
    /// the primary. `pg_promote()` ends its recovery.
    pub async fn start_standby(self, primary: &mut PostgresServer, slot: &str) -> Result<PostgresServer> {
        primary.stop().await?;
        let directory = template::copy_of(primary.life.directory()).await?;
        primary.launch().await?;
        let mut connection = PgConnection::connect(&primary.url("postgres")).await?;
        let create = "SELECT pg_create_physical_replication_slot($1, true)";
        sqlx::query(create).bind(slot).execute(&mut connection).await.context("make the standby's slot")?;
        connection.close().await?;
        // With a database, which only the synchronization of slots needs.
        let from = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", primary.port);
        let standby = self.set("primary_conninfo", &from).set("primary_slot_name", slot);
        let standby = standby.set("hot_standby_feedback", "on").file("standby.signal", "");
        standby.start_in(directory, primary.programs.clone()).await
    }

    async fn start_in(self, directory: Scratch, programs: Programs) -> Result<PostgresServer> {
        for (name, content) in &self.files {
            template::write(&directory, name, content)?;
        }
        let mut server = PostgresServer {
            life: Lifecycle::new("PostgreSQL", Signal::INT, READY, directory),
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
        PostgresOptions {
            fsync: false,
            max_connections: 300,
            settings: Vec::new(),
            environment: Vec::new(),
            files: Vec::new(),
            is_18: false,
        }
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
        self.life.kill9()
    }

    /// Stops the server in good order, closing its clients' connections ("fast" shutdown).
    pub async fn stop(&mut self) -> Result<()> {
        self.life.stop().await
    }

    /// Starts it again after [`kill9`](Self::kill9) or [`stop`](Self::stop), on the same port with
    /// the same data; stops it first if it runs.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        self.launch().await
    }

    /// Freezes every process of the server: connections stay open and nothing answers.
    pub fn pause(&mut self) -> Result<()> {
        self.life.pause()
    }

    /// Ends a [`pause`](Self::pause).
    pub fn resume(&mut self) -> Result<()> {
        self.life.resume()
    }

    async fn launch(&mut self) -> Result<()> {
        let mut command = Command::new(self.programs.postgres());
        command.arg("-D").arg(template::data(self.life.directory())).args(["-p", &self.port.to_string()]);
        let on_off = |on| if on { "on" } else { "off" };
        for (name, value) in [
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", ""),
            ("fsync", on_off(self.options.fsync)),
            ("max_connections", &self.options.max_connections.to_string()),
            // Change capture needs it, and it can only be set at start.
            ("wal_level", "logical"),
            // Many tests at once, each with a slot.
            ("max_replication_slots", "100"),
            ("max_wal_senders", "100"),
        ] {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        for (name, value) in &self.options.settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command.envs(self.options.environment.iter().cloned());
        programs::as_server_user(&mut command);
        // Ready is when a client is let in; the port opens well before that.
        let url = self.url("postgres");
        let is_ready = async || {
            let connection = PgConnection::connect(&url).await.map_err(|error| error.to_string())?;
            connection.close().await.map_err(|error| error.to_string())
        };
        self.life.launch(command, is_ready).await
    }
}
