//! Looking at a task: one that waits, whose place is counted, and one that is finished.

use std::sync::Arc;

use anyhow::Result;

use crate::{
    Plan,
    cpu::Split,
    load::closed_loop,
    report::Section,
    sample::{Sample, ms, number},
    submit::{compare_lengths, connections},
    world::{World, get},
};

/// So many tasks are looked at in turn, from all over the queue.
const TASKS: u64 = 1000;

/// Runs it.
pub async fn run(plan: &Plan) -> Result<Section> {
    let header = [
        "database",
        "pending",
        "connections",
        "task",
        "looks/s",
        "p50 ms",
        "p99 ms",
        "µs CPU server",
        "database",
        "load",
    ];
    let mut section = Section::new("poll", "looking at a task, in a short queue and in a long one", &header);
    for &kind in &plan.databases {
        let mut rates = [Vec::new(), Vec::new()];
        for &pending in &plan.pending {
            let world = World::new(plan, kind, pending).await?;
            let queue = world.queue();
            let tasks = [("PENDING", queue.pending_ids(TASKS)), ("SUCCESS", queue.finished_ids(TASKS))];
            for &many in &plan.connections {
                for (number_of, (status, ids)) in tasks.iter().enumerate() {
                    let requests = Arc::new(ids.iter().map(|id| get(id)).collect::<Vec<_>>());
                    let mut rounds = Vec::new();
                    for round in 0..=plan.rounds {
                        let before = world.cpu()?;
                        let requests = Arc::clone(&requests);
                        let mut sample = closed_loop(world.address(), requests, many, plan.time, 200).await?;
                        sample.split = Some(world.cpu()?.since(before, sample.rate * plan.time.as_secs_f64()));
                        // The first round warms up.
                        if round > 0 {
                            rounds.push(sample);
                        }
                    }
                    let sample = Sample::median(rounds);
                    let mut row =
                        vec![kind.name().to_owned(), number(pending as f64), many.to_string(), (*status).to_owned()];
                    row.extend([number(sample.rate), ms(sample.percentile(0.5)), ms(sample.percentile(0.99))]);
                    row.extend(Split::columns(sample.split));
                    section.row(row);
                    rates[number_of].push((pending, many, sample.rate));
                }
            }
        }
        for (status, rates) in ["PENDING", "SUCCESS"].iter().zip(&rates) {
            compare_lengths(&mut section, plan, &format!("{}, {status}", kind.name()), rates, connections);
        }
    }
    Ok(section)
}
