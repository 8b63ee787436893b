//! How long an idle worker takes to get a task: from the submission's first byte to the claim's answer.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use crate::{
    Plan, engine,
    load::{Connection, on_one_thread},
    report::Section,
    sample::{Sample, ms},
    work::first_task,
    world::{CHECKED, Kind, World, post, submit},
};

/// Runs it.
pub async fn run(plan: &Plan) -> Result<Section> {
    let header = ["database", "worker", "samples", "p50 ms", "p90 ms", "p99 ms", "max ms"];
    let mut section = Section::new("pickup", "from a submission to a waiting worker", &header);
    let other = engine::idle_peer(plan).await?;
    for &kind in &plan.databases {
        let mut world = World::new(plan, kind, 0).await?;
        measure(plan, &mut section, &world, kind, "same process", &other).await?;
        if kind == Kind::Postgres {
            world.start_another().await?;
            measure(plan, &mut section, &world, kind, "another process", &other).await?;
        }
    }
    row(&mut section, "PostgreSQL", "graphile_worker", &other);
    section.note(
        "graphile_worker is on a PostgreSQL of its own, in one process with the one who submits, and without HTTP.",
    );
    Ok(section)
}

fn row(section: &mut Section, database: &str, worker: &str, sample: &Sample) {
    let shares = [0.5, 0.9, 0.99, 1.0].map(|share| ms(sample.percentile(share)));
    section.row([database.to_owned(), worker.to_owned(), sample.len().to_string()].into_iter().chain(shares));
}

/// Holds latencies against those of another engine in the same run.
pub fn judge(section: &mut Section, what: &str, sample: &Sample, other: &Sample) {
    let millis = |sample: &Sample, share| sample.percentile(share).as_secs_f64() * 1000.0;
    for share in [0.5, 0.99] {
        let bar = (millis(other, share) * 100.0).round() / 100.0;
        let what = format!("at p{:.0}: {what}, beside graphile_worker", share * 100.0);
        section.below(&what, millis(sample, share), bar, " ms");
    }
}

async fn measure(
    plan: &Plan,
    section: &mut Section,
    world: &World,
    kind: Kind,
    worker: &str,
    other: &Sample,
) -> Result<()> {
    let (samples, submit_at, claim_at) = (plan.samples, world.address(), world.other_address());
    let latencies = on_one_thread(move || pick_up(samples, submit_at, claim_at)).await?;
    let sample = Sample::new(samples, Duration::from_secs(1), latencies);
    row(section, kind.name(), worker, &sample);
    judge(section, &format!("{}, {worker}", kind.name()), &sample, other);
    Ok(())
}

async fn pick_up(samples: usize, submit_at: SocketAddr, claim_at: SocketAddr) -> Result<Vec<Duration>> {
    let (mut consumer, mut worker) = (Connection::open(submit_at).await?, Connection::open(claim_at).await?);
    let claim = post(&format!("/v1/services/{CHECKED}/claims"), r#"{"max":1,"wait":"30s","hostName":"bench"}"#);
    let submission = submit(CHECKED);
    let mut latencies = Vec::with_capacity(samples);
    // The first ones log in and warm up.
    for round in 0..samples + 10 {
        let waiting = async {
            let task = first_task(worker.expect(&claim, 200).await?)?;
            anyhow::Ok((Instant::now(), task))
        };
        let submitting = async {
            // The worker has to be waiting by then, in no step with anything else.
            tokio::time::sleep(Duration::from_millis(10 + (round * 7 % 13) as u64)).await;
            let sent = Instant::now();
            consumer.expect(&submission, 201).await?;
            anyhow::Ok(sent)
        };
        let ((had, task), sent) = tokio::try_join!(waiting, submitting)?;
        if round >= 10 {
            latencies.push(had - sent);
        }
        let success = format!(r#"{{"taskId":"{task}","data":{{"messageType":"success","response":null}}}}"#);
        let answer = worker.expect(&post(&format!("/v1/services/{CHECKED}/messages"), &success), 200).await?;
        ensure!(answer.windows(8).any(|part| part == b"accepted"), "a success was not accepted");
    }
    Ok(latencies)
}
