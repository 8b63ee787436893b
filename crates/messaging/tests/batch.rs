//! Promises of a batch: each message gets its own answer, and they stay in order.

#![expect(clippy::unwrap_used, reason = "tests say what they expect")]

use std::{collections::HashSet, time::Duration};

use anyhow::Result;
use futures::future::join_all;
use relais_messaging::rabbitmq::{Broker, BrokerOptions, BrokerState, ConsumeOptions, Publish, PublishError};
use relais_testkit::{TcpProxy, TestVhost};
use serde_json::json;
use tokio::time::timeout;

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(60);

fn options() -> BrokerOptions {
    BrokerOptions {
        publish_timeout: SOON,
        patience: SOON,
        first_pause: Duration::from_millis(10),
        longest_pause: Duration::from_millis(50),
        ..BrokerOptions::default()
    }
}

async fn vhost_with_queue() -> Result<TestVhost> {
    let vhost = TestVhost::create().await?;
    vhost.declare_queue("tasks").await?;
    Ok(vhost)
}

fn to(queue: &str, id: impl ToString) -> Publish {
    Publish::new("", queue, "x").message_id(id.to_string())
}

/// The ids of all messages in the queue, in their order.
async fn ids(vhost: &TestVhost) -> Result<Vec<String>> {
    let taken = vhost.take("tasks", 100_000).await?;
    Ok(taken.iter().map(|message| message.properties["message_id"].as_str().unwrap().to_owned()).collect())
}

fn unroutable(queue: &str) -> Result<(), PublishError> {
    Err(PublishError::Unroutable { exchange: String::new(), routing_key: queue.to_owned() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_batches_get_the_confirmations_of_their_own_messages() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    let broker = Broker::new(vhost.url(), options())?;
    // Patterns that do not repeat with the broker's own rhythm of confirming.
    let lost = |batch: usize, number: usize| (number * 7 + batch * 3 + number / 11) % [7, 2, 3, 5][batch] == 1;
    let batches = (0..4).map(|batch| {
        let queue = |number| if lost(batch, number) { "nobody" } else { "tasks" };
        let messages = (0..1000).map(|number| to(queue(number), format!("{batch}-{number}"))).collect();
        broker.publish_all(messages)
    });
    let mut expected = Vec::new();
    for (batch, answers) in timeout(SOON, join_all(batches)).await?.into_iter().enumerate() {
        assert_eq!(answers.len(), 1000);
        for (number, answer) in answers.into_iter().enumerate() {
            if lost(batch, number) {
                assert_eq!(answer, unroutable("nobody"), "batch {batch}, message {number}");
            } else {
                assert_eq!(answer, Ok(()), "batch {batch}, message {number}");
                expected.push(format!("{batch}-{number}"));
            }
        }
    }
    let found = ids(&vhost).await?;
    assert_eq!(found.len(), expected.len(), "all, and none twice");
    for batch in 0..4 {
        let of_batch = |ids: &[String]| -> Vec<String> {
            ids.iter().filter(|id| id.starts_with(&format!("{batch}-"))).cloned().collect()
        };
        assert_eq!(of_batch(&found), of_batch(&expected), "in the order in which they were sent");
    }
    Ok(())
}

#[tokio::test]
async fn one_channel_carries_one_batch_after_the_other() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    let broker = Broker::new(vhost.url(), BrokerOptions { channels: 1, ..options() })?;
    let batches = (0..20).map(|batch| {
        let messages = (0..50).map(|number| to(["tasks", "nobody"][number % 2], format!("{batch}-{number}")));
        broker.publish_all(messages.collect())
    });
    for answers in timeout(SOON, join_all(batches)).await? {
        for (number, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer, if number % 2 == 0 { Ok(()) } else { unroutable("nobody") });
        }
    }
    assert_eq!(ids(&vhost).await?.len(), 500);
    assert!(broker.publish_all(Vec::new()).await.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_message_with_a_duplicate_id_in_a_batch_is_refused_alone() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    let broker = Broker::new(vhost.url(), options())?;
    let nameless = Publish::new("", "tasks", "x");
    let answers =
        broker.publish_all(vec![to("tasks", 1), nameless, to("nobody", 2), to("tasks", 1), to("tasks", 3)]).await;
    assert_eq!(answers[0], Ok(()));
    assert!(matches!(&answers[1], Err(PublishError::Refused { why }) if why.contains("message id")), "{answers:?}");
    assert_eq!(answers[2], unroutable("nobody"));
    assert!(matches!(&answers[3], Err(PublishError::Refused { .. })), "{answers:?}");
    assert_eq!(answers[4], Ok(()));
    assert_eq!(ids(&vhost).await?, ["1", "3"]);
    Ok(())
}

#[tokio::test]
async fn a_message_that_amqp_can_not_encode_fails_alone() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    let broker = Broker::new(vhost.url(), options())?;
    let long = to(&"q".repeat(256), 2);
    let answers = broker.publish_all(vec![to("tasks", 1), long, to("tasks", 3)]).await;
    assert_eq!((&answers[0], &answers[2]), (&Ok(()), &Ok(())));
    assert!(matches!(&answers[1], Err(PublishError::Refused { .. })), "{answers:?}");
    assert_eq!(ids(&vhost).await?, ["1", "3"]);
    Ok(())
}

#[tokio::test]
async fn a_message_to_a_missing_exchange_fails_alone() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    vhost.declare_exchange("events", "fanout").await?;
    vhost.bind("events", "tasks", "").await?;
    let broker = Broker::new(vhost.url(), options())?;
    let through = |number: usize| {
        let exchange = ["", "events", "no-such-exchange"][number % 3];
        Publish { exchange: exchange.to_owned(), ..to("tasks", number) }
    };
    for round in 0..2 {
        let answers = broker.publish_all((0..300).map(|number| through(1000 * round + number)).collect()).await;
        for (number, answer) in answers.into_iter().enumerate() {
            let expected = match (1000 * round + number) % 3 {
                2 => Err(PublishError::NoExchange { exchange: "no-such-exchange".to_owned() }),
                _ => Ok(()),
            };
            assert_eq!(answer, expected, "message {number} of round {round}");
        }
        assert_eq!(ids(&vhost).await?.len(), 200, "none twice");
    }
    assert!(broker.state().is_connected());
    Ok(())
}

#[tokio::test]
async fn a_queue_that_fills_up_refuses_the_rest_of_a_batch() -> Result<()> {
    let vhost = TestVhost::create().await?;
    vhost.declare_queue_with("tasks", json!({"x-max-length": 10, "x-overflow": "reject-publish"})).await?;
    let broker = Broker::new(vhost.url(), options())?;
    let queue = |number: usize| if number.is_multiple_of(5) { "nobody" } else { "tasks" };
    let answers = broker.publish_all((0..200).map(|number| to(queue(number), number)).collect()).await;
    let mut kept = Vec::new();
    for (number, answer) in answers.into_iter().enumerate() {
        match answer {
            Ok(()) => kept.push(number.to_string()),
            Err(PublishError::Refused { .. }) => assert_eq!(queue(number), "tasks"),
            other => assert_eq!(other, unroutable(queue(number))),
        }
    }
    assert_eq!(ids(&vhost).await?, kept);
    assert!(kept.len() >= 10 && kept.len() < 160, "{}", kept.len());
    Ok(())
}

#[tokio::test]
async fn large_messages_share_a_batch_with_small_ones() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    let broker = Broker::new(vhost.url(), options())?;
    let sizes = [0, 400_000, 1, 131_065, 0, 2_000_000, 7];
    let messages = sizes.iter().enumerate().map(|(number, size)| Publish {
        body: vec![b'x'; *size],
        ..to(if number == 5 { "nobody" } else { "tasks" }, number)
    });
    let answers = broker.publish_all(messages.collect()).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 6);
    assert_eq!(answers[5], unroutable("nobody"));
    let found: Vec<usize> = vhost.take("tasks", 10).await?.iter().map(|message| message.body.len()).collect();
    assert_eq!(found, [0, 400_000, 1, 131_065, 0, 7]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_loses_its_connection_reports_each_message() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    let proxy = TcpProxy::start(vhost.server_addr()?).await?;
    let broker = Broker::new(&vhost.url_via(proxy.addr())?, options())?;
    let reader = Broker::new(vhost.url(), options())?;
    let (mut confirmed, mut failed) = (HashSet::new(), 0);
    for round in 0..5 {
        // Cut as soon as something has arrived, so that it happens in the middle.
        let mut consumer = reader.consume("tasks", ConsumeOptions { prefetch: 1, ..ConsumeOptions::default() }).await?;
        let queue = |number: usize| if number.is_multiple_of(3) { "nobody" } else { "tasks" };
        let messages: Vec<_> = (0..2000).map(|number| to(queue(number), format!("{round}-{number}"))).collect();
        let cut = async {
            let first = consumer.next().await?;
            proxy.cut().await?;
            proxy.restore().await?;
            consumer.nack(first.tag, true)?;
            anyhow::Ok(())
        };
        let (answers, cut) = timeout(SOON, async { tokio::join!(broker.publish_all(messages), cut) }).await?;
        cut?;
        for (number, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(()) => {
                    assert_eq!(queue(number), "tasks", "{round}-{number}");
                    confirmed.insert(format!("{round}-{number}"));
                }
                Err(PublishError::Away { .. }) => failed += 1,
                Err(error) => assert_eq!(Err(error), unroutable(queue(number)), "{round}-{number}"),
            }
        }
        drop(consumer);
    }
    assert!(failed > 0, "nothing was cut");
    let found: HashSet<String> = ids_when_back(&vhost, &confirmed).await?;
    let missing: Vec<_> = confirmed.difference(&found).collect();
    assert!(missing.is_empty(), "confirmed and lost: {missing:?}");
    // The last cut may be noticed by this one only.
    let after = async {
        loop {
            match broker.publish_all(vec![to("tasks", "after")]).await.pop() {
                Some(Err(PublishError::Away { .. })) => {}
                answer => return answer,
            }
        }
    };
    assert_eq!(timeout(SOON, after).await?, Some(Ok(())));
    Ok(())
}

/// All ids, once nobody holds any: what a consumer had goes back a moment after it is gone.
async fn ids_when_back(vhost: &TestVhost, wanted: &HashSet<String>) -> Result<HashSet<String>> {
    let mut found = HashSet::new();
    timeout(SOON, async {
        loop {
            found.extend(ids(vhost).await?);
            if wanted.is_subset(&found) {
                return Ok(found);
            }
        }
    })
    .await?
}

#[tokio::test]
async fn a_cancelled_batch_does_not_fail_others() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    let proxy = TcpProxy::start(vhost.server_addr()?).await?;
    let hasty = BrokerOptions { publish_timeout: Duration::from_secs(2), ..options() };
    let broker = Broker::new(&vhost.url_via(proxy.addr())?, hasty)?;
    timeout(SOON, broker.until(BrokerState::is_connected)).await?;
    assert_eq!(broker.publish_all(vec![to("tasks", "before")]).await, [Ok(())]);
    proxy.stall().await?;
    // More than fits into the buffers on the way, so that most of it waits inside.
    let large = (0..300).map(|number| Publish { body: vec![b'x'; 100_000], ..to("tasks", number) }).collect();
    let answers = broker.publish_all(large).await;
    assert!(answers.iter().all(|answer| matches!(answer, Err(PublishError::Late(_)))), "{:?}", answers[0]);
    let since = broker.state();
    proxy.restore().await?;
    // On the same connection: what was given up is still sent, in its channel, before that is closed.
    let mut seen = 0;
    timeout(SOON, async {
        while seen < 301 {
            seen += vhost.take("tasks", 1000).await?.len();
        }
        anyhow::Ok(())
    })
    .await??;
    let BrokerState::Connected { duration: before } = since else { panic!("{since:?}") };
    let BrokerState::Connected { duration } = broker.state() else { panic!("{:?}", broker.state()) };
    assert!(duration > before, "it was never lost");
    Ok(())
}

#[tokio::test]
async fn a_connection_outlives_the_numbers_of_its_channels() -> Result<()> {
    let vhost = vhost_with_queue().await?;
    let broker = Broker::new(vhost.url(), options())?;
    // Each of them costs a channel; a connection has 2047.
    for round in 0..9 {
        let refused =
            join_all((0..256).map(|number| {
                broker.publish(Publish { exchange: "no-such-exchange".to_owned(), ..to("tasks", number) })
            }));
        for (number, answer) in timeout(SOON, refused).await?.into_iter().enumerate() {
            let error = answer.unwrap_err();
            // When the numbers are used up, the connection is renewed.
            assert!(error.is_away() || matches!(error, PublishError::NoExchange { .. }), "{round}-{number}: {error}");
        }
    }
    for number in 0..20 {
        if let Err(error) = broker.publish(to("tasks", number)).await {
            assert!(error.is_away(), "{error}");
        }
    }
    broker.publish(to("tasks", "last")).await?;
    Ok(())
}
