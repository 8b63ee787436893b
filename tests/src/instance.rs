//! The compiled `relais`, run the way an operator runs it: as a process with a port, a database, flags and signals.
//!
//! A test here shares no memory with what it tests. What the process is told is all on its command line and in its
//! environment; nothing of the test's own environment that could be a setting reaches it.

use std::{
    env,
    ffi::OsStr,
    path::PathBuf,
    process::{Command, Output},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use relais_testkit::{ServerProcess, free_port};
use tempfile::TempDir;

/// How long a server may take to become ready, on a busy machine.
pub const READY: Duration = Duration::from_secs(30);

/// The program: the one that `RELAIS_BIN` names, or the one that was built beside this test.
pub fn binary() -> Result<PathBuf> {
    let path = match env::var_os("RELAIS_BIN") {
        Some(path) => PathBuf::from(path),
        None => {
            let this = env::current_exe().context("where is this test?")?;
            // target/debug/deps/chaos-0123 → target/debug/relais
            let profile =
                this.parent().and_then(|deps| deps.parent()).context("this test is not in a target folder")?;
            profile.join("relais")
        }
    };
    if !path.is_file() {
        bail!(
            "{} is not there: build it with `cargo build -p relais-server`, or name another one in RELAIS_BIN",
            path.display()
        );
    }
    Ok(path)
}

/// The program with an environment that sets nothing.
pub fn command() -> Result<Command> {
    let mut command = Command::new(binary()?);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let ours = ["RELAIS_", "EVENTBUS_", "REDIS_"].iter().any(|prefix| text.starts_with(prefix));
        if ours || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    Ok(command)
}

/// Runs a command of the program to its end, in an empty folder.
pub fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Result<Output> {
    let folder = tempfile::tempdir()?;
    let mut command = command()?;
    command.args(arguments).current_dir(folder.path()).output().context("run relais")
}

/// How a server is started.
#[derive(Debug)]
pub struct InstanceOptions {
    database: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    path: &'static str,
}

impl InstanceOptions {
    /// Another argument of `relais serve`.
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// A variable of its environment.
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    /// Counts as started when it is alive, not only when its store is there.
    pub fn alive_is_enough(mut self) -> Self {
        self.path = "/healthz";
        self
    }

    /// Starts it and waits until it is ready.
    pub async fn start(self) -> Result<Instance> {
        let folder = tempfile::tempdir().context("make a working folder")?;
        let port = free_port().context("find a port")?;
        let process = spawn(&self, port, &folder)?;
        let mut instance = Instance { process, options: self, port, folder };
        instance.wait_until_ready().await?;
        Ok(instance)
    }
}

/// A server that runs until it is told to stop, killed or dropped.
#[derive(Debug)]
pub struct Instance {
    process: ServerProcess,
    options: InstanceOptions,
    port: u16,
    folder: TempDir,
}

impl Instance {
    /// A server on this database.
    pub fn options(database: impl Into<String>) -> InstanceOptions {
        InstanceOptions {
            database: database.into(),
            arguments: Vec::new(),
            // bcrypt is slow on purpose, and not what is tested here.
            environment: vec![("RELAIS_AUTH_BCRYPT_COST".to_owned(), "4".to_owned())],
            path: "/readyz",
        }
    }

    /// Starts a server on this database.
    pub async fn start(database: impl Into<String>) -> Result<Self> {
        Self::options(database).start().await
    }

    /// Where it serves.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its working folder.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// The process itself: signals, output, memory.
    pub fn process(&mut self) -> &mut ServerProcess {
        &mut self.process
    }

    /// Ends it as a lost machine would.
    pub fn kill9(&mut self) -> Result<()> {
        self.process.kill9()
    }

    /// Starts it again, on the same port and the same database.
    pub async fn restart(&mut self) -> Result<()> {
        self.process = spawn(&self.options, self.port, &self.folder)?;
        self.wait_until_ready().await
    }

    async fn wait_until_ready(&mut self) -> Result<()> {
        let url = format!("{}{}", self.url(), self.options.path);
        self.process.wait_for_http(&url, READY).await
    }
}

fn spawn(options: &InstanceOptions, port: u16, folder: &TempDir) -> Result<ServerProcess> {
    let mut command = command()?;
    command
        .args(["serve", "--listen", &format!("127.0.0.1:{port}")])
        .args(&options.arguments)
        // In the environment, as a password would be.
        .env("RELAIS_DATABASE_URL", &options.database)
        .envs(options.environment.iter().map(|(name, value)| (name, value)))
        .current_dir(folder.path());
    ServerProcess::spawn_command(command)
}
