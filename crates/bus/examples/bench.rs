//! How fast the bus is, beside what it could have been: `cargo run --release -p relais-bus --features redis --example bench`.
//!
//! In memory beside bare `tokio::sync::broadcast` and `async-broadcast`, over Redis beside bare redis-rs, in the same run
//! on the same machine. The ratios are what counts; the figures are of that machine and that moment. Metrics are on.
//!
//! Every contender carries a fresh `Arc` of the same payload and waits for slow receivers. That is not what
//! `tokio::sync::broadcast` does by itself (it forgets what they did not read), so its publisher looks before it sends.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program whose output is its purpose, and which may fail"
)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, future::join_all};
use redis::AsyncCommands;
use relais_bus::{Backpressure, Bus, PushWorker, Subscription, redis::RedisPubSub};
use relais_testkit::RedisServer;
use serde::{Deserialize, Serialize};
use tokio::{sync::broadcast, task::JoinHandle};

const CAPACITY: usize = 8192;
/// The best of so many runs: what disturbs a run only ever makes it slower.
const RUNS: usize = 5;

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    number: u64,
    amount: [u64; 6],
}

fn order(number: u64) -> Order {
    Order { number, amount: [number; 6] }
}

fn main() {
    metrics_util::debugging::DebuggingRecorder::new().install().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        println!("load average {}", std::fs::read_to_string("/proc/loadavg").unwrap().trim());
        // One part by its name, or all.
        let part = std::env::args().nth(1);
        let wanted = |name: &str| part.as_deref().is_none_or(|part| part == name);
        if wanted("throughput") {
            for subscribers in [1, 10, 1000] {
                throughput(subscribers).await;
            }
        }
        if wanted("latency") {
            latency().await;
        }
        if wanted("patterns") {
            patterns().await;
        }
        if wanted("redis") {
            over_redis().await;
        }
        if wanted("idle") {
            idle().await;
        }
        println!("load average {}", std::fs::read_to_string("/proc/loadavg").unwrap().trim());
    });
}

/// Deliveries per second: the best of some runs of `run`, which makes `count` of them.
async fn best<F: Future<Output = ()>>(count: u64, mut run: impl FnMut() -> F) -> f64 {
    let mut best = Duration::MAX;
    for _ in 0..RUNS {
        let begin = Instant::now();
        run().await;
        best = best.min(begin.elapsed());
    }
    count as f64 / best.as_secs_f64()
}

async fn throughput(subscribers: u64) {
    let events = (1_000_000 / subscribers.max(2)).max(2_000);
    let count = events * subscribers;
    let bus = best(count, || async move {
        let bus = Bus::builder().queue_capacity(CAPACITY).backpressure(Backpressure::Block).start().await.unwrap();
        let mut readers = Vec::new();
        for _ in 0..subscribers {
            readers.push(read_bus(bus.subscribe("orders.created").await.unwrap(), events));
        }
        publish_bus(&bus, events).await;
        join_all(readers).await;
    })
    .await;
    let tokio_broadcast = best(count, || async move {
        let (sender, _) = broadcast::channel::<Arc<Order>>(CAPACITY);
        let readers: Vec<_> = (0..subscribers)
            .map(|_| {
                let mut receiver = sender.subscribe();
                tokio::spawn(async move {
                    for _ in 0..events {
                        std::hint::black_box(receiver.recv().await.unwrap().number);
                    }
                })
            })
            .collect();
        tokio::spawn(async move {
            for number in 0..events {
                while sender.len() >= CAPACITY {
                    tokio::task::yield_now().await;
                }
                sender.send(Arc::new(order(number))).unwrap();
            }
        })
        .await
        .unwrap();
        join_all(readers).await;
    })
    .await;
    let async_broadcast = best(count, || async move {
        let (sender, receiver) = async_broadcast::broadcast::<Arc<Order>>(CAPACITY);
        let readers: Vec<_> = (0..subscribers)
            .map(|_| {
                let mut receiver = receiver.clone();
                tokio::spawn(async move {
                    for _ in 0..events {
                        std::hint::black_box(receiver.recv_direct().await.unwrap().number);
                    }
                })
            })
            .collect();
        drop(receiver);
        tokio::spawn(async move {
            for number in 0..events {
                sender.broadcast_direct(Arc::new(order(number))).await.unwrap();
            }
        })
        .await
        .unwrap();
        join_all(readers).await;
    })
    .await;
    println!(
        "{subscribers:>5} subscribers: bus {bus:>11.0}/s  tokio broadcast {tokio_broadcast:>11.0}/s ({:.2} x)  \
         async-broadcast {async_broadcast:>11.0}/s ({:.2} x)",
        bus / tokio_broadcast,
        bus / async_broadcast
    );
}

fn read_bus(mut subscription: Subscription, events: u64) -> JoinHandle<()> {
    tokio::spawn(async move {
        for _ in 0..events {
            let event = subscription.recv().await.unwrap();
            std::hint::black_box(event.payload.downcast::<Order>().unwrap().number);
        }
    })
}

async fn publish_bus(bus: &Bus, events: u64) {
    let bus = bus.clone();
    let publish = async move {
        for number in 0..events {
            bus.publish("orders.created", order(number)).await.unwrap();
        }
    };
    tokio::spawn(publish).await.unwrap();
}

/// From the call of publish to the subscriber's hands, one event at a time, between two tasks.
async fn latency() {
    const EVENTS: usize = 50_000;
    let bus = Bus::in_memory();
    let mut events = bus.subscribe("ping").await.unwrap();
    let mut answers = bus.subscribe("pong").await.unwrap();
    let answering = tokio::spawn({
        let bus = bus.clone();
        async move {
            let mut took = Vec::with_capacity(EVENTS);
            for _ in 0..EVENTS {
                let event = events.recv().await.unwrap();
                took.push(event.payload.downcast::<Instant>().unwrap().elapsed());
                bus.publish("pong", ()).await.unwrap();
            }
            took
        }
    });
    for _ in 0..EVENTS {
        bus.publish_shared("ping", Arc::new(Instant::now())).await.unwrap();
        answers.recv().await.unwrap();
    }
    report("bus latency", answering.await.unwrap());
    let (ping, mut pings) = broadcast::channel::<Arc<Instant>>(16);
    let (pong, mut pongs) = broadcast::channel::<()>(16);
    let answering = tokio::spawn(async move {
        let mut took = Vec::with_capacity(EVENTS);
        for _ in 0..EVENTS {
            took.push(pings.recv().await.unwrap().elapsed());
            pong.send(()).unwrap();
        }
        took
    });
    for _ in 0..EVENTS {
        ping.send(Arc::new(Instant::now())).unwrap();
        pongs.recv().await.unwrap();
    }
    report("tokio broadcast latency", answering.await.unwrap());
}

fn report(what: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let at = |share: f64| took[(took.len() as f64 * share) as usize];
    println!("{what}: p50 {:?}  p99 {:?}", at(0.5), at(0.99));
}

/// One subscriber that matches, among thousands that do not.
async fn patterns() {
    const EVENTS: u64 = 300_000;
    let mut known = Vec::new();
    let mut unknown = Vec::new();
    for others in [0, 100, 10_000] {
        // No channel is remembered, so that every event walks the tree.
        for (max_channels, figures) in [(10_000, &mut known), (0, &mut unknown)] {
            let bus =
                Bus::builder().max_channels(max_channels).backpressure(Backpressure::Block).start().await.unwrap();
            let mut held = Vec::new();
            for other in 0..others {
                held.push(bus.subscribe(&format!("other.{other}.*")).await.unwrap());
                held.push(bus.subscribe(&format!("orders.*.of.{other}")).await.unwrap());
            }
            let bus = &bus;
            figures.push(
                best(EVENTS, || async move {
                    let reader = read_bus(bus.subscribe("orders.*").await.unwrap(), EVENTS);
                    publish_bus(bus, EVENTS).await;
                    reader.await.unwrap();
                })
                .await,
            );
        }
    }
    for (what, figures) in [("remembered", known), ("not remembered", unknown)] {
        println!(
            "channel {what}: {:.0}/s alone, {:.0}/s beside 200 other patterns, {:.0}/s beside 20,000 ({:.2} x)",
            figures[0],
            figures[1],
            figures[2],
            figures[2] / figures[0]
        );
    }
}

/// Many publishers, one subscriber, through a real Redis.
async fn over_redis() {
    const EVENTS: u64 = 40_000;
    const PUBLISHERS: u64 = 64;
    let server = RedisServer::start().await.unwrap();
    let bus = Bus::builder()
        .transport(RedisPubSub::new(&server.url()).unwrap())
        .backpressure(Backpressure::Block)
        .start()
        .await
        .unwrap();
    let ours = {
        let bus = &bus;
        best(EVENTS, || async move {
            let mut subscription = bus.subscribe("orders.created").await.unwrap();
            let reader = tokio::spawn(async move {
                for _ in 0..EVENTS {
                    std::hint::black_box(subscription.recv().await.unwrap().payload.get::<Order>().unwrap().number);
                }
            });
            let publishers = (0..PUBLISHERS).map(|_| {
                let bus = bus.clone();
                tokio::spawn(async move {
                    for number in 0..EVENTS / PUBLISHERS {
                        bus.publish("orders.created", order(number)).await.unwrap();
                    }
                })
            });
            join_all(publishers).await;
            reader.await.unwrap();
        })
        .await
    };
    let client = redis::Client::open(server.url()).unwrap();
    let bare = {
        let client = &client;
        best(EVENTS, || async move {
            let mut subscribed = client.get_async_pubsub().await.unwrap();
            subscribed.subscribe("bare").await.unwrap();
            let mut messages = subscribed.into_on_message();
            let reader = tokio::spawn(async move {
                for _ in 0..EVENTS {
                    let message = messages.next().await.unwrap();
                    let order: Order = serde_json::from_slice(message.get_payload_bytes()).unwrap();
                    std::hint::black_box(order.number);
                }
            });
            let connection = client.get_connection_manager().await.unwrap();
            let publishers = (0..PUBLISHERS).map(|_| {
                let mut connection = connection.clone();
                tokio::spawn(async move {
                    for number in 0..EVENTS / PUBLISHERS {
                        let text = serde_json::to_string(&order(number)).unwrap();
                        connection.publish::<_, _, ()>("bare", text).await.unwrap();
                    }
                })
            });
            join_all(publishers).await;
            reader.await.unwrap();
        })
        .await
    };
    println!("over Redis: bus {ours:.0}/s  bare redis-rs {bare:.0}/s ({:.2} x)", ours / bare);
}

/// A thousand subscribers and ten workers with nothing to do.
async fn idle() {
    let bus = Bus::in_memory();
    let mut held = Vec::new();
    for number in 0..1000 {
        held.push(bus.on(&format!("idle.{number}"), |_| async { Ok(()) }).await.unwrap());
    }
    let mut workers = Vec::new();
    for number in 0..10 {
        let builder = PushWorker::builder(format!("w{number}")).channel("idle.>").concurrency(4);
        workers.push(builder.start(&bus, |_| async { Ok(()) }).await.unwrap());
    }
    let before = cpu_time();
    tokio::time::sleep(Duration::from_secs(3)).await;
    println!("idle for 3 s with 1000 handlers and 10 workers: {:?} of CPU", cpu_time() - before);
}

/// Of this process, to a hundredth of a second.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}
