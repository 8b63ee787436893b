//! What the bus costs and what it counts: shared payloads, quiet subscribers, bounded memory of channels, metrics.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use relais_bus::{Bus, PushWorker, SubscriberError};
use serde::{Serialize, Serializer};

/// Fails the test when somebody serialises it, and counts how many there are.
struct Precious(Arc<AtomicUsize>);

impl Serialize for Precious {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("nobody asked for JSON")
    }
}

impl Drop for Precious {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_payload_is_shared_by_all_and_copied_for_none() {
    let bus = Bus::in_memory();
    let mut all = Vec::new();
    for number in 0..100 {
        all.push(bus.subscribe(if number % 2 == 0 { "a.b" } else { "a.*" }).await.unwrap());
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    bus.publish("a.b", Precious(Arc::clone(&dropped))).await.unwrap();
    let mut received = Vec::new();
    for subscription in &mut all {
        received.push(subscription.recv().await.unwrap().payload.downcast::<Precious>().unwrap());
    }
    assert!(received.iter().all(|value| Arc::ptr_eq(value, &received[0])));
    drop(received);
    assert_eq!(dropped.load(Ordering::Relaxed), 1, "and it is gone when the last has let go of it");
}

#[derive(Default)]
struct CountingWaker(AtomicUsize);

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_subscriber_is_not_woken_without_an_event() {
    let bus = Bus::in_memory();
    let mut subscription = bus.subscribe("a").await.unwrap();
    let counter = Arc::new(CountingWaker::default());
    let waker = Waker::from(Arc::clone(&counter));
    let mut waiting = pin!(subscription.recv());
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    bus.publish("b", 1).await.unwrap();
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert_eq!(counter.0.load(Ordering::Relaxed), 0, "an hour, and an event for others");
    for number in 0..3 {
        bus.publish("a", number).await.unwrap();
    }
    assert_eq!(counter.0.load(Ordering::Relaxed), 1, "once for all of them");
    assert!(matches!(waiting.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(Some(_))));
}

#[tokio::test]
async fn the_channel_cache_is_bounded() {
    let bus = Bus::builder().max_channels(10).start().await.unwrap();
    let mut all = bus.subscribe("orders.*").await.unwrap();
    for number in 0..1000 {
        bus.publish(&format!("orders.{number}"), number).await.unwrap();
    }
    assert_eq!((bus.channel_stats().len(), bus.stats().published, all.waiting()), (10, 1000, 1000));
    assert_eq!(&*all.recv().await.unwrap().channel, "orders.0");
}

#[test]
fn every_metric_has_its_name_its_labels_and_the_prefix() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let bus = Bus::builder().metrics_prefix("relais_").start().await.unwrap();
            let _full = bus.subscriber("a").capacity(1).stream().await.unwrap();
            let worker = PushWorker::builder("w")
                .channel("a")
                .start(&bus, |event| async move {
                    if *event.payload.get::<u32>()? == 1 { Err(SubscriberError::fatal("no")) } else { Ok(()) }
                })
                .await
                .unwrap();
            for number in 0..2_u32 {
                bus.publish("a", number).await.unwrap();
            }
            worker.stop().await;
        });
    });
    let seen: BTreeMap<String, DebugValue> = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .map(|(key, _, _, value)| {
            let labels: Vec<_> = key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            (format!("{}{{{}}}", key.key().name(), labels.join(",")), value)
        })
        .collect();
    let count = |name: &str| match seen.get(name) {
        Some(DebugValue::Counter(count)) => *count,
        other => panic!("{name}: {other:?} in {:?}", seen.keys()),
    };
    assert_eq!(count("relais_eventbus_published_total{channel=a}"), 2);
    assert_eq!(count("relais_eventbus_delivered_total{channel=a}"), 3);
    assert_eq!(count("relais_eventbus_dropped_total{channel=a}"), 1);
    assert_eq!(count("relais_eventbus_failed_total{channel=a}"), 1);
    assert_eq!(count("relais_eventbus_published_total{channel=dlq.a}"), 1);
    assert_eq!(count("relais_push_worker_processed_total{worker=w}"), 1);
    assert_eq!(count("relais_push_worker_errors_total{worker=w}"), 1);
    let gauge = |name: &str| match seen.get(name) {
        Some(DebugValue::Gauge(value)) => value.0,
        other => panic!("{name}: {other:?} in {:?}", seen.keys()),
    };
    // The stream ended with the runtime; what is asked is that nothing is left behind.
    assert_eq!(gauge("relais_eventbus_subscriptions_active{}"), 0.0);
    assert_eq!(gauge("relais_eventbus_queue_capacity{}"), 0.0);
    assert_eq!(gauge("relais_eventbus_queue_size{}"), 0.0);
    assert_eq!(gauge("relais_push_worker_queue_size{worker=w}"), 0.0);
    assert!(
        matches!(seen["relais_push_worker_duration_seconds{worker=w}"], DebugValue::Histogram(ref all) if all.len() == 2)
    );
}
