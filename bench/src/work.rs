//! Workers over HTTP: claim some tasks, report their success in one call, again.
//!
//! A short queue would be empty at once, so it is drained and filled again, many times; only draining is timed.

use std::{
    fmt::Write as _,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use serde_json::Value;

use crate::{
    Plan,
    cpu::Split,
    fill::BODY,
    load::{Connection, on_one_thread},
    profiled,
    report::Section,
    sample::{Sample, ms, number},
    submit::compare_lengths,
    world::{SERVICE, World, post},
};

/// So many workers at once.
const WORKERS: usize = 16;

/// How many tasks a worker claims at once.
const CLAIMS: [usize; 3] = [1, 10, 100];

/// Queues up to this length are drained whole; a longer one is not empty when the time is up.
const SHORT: u64 = 100_000;

/// Runs it.
pub async fn run(plan: &Plan) -> Result<Section> {
    let header =
        ["database", "pending", "claimed at once", "tasks/s", "p50 ms", "p99 ms", "µs CPU server", "database", "load"];
    let mut section = Section::new("work", "claim to success over HTTP, 16 workers", &header);
    for &kind in &plan.databases {
        let mut rates = Vec::new();
        for &pending in &plan.pending {
            let world = World::new(plan, kind, pending).await?;
            if pending <= SHORT {
                drain(world.address(), 100, Duration::MAX).await?;
            }
            for claim in CLAIMS {
                let mut rounds = Vec::new();
                for round in 0..=plan.rounds {
                    let before = world.cpu()?;
                    let sample = if pending <= SHORT {
                        bursts(plan, &world, pending, claim).await?
                    } else {
                        let draining = drain(world.address(), claim, plan.time);
                        let mut sample =
                            profiled(plan, &world, &format!("claims of {claim}"), draining).await?.sample();
                        sample.split = Some(world.cpu()?.since(before, sample.rate * plan.time.as_secs_f64()));
                        sample
                    };
                    if round > 0 {
                        rounds.push(sample);
                    }
                }
                let sample = Sample::median(rounds);
                let mut row = vec![kind.name().to_owned(), number(pending as f64), claim.to_string()];
                row.extend([number(sample.rate), ms(sample.percentile(0.5)), ms(sample.percentile(0.99))]);
                row.extend(Split::columns(sample.split));
                section.row(row);
                rates.push((pending, claim, sample.rate));
            }
        }
        compare_lengths(&mut section, plan, kind.name(), &rates, |claim| format!("claims of {claim}"));
    }
    section.note("Latency is from the claim's begin to the answer that the success is stored.");
    Ok(section)
}

/// What was drained, in how long.
pub struct Drained {
    /// How many tasks.
    pub tasks: usize,
    time: Duration,
    latencies: Vec<Duration>,
}

impl Drained {
    fn sample(self) -> Sample {
        Sample::new(self.tasks, self.time, self.latencies)
    }
}

/// Fills the queue and drains it until enough time was spent on draining.
async fn bursts(plan: &Plan, world: &World, pending: u64, claim: usize) -> Result<Sample> {
    let mut total = Drained { tasks: 0, time: Duration::ZERO, latencies: Vec::new() };
    let mut spent = Split::default();
    while total.time < plan.time {
        fill(world.address(), pending as usize).await?;
        let before = world.cpu()?;
        let drained = drain(world.address(), claim, Duration::MAX).await?;
        let burst = world.cpu()?.since(before, 1.0);
        spent = Split {
            server: spent.server + burst.server,
            database: spent.database + burst.database,
            load: spent.load + burst.load,
        };
        total.tasks += drained.tasks;
        total.time += drained.time;
        total.latencies.extend(drained.latencies);
    }
    let done = total.tasks as f64;
    let mut sample = total.sample();
    sample.split = Some(spent.since(Split::default(), done));
    Ok(sample)
}

async fn fill(address: SocketAddr, tasks: usize) -> Result<()> {
    let mut connection = Connection::open(address).await?;
    let mut left = tasks;
    while left > 0 {
        let now = left.min(1000);
        connection.expect(&batch(now), 200).await?;
        left -= now;
    }
    Ok(())
}

/// A prepared submission of many tasks.
pub fn batch(tasks: usize) -> Vec<u8> {
    let each = vec![format!(r#"{{"body":{BODY}}}"#); tasks].join(",");
    post(&format!("/v1/services/{SERVICE}/tasks/batch"), &format!(r#"{{"tasks":[{each}]}}"#))
}

/// All workers, until the queue is empty or the time is up.
pub async fn drain(address: SocketAddr, claim: usize, time: Duration) -> Result<Drained> {
    on_one_thread(move || async move {
        let connections = try_join_all((0..WORKERS).map(|_| Connection::open(address))).await?;
        let begin = Instant::now();
        let workers = connections.into_iter().map(|connection| worker(connection, claim, begin, time));
        let (tasks, latencies): (Vec<usize>, Vec<Vec<Duration>>) = try_join_all(workers).await?.into_iter().unzip();
        Ok(Drained { tasks: tasks.iter().sum(), time: begin.elapsed(), latencies: latencies.concat() })
    })
    .await
}

async fn worker(
    mut connection: Connection,
    claim: usize,
    begin: Instant,
    time: Duration,
) -> Result<(usize, Vec<Duration>)> {
    let claims = post(&format!("/v1/services/{SERVICE}/claims"), &format!(r#"{{"max":{claim},"hostName":"bench"}}"#));
    let messages = format!("/v1/services/{SERVICE}/messages");
    let (mut done, mut latencies) = (0, Vec::new());
    while begin.elapsed() < time {
        let sent = Instant::now();
        let reports = successes(connection.expect(&claims, 200).await?)?;
        let Some((tasks, reports)) = reports else { break };
        let answer = connection.expect(&post(&messages, &reports), 200).await?;
        ensure!(
            count(answer, b"\"accepted\"") == tasks,
            "a success was not accepted: {}",
            String::from_utf8_lossy(answer)
        );
        done += tasks;
        latencies.push(sent.elapsed());
    }
    Ok((done, latencies))
}

/// The success of each task in the answer to a claim, and how many they are; nothing if there are none.
fn successes(answer: &[u8]) -> Result<Option<(usize, String)>> {
    let text = std::str::from_utf8(answer)?;
    let mut reports = String::from(r#"{"messages":["#);
    let mut tasks = 0;
    // Cheaper than to parse it all: bodies of the benchmark contain no such word.
    for task in text.split(r#""taskId":""#).skip(1) {
        let id = task.split('"').next().context("a claim's answer is cut")?;
        let comma = if tasks > 0 { "," } else { "" };
        write!(reports, r#"{comma}{{"taskId":"{id}","data":{{"messageType":"success","response":{{"done":true}}}}}}"#)?;
        tasks += 1;
    }
    reports.push_str("]}");
    Ok((tasks > 0).then_some((tasks, reports)))
}

fn count(text: &[u8], word: &[u8]) -> usize {
    text.windows(word.len()).filter(|part| *part == word).count()
}

/// The first task in the answer to a claim.
pub fn first_task(answer: &[u8]) -> Result<String> {
    let answer: Value = serde_json::from_slice(answer)?;
    let id = answer["data"]["tasks"][0]["taskId"].as_str();
    id.map(str::to_owned).with_context(|| format!("no task in {answer}"))
}
