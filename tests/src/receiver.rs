//! A receiver of callbacks: a real HTTP server on a loopback port with scripted answers, which records what it got.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{Shutdown, SocketAddr, TcpStream},
    os::fd::AsFd,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use axum::{
    Router,
    body::Bytes,
    extract::{ConnectInfo, Request, State, connect_info::Connected},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    serve::IncomingStream,
};
use serde_json::Value;
use tokio::{
    net::TcpListener,
    sync::{Notify, watch},
    task::JoinHandle,
};

use crate::app::DEADLINE;

/// One request that came in.
#[derive(Debug, Clone)]
pub struct Received {
    /// Where to.
    pub path: String,
    /// Its headers.
    pub headers: BTreeMap<String, String>,
    /// Its body.
    pub body: String,
}

impl Received {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// A header; empty if it is not there.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// Its `webhook-id`.
    pub fn id(&self) -> &str {
        self.header("webhook-id")
    }
}

/// What to answer.
#[derive(Debug, Clone)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
    held: bool,
    cut: bool,
}

impl Reply {
    /// A status without anything else.
    pub fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: String::new(), held: false, cut: false }
    }

    /// None: the connection is closed when the request is there.
    pub fn cut() -> Self {
        Self { cut: true, ..Self::status(500) }
    }

    /// With a header.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With a body.
    #[must_use]
    pub fn saying(mut self, body: &str) -> Self {
        body.clone_into(&mut self.body);
        self
    }

    /// Not before [`Receiver::release`].
    #[must_use]
    pub fn held(mut self) -> Self {
        self.held = true;
        self
    }
}

/// What is answered to what came in.
type Answering = Box<dyn FnMut(&Received) -> Reply + Send>;

struct Shared {
    received: watch::Sender<Vec<Received>>,
    /// What to answer next; then `usual`.
    script: Mutex<VecDeque<Reply>>,
    usual: Mutex<Answering>,
    release: Notify,
}

/// A receiver that runs until it is dropped.
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

impl Receiver {
    /// One that takes everything.
    pub async fn start() -> Result<Self> {
        Self::start_on("127.0.0.1:0".parse()?).await
    }

    /// One on this address.
    pub async fn start_on(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).await.context("listen for callbacks")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            received: watch::channel(Vec::new()).0,
            script: Mutex::default(),
            usual: Mutex::new(Box::new(|_| Reply::status(204))),
            release: Notify::new(),
        });
        let router = Router::new().fallback(take).with_state(Arc::clone(&shared));
        let service = router.into_make_service_with_connect_info::<Line>();
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, service).await {
                panic!("the receiver ended: {error}");
            }
        });
        Ok(Self { address, shared, serving })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A URL of it.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The next answers, in this order.
    pub fn will(&self, replies: impl IntoIterator<Item = Reply>) {
        lock(&self.shared.script).extend(replies);
    }

    /// All answers from now on, once those that were said before are given.
    pub fn always(&self, reply: Reply) {
        self.answering(move |_| reply.clone());
    }

    /// The same, by what came in.
    pub fn answering(&self, answering: impl FnMut(&Received) -> Reply + Send + 'static) {
        *lock(&self.shared.usual) = Box::new(answering);
    }

    /// Lets one answer go that is held.
    pub fn release(&self) {
        self.shared.release.notify_one();
    }

    /// All that came in so far.
    pub fn received(&self) -> Vec<Received> {
        self.shared.received.borrow().clone()
    }

    /// All that came in, once there are so many.
    pub async fn wait_for(&self, count: usize) -> Vec<Received> {
        self.wait_at_most(count, DEADLINE).await
    }

    /// The same with another deadline.
    pub async fn wait_at_most(&self, count: usize, limit: Duration) -> Vec<Received> {
        let mut seen = self.shared.received.subscribe();
        let reached = tokio::time::timeout(limit, seen.wait_for(|received| received.len() >= count)).await;
        let there = self.received();
        assert!(reached.is_ok(), "{} of {count} callbacks came", there.len());
        there
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A connection, to be cut: another handle of its socket. `None` if there could not be one.
#[derive(Debug, Clone)]
struct Line(Option<Arc<TcpStream>>);

impl Connected<IncomingStream<'_, TcpListener>> for Line {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        Self(stream.io().as_fd().try_clone_to_owned().ok().map(|socket| Arc::new(socket.into())))
    }
}

async fn take(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(Line(line)): ConnectInfo<Line>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 64 * 1024 * 1024).await.unwrap_or_default();
    let received = Received {
        path: parts.uri.to_string(),
        headers: texts(&parts.headers),
        body: String::from_utf8_lossy(&body).into_owned(),
    };
    // Decided before anybody hears of it: whoever was told of so many may change what is answered to the next.
    let scripted = lock(&shared.script).pop_front();
    let reply = scripted.unwrap_or_else(|| lock(&shared.usual)(&received));
    shared.received.send_modify(|all| all.push(received));
    if reply.cut
        && let Some(line) = line
    {
        let _ = line.shutdown(Shutdown::Both);
        // Ends with the connection, which is over as soon as it is looked at.
        return std::future::pending().await;
    }
    if reply.held {
        shared.release.notified().await;
    }
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::IM_A_TEAPOT);
    let mut response = (status, Bytes::from(reply.body)).into_response();
    for (name, value) in reply.headers {
        if let (Ok(name), Ok(value)) = (name.parse::<axum::http::HeaderName>(), value.parse()) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

fn texts(headers: &HeaderMap) -> BTreeMap<String, String> {
    headers
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
