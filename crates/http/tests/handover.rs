//! Streams that take the socket of their connection: what arrives is what HTTP says, and the limits of connections stay.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Extension, Router, body::Bytes, response::Response, routing::get};
use futures::stream;
use relais_http::{Handover, ServeOptions, serve, sse::byte_stream};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Mutex, mpsc},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// Long enough for whatever should happen, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);
/// A reader that takes nothing is given up after this time.
const SHORT: Duration = Duration::from_millis(200);
/// More than sockets hold.
const LARGE: usize = 32 << 20;

struct Server {
    address: SocketAddr,
    /// What the next stream says. It ends with it.
    events: mpsc::Sender<Bytes>,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

/// A server whose `/stream` says what the test says.
async fn start(options: ServeOptions) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (events, said) = mpsc::channel(1);
    let said = Arc::new(Mutex::new(Some(said)));
    let stream = async move |Extension(handover): Extension<Handover>| -> Response {
        let said = said.lock().await.take().unwrap();
        let events = stream::unfold(said, async |mut said| Some((said.recv().await?, said)));
        byte_stream(Box::pin(events), Some(&handover))
    };
    let router = Router::new().route("/stream", get(stream)).route("/hello", get(async || "hello"));
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(serve(listener, router, options, shutdown.clone()));
    Server { address, events, shutdown, serving }
}

impl Server {
    /// A connection that has asked for the stream, and read the head of the answer.
    async fn open(&self, version: &str) -> (TcpStream, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(format!("GET /stream {version}\r\nhost: h\r\n\r\n").as_bytes()).await.unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            head.push(char::from(timeout(DEADLINE, stream.read_u8()).await.unwrap().unwrap()));
        }
        (stream, head)
    }

    async fn say(&self, event: &'static str) {
        self.events.send(Bytes::from_static(event.as_bytes())).await.unwrap();
    }

    /// Whether the stream is given up.
    async fn is_given_up(&self) -> bool {
        timeout(DEADLINE, self.events.closed()).await.is_ok()
    }
}

/// Reads exactly this.
async fn expect(stream: &mut TcpStream, text: &str) {
    let mut received = vec![0; text.len()];
    timeout(DEADLINE, stream.read_exact(&mut received)).await.unwrap().unwrap();
    assert_eq!(String::from_utf8_lossy(&received), text);
}

/// Reads to the end.
async fn rest(stream: &mut TcpStream) -> String {
    let mut received = String::new();
    timeout(DEADLINE, stream.read_to_string(&mut received)).await.unwrap().unwrap();
    received
}

#[tokio::test]
async fn a_stream_is_written_in_chunks_to_its_end() {
    let server = start(ServeOptions::default()).await;
    let (mut stream, head) = server.open("HTTP/1.1").await;
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("transfer-encoding: chunked"), "{head}");
    expect(&mut stream, "a\r\n: stream\n\n\r\n").await;
    server.say("data: one, two and three\n\n").await;
    expect(&mut stream, "1a\r\ndata: one, two and three\n\n\r\n").await;
    // Whatever else it says has no answer: this connection is the stream's.
    stream.write_all(b"GET /hello HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();
    server.say("data: four\n\n").await;
    drop(server.events);
    assert_eq!(rest(&mut stream).await, "c\r\ndata: four\n\n\r\n0\r\n\r\n");
}

#[tokio::test]
async fn a_client_that_knows_no_chunks_reads_to_the_end_of_the_connection() {
    let server = start(ServeOptions::default()).await;
    let (mut stream, head) = server.open("HTTP/1.0").await;
    assert!(!head.contains("chunked"), "{head}");
    server.say("data: one\n\n").await;
    drop(server.events);
    assert_eq!(rest(&mut stream).await, ": stream\n\ndata: one\n\n");
}

#[tokio::test]
async fn events_larger_than_the_sockets_buffers_arrive_whole() {
    let server = start(ServeOptions::default()).await;
    let (mut stream, _) = server.open("HTTP/1.0").await;
    server.events.send(Bytes::from(vec![b'x'; LARGE])).await.unwrap();
    drop(server.events);
    assert_eq!(rest(&mut stream).await.len(), ": stream\n\n".len() + LARGE);
}

#[tokio::test]
async fn the_stream_of_a_client_that_has_gone_is_given_up() {
    let server = start(ServeOptions::default()).await;
    let (stream, _) = server.open("HTTP/1.1").await;
    drop(stream);
    assert!(server.is_given_up().await);
}

#[tokio::test]
async fn the_stream_of_a_client_that_does_not_read_is_given_up() {
    let server = start(ServeOptions { write_timeout: SHORT, ..ServeOptions::default() }).await;
    let (stream, _) = server.open("HTTP/1.1").await;
    server.events.send(Bytes::from(vec![b'x'; LARGE])).await.unwrap();
    assert!(server.is_given_up().await);
    drop(stream);
}

#[tokio::test]
async fn a_stream_keeps_its_place_among_the_connections() {
    let server = start(ServeOptions { max_connections_per_peer: 1, ..ServeOptions::default() }).await;
    let (stream, _) = server.open("HTTP/1.1").await;
    let mut another = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(rest(&mut another).await, "", "one address has a place");
    // It is free again once the stream is given up.
    drop(stream);
    assert!(server.is_given_up().await);
    let mut another = TcpStream::connect(server.address).await.unwrap();
    another.write_all(b"GET /hello HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").await.unwrap();
    assert!(rest(&mut another).await.ends_with("hello"));
}

#[tokio::test]
async fn the_server_ends_when_its_streams_have_ended() {
    let server = start(ServeOptions::default()).await;
    let (mut stream, _) = server.open("HTTP/1.1").await;
    expect(&mut stream, "a\r\n: stream\n\n\r\n").await;
    server.shutdown.cancel();
    server.say("event: bye\n\n").await;
    assert!(!server.serving.is_finished(), "a stream is under way");
    drop(server.events);
    assert_eq!(rest(&mut stream).await, "c\r\nevent: bye\n\n\r\n0\r\n\r\n");
    timeout(DEADLINE, server.serving).await.unwrap().unwrap();
}
