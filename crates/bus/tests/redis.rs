//! Both Redis transports, held to the suite, and to what they promise when Redis goes away.

#![cfg(feature = "redis")]
#![expect(clippy::unwrap_used, reason = "tests")]

mod suite;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use relais_bus::{
    Bus, Event, Features, Notice, PushWorker, SubscriberError, Transport, WorkerState,
    redis::{RedisPubSub, RedisStreams},
};
use relais_testkit::{RedisServer, TcpProxy};
use tokio::sync::{OnceCell, Semaphore, mpsc};

use self::suite::{next, within};

/// For tests that do not kill it. Its guardian ends it with the process.
async fn shared_server() -> String {
    static SERVER: OnceCell<RedisServer> = OnceCell::const_new();
    SERVER.get_or_init(|| async { RedisServer::start().await.unwrap() }).await.url()
}

/// Tests on one server do not hear each other.
fn prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("t{}:", NEXT.fetch_add(1, Ordering::Relaxed))
}

async fn started(transport: impl Transport) -> Bus {
    Bus::builder().transport(transport).start().await.unwrap()
}

fn harness_of<T: Transport>(features: Features, make: impl Fn(&str) -> T + Send + Sync + 'static) -> suite::Harness {
    suite::Harness { features, make: Box::new(move |group| started(make(group)).boxed()) }
}

mod pubsub {
    use super::*;
    use crate::conformance;

    async fn harness() -> suite::Harness {
        let (url, prefix) = (shared_server().await, prefix());
        let features = RedisPubSub::new(&url).unwrap().features();
        harness_of(features, move |_| RedisPubSub::new(&url).unwrap().prefix(&prefix))
    }

    conformance!(harness());
}

mod streams {
    use super::*;
    use crate::conformance;

    async fn harness() -> suite::Harness {
        let (url, prefix) = (shared_server().await, prefix());
        let features = RedisStreams::new(&url, "g").unwrap().features();
        harness_of(features, move |group| RedisStreams::new(&url, group).unwrap().prefix(&prefix))
    }

    conformance!(harness());
}

/// Publishes until it works: what a publisher does who wants it to arrive.
async fn publish_until_taken(bus: &Bus, number: u32) {
    while bus.publish("numbers", number).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn pubsub_subscribers_survive_a_redis_restart_and_get_a_gap_notice() {
    let mut server = RedisServer::start().await.unwrap();
    let bus = started(RedisPubSub::new(&server.url()).unwrap()).await;
    let mut numbers = bus.subscribe("numbers").await.unwrap();
    let mut wild = bus.subscribe("*").await.unwrap();
    let mut notices = bus.subscribe("$bus.>").await.unwrap();
    server.kill9().unwrap();
    let told = next(&mut notices).await;
    assert_eq!(&*told.channel, Notice::DISCONNECTED);
    assert!(!bus.health().healthy && bus.health().error.is_some());
    // A subscription that begins now is heard when Redis is back.
    let late = tokio::spawn({
        let bus = bus.clone();
        async move { bus.subscribe("late").await.unwrap() }
    });
    server.restart().await.unwrap();
    let notice = next(&mut notices).await.payload.get::<Notice>().unwrap();
    assert!(matches!(*notice, Notice::Reconnected { may_have_missed: true, .. }), "{notice:?}");
    assert!(bus.health().healthy && bus.health().outages == 1);
    within(publish_until_taken(&bus, 7)).await;
    assert_eq!(*next(&mut numbers).await.payload.get::<u32>().unwrap(), 7);
    assert_eq!(*next(&mut wild).await.payload.get::<u32>().unwrap(), 7, "once for each subscription");
    let mut late = within(late).await.unwrap();
    bus.publish("late", 8).await.unwrap();
    assert_eq!(*next(&mut late).await.payload.get::<u32>().unwrap(), 8);
    assert!(numbers.try_recv().is_none());
}

/// Handles numbers: all that came, each as it comes, and the handler.
#[expect(clippy::type_complexity, reason = "a handler has no shorter type")]
fn collector() -> (
    Arc<Mutex<Vec<u32>>>,
    mpsc::UnboundedReceiver<u32>,
    impl Fn(Arc<Event>) -> std::future::Ready<Result<(), SubscriberError>> + Clone,
) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let all = Arc::new(Mutex::new(Vec::new()));
    let handler = {
        let all = Arc::clone(&all);
        move |event: Arc<Event>| {
            let number = *event.payload.get::<u32>().unwrap();
            all.lock().unwrap().push(number);
            let _ = sender.send(number);
            std::future::ready(Ok(()))
        }
    };
    (all, receiver, handler)
}

/// Of the entries that a group was given and has not acknowledged: for how long nobody gave a sign of life, in milliseconds.
async fn pending(server: &RedisServer, group: &str) -> Vec<u64> {
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut ask = redis::cmd("XPENDING");
    ask.arg("relais:bus:events").arg(group).arg("-").arg("+").arg(100);
    let entries: Vec<(String, String, u64, u64)> = ask.query_async(&mut connection).await.unwrap();
    entries.into_iter().map(|(_, _, silent, _)| silent).collect()
}

type Handled = BoxFuture<'static, Result<(), SubscriberError>>;

/// A handler that ends when it is let.
fn held() -> (Arc<Semaphore>, impl Fn(Arc<Event>) -> Handled) {
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let handler = move |_| {
        let held = Arc::clone(&held);
        async move {
            held.acquire_owned().await?.forget();
            Ok(())
        }
        .boxed()
    };
    (gate, handler)
}

async fn until_all(receiver: &mut mpsc::UnboundedReceiver<u32>, count: u32) {
    let mut missing: BTreeSet<u32> = (0..count).collect();
    while !missing.is_empty() {
        let number = within(receiver.recv()).await.unwrap();
        missing.remove(&number);
    }
}

#[tokio::test]
async fn streams_lose_no_event_when_redis_crashes_and_restarts() {
    let mut server = RedisServer::start().await.unwrap();
    let bus = started(RedisStreams::new(&server.url(), "g").unwrap()).await;
    let mut notices = bus.subscribe("$bus.reconnected").await.unwrap();
    let (_, mut receiver, handler) = collector();
    let worker = PushWorker::builder("w").channel("numbers").concurrency(4).start(&bus, handler).await.unwrap();
    let publisher = tokio::spawn({
        let bus = bus.clone();
        async move {
            for number in 0..300 {
                publish_until_taken(&bus, number).await;
            }
        }
    });
    let mut seen = BTreeSet::new();
    while seen.len() < 20 {
        seen.insert(within(receiver.recv()).await.unwrap());
    }
    server.kill9().unwrap();
    server.restart().await.unwrap();
    let notice = next(&mut notices).await.payload.get::<Notice>().unwrap();
    assert!(matches!(*notice, Notice::Reconnected { may_have_missed: false, .. }), "{notice:?}");
    within(publisher).await.unwrap();
    // At least once: some may have come twice.
    while seen.len() < 300 {
        seen.insert(within(receiver.recv()).await.unwrap());
    }
    assert!(within(worker.stop()).await.left.is_empty());
}

#[tokio::test]
async fn streams_lose_nothing_when_the_network_is_cut() {
    let server = RedisServer::start().await.unwrap();
    let proxy = TcpProxy::start(server.addr()).await.unwrap();
    let away = started(RedisStreams::new(&server.url_via(proxy.addr()), "g").unwrap()).await;
    let home = started(RedisStreams::new(&server.url(), "other").unwrap()).await;
    let mut notices = away.subscribe("$bus.>").await.unwrap();
    let (_, mut receiver, handler) = collector();
    let _guard = away.on("numbers", handler).await.unwrap();
    proxy.cut().await.unwrap();
    assert_eq!(&*next(&mut notices).await.channel, Notice::DISCONNECTED);
    for number in 0..50 {
        home.publish("numbers", number).await.unwrap();
    }
    proxy.restore().await.unwrap();
    until_all(&mut receiver, 50).await;
}

#[tokio::test]
async fn events_of_a_crashed_instance_are_taken_over() {
    let server = RedisServer::start().await.unwrap();
    let make = || RedisStreams::new(&server.url(), "g").unwrap().claim_after(Duration::from_millis(300));
    let dying = started(make()).await;
    let (sender, mut stuck) = mpsc::unbounded_channel();
    let worker = PushWorker::builder("w")
        .channel("numbers")
        .start(&dying, move |_| {
            let _ = sender.send(());
            std::future::pending()
        })
        .await
        .unwrap();
    for number in 0..5 {
        dying.publish("numbers", number).await.unwrap();
    }
    within(stuck.recv()).await.unwrap();
    // Dropped and not stopped: as far as Redis can see, it is dead.
    drop((worker, dying));
    let heir = started(make()).await;
    let (_, mut receiver, handler) = collector();
    let _guard = heir.on("numbers", handler).await.unwrap();
    until_all(&mut receiver, 5).await;
}

#[tokio::test]
async fn events_that_arrive_while_a_bus_stops_are_left_to_others() {
    let server = RedisServer::start().await.unwrap();
    let make = |group| RedisStreams::new(&server.url(), group).unwrap().claim_after(Duration::from_millis(300));
    let (leaving, source) = (started(make("g")).await, started(make("source")).await);
    let (gate, handler) = held();
    let worker = PushWorker::builder("w").channel("numbers").start(&leaving, handler).await.unwrap();
    source.publish("numbers", 0).await.unwrap();
    while worker.stats().queue_size > 0 || worker.backlog() == 0 {
        tokio::task::yield_now().await;
    }
    let stop = async {
        while worker.stats().state == WorkerState::Running {
            tokio::task::yield_now().await;
        }
        for number in 1..5 {
            source.publish("numbers", number).await.unwrap();
        }
        // It has read them, and has not acknowledged one.
        within(async { while pending(&server, "g").await.len() < 5 {} }).await;
        gate.add_permits(1);
    };
    let (report, ()) = tokio::join!(within(leaving.stop()), stop);
    assert_eq!((report.left, worker.stop().await.processed), (0, 1));
    let heir = started(make("g")).await;
    let (all, mut receiver, handler) = collector();
    let _guard = heir.on("numbers", handler).await.unwrap();
    let mut missing: BTreeSet<u32> = (1..5).collect();
    while !missing.is_empty() {
        missing.remove(&within(receiver.recv()).await.unwrap());
    }
    assert!(!all.lock().unwrap().contains(&0), "what was done is not repeated");
}

#[tokio::test]
async fn a_slow_instance_keeps_its_events() {
    let server = RedisServer::start().await.unwrap();
    let slow = RedisStreams::new(&server.url(), "g").unwrap().claim_after(Duration::from_millis(150));
    let slow = started(slow).await;
    // Published while it is away, so that it finds all of them at once.
    slow.stop().await;
    let source = started(RedisStreams::new(&server.url(), "source").unwrap()).await;
    for number in 0..10 {
        source.publish("numbers", number).await.unwrap();
    }
    let (all, mut receiver, handler) = collector();
    let gate = Arc::new(Semaphore::new(0));
    let waits = {
        let gate = Arc::clone(&gate);
        move |event| {
            let (gate, handler) = (Arc::clone(&gate), handler.clone());
            async move {
                gate.acquire().await.map_err(SubscriberError::fatal)?.forget();
                handler(event).await
            }
        }
    };
    // Room for two, so that the reader itself has to wait.
    let _guard = slow.subscriber("numbers").capacity(2).handler(waits).await.unwrap();
    slow.start().await.unwrap();
    while slow.subscriptions()[0].waiting < 2 {
        tokio::task::yield_now().await;
    }
    // What others look at before they take something over: it grows, and with each sign of life it begins anew.
    within(async {
        let (mut signs, mut before) = (0, 0);
        while signs < 3 {
            let pending = pending(&server, "g").await;
            assert_eq!(pending.len(), 10, "it has read all of them");
            let silent = *pending.iter().max().unwrap();
            signs += u32::from(silent < before);
            before = silent;
        }
    })
    .await;
    gate.add_permits(100);
    until_all(&mut receiver, 10).await;
    assert_eq!(all.lock().unwrap().len(), 10, "each once");
}

#[tokio::test]
async fn entries_acknowledged_by_every_group_are_trimmed_from_the_stream() {
    let server = RedisServer::start().await.unwrap();
    let make = |group| RedisStreams::new(&server.url(), group).unwrap().claim_after(Duration::from_millis(90));
    let (one, two) = (started(make("one")).await, started(make("two")).await);
    let (_, mut receiver, handler) = collector();
    let _guard = one.on("numbers", handler).await.unwrap();
    let mut held = two.subscribe("numbers").await.unwrap();
    for number in 0..1000 {
        one.publish("numbers", number).await.unwrap();
    }
    until_all(&mut receiver, 1000).await;
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let length = async |connection: &mut redis::aio::MultiplexedConnection| -> usize {
        redis::cmd("XLEN").arg("relais:bus:events").query_async(connection).await.unwrap()
    };
    assert_eq!(length(&mut connection).await, 1000, "the other group has not acknowledged one");
    for _ in 0..1000 {
        next(&mut held).await;
    }
    // Redis removes whole blocks of about a hundred, when an instance looks after them.
    within(async {
        while length(&mut connection).await > 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}
