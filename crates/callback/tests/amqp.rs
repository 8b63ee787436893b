//! The callback sender for messages, with a real broker.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{io::Read, sync::Arc, time::Duration};

use flate2::read::GzDecoder;
use relais_callback::{
    AmqpSender,
    signature::{generate_secret, verify},
};
use relais_core::{
    CallbackDelivery, CallbackSender, CallbackType, Client, ClientId, ClientKey, Destination, NotificationRights,
    Reply, ReplyOutcome, SigningSecret, Timestamp,
};
use relais_messaging::rabbitmq::{Broker, BrokerOptions, BrokerState};
use relais_testkit::{TakenMessage, TcpProxy, TestVhost, free_port};

const NOW: Timestamp = Timestamp::from_millis(1_769_848_200_125);
const BODY: &str = r#"{"taskId":"01a1e14b","status":"SUCCESS","response":{"n":1e400}}"#;

/// A client with three destinations, of which one exists.
fn client(secrets: &[&str]) -> Client {
    let destination = |name: &str, exchange: &str, routing_key: &str| Destination {
        name: name.to_owned(),
        exchange: exchange.to_owned(),
        routing_key: routing_key.to_owned(),
    };
    Client {
        key: ClientKey(7),
        client_id: ClientId::new("shop").unwrap(),
        secret_hash: String::new(),
        signing_secrets: secrets
            .iter()
            .map(|secret| SigningSecret { secret: (*secret).to_owned(), created: NOW, expires: None })
            .collect(),
        destinations: vec![
            destination("results", "events", "task.done"),
            destination("unbound", "", "no-such-queue"),
            destination("missing", "no-such-exchange", "task.done"),
        ],
        notifications: NotificationRights::default(),
    }
}

fn delivery(target: &str, client: Client) -> CallbackDelivery {
    CallbackDelivery {
        id: "01a1e14b-7".to_owned(),
        kind: CallbackType::Amqp,
        target: target.to_owned(),
        client: Arc::new(client),
        body: BODY.to_owned(),
        gzip: false,
        trace: None,
        now: NOW,
    }
}

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(60);

fn callback_sender(url: &str) -> AmqpSender {
    let options = BrokerOptions { publish_timeout: SOON, patience: SOON, ..BrokerOptions::default() };
    AmqpSender::new(Broker::new(url, options).unwrap())
}

/// A broker that is soon said to be away, even before the first connection.
fn impatient(url: &str) -> Broker {
    let patience = Duration::from_millis(200);
    Broker::new(url, BrokerOptions { publish_timeout: SOON, patience, ..BrokerOptions::default() }).unwrap()
}

async fn vhost() -> TestVhost {
    let vhost = TestVhost::create().await.unwrap();
    vhost.declare_exchange("events", "direct").await.unwrap();
    vhost.declare_queue("shop").await.unwrap();
    vhost.bind("events", "shop", "task.done").await.unwrap();
    vhost
}

async fn only_message(vhost: &TestVhost) -> TakenMessage {
    let mut taken = vhost.take("shop", 10).await.unwrap();
    assert_eq!(taken.len(), 1);
    taken.remove(0)
}

fn header<'a>(message: &'a TakenMessage, name: &str) -> &'a str {
    message.properties["headers"][name].as_str().unwrap_or_else(|| panic!("{name}: {:?}", message.properties))
}

fn outcome(reply: &Reply) -> ReplyOutcome {
    assert_eq!((reply.status, &reply.answer), (None, &None));
    assert_eq!(reply.error.is_none(), reply.outcome == ReplyOutcome::Delivered, "{reply:?}");
    reply.outcome
}

#[test]
fn a_client_names_its_own_destinations_and_nothing_else() {
    let (callback_sender, client) = (callback_sender("amqp://localhost"), client(&[]));
    assert_eq!(callback_sender.judge(CallbackType::Amqp, "results", &client).unwrap(), "amqp:results");
    for (kind, target) in [
        (CallbackType::Amqp, "Results"),
        (CallbackType::Amqp, ""),
        (CallbackType::Amqp, "events"),
        (CallbackType::Amqp, "amqp:results"),
        (CallbackType::Https, "results"),
    ] {
        assert!(callback_sender.judge(kind, target, &client).is_err(), "{kind:?} {target}");
    }
}

#[tokio::test]
async fn a_callback_over_amqp_is_a_signed_persistent_message() {
    let vhost = vhost().await;
    let secrets = [generate_secret().unwrap(), generate_secret().unwrap()];
    let client = client(&[&secrets[0], &secrets[1]]);
    let reply = callback_sender(vhost.url()).send(&delivery("results", client)).await;
    assert_eq!(outcome(&reply), ReplyOutcome::Delivered, "{reply:?}");

    let message = only_message(&vhost).await;
    assert_eq!(message.body, BODY.as_bytes());
    assert_eq!(message.properties["delivery_mode"], 2);
    assert_eq!(message.properties["message_id"], "01a1e14b-7");
    assert_eq!(message.properties["content_type"], "application/json");
    assert_eq!(message.properties.get("content_encoding"), None);
    assert_eq!(header(&message, "webhook-id"), "01a1e14b-7");
    assert_eq!(header(&message, "webhook-timestamp"), "1769848200");
    for secret in &secrets {
        let (id, timestamp) = (header(&message, "webhook-id"), header(&message, "webhook-timestamp"));
        let signature = header(&message, "webhook-signature");
        verify(secret, id, timestamp, &message.body, signature, Duration::from_secs(1), NOW).unwrap();
    }
}

#[tokio::test]
async fn a_compressed_callback_is_signed_over_the_uncompressed_body() {
    let vhost = vhost().await;
    let secret = generate_secret().unwrap();
    // Large enough to be compressed elsewhere.
    let body = format!("{{\"text\":\"{}\"}}", "long ".repeat(40_000));
    let delivery = CallbackDelivery { gzip: true, body: body.clone(), ..delivery("results", client(&[&secret])) };
    assert_eq!(outcome(&callback_sender(vhost.url()).send(&delivery).await), ReplyOutcome::Delivered);

    let message = only_message(&vhost).await;
    assert_eq!(message.properties["content_encoding"], "gzip");
    assert!(message.body.len() < body.len() / 10);
    let mut read = String::new();
    GzDecoder::new(message.body.as_slice()).read_to_string(&mut read).unwrap();
    assert_eq!(read, body);
    let signature = header(&message, "webhook-signature");
    let tolerance = Duration::from_secs(1);
    verify(&secret, &delivery.id, "1769848200", read.as_bytes(), signature, tolerance, NOW).unwrap();
}

#[tokio::test]
async fn a_callback_without_a_signing_secret_has_no_signature() {
    let vhost = vhost().await;
    let callback_sender = callback_sender(vhost.url());
    assert_eq!(outcome(&callback_sender.send(&delivery("results", client(&[]))).await), ReplyOutcome::Delivered);
    let message = only_message(&vhost).await;
    assert_eq!(message.properties["headers"].get("webhook-signature"), None);

    // One that can not be used is no reason to send something unsigned.
    let reply = callback_sender.send(&delivery("results", client(&["hush"]))).await;
    assert_eq!(outcome(&reply), ReplyOutcome::Forbidden);
    assert!(vhost.take("shop", 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_callback_to_a_missing_exchange_or_queue_is_refused_alone() {
    let vhost = vhost().await;
    let callback_sender = callback_sender(vhost.url());
    for (target, word) in [("unbound", "no-such-queue"), ("missing", "no-such-exchange")] {
        let reply = callback_sender.send(&delivery(target, client(&[]))).await;
        assert_eq!(outcome(&reply), ReplyOutcome::Refused { retry_after: None }, "{reply:?}");
        assert!(reply.error.unwrap().contains(word));
        let fine = callback_sender.send(&delivery("results", client(&[]))).await;
        assert_eq!(outcome(&fine), ReplyOutcome::Delivered, "{fine:?}");
    }
}

#[tokio::test]
async fn a_callback_to_a_removed_destination_is_forbidden() {
    let vhost = vhost().await;
    let reply =
        callback_sender(vhost.url()).send(&delivery("results", Client { destinations: vec![], ..client(&[]) })).await;
    assert_eq!(outcome(&reply), ReplyOutcome::Forbidden);
    assert!(vhost.take("shop", 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_callback_to_an_unreachable_broker_reports_an_unwell_endpoint() {
    let nobody = AmqpSender::new(impatient(&format!("amqp://127.0.0.1:{}", free_port().unwrap())));
    let reply = nobody.send(&delivery("results", client(&[]))).await;
    assert_eq!(outcome(&reply), ReplyOutcome::Unwell { retry_after: None }, "{reply:?}");

    let vhost = vhost().await;
    let proxy = TcpProxy::start(vhost.server_addr().unwrap()).await.unwrap();
    let broker = impatient(&vhost.url_via(proxy.addr()).unwrap());
    tokio::time::timeout(SOON, broker.until(BrokerState::is_connected)).await.unwrap();
    let callback_sender = AmqpSender::new(broker);
    assert_eq!(outcome(&callback_sender.send(&delivery("results", client(&[]))).await), ReplyOutcome::Delivered);
    proxy.cut().await.unwrap();
    let reply = callback_sender.send(&delivery("results", client(&[]))).await;
    assert_eq!(outcome(&reply), ReplyOutcome::Unwell { retry_after: None }, "{reply:?}");
}
