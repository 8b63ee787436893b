//! Whoever keeps the server waiting is given up; whoever waits for the server is not.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::Request,
    routing::{get, post},
};
use http_body::Frame;
use relais_http::{BodyError, Peer, ServeOptions, TrustedProxies, read_body, serve};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{Notify, mpsc},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// Long enough for whatever should happen, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);
/// What is given up is given up after this time.
const SHORT: Duration = Duration::from_millis(200);
/// More than sockets hold.
const LARGE: usize = 32 << 20;
/// What is not given up would be after this time.
const LONG: Duration = Duration::from_secs(600);

/// No deadline, unless a test sets one.
fn patient() -> ServeOptions {
    ServeOptions { head_timeout: LONG, idle_timeout: LONG, write_timeout: LONG, ..ServeOptions::default() }
}

struct Server {
    address: SocketAddr,
    /// Lets `/wait` answer.
    go: Arc<Notify>,
    /// Told when a request to `/wait` has arrived.
    arrived: mpsc::UnboundedReceiver<()>,
    /// Told when the answer of `/endless` is given up.
    dropped: mpsc::UnboundedReceiver<()>,
}

/// An answer without end, that tells when it is dropped.
struct Endless(mpsc::UnboundedSender<()>);

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 65_536])))))
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

async fn start(options: ServeOptions) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let go = Arc::new(Notify::new());
    let (arriving, arrived) = mpsc::unbounded_channel();
    let (dropping, dropped) = mpsc::unbounded_channel();
    let waiting = Arc::clone(&go);
    let router = Router::new()
        .route("/hello", get(async || "hello"))
        .route("/peer", get(async |Extension(peer): Extension<Peer>| peer.address().to_string()))
        .route("/large", get(async || vec![b'x'; LARGE]))
        .route("/endless", get(async move || Body::new(Endless(dropping))))
        .route(
            "/wait",
            get(async move || {
                let _ = arriving.send(());
                waiting.notified().await;
                "waited"
            }),
        )
        .route(
            "/body",
            post(async |request: Request| match read_body(request.into_body(), 10, SHORT).await {
                Ok(bytes) => format!("{} bytes", bytes.len()),
                Err(BodyError::TooLarge) => "too large".to_owned(),
                Err(BodyError::TimedOut) => "too slow".to_owned(),
                Err(BodyError::Broken(_)) => "broken".to_owned(),
            }),
        );
    tokio::spawn(serve(listener, router, options, CancellationToken::new()));
    Server { address, go, arrived, dropped }
}

impl Server {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// From another address of this machine.
    async fn connect_from(&self, source: [u8; 4]) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(IpAddr::from(source), 0)).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// A connection on which a request is being answered.
    async fn waiting(&mut self) -> TcpStream {
        let mut stream = self.connect().await;
        send(&mut stream, "GET /wait HTTP/1.1\r\nhost: h\r\n\r\n").await;
        timeout(DEADLINE, self.arrived.recv()).await.unwrap().unwrap();
        stream
    }
}

async fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// Sends a request, and reads what it is answered.
async fn ask(stream: &mut TcpStream, head: &str) -> String {
    send(stream, &format!("{head} HTTP/1.1\r\nhost: h\r\n\r\n")).await;
    read_until(stream, "\r\n\r\n").await
}

/// Reads until this has come, and a little more perhaps; or to the end.
async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut received = String::new();
    let mut buffer = [0; 1024];
    while !received.contains(end) {
        match timeout(DEADLINE, stream.read(&mut buffer)).await.expect("an answer, or the end") {
            Ok(0) | Err(_) => break,
            Ok(read) => received.push_str(&String::from_utf8_lossy(&buffer[..read])),
        }
    }
    received
}

/// Whether the server closes the connection, without a word.
async fn is_closed(stream: &mut TcpStream) -> bool {
    read_until(stream, "\0").await.is_empty()
}

#[tokio::test]
async fn an_incomplete_request_head_times_out_and_an_idle_connection_is_kept() {
    let server = start(ServeOptions { head_timeout: SHORT, ..patient() }).await;
    let mut kept = server.connect().await;
    assert!(ask(&mut kept, "GET /hello").await.contains("200 OK"));
    for sent in ["", "GET /hello HT", "GET /hello HTTP/1.1\r\nhost: h\r\n"] {
        let mut slow = server.connect().await;
        send(&mut slow, sent).await;
        assert!(is_closed(&mut slow).await, "{sent:?}");
    }
    // By now it has been idle for longer than a head may take.
    assert!(ask(&mut kept, "GET /hello").await.contains("200 OK"));
    send(&mut kept, "GET /hel").await;
    assert!(is_closed(&mut kept).await, "the head of a later request has the same deadline");
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_own_timeout() {
    let server = start(ServeOptions { idle_timeout: SHORT, ..patient() }).await;
    let mut stream = server.connect().await;
    assert!(ask(&mut stream, "GET /hello").await.ends_with("hello"));
    assert!(is_closed(&mut stream).await);
}

#[tokio::test]
async fn a_reader_that_is_slow_gets_the_whole_answer() {
    let server = start(ServeOptions { idle_timeout: SHORT, ..patient() }).await;
    let mut slow = server.connect().await;
    send(&mut slow, "GET /large HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").await;
    let mut received = 0;
    for _ in 0..4 {
        // Meanwhile somebody else has been idle for long enough to be closed.
        let mut idle = server.connect().await;
        assert!(ask(&mut idle, "GET /hello").await.ends_with("hello"));
        assert!(is_closed(&mut idle).await);
        let mut part = vec![0; 64 << 10];
        received += timeout(DEADLINE, slow.read(&mut part)).await.unwrap().unwrap();
    }
    let mut rest = Vec::new();
    received += timeout(DEADLINE, slow.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert!(received > LARGE, "{received}");
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let server = start(patient()).await;
    let mut stream = server.connect().await;
    let head = format!("GET /hello HTTP/1.1\r\nhost: h\r\nx-long: {}", "x".repeat(100_000));
    let _ = stream.write_all(head.as_bytes()).await;
    let answer = read_until(&mut stream, "\r\n\r\n").await;
    assert!(answer.is_empty() || answer.contains("431"), "{answer}");
}

#[tokio::test]
async fn an_answer_that_is_not_read_times_out() {
    let mut server = start(ServeOptions { write_timeout: SHORT, ..patient() }).await;
    let mut stream = server.connect().await;
    send(&mut stream, "GET /endless HTTP/1.1\r\nhost: h\r\n\r\n").await;
    timeout(DEADLINE, server.dropped.recv()).await.expect("the answer is given up").unwrap();
}

#[tokio::test]
async fn a_client_that_waits_for_an_answer_has_no_timeout() {
    let short = ServeOptions { head_timeout: SHORT, idle_timeout: SHORT, write_timeout: SHORT, ..patient() };
    let mut server = start(short).await;
    let mut long_poll = server.waiting().await;
    let mut slow = server.connect().await;
    assert!(is_closed(&mut slow).await, "others are given up meanwhile");
    server.go.notify_one();
    assert!(read_until(&mut long_poll, "waited").await.contains("200 OK"));
}

#[tokio::test]
async fn a_body_is_read_within_its_size_and_its_time() {
    let server = start(patient()).await;
    for (length, sent, said) in [("3", "abc", "3 bytes"), ("11", "", "too large"), ("3", "ab", "too slow")] {
        let mut stream = server.connect().await;
        send(&mut stream, &format!("POST /body HTTP/1.1\r\nhost: h\r\ncontent-length: {length}\r\n\r\n{sent}")).await;
        assert!(read_until(&mut stream, said).await.contains(said), "{said}");
    }
}

#[tokio::test]
async fn slow_connections_are_closed_to_make_room_for_others() {
    let server = start(ServeOptions { max_connections: 6, ..patient() }).await;
    let mut slow = Vec::new();
    let slow_starts = ["", "GET", "POST /body HTTP/1.1\r\nhost: h\r\n", "GET /hello HTTP/1.1\r\n", "", ""];
    for (number, sent) in slow_starts.into_iter().enumerate() {
        // From three addresses: one alone may not have all places.
        let mut stream = server.connect_from([127, 0, 0, 2 + number as u8 % 3]).await;
        send(&mut stream, sent).await;
        slow.push(stream);
    }
    for _ in 0..6 {
        let mut stream = server.connect().await;
        assert!(ask(&mut stream, "GET /hello").await.contains("200 OK"));
    }
    drop(slow);
}

#[tokio::test]
async fn one_address_has_a_connection_limit_and_others_keep_theirs() {
    let mut server = start(ServeOptions { max_connections_per_peer: 2, ..patient() }).await;
    let (first, second) = (server.waiting().await, server.waiting().await);
    let mut third = server.connect().await;
    assert!(is_closed(&mut third).await);
    let mut other = server.connect_from([127, 0, 0, 2]).await;
    assert!(ask(&mut other, "GET /hello").await.contains("200 OK"));
    drop((first, second));
}

#[tokio::test]
async fn a_trusted_proxy_has_no_connection_limit_and_sets_the_client_address() {
    let trusted_proxies = TrustedProxies::parse(&["127.0.0.2".to_owned()]).unwrap();
    let server = start(ServeOptions { max_connections_per_peer: 1, trusted_proxies, ..patient() }).await;
    let forwarded = "GET /peer HTTP/1.1\r\nhost: h\r\nx-forwarded-for: 192.0.2.9\r\n\r\n";
    let (mut one, mut two) = (server.connect_from([127, 0, 0, 2]).await, server.connect_from([127, 0, 0, 2]).await);
    for stream in [&mut one, &mut two] {
        send(stream, forwarded).await;
        assert!(read_until(stream, "192.0.2.9").await.contains("192.0.2.9"));
    }
    let mut stranger = server.connect().await;
    send(&mut stranger, forwarded).await;
    assert!(read_until(&mut stranger, "127.0.0.1").await.contains("127.0.0.1"));
}
