//! Other task engines on PostgreSQL, each at its fastest: what the benchmark `engine` holds Relais against.
//!
//! One process measures one peer once, on a database of its own, and prints one line of JSON. `cargo xtask bench
//! engine` builds and runs it; by hand:
//!
//! ```text
//! relais-bench-peers --peer river --database postgres://postgres@127.0.0.1/river drain --tasks 100000
//! ```
//!
//! The settings of each peer are in its module, with where they come from.

mod apalis;
mod awa;
mod graphile;
mod river;
mod seen;

use std::{
    any::Any,
    ops::Range,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use clap::{Parser, Subcommand, ValueEnum};
use serde::Serialize;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    time::{sleep, timeout},
};

/// How long a measurement may take.
const PATIENCE: Duration = Duration::from_secs(900);

/// So many tasks are submitted at once before a drain.
const BATCH: u64 = 5000;

/// How often the database is asked whether the last results are stored, once every task has run.
const LOOK: Duration = Duration::from_millis(2);

/// What every task carries: as much as the tasks of the other benchmarks.
const NAME: &str = "a task of the benchmark";

/// Other task engines on PostgreSQL, each at its fastest.
#[derive(Debug, Parser)]
struct Arguments {
    /// Which one.
    #[arg(long)]
    peer: Name,
    /// A database of its own; its tables are made if need be.
    #[arg(long, value_name = "URL")]
    database: String,
    /// Says `ready` before it measures and waits for a line; waits for another before it ends.
    #[arg(long)]
    step: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Name {
    River,
    Awa,
    Graphile,
    Apalis,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Tasks that do nothing, all submitted before: from the start of the workers until the last result is stored.
    Drain {
        #[arg(long)]
        tasks: u64,
        #[command(flatten)]
        pace: Pace,
    },
    /// From the submission of a task to its handler's begin, one at a time, with the worker waiting.
    Idle {
        #[arg(long)]
        samples: u64,
    },
    /// Puts finished tasks into the tables.
    Fill {
        #[arg(long)]
        finished: u64,
    },
}

/// What can be tried instead of the peer's best.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Pace {
    /// How many tasks run at once.
    #[arg(long)]
    pub concurrency: Option<usize>,
    /// How many are taken from the database at once, where that can be said.
    #[arg(long)]
    pub batch: Option<usize>,
    /// How many take at once, where that can be said.
    #[arg(long)]
    pub takers: Option<usize>,
}

/// What is asked of a peer.
#[async_trait]
pub trait Peer: Send + Sync {
    /// Submits the tasks with these numbers.
    async fn submit(&self, numbers: Range<u64>) -> Result<()>;

    /// Workers that do what is there and what comes, for as long as they are held.
    async fn drain(&self, pace: Pace) -> Result<Box<dyn Any + Send>>;

    /// A worker that waits for single tasks.
    async fn wait(&self) -> Result<Box<dyn Any + Send>>;

    /// Whether a task is there whose result is not stored. Cheap.
    async fn unfinished(&self, connection: &mut PgConnection) -> Result<bool>;

    /// How many finished tasks are kept. Need not be cheap.
    async fn finished(&self, connection: &mut PgConnection) -> Result<u64>;

    /// Whether finished tasks stay.
    fn keeps_history(&self) -> bool {
        true
    }

    /// Makes so many finished tasks more.
    async fn fill(&self, finished: u64, connection: &mut PgConnection) -> Result<()>;
}

/// What was measured.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    peer: String,
    /// How many tasks were to be done.
    tasks: u64,
    /// How often a handler began.
    ran: u64,
    /// How often one began for a task that had run before.
    again: u64,
    /// From the start of the workers until the last result was stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    /// How many more finished tasks there are than before.
    finished: u64,
    keeps_history: bool,
    /// From a submission to its handler's begin, in microseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    latencies: Vec<u64>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let url = &arguments.database;
    let peer: Box<dyn Peer> = match arguments.peer {
        Name::River => Box::new(river::River::open(url).await?),
        Name::Awa => Box::new(awa::Awa::open(url).await?),
        Name::Graphile => Box::new(graphile::Graphile::open(url).await?),
        Name::Apalis => Box::new(apalis::Apalis::open(url).await?),
    };
    let mut connection = PgConnection::connect(url).await?;
    // What the peer does is planned as it wants; only our own questions may not walk through a million finished tasks.
    sqlx::raw_sql("SET enable_seqscan = off").execute(&mut connection).await?;
    let mut input = BufReader::new(tokio::io::stdin());
    let mut step = async || {
        if arguments.step {
            input.read_line(&mut String::new()).await?;
        }
        anyhow::Ok(())
    };
    let before = peer.finished(&mut connection).await?;
    let mut report = Report {
        peer: arguments.peer.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned()),
        keeps_history: peer.keeps_history(),
        ..Report::default()
    };
    match arguments.command {
        Command::Drain { tasks, pace } => {
            report.tasks = tasks;
            seen::expect(tasks, false);
            submit(peer.as_ref(), tasks).await?;
            settle(&mut connection).await?;
            say_ready(arguments.step);
            step().await?;
            let begin = Instant::now();
            let _workers = peer.drain(pace).await?;
            timeout(PATIENCE, seen::all()).await.context("not all tasks ran")?;
            // The answer is of the moment in which it was asked for.
            let mut asked = begin.elapsed();
            while peer.unfinished(&mut connection).await? {
                ensure!(asked < PATIENCE, "not all results were stored");
                sleep(LOOK).await;
                asked = begin.elapsed();
            }
            report.seconds = Some(asked.as_secs_f64());
            finish(&mut report, peer.as_ref(), &mut connection, before).await?;
            step().await?;
        }
        Command::Idle { samples } => {
            report.tasks = samples + WARM_UP;
            seen::expect(report.tasks, true);
            let _worker = peer.wait().await?;
            say_ready(arguments.step);
            step().await?;
            report.latencies = pick_up(peer.as_ref(), samples).await?;
            while peer.unfinished(&mut connection).await? {
                sleep(LOOK).await;
            }
            finish(&mut report, peer.as_ref(), &mut connection, before).await?;
            step().await?;
        }
        Command::Fill { finished } => {
            report.tasks = finished;
            peer.fill(finished, &mut connection).await?;
            settle(&mut connection).await?;
            report.finished = peer.finished(&mut connection).await? - before;
            println!("{}", serde_json::to_string(&report)?);
        }
    }
    // Not every peer can be stopped, and what is to be said has been said.
    std::process::exit(0);
}

/// The first ones open connections and warm up.
const WARM_UP: u64 = 20;

/// How long single tasks take to begin, in microseconds.
async fn pick_up(peer: &dyn Peer, samples: u64) -> Result<Vec<u64>> {
    let mut latencies = Vec::new();
    for number in 0..samples + WARM_UP {
        // The worker has to be waiting again, in no step with anything else.
        sleep(Duration::from_millis(10 + number * 7 % 13)).await;
        let sent = Instant::now();
        peer.submit(number..number + 1).await?;
        let begun = timeout(Duration::from_secs(30), seen::begun(usize::try_from(number)?))
            .await
            .context("a task did not begin")?;
        if number >= WARM_UP {
            latencies.push(u64::try_from(begun.saturating_duration_since(sent).as_micros())?);
        }
    }
    Ok(latencies)
}

/// Submits the tasks from the first to the last.
pub async fn submit(peer: &dyn Peer, tasks: u64) -> Result<()> {
    let mut from = 0;
    while from < tasks {
        let to = (from + BATCH).min(tasks);
        peer.submit(from..to).await?;
        from = to;
    }
    Ok(())
}

/// What the database would do some time later by itself, so that it does not happen to the one or the other.
async fn settle(connection: &mut PgConnection) -> Result<()> {
    for statement in ["VACUUM ANALYZE", "CHECKPOINT"] {
        sqlx::raw_sql(statement).execute(&mut *connection).await?;
    }
    Ok(())
}

async fn finish(report: &mut Report, peer: &dyn Peer, connection: &mut PgConnection, before: u64) -> Result<()> {
    (report.ran, report.again) = seen::counts();
    report.finished = peer.finished(connection).await?.saturating_sub(before);
    println!("{}", serde_json::to_string(report)?);
    Ok(())
}

fn say_ready(step: bool) {
    if step {
        println!("ready");
    }
}

/// The answer to a question of ours.
pub async fn ask<T>(connection: &mut PgConnection, question: &str) -> Result<T>
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
{
    Ok(sqlx::query_scalar(AssertSqlSafe(question.to_owned())).fetch_one(connection).await?)
}

/// The body of a task.
#[derive(Debug, Clone, Serialize, serde::Deserialize)]
pub struct Body {
    pub number: u64,
    pub name: String,
}

impl Body {
    pub fn new(number: u64) -> Self {
        Self { number, name: NAME.to_owned() }
    }
}
