//! A connection that frees its place when it ends.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::OwnedSemaphorePermit,
    time::{Sleep, sleep},
};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// How long a connection may say nothing at first. Later, pings find out whether the other side is there.
const FIRST_WORD: Duration = Duration::from_secs(10);

/// A connection with a place.
pub(crate) struct ScalerConnection {
    stream: TcpStream,
    /// Until something has been read.
    first_word: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

impl ScalerConnection {
    pub(crate) fn new(stream: TcpStream, place: OwnedSemaphorePermit) -> Self {
        Self { stream, first_word: Some(Box::pin(sleep(FIRST_WORD))), _place: place }
    }
}

impl Connected for ScalerConnection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for ScalerConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_ready() {
            self.first_word = None;
        } else if let Some(timer) = &mut self.first_word
            && timer.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for ScalerConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
