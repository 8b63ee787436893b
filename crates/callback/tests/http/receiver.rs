//! Receivers: a listener on loopback and a handler for each connection, which speaks bytes, not HTTP, so that it can be
//! as rude as a test wants.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use crate::support::soon;

pub const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Another address of the same machine, which a test may allow or not.
pub const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A request, as it came.
#[derive(Debug, Clone)]
pub struct Request {
    pub line: String,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
    /// The connection it came on, counted from 1.
    pub connection: usize,
}

impl Request {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("there is no {name} in {self:?}"))
    }
}

trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// A connection from the callback sender.
pub struct Connection {
    wire: Box<dyn Wire>,
    number: usize,
    requests: UnboundedSender<Request>,
}

impl Connection {
    /// Reads a request; false if the callback sender hung up instead.
    pub async fn request(&mut self) -> bool {
        self.read().await.is_some()
    }

    /// The same, for a handler that looks at it.
    pub async fn read(&mut self) -> Option<Request> {
        let mut bytes = Vec::new();
        let end = loop {
            if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                break at;
            }
            if !matches!(self.wire.read_buf(&mut bytes).await, Ok(1..)) {
                return None;
            }
        };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.lines().map(str::to_owned);
        let line = lines.next().unwrap();
        let headers: HashMap<_, _> = lines
            .map(|line| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())).unwrap())
            .collect();
        let length: usize = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = bytes.split_off(end + 4);
        while body.len() < length {
            if !matches!(self.wire.read_buf(&mut body).await, Ok(1..)) {
                return None;
            }
        }
        let request = Request { line, headers, body, connection: self.number };
        self.requests.send(request.clone()).ok().map(|()| request)
    }

    /// Sends something; false if the callback sender hung up.
    pub async fn say(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.wire.write_all(bytes.as_ref()).await.is_ok() && self.wire.flush().await.is_ok()
    }

    /// Closes in good order.
    pub async fn close(&mut self) {
        let _ = self.wire.shutdown().await;
    }

    /// Waits until the callback sender hangs up.
    pub async fn left_alone(&mut self) {
        let mut waste = [0; 1024];
        while matches!(self.wire.read(&mut waste).await, Ok(1..)) {}
    }
}

/// A receiver. It ends with the runtime of its test.
pub struct Receiver {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: UnboundedReceiver<Request>,
}

impl Receiver {
    /// Accepts connections, and hands each to the handler.
    pub fn on<F, Fut>(listener: TcpListener, tls: Option<TlsAcceptor>, handler: F) -> Self
    where
        F: Fn(Connection) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send,
    {
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let (sender, requests) = unbounded_channel();
        let (accepted, handler) = (Arc::clone(&connections), Arc::new(handler));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let number = accepted.fetch_add(1, Ordering::SeqCst) + 1;
                let (tls, handler, requests) = (tls.clone(), Arc::clone(&handler), sender.clone());
                tokio::spawn(async move {
                    let wire: Box<dyn Wire> = match tls {
                        None => Box::new(stream),
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => Box::new(stream),
                            Err(_) => return,
                        },
                    };
                    handler(Connection { wire, number, requests }).await;
                });
            }
        });
        Self { address, connections, requests }
    }

    /// One on a free port.
    pub async fn start<F, Fut>(handler: F) -> Self
    where
        F: Fn(Connection) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send,
    {
        Self::on(TcpListener::bind((LOOPBACK, 0)).await.unwrap(), None, handler)
    }

    /// One that answers every request with the same bytes, and then closes.
    pub async fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::start(move |connection| answer_once(connection, answer.clone())).await
    }

    /// Where to send a delivery.
    pub fn url(&self) -> String {
        format!("http://{}/hook?a=1", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// How many connections there were.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// The requests that have come and were not asked for yet.
    pub fn so_far(&mut self) -> Vec<Request> {
        std::iter::from_fn(|| self.requests.try_recv().ok()).collect()
    }

    /// The next request.
    pub async fn request(&mut self) -> Request {
        soon(self.requests.recv()).await.unwrap()
    }
}

/// Answers one request and closes.
pub async fn answer_once(mut connection: Connection, answer: Vec<u8>) {
    if connection.request().await {
        connection.say(answer).await;
        connection.close().await;
    }
}

/// A place where connections are not accepted: nobody does, and when the queue is full, the kernel lets those who come
/// wait. It is so while what is returned is kept.
pub async fn full(address: SocketAddr) -> (TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(address).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queue = Vec::new();
    while let Ok(connected) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
        queue.push(connected.unwrap());
        assert!(queue.len() < 100, "the queue has no end");
    }
    (listener, queue)
}

/// Two listeners on one port: on [`LOOPBACK`], and on [`OTHER`].
pub async fn twins() -> (TcpListener, TcpListener) {
    for _ in 0..100 {
        let first = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
        if let Ok(second) = TcpListener::bind((OTHER, first.local_addr().unwrap().port())).await {
            return (first, second);
        }
    }
    panic!("no port is free on both {LOOPBACK} and {OTHER}");
}
