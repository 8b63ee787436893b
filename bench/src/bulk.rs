//! A thousand tasks in one call, beside bare UNNEST inserts of the same rows.

use std::sync::Arc;

use anyhow::Result;

use crate::{
    Plan, bare,
    cpu::Split,
    load::closed_loop,
    report::Section,
    sample::{Sample, ms, number},
    work::batch,
    world::World,
};

/// So many tasks in a call, and rows in a statement.
const TASKS: usize = 1000;

/// Runs it.
pub async fn run(plan: &Plan) -> Result<Section> {
    let header =
        ["database", "connections", "what", "tasks/s", "p50 ms", "p99 ms", "µs CPU server", "database", "load"];
    let mut section = Section::new("bulk", "1000 tasks a call beside bare inserts of 1000 rows", &header);
    for &kind in &plan.databases {
        let world = World::new(plan, kind, 1000).await?;
        let request = Arc::new(vec![batch(TASKS)]);
        for connections in [1, 4] {
            let (mut relais, mut bare) = (Vec::new(), Vec::new());
            for round in 0..=plan.rounds {
                let before = world.cpu()?;
                let mut ours = closed_loop(world.address(), Arc::clone(&request), connections, plan.time, 200).await?;
                ours.rate *= TASKS as f64;
                ours.split = Some(world.cpu()?.since(before, ours.rate * plan.time.as_secs_f64()));
                let before = world.cpu()?;
                let mut limit = bare::insert(kind, world.bare_url(), connections, TASKS, plan.time).await?;
                limit.split = Some(world.cpu()?.since(before, limit.rate * plan.time.as_secs_f64()));
                if round > 0 {
                    relais.push(ours);
                    bare.push(limit);
                }
            }
            let (relais, bare) = (Sample::median(relais), Sample::median(bare));
            for (what, sample) in [("Relais", &relais), ("bare INSERT", &bare)] {
                let mut row = vec![kind.name().to_owned(), connections.to_string(), what.to_owned()];
                row.extend([number(sample.rate), ms(sample.percentile(0.5)), ms(sample.percentile(0.99))]);
                row.extend(Split::columns(sample.split));
                section.row(row);
            }
            let what = format!("bare inserts of as many rows: {}, {connections} connections", kind.name());
            section.at_least(&what, relais.rate / bare.rate, 0.5);
        }
    }
    section.note("The bar is meant for submissions from Rust, without HTTP; over HTTP it is harder to meet.");
    Ok(section)
}
