//! CallbackSenders, deliveries, and resolvers that say what a test wants.

use std::{
    collections::VecDeque,
    io,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use relais_callback::{HttpSender, HttpSenderOptions, Resolver};
use relais_core::{
    CallbackDelivery, CallbackSender, CallbackType, Client, ClientId, ClientKey, NotificationRights, Reply,
    ReplyOutcome, SigningSecret, Timestamp,
};

/// Sun, 06 Nov 1994 08:49:37 GMT, and half a second.
pub const NOW: Timestamp = Timestamp::from_millis(784_111_777_500);
pub const BODY: &str = r#"{"taskId":"t","status":"SUCCESS"}"#;
pub const ID: &str = "01a1e14b-7";

/// The deadline of callback senders in tests that wait for it.
pub const SHORT: Duration = Duration::from_millis(300);
/// What nothing in these tests takes, even on a busy machine, unless it hangs.
const LONG: Duration = Duration::from_secs(20);
/// What a callback sender with a short deadline must not take, with some room for a busy machine.
pub const AT_MOST: Duration = Duration::from_secs(9);

pub const UNWELL: ReplyOutcome = ReplyOutcome::Unwell { retry_after: None };
pub const REFUSED: ReplyOutcome = ReplyOutcome::Refused { retry_after: None };

/// Waits, but not for ever.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("it hangs")
}

/// Options that allow one port of loopback, and plain `http`.
pub fn options(port: u16) -> HttpSenderOptions {
    HttpSenderOptions {
        allow_http: true,
        allow_networks: vec!["127.0.0.0/8".to_owned()],
        ports: vec![port],
        ..HttpSenderOptions::default()
    }
}

/// The same, with a short deadline.
pub fn hurried(port: u16) -> HttpSenderOptions {
    HttpSenderOptions { timeout: SHORT, ..options(port) }
}

pub fn callback_sender(options: HttpSenderOptions) -> HttpSender {
    HttpSender::new(options).unwrap()
}

pub fn client(signing_secrets: Vec<SigningSecret>) -> Client {
    Client {
        key: ClientKey(1),
        client_id: ClientId::new("shop").unwrap(),
        secret_hash: String::new(),
        signing_secrets,
        destinations: Vec::new(),
        notifications: NotificationRights::default(),
    }
}

pub fn delivery(target: &str) -> CallbackDelivery {
    let kind = if target.starts_with("https") { CallbackType::Https } else { CallbackType::Http };
    let client = Arc::new(client(Vec::new()));
    CallbackDelivery {
        id: ID.to_owned(),
        kind,
        target: target.to_owned(),
        client,
        body: BODY.to_owned(),
        gzip: false,
        trace: None,
        now: NOW,
    }
}

/// Carries a delivery, and tells how long it took.
pub async fn timed(callback_sender: &HttpSender, target: &str) -> (Reply, Duration) {
    let begin = Instant::now();
    let reply = soon(callback_sender.send(&delivery(target))).await;
    (reply, begin.elapsed())
}

pub async fn send(callback_sender: &HttpSender, target: &str) -> Reply {
    timed(callback_sender, target).await.0
}

/// Why it was not taken.
pub fn why(reply: &Reply) -> &str {
    reply.error.as_deref().unwrap_or("")
}

/// Gives the next answer each time it is asked, and the last one again and again.
#[derive(Debug)]
pub struct Script {
    answers: Mutex<VecDeque<Vec<IpAddr>>>,
    asked: Mutex<Vec<String>>,
}

impl Script {
    pub fn new(answers: &[&[&str]]) -> Arc<Self> {
        let read = |texts: &&[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Arc::new(Self { answers: Mutex::new(answers.iter().map(read).collect()), asked: Mutex::default() })
    }

    /// The names that were asked for.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait]
impl Resolver for Script {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.asked.lock().unwrap().push(name.to_owned());
        let mut answers = self.answers.lock().unwrap();
        let answer = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
        answer.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}

/// Never answers.
pub struct Silence;

#[async_trait]
impl Resolver for Silence {
    async fn resolve(&self, _name: &str) -> io::Result<Vec<IpAddr>> {
        std::future::pending().await
    }
}
