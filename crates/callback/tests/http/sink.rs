//! The Sink conformance suite on an HTTP endpoint, and what only this sink promises.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use async_trait::async_trait;
use relais_callback::{
    HttpSenderOptions, HttpSink, HttpSinkError, HttpSinkOptions,
    signature::{generate_secret, verify},
};
use relais_core::Timestamp;
use relais_message::{Envelope, Message, PublishOutcome, RoutedMessage, Sink};
use relais_testkit::{
    TcpProxy,
    sink_suite::{Received, SinkHarness},
};
use tokio::sync::Mutex;

use crate::{
    receiver::{Connection, Receiver, Request},
    support::{hurried, options, soon},
};

/// What the endpoint of the suite takes at most.
const MAX_BODY: usize = 64 * 1024;

struct OnHttp {
    receiver: Mutex<Receiver>,
    proxy: TcpProxy,
    sink: Arc<HttpSink>,
}

async fn harness() -> Result<OnHttp> {
    let receiver = Receiver::start(endpoint).await;
    let proxy = TcpProxy::start(receiver.address).await?;
    let http = HttpSenderOptions { timeout: Duration::from_secs(3), ..options(proxy.addr().port()) };
    let sink = Arc::new(HttpSink::new(HttpSinkOptions { http, ..HttpSinkOptions::default() })?);
    Ok(OnHttp { receiver: Mutex::new(receiver), proxy, sink })
}

/// Takes what comes to `/hook`, if it is not too large.
async fn endpoint(mut connection: Connection) {
    while let Some(Request { line, body, .. }) = connection.read().await {
        let answer = match line.as_str() {
            "POST /hook HTTP/1.1" if body.len() > MAX_BODY => "413 Too Large",
            "POST /hook HTTP/1.1" => "204 No Content",
            "POST /private HTTP/1.1" => "403 Forbidden",
            _ => "404 Not Found",
        };
        connection.say(format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n")).await;
    }
}

impl OnHttp {
    fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.proxy.addr())
    }
}

#[async_trait(?Send)]
impl SinkHarness for OnHttp {
    fn sink(&self) -> Arc<dyn Sink> {
        Arc::<HttpSink>::clone(&self.sink)
    }

    fn destination(&self) -> String {
        self.url("hook")
    }

    fn carries_keys(&self) -> bool {
        true
    }

    async fn received(&self) -> Result<Vec<Received>> {
        let requests = self.receiver.lock().await.so_far();
        let taken =
            requests.into_iter().filter(|request| request.line.contains("/hook ") && request.body.len() <= MAX_BODY);
        let received = taken.map(|request| Received {
            id: decoded(request.header("webhook-id")),
            key: request.headers.get("message-key").map(|key| decoded(key)),
            payload: request.body,
            headers: request.headers,
        });
        Ok(received.collect())
    }

    fn missing(&self) -> Option<String> {
        Some(self.url("nowhere"))
    }

    fn forbidden(&self) -> Option<String> {
        Some(self.url("private"))
    }

    fn enlarge(&self, message: &mut Message) -> bool {
        message.payload = Some(vec![b'x'; 2 * MAX_BODY].into());
        true
    }

    async fn cut(&self) -> Result<()> {
        Ok(self.proxy.cut().await?)
    }

    async fn stall(&self) -> Result<()> {
        Ok(self.proxy.stall().await?)
    }

    async fn restore(&self) -> Result<()> {
        Ok(self.proxy.restore().await?)
    }

    async fn crash(&self) -> Result<bool> {
        // The endpoint promises nothing about its disk.
        Ok(false)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(20)
    }
}

relais_testkit::sink_suite!(harness);

fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).unwrap()
}

fn sink(http: HttpSenderOptions) -> HttpSink {
    HttpSink::new(HttpSinkOptions { http, ..HttpSinkOptions::default() }).unwrap()
}

fn to(destination: String, message: Message) -> RoutedMessage {
    RoutedMessage { destination, routing_key: String::new(), message }
}

/// Publishes one message, and what became of it.
async fn publish(sink: &HttpSink, destination: String, message: Message) -> PublishOutcome {
    soon(sink.publish(vec![to(destination, message)])).await.remove(0)
}

const NO_CONTENT: &str = "HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n";

#[tokio::test]
async fn a_message_is_signed_with_every_secret() {
    let mut receiver = Receiver::answering(NO_CONTENT).await;
    let secrets = [generate_secret().unwrap(), generate_secret().unwrap()];
    let options = HttpSinkOptions {
        http: options(receiver.port()),
        signing_secrets: secrets.to_vec(),
        gzip: true,
        ..HttpSinkOptions::default()
    };
    let sink = HttpSink::new(options).unwrap();
    let body = r#"{"order":7}"#;
    assert!(publish(&sink, receiver.url(), Message::new("m-é", "t", body)).await.is_confirmed());
    let request = receiver.request().await;
    assert_eq!(request.header("content-encoding"), "gzip");
    let [id, timestamp, signature] =
        ["webhook-id", "webhook-timestamp", "webhook-signature"].map(|name| request.header(name));
    let at = Timestamp::from_millis(timestamp.parse::<i64>().unwrap() * 1000);
    for secret in &secrets {
        verify(secret, id, timestamp, body.as_bytes(), signature, Duration::ZERO, at).unwrap();
    }
    assert!(verify(&secrets[0], id, timestamp, b"{}", signature, Duration::ZERO, at).is_err());
    let wrong = HttpSinkOptions { signing_secrets: vec!["secret".to_owned()], ..HttpSinkOptions::default() };
    assert!(matches!(HttpSink::new(wrong), Err(HttpSinkError::Secret(_))));
}

#[tokio::test]
async fn a_message_cannot_set_the_headers_of_http() {
    let mut receiver = Receiver::answering(NO_CONTENT).await;
    let message = Message::new("m-1", "t", "{}")
        .with_header("Host", "elsewhere.example")
        .with_header("content-length", "1000")
        .with_header("webhook-id", "another")
        .with_header("x tenant", "a b")
        .with_header("x-note", "one\r\nhost: two");
    let message = Message { content_type: "application/avro".to_owned(), ..message };
    assert!(publish(&sink(options(receiver.port())), receiver.url(), message).await.is_confirmed());
    let request = receiver.request().await;
    assert_eq!(request.header("host"), receiver.address.to_string());
    assert_eq!((request.header("content-length"), request.header("webhook-id")), ("2", "m-1"));
    assert_eq!((request.header("x-tenant"), request.header("x-note")), ("a b", "one%0D%0Ahost:%20two"));
    assert_eq!((request.header("content-type"), request.body.as_slice()), ("application/avro", b"{}".as_slice()));
    assert!(!request.headers.contains_key("webhook-signature") && !request.headers.contains_key("message-key"));
}

#[tokio::test]
async fn a_tombstone_has_an_empty_body_and_a_cloud_event_its_headers() {
    let mut receiver = Receiver::answering(NO_CONTENT).await;
    let sink = sink(options(receiver.port()));
    let tombstone = Message { payload: None, ..Message::new("m-1", "t", "").with_key("o-7") };
    assert!(publish(&sink, receiver.url(), tombstone).await.is_confirmed());
    let request = receiver.request().await;
    assert_eq!((request.header("message-key"), request.body.len()), ("o-7", 0));
    let event = Message::new("m-2", "order.placed", "{}").with_key("a \"b\"%");
    let event = Envelope::CloudEventsBinary.wrap(&event, "/outboxes/orders", "ce-");
    assert!(publish(&sink, receiver.url(), event).await.is_confirmed());
    let request = receiver.request().await;
    assert_eq!((request.header("ce-type"), request.header("ce-subject")), ("order.placed", "a%20%22b%22%25"));
}

#[tokio::test]
async fn an_answer_is_told_with_its_status_and_a_piece_of_its_body() {
    for (line, refused) in
        [("422 Unprocessable", true), ("429 Slow Down", true), ("408 Late", false), ("503 Busy", false)]
    {
        let body = format!("no\u{1b}[2J {}", "x".repeat(5000));
        let answer = format!("HTTP/1.1 {line}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let receiver = Receiver::answering(answer).await;
        let outcome = publish(&sink(options(receiver.port())), receiver.url(), Message::new("m", "t", "{}")).await;
        let (PublishOutcome::Refused(why) | PublishOutcome::Unknown(why)) = &outcome else { panic!("{outcome:?}") };
        assert_eq!(matches!(outcome, PublishOutcome::Refused(_)), refused, "{outcome:?}");
        assert!(why.starts_with(&format!("answered {} ", &line[..3])) && why.contains(": no\u{fffd}[2J x"), "{why}");
        assert!(why.len() < 300, "{}", why.len());
    }
}

#[tokio::test]
async fn what_the_guard_forbids_is_refused_and_never_connected_to() {
    let receiver = Receiver::answering(NO_CONTENT).await;
    let message = Message::new("m", "t", "{}");
    let closed = HttpSenderOptions { allow_networks: Vec::new(), ..options(receiver.port()) };
    for (http, url) in [
        (closed, receiver.url()),
        (options(receiver.port()), "http://127.0.0.1:1/".to_owned()),
        (options(receiver.port()), "orders".to_owned()),
        (options(receiver.port()), String::new()),
    ] {
        let outcome = publish(&sink(http), url, message.clone()).await;
        assert!(matches!(&outcome, PublishOutcome::Refused(_)), "{outcome:?}");
    }
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn keys_are_sent_side_by_side_up_to_the_bound() {
    let (arrived, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let receiver = Receiver::start(move |mut connection| {
        let (arrived, gate) = (arrived.clone(), Arc::clone(&opened));
        async move {
            while connection.request().await {
                arrived.send(()).unwrap();
                gate.acquire().await.unwrap().forget();
                connection.say(NO_CONTENT).await;
            }
        }
    })
    .await;
    let options = HttpSinkOptions { http: options(receiver.port()), concurrency: 3, ..HttpSinkOptions::default() };
    let sink = HttpSink::new(options).unwrap();
    let batch = (0..10).map(|n| to(receiver.url(), Message::new(n.to_string(), "t", "{}").with_key(n.to_string())));
    let publishing = tokio::spawn({
        let batch = batch.collect();
        async move { sink.publish(batch).await }
    });
    for _ in 0..3 {
        soon(arrivals.recv()).await.unwrap();
    }
    for _ in 3..10 {
        assert!(arrivals.try_recv().is_err(), "no more than three at once");
        gate.add_permits(1);
        soon(arrivals.recv()).await.unwrap();
    }
    gate.add_permits(3);
    assert!(soon(publishing).await.unwrap().iter().all(PublishOutcome::is_confirmed));
}

#[tokio::test]
async fn what_has_not_begun_in_time_is_not_sent() {
    let receiver = Receiver::start(|mut connection| async move {
        connection.request().await;
        connection.left_alone().await;
    })
    .await;
    let options = HttpSinkOptions { http: hurried(receiver.port()), concurrency: 2, ..HttpSinkOptions::default() };
    let sink = HttpSink::new(options).unwrap();
    let outcomes =
        soon(sink.publish((0..9).map(|n| to(receiver.url(), Message::new(n.to_string(), "t", "{}"))).collect()));
    let outcomes = outcomes.await;
    assert!(matches!(&outcomes[..2], [PublishOutcome::Unknown(_), PublishOutcome::Unknown(_)]), "{outcomes:?}");
    assert!(outcomes[4..].iter().all(|outcome| *outcome == PublishOutcome::NotSent), "{outcomes:?}");
}
