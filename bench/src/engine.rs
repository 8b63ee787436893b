//! Tasks that do nothing, done in process on PostgreSQL: Relais beside other engines of its kind, each at its fastest,
//! on the same server in the same run; and Relais on SQLite.
//!
//! The others are in a package of their own (`bench/peers`), which says how each is set up. All of them have the same
//! to do: tasks that were submitted before are drained, from the start of the workers until the last result is stored;
//! and an idle worker is given single tasks.

mod meter;
mod peer;
pub mod relais;

use std::time::Duration;

use anyhow::{Result, ensure};
use relais_testkit::PostgresServer;

use crate::{
    Plan,
    cpu::Split,
    profile::{reset_statements, statements},
    report::Section,
    sample::{Sample, ms, number},
    tell,
    world::{create_database, postgres},
};

use self::meter::{Meter, Spent};

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

fn all(plan: &Plan) -> &'static [Engine] {
    if plan.alone { &ALL[..1] } else { &ALL }
}

/// Those that drain tasks among many that have ended: Relais, and the one that it is held against that keeps its
/// history. (awa, started on a database with a million finished tasks, is busy for minutes before it begins.)
const AMONG_MANY: [Engine; 2] = [Engine::Relais, Engine::River];

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

    /// Settings that are tried: which of them is the fastest depends on the machine. The first are those of the peer's
    /// own benchmark, or what its documentation advises; `bench/peers` says which.
    fn settings(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Relais => &[&["--concurrency", "2000"], &["--concurrency", "200"]],
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
    let header = [
        "engine",
        "finished before",
        "tasks/s",
        "µs CPU engine",
        "database",
        "bytes of WAL",
        "idle p50 ms",
        "idle p99 ms",
        "history",
    ];
    let mut section = Section::new("engine", "tasks that do nothing, in process, beside others", &header);
    let (server, first) = postgres(plan).await?;
    let meter = Meter::new(first, server.url("postgres"));
    let fastest = fastest(plan, &server, &meter).await?;
    let empty = drained(plan, &server, &meter, &fastest, 0).await?;
    let idle = picked_up(plan, &server).await?;
    let among_many: Vec<Settings> = fastest.iter().copied().filter(|(engine, _)| AMONG_MANY.contains(engine)).collect();
    let full = drained(plan, &server, &meter, &among_many, plan.finished).await?;
    for (finished, drained) in [(0, &empty), (plan.finished, &full)] {
        for Drained { engine, sample, spent, keeps_history } in drained {
            let [cpu, database, _] = Split::columns(Some(spent.split));
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
                number(spent.wal),
                latency(0.5),
                latency(0.99),
                if *keeps_history { "kept" } else { "deleted" }.to_owned(),
            ]);
        }
    }
    judge(&mut section, plan, &empty, &full, &idle);
    on_sqlite(plan, &mut section).await?;
    section
        .note("CPU is for one task, from the start of the workers to the last result; the engine's is its process's.");
    section.note("Among finished tasks: Relais and the one of those it is held against that keeps them.");
    let chosen = fastest.iter().filter(|(_, settings)| !settings.is_empty());
    let chosen: Vec<_> =
        chosen.map(|(engine, settings)| format!("{} `{}`", engine.name(), settings.join(" "))).collect();
    if !chosen.is_empty() {
        section.note(format!(
            "The fastest of the settings that were tried, where they are not those of a peer's own benchmark: {}.",
            chosen.join(", ")
        ));
    }
    Ok(section)
}

/// What the fastest of the others needs to begin a single task, on a server of its own: what all ways of Relais are
/// held against.
pub async fn idle_peer(plan: &Plan) -> Result<Sample> {
    let (server, _) = postgres(plan).await?;
    let url = create_database(&server, "idle").await?;
    let latencies = peer::pick_up(Engine::Graphile.key(), &url, plan.samples).await?;
    Ok(Sample::new(plan.samples, Duration::from_secs(1), latencies))
}

/// Relais on a file, alone: the others have no such thing.
async fn on_sqlite(plan: &Plan, section: &mut Section) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let url = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    let idle = relais::pick_up(&url("idle.db"), plan.samples).await?;
    let idle = Sample::new(plan.samples, Duration::from_secs(1), idle);
    let mut rates = Vec::new();
    for finished in [0, plan.finished] {
        let mut rounds = Vec::new();
        for round in 0..plan.rounds {
            let name = if finished == 0 { format!("empty{round}.db") } else { "full.db".to_owned() };
            if finished > 0 && round == 0 {
                relais::fill(&url(&name), finished).await?;
            }
            let measured = relais::drain(&url(&name), plan.drain, relais::CONCURRENCY, None).await?;
            let mut sample = Sample::new(usize::try_from(plan.drain)?, measured.time, Vec::new());
            sample.split = Some(measured.spent.split);
            tell(&format!("engine: Relais on SQLite, {finished} finished: {:.0}/s", sample.rate));
            rounds.push(sample);
        }
        let sample = Sample::median(rounds);
        let [cpu, ..] = Split::columns(sample.split);
        let latency = |share| if finished == 0 { ms(idle.percentile(share)) } else { String::new() };
        let mut row = vec!["Relais on SQLite".to_owned(), number(finished as f64), number(sample.rate), cpu];
        row.extend([String::new(), String::new(), latency(0.5), latency(0.99), "kept".to_owned()]);
        section.row(row);
        rates.push(sample.rate);
    }
    if let [empty, full] = rates[..] {
        let what = format!("as long with {} finished tasks in the file, on SQLite", number(plan.finished as f64));
        section.below(&what, empty / full, 1.2, " ×");
    }
    Ok(())
}

/// What came of the rounds of one engine: the median.
struct Drained {
    engine: Engine,
    sample: Sample,
    spent: Spent,
    keeps_history: bool,
}

type Settings = (Engine, &'static [&'static str]);

/// Drains so many tasks, with these settings.
async fn drain(engine: Engine, url: &str, tasks: u64, settings: &[&str], meter: &Meter) -> Result<Measured> {
    match (engine, settings) {
        (Engine::Relais, [_, concurrency]) => relais::drain(url, tasks, concurrency.parse()?, Some(meter)).await,
        _ => peer::drain(engine.key(), url, tasks, settings, meter).await,
    }
}

/// The settings of each with which it drains a part of the tasks in the shortest time.
async fn fastest(plan: &Plan, server: &PostgresServer, meter: &Meter) -> Result<Vec<Settings>> {
    let mut fastest = Vec::new();
    for &engine in all(plan) {
        let mut best: Option<(Duration, &'static [&'static str])> = None;
        for &settings in engine.settings() {
            let url = create_database(server, &format!("{}_trial", engine.key())).await?;
            let time = drain(engine, &url, (plan.drain / 4).max(1), settings, meter).await?.time;
            if best.is_none_or(|(other, _)| time < other) {
                best = Some((time, settings));
            }
        }
        fastest.push((engine, best.map_or(&[][..], |(_, settings)| settings)));
    }
    Ok(fastest)
}

fn judge(section: &mut Section, plan: &Plan, empty: &[Drained], full: &[Drained], idle: &[(Engine, Sample)]) {
    let rate = |list: &[Drained], engine| {
        list.iter().find(|drained| drained.engine == engine).map(|drained| drained.sample.rate)
    };
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
    meter: &Meter,
    settings: &[Settings],
    finished: u64,
) -> Result<Vec<Drained>> {
    let mut rounds: Vec<(Engine, Vec<Measured>)> = settings.iter().map(|(engine, _)| (*engine, Vec::new())).collect();
    for round in 0..plan.rounds {
        for (&(engine, settings), (_, measurements)) in settings.iter().zip(&mut rounds) {
            let (url, fresh) = database(server, engine, finished, round).await?;
            if fresh && finished > 0 {
                match engine {
                    Engine::Relais => relais::fill(&url, finished).await?,
                    _ => peer::fill(engine.key(), &url, finished).await?,
                }
            }
            if plan.profile {
                reset_statements(&url).await?;
            }
            let measured = drain(engine, &url, plan.drain, settings, meter).await?;
            if plan.profile {
                tell(&statements(&url).await?.join("\n"));
            }
            ensure!(
                measured.ran == plan.drain && (measured.finished == plan.drain || !measured.keeps_history),
                "{} did not do each of {} tasks once: {measured:?}",
                engine.name(),
                plan.drain
            );
            let rate = plan.drain as f64 / measured.time.as_secs_f64();
            tell(&format!("engine: {}, {finished} finished: {rate:.0}/s", engine.name()));
            measurements.push(measured);
        }
    }
    let done = usize::try_from(plan.drain)?;
    Ok(rounds
        .into_iter()
        .filter_map(|(engine, mut measured)| {
            measured.sort_by_key(|measured| measured.time);
            let middle = measured.len() / 2;
            let Measured { time, spent, keeps_history, .. } = measured.into_iter().nth(middle)?;
            Some(Drained { engine, sample: Sample::new(done, time, Vec::new()), spent, keeps_history })
        })
        .collect())
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
    for &engine in all(plan) {
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
pub struct Measured {
    /// How often a handler began.
    ran: u64,
    /// How many finished tasks there are more than before.
    finished: u64,
    /// Whether finished tasks stay.
    keeps_history: bool,
    /// From the start of the workers until the last result was stored.
    time: Duration,
    /// What one task cost.
    spent: Spent,
}
