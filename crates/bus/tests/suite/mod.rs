//! What every transport promises, once for all of them.
//!
//! A transport adds a [`Harness`]: how to make an instance, and the features it declares. A case asks the features only
//! where the contract itself depends on them; none is skipped in silence.

#![expect(clippy::unwrap_used, reason = "a test that fails here has found what it looks for")]

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::BoxFuture;
use relais_bus::{Bus, BusError, Event, Features, Metadata, Outgoing, PushWorker, SubscriberError, Subscription};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

/// Longer than anything takes, shorter than anybody's patience.
const DEADLINE: Duration = Duration::from_secs(20);

type MakeBus = Box<dyn Fn(&str) -> BoxFuture<'static, Bus> + Send + Sync>;

/// A transport under test.
pub struct Harness {
    pub features: Features,
    /// A started instance of the world that this harness stands for. The name is its group, where there are groups.
    pub make: MakeBus,
}

impl Harness {
    async fn bus(&self, group: &str) -> Bus {
        within((self.make)(group)).await
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    number: u32,
    items: Vec<String>,
}

fn order(number: u32) -> Order {
    Order { number, items: vec!["tea".to_owned(), "\"quotes\" ünd".to_owned()] }
}

pub async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(DEADLINE, future).await.expect("it should have happened by now")
}

pub async fn next(subscription: &mut Subscription) -> Arc<Event> {
    within(subscription.recv()).await.expect("the stream should not end")
}

async fn numbers(subscription: &mut Subscription, count: usize) -> Vec<u32> {
    let mut numbers = Vec::new();
    for _ in 0..count {
        numbers.push(*next(subscription).await.payload.get().unwrap());
    }
    numbers
}

pub async fn an_event_arrives_with_all_its_parts(harness: Harness) {
    let bus = harness.bus("one").await;
    let mut orders = bus.subscribe("orders.created").await.unwrap();
    let event = Outgoing::new("orders.created", order(7)).metadata("trace", "00-ab").key("eu").source("the shop");
    let id = within(bus.send(event)).await.unwrap();
    let event = next(&mut orders).await;
    assert_eq!((event.id, &*event.channel, &*event.source), (id, "orders.created", "the shop"));
    assert_eq!(event.metadata, Metadata::from([("trace", "00-ab"), ("key", "eu")]));
    assert_eq!(*event.payload.get::<Order>().unwrap(), order(7));
    assert!(event.timestamp.duration_since(jiff::Timestamp::now()).abs().as_secs() < 60);
    assert_eq!(orders.waiting(), 0);
}

pub async fn patterns_match_by_segment(harness: Harness) {
    let bus = harness.bus("one").await;
    let mut all = Vec::new();
    for pattern in ["orders.created", "orders.*", "orders.>", "*.created", "*.*.eu", ">"] {
        all.push((pattern, bus.subscribe(pattern).await.unwrap()));
    }
    for channel in ["orders.created", "orders.created.eu", "payments.created", "orders", "end"] {
        within(bus.publish(channel, channel)).await.unwrap();
    }
    let mut seen: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    // The last of these is the end of everything, so that nothing is still on its way when the others are read.
    let (_, everything) = all.last_mut().unwrap();
    for _ in 0..5 {
        seen.entry(">").or_default().push(next(everything).await.channel.to_string());
    }
    all.pop();
    for (pattern, mut subscription) in all {
        while let Some(event) = subscription.try_recv() {
            seen.entry(pattern).or_default().push(event.channel.to_string());
        }
    }
    let expected: [(&str, &[&str]); 6] = [
        ("*.*.eu", &["orders.created.eu"]),
        ("*.created", &["orders.created", "payments.created"]),
        (">", &["orders.created", "orders.created.eu", "payments.created", "orders", "end"]),
        ("orders.*", &["orders.created"]),
        ("orders.>", &["orders.created", "orders.created.eu"]),
        ("orders.created", &["orders.created"]),
    ];
    let expected: BTreeMap<&str, Vec<String>> = expected
        .into_iter()
        .map(|(pattern, channels)| (pattern, channels.iter().map(ToString::to_string).collect()))
        .collect();
    assert_eq!(seen, expected);
}

pub async fn one_publishers_events_stay_in_order(harness: Harness) {
    let bus = harness.bus("one").await;
    let mut orders = bus.subscribe("numbers").await.unwrap();
    for number in 0..500_u32 {
        within(bus.publish("numbers", number)).await.unwrap();
    }
    assert_eq!(numbers(&mut orders, 500).await, (0..500).collect::<Vec<_>>());
}

pub async fn many_events_published_at_once_stay_in_order(harness: Harness) {
    let bus = harness.bus("one").await;
    let mut all = bus.subscribe("orders.*").await.unwrap();
    let events = (0..500).map(|number: u32| Outgoing::new(format!("orders.{}", number % 3), number));
    within(bus.send_all(events)).await.unwrap();
    assert_eq!(numbers(&mut all, 500).await, (0..500).collect::<Vec<_>>());
    within(bus.send_all([])).await.unwrap();
    let reserved = bus.send_all([Outgoing::new("orders.1", 1), Outgoing::new("dlq.orders", 2)]).await;
    assert!(matches!(reserved, Err(BusError::Reserved(_))));
    assert_eq!(bus.stats().published, 500, "all or none");
}

pub async fn an_unsubscribed_subscriber_gets_no_more_events(harness: Harness) {
    let bus = harness.bus("one").await;
    let mut stays = bus.subscribe("numbers").await.unwrap();
    let mut leaves = bus.subscribe("numbers").await.unwrap();
    within(bus.publish("numbers", 1)).await.unwrap();
    assert_eq!((numbers(&mut stays, 1).await, numbers(&mut leaves, 1).await), (vec![1], vec![1]));
    leaves.unsubscribe();
    within(bus.publish("numbers", 2)).await.unwrap();
    assert_eq!(numbers(&mut stays, 1).await, [2]);
    assert!(within(leaves.recv()).await.is_none());
    assert_eq!(bus.subscriptions().len(), 1);
    drop(stays);
    assert_eq!(bus.stats().subscriptions, 0);
}

pub async fn a_publish_returns_how_many_received_the_event(harness: Harness) {
    let bus = harness.bus("one").await;
    let mut stream = bus.subscribe("numbers").await.unwrap();
    let _works = bus.on("numbers", |_| async { Ok(()) }).await.unwrap();
    let _fails = bus.on("numbers", |_| async { Err(SubscriberError::fatal("no")) }).await.unwrap();
    let confirmation = within(bus.publish_confirmed("numbers", 1)).await.unwrap();
    if harness.features == Features::MEMORY {
        assert_eq!((confirmation.delivered, confirmation.failed), (2, 1));
    } else {
        assert_eq!((confirmation.delivered, confirmation.failed), (1, 0), "one instance, or one log, has it");
    }
    assert_eq!(next(&mut stream).await.id, confirmation.event_id);
    if harness.features.counts_receivers {
        let confirmation = within(bus.publish_confirmed("nobody.listens", 1)).await.unwrap();
        assert_eq!(confirmation.delivered, 0);
    }
}

pub async fn an_unserializable_payload_is_delivered_locally_or_refused(harness: Harness) {
    struct Handle(u8);
    let bus = harness.bus("one").await;
    let mut handles = bus.subscribe("handles").await.unwrap();
    let handle = Arc::new(Handle(9));
    let published = within(bus.publish_shared("handles", Arc::clone(&handle))).await;
    if harness.features.in_process_payloads {
        published.unwrap();
        let received = next(&mut handles).await.payload.downcast::<Handle>().unwrap();
        assert!(Arc::ptr_eq(&received, &handle) && received.0 == 9);
    } else {
        assert!(matches!(published, Err(BusError::Payload(_))), "{published:?}");
    }
}

pub async fn an_event_that_is_too_large_is_refused_and_others_go_on(harness: Harness) {
    let bus = harness.bus("one").await;
    let mut texts = bus.subscribe("texts").await.unwrap();
    let size = harness.features.max_event_bytes.unwrap_or(1_000_000);
    let published = within(bus.publish("texts", "x".repeat(size))).await;
    if let Some(limit) = harness.features.max_event_bytes {
        let Err(BusError::TooLarge { limit: told, .. }) = published else { panic!("{published:?}") };
        assert_eq!(told, limit);
    } else {
        published.unwrap();
        assert_eq!(next(&mut texts).await.payload.get::<String>().unwrap().len(), size);
    }
    within(bus.publish("texts", "small")).await.unwrap();
    assert_eq!(*next(&mut texts).await.payload.get::<String>().unwrap(), "small");
}

pub async fn subscription_modes_decide_which_instances_get_an_event(harness: Harness) {
    let (one, two, other) = (harness.bus("one").await, harness.bus("one").await, harness.bus("other").await);
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let mut guards = Vec::new();
    for (name, bus) in [("one", &one), ("two", &two), ("other", &other)] {
        let sender = sender.clone();
        let handler = move |event: Arc<Event>| {
            let _ = sender.send((name, *event.payload.get::<u32>().unwrap()));
            std::future::ready(Ok(()))
        };
        guards.push(bus.on("numbers", handler).await.unwrap());
    }
    for number in 0..100_u32 {
        within(one.publish("numbers", number)).await.unwrap();
    }
    let copies = if harness.features.shares_work { 2 } else { 3 };
    let mut seen: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for _ in 0..copies * 100 {
        let (name, number) = within(receiver.recv()).await.unwrap();
        seen.entry(name).or_default().push(number);
    }
    assert_eq!(seen["other"], (0..100).collect::<Vec<_>>());
    if harness.features.shares_work {
        let mut both: Vec<u32> = ["one", "two"].iter().filter_map(|name| seen.get(name)).flatten().copied().collect();
        both.sort_unstable();
        assert_eq!(both, (0..100).collect::<Vec<_>>(), "each event once in the group");
    } else {
        assert_eq!((&seen["one"], &seen["two"]), (&seen["other"], &seen["other"]));
    }
}

pub async fn dead_letters_are_kept_listed_and_replayed(harness: Harness) {
    let bus = harness.bus("one").await;
    let mut letters = bus.subscribe("dlq.>").await.unwrap();
    let sick = Arc::new(Mutex::new(true));
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let handler = {
        let sick = Arc::clone(&sick);
        move |event: Arc<Event>| {
            let result =
                if *sick.lock().unwrap() { Err(SubscriberError::fatal("the printer is on fire")) } else { Ok(()) };
            if result.is_ok() {
                let _ = sender.send(event);
            }
            std::future::ready(result)
        }
    };
    let worker = PushWorker::builder("printer").channel("orders.*").start(&bus, handler).await.unwrap();
    let id = within(bus.send(Outgoing::new("orders.created", order(7)).metadata("trace", "ab"))).await.unwrap();
    let told = next(&mut letters).await;
    assert_eq!(&*told.channel, "dlq.orders.created");
    assert_eq!(told.metadata.get(Metadata::ERROR), Some("the printer is on fire"));
    let bystander = if harness.features.keeps_dead_letters { harness.bus("other").await } else { bus.clone() };
    assert!(bystander.dead_letters("payments.>", 10).await.unwrap().is_empty());
    let kept = bystander.dead_letters("orders.*", 10).await.unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!((kept[0].original_channel(), kept[0].error()), ("orders.created", "the printer is on fire"));
    *sick.lock().unwrap() = false;
    assert_eq!(within(bus.replay(kept[0].id())).await.unwrap(), id, "it is the event that it was");
    let again = within(receiver.recv()).await.unwrap();
    assert_eq!((again.id, &*again.channel), (id, "orders.created"));
    assert_eq!(again.metadata, Metadata::from([("trace", "ab")]));
    assert_eq!(*again.payload.get::<Order>().unwrap(), order(7));
    assert!(bus.dead_letters(">", 10).await.unwrap().is_empty());
    assert!(matches!(bus.replay(kept[0].id()).await, Err(BusError::NoDeadLetter(_))));
    assert!(within(worker.stop()).await.left.is_empty());
}

pub async fn a_bus_that_is_stopped_refuses_and_can_be_started_again(harness: Harness) {
    let bus = harness.bus("one").await;
    for round in 0..5_u32 {
        let mut events = bus.subscribe("numbers").await.unwrap();
        within(bus.publish("numbers", round)).await.unwrap();
        assert_eq!(numbers(&mut events, 1).await, [round]);
        within(bus.stop()).await;
        assert!(within(events.recv()).await.is_none(), "streams end");
        assert!(matches!(bus.publish("numbers", 0).await, Err(BusError::NotRunning)));
        within(bus.start()).await.unwrap();
        assert!(bus.health().healthy);
    }
}

pub async fn concurrent_start_and_stop_are_safe(harness: Harness) {
    let bus = harness.bus("one").await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..6_u32 {
        let bus = bus.clone();
        tasks.spawn(async move {
            for round in 0..15_u32 {
                match (task + round) % 3 {
                    0 => drop(bus.stop().await),
                    1 => bus.start().await.unwrap(),
                    _ => match bus.subscribe("numbers").await {
                        Ok(_subscription) => drop(bus.publish("numbers", round).await),
                        Err(error) => assert!(matches!(error, BusError::NotRunning), "{error}"),
                    },
                }
            }
        });
    }
    within(tasks.join_all()).await;
    within(bus.start()).await.unwrap();
    let mut events = bus.subscribe("after").await.unwrap();
    within(bus.publish("after", 1)).await.unwrap();
    assert_eq!(numbers(&mut events, 1).await, [1]);
}

pub async fn a_subscription_before_the_start_misses_no_event(harness: Harness) {
    let (away, home) = (harness.bus("one").await, harness.bus("other").await);
    within(away.stop()).await;
    if harness.features != Features::MEMORY {
        within(home.publish("numbers", 1)).await.unwrap();
    }
    let mut events = away.subscribe("numbers").await.unwrap();
    let mut wild = away.subscribe(">").await.unwrap();
    within(away.start()).await.unwrap();
    within(home.publish("numbers", 2)).await.unwrap();
    let expected = if harness.features.catches_up { vec![1, 2] } else { vec![2] };
    for events in [&mut events, &mut wild] {
        assert_eq!(numbers(events, expected.len()).await, expected);
    }
}

/// One test for each promise, against one transport.
#[macro_export]
macro_rules! conformance {
    ($harness:expr) => {
        $crate::conformance!(@ $harness,
            an_event_arrives_with_all_its_parts,
            patterns_match_by_segment,
            one_publishers_events_stay_in_order,
            many_events_published_at_once_stay_in_order,
            an_unsubscribed_subscriber_gets_no_more_events,
            a_publish_returns_how_many_received_the_event,
            an_unserializable_payload_is_delivered_locally_or_refused,
            an_event_that_is_too_large_is_refused_and_others_go_on,
            subscription_modes_decide_which_instances_get_an_event,
            dead_letters_are_kept_listed_and_replayed,
            a_bus_that_is_stopped_refuses_and_can_be_started_again,
            concurrent_start_and_stop_are_safe,
            a_subscription_before_the_start_misses_no_event,
        );
    };
    (@ $harness:expr, $($case:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $case() {
                suite::$case($harness.await).await;
            }
        )*
    };
}
