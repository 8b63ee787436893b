//! The event bus beside what it could have been: bare `tokio::sync::broadcast` and `async-broadcast` in memory, bare
//! redis-rs over Redis; with a few and with thousands of subscriptions; and with nothing to do.
//!
//! Every contender carries a fresh `Arc` of the same payload and waits for slow receivers. That is not what
//! `tokio::sync::broadcast` does by itself (it forgets what they did not read), so its publisher looks before it sends.
//! The bus has everything on: metrics, counts, ids, back-pressure.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, future::try_join_all};
use redis::AsyncCommands;
use relais_bus::{Backpressure, Bus, PushWorker, Subscription, redis::RedisPubSub};
use relais_testkit::RedisServer;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, broadcast};

use crate::{
    Plan, cpu,
    report::Section,
    sample::{Sample, number},
};

const CAPACITY: usize = 8192;
const CHANNEL: &str = "orders.created";

/// More rounds than others have: they are short, and what disturbs one is over in the next.
const ROUNDS: usize = 2;

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    number: u64,
    amount: [u64; 6],
    #[serde(skip, default = "Instant::now")]
    sent: Instant,
}

fn order(number: u64) -> Order {
    Order { number, amount: [number; 6], sent: Instant::now() }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contender {
    Bus,
    Tokio,
    Async,
}

impl Contender {
    const ALL: [Self; 3] = [Self::Bus, Self::Tokio, Self::Async];

    fn name(self) -> &'static str {
        match self {
            Self::Bus => "relais-bus",
            Self::Tokio => "bare tokio::sync::broadcast",
            Self::Async => "bare async-broadcast",
        }
    }

    async fn open(self, subscribers: usize) -> Result<(Publisher, Vec<Reader>)> {
        Ok(match self {
            Self::Bus => {
                let bus = Bus::builder().queue_capacity(CAPACITY).backpressure(Backpressure::Block).start().await?;
                let mut readers = Vec::new();
                for _ in 0..subscribers {
                    readers.push(Reader::Bus(bus.subscribe(CHANNEL).await?));
                }
                (Publisher::Bus(bus), readers)
            }
            Self::Tokio => {
                let (sender, _) = broadcast::channel(CAPACITY);
                let readers = (0..subscribers).map(|_| Reader::Tokio(sender.subscribe())).collect();
                (Publisher::Tokio(sender), readers)
            }
            Self::Async => {
                let (sender, receiver) = async_broadcast::broadcast(CAPACITY);
                let readers = (0..subscribers).map(|_| Reader::Async(receiver.clone())).collect();
                (Publisher::Async(sender), readers)
            }
        })
    }
}

enum Publisher {
    Bus(Bus),
    Tokio(broadcast::Sender<Arc<Order>>),
    Async(async_broadcast::Sender<Arc<Order>>),
}

impl Publisher {
    async fn publish(&self, order: Order) -> Result<()> {
        match self {
            Self::Bus(bus) => drop(bus.publish(CHANNEL, order).await?),
            Self::Tokio(sender) => {
                while sender.len() >= CAPACITY {
                    tokio::task::yield_now().await;
                }
                sender.send(Arc::new(order)).ok().context("nobody listens")?;
            }
            Self::Async(sender) => drop(sender.broadcast_direct(Arc::new(order)).await?),
        }
        Ok(())
    }
}

enum Reader {
    Bus(Subscription),
    Tokio(broadcast::Receiver<Arc<Order>>),
    Async(async_broadcast::Receiver<Arc<Order>>),
}

impl Reader {
    async fn read(&mut self) -> Result<Arc<Order>> {
        match self {
            Self::Bus(subscription) => {
                let event = subscription.recv().await.context("the bus stopped")?;
                event.payload.downcast().context("another payload")
            }
            Self::Tokio(receiver) => Ok(receiver.recv().await?),
            Self::Async(receiver) => Ok(receiver.recv_direct().await?),
        }
    }
}

/// Runs it.
pub async fn run(plan: &Plan) -> Result<Section> {
    // What ships records metrics.
    metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder().context("install the recorder")?;
    let header = ["what", "subscribers", "contender", "deliveries/s", "p50 µs", "p99 µs"];
    let mut section = Section::new("bus", "the event bus beside bare channels and a bare Redis client", &header);
    let quick = plan.time < Duration::from_secs(1);
    let scale = if quick { 20 } else { 1 };
    for subscribers in [1, 10, 1000] {
        in_memory(plan, &mut section, subscribers, scale).await?;
    }
    patterns(plan, &mut section, scale).await?;
    over_redis(plan, &mut section, scale).await?;
    idle(plan, &mut section).await?;
    Ok(section)
}

async fn in_memory(plan: &Plan, section: &mut Section, subscribers: usize, scale: usize) -> Result<()> {
    let events = (1_000_000 / subscribers.max(2)).max(2_000) / scale;
    let mut rates = [Vec::new(), Vec::new(), Vec::new()];
    let mut latencies = [Vec::new(), Vec::new(), Vec::new()];
    // In turns, so that what disturbs one disturbs the others too; the first round warms up.
    for round in 0..=plan.rounds * ROUNDS {
        for (contender, (rates, latencies)) in Contender::ALL.into_iter().zip(rates.iter_mut().zip(&mut latencies)) {
            let rate = throughput(contender, subscribers, events).await?;
            let took = latency(contender, subscribers, (plan.samples / scale).max(20)).await?;
            if round > 0 {
                rates.push(Sample::new(events * subscribers, rate, Vec::new()));
                latencies.extend(took);
            }
        }
    }
    let mut found = Vec::new();
    for (contender, (rates, latencies)) in Contender::ALL.into_iter().zip(rates.into_iter().zip(latencies)) {
        let rate = Sample::median(rates).rate;
        let latency = Sample::new(1, Duration::from_secs(1), latencies);
        found.push(rate);
        row(section, "in memory", &number(subscribers as f64), contender.name(), rate, Some(&latency));
    }
    let what = |other: Contender| format!("{}, {subscribers} subscribers", other.name());
    if subscribers == 1 {
        section.at_least(&what(Contender::Tokio), found[0] / found[1], 0.5);
    } else {
        section.ratio(&what(Contender::Tokio), found[0] / found[1]);
    }
    section.ratio(&what(Contender::Async), found[0] / found[2]);
    Ok(())
}

fn row(section: &mut Section, what: &str, who: &str, contender: &str, rate: f64, latency: Option<&Sample>) {
    let at = |share: f64| latency.map_or_else(String::new, |sample| micros(sample.percentile(share)));
    section.row([what.to_owned(), who.to_owned(), contender.to_owned(), number(rate), at(0.5), at(0.99)]);
}

fn micros(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64() * 1e6)
}

/// How long it takes until all have read all.
async fn throughput(contender: Contender, subscribers: usize, events: usize) -> Result<Duration> {
    let (publisher, readers) = contender.open(subscribers).await?;
    let begin = Instant::now();
    let reading: Vec<_> = readers.into_iter().map(|reader| tokio::spawn(read_all(reader, events))).collect();
    let publishing = tokio::spawn(async move {
        for number in 0..events {
            publisher.publish(order(number as u64)).await?;
        }
        anyhow::Ok(publisher)
    });
    // Kept until all was read: channels end with their sender.
    let _publisher = publishing.await??;
    for reader in try_join_all(reading).await? {
        reader?;
    }
    Ok(begin.elapsed())
}

async fn read_all(mut reader: Reader, events: usize) -> Result<()> {
    for _ in 0..events {
        std::hint::black_box(reader.read().await?.number);
    }
    Ok(())
}

/// From the call of publish until each subscriber has it, one event at a time.
async fn latency(contender: Contender, subscribers: usize, events: usize) -> Result<Vec<Duration>> {
    let (publisher, readers) = contender.open(subscribers).await?;
    let (had, all_had) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let reading: Vec<_> = readers
        .into_iter()
        .map(|mut reader| {
            let (had, all_had) = (Arc::clone(&had), Arc::clone(&all_had));
            tokio::spawn(async move {
                let mut took = Vec::with_capacity(events);
                for _ in 0..events {
                    took.push(reader.read().await?.sent.elapsed());
                    if (had.fetch_add(1, Ordering::AcqRel) + 1).is_multiple_of(subscribers) {
                        all_had.notify_one();
                    }
                }
                anyhow::Ok(took)
            })
        })
        .collect();
    for number in 0..events {
        publisher.publish(order(number as u64)).await?;
        all_had.notified().await;
    }
    let took = try_join_all(reading).await?.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(took.concat())
}

/// One subscriber that matches, among thousands that do not.
async fn patterns(plan: &Plan, section: &mut Section, scale: usize) -> Result<()> {
    let events = 300_000 / scale;
    // Where no channel is remembered, every event walks the tree.
    for (what, max_channels) in [("known channel", 10_000), ("new channel", 0)] {
        let mut found = Vec::new();
        for others in [0, 100, 10_000] {
            let builder = Bus::builder().max_channels(max_channels).backpressure(Backpressure::Block);
            let bus = builder.queue_capacity(CAPACITY).start().await?;
            let mut held = Vec::new();
            for other in 0..others / 2 {
                held.push(bus.subscribe(&format!("other.{other}.*")).await?);
                held.push(bus.subscribe(&format!("orders.*.of.{other}")).await?);
            }
            let mut rates = Vec::new();
            for round in 0..=plan.rounds * ROUNDS {
                let reader = Reader::Bus(bus.subscribe("orders.*").await?);
                let begin = Instant::now();
                let reading = tokio::spawn(read_all(reader, events));
                let publisher = bus.clone();
                let publishing = tokio::spawn(async move {
                    for number in 0..events {
                        publisher.publish(CHANNEL, order(number as u64)).await?;
                    }
                    anyhow::Ok(())
                });
                publishing.await??;
                reading.await??;
                if round > 0 {
                    rates.push(Sample::new(events, begin.elapsed(), Vec::new()));
                }
            }
            found.push(Sample::median(rates).rate);
            let who = format!("1 and {} that do not match", number(f64::from(others)));
            row(section, what, &who, Contender::Bus.name(), found[found.len() - 1], None);
        }
        section.at_least(&format!("with 10,000 others beside none, {what}"), found[2] / found[0], 0.8);
    }
    Ok(())
}

const PUBLISHERS: usize = 64;

/// Many publishers, one subscriber, through a real Redis.
async fn over_redis(plan: &Plan, section: &mut Section, scale: usize) -> Result<()> {
    let each = 40_000 / scale / PUBLISHERS;
    let server = RedisServer::start().await?;
    let transport = RedisPubSub::new(&server.url())?;
    let bus = Bus::builder().transport(transport).backpressure(Backpressure::Block).start().await?;
    let client = redis::Client::open(server.url())?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..=plan.rounds {
        let (one, other) = (redis_bus(&bus, each).await?, redis_bare(&client, each).await?);
        if round > 0 {
            ours.push(one);
            bare.push(other);
        }
    }
    let (ours, bare) = (Sample::median(ours), Sample::median(bare));
    row(section, "over Redis", "1", Contender::Bus.name(), ours.rate, Some(&ours));
    row(section, "over Redis", "1", "bare redis-rs", bare.rate, Some(&bare));
    section.ratio("bare redis-rs", ours.rate / bare.rate);
    Ok(())
}

/// What is sent over Redis carries when it was sent, in a form that survives.
#[derive(Serialize, Deserialize)]
struct Sent {
    order: Order,
    micros: u128,
}

fn sent(number: usize, base: Instant) -> Sent {
    Sent { order: order(number as u64), micros: base.elapsed().as_micros() }
}

fn since(sent: &Sent, base: Instant) -> Duration {
    base.elapsed().saturating_sub(Duration::from_micros(u64::try_from(sent.micros).unwrap_or_default()))
}

async fn redis_bus(bus: &Bus, each: usize) -> Result<Sample> {
    let mut subscription = bus.subscribe(CHANNEL).await?;
    let base = Instant::now();
    let reader = tokio::spawn(async move {
        let mut took = Vec::with_capacity(each * PUBLISHERS);
        while took.len() < each * PUBLISHERS {
            let event = subscription.recv().await.context("the bus stopped")?;
            took.push(since(&*event.payload.get::<Sent>()?, base));
        }
        anyhow::Ok(took)
    });
    let publishers = (0..PUBLISHERS).map(|_| {
        let bus = bus.clone();
        tokio::spawn(async move {
            for number in 0..each {
                bus.publish(CHANNEL, sent(number, base)).await?;
            }
            anyhow::Ok(())
        })
    });
    for published in try_join_all(publishers).await? {
        published?;
    }
    let took = reader.await??;
    Ok(Sample::new(took.len(), base.elapsed(), took))
}

async fn redis_bare(client: &redis::Client, each: usize) -> Result<Sample> {
    let mut subscribed = client.get_async_pubsub().await?;
    subscribed.subscribe("bare").await?;
    let mut messages = subscribed.into_on_message();
    let base = Instant::now();
    let reader = tokio::spawn(async move {
        let mut took = Vec::with_capacity(each * PUBLISHERS);
        while took.len() < each * PUBLISHERS {
            let message = messages.next().await.context("Redis is gone")?;
            took.push(since(&serde_json::from_slice(message.get_payload_bytes())?, base));
        }
        anyhow::Ok(took)
    });
    let connection = client.get_connection_manager().await?;
    let publishers = (0..PUBLISHERS).map(|_| {
        let mut connection = connection.clone();
        tokio::spawn(async move {
            for number in 0..each {
                let text = serde_json::to_string(&sent(number, base))?;
                connection.publish::<_, _, ()>("bare", text).await?;
            }
            anyhow::Ok(())
        })
    });
    for published in try_join_all(publishers).await? {
        published?;
    }
    let took = reader.await??;
    Ok(Sample::new(took.len(), base.elapsed(), took))
}

/// A thousand subscribers and ten workers with nothing to do, in memory and over Redis.
async fn idle(plan: &Plan, section: &mut Section) -> Result<()> {
    let server = RedisServer::start().await?;
    let over_redis = Bus::builder().transport(RedisPubSub::new(&server.url())?).start().await?;
    let in_memory = Bus::in_memory();
    let (mut held, mut workers) = (Vec::new(), Vec::new());
    for bus in [&in_memory, &over_redis] {
        for number in 0..500 {
            held.push(bus.on(&format!("idle.{number}"), |_| async { Ok(()) }).await?);
        }
        for number in 0..5 {
            let worker = PushWorker::builder(format!("w{number}")).channel("idle.>").concurrency(4);
            workers.push(worker.start(bus, |_| async { Ok(()) }).await?);
        }
    }
    let before = cpu::of_process(std::process::id())?;
    tokio::time::sleep(plan.idle).await;
    let used = cpu::of_process(std::process::id())? - before;
    ensure!(held.len() == 1000 && workers.len() == 10);
    let percent = 100.0 * used.as_secs_f64() / plan.idle.as_secs_f64();
    section.below("of a core: 1,000 handlers and 10 workers that have nothing to do", percent, 0.1, " %");
    Ok(())
}
