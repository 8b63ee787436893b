//! Callbacks over HTTP: how many a second, how soon after the end of a task, and how much endpoints that do not answer
//! hold up the others.
//!
//! So that sending is measured and not the end of tasks, all tasks end while no process has the role `callbacks`. Then
//! a process is started that has it. Every callback has to arrive: one that is lost fails the benchmark.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use relais_testkit::free_port;
use uuid::Uuid;

use crate::{
    Plan,
    cpu::Split,
    fill::BODY,
    load::{Connection, on_one_thread},
    profiled,
    receiver::{Receiver, Silent},
    report::Section,
    sample::{Sample, ms, number},
    work::{drain, first_task},
    world::{Kind, SERVICE, World, call, get_path, post},
};

/// Callbacks go to one endpoint, or to so many.
const ENDPOINTS: usize = 64;

/// So many are sent at once, to one endpoint and in all: the server's defaults.
const PER_ENDPOINT: usize = 16;
const AT_ONCE: usize = 256;

const ROLES: &str = "RELAIS_SERVER_ROLES";
const QUIET: &str = "api,rescue,purge";
const ALL: &str = "api,rescue,purge,callbacks";

/// An idle server's callbacks arrive within so many milliseconds, at p99.
const BAR_LATENCY: f64 = 50.0;

/// Of those that are timed one by one, at most so many, after some that log in and open connections.
const SAMPLES: usize = 300;
const WARM_UP: usize = 10;

/// The receivers: endpoints that answer, and two that do not.
struct Endpoints {
    receiver: Arc<Receiver>,
    silent: Silent,
    closed: u16,
}

impl Endpoints {
    fn start() -> Result<Self> {
        Ok(Self { receiver: Arc::new(Receiver::start(ENDPOINTS)?), silent: Silent::start()?, closed: free_port()? })
    }

    /// The settings of a server that may call them.
    fn settings(&self) -> BTreeMap<&'static str, String> {
        let ports = self.receiver.ports.iter().chain([&self.silent.port, &self.closed]);
        let ports: Vec<String> = ports.map(u16::to_string).collect();
        BTreeMap::from([
            ("RELAIS_CALLBACKS_ALLOW_HTTP", "true".to_owned()),
            ("RELAIS_CALLBACKS_ALLOW_NETWORKS", "127.0.0.0/8".to_owned()),
            ("RELAIS_CALLBACKS_PORTS", ports.join(",")),
        ])
    }
}

/// Runs it.
pub async fn run(plan: &Plan) -> Result<Section> {
    let header = [
        "database",
        "what",
        "callbacks",
        "a second",
        "p50 ms",
        "p99 ms",
        "connections",
        "µs CPU server",
        "database",
        "load",
    ];
    let mut section = Section::new("callbacks", "telling others of the end of a task, over HTTP", &header);
    for &kind in &plan.databases {
        let endpoints = Endpoints::start()?;
        let mut told = deliveries(plan, &mut section, kind, &endpoints).await?;
        told += latencies(plan, &mut section, kind, &endpoints).await?;
        let doubles = endpoints.receiver.seen().doubles;
        section.note(format!(
            "{}: all of {} callbacks arrived, and {doubles} came once more.",
            kind.name(),
            number(told as f64)
        ));
    }
    section.note(
        "The rate is from the first callback that arrives to the last. The bare client is reqwest with kept connections: as \
         many at once, with bodies of the same size, to the same receiver. Latency is from just before the success is \
         reported to the arrival of the callback, one task at a time.",
    );
    Ok(section)
}

/// How many a second, beside a client that only sends. Tells how many there were.
async fn deliveries(plan: &Plan, section: &mut Section, kind: Kind, endpoints: &Endpoints) -> Result<usize> {
    let mut world = World::with(plan, kind, 0, endpoints.settings()).await?;
    // A world verifies itself with a task.
    drain(world.address(), 100, Duration::MAX).await?;
    let mut told = 0;
    for many in [1, ENDPOINTS] {
        let name = if many == 1 { "1 endpoint".to_owned() } else { format!("{many} endpoints") };
        let (mut relais, mut bare) = (Vec::new(), Vec::new());
        let connections = || endpoints.receiver.seen().connections;
        let (mut opened, mut bare_opened) = (0, 0);
        for _ in 0..plan.rounds {
            let before = connections();
            relais.push(send_all(plan, &mut world, &endpoints.receiver, many).await?);
            told += plan.callbacks;
            let between = connections();
            bare.push(send_bare(&world, &endpoints.receiver, many, plan.time).await?);
            (opened, bare_opened) = (between - before, connections() - between);
        }
        let (relais, bare) = (Sample::median(relais), Sample::median(bare));
        let sent_bare = bare.rate * plan.time.as_secs_f64();
        for (what, sample, callbacks, opened) in
            [("Relais", &relais, plan.callbacks as f64, opened), ("bare client", &bare, sent_bare, bare_opened)]
        {
            let mut row = vec![kind.name().to_owned(), format!("{what}, {name}"), number(callbacks)];
            // When Relais began to send one of them, nobody saw.
            let calls =
                if what == "Relais" { Default::default() } else { [0.5, 0.99].map(|at| ms(sample.percentile(at))) };
            row.push(number(sample.rate));
            row.extend(calls);
            row.push(number(opened as f64));
            row.extend(Split::columns(sample.split));
            section.row(row);
        }
        section.ratio(&format!("the bare client: {}, {name}", kind.name()), relais.rate / bare.rate);
    }
    Ok(told)
}

/// Lets tasks end while nobody sends, then somebody does.
async fn send_all(plan: &Plan, world: &mut World, receiver: &Receiver, many: usize) -> Result<Sample> {
    let callbacks = plan.callbacks;
    world.stop().await?;
    world.set(ROLES, QUIET);
    world.start_another().await?;
    let tasks = end_tasks(world.address(), &receiver.ports[..many], callbacks).await?;
    world.stop().await?;
    world.set(ROLES, ALL);
    let (expected, spent) = (receiver.seen().tasks() + callbacks, world.cpu()?);
    world.start_another().await?;
    profiled(plan, world, &format!("{callbacks} callbacks to {many} endpoints"), receiver.wait_for(expected)).await?;
    let spent = world.cpu()?.since(spent, callbacks as f64);
    let moments = receiver.seen().moments(&tasks)?;
    let time = *moments.last().context("no callbacks")? - moments[0];
    // The first one only starts the clock.
    let mut sample = Sample::new(callbacks - 1, time, Vec::new());
    sample.split = Some(spent);
    Ok(sample)
}

/// The same to the same receiver, by a client that does nothing else.
async fn send_bare(world: &World, receiver: &Receiver, many: usize, time: Duration) -> Result<Sample> {
    let body = receiver.seen().body.clone();
    let ports = receiver.ports[..many].to_vec();
    let before = world.cpu()?;
    let mut sample = on_one_thread(move || async move {
        // Somebody else may have been first; then there is one, which is all that is wanted.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().http1_only().no_proxy().build()?;
        let begin = Instant::now();
        let loops = (0..(PER_ENDPOINT * many).min(AT_ONCE)).map(|number| {
            let (client, body, port) = (&client, &body, ports[number % many]);
            async move {
                let url = reqwest::Url::parse(&target(port))?;
                let mut latencies = Vec::new();
                loop {
                    let sent = Instant::now();
                    if sent - begin >= time {
                        return anyhow::Ok(latencies);
                    }
                    let request = client
                        .post(url.clone())
                        .header("content-type", "application/json")
                        .header("webhook-id", format!("{}-2", Uuid::now_v7()))
                        .header("webhook-timestamp", "1700000000")
                        .header("webhook-signature", "v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
                    let answer = request.body(body.clone()).send().await?;
                    ensure!(answer.status() == 204, "the receiver answered {}", answer.status());
                    answer.bytes().await?;
                    latencies.push(sent.elapsed());
                }
            }
        });
        let latencies = try_join_all(loops).await?.concat();
        Ok(Sample::new(latencies.len(), begin.elapsed(), latencies))
    })
    .await?;
    sample.split = Some(world.cpu()?.since(before, sample.rate * time.as_secs_f64()));
    Ok(sample)
}

/// The latency of callbacks when few are queued, and when many wait for endpoints that do not answer.
async fn latencies(plan: &Plan, section: &mut Section, kind: Kind, endpoints: &Endpoints) -> Result<usize> {
    let mut world = World::with(plan, kind, 0, endpoints.settings()).await?;
    drain(world.address(), 100, Duration::MAX).await?;
    let mut told = 0;
    let mut measure = async |section: &mut Section, world: &World, what: &str| {
        let (samples, at, receiver) = (plan.samples.min(SAMPLES), world.address(), Arc::clone(&endpoints.receiver));
        let before = endpoints.receiver.seen().connections;
        let latencies = on_one_thread(move || one_by_one(samples, at, receiver)).await?;
        told += samples + WARM_UP;
        let sample = Sample::new(samples, Duration::from_secs(1), latencies);
        let opened = endpoints.receiver.seen().connections - before;
        let mut row = vec![kind.name().to_owned(), what.to_owned(), number(samples as f64), String::new()];
        row.extend([ms(sample.percentile(0.5)), ms(sample.percentile(0.99)), number(opened as f64)]);
        section.row(row);
        anyhow::Ok(sample.percentile(0.99).as_secs_f64() * 1000.0)
    };
    let idle = |what: &str| format!("at p99: {}, {what}", kind.name());

    let alone = measure(section, &world, "idle").await?;
    section.below(&idle("idle"), alone, BAR_LATENCY, " ms");
    if kind == Kind::Postgres {
        world.stop().await?;
        for roles in [QUIET, ALL] {
            world.set(ROLES, roles);
            world.start_another().await?;
        }
        let what = "idle, another process sends";
        let p99 = measure(section, &world, what).await?;
        section.below(&idle(what), p99, BAR_LATENCY, " ms");
        world.stop().await?;
        world.start_another().await?;
    }

    // Those who do answer are to notice next to nothing.
    let dead = plan.callbacks / 2;
    let bar = ((2.0 * alone + 10.0) * 100.0).round() / 100.0;
    for (port, what) in [(endpoints.closed, "a closed port"), (endpoints.silent.port, "a host that does not answer")] {
        let waiting = end_tasks(world.address(), &[port], dead).await?;
        let what = format!("beside {} to {what}", number(dead as f64));
        let p99 = measure(section, &world, &what).await?;
        section.below(&idle(&what), p99, bar, " ms");
        for task in [waiting.first(), waiting.last()].into_iter().flatten() {
            let path = format!("/v1/services/{SERVICE}/tasks/{task}/callbacks");
            let seen = call(world.address(), &get_path(&path), 200).await?.to_string();
            ensure!(seen.contains(r#""PENDING""#), "a callback to a dead endpoint does not wait: {seen}");
        }
    }
    Ok(told)
}

/// From the end of a task to the arrival of its callback.
async fn one_by_one(samples: usize, at: SocketAddr, receiver: Arc<Receiver>) -> Result<Vec<Duration>> {
    let mut connection = Connection::open(at).await?;
    let submission = post(&format!("/v1/services/{SERVICE}/tasks"), &submission(receiver.ports[0]));
    let claim = post(&format!("/v1/services/{SERVICE}/claims"), r#"{"max":1,"hostName":"bench"}"#);
    let messages = format!("/v1/services/{SERVICE}/messages");
    let mut latencies = Vec::with_capacity(samples);
    for round in 0..samples + WARM_UP {
        // What came before is over by then, and this is in no step with anything else.
        tokio::time::sleep(Duration::from_millis(10 + (round * 7 % 13) as u64)).await;
        connection.expect(&submission, 201).await?;
        let task = first_task(connection.expect(&claim, 200).await?)?;
        let success = format!(r#"{{"taskId":"{task}","data":{{"messageType":"success","response":{{"done":true}}}}}}"#);
        let success = post(&messages, &success);
        let expected = receiver.seen().tasks() + 1;
        let sent = Instant::now();
        let answer = connection.expect(&success, 200).await?;
        ensure!(answer.windows(8).any(|part| part == b"accepted"), "a success was not accepted");
        receiver.wait_for(expected).await?;
        let arrived = receiver.seen().moments(&[Uuid::try_parse(&task)?])?[0];
        if round >= WARM_UP {
            latencies.push(arrived - sent);
        }
    }
    Ok(latencies)
}

/// Submits so many tasks with callbacks to these ports in turn, and ends them.
async fn end_tasks(address: SocketAddr, ports: &[u16], tasks: usize) -> Result<Vec<Uuid>> {
    let each: Vec<String> = ports.iter().map(|&port| submission(port)).collect();
    let mut connection = Connection::open(address).await?;
    let mut ids = Vec::with_capacity(tasks);
    while ids.len() < tasks {
        let now = (tasks - ids.len()).min(1000);
        let mut batch = String::new();
        for number in ids.len()..ids.len() + now {
            let comma = if batch.is_empty() { "" } else { "," };
            write!(batch, "{comma}{}", each[number % each.len()])?;
        }
        let batch = post(&format!("/v1/services/{SERVICE}/tasks/batch"), &format!(r#"{{"tasks":[{batch}]}}"#));
        let answer = std::str::from_utf8(connection.expect(&batch, 200).await?)?;
        let before = ids.len();
        for task in answer.split(r#""taskId":""#).skip(1) {
            ids.push(Uuid::try_parse(task.get(..36).context("an answer is cut")?)?);
        }
        ensure!(ids.len() - before == now, "not all tasks were taken: {answer}");
    }
    let ended = drain(address, 100, Duration::MAX).await?.tasks;
    ensure!(ended == tasks, "{ended} tasks ended, not {tasks}");
    Ok(ids)
}

/// A task with a callback for its end.
fn submission(port: u16) -> String {
    format!(r#"{{"body":{BODY},"callback":{{"type":"http","url":"{}"}}}}"#, target(port))
}

fn target(port: u16) -> String {
    format!("http://127.0.0.1:{port}/done")
}
