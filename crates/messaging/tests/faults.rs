//! Promises that take a node of one's own: it is killed, starved and asked for its certificate.

#![expect(clippy::unwrap_used, reason = "tests say what they expect")]

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use relais_messaging::rabbitmq::{Broker, BrokerError, BrokerOptions, BrokerState, Publish, PublishError};
use relais_testkit::{RabbitMqServer, free_port};
use tempfile::TempDir;
use tokio::{
    sync::{Mutex, MutexGuard, OnceCell},
    time::timeout,
};

/// Longer than a restart takes on a busy machine.
const SOON: Duration = Duration::from_secs(120);

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
async fn what_was_confirmed_survives_a_kill_and_the_connection_comes_back() -> Result<()> {
    let mut node = node().await?;
    let vhost = node.server.vhost().await?;
    vhost.declare_queue("tasks").await?;
    let patience = Duration::from_millis(300);
    let options = BrokerOptions { patience, longest_pause: Duration::from_millis(100), ..BrokerOptions::default() };
    let broker = Broker::new(vhost.url(), options)?;
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

#[tokio::test]
async fn a_starved_broker_is_blocked_and_says_so() -> Result<()> {
    let node = node().await?;
    let vhost = node.server.vhost().await?;
    vhost.declare_queue("tasks").await?;
    let options = BrokerOptions {
        publish_timeout: Duration::from_secs(1),
        patience: Duration::from_millis(300),
        ..BrokerOptions::default()
    };
    let broker = Broker::new(vhost.url(), options.clone())?;
    // With time to spare, for what has nothing to do with the alarm.
    let calm = Broker::new(vhost.url(), BrokerOptions { publish_timeout: SOON, ..options })?;
    calm.publish(message("before")).await?;
    until(&broker, BrokerState::is_connected).await;

    node.server.memory_alarm(true).await?;
    let error = broker.publish(message("during")).await.unwrap_err();
    assert!(matches!(error, PublishError::Blocked { .. }) && error.is_away(), "{error}");
    assert!(error.to_string().contains("memory"), "{error}");
    assert!(broker.state().is_blocked());
    let start = Instant::now();
    assert!(matches!(broker.publish(message("again")).await, Err(PublishError::Blocked { .. })));
    assert!(start.elapsed() < Duration::from_secs(1), "known by now");

    node.server.memory_alarm(false).await?;
    until(&broker, BrokerState::is_connected).await;
    calm.publish(message("after")).await?;
    until(&calm, BrokerState::is_connected).await;
    Ok(())
}

#[tokio::test]
async fn tls_is_spoken_with_whom_is_trusted_and_nobody_else() -> Result<()> {
    let node = node().await?;
    let vhost = node.server.vhost().await?;
    vhost.declare_queue("tasks").await?;
    let url = |host: &str| format!("amqps://guest:guest@{host}:{}/{}", node.tls_port, vhost.name());
    let trusting = BrokerOptions { root_certificates: Some(node.authority.clone()), ..BrokerOptions::default() };

    Broker::new(&url("localhost"), trusting.clone())?.publish(message("1")).await?;
    assert_eq!(vhost.take("tasks", 10).await?.len(), 1);

    let suspicious = BrokerOptions { patience: Duration::from_millis(100), ..BrokerOptions::default() };
    let wrong_name = BrokerOptions { patience: Duration::from_millis(100), ..trusting };
    for (host, options) in [("localhost", suspicious), ("127.0.0.1", wrong_name)] {
        let error = Broker::new(&url(host), options)?.publish(message("2")).await.unwrap_err();
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
