//! What a server costs that has nothing to do, alone and with workers that wait.

use std::time::Instant;

use anyhow::{Result, bail};
use futures::future::try_join_all;

use crate::{
    Plan,
    load::Connection,
    report::Section,
    world::{SERVICE, World, post},
};

/// So many workers wait.
const WORKERS: usize = 100;

/// Runs it.
pub async fn run(plan: &Plan) -> Result<Section> {
    let header = ["database", "waiting workers", "seconds", "CPU %", "resident MB"];
    let mut section = Section::new("idle", "a server that has nothing to do", &header);
    for &kind in &plan.databases {
        for workers in [0, WORKERS] {
            let world = World::new(plan, kind, 0).await?;
            // A world verifies itself with one task, which is taken out of the way here.
            let claim =
                |wait| post(&format!("/v1/services/{SERVICE}/claims"), &format!(r#"{{"max":1,"wait":"{wait}"}}"#));
            Connection::open(world.address()).await?.expect(&claim("0s"), 200).await?;
            let waiting = claim("120s");
            let connections = try_join_all((0..workers).map(|_| Connection::open(world.address()))).await?;
            let all_wait = try_join_all(connections.into_iter().map(|mut connection| {
                let waiting = &waiting;
                async move { connection.expect(waiting, 200).await.map(drop) }
            }));
            let measured = async {
                // What the start and the first claims cost is over by then.
                tokio::time::sleep(plan.idle / 10).await;
                let (begin, before) = (Instant::now(), world.process().cpu_time()?);
                tokio::time::sleep(plan.idle).await;
                let used = world.process().cpu_time()? - before;
                let percent = 100.0 * used.as_secs_f64() / begin.elapsed().as_secs_f64();
                anyhow::Ok((percent, world.process().rss_bytes()? as f64 / 1024.0 / 1024.0))
            };
            let (percent, megabytes) = tokio::select! {
                measured = measured => measured?,
                ended = async {
                    let ended = all_wait.await;
                    if workers == 0 { std::future::pending::<()>().await; }
                    ended
                } => { ended?; bail!("the workers did not wait") },
            };
            section.row([
                kind.name().to_owned(),
                workers.to_string(),
                format!("{:.0}", plan.idle.as_secs_f64()),
                format!("{percent:.2}"),
                format!("{megabytes:.1}"),
            ]);
            section.below(&format!("of a core: {}, {workers} waiting workers", kind.name()), percent, 0.5, " %");
            section.below(&format!("resident: {}, {workers} waiting workers", kind.name()), megabytes, 40.0, " MB");
        }
    }
    Ok(section)
}
