//! Promises of a publish, with a real node and a network that fails.

#![expect(clippy::unwrap_used, reason = "tests say what they expect")]

use std::{collections::HashSet, time::Duration};

use anyhow::Result;
use futures::{FutureExt, StreamExt, future::join_all, stream::FuturesUnordered};
use relais_messaging::rabbitmq::{Broker, BrokerOptions, BrokerState, Publish, PublishError};
use relais_testkit::{TcpProxy, TestVhost};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    time::timeout,
};

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// Quick to try again, and as patient as a busy machine may need: the first connection is waited for as long as any
/// other.
fn options() -> BrokerOptions {
    BrokerOptions {
        publish_timeout: SOON,
        patience: SOON,
        first_pause: Duration::from_millis(10),
        longest_pause: Duration::from_millis(50),
        ..BrokerOptions::default()
    }
}

/// Quick to give up too, so that failures take no time. What is to succeed is published when the connection is there.
fn impatient() -> BrokerOptions {
    BrokerOptions { patience: Duration::from_millis(500), ..options() }
}

/// Whether the broker is away, and says so.
fn is_away_because_of(word: &str) -> impl Fn(&BrokerState) -> bool {
    move |state| matches!(state, BrokerState::Away { why, .. } if why.contains(word))
}

async fn vhost_with_queue() -> Result<TestVhost> {
    let vhost = TestVhost::create().await?;
    vhost.declare_queue("tasks").await?;
    Ok(vhost)
}

fn numbered(number: usize) -> Publish {
    Publish::new("", "tasks", format!("message {number}")).message_id(number.to_string())
}

/// Waits until the broker is as wanted, but not for ever.
async fn until(broker: &Broker, wanted: impl FnMut(&BrokerState) -> bool) {
    timeout(SOON, broker.until(wanted)).await.unwrap_or_else(|_| panic!("still {:?}", broker.state()));
}

/// The ids of all messages in the queue.
async fn ids(vhost: &TestVhost) -> Result<Vec<String>> {
    let taken = vhost.take("tasks", 10_000).await?;
    Ok(taken.iter().map(|message| message.properties["message_id"].as_str().unwrap().to_owned()).collect())
}

#[tokio::test]
async fn a_confirmed_message_is_in_the_queue_and_persistent() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    vhost.declare_exchange("events", "topic").await?;
    vhost.bind("events", "tasks", "order.*").await?;
    let broker = Broker::new(vhost.url(), options())?;
    assert_eq!(broker.state(), BrokerState::Idle, "nothing is opened before it is needed");

    let message = Publish::new("events", "order.paid", "{}")
        .message_id("order-7")
        .correlation_id("basket-3")
        .content_type("application/json")
        .content_encoding("identity")
        .header("x-one", "1")
        .header("x-two", "zwei");
    broker.publish(message).await?;

    assert!(broker.state().is_connected());
    let taken = vhost.take("tasks", 10).await?;
    assert_eq!(taken.len(), 1);
    assert_eq!((taken[0].exchange.as_str(), taken[0].routing_key.as_str()), ("events", "order.paid"));
    assert_eq!(taken[0].body, b"{}");
    let expected = json!({
        "delivery_mode": 2,
        "message_id": "order-7",
        "correlation_id": "basket-3",
        "content_type": "application/json",
        "content_encoding": "identity",
        "headers": {"x-one": "1", "x-two": "zwei"},
    });
    assert_eq!(taken[0].properties, expected);
    Ok(())
}

#[tokio::test]
async fn a_message_of_any_size_is_published() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    let broker = Broker::new(vhost.url(), options())?;
    for size in [0, 1, 131_064, 131_065, 3_000_000] {
        broker.publish(Publish::new("", "tasks", vec![b'x'; size])).await?;
        let taken = vhost.take("tasks", 10).await?;
        assert_eq!(taken.iter().map(|message| message.body.len()).collect::<Vec<_>>(), [size]);
    }
    Ok(())
}

#[tokio::test]
async fn an_unroutable_message_is_an_error_unless_allowed() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    let broker = Broker::new(vhost.url(), options())?;
    let lost = Publish::new("", "nobody", "x");
    let error = broker.publish(lost.clone()).await.unwrap_err();
    assert_eq!(error, PublishError::Unroutable { exchange: String::new(), routing_key: "nobody".to_owned() });
    assert!(error.is_unroutable() && !error.is_away());
    broker.publish(lost.mandatory(false)).await?;
    broker.publish(numbered(1)).await?;
    Ok(())
}

#[tokio::test]
async fn concurrent_messages_get_their_own_confirmations() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    let broker = Broker::new(vhost.url(), options())?;
    let results = join_all((0..600).map(|number| {
        let broker = &broker;
        let message = match number % 3 {
            0 => Publish { routing_key: "nobody".to_owned(), ..numbered(number) },
            1 => Publish { exchange: "no-such-exchange".to_owned(), ..numbered(number) },
            _ => numbered(number),
        };
        async move { (number, broker.publish(message).await) }
    }))
    .await;
    let mut sent = HashSet::new();
    for (number, result) in results {
        match number % 3 {
            0 => assert!(matches!(result, Err(PublishError::Unroutable { .. })), "{number}: {result:?}"),
            1 => {
                let error = result.unwrap_err();
                assert_eq!(error, PublishError::NoExchange { exchange: "no-such-exchange".to_owned() });
                assert!(error.is_unroutable() && !error.is_away());
            }
            _ => {
                assert_eq!(result, Ok(()), "{number}");
                sent.insert(number.to_string());
            }
        }
    }
    let found = ids(&vhost).await?;
    assert_eq!(found.len(), sent.len(), "none twice");
    assert_eq!(found.into_iter().collect::<HashSet<_>>(), sent);
    assert!(broker.state().is_connected(), "a closed channel is not a closed connection");
    Ok(())
}

#[tokio::test]
async fn a_full_queue_refuses() -> Result<()> {
    let vhost = TestVhost::create().await?;
    vhost.declare_queue_with("tasks", json!({"x-max-length": 1, "x-overflow": "reject-publish"})).await?;
    let broker = Broker::new(vhost.url(), options())?;
    broker.publish(numbered(1)).await?;
    let error = broker.publish(numbered(2)).await.unwrap_err();
    assert!(matches!(error, PublishError::Refused { .. }), "{error}");
    assert!(!error.is_unroutable() && !error.is_away());
    assert_eq!(ids(&vhost).await?, ["1"]);
    broker.publish(numbered(3)).await?;
    Ok(())
}

#[tokio::test]
async fn virtual_hosts_are_apart() -> Result<()> {
    let (one, two) = tokio::try_join!(vhost_with_queue(), vhost_with_queue())?;
    Broker::new(one.url(), options())?.publish(numbered(1)).await?;
    Broker::new(two.url(), options())?.publish(numbered(2)).await?;
    assert_eq!(ids(&one).await?, ["1"]);
    assert_eq!(ids(&two).await?, ["2"]);
    Ok(())
}

#[tokio::test]
async fn a_refused_login_is_reported_with_the_reason() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    let elsewhere = vhost.url().replace(vhost.name(), "no-such-host");
    for (url, word) in [(vhost.url_with_password("wrong")?, "ACCESS_REFUSED"), (elsewhere, "no-such-host")] {
        let broker = Broker::new(&url, impatient())?;
        until(&broker, is_away_because_of(word)).await;
        let error = broker.publish(numbered(1)).await.unwrap_err();
        assert!(error.is_away() && error.to_string().contains(word), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn a_cut_connection_reconnects_by_itself() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    let proxy = TcpProxy::start(vhost.server_addr()?).await?;
    let broker = Broker::new(&vhost.url_via(proxy.addr())?, impatient())?;
    until(&broker, BrokerState::is_connected).await;
    broker.publish(numbered(1)).await?;

    proxy.cut().await?;
    until(&broker, BrokerState::is_away).await;
    assert!(broker.publish(numbered(2)).await.unwrap_err().is_away());
    // A long absence is answered at once: it is as long as one waits, and nothing is left to wait for.
    assert!(broker.publish(numbered(3)).now_or_never().unwrap().unwrap_err().is_away());

    proxy.restore().await?;
    until(&broker, BrokerState::is_connected).await;
    broker.publish(numbered(4)).await?;
    assert_eq!(ids(&vhost).await?, ["1", "4"]);
    Ok(())
}

#[tokio::test]
async fn a_publish_waits_through_a_short_outage() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    let proxy = TcpProxy::start(vhost.server_addr()?).await?;
    let broker = Broker::new(&vhost.url_via(proxy.addr())?, options())?;
    broker.publish(numbered(1)).await?;
    proxy.cut().await?;
    until(&broker, BrokerState::is_away).await;
    let (published, restored) = tokio::join!(broker.publish(numbered(2)), proxy.restore());
    restored?;
    published?;
    assert_eq!(ids(&vhost).await?, ["1", "2"]);
    Ok(())
}

#[tokio::test]
async fn messages_confirmed_before_or_after_a_cut_are_in_the_queue() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    let proxy = TcpProxy::start(vhost.server_addr()?).await?;
    let few = BrokerOptions { channels: 20, ..options() };
    let broker = Broker::new(&vhost.url_via(proxy.addr())?, few)?;
    broker.publish(numbered(1000)).await?;

    let mut publishes: FuturesUnordered<_> = (0..100)
        .map(|number| {
            let broker = &broker;
            async move { (number, broker.publish(numbered(number)).await) }
        })
        .collect();
    let (mut confirmed, mut failed) = (HashSet::from(["1000".to_owned()]), 0);
    while let Some((number, result)) = timeout(SOON, publishes.next()).await? {
        match result {
            Ok(()) => assert!(confirmed.insert(number.to_string())),
            Err(error) => {
                assert!(matches!(error, PublishError::Away { .. }), "told, not left waiting: {error}");
                failed += 1;
            }
        }
        if confirmed.len() == 30 && failed == 0 {
            proxy.cut().await?;
            proxy.restore().await?;
        }
    }
    assert_eq!(confirmed.len() + failed, 101);
    let found: HashSet<String> = ids(&vhost).await?.into_iter().collect();
    let missing: Vec<_> = confirmed.difference(&found).collect();
    assert!(missing.is_empty(), "confirmed and lost: {missing:?}");
    broker.publish(numbered(2000)).await?;
    Ok(())
}

#[tokio::test]
async fn a_silent_connection_is_closed_by_missing_heartbeats() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    let proxy = TcpProxy::start(vhost.server_addr()?).await?;
    let quick = BrokerOptions { heartbeat: Duration::from_secs(1), ..options() };
    let broker = Broker::new(&vhost.url_via(proxy.addr())?, quick)?;
    broker.publish(numbered(1)).await?;
    proxy.abandon().await?;
    let error = broker.publish(numbered(2)).await.unwrap_err();
    assert!(error.is_away(), "{error}");
    until(&broker, BrokerState::is_connected).await;
    broker.publish(numbered(3)).await?;
    Ok(())
}

#[tokio::test]
async fn a_missing_confirmation_times_out() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    let proxy = TcpProxy::start(vhost.server_addr()?).await?;
    let limit = Duration::from_millis(200);
    let broker = Broker::new(&vhost.url_via(proxy.addr())?, options())?;
    broker.publish(numbered(1)).await?;
    let hasty = Broker::new(&vhost.url_via(proxy.addr())?, BrokerOptions { publish_timeout: limit, ..options() })?;
    until(&hasty, BrokerState::is_connected).await;
    proxy.stall().await?;
    assert_eq!(hasty.publish(numbered(2)).await, Err(PublishError::Late(limit)));
    // Late, not lost: and the next message has a channel of its own.
    proxy.restore().await?;
    broker.publish(numbered(3)).await?;
    Ok(())
}

#[tokio::test]
async fn a_silent_peer_times_out_and_its_socket_is_closed() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("amqp://{}", listener.local_addr()?);
    let quick = BrokerOptions { connect_timeout: Duration::from_millis(100), ..impatient() };
    let broker = Broker::new(&url, quick)?;
    let connecting = tokio::spawn({
        let broker = broker.clone();
        async move { until(&broker, is_away_because_of("100ms")).await }
    });
    // All that a client says first, or as much of it as it had the time for; then it closes, and tries again.
    for _ in 0..2 {
        let (mut stream, _) = timeout(SOON, listener.accept()).await??;
        let mut heard = Vec::new();
        timeout(SOON, stream.read_to_end(&mut heard)).await??;
        assert!(b"AMQP\x00\x00\x09\x01".starts_with(&heard), "{heard:?}");
    }
    timeout(SOON, connecting).await??;
    let error = timeout(SOON, broker.publish(numbered(1))).await?.unwrap_err();
    assert!(error.is_away() && error.to_string().contains("100ms"), "{error}");
    Ok(())
}

#[tokio::test]
async fn an_abandoned_connection_attempt_is_cancelled() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("amqp://{}", listener.local_addr()?);
    let broker = Broker::new(&url, BrokerOptions { connect_timeout: SOON * 10, ..options() })?;
    let publishing = tokio::spawn(async move { broker.publish(numbered(1)).await });
    let (mut stream, _) = timeout(SOON, listener.accept()).await??;
    stream.read_exact(&mut [0; 8]).await?;
    publishing.abort();
    assert_eq!(timeout(SOON, stream.read(&mut [0; 1])).await??, 0, "closed");
    Ok(())
}

#[tokio::test]
async fn the_connection_is_closed_with_the_last_handle() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (here, node) = (listener.local_addr()?, vhost.server_addr()?);
    let connection = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await?;
        let mut server = TcpStream::connect(node).await?;
        copy_bidirectional(&mut client, &mut server).await
    });
    let broker = Broker::new(&vhost.url_via(here)?, options())?;
    let clone = broker.clone();
    broker.publish(numbered(1)).await?;
    drop(broker);
    clone.publish(numbered(2)).await?;
    drop(clone);
    // Closed politely or not, it is closed.
    let _ = timeout(SOON, connection).await??;
    Ok(())
}
