//! Promises that take a node of one's own: it is killed, starved and asked for its certificate.

#![expect(clippy::unwrap_used, reason = "tests say what they expect")]

use std::{collections::HashSet, path::PathBuf, time::Duration};

use anyhow::Result;
use futures::FutureExt;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use relais_messaging::rabbitmq::{
    Broker, BrokerError, BrokerOptions, BrokerState, ConsumeError, ConsumeOptions, Publish, PublishError, Queue,
    QueueKind,
};
use relais_testkit::{RabbitMqServer, free_port};
use tempfile::TempDir;
use tokio::{
    sync::{Mutex, MutexGuard, OnceCell, watch},
    time::timeout,
};

/// Longer than a restart takes on a busy machine.
const SOON: Duration = Duration::from_secs(120);

/// How long those wait for the broker who are to learn that it is away. Anybody waits as long for the first connection,
/// so they begin when that is there.
const BRIEF: Duration = Duration::from_millis(300);

/// The largest message that the node takes.
const MAX_SIZE: usize = 1_000_000;

/// A node with TLS, for one test at a time: a start takes seconds.
struct Node {
    server: RabbitMqServer,
    tls_port: u16,
    authority: PathBuf,
    _certificates: TempDir,
}

async fn node() -> Result<MutexGuard<'static, Node>> {
    static NODE: OnceCell<Mutex<Node>> = OnceCell::const_new();
    let node = NODE.get_or_try_init(async || start().await.map(Mutex::new)).await?;
    Ok(node.lock().await)
}

async fn start() -> Result<Node> {
    let certificates = tempfile::tempdir()?;
    let mut issuer = CertificateParams::default();
    issuer.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(issuer, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(["localhost".to_owned()])?.signed_by(&key, &issuer)?;
    let file = |name: &str| certificates.path().join(name);
    std::fs::write(file("authority.pem"), issuer.pem())?;
    std::fs::write(file("certificate.pem"), certificate.pem())?;
    std::fs::write(file("key.pem"), key.serialize_pem())?;
    // The node may be another user.
    std::fs::set_permissions(certificates.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let tls_port = free_port()?;
    let server = RabbitMqServer::options()
        .set("listeners.ssl.1", &format!("127.0.0.1:{tls_port}"))
        .set("ssl_options.cacertfile", file("authority.pem").to_str().unwrap())
        .set("ssl_options.certfile", file("certificate.pem").to_str().unwrap())
        .set("ssl_options.keyfile", file("key.pem").to_str().unwrap())
        .set("max_message_size", &MAX_SIZE.to_string())
        .start()
        .await?;
    Ok(Node { server, tls_port, authority: file("authority.pem"), _certificates: certificates })
}

fn message(id: &str) -> Publish {
    Publish::new("", "tasks", "x").message_id(id)
}

async fn until(broker: &Broker, wanted: impl FnMut(&BrokerState) -> bool) {
    timeout(SOON, broker.until(wanted)).await.unwrap_or_else(|_| panic!("still {:?}", broker.state()));
}

#[tokio::test]
async fn confirmed_messages_survive_a_broker_crash_and_the_connection_reconnects() -> Result<()> {
    let mut node = node().await?;
    let vhost = node.server.vhost().await?;
    vhost.declare_queue("tasks").await?;
    node.server.write_down().await?;
    let longest_pause = Duration::from_millis(100);
    let options = BrokerOptions { publish_timeout: SOON, patience: BRIEF, longest_pause, ..BrokerOptions::default() };
    let broker = Broker::new(vhost.url(), options)?;
    until(&broker, BrokerState::is_connected).await;
    for number in 0..20 {
        broker.publish(message(&number.to_string())).await?;
    }

    node.server.kill9()?;
    until(&broker, BrokerState::is_away).await;
    let error = broker.publish(message("lost")).await.unwrap_err();
    assert!(matches!(error, PublishError::Away { .. }), "{error}");

    node.server.restart().await?;
    until(&broker, BrokerState::is_connected).await;
    broker.publish(message("after")).await?;
    let found = vhost.take("tasks", 100).await?;
    assert_eq!(found.len(), 21);
    assert_eq!(found.last().unwrap().properties["message_id"], "after");
    Ok(())
}

/// Publishes in batches until all are confirmed, however often that takes.
async fn publish_whatever_happens(broker: Broker, queue: String, count: usize) -> Result<()> {
    for batch in 0..count / 100 {
        let mut messages: Vec<Publish> = (0..100)
            .map(|number| Publish::new("", &queue, "x").message_id((batch * 100 + number).to_string()))
            .collect();
        while !messages.is_empty() {
            broker.until(BrokerState::is_connected).await;
            let answers = broker.publish_all(messages.clone()).await;
            let mut answers = answers.into_iter();
            messages.retain(|_| match answers.next() {
                Some(Err(error)) => {
                    // A queue that was not closed in good order takes a moment longer than its node to come back.
                    assert!(error.is_away() || error.is_unroutable(), "{error}");
                    true
                }
                _ => false,
            });
        }
    }
    Ok(())
}

/// Consumes until `count` different messages were seen. Tells how often it began anew.
async fn consume_whatever_happens(
    broker: Broker,
    queue: &str,
    count: usize,
    seen: &watch::Sender<usize>,
) -> Result<usize> {
    let mut found = HashSet::new();
    let mut ends = 0;
    loop {
        broker.until(BrokerState::is_connected).await;
        let mut consumer = match broker.consume(queue, ConsumeOptions { prefetch: 200, tag: String::new() }).await {
            Ok(consumer) => consumer,
            Err(error) => {
                assert!(!matches!(error, ConsumeError::Cancelled), "{error}");
                continue;
            }
        };
        loop {
            let batch = match consumer.next_batch(50).await {
                Ok(batch) => batch,
                Err(error) => {
                    assert!(error.is_away() || error.is_missing(), "{error}");
                    break;
                }
            };
            // A settling that fails is one that the next round does again.
            let _ = consumer.ack_through(batch.last().unwrap().tag);
            found.extend(batch.into_iter().filter_map(|delivery| delivery.message_id));
            seen.send_replace(found.len());
            if found.len() == count {
                return Ok(ends);
            }
        }
        ends += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_crash_loses_no_message_and_hangs_neither_publisher_nor_consumer() -> Result<()> {
    let mut node = node().await?;
    for (kind, count) in [(QueueKind::Classic, 20_000), (QueueKind::Quorum, 4_000)] {
        let vhost = node.server.vhost().await?;
        let options = BrokerOptions { longest_pause: Duration::from_millis(100), ..BrokerOptions::default() };
        let (publisher, consumer) = (Broker::new(vhost.url(), options.clone())?, Broker::new(vhost.url(), options)?);
        consumer.declare(&Queue { name: "work".to_owned(), kind }).await?;
        node.server.write_down().await?;
        let (seen, mut progress) = watch::channel(0);
        let publishing = tokio::spawn(publish_whatever_happens(publisher, "work".to_owned(), count));
        let consuming = tokio::spawn(async move { consume_whatever_happens(consumer, "work", count, &seen).await });
        timeout(SOON, progress.wait_for(|seen| *seen > count / 10)).await??;
        assert!(!publishing.is_finished() && !consuming.is_finished(), "{kind:?}: killed in the middle");
        node.server.kill9()?;
        node.server.restart().await?;
        let all = timeout(SOON, progress.wait_for(|seen| *seen == count)).await.is_ok();
        assert!(all, "{kind:?}: only {} of {count} arrived", *progress.borrow());
        let ends = timeout(SOON, consuming).await???;
        assert!(ends > 0, "{kind:?}: it was told");
        timeout(SOON, publishing).await???;
    }
    Ok(())
}

#[tokio::test]
async fn a_message_that_is_too_large_fails_alone() -> Result<()> {
    let node = node().await?;
    let vhost = node.server.vhost().await?;
    vhost.declare_queue("tasks").await?;
    let options =
        BrokerOptions { publish_timeout: SOON, longest_pause: Duration::from_millis(100), ..BrokerOptions::default() };
    let broker = Broker::new(vhost.url(), options)?;
    let messages = (0..200).map(|number| {
        let size = if number == 50 { MAX_SIZE + 1 } else { 10 };
        Publish { body: vec![b'x'; size], ..message(&number.to_string()) }
    });
    for (number, answer) in broker.publish_all(messages.collect()).await.into_iter().enumerate() {
        match answer {
            Err(PublishError::Unacceptable { why }) => assert!(number == 50 && why.contains("size"), "{number}: {why}"),
            answer => assert!(number != 50 && answer == Ok(()), "{number}: {answer:?}"),
        }
    }
    let found = vhost.take("tasks", 1000).await?;
    let found: HashSet<&str> = found.iter().map(|message| message.properties["message_id"].as_str().unwrap()).collect();
    assert_eq!(found.len(), 199);
    Ok(())
}

#[tokio::test]
async fn a_starved_broker_is_still_consumed_from_on_a_connection_that_does_not_publish() -> Result<()> {
    let node = node().await?;
    let vhost = node.server.vhost().await?;
    let options = BrokerOptions { publish_timeout: SOON, patience: BRIEF, ..BrokerOptions::default() };
    let (publisher, reader) = (Broker::new(vhost.url(), options.clone())?, Broker::new(vhost.url(), options)?);
    until(&publisher, BrokerState::is_connected).await;
    until(&reader, BrokerState::is_connected).await;
    reader.declare(&Queue { name: "tasks".to_owned(), kind: QueueKind::Classic }).await?;
    for answer in publisher.publish_all((0..3).map(|number| message(&number.to_string())).collect()).await {
        answer?;
    }
    let mut consumer = reader.consume("tasks", ConsumeOptions { prefetch: 1, tag: String::new() }).await?;

    node.server.memory_alarm(true).await?;
    // It says so to those who publish all the same.
    tokio::select! {
        answers = publisher.publish_all(vec![message("3"), message("4")]) => panic!("{answers:?}"),
        () = until(&publisher, BrokerState::is_blocked) => {}
    }
    let answers = publisher.publish_all(vec![message("3"), message("4")]).await;
    assert!(answers.iter().all(|answer| matches!(answer, Err(PublishError::Blocked { .. }))), "{answers:?}");
    for number in 0..3 {
        let delivery = timeout(SOON, consumer.next()).await??;
        assert_eq!(delivery.message_id, Some(number.to_string()));
        consumer.ack(delivery.tag)?;
    }
    assert!(reader.state().is_connected());
    node.server.memory_alarm(false).await?;
    until(&publisher, BrokerState::is_connected).await;
    Ok(())
}

#[tokio::test]
async fn a_starved_broker_is_blocked_and_says_so() -> Result<()> {
    let node = node().await?;
    let vhost = node.server.vhost().await?;
    vhost.declare_queue("tasks").await?;
    // Long enough to hear of the alarm, which is only told to those who publish.
    let publish_timeout = Duration::from_secs(5);
    let options = BrokerOptions { publish_timeout, patience: BRIEF, ..BrokerOptions::default() };
    let broker = Broker::new(vhost.url(), options.clone())?;
    // With time to spare, for what has nothing to do with the alarm.
    let calm = Broker::new(vhost.url(), BrokerOptions { publish_timeout: SOON, patience: SOON, ..options })?;
    calm.publish(message("before")).await?;
    until(&broker, BrokerState::is_connected).await;

    node.server.memory_alarm(true).await?;
    let error = broker.publish(message("during")).await.unwrap_err();
    assert!(matches!(error, PublishError::Blocked { .. }) && error.is_away(), "{error}");
    assert!(error.to_string().contains("memory"), "{error}");
    assert!(broker.state().is_blocked());
    let again = broker.publish(message("again")).now_or_never().expect("known by now");
    assert!(matches!(again, Err(PublishError::Blocked { .. })), "{again:?}");

    node.server.memory_alarm(false).await?;
    until(&broker, BrokerState::is_connected).await;
    calm.publish(message("after")).await?;
    until(&calm, BrokerState::is_connected).await;
    Ok(())
}

#[tokio::test]
async fn tls_connects_only_to_trusted_certificates() -> Result<()> {
    let node = node().await?;
    let vhost = node.server.vhost().await?;
    vhost.declare_queue("tasks").await?;
    let url = |host: &str| format!("amqps://guest:guest@{host}:{}/{}", node.tls_port, vhost.name());
    let trusting = BrokerOptions {
        root_certificates: Some(node.authority.clone()),
        publish_timeout: SOON,
        patience: SOON,
        ..BrokerOptions::default()
    };

    Broker::new(&url("localhost"), trusting.clone())?.publish(message("1")).await?;
    assert_eq!(vhost.take("tasks", 10).await?.len(), 1);

    let suspicious = BrokerOptions { patience: BRIEF, ..BrokerOptions::default() };
    let wrong_name = BrokerOptions { patience: BRIEF, ..trusting };
    for (host, options) in [("localhost", suspicious), ("127.0.0.1", wrong_name)] {
        let broker = Broker::new(&url(host), options)?;
        until(&broker, |state| matches!(state, BrokerState::Away { why, .. } if why.contains("certificate"))).await;
        let error = broker.publish(message("2")).await.unwrap_err();
        assert!(error.is_away() && error.to_string().contains("certificate"), "{error}");
    }
    assert!(vhost.take("tasks", 10).await?.is_empty());
    Ok(())
}

#[test]
fn a_file_without_certificates_is_noticed_at_once() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let broker = |path: PathBuf| {
        let options = BrokerOptions { root_certificates: Some(path), ..BrokerOptions::default() };
        Broker::new("amqps://localhost", options)
    };
    let empty = directory.path().join("empty.pem");
    std::fs::write(&empty, "")?;
    assert!(matches!(broker(empty), Err(BrokerError::NoRootCertificate { .. })));
    assert!(matches!(broker(directory.path().join("none")), Err(BrokerError::RootCertificates { .. })));
    Ok(())
}
