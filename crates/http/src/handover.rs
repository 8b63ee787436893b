//! Long answers that leave HTTP behind: once the head of an answer has left, a small task of its own goes on with the bare
//! socket.
//!
//! What hyper and the routes keep for a connection costs tens of kilobytes, whether anything is sent or not. A stream of
//! events is quiet most of the time, and there are many of them. So its head is written as any other; then the connection
//! is dropped except for the socket, and [`drive`] writes the body. The place among the connections, and their limits,
//! stay.

use std::{
    future::poll_fn,
    io::{self, IoSlice, Read as _},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{body::Bytes, http::Version};
use futures::{Stream, StreamExt as _};
use http_body::{Body as HttpBody, Frame};
use tokio::{net::TcpStream, time::timeout};

use crate::{connections::Place, state::State};

/// What goes on with a socket.
pub(crate) type Driver = Box<dyn FnOnce(TakenSocket) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// Allows an answer to take the socket of its connection. An extension of every request that [`crate::serve`] passes on.
#[derive(Debug, Clone)]
pub struct Handover {
    state: Arc<State>,
    version: Version,
}

impl Handover {
    pub(crate) fn new(state: Arc<State>, version: Version) -> Self {
        Self { state, version }
    }
}

/// The body of an answer that takes the socket as soon as its head has left. It never says anything itself.
pub(crate) struct HandoverBody {
    state: Arc<State>,
    driver: Option<Driver>,
}

impl HandoverBody {
    pub(crate) fn new<S>(handover: &Handover, events: S) -> Self
    where
        S: Stream<Item = Bytes> + Send + Unpin + 'static,
    {
        // Older versions know no chunks: there a body ends with its connection.
        let is_chunked = handover.version >= Version::HTTP_11;
        let driver: Driver = Box::new(move |socket| Box::pin(drive(events, socket, is_chunked)));
        Self { state: Arc::clone(&handover.state), driver: Some(driver) }
    }
}

impl HttpBody for HandoverBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        // The body is asked for only after the head was written; what is flushed next is the head.
        if let Some(driver) = self.driver.take() {
            self.state.hand_over(driver);
        }
        Poll::Pending
    }
}

/// A socket that was taken from its connection.
pub(crate) struct TakenSocket {
    pub(crate) stream: TcpStream,
    pub(crate) place: Place,
    /// How long a part of the body may wait to be read.
    pub(crate) write_timeout: Duration,
}

/// Writes events, none of them empty, until there are no more or nobody reads them.
async fn drive<S: Stream<Item = Bytes> + Unpin>(mut events: S, socket: TakenSocket, is_chunked: bool) {
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = socket.closed() => return,
        };
        let Some(event) = event else { break };
        let written = if is_chunked { socket.write_chunk(&event).await } else { socket.write(&mut [&event]).await };
        if written.is_err() {
            return;
        }
    }
    if is_chunked {
        // An empty chunk is the last one. If it does not arrive, nobody waits for it.
        let _ = socket.write_chunk(&[]).await;
    }
    // A socket that is closed with something unread takes back what was written. Tokio may not have heard of it yet.
    if let Ok(mut stream) = socket.stream.into_std() {
        while stream.read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
    }
}

impl TakenSocket {
    /// Returns when the other side has gone, or the connection's place is needed. What the other side says is not read: it
    /// has been answered.
    async fn closed(&self) {
        // Like this, and not by `readable()`: the socket forgets the task of its connection, whose memory it would keep.
        let gone = poll_fn(|context| {
            while ready!(self.stream.poll_read_ready(context)).is_ok() && self.ignore_input() {}
            Poll::Ready(())
        });
        tokio::select! {
            () = gone => {}
            () = self.place.state.close.notified() => {}
        }
    }

    /// Reads what has arrived; whether more may.
    fn ignore_input(&self) -> bool {
        let mut ignored = [0; 64];
        loop {
            match self.stream.try_read(&mut ignored) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }

    async fn write_chunk(&self, bytes: &[u8]) -> io::Result<()> {
        let length = format!("{:x}\r\n", bytes.len());
        self.write(&mut [length.as_bytes(), bytes, b"\r\n"]).await
    }

    /// Writes all of these, one after the other.
    async fn write(&self, mut parts: &mut [&[u8]]) -> io::Result<()> {
        while let Some(first) = parts.first_mut() {
            if first.is_empty() {
                parts = &mut parts[1..];
                continue;
            }
            let mut slices = [IoSlice::new(&[]); 3];
            for (slice, part) in slices.iter_mut().zip(parts.iter()) {
                *slice = IoSlice::new(part);
            }
            match self.stream.try_write_vectored(&slices) {
                Ok(mut written) => {
                    self.place.state.unblock();
                    for part in parts.iter_mut() {
                        let of_this = written.min(part.len());
                        *part = &part[of_this..];
                        written -= of_this;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Box::pin(self.writable()).await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until the other side takes something again. Seldom needed: it is kept out of the task, which is small without it.
    async fn writable(&self) -> io::Result<()> {
        self.place.state.block();
        let taken = async {
            tokio::select! {
                writable = self.stream.writable() => writable,
                () = self.place.state.close.notified() => Err(io::ErrorKind::ConnectionAborted.into()),
            }
        };
        timeout(self.write_timeout, taken).await.unwrap_or_else(|_| {
            metrics::counter!("relais_http_connections_closed_total", "reason" => "timeout").increment(1);
            Err(io::ErrorKind::TimedOut.into())
        })
    }
}
