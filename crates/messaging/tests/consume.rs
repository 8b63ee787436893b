//! Promises of a consumer: nothing is lost, and it never waits for what can not come.

use std::time::Duration;

use anyhow::Result;
use futures::FutureExt;
use relais_messaging::rabbitmq::{
    Broker, BrokerOptions, ConsumeError, ConsumeOptions, Consumer, Delivery, HeaderValue, Publish,
};
use relais_testkit::{TcpProxy, TestVhost};
use serde_json::json;
use tokio::time::timeout;

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// What queues are made of.
const KINDS: [&str; 2] = ["classic", "quorum"];

fn options() -> BrokerOptions {
    BrokerOptions {
        publish_timeout: SOON,
        patience: SOON,
        first_pause: Duration::from_millis(10),
        longest_pause: Duration::from_millis(50),
        ..BrokerOptions::default()
    }
}

fn prefetch(prefetch: u16) -> ConsumeOptions {
    ConsumeOptions { prefetch, tag: String::new() }
}

async fn vhost_with_queue(kind: &str) -> Result<TestVhost> {
    let vhost = TestVhost::create().await?;
    vhost.declare_queue_with("tasks", json!({"x-queue-type": kind})).await?;
    Ok(vhost)
}

/// Puts numbered messages into the queue.
async fn fill(vhost: &TestVhost, count: usize) -> Result<()> {
    let messages =
        (0..count).map(|number| Publish::new("", "tasks", number.to_string()).message_id(number.to_string()));
    for answer in Broker::new(vhost.url(), options())?.publish_all(messages.collect()).await {
        answer?;
    }
    Ok(())
}

async fn next(consumer: &mut Consumer) -> Result<Delivery> {
    Ok(timeout(SOON, consumer.next()).await??)
}

/// So many, however they come.
async fn take(consumer: &mut Consumer, count: usize) -> Result<Vec<Delivery>> {
    let mut taken = Vec::new();
    while taken.len() < count {
        taken.extend(timeout(SOON, consumer.next_batch(count - taken.len())).await??);
    }
    Ok(taken)
}

fn bodies(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|delivery| String::from_utf8_lossy(&delivery.body).into_owned()).collect()
}

fn numbers(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|number| number.to_string()).collect()
}

async fn end(consumer: &mut Consumer) -> ConsumeError {
    timeout(SOON, consumer.next()).await.expect("it hangs").expect_err("it goes on")
}

#[tokio::test]
async fn a_delivery_has_every_published_property() -> Result<()> {
    let vhost = vhost_with_queue("classic").await?;
    vhost.declare_exchange("events", "fanout").await?;
    vhost.bind("events", "tasks", "").await?;
    let broker = Broker::new(vhost.url(), options())?;
    let message = Publish::new("events", "order.paid", "{}")
        .message_id("order-7")
        .correlation_id("basket-3")
        .content_type("application/json")
        .content_encoding("identity")
        .header("x-one", "1")
        .header("x-two", "zwei");
    broker.publish(message).await?;
    broker.publish(Publish::new("", "tasks", "")).await?;

    let mut consumer =
        broker.consume("tasks", ConsumeOptions { tag: "the worker".to_owned(), ..ConsumeOptions::default() }).await?;
    assert_eq!(consumer.tag(), "the worker");
    let text = |text: &str| Some(text.to_owned());
    let expected = Delivery {
        tag: 1,
        body: b"{}".to_vec(),
        redelivered: false,
        exchange: "events".to_owned(),
        routing_key: "order.paid".to_owned(),
        message_id: text("order-7"),
        correlation_id: text("basket-3"),
        content_type: text("application/json"),
        content_encoding: text("identity"),
        headers: vec![
            ("x-one".to_owned(), HeaderValue::Text("1".to_owned())),
            ("x-two".to_owned(), HeaderValue::Text("zwei".to_owned())),
        ],
    };
    assert_eq!(next(&mut consumer).await?, expected);
    let bare = next(&mut consumer).await?;
    assert_eq!((bare.tag, bare.body.len(), bare.message_id, bare.headers.len()), (2, 0, None, 0));
    Ok(())
}

#[tokio::test]
async fn unacknowledged_messages_are_redelivered_and_acknowledged_ones_are_gone() -> Result<()> {
    for kind in KINDS {
        let vhost = vhost_with_queue(kind).await?;
        fill(&vhost, 10).await?;
        let broker = Broker::new(vhost.url(), options())?;
        let mut consumer = broker.consume("tasks", prefetch(0)).await?;
        let taken = take(&mut consumer, 10).await?;
        assert_eq!(bodies(&taken), numbers(0..10));
        assert!(taken.iter().all(|delivery| !delivery.redelivered && delivery.delivery_count() == 0));
        consumer.ack_through(taken[4].tag)?;
        consumer.ack(taken[6].tag)?;
        drop(consumer);

        let mut consumer = broker.consume("tasks", prefetch(0)).await?;
        let again = take(&mut consumer, 4).await?;
        assert_eq!(bodies(&again), ["5", "7", "8", "9"], "{kind}: in their order");
        assert!(again.iter().all(|delivery| delivery.redelivered && delivery.delivery_count() == 1), "{kind}");
        consumer.ack_through(again[3].tag)?;
        consumer.cancel().await?;
        drop(consumer);
        assert!(vhost.take("tasks", 10).await?.is_empty(), "{kind}");
    }
    Ok(())
}

#[tokio::test]
async fn returned_messages_are_redelivered_and_quorum_queues_count_them() -> Result<()> {
    for kind in KINDS {
        let vhost = vhost_with_queue(kind).await?;
        fill(&vhost, 1).await?;
        let mut consumer = Broker::new(vhost.url(), options())?.consume("tasks", prefetch(1)).await?;
        for round in 0..4 {
            let delivery = next(&mut consumer).await?;
            let counted = if kind == "quorum" { round } else { round.min(1) };
            assert_eq!((delivery.redelivered, delivery.delivery_count()), (round > 0, counted), "{kind}");
            consumer.nack(delivery.tag, true)?;
        }
        let last = next(&mut consumer).await?;
        consumer.nack(last.tag, false)?;
        consumer.cancel().await?;
        assert!(vhost.take("tasks", 10).await?.is_empty(), "{kind}: not given back is gone");
    }
    Ok(())
}

#[tokio::test]
async fn prefetch_limits_unacknowledged_messages() -> Result<()> {
    for kind in KINDS {
        let vhost = vhost_with_queue(kind).await?;
        fill(&vhost, 20).await?;
        let broker = Broker::new(vhost.url(), options())?;
        let mut consumer = broker.consume("tasks", prefetch(5)).await?;
        let taken = take(&mut consumer, 5).await?;
        // The rest is there for somebody else.
        let mut other = broker.consume("tasks", prefetch(0)).await?;
        assert_eq!(bodies(&take(&mut other, 15).await?), numbers(5..20), "{kind}");
        assert!(consumer.next().now_or_never().is_none(), "{kind}");
        drop(other);
        consumer.ack_through(taken[1].tag)?;
        assert_eq!(bodies(&take(&mut consumer, 2).await?), numbers(5..7), "{kind}");
    }
    Ok(())
}

#[tokio::test]
async fn a_batch_takes_what_is_there_and_does_not_wait_for_more() -> Result<()> {
    let vhost = vhost_with_queue("classic").await?;
    let mut consumer = Broker::new(vhost.url(), options())?.consume("tasks", prefetch(0)).await?;
    assert!(consumer.next_batch(10).now_or_never().is_none());
    fill(&vhost, 100).await?;
    let mut taken = Vec::new();
    let mut largest = 0;
    while taken.len() < 100 {
        let batch = timeout(SOON, consumer.next_batch(7)).await??;
        assert!((1..=7).contains(&batch.len()));
        largest = largest.max(batch.len());
        taken.extend(batch);
    }
    assert_eq!(largest, 7, "many at once");
    assert_eq!(bodies(&taken), numbers(0..100));
    Ok(())
}

#[tokio::test]
async fn acknowledging_does_not_wait_for_a_pending_receive() -> Result<()> {
    let vhost = vhost_with_queue("classic").await?;
    fill(&vhost, 2).await?;
    let mut consumer = Broker::new(vhost.url(), options())?.consume("tasks", prefetch(1)).await?;
    let acker = consumer.acker();
    let first = next(&mut consumer).await?;
    // With one at a time, the second comes only if the first is acknowledged meanwhile.
    let (second, ()) = timeout(SOON, async {
        tokio::join!(consumer.next(), async {
            tokio::task::yield_now().await;
            acker.ack(first.tag).unwrap();
        })
    })
    .await?;
    assert_eq!(second?.body, b"1");
    Ok(())
}

#[tokio::test]
async fn a_cancelled_consumer_gets_no_new_message_and_can_acknowledge_old_ones() -> Result<()> {
    for kind in KINDS {
        let vhost = vhost_with_queue(kind).await?;
        fill(&vhost, 5).await?;
        let broker = Broker::new(vhost.url(), options())?;
        let mut consumer = broker.consume("tasks", prefetch(5)).await?;
        let mut taken = take(&mut consumer, 2).await?;
        timeout(SOON, consumer.cancel()).await??;
        fill(&vhost, 1).await?;
        let last = loop {
            match timeout(SOON, consumer.next()).await? {
                Ok(delivery) => taken.push(delivery),
                Err(end) => break end,
            }
        };
        assert_eq!(last, ConsumeError::Cancelled);
        assert_eq!(end(&mut consumer).await, ConsumeError::Cancelled, "and stays so");
        assert!(taken.len() <= 5, "{kind}");
        consumer.ack_through(taken.last().unwrap().tag)?;
        drop(consumer);
        let mut other = broker.consume("tasks", prefetch(0)).await?;
        let rest = take(&mut other, 6 - taken.len()).await?;
        let mut all = bodies(&taken);
        all.extend(bodies(&rest));
        assert_eq!(all, ["0", "1", "2", "3", "4", "0"], "{kind}: nothing is lost, nothing comes twice");
    }
    Ok(())
}

#[tokio::test]
async fn a_queue_that_is_deleted_ends_its_consumer() -> Result<()> {
    for kind in KINDS {
        let vhost = vhost_with_queue(kind).await?;
        let broker = Broker::new(vhost.url(), options())?;
        let mut consumer = broker.consume("tasks", prefetch(0)).await?;
        let (gone, deleted) =
            timeout(SOON, async { tokio::join!(consumer.next(), vhost.delete_queue("tasks")) }).await?;
        deleted?;
        let gone = gone.unwrap_err();
        assert_eq!(gone, ConsumeError::QueueGone { queue: "tasks".to_owned() }, "{kind}");
        assert!(gone.is_missing() && !gone.is_away());
        assert_eq!(end(&mut consumer).await, gone, "and stays so");
        let error = broker.consume("tasks", prefetch(0)).await.err().unwrap();
        assert_eq!(error, ConsumeError::NoQueue { queue: "tasks".to_owned() });
        assert!(broker.state().is_connected());
    }
    Ok(())
}

#[tokio::test]
async fn a_duplicate_acknowledgement_ends_the_channel_with_an_error() -> Result<()> {
    let vhost = vhost_with_queue("classic").await?;
    fill(&vhost, 3).await?;
    let broker = Broker::new(vhost.url(), options())?;
    let mut consumer = broker.consume("tasks", prefetch(2)).await?;
    let first = next(&mut consumer).await?;
    assert!(matches!(consumer.ack_through(0), Err(ConsumeError::Refused { .. })), "0 would be everything");
    consumer.ack(first.tag)?;
    consumer.ack(first.tag)?;
    let closed = loop {
        if let Err(end) = timeout(SOON, consumer.next()).await? {
            break end;
        }
    };
    let ConsumeError::Closed { why } = &closed else { panic!("{closed}") };
    assert!(why.contains("PRECONDITION_FAILED"), "{why}");
    assert!(closed.is_away(), "worth another try");
    assert!(consumer.ack(2).unwrap_err().is_away());
    // Elsewhere: what was on its way in the closed channel may have cost the connection.
    let mut consumer = Broker::new(vhost.url(), options())?.consume("tasks", prefetch(0)).await?;
    assert_eq!(bodies(&take(&mut consumer, 2).await?), ["1", "2"]);
    Ok(())
}

#[tokio::test]
async fn a_cut_connection_ends_the_consumer_and_its_messages_are_redelivered() -> Result<()> {
    for kind in KINDS {
        let vhost = vhost_with_queue(kind).await?;
        fill(&vhost, 6).await?;
        let proxy = TcpProxy::start(vhost.server_addr()?).await?;
        let broker = Broker::new(&vhost.url_via(proxy.addr())?, options())?;
        let mut consumer = broker.consume("tasks", prefetch(4)).await?;
        let acker = consumer.acker();
        let taken = take(&mut consumer, 2).await?;
        consumer.ack(taken[0].tag)?;
        let mut waiting = broker.consume("tasks", prefetch(10)).await?;
        take(&mut waiting, 1).await?;

        proxy.cut().await?;
        // Whether it waits or has something left that can not be acknowledged any more.
        for consumer in [&mut consumer, &mut waiting] {
            let lost = loop {
                if let Err(end) = timeout(SOON, consumer.next()).await? {
                    break end;
                }
            };
            assert!(matches!(lost, ConsumeError::Away { .. }), "{kind}: {lost}");
            assert_eq!(end(consumer).await, lost);
        }
        let error = acker.ack(taken[1].tag).unwrap_err();
        assert!(matches!(error, ConsumeError::Away { .. }), "{error}");
        assert!(matches!(timeout(SOON, consumer.cancel()).await?, Err(ConsumeError::Away { .. })));

        proxy.restore().await?;
        let mut consumer = timeout(SOON, async {
            loop {
                match broker.consume("tasks", prefetch(0)).await {
                    Err(error) => assert!(error.is_away(), "{error}"),
                    consumer => return consumer,
                }
            }
        })
        .await??;
        // The acknowledgement of the first may or may not have arrived.
        let mut found = bodies(&take(&mut consumer, 5).await?);
        found.sort();
        assert!(found == numbers(1..6) || found == numbers(0..5) || found[0] == "0", "{kind}: {found:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_silent_connection_ends_the_consumer_by_missing_heartbeats() -> Result<()> {
    let vhost = vhost_with_queue("classic").await?;
    let proxy = TcpProxy::start(vhost.server_addr()?).await?;
    let quick = BrokerOptions { heartbeat: Duration::from_secs(1), ..options() };
    let broker = Broker::new(&vhost.url_via(proxy.addr())?, quick)?;
    let mut consumer = broker.consume("tasks", prefetch(0)).await?;
    proxy.abandon().await?;
    let lost = end(&mut consumer).await;
    assert!(matches!(lost, ConsumeError::Away { .. }), "{lost}");
    fill(&vhost, 1).await?;
    let mut consumer = broker.consume("tasks", prefetch(0)).await?;
    assert_eq!(next(&mut consumer).await?.body, b"0");
    Ok(())
}

#[tokio::test]
async fn a_dropped_consumer_returns_its_messages() -> Result<()> {
    let vhost = vhost_with_queue("classic").await?;
    let broker = Broker::new(vhost.url(), options())?;
    let mut consumer = broker.consume("tasks", prefetch(0)).await?;
    drop(broker);
    fill(&vhost, 3).await?;
    assert_eq!(next(&mut consumer).await?.body, b"0");
    drop(consumer);
    let mut consumer = Broker::new(vhost.url(), options())?.consume("tasks", prefetch(0)).await?;
    assert_eq!(bodies(&take(&mut consumer, 3).await?), numbers(0..3));
    Ok(())
}

#[tokio::test]
async fn many_messages_from_many_channels_are_consumed_once_each() -> Result<()> {
    let vhost = vhost_with_queue("classic").await?;
    let broker = Broker::new(vhost.url(), options())?;
    let publishing = tokio::spawn({
        let vhost_url = vhost.url().to_owned();
        async move {
            let broker = Broker::new(&vhost_url, options())?;
            for batch in 0..10 {
                let messages = (0..500).map(|number| {
                    let id = (batch * 500 + number).to_string();
                    Publish::new("", "tasks", id.clone()).message_id(id)
                });
                for answer in broker.publish_all(messages.collect()).await {
                    answer?;
                }
            }
            anyhow::Ok(())
        }
    });
    let mut consumer = broker.consume("tasks", prefetch(300)).await?;
    let mut taken = Vec::new();
    while taken.len() < 5000 {
        let batch = timeout(SOON, consumer.next_batch(100)).await??;
        consumer.ack_through(batch.last().unwrap().tag)?;
        taken.extend(bodies(&batch));
    }
    publishing.await??;
    assert_eq!(taken, numbers(0..5000));
    consumer.cancel().await?;
    drop(consumer);
    assert!(vhost.take("tasks", 1).await?.is_empty());
    Ok(())
}
