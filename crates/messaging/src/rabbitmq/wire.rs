//! The bytes between the library and the broker, on a stream of ours.
//!
//! The library reads and writes in a thread of its own, and holds on to a connection that has gone silent while it is
//! being opened. So the stream can be [cut](Wire::cut) from outside, and tells when it is [gone](Wire::gone), for
//! whatever reason: more than the library's own events do.
//!
//! The rest of this file is what the library asks of a runtime: tokio's, with this stream instead of a bare one.

#[cfg(unix)]
use std::os::fd::{AsFd as AsHandle, AsRawFd as AsRawHandle};
#[cfg(windows)]
use std::os::windows::io::{AsRawSocket as AsRawHandle, AsSocket as AsHandle};
use std::{
    future::Future,
    io::{self, Read, Write},
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use async_rs::{
    Runtime, Tokio,
    traits::{Executor, Reactor, RuntimeKit},
    util::Task,
};
use futures::{
    Stream,
    io::{AsyncRead, AsyncWrite},
};
use lapin::{Connection, ConnectionProperties, tcp::AsyncTcpStream};
use tokio::{io::ReadBuf, net::TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};

use super::{options::Target, tls::Tls};

/// The two ends of a connection's life.
#[derive(Debug, Clone, Default)]
pub(super) struct Wire {
    /// Cancelled by us: the stream fails from now on.
    pub(super) cut: CancellationToken,
    /// Cancelled when the library has let go of the stream.
    pub(super) gone: CancellationToken,
}

/// Opens a connection, up to the point where channels can be opened. Takes as long as it takes: whoever gives up
/// waiting cuts the wire.
pub(super) async fn connect(target: &Target, tls: Option<&Tls>, name: &str, wire: &Wire) -> lapin::Result<Connection> {
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    let (target, tls, wire) = (target.clone(), tls.cloned(), wire.clone());
    let uri = target.uri.clone();
    let dial = async move |_, _| Ok(AsyncTcpStream::Plain(dial(&target, tls.as_ref(), &wire).await?));
    Connection::connector(uri, Runtime::new(Kit(Tokio::current())), dial, properties).await
}

/// Connects to the first address that answers.
async fn dial(target: &Target, tls: Option<&Tls>, wire: &Wire) -> io::Result<Socket> {
    let open = async {
        let stream = TcpStream::connect((target.host.as_str(), target.port)).await?;
        // A confirmation must not wait for more to say.
        stream.set_nodelay(true)?;
        Ok(match tls {
            None => Bytes::Plain(stream),
            Some(tls) => Bytes::Tls(Box::new(tls.connect(&target.host, stream).await?)),
        })
    };
    let opened = tokio::select! {
        () = wire.cut.cancelled() => Err(cut_off()),
        opened = open => opened,
    };
    // Whether or not there is a socket: the library makes no second attempt.
    let gone = wire.gone.clone().drop_guard();
    let cut = wire.cut.clone();
    Ok(Socket { bytes: opened?, wait_for_cut: Box::pin(cut.clone().cancelled_owned()), cut, _gone: gone })
}

fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "given up")
}

/// A stream that can be cut, and that tells when it is gone.
pub(super) struct Socket {
    bytes: Bytes,
    cut: CancellationToken,
    /// Wakes whoever waits to read.
    wait_for_cut: Pin<Box<WaitForCancellationFutureOwned>>,
    _gone: DropGuard,
}

enum Bytes {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Does the same with either kind of stream.
macro_rules! either {
    ($bytes:expr, $stream:ident => $what:expr) => {
        match $bytes {
            Bytes::Plain($stream) => {
                let $stream = Pin::new($stream);
                $what
            }
            Bytes::Tls($stream) => {
                let $stream = Pin::new($stream.as_mut());
                $what
            }
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        use tokio::io::AsyncRead;
        if self.wait_for_cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(cut_off()));
        }
        let mut buffer = ReadBuf::new(buffer);
        ready!(either!(&mut self.bytes, stream => stream.poll_read(cx, &mut buffer)))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        use tokio::io::AsyncWrite;
        // Who waits to write is not woken: the library always waits to read too.
        if self.cut.is_cancelled() {
            return Poll::Ready(Err(cut_off()));
        }
        either!(&mut self.bytes, stream => stream.poll_write(cx, buffer))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        use tokio::io::AsyncWrite;
        either!(&mut self.bytes, stream => stream.poll_flush(cx))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        use tokio::io::AsyncWrite;
        either!(&mut self.bytes, stream => stream.poll_shutdown(cx))
    }
}

/// Tokio, with our stream.
#[derive(Debug, Clone)]
struct Kit(Tokio);

impl RuntimeKit for Kit {}

impl Executor for Kit {
    type Task<T: Send + 'static> = <Tokio as Executor>::Task<T>;

    fn block_on<T, F: Future<Output = T>>(&self, future: F) -> T {
        self.0.block_on(future)
    }

    fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(&self, future: F) -> Task<Self::Task<T>> {
        self.0.spawn(future)
    }

    fn spawn_blocking<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(&self, work: F) -> Task<Self::Task<T>> {
        self.0.spawn_blocking(work)
    }
}

impl Reactor for Kit {
    type TcpStream = Socket;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsHandle + AsRawHandle + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(duration)
    }

    /// Not used: [`connect`] dials by itself.
    fn tcp_connect_addr(
        &self,
        _address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        std::future::ready(Err(io::Error::other("connections are opened elsewhere")))
    }
}
