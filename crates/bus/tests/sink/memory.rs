//! In memory: nothing can be cut, but a subscriber can make publishers wait.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use async_trait::async_trait;
use relais_bus::{Backpressure, Bus, BusSink, BusSinkOptions, Event, Order, PushWorker, Subscription};
use relais_message::{Durability, Message, PublishOutcome, RoutedMessage, Sink};
use tokio::sync::{Mutex, mpsc};

use crate::{Backend, CHANNEL, OnBus};

struct Memory {
    bus: Bus,
    events: Mutex<Subscription>,
    /// Does not read, and makes publishers wait.
    slow: Mutex<Option<Subscription>>,
}

async fn harness() -> Result<OnBus<Memory>> {
    let bus = Bus::in_memory();
    let events = Mutex::new(bus.subscriber(CHANNEL).capacity(10_000).stream().await?);
    let options = BusSinkOptions { timeout: Duration::from_secs(2), durability: Durability::Disk };
    let sink = Arc::new(BusSink::new(bus.clone(), options));
    Ok(OnBus { sink, backend: Memory { bus, events, slow: Mutex::default() } })
}

#[async_trait(?Send)]
impl Backend for Memory {
    async fn events(&self) -> Result<Vec<Event>> {
        let mut events = self.events.lock().await;
        let mut received = Vec::new();
        while events.waiting() > 0 {
            received.extend(events.recv().await.map(|event| Event::clone(&event)));
        }
        Ok(received)
    }

    async fn cut(&self) -> Result<()> {
        Ok(())
    }

    async fn stall(&self) -> Result<()> {
        let slow = self.bus.subscriber(CHANNEL).capacity(1).backpressure(Backpressure::Block).stream().await?;
        self.bus.publish(CHANNEL, "full").await?;
        *self.slow.lock().await = Some(slow);
        Ok(())
    }

    async fn restore(&self) -> Result<()> {
        *self.slow.lock().await = None;
        Ok(())
    }

    async fn crash(&self) -> Result<bool> {
        anyhow::bail!("a bus in memory promises nothing, whatever its options say")
    }
}

relais_testkit::sink_suite!(harness);

fn outgoing(message: Message) -> RoutedMessage {
    RoutedMessage { destination: CHANNEL.to_owned(), routing_key: String::new(), message }
}

fn sink(bus: &Bus) -> BusSink {
    BusSink::new(bus.clone(), BusSinkOptions::default())
}

#[tokio::test]
async fn a_message_is_an_event_with_metadata() {
    let bus = Bus::in_memory();
    let mut events = bus.subscribe(CHANNEL).await.unwrap();
    let message = Message::new("m-1", "order.placed", r#"{"big":12345678901234567890123}"#)
        .with_key("o-7")
        .with_time("2026-01-31T08:30:00.125Z".parse().unwrap())
        .with_header("traceparent", "00-ab")
        .with_header("retry_count", "99")
        .with_header("key", "another");
    let tombstone = Message { payload: None, ..Message::new("m-2", "order.gone", "") };
    let outcomes = sink(&bus).publish(vec![outgoing(message), outgoing(tombstone)]).await;
    assert!(outcomes.iter().all(PublishOutcome::is_confirmed), "{outcomes:?}");
    let event = events.recv().await.unwrap();
    assert_eq!(event.payload.as_json().unwrap().get(), r#"{"big":12345678901234567890123}"#);
    let metadata: Vec<_> = event.metadata.iter().collect();
    let expected = [
        ("event-type", "order.placed"),
        ("id", "m-1"),
        ("key", "o-7"),
        ("time", "2026-01-31T08:30:00.125Z"),
        ("traceparent", "00-ab"),
    ];
    assert_eq!(metadata, expected);
    let tombstone = events.recv().await.unwrap();
    assert_eq!((tombstone.payload.as_json().unwrap().get(), tombstone.metadata.get("key")), ("null", None));
}

#[tokio::test]
async fn a_worker_keeps_the_order_of_the_messages_keys() {
    let bus = Bus::in_memory();
    let (done, mut order) = mpsc::unbounded_channel();
    let worker = PushWorker::builder("invoices").channel(CHANNEL).concurrency(8).order(Order::Key);
    let worker = worker.start(&bus, move |event| {
        let done = done.clone();
        async move {
            done.send(event.metadata.get("id").unwrap_or_default().to_owned())?;
            Ok(())
        }
    });
    let worker = worker.await.unwrap();
    let batch = (0..50).map(|n| outgoing(Message::new(n.to_string(), "t", "{}").with_key("o-7"))).collect();
    assert!(sink(&bus).publish(batch).await.iter().all(PublishOutcome::is_confirmed));
    worker.stop().await;
    for n in 0..50 {
        assert_eq!(order.recv().await, Some(n.to_string()));
    }
}

#[tokio::test]
async fn what_is_not_json_is_refused_and_says_why() {
    let outcomes = sink(&Bus::in_memory()).publish(vec![outgoing(Message::new("m", "t", vec![0, 255]))]).await;
    assert!(matches!(&outcomes[..], [PublishOutcome::Refused(why)] if why.contains("not JSON")), "{outcomes:?}");
}

#[tokio::test]
async fn a_bus_that_does_not_run_is_away() {
    let bus = Bus::builder().build();
    let outcomes = sink(&bus).publish(vec![outgoing(Message::new("m", "t", "{}"))]).await;
    assert!(matches!(&outcomes[..], [PublishOutcome::Unknown(_)]), "no message's fault: {outcomes:?}");
    bus.start().await.unwrap();
    assert!(sink(&bus).publish(vec![outgoing(Message::new("m", "t", "{}"))]).await[0].is_confirmed());
}
