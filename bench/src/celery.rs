//! Celery, as it is usually run: what Relais over RabbitMQ is held against. `celery/work.py` is the other half.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use relais_testkit::ServerProcess;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::{fill::BODY, sample::Sample};

/// How long all tasks may take.
const PATIENCE: Duration = Duration::from_secs(600);

const LOOK: Duration = Duration::from_millis(20);

/// A way to run Celery on a broker and a database.
pub struct Celery {
    programs: PathBuf,
    broker: String,
    database: String,
    prefetch: u16,
    started: bool,
}

impl Celery {
    /// With so many tasks handed to each of two processes ahead; whether it is stored that they were started.
    pub fn new(broker: &str, database: &str, prefetch: u16, started: bool) -> Result<Self> {
        let programs = std::env::var_os("BENCH_PYTHON").context("BENCH_PYTHON names no Python with Celery")?;
        let (broker, database) = (broker.to_owned(), database.to_owned());
        Ok(Self { programs: programs.into(), broker, database, prefetch, started })
    }

    /// How long it takes from `delay()` to the begin of a task.
    pub async fn pick_up(&mut self, samples: usize) -> Result<Sample> {
        let _worker = self.worker()?;
        let mut producer = self.producer("pickup", samples)?;
        let line = tokio::task::spawn_blocking(move || {
            producer.go()?;
            producer.line()
        })
        .await??;
        let seconds: Vec<f64> = serde_json::from_str(&line).with_context(|| format!("what is {line:?}?"))?;
        let latencies = seconds.into_iter().map(|seconds| Duration::from_secs_f64(seconds.max(0.0))).collect();
        Ok(Sample::new(samples, Duration::from_secs(1), latencies))
    }

    /// Tasks a second, from the first submission until all results are stored.
    pub async fn whole_way(&mut self, tasks: usize) -> Result<f64> {
        let _worker = self.warm_worker().await?;
        let mut producer = self.producer("submit", tasks)?;
        let begin = Instant::now();
        let producing = tokio::task::spawn_blocking(move || producer.go().and_then(|()| producer.line()));
        self.stored(tasks).await?;
        let time = begin.elapsed();
        producing.await??;
        Ok(tasks as f64 / time.as_secs_f64())
    }

    /// Tasks a second, from the first stored result to the last, of tasks that were all submitted before.
    pub async fn drain(&mut self, tasks: usize) -> Result<f64> {
        self.forget().await?;
        let mut producer = self.producer("submit", tasks)?;
        tokio::task::spawn_blocking(move || producer.go().and_then(|()| producer.line())).await??;
        let _worker = self.worker()?;
        self.stored(tasks).await?;
        let seconds: f64 =
            self.ask("SELECT extract(epoch FROM max(date_done) - min(date_done))::float8 FROM celery_taskmeta").await?;
        Ok((tasks - 1) as f64 / seconds)
    }

    /// A worker that has done a task, and a table of results that is empty.
    async fn warm_worker(&self) -> Result<ServerProcess> {
        let worker = self.worker()?;
        let mut producer = self.producer("pickup", 5)?;
        tokio::task::spawn_blocking(move || producer.go().and_then(|()| producer.line())).await??;
        self.forget().await?;
        Ok(worker)
    }

    fn worker(&self) -> Result<ServerProcess> {
        let mut command = self.command("celery");
        command.args(["-A", "work", "worker", "--pool", "prefork", "--concurrency", "2", "--loglevel", "WARNING"]);
        command.args(["--without-gossip", "--without-mingle", "--without-heartbeat"]);
        ServerProcess::spawn_command(command)
    }

    fn producer(&self, what: &str, count: usize) -> Result<Producer> {
        let mut command = self.command("python");
        command.args(["work.py", what, &count.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("start a producer")?;
        let lines = BufReader::new(child.stdout.take().context("a producer without output")?);
        let mut producer = Producer { child, lines };
        let line = producer.line()?;
        ensure!(line == "ready", "a producer said {line:?}");
        Ok(producer)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("celery"))
            .env("BENCH_BROKER", &self.broker)
            .env("BENCH_RESULTS", self.database.replacen("postgres://", "db+postgresql+psycopg2://", 1))
            .env("BENCH_PREFETCH", self.prefetch.to_string())
            .env("BENCH_STARTED", if self.started { "yes" } else { "no" })
            .env("BENCH_BODY", BODY)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            // Celery is asked to run as whoever runs the benchmark.
            .env("C_FORCE_ROOT", "1");
        command
    }

    /// Waits until so many results are stored.
    async fn stored(&self, tasks: usize) -> Result<()> {
        let begin = Instant::now();
        while self.ask::<i64>("SELECT count(*) FROM celery_taskmeta WHERE status = 'SUCCESS'").await? < tasks as i64 {
            ensure!(begin.elapsed() < PATIENCE, "Celery did not do all tasks within {PATIENCE:?}");
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    async fn forget(&self) -> Result<()> {
        let mut connection = PgConnection::connect(&self.database).await?;
        sqlx::raw_sql("TRUNCATE celery_taskmeta").execute(&mut connection).await?;
        Ok(connection.close().await?)
    }

    async fn ask<T>(&self, question: &'static str) -> Result<T>
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
    {
        let mut connection = PgConnection::connect(&self.database).await?;
        let answer = sqlx::query_scalar(AssertSqlSafe(question)).fetch_one(&mut connection).await?;
        connection.close().await?;
        Ok(answer)
    }
}

/// Somebody who submits; waits for a line before it begins.
struct Producer {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Producer {
    fn go(&mut self) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("a producer without input")?;
        stdin.write_all(b"go\n").context("tell a producer to begin")
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        ensure!(!line.is_empty(), "a producer came to a bad end: {:?}", self.child.wait());
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
