//! Tasks that go to workers by way of RabbitMQ, beside Celery on the same node and the same PostgreSQL.
//!
//! What counts is the way as a whole: submitted, carried to a worker, done, its result stored. All tasks do nothing.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use relais_messaging::rabbitmq::{Broker, BrokerOptions, ConsumeOptions, Publish};
use relais_testkit::{RabbitMqServer, TestVhost};
use relais_worker::{Context, Worker};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    Plan,
    celery::Celery,
    cpu::{self, Split},
    engine,
    load::{Connection, on_one_thread},
    pickup, profiled,
    report::Section,
    sample::{Sample, ms, number},
    work::batch,
    world::{Kind, SERVICE, World, call, get_path, submit},
};

/// Relais does so many times as much as Celery.
const BAR: f64 = 20.0;

/// Submissions come over so many connections.
const CONNECTIONS: usize = 64;

/// So many tasks are handed to a worker ahead of its results.
const PREFETCH: u16 = 1000;

/// How many tasks of Celery are handed to each of its processes ahead: its default, and many. And whether it stores
/// that they were started: by default it does not.
const CELERY: [(u16, bool); 3] = [(4, false), (64, false), (4, true)];

/// How long all tasks may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// How a worker reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Telling {
    /// `started`, then `success`, each a message of its own.
    OneByOne,
    /// The results of its prefetched tasks in one message, with the host's name.
    Lists,
    /// As the worker library does.
    Library,
}

impl Telling {
    fn name(self) -> &'static str {
        match self {
            Self::OneByOne => "started and success",
            Self::Lists => "results in lists",
            Self::Library => "relais-worker",
        }
    }
}

/// Runs it.
pub async fn run(plan: &Plan) -> Result<Section> {
    let header =
        ["what", "tasks", "tasks/s", "p50 ms", "p99 ms", "µs CPU server", "database", "load and worker", "broker"];
    let mut section =
        Section::new("rabbitmq", "from a submission by way of RabbitMQ to its result, PostgreSQL", &header);
    let node = RabbitMqServer::start().await?;
    let vhost = node.vhost().await?;
    let settings = BTreeMap::from([("RELAIS_BROKER_URL", vhost.url().to_owned())]);
    let world = World::with(plan, Kind::Postgres, 0, settings).await?;
    let place = Place { plan, node, vhost, world };

    // First: after the load the disk is busy for a while with what it left.
    let idle = place.pick_up().await?;
    row_of_idle(&mut section, "Relais, idle", &idle);

    let mut rates = Vec::new();
    for send_callbacks in [Telling::OneByOne, Telling::Lists, Telling::Library] {
        for filled in [false, true] {
            let mut rounds = Vec::new();
            for round in 0..=plan.rounds {
                let sample =
                    if filled { place.drain(send_callbacks).await? } else { place.whole_way(send_callbacks).await? };
                if round > 0 {
                    rounds.push(sample);
                }
            }
            rounds.sort_by(|(a, _), (b, _)| a.rate.total_cmp(&b.rate));
            let (sample, broker) = rounds.swap_remove(rounds.len() / 2);
            let what = format!("Relais, {}{}", scope(filled), send_callbacks.name());
            let mut row = vec![what, number(plan.tasks as f64), number(sample.rate), String::new(), String::new()];
            row.extend(Split::columns(sample.split));
            row.push(format!("{:.0}", broker.as_secs_f64() * 1e6));
            section.row(row);
            rates.push((send_callbacks, filled, sample.rate));
        }
    }
    if plan.alone {
        return Ok(section);
    }
    let database = place.world.another_database("celery").await?;
    let mut celery_best: BTreeMap<(bool, bool), f64> = BTreeMap::new();
    let mut celery_idle = None;
    let celery_vhost = place.node.vhost().await?;
    for (prefetch, started) in CELERY {
        let mut celery = Celery::new(celery_vhost.url(), &database, prefetch, started)?;
        if celery_idle.is_none() {
            celery_idle = Some(celery.pick_up(plan.samples.min(200)).await?);
        }
        for filled in [false, true] {
            let rate = if filled { celery.drain(plan.tasks).await? } else { celery.whole_way(plan.tasks).await? };
            let told = if started { ", started too" } else { "" };
            let what = format!("Celery, {}prefetch {prefetch}{told}", scope(filled));
            section.row([what, number(plan.tasks as f64), number(rate)]);
            let best = celery_best.entry((filled, started)).or_default();
            *best = best.max(rate);
        }
    }
    if let Some(idle) = &celery_idle {
        row_of_idle(&mut section, "Celery, idle", idle);
    }
    for (send_callbacks, filled, rate) in rates {
        let beside = |started| rate / celery_best.get(&(filled, started)).copied().unwrap_or(f64::NAN);
        section.at_least(
            &format!("the best of Celery: {}{}", scope(filled), send_callbacks.name()),
            beside(false),
            BAR,
        );
        if send_callbacks == Telling::OneByOne {
            let what = format!("Celery that stores starts too: {}{}", scope(filled), send_callbacks.name());
            section.at_least(&what, beside(true), BAR);
        }
    }
    let other = engine::idle_peer(plan).await?;
    row_of_idle(&mut section, "graphile_worker, idle", &other);
    pickup::judge(&mut section, "idle", &idle, &other);
    section.note(format!(
        "Relais: submissions over HTTP on {CONNECTIONS} connections, one worker process in Rust, by hand or with relais-worker (which also did the idle ones). Celery: one producer with `delay()` in a \
         loop, prefork with 2 processes, `task_acks_late`, persistent messages, results in the same PostgreSQL through \
         SQLAlchemy and psycopg2. The whole way is from the first submission until all results are stored; \"queue full\" is \
         the worker's side alone, Celery's from its first stored result to its last. Latency is from just before the \
         submission to the begin of the task by the worker's clock; graphile_worker has no broker and no HTTP in between."
    ));
    Ok(section)
}

fn scope(filled: bool) -> &'static str {
    if filled { "queue full, " } else { "whole way, " }
}

fn row_of_idle(section: &mut Section, what: &str, sample: &Sample) {
    let shares = [0.5, 0.99].map(|share| ms(sample.percentile(share)));
    section.row([what.to_owned(), number(sample.len() as f64), String::new()].into_iter().chain(shares));
}

/// Where it is measured.
struct Place<'a> {
    plan: &'a Plan,
    node: RabbitMqServer,
    vhost: TestVhost,
    world: World,
}

impl Place<'_> {
    /// From the first submission until all results are stored; and the broker's processor time for one task.
    async fn whole_way(&self, send_callbacks: Telling) -> Result<(Sample, Duration)> {
        let worker = self.worker(send_callbacks).await?;
        let tasks = self.plan.tasks;
        let name = format!("whole way, {}", send_callbacks.name());
        let measured = self.measure(&name, async |address| on_one_thread(move || submit_all(address, tasks)).await);
        let sample = measured.await?;
        worker.stop().await?;
        Ok(sample)
    }

    /// From when a worker begins until all results are stored.
    async fn drain(&self, send_callbacks: Telling) -> Result<(Sample, Duration)> {
        let mut connection = Connection::open(self.world.address()).await?;
        let mut left = self.plan.tasks;
        while left > 0 {
            let now = left.min(1000);
            connection.expect(&batch(now), 200).await?;
            left -= now;
        }
        let broker = Broker::new(self.vhost.url(), BrokerOptions::default())?;
        let begin = Instant::now();
        while broker.find(&queue("in")).await?.context("there is no queue")?.messages < self.plan.tasks as u32 {
            ensure!(begin.elapsed() < PATIENCE, "not all tasks came to the queue");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut worker = None;
        let name = format!("queue full, {}", send_callbacks.name());
        let sample = self.measure(&name, async |_| {
            worker = Some(self.worker(send_callbacks).await?);
            Ok(())
        });
        let sample = sample.await?;
        if let Some(worker) = worker {
            worker.stop().await?;
        }
        Ok(sample)
    }

    /// Does something, and waits until so many more tasks have succeeded.
    async fn measure(
        &self,
        name: &str,
        work: impl AsyncFnOnce(SocketAddr) -> Result<()>,
    ) -> Result<(Sample, Duration)> {
        let tasks = self.plan.tasks as u64;
        let goal = self.succeeded().await? + tasks;
        let (before, broker) = (self.world.cpu()?, self.broker_time()?);
        let begin = Instant::now();
        let all = async {
            work(self.world.address()).await?;
            while self.succeeded().await? < goal {
                ensure!(begin.elapsed() < PATIENCE, "not all tasks were done within {PATIENCE:?}");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Ok(begin.elapsed())
        };
        let time = profiled(self.plan, &self.world, name, all).await?;
        let mut sample = Sample::new(self.plan.tasks, time, Vec::new());
        sample.split = Some(self.world.cpu()?.since(before, tasks as f64));
        Ok((sample, (self.broker_time()? - broker).div_f64(tasks as f64)))
    }

    async fn succeeded(&self) -> Result<u64> {
        let state = call(self.world.address(), &get_path(&format!("/admin/services/{SERVICE}")), 200).await?;
        state["data"]["success"].as_u64().with_context(|| format!("no counter in {state}"))
    }

    fn broker_time(&self) -> Result<Duration> {
        cpu::of_family(self.node.id().context("the node does not run")?)
    }

    async fn worker(&self, send_callbacks: Telling) -> Result<Working> {
        Working::start(self.vhost.url(), send_callbacks, None).await
    }

    /// How long it takes from a submission to an idle worker.
    async fn pick_up(&self) -> Result<Sample> {
        let (arrived, mut arrivals) = mpsc::unbounded_channel();
        let worker = Working::start(self.vhost.url(), Telling::Library, Some(arrived)).await?;
        let (samples, address) = (self.plan.samples, self.world.address());
        let latencies = on_one_thread(move || async move {
            let mut connection = Connection::open(address).await?;
            let submission = submit(SERVICE);
            let mut latencies = Vec::with_capacity(samples);
            for round in 0..samples + 10 {
                // What came before is over by then, and this is in no step with anything else.
                tokio::time::sleep(Duration::from_millis(20 + (round * 7 % 13) as u64)).await;
                while arrivals.try_recv().is_ok() {}
                let sent = Instant::now();
                connection.expect(&submission, 201).await?;
                let arrived: Instant = arrivals.recv().await.context("the worker ended")?;
                // The first ones log in and warm up.
                if round >= 10 {
                    latencies.push(arrived - sent);
                }
            }
            Ok(latencies)
        })
        .await?;
        worker.stop().await?;
        Ok(Sample::new(samples, Duration::from_secs(1), latencies))
    }
}

fn queue(end: &str) -> String {
    format!("{SERVICE}-{end}")
}

async fn submit_all(address: SocketAddr, tasks: usize) -> Result<()> {
    let connections = try_join_all((0..CONNECTIONS).map(|_| Connection::open(address))).await?;
    let request = &submit(SERVICE);
    let loops = connections.into_iter().enumerate().map(|(number, mut connection)| async move {
        for _ in (number..tasks).step_by(CONNECTIONS) {
            connection.expect(request, 201).await?;
        }
        anyhow::Ok(())
    });
    try_join_all(loops).await?;
    Ok(())
}

/// A worker on a thread of its own.
struct Working {
    stop: CancellationToken,
    thread: tokio::task::JoinHandle<Result<()>>,
}

impl Working {
    /// Starts one, and waits until it is handed tasks. It tells `arrivals` of each.
    async fn start(
        url: &str,
        send_callbacks: Telling,
        arrivals: Option<mpsc::UnboundedSender<Instant>>,
    ) -> Result<Self> {
        let stop = CancellationToken::new();
        let (url, stopped) = (url.to_owned(), stop.clone());
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let working = on_one_thread(move || async move {
            if send_callbacks == Telling::Library {
                let _ = ready.send(());
                return work_with_library(&url, arrivals, stopped).await;
            }
            stopped.run_until_cancelled(work(&url, send_callbacks, arrivals, ready)).await.unwrap_or(Ok(()))
        });
        let thread = tokio::spawn(working);
        is_ready.await.context("the worker did not start")?;
        Ok(Self { stop, thread })
    }

    async fn stop(self) -> Result<()> {
        self.stop.cancel();
        self.thread.await?
    }
}

async fn work_with_library(
    url: &str,
    arrivals: Option<mpsc::UnboundedSender<Instant>>,
    stop: CancellationToken,
) -> Result<()> {
    let worker = Worker::rabbitmq(url, SERVICE).concurrency(PREFETCH.into()).host_name("bench").build()?;
    let handler = move |_: Value, _: Context| {
        if let Some(arrivals) = &arrivals {
            let _ = arrivals.send(Instant::now());
        }
        async { Ok::<_, String>(json!({"done": true})) }
    };
    worker.run(handler, stop).await?;
    Ok(())
}

async fn work(
    url: &str,
    send_callbacks: Telling,
    arrivals: Option<mpsc::UnboundedSender<Instant>>,
    ready: tokio::sync::oneshot::Sender<()>,
) -> Result<()> {
    let broker = || Broker::new(url, BrokerOptions::default());
    let (reader, publisher) = (broker()?, broker()?);
    let options = ConsumeOptions { prefetch: PREFETCH, ..ConsumeOptions::default() };
    let mut consumer = reader.consume(&queue("in"), options).await?;
    let _ = ready.send(());
    let mut told = 0_u64;
    loop {
        let deliveries = consumer.next_batch(PREFETCH.into()).await?;
        let now = Instant::now();
        let Some(last) = deliveries.last().map(|delivery| delivery.tag) else { continue };
        if let Some(arrivals) = &arrivals {
            for _ in &deliveries {
                let _ = arrivals.send(now);
            }
        }
        let tasks = deliveries.iter().map(|delivery| delivery.message_id.as_deref().context("a task without a name"));
        let tasks = tasks.collect::<Result<Vec<_>>>()?;
        let mut message = |body: String| {
            told += 1;
            Publish::new("", queue("out"), body).message_id(told.to_string()).content_type("application/json")
        };
        let mut messages = Vec::new();
        match send_callbacks {
            Telling::OneByOne | Telling::Library => {
                for task in tasks {
                    messages.push(message(format!(
                        r#"{{"taskId":"{task}","data":{{"messageType":"started","hostName":"bench"}}}}"#
                    )));
                    messages.push(message(format!(
                        r#"{{"taskId":"{task}","data":{{"messageType":"success","response":{{"done":true}}}}}}"#
                    )));
                }
            }
            Telling::Lists => {
                let mut list = String::from("[");
                for task in tasks {
                    let comma = if list.len() > 1 { "," } else { "" };
                    write!(
                        list,
                        r#"{comma}{{"taskId":"{task}","data":{{"messageType":"success","hostName":"bench","response":{{"done":true}}}}}}"#
                    )?;
                }
                messages.push(message(list + "]"));
            }
        }
        for answer in publisher.publish_all(messages).await {
            answer?;
        }
        consumer.ack_through(last)?;
    }
}
