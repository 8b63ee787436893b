//! Tasks that do nothing, done in process on PostgreSQL: Relais beside other engines of its kind, each at its fastest, on
//! the same server in the same run.
//!
//! The others are in a package of their own (`bench/peers`), which says how each is set up. All of them have the same to
//! do: tasks that were submitted before are drained, from the start of the workers until the last result is stored; and an
//! idle worker is given single tasks.

mod peer;
mod relais;

use std::time::Duration;

use anyhow::{Result, ensure};
use relais_testkit::PostgresServer;

use crate::{
    Plan,
    cpu::{self, Split},
    report::Section,
    sample::{Sample, ms, number},
    world::{create_database, postgres},
};

/// Who takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    Relais,
    River,
    Awa,
    Graphile,
    Apalis,
}

const ALL: [Engine; 5] = [Engine::Relais, Engine::River, Engine::Awa, Engine::Graphile, Engine::Apalis];

impl Engine {
    /// As it is printed.
    fn name(self) -> &'static str {
        match self {
            Self::Relais => "Relais",
            Self::River => "riverqueue",
            Self::Awa => "awa",
            Self::Graphile => "graphile_worker",
            Self::Apalis => "apalis-postgres",
        }
    }

    /// Settings that are tried: which of them is the fastest depends on the machine. The first are those of the peer's own
    /// benchmark, or what its documentation advises; `bench/peers` says which.
    fn settings(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Relais => &[],
            Self::River => &[&[], &["--concurrency", "5000"], &["--concurrency", "10000"]],
            Self::Awa => &[&[], &["--takers", "4"], &["--concurrency", "256"]],
            Self::Graphile => &[&[], &["--takers", "4", "--batch", "1250"]],
            Self::Apalis => &[&[], &["--takers", "8", "--batch", "500"], &["--takers", "2", "--batch", "2000"]],
        }
    }

    /// As the peers' program calls it.
    fn key(self) -> &'static str {
        match self {
            Self::Relais => "relais",
            Self::River => "river",
            Self::Awa => "awa",
            Self::Graphile => "graphile",
            Self::Apalis => "apalis",
        }
    }
}

/// Runs it.
pub async fn run(plan: &Plan) -> Result<Section> {
    let header =
        ["engine", "finished before", "tasks/s", "µs CPU engine", "database", "idle p50 ms", "idle p99 ms", "history"];
    let mut section = Section::new("engine", "tasks that do nothing, in process on PostgreSQL, beside others", &header);
    let (server, first) = postgres(plan).await?;
    let meter = Meter { database: first };
    let fastest = fastest(plan, &server, meter).await?;
    let empty = drained(plan, &server, meter, &fastest, 0).await?;
    let idle = picked_up(plan, &server).await?;
    let full = drained(plan, &server, meter, &fastest, plan.finished).await?;
    for (finished, drained) in [(0, &empty), (plan.finished, &full)] {
        for (engine, sample, keeps_history) in drained {
            let [cpu, database, _] = Split::columns(sample.split);
            let latency = |share| {
                let sample = (finished == 0).then(|| idle.iter().find(|(other, _)| other == engine)).flatten();
                sample.map_or_else(String::new, |(_, sample)| ms(sample.percentile(share)))
            };
            section.row([
                engine.name().to_owned(),
                number(finished as f64),
                number(sample.rate),
                cpu,
                database,
                latency(0.5),
                latency(0.99),
                if *keeps_history { "kept" } else { "deleted" }.to_owned(),
            ]);
        }
    }
    judge(&mut section, plan, &empty, &full, &idle);
    section
        .note("CPU is for one task, from the start of the workers to the last result; the engine's is its process's.");
    section.note("What deletes its rows has no finished tasks to walk around, and is not filled.");
    let chosen = fastest.iter().filter(|(_, settings)| !settings.is_empty());
    let chosen: Vec<_> =
        chosen.map(|(engine, settings)| format!("{} `{}`", engine.name(), settings.join(" "))).collect();
    if !chosen.is_empty() {
        section.note(format!("Faster than its own benchmark's settings, and used: {}.", chosen.join(", ")));
    }
    Ok(section)
}

type Drained = (Engine, Sample, bool);

type Settings = (Engine, &'static [&'static str]);

/// The settings of each with which it drains a part of the tasks in the shortest time.
async fn fastest(plan: &Plan, server: &PostgresServer, meter: Meter) -> Result<Vec<Settings>> {
    let mut fastest = Vec::new();
    for engine in ALL {
        let mut best: Option<(Duration, &'static [&'static str])> = None;
        for &settings in engine.settings() {
            let url = create_database(server, &format!("{}_trial", engine.key())).await?;
            let time = peer::drain(engine.key(), &url, (plan.drain / 4).max(1), settings, meter).await?.time;
            if best.is_none_or(|(other, _)| time < other) {
                best = Some((time, settings));
            }
        }
        fastest.push((engine, best.map_or(&[][..], |(_, settings)| settings)));
    }
    Ok(fastest)
}

fn judge(section: &mut Section, plan: &Plan, empty: &[Drained], full: &[Drained], idle: &[(Engine, Sample)]) {
    let rate =
        |list: &[Drained], engine| list.iter().find(|(other, ..)| *other == engine).map(|(_, sample, _)| sample.rate);
    let Some(ours) = rate(empty, Engine::Relais) else { return };
    for (engine, bar) in
        [(Engine::River, Some(2.0)), (Engine::Graphile, Some(1.0)), (Engine::Awa, None), (Engine::Apalis, None)]
    {
        let Some(theirs) = rate(empty, engine) else { continue };
        let what = format!("{}: drained", engine.name());
        match bar {
            Some(bar) => section.at_least(&what, ours / theirs, bar),
            None => section.ratio(&what, ours / theirs),
        }
    }
    if let Some(among_many) = rate(full, Engine::Relais) {
        let what = format!("as long with {} finished tasks in the table", number(plan.finished as f64));
        section.below(&what, ours / among_many, 1.2, " ×");
    }
    let latency = |engine, share| {
        let sample = idle.iter().find(|(other, _)| *other == engine)?;
        Some(sample.1.percentile(share).as_secs_f64() * 1000.0)
    };
    for (share, name) in [(0.5, "p50"), (0.99, "p99")] {
        for engine in [Engine::Graphile, Engine::River] {
            if let (Some(ours), Some(theirs)) = (latency(Engine::Relais, share), latency(engine, share)) {
                let theirs = (theirs * 100.0).round() / 100.0;
                section.below(&format!("idle at {name}, beside {}", engine.name()), ours, theirs, " ms");
            }
        }
    }
}

/// Each drains as many tasks, in turn, as often as the plan has rounds: its median.
async fn drained(
    plan: &Plan,
    server: &PostgresServer,
    meter: Meter,
    settings: &[Settings],
    finished: u64,
) -> Result<Vec<Drained>> {
    let mut rounds: Vec<(Engine, Vec<Sample>, bool)> = Vec::new();
    for round in 0..plan.rounds {
        for &(engine, settings) in settings {
            let (url, fresh) = database(server, engine, finished, round).await?;
            let measured = match engine {
                Engine::Relais => {
                    if fresh && finished > 0 {
                        relais::fill(&url, finished).await?;
                    }
                    relais::drain(&url, plan.drain, meter).await?
                }
                _ => {
                    if fresh && finished > 0 {
                        peer::fill(engine.key(), &url, finished).await?;
                    }
                    peer::drain(engine.key(), &url, plan.drain, settings, meter).await?
                }
            };
            ensure!(
                measured.ran == plan.drain && (measured.finished == plan.drain || !measured.keeps_history),
                "{} did not do each of {} tasks once: {measured:?}",
                engine.name(),
                plan.drain
            );
            let mut sample = Sample::new(usize::try_from(plan.drain)?, measured.time, Vec::new());
            sample.split = Some(measured.split);
            match rounds.iter_mut().find(|(other, ..)| *other == engine) {
                Some((_, samples, _)) => samples.push(sample),
                None => rounds.push((engine, vec![sample], measured.keeps_history)),
            }
        }
    }
    Ok(rounds.into_iter().map(|(engine, samples, keeps)| (engine, Sample::median(samples), keeps)).collect())
}

/// A database for a round, and whether it is a new one. A filled one is kept for all rounds.
async fn database(server: &PostgresServer, engine: Engine, finished: u64, round: usize) -> Result<(String, bool)> {
    let name = format!("{}_{finished}", engine.key());
    if finished > 0 && round > 0 {
        return Ok((server.url(&name), false));
    }
    Ok((create_database(server, &name).await?, true))
}

/// Each is given single tasks.
async fn picked_up(plan: &Plan, server: &PostgresServer) -> Result<Vec<(Engine, Sample)>> {
    let mut samples = Vec::new();
    for engine in ALL {
        let url = create_database(server, &format!("{}_idle", engine.key())).await?;
        let latencies = match engine {
            Engine::Relais => relais::pick_up(&url, plan.samples).await?,
            _ => peer::pick_up(engine.key(), &url, plan.samples).await?,
        };
        samples.push((engine, Sample::new(plan.samples, Duration::from_secs(1), latencies)));
    }
    Ok(samples)
}

/// What came of a drain.
#[derive(Debug)]
struct Measured {
    /// How often a handler began.
    ran: u64,
    /// How many finished tasks there are more than before.
    finished: u64,
    /// Whether finished tasks stay.
    keeps_history: bool,
    /// From the start of the workers until the last result was stored.
    time: Duration,
    /// Processor time for one task: the engine's process as `server`, and PostgreSQL.
    split: Split,
}

/// Reads processor times of a process and of PostgreSQL.
#[derive(Debug, Clone, Copy)]
struct Meter {
    /// PostgreSQL's first process.
    database: u32,
}

impl Meter {
    fn read(self, engine: u32) -> Result<Split> {
        Ok(Split { server: cpu::of_process(engine)?, database: cpu::of_family(self.database)?, load: Duration::ZERO })
    }
}
