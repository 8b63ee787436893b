//! Relais beside its limits: system benchmarks, on private servers, with what they are compared to in the same run.
//!
//! `cargo xtask bench [NAME…]` builds the server as it ships and runs them. Figures depend on the machine and on what
//! else it does; ratios of one run do not, much. `docs/benchmarks.md` says what is measured and how.

mod bare;
mod bulk;
mod bus;
mod callbacks;
mod celery;
mod consume;
mod cpu;
mod dashboard;
mod engine;
mod fill;
mod idle;
mod load;
mod machine;
mod notify;
mod outbox;
mod pickup;
mod poll;
mod profile;
mod rabbitmq;
mod receiver;
mod report;
mod sample;
mod submit;
mod wear;
mod work;
mod world;

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use clap::Parser;

use crate::{
    profile::Profile,
    world::{Kind, World},
};

/// Relais beside its limits.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench")]
struct Arguments {
    /// Which benchmarks to run; all if none is named.
    names: Vec<Name>,
    /// A smoke test of a minute: small queues, short rounds. Its figures mean nothing.
    #[arg(long)]
    quick: bool,
    /// Put the tables into this document, e.g. docs/benchmarks.md.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Tell on stderr where the time goes.
    #[arg(long)]
    profile: bool,
    /// Without what Relais is held against: to find out what to improve. Of `engine`, `rabbitmq` and
    /// `notify`; of `outbox`, without Debezium.
    #[arg(long)]
    alone: bool,
    /// Only these databases.
    #[arg(long, value_delimiter = ',')]
    database: Vec<Kind>,
    /// Only these lengths of the queue, from short to long.
    #[arg(long, value_delimiter = ',')]
    pending: Vec<u64>,
    /// Only these numbers of connections.
    #[arg(long, value_delimiter = ',')]
    connections: Vec<usize>,
    /// So many rounds.
    #[arg(long)]
    rounds: Option<usize>,
    /// So many seconds a round.
    #[arg(long)]
    seconds: Option<f64>,
    /// Run what moves the rows of an outbox, as its benchmark says. The benchmark starts itself with this.
    #[arg(long, hide = true)]
    pump: Option<String>,
    /// Hold links of web pages, as the benchmark `notify` says. The benchmark starts itself with this.
    #[arg(long, hide = true)]
    hold: Option<String>,
    /// Write to links of web pages, as the benchmark `notify` says. The benchmark starts itself with this.
    #[arg(long, hide = true)]
    write: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    Submit,
    Poll,
    Work,
    Engine,
    Wear,
    Pickup,
    Bulk,
    Callbacks,
    Bus,
    Rabbitmq,
    Outbox,
    Consume,
    Notify,
    Dashboard,
    Idle,
}

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Plan {
    /// On which databases.
    pub databases: Vec<Kind>,
    /// With how many tasks in the queue.
    pub pending: Vec<u64>,
    /// Over how many connections.
    pub connections: Vec<usize>,
    /// So many rounds, of which the median counts.
    pub rounds: usize,
    /// How long a round takes.
    pub time: Duration,
    /// How many single events are timed.
    pub samples: usize,
    /// How many callbacks wait to be sent.
    pub callbacks: usize,
    /// How many tasks go by way of a broker.
    pub tasks: usize,
    /// How many tasks are drained in process.
    pub drain: u64,
    /// Among how many finished ones.
    pub finished: u64,
    /// How many rows of an outbox are published by polling.
    pub polled: usize,
    /// How many are captured.
    pub captured: usize,
    /// How long the load is that must not wear out the database.
    pub wear: Duration,
    /// So many tasks come, are done and are purged at a time.
    pub wear_tasks: u64,
    /// How many links of web pages are open.
    pub links: usize,
    /// How long nothing is done.
    pub idle: Duration,
    /// Whether to tell where the time goes.
    pub profile: bool,
    /// Whether to leave out what Relais is held against.
    pub alone: bool,
}

impl Plan {
    fn new(arguments: &Arguments) -> Self {
        let mut plan = if arguments.quick {
            Self {
                databases: vec![Kind::Sqlite, Kind::Postgres],
                pending: vec![1000, 20_000],
                connections: vec![1, 64],
                rounds: 1,
                time: Duration::from_millis(300),
                samples: 30,
                callbacks: 500,
                tasks: 300,
                drain: 3000,
                finished: 10_000,
                polled: 5000,
                captured: 20_000,
                wear: Duration::from_secs(6),
                wear_tasks: 1000,
                links: 500,
                idle: Duration::from_secs(2),
                profile: arguments.profile,
                alone: arguments.alone,
            }
        } else {
            Self {
                databases: vec![Kind::Sqlite, Kind::Postgres],
                pending: vec![1000, 1_000_000],
                connections: vec![1, 16, 64],
                rounds: 3,
                time: Duration::from_secs(2),
                samples: 500,
                callbacks: 20_000,
                tasks: 10_000,
                drain: 100_000,
                finished: 1_000_000,
                polled: 100_000,
                captured: 1_000_000,
                wear: Duration::from_mins(6),
                wear_tasks: 20_000,
                links: 10_000,
                idle: Duration::from_secs(20),
                profile: arguments.profile,
                alone: arguments.alone,
            }
        };
        let given = |list: &[Kind]| (!list.is_empty()).then(|| list.to_vec());
        plan.databases = given(&arguments.database).unwrap_or(plan.databases);
        if !arguments.pending.is_empty() {
            plan.pending.clone_from(&arguments.pending);
        }
        if !arguments.connections.is_empty() {
            plan.connections.clone_from(&arguments.connections);
        }
        plan.rounds = arguments.rounds.unwrap_or(plan.rounds).max(1);
        plan.time = arguments.seconds.map_or(plan.time, Duration::from_secs_f64);
        plan
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = Arguments::parse();
    if let Some(pump) = &arguments.pump {
        return outbox::run_pump(pump).await;
    }
    if let Some(order) = &arguments.hold {
        return notify::run_holder(order).await;
    }
    if let Some(order) = &arguments.write {
        return notify::run_writer(order).await;
    }
    let plan = Plan::new(&arguments);
    let machine = machine::line().await;
    if arguments.names.is_empty() {
        arguments.names = <Name as clap::ValueEnum>::value_variants().to_vec();
    }
    for name in arguments.names {
        let section = match name {
            Name::Submit => submit::run(&plan).await?,
            Name::Poll => poll::run(&plan).await?,
            Name::Work => work::run(&plan).await?,
            Name::Engine => engine::run(&plan).await?,
            Name::Wear => wear::run(&plan).await?,
            Name::Pickup => pickup::run(&plan).await?,
            Name::Bulk => bulk::run(&plan).await?,
            Name::Callbacks => callbacks::run(&plan).await?,
            Name::Bus => bus::run(&plan).await?,
            Name::Rabbitmq => rabbitmq::run(&plan).await?,
            Name::Outbox => outbox::run(&plan).await?,
            Name::Consume => consume::run(&plan).await?,
            Name::Notify => notify::run(&plan).await?,
            Name::Dashboard => dashboard::run(&plan).await?,
            Name::Idle => idle::run(&plan).await?,
        };
        show(&section.text(&machine));
        if let Some(file) = &arguments.markdown {
            section.put_into(file, &machine)?;
        }
    }
    Ok(())
}

/// Runs a measurement and, if asked to, tells where its time went.
pub async fn profiled<T>(plan: &Plan, world: &World, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    if !plan.profile {
        return work.await;
    }
    let profile = Profile::begin(world).await?;
    let result = work.await?;
    tell(&format!("{what}\n{}\n", profile.end(world).await?));
    Ok(result)
}

#[expect(clippy::print_stderr, reason = "not part of the tables")]
fn tell(text: &str) {
    eprintln!("{text}");
}

#[expect(clippy::print_stdout, reason = "the tables are what this program is for")]
fn show(text: &str) {
    println!("{text}\n");
}
