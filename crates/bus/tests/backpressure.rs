//! Full queues: what waits, what is lost, and that all of it is counted. On a paused clock.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt};
use relais_bus::{Backpressure, Bus, Event, SubscriberError};
use tokio::{sync::Semaphore, time::Instant};

#[tokio::test(start_paused = true)]
async fn a_full_queue_is_waited_for_then_the_event_is_dropped_and_counted_by_subscription() {
    let bus = Bus::in_memory();
    let mut slow = bus.subscriber("a").capacity(2).name("slow").stream().await.unwrap();
    let mut fast = bus.subscribe("a").await.unwrap();
    let begin = Instant::now();
    for number in 0..3 {
        bus.publish("a", number).await.unwrap();
    }
    assert_eq!(begin.elapsed(), Duration::from_millis(100));
    assert_eq!((slow.waiting(), slow.dropped(), fast.waiting(), fast.dropped()), (2, 1, 3, 0));
    let stats = bus.stats();
    assert_eq!((stats.published, stats.delivered, stats.dropped, stats.queue_size), (3, 5, 1, 5));
    assert_eq!(bus.subscriptions()[0].dropped, 1);
    assert_eq!(bus.channel_stats()[0].dropped, 1);
    assert_eq!(*slow.recv().await.unwrap().payload.get::<i32>().unwrap(), 0);
    assert_eq!(fast.by_ref().take(3).count().await, 3);
    bus.publish("a", 3).await.unwrap();
    assert_eq!(begin.elapsed(), Duration::from_millis(100), "there is room again");
}

#[tokio::test(start_paused = true)]
async fn an_event_is_delivered_if_the_full_queue_gets_room_in_time() {
    let bus = Bus::in_memory();
    let mut slow = bus.subscriber("a").capacity(1).stream().await.unwrap();
    bus.publish("a", 0).await.unwrap();
    let (published, _) = tokio::join!(bus.publish("a", 1), async {
        tokio::time::advance(Duration::from_millis(50)).await;
        slow.recv().await.unwrap()
    });
    published.unwrap();
    assert_eq!((slow.waiting(), slow.dropped()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn many_full_queues_cost_one_wait() {
    let bus = Bus::in_memory();
    let mut all = Vec::new();
    for _ in 0..50 {
        all.push(bus.subscriber("a").capacity(1).stream().await.unwrap());
    }
    bus.publish("a", 0).await.unwrap();
    let begin = Instant::now();
    let confirmation = bus.publish_confirmed("a", 1).await.unwrap();
    assert_eq!(begin.elapsed(), Duration::from_millis(100));
    assert_eq!((confirmation.delivered, confirmation.failed), (0, 50));
    assert!(all.iter().all(|subscription| subscription.dropped() == 1));
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_makes_a_dead_letter_instead_of_a_drop() {
    let bus = Bus::builder().backpressure(Backpressure::DeadLetter).start().await.unwrap();
    let slow = bus.subscriber("a").capacity(1).name("slow").stream().await.unwrap();
    bus.publish("a", 0).await.unwrap();
    bus.publish("a", 1).await.unwrap();
    let letters = bus.dead_letters("a", 10).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].error(), r#"the queue of "slow" was full for 100ms"#);
    assert_eq!((slow.dropped(), slow.stats().dead_lettered), (0, 1), "it is not lost");
}

#[tokio::test(start_paused = true)]
async fn a_blocked_publisher_waits_for_ever_and_loses_nothing() {
    let bus = Bus::in_memory();
    let mut slow = bus.subscriber("a").capacity(1).backpressure(Backpressure::Block).stream().await.unwrap();
    bus.publish("a", 0).await.unwrap();
    let mut blocked = Box::pin(bus.publish("a", 1));
    assert!(tokio::time::timeout(Duration::from_secs(3600), &mut blocked).await.is_err());
    assert_eq!(*slow.recv().await.unwrap().payload.get::<i32>().unwrap(), 0);
    blocked.await.unwrap();
    assert_eq!(*slow.recv().await.unwrap().payload.get::<i32>().unwrap(), 1);
    assert_eq!(slow.dropped(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_event_of_a_cancelled_publish_is_counted_as_lost() {
    let bus = Bus::in_memory();
    let slow = bus.subscriber("a").capacity(1).backpressure(Backpressure::Block).stream().await.unwrap();
    bus.publish("a", 0).await.unwrap();
    assert!(bus.publish("a", 1).now_or_never().is_none());
    assert_eq!((slow.dropped(), bus.stats().dropped), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_unsubscribe_frees_publishers_blocked_by_its_queue() {
    let bus = Bus::in_memory();
    let slow = bus.subscriber("a").capacity(1).backpressure(Backpressure::Block).stream().await.unwrap();
    bus.publish("a", 0).await.unwrap();
    let (published, ()) = tokio::join!(bus.publish("a", 1), async { drop(slow) });
    published.unwrap();
    assert_eq!(bus.stats().dropped, 0);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_fails_that_event_only() {
    let bus = Bus::in_memory();
    let guard = bus
        .on("a", |event: Arc<Event>| async move {
            assert!(*event.payload.get::<i32>()? != 1, "not one");
            Ok(())
        })
        .await
        .unwrap();
    let mut failed = Vec::new();
    for number in 0..3 {
        failed.push(bus.publish_confirmed("a", number).await.unwrap().failed);
    }
    assert_eq!(failed, [0, 1, 0]);
    assert_eq!((guard.stats().failed, bus.channel_stats()[0].failed), (1, 1));
    drop(guard);
    assert_eq!(bus.publish_confirmed("a", 3).await.unwrap().delivered, 0);
}

#[tokio::test(start_paused = true)]
async fn a_bus_that_stops_lets_handlers_finish_within_its_limit() {
    let bus = Bus::builder().stop_timeout(Duration::from_secs(5)).start().await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    let handler = {
        let gate = Arc::clone(&gate);
        move |_| {
            let gate = Arc::clone(&gate);
            async move { gate.acquire().await.map_err(SubscriberError::fatal).map(|permit| permit.forget()) }
        }
    };
    let _guard = bus.on("a", handler).await.unwrap();
    for number in 0..3 {
        bus.publish("a", number).await.unwrap();
    }
    gate.add_permits(1);
    let begin = Instant::now();
    let report = bus.stop().await;
    assert_eq!((report.left, begin.elapsed()), (1, Duration::from_secs(5)), "one done, one cut off, one left");
    assert_eq!(bus.stats().dropped, 1);
}
