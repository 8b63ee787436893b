//! Debezium's own engine on a slot, with a consumer that only counts: a process of Java (`bench/debezium/Count.java`).
//!
//! `cargo xtask bench` installs it and names its libraries in `BENCH_DEBEZIUM`. Without them it is left out, and the
//! tables say so.

use std::{
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use sqlx::{PgPool, postgres::PgConnectOptions};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};

use super::{PATIENCE, TABLE, peers, pump::Moved};
use crate::cpu;

/// Names the folder of its libraries.
pub const VARIABLE: &str = "BENCH_DEBEZIUM";

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/debezium/Count.java");

/// How it is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tuning {
    Defaults,
    /// It looks for changes every millisecond instead of every 500, and takes more at once.
    Tuned,
}

impl Tuning {
    pub fn name(self) -> &'static str {
        match self {
            Self::Defaults => "Debezium's engine, defaults",
            Self::Tuned => "Debezium's engine, tuned",
        }
    }

    fn settings(self) -> &'static str {
        match self {
            Self::Defaults => "",
            Self::Tuned => "poll.interval.ms=1\nmax.batch.size=8192\nmax.queue.size=32768\n",
        }
    }
}

/// The engine, once it is compiled.
pub struct Debezium {
    libraries: PathBuf,
    /// Where the compiled program and settings are.
    folder: TempDir,
}

impl Debezium {
    /// Compiles the program that counts; none if there are no libraries.
    pub async fn prepare() -> Result<Option<Self>> {
        let Some(libraries) = std::env::var_os(VARIABLE).map(PathBuf::from) else { return Ok(None) };
        let folder = tempfile::tempdir()?;
        let mut compile = Command::new("javac");
        compile.arg("-cp").arg(libraries.join("*")).arg("-d").arg(folder.path()).arg(PROGRAM);
        let done = compile.status().await.context("start javac")?;
        ensure!(done.success(), "javac failed: {done}");
        Ok(Some(Self { libraries, folder }))
    }

    /// Starts it on a slot, and waits until it is ready. It expects so many rows; if none, it says when each record
    /// comes.
    pub async fn start(
        &self,
        url: &str,
        slot: &str,
        publication: &str,
        tuning: Tuning,
        rows: u64,
    ) -> Result<EngineProcess> {
        let address: PgConnectOptions = url.parse()?;
        let database = address.get_database().context("no database in the URL")?;
        // Rows are not read from the table: what is in the slot is streamed.
        let settings = format!(
            "name=bench\ntopic.prefix=bench\nconnector.class=io.debezium.connector.postgresql.PostgresConnector\n\
             offset.storage=org.apache.kafka.connect.storage.MemoryOffsetBackingStore\ndatabase.hostname={}\n\
             database.port={}\ndatabase.user=postgres\ndatabase.password=x\ndatabase.dbname={database}\n\
             plugin.name=pgoutput\nslot.name={slot}\npublication.name={publication}\n\
             publication.autocreate.mode=disabled\ntable.include.list=public.{TABLE}\nsnapshot.mode=no_data\n\
             converter.schemas.enable=false\n{}",
            address.get_host(),
            address.get_port(),
            tuning.settings()
        );
        let file = self.folder.path().join(slot);
        std::fs::write(&file, settings)?;
        let mut command = Command::new("java");
        command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=error").arg("-cp");
        command.arg(format!("{}:{}/*", self.folder.path().display(), self.libraries.display()));
        command.arg("Count").arg(file).arg(rows.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("start java")?;
        let lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        let mut process = EngineProcess { child, lines, rows };
        ensure!(process.line().await? == "ready", "Debezium's engine is not ready");
        Ok(process)
    }
}

/// A process of the engine; ended when dropped.
pub struct EngineProcess {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    rows: u64,
}

impl EngineProcess {
    async fn line(&mut self) -> Result<String> {
        let line = timeout(PATIENCE, self.lines.next_line()).await.context("Debezium's engine says nothing")??;
        line.context("Debezium's engine ended")
    }

    fn id(&self) -> Result<u32> {
        self.child.id().context("Debezium's engine has ended")
    }

    async fn go(&mut self) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("no input")?;
        stdin.write_all(b"go\n").await?;
        Ok(stdin.flush().await?)
    }

    /// Lets it take all rows. Time and processor time begin with the first record: a start is once.
    pub async fn move_all(&mut self) -> Result<Moved> {
        ensure!(self.rows > 0, "no rows are expected");
        self.go().await?;
        ensure!(self.line().await? == "first", "no first record");
        let before = cpu::of_process(self.id()?)?;
        let time = Duration::from_secs_f64(self.line().await?.parse()?);
        let cpu = cpu::of_process(self.id()?)?.saturating_sub(before);
        Ok(Moved { time, cpu, peak: cpu::peak_megabytes(self.id()?)? })
    }

    /// Lets it begin, waits until it reads its slot, and gives on when records come.
    pub async fn report(mut self, pool: &PgPool, slot: &str) -> Result<(mpsc::UnboundedReceiver<Instant>, Reporting)> {
        self.go().await?;
        peers::until_read(pool, slot).await?;
        let (sender, arrived) = mpsc::unbounded_channel();
        let Self { child, mut lines, .. } = self;
        let reading = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                if line == "here" && sender.send(Instant::now()).is_err() {
                    return;
                }
            }
        });
        Ok((arrived, Reporting { child, reading }))
    }

    pub async fn stop(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}

/// An engine that reports.
pub struct Reporting {
    child: Child,
    reading: JoinHandle<()>,
}

impl Reporting {
    pub async fn stop(mut self) -> Result<()> {
        self.child.kill().await?;
        Ok(self.reading.await?)
    }
}
