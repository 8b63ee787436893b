//! Durable submissions over HTTP, beside bare INSERT commits of the same rows.

use std::sync::Arc;

use anyhow::Result;

use crate::{
    Plan, bare,
    cpu::Split,
    load::closed_loop,
    profiled,
    report::Section,
    sample::{Sample, ms, number},
    world::{CHECKED, Kind, SERVICE, World, submit},
};

/// As many connections as the bar speaks of.
const BAR_CONNECTIONS: usize = 64;

/// What is measured side by side.
#[derive(Clone, Copy)]
enum Side {
    Relais(&'static str),
    Bare(usize),
}

impl Side {
    fn name(self) -> String {
        match self {
            Self::Relais(SERVICE) => "Relais".to_owned(),
            Self::Relais(_) => "Relais, JSON Schema".to_owned(),
            Self::Bare(1) => "bare INSERT".to_owned(),
            Self::Bare(rows) => format!("bare, {rows} rows"),
        }
    }

    async fn measure(self, plan: &Plan, world: &World, kind: Kind, connections: usize) -> Result<Sample> {
        let before = world.cpu()?;
        let mut sample = match self {
            Self::Relais(service) => {
                let request = Arc::new(vec![submit(service)]);
                closed_loop(world.address(), request, connections, plan.time, 201).await?
            }
            Self::Bare(rows) => bare::insert(kind, world.bare_url(), connections, rows, plan.time).await?,
        };
        sample.split = Some(world.cpu()?.since(before, sample.rate * plan.time.as_secs_f64()));
        Ok(sample)
    }
}

/// Runs it.
pub async fn run(plan: &Plan) -> Result<Section> {
    let header = [
        "database",
        "pending",
        "connections",
        "what",
        "tasks/s",
        "p50 ms",
        "p99 ms",
        "µs CPU server",
        "database",
        "load",
    ];
    let mut section =
        Section::new("submit", "durable submissions over HTTP beside bare inserts of the same rows", &header);
    for &kind in &plan.databases {
        let mut by_length: Vec<(u64, usize, f64)> = Vec::new();
        for &pending in &plan.pending {
            let mut world = World::new(plan, kind, pending).await?;
            for (turn, &many) in plan.connections.iter().enumerate() {
                if turn > 0 && pending <= 10_000 {
                    world.reset().await?;
                }
                let mut sides = vec![Side::Bare(1), Side::Relais(SERVICE), Side::Bare(100)];
                if many == BAR_CONNECTIONS {
                    sides.push(Side::Relais(CHECKED));
                }
                let samples = in_turns(plan, &world, kind, many, &sides).await?;
                for (side, sample) in sides.iter().zip(&samples) {
                    let mut row = vec![kind.name().to_owned(), number(pending as f64), many.to_string(), side.name()];
                    row.extend([number(sample.rate), ms(sample.percentile(0.5)), ms(sample.percentile(0.99))]);
                    row.extend(Split::columns(sample.split));
                    section.row(row);
                }
                let ratio = samples[1].rate / samples[0].rate;
                let what = format!(
                    "bare single-row INSERT commits: {}, {}, {} pending",
                    kind.name(),
                    connections(many),
                    number(pending as f64)
                );
                if kind == Kind::Postgres && many == BAR_CONNECTIONS {
                    section.at_least(&what, ratio, 1.5);
                } else {
                    section.ratio(&what, ratio);
                }
                by_length.push((pending, many, samples[1].rate));
            }
        }
        compare_lengths(&mut section, plan, kind.name(), &by_length, connections);
    }
    section.note("Processor time is per task stored; `load` is the client's, for bare inserts that of tokio-postgres (sqlx on SQLite).");
    Ok(section)
}

/// Rounds in which each side has its turn, so that a busy minute of the machine hits them all.
async fn in_turns(plan: &Plan, world: &World, kind: Kind, connections: usize, sides: &[Side]) -> Result<Vec<Sample>> {
    let mut samples = vec![Vec::new(); sides.len()];
    for round in 0..=plan.rounds {
        for (side, samples) in sides.iter().zip(&mut samples) {
            let measured = side.measure(plan, world, kind, connections);
            let sample = match side {
                Side::Relais(_) => {
                    profiled(plan, world, &format!("{}, {connections} connections", side.name()), measured).await?
                }
                Side::Bare(_) => measured.await?,
            };
            // The first round warms up: connections, prepared statements, caches.
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    Ok(samples.into_iter().map(Sample::median).collect())
}

/// Long queues beside short ones. A rate is given with the length of the queue and one more number, which `named`
/// names.
pub fn compare_lengths(
    section: &mut Section,
    plan: &Plan,
    what: &str,
    rates: &[(u64, usize, f64)],
    named: impl Fn(usize) -> String,
) {
    let [short, .., long] = plan.pending[..] else { return };
    for &(_, other, short_rate) in rates.iter().filter(|rate| rate.0 == short) {
        let Some(&(.., long_rate)) = rates.iter().find(|rate| (rate.0, rate.1) == (long, other)) else { continue };
        let (short, long) = (number(short as f64), number(long as f64));
        let what = format!("the time of {short} pending with {long}: {what}, {}", named(other));
        section.below(&what, short_rate / long_rate, 1.2, " ×");
    }
}

/// "64 connections".
pub fn connections(number: usize) -> String {
    if number == 1 { "1 connection".to_owned() } else { format!("{number} connections") }
}
