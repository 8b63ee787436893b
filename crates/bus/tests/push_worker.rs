//! What is special about push workers on the bus, in memory, on a paused clock. What they promise everywhere is in the suite
//! of consumers (`consumer/`), and in the tests of `relais-push-worker`.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures::{FutureExt, future::BoxFuture};
use relais_bus::{
    Backpressure, Bus, BusError, ErrorDecision, Event, FailedEvent, Hooks, Metadata, Order, Outgoing, PushWorker,
    PushWorkerReport, SubscriberError, WorkerState,
};
use serde_json::json;
use tokio::{
    sync::{Semaphore, mpsc},
    time::Instant,
};

type Log = Arc<Mutex<Vec<String>>>;

fn text(event: &Event) -> String {
    event.payload.get::<String>().unwrap().to_string()
}

async fn publish(bus: &Bus, channel: &str, key: &str, payload: &str) {
    bus.send(Outgoing::new(channel, payload.to_owned()).key(key)).await.unwrap();
}

/// A handler that ends when it is let.
fn held(gate: Arc<Semaphore>) -> impl Fn(Arc<Event>) -> BoxFuture<'static, Result<(), SubscriberError>> + Clone {
    move |_| {
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire_owned().await?.forget();
            Ok(())
        }
        .boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_retryable_error_is_retried_with_backoff_and_then_becomes_a_dead_letter() {
    let bus = Bus::in_memory();
    let mut letters = bus.subscribe("dlq.orders.created").await.unwrap();
    let (sender, mut tries) = mpsc::unbounded_channel();
    let worker = PushWorker::builder("w")
        .channel("orders.*")
        .start(&bus, move |event| {
            let count = event.metadata.get(Metadata::RETRY_COUNT).map(str::to_owned);
            sender.send((Instant::now(), count)).unwrap();
            async { Err(std::io::Error::other("away").into()) }
        })
        .await
        .unwrap();
    let begin = Instant::now();
    bus.publish("orders.created", "x").await.unwrap();
    let letter = letters.recv().await.unwrap();
    for (second, count) in [(0, None), (2, Some("1")), (6, Some("2")), (14, Some("3"))] {
        let (at, told) = tries.recv().await.unwrap();
        assert_eq!(((at - begin).as_secs(), told.as_deref()), (second, count));
    }
    let told = |name| letter.metadata.get(name);
    assert_eq!(
        (told(Metadata::ERROR), told(Metadata::RETRY_COUNT), told(Metadata::FAILED_BY)),
        (Some("away"), Some("3"), Some("w"))
    );
    let stats = worker.stats();
    assert_eq!((stats.execution_count, stats.errors_count, stats.queue_size), (0, 4, 0));
    assert_eq!(bus.dead_letters("orders.created", 10).await.unwrap().len(), 1);
    let report = worker.stop().await;
    assert_eq!((report.processed, report.errors, report.dead_lettered, report.left.len()), (0, 4, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn order_per_channel_and_concurrency_are_kept() {
    let bus = Bus::in_memory();
    let running = Arc::new(Mutex::new((Vec::<String>::new(), 0_usize)));
    let (sender, mut done) = mpsc::unbounded_channel();
    let handler = {
        let running = Arc::clone(&running);
        move |event: Arc<Event>| {
            let (running, sender) = (Arc::clone(&running), sender.clone());
            async move {
                {
                    let mut now = running.lock().unwrap();
                    assert!(!now.0.contains(&event.channel.to_string()), "two of a channel at the same time");
                    now.0.push(event.channel.to_string());
                    now.1 = now.1.max(now.0.len());
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
                running.lock().unwrap().0.retain(|channel| **channel != *event.channel);
                sender.send(text(&event)).unwrap();
                Ok(())
            }
        }
    };
    let worker = PushWorker::builder("w")
        .channel("c.*")
        .concurrency(2)
        .order(Order::Channel)
        .start(&bus, handler)
        .await
        .unwrap();
    for round in 0..5 {
        for channel in ["c.x", "c.y", "c.z"] {
            publish(&bus, channel, "", &format!("{channel}{round}")).await;
        }
    }
    let mut seen = Vec::new();
    for _ in 0..15 {
        seen.push(done.recv().await.unwrap());
    }
    for channel in ["c.x", "c.y", "c.z"] {
        let own: Vec<_> = seen.iter().filter(|name| name.starts_with(channel)).cloned().collect();
        assert_eq!(own, (0..5).map(|round| format!("{channel}{round}")).collect::<Vec<_>>());
    }
    assert_eq!(running.lock().unwrap().1, 2);
    assert_eq!(worker.stats().errors_count, 0);
}

#[tokio::test(start_paused = true)]
async fn a_stop_drains_within_its_limit_and_reports_what_it_left() {
    let bus = Bus::in_memory();
    let gate = Arc::new(Semaphore::new(0));
    let worker =
        PushWorker::builder("w").channel("a").concurrency(2).start(&bus, held(Arc::clone(&gate))).await.unwrap();
    for payload in ["1", "2", "3", "4", "5"] {
        publish(&bus, "a", "", payload).await;
    }
    gate.add_permits(2);
    let begin = Instant::now();
    let report = worker.stop().await;
    assert_eq!(begin.elapsed(), Duration::from_secs(30));
    let mut left: Vec<_> = report.left.iter().map(|event| text(event)).collect();
    left.sort();
    assert_eq!((report.processed, left), (2, vec!["3".to_owned(), "4".to_owned(), "5".to_owned()]));
    assert_eq!(bus.stats().dropped, 3, "counted, as nobody keeps them");
    assert_eq!(bus.publish_confirmed("a", 1).await.unwrap().delivered, 0, "it takes no more");
}

#[tokio::test(start_paused = true)]
async fn events_that_wait_for_a_retry_take_room_in_the_queue() {
    let bus = Bus::in_memory();
    let (sender, mut tried) = mpsc::unbounded_channel();
    let handler = move |_| {
        sender.send(()).unwrap();
        async { Err(SubscriberError::retryable("no")) }
    };
    let builder = PushWorker::builder("w").channel("a").queue_capacity(2).backpressure(Backpressure::Drop);
    let worker = builder.start(&bus, handler).await.unwrap();
    for payload in ["1", "2"] {
        publish(&bus, "a", "", payload).await;
        tried.recv().await.unwrap();
    }
    while worker.stats().queue_size < 2 {
        tokio::task::yield_now().await;
    }
    publish(&bus, "a", "", "3").await;
    assert_eq!(bus.subscriptions()[0].dropped, 1);
}

struct Recorder(Log);

impl Recorder {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }
}

#[async_trait]
impl Hooks<Event> for Recorder {
    async fn initialize(&self) -> Result<(), SubscriberError> {
        self.note("initialize");
        Ok(())
    }
    async fn started(&self) {
        self.note("started");
    }
    async fn stopping(&self) {
        self.note("stopping");
    }
    async fn stopped(&self, report: &PushWorkerReport) {
        self.note(format!("stopped after {}", report.errors));
    }
    async fn error(&self, failed: &FailedEvent<'_>) -> ErrorDecision {
        self.note(format!("{} {} {} {:?}", failed.worker, failed.message.channel, failed.error, failed.retry));
        ErrorDecision::BySettings
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_are_called_in_turn_and_a_stopping_bus_stops_its_workers() {
    let (bus, log) = (Bus::in_memory(), Log::default());
    let worker = PushWorker::builder("w")
        .channel("a")
        .retries(1)
        .hooks(Recorder(Arc::clone(&log)))
        .start(&bus, |_| async { Err(SubscriberError::retryable("no")) })
        .await
        .unwrap();
    publish(&bus, "a", "", "x").await;
    assert_eq!(bus.stop().await.left, 0);
    assert_eq!(worker.stats().state, WorkerState::Stopped);
    assert_eq!(worker.stop().await.errors, 2);
    let expected = ["initialize", "started", "stopping", "w a no Some(1)", "w a no None", "stopped after 2"];
    let mut log = log.lock().unwrap().clone();
    // Whether the first execution or the stop is noticed first is nobody's promise.
    log[2..4].sort_by_key(|line| line != "stopping");
    assert_eq!(log, expected);
}

struct Refuses;

#[async_trait]
impl Hooks<Event> for Refuses {
    async fn initialize(&self) -> Result<(), SubscriberError> {
        Err(SubscriberError::fatal("no database"))
    }
}

#[tokio::test]
async fn a_worker_whose_initialize_refuses_does_not_start() {
    let bus = Bus::in_memory();
    let started = PushWorker::builder("w").channel("a").hooks(Refuses).start(&bus, |_| async { Ok(()) }).await;
    assert!(matches!(started, Err(BusError::Initialize(_))));
    assert_eq!(bus.stats().subscriptions, 0);
}

#[tokio::test(start_paused = true)]
async fn stats_have_exactly_the_keys_that_are_promised() {
    let bus = Bus::in_memory();
    let worker = PushWorker::builder("w").channel("a.*").channel("b").start(&bus, |_| async { Ok(()) }).await.unwrap();
    let stats = serde_json::to_value(worker.stats()).unwrap();
    let mut keys: Vec<_> = stats.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    let mut promised = [
        "state",
        "schedule",
        "execution_count",
        "errors_count",
        "last_execution",
        "channels",
        "concurrency",
        "queue_size",
        "queue_capacity",
        "uptime_ms",
        "avg_duration_ms",
        "throughput_per_sec",
        "subscriptions",
    ];
    promised.sort_unstable();
    assert_eq!(keys, promised);
    let subscriptions =
        json!([{"id": "1.1", "channel": "a.*", "pending": 0}, {"id": "1.2", "channel": "b", "pending": 0}]);
    for (key, value) in [
        ("channels", json!(["a.*", "b"])),
        ("subscriptions", subscriptions),
        ("queue_capacity", json!(10_000)),
        ("state", json!("running")),
        ("schedule", json!("PUSH")),
    ] {
        assert_eq!(stats[key], value, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_subscription_says_how_many_of_its_events_wait() {
    let bus = Bus::in_memory();
    let gate = Arc::new(Semaphore::new(0));
    let handler = held(Arc::clone(&gate));
    let worker = PushWorker::builder("w").channel("a.*").channel("*.b").start(&bus, handler.clone()).await.unwrap();
    let alone = PushWorker::builder("v").channel("a.*").start(&bus, handler).await.unwrap();
    for channel in ["a.a", "a.b", "a.c", "b.b", "c.b"] {
        bus.publish(channel, channel).await.unwrap();
    }
    let pending = |worker: &PushWorker| {
        let subscriptions = worker.stats().subscriptions;
        subscriptions.into_iter().map(|one| (one.id, one.channel, one.pending)).collect::<Vec<_>>()
    };
    let row = |id: &str, channel: &str, pending| (id.to_owned(), channel.to_owned(), pending);
    while worker.backlog() < 5 || worker.stats().queue_size > 4 || alone.stats().queue_size > 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(pending(&worker), [row("1.1", "a.*", 2), row("1.2", "*.b", 2)], "a.a runs, a.b is counted once");
    assert_eq!(pending(&alone), [row("2", "a.*", 2)]);
    gate.add_permits(100);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_healthy_while_its_bus_is() {
    let bus = Bus::builder().build();
    let worker = PushWorker::builder("w").channel("a").start(&bus, |_| async { Ok(()) }).await.unwrap();
    assert!(!worker.is_healthy(), "nothing can come yet");
    bus.start().await.unwrap();
    assert!(worker.is_healthy());
    bus.stop().await;
    assert!(!worker.is_healthy());
}

#[tokio::test(start_paused = true)]
async fn the_short_form_gets_the_payloads_of_one_channel() {
    let bus = Bus::in_memory();
    let (sender, mut seen) = mpsc::unbounded_channel();
    let handler = move |number: Arc<u32>| {
        sender.send(*number).unwrap();
        async { Ok(()) }
    };
    let worker = bus.work("orders.created", handler).await.unwrap();
    bus.publish("orders.created", 7_u32).await.unwrap();
    bus.publish("orders.created", "seven").await.unwrap();
    assert_eq!((seen.recv().await.unwrap(), worker.name()), (7, "orders.created"));
    let report = worker.stop().await;
    assert_eq!((report.processed, report.dead_lettered), (1, 1), "a payload of another type is a dead letter");
}

struct Forgives;

#[async_trait]
impl Hooks<Event> for Forgives {
    async fn error(&self, _: &FailedEvent<'_>) -> ErrorDecision {
        ErrorDecision::Drop
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_an_error_hook_drops_is_counted_as_failed() {
    let bus = Bus::in_memory();
    let builder = PushWorker::builder("w").channel("a").hooks(Forgives);
    let worker = builder.start(&bus, |_| async { Err(SubscriberError::retryable("no")) }).await.unwrap();
    publish(&bus, "a", "", "x").await;
    assert_eq!(worker.stop().await.dropped, 1);
    assert_eq!((bus.stats().failed, bus.channel_stats()[0].failed, bus.stats().dead_lettered), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn channels_and_patterns_are_merged_and_a_wrong_type_is_a_dead_letter_at_once() {
    let bus = Bus::in_memory();
    let (sender, mut seen) = mpsc::unbounded_channel();
    let builder = PushWorker::builder("w").channel("a.*").channel("a.b").channel("c");
    let worker = builder
        .start_typed(&bus, move |number: relais_bus::Received<u32>| {
            sender.send((number.event.channel.to_string(), *number)).unwrap();
            async { Ok(()) }
        })
        .await
        .unwrap();
    bus.publish("a.b", 1_u32).await.unwrap();
    bus.publish("a.b", "one").await.unwrap();
    bus.publish("c", 2_u32).await.unwrap();
    assert_eq!(seen.recv().await.unwrap(), ("a.b".to_owned(), 1));
    assert_eq!(seen.recv().await.unwrap(), ("c".to_owned(), 2), "the first came once");
    assert_eq!(worker.stop().await.dead_lettered, 1);
}

#[tokio::test(start_paused = true)]
async fn a_push_worker_on_dead_letters_makes_no_new_dead_letter() {
    let bus = Bus::in_memory();
    let fails = |_| async { Err(SubscriberError::fatal("no")) };
    let first = PushWorker::builder("first").channel(">").start(&bus, fails).await.unwrap();
    let second = PushWorker::builder("second").channel("dlq.>").start(&bus, fails).await.unwrap();
    publish(&bus, "a", "", "x").await;
    let (first, second) = (first.stop().await, second.stop().await);
    assert_eq!((first.errors, first.dead_lettered), (1, 1), "its own dead letter is no event to it");
    assert_eq!((second.errors, second.dead_lettered), (1, 0));
    assert_eq!(bus.dead_letters(">", 10).await.unwrap().len(), 1);
}
