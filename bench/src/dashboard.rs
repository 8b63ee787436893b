//! Every page of the dashboard, with a long queue behind it: how long it takes, and how much it sends.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::{
    Plan,
    load::Connection,
    report::Section,
    sample::{Sample, ms, number},
    world::{SERVICE, World, get_path},
};

/// A page is to take less than this, in milliseconds.
const BAR: f64 = 100.0;

/// Runs it.
pub async fn run(plan: &Plan) -> Result<Section> {
    let header = ["database", "tasks", "page", "p50 ms", "p99 ms", "bytes"];
    let mut section = Section::new("dashboard", "every page of the dashboard, with a long queue", &header);
    let pending = plan.pending.iter().copied().max().unwrap_or_default();
    for &kind in &plan.databases {
        let world = World::new(plan, kind, pending).await?;
        let (first, finished) = (world.queue().pending_ids(1), world.queue().finished_ids(1));
        let (first, finished) = (first.first().context("no task")?, finished.first().context("no task")?);
        let search = |words: &str| format!("/ui/tasks?q={}", words.replace(' ', "+"));
        let pages = [
            ("overview", "/ui".to_owned()),
            ("tasks", "/ui/tasks".to_owned()),
            ("tasks, a service", search(&format!("service:{SERVICE}"))),
            ("tasks, pending", search("status:pending")),
            ("tasks, succeeded", search(&format!("service:{SERVICE} status:success"))),
            ("tasks, a client", search("client:bench")),
            ("tasks, since 1h", search("since:1h")),
            ("tasks, a correlation", search("correlation:nothing")),
            ("task, pending", format!("/ui/tasks/{first}")),
            ("task, finished", format!("/ui/tasks/{finished}")),
            ("services", "/ui/services".to_owned()),
            ("service", format!("/ui/services/{SERVICE}")),
            ("workers", "/ui/workers".to_owned()),
            ("schedules", "/ui/schedules".to_owned()),
            ("callbacks", "/ui/callbacks".to_owned()),
            ("dead letters", "/ui/dead-letters".to_owned()),
            ("clients", "/ui/clients".to_owned()),
            ("event bus", "/ui/events".to_owned()),
            ("audit log", "/ui/audit".to_owned()),
        ];
        let mut slowest = 0.0_f64;
        for (name, path) in pages {
            let mut connection = Connection::open(world.address()).await?;
            let (request, mut latencies, mut bytes) = (get_path(&path), Vec::new(), 0);
            let begun = Instant::now();
            for round in 0..=plan.samples.clamp(20, 200) {
                let sent = Instant::now();
                bytes = connection.expect(&request, 200).await.with_context(|| path.clone())?.len();
                // The first one warms up.
                if round > 0 {
                    latencies.push(sent.elapsed());
                }
            }
            let sample = Sample::new(latencies.len(), begun.elapsed(), latencies);
            let p99 = sample.percentile(0.99);
            slowest = slowest.max(p99.as_secs_f64() * 1000.0);
            section.row([
                kind.name().to_owned(),
                number(pending as f64),
                name.to_owned(),
                ms(sample.percentile(0.5)),
                ms(p99),
                number(bytes as f64),
            ]);
        }
        section.below(&format!("{}: p99 of the slowest page", kind.name()), slowest, BAR, " ms");
    }
    section
        .note("One after the other on one connection, as a person would; without scripts and styles, which are kept.");
    Ok(section)
}
