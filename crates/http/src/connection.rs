//! One connection: a socket with timeouts, and the state of its requests.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep_until},
};

use crate::state::{Phase, State};

/// How long the other side may keep us waiting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadlines {
    pub(crate) head: Duration,
    pub(crate) idle: Duration,
    pub(crate) write: Duration,
}

/// A socket that fails once the other side has kept us waiting for too long.
pub(crate) struct Socket {
    /// There until it is dropped.
    stream: Option<TcpStream>,
    state: Arc<State>,
    deadlines: Deadlines,
    /// Made when a read, and when a write, first has to wait.
    reading: Timer,
    writing: Timer,
}

/// Wakes the connection when a deadline has passed. It is set once and looks at the deadline when it goes off: a connection
/// that is busy need not set it anew with every request.
#[derive(Default)]
struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Fails if the time is over, and else sees to it that the task is woken then.
    fn poll<T>(&mut self, deadline: Instant, what: &'static str, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if Instant::now() < deadline {
            self.wake_by(deadline, cx);
            return Poll::Pending;
        }
        metrics::counter!("relais_http_connections_closed_total", "reason" => "timeout").increment(1);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, what)))
    }

    /// Sees to it that the task is woken at this moment or before it, and then asks again.
    fn wake_by(&mut self, moment: Instant, cx: &mut Context<'_>) {
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep_until(moment)));
        if timer.deadline() > moment {
            timer.as_mut().reset(moment);
        }
        if timer.as_mut().poll(cx).is_ready() {
            timer.as_mut().reset(moment);
            if timer.as_mut().poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
    }
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, state: Arc<State>, deadlines: Deadlines) -> Self {
        Self { stream: Some(stream), state, deadlines, reading: Timer::default(), writing: Timer::default() }
    }

    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// What came of a write: progress, or a wait that ends.
    fn written(&mut self, written: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.state.unblock();
            return written;
        }
        let deadline = self.state.block() + self.deadlines.write;
        self.writing.poll(deadline, "the answer was not read", cx)
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = self.stream()?.poll_read(cx, buffer);
        let phase = self.state.phase();
        if read.is_ready() {
            if phase == Phase::Idle && buffer.filled().len() > before {
                self.state.enter(Phase::Head);
            }
            return read;
        }
        if phase != Phase::Answering {
            self.state.opened();
        }
        let (wait, what) = match phase {
            Phase::Idle if !self.state.is_blocked() => (self.deadlines.idle, "the connection was idle"),
            Phase::Head => (self.deadlines.head, "the head of a request did not arrive"),
            // The body has its own deadline where it is read, and so has an answer that is still leaving; and whoever is
            // being answered need not send anything. When all that is over, nobody reads anew: the timer looks again.
            Phase::Idle | Phase::Body | Phase::Answering => {
                let soon = Instant::now() + self.deadlines.idle;
                self.reading.wake_by(soon, cx);
                return Poll::Pending;
            }
        };
        let deadline = self.state.since() + wait;
        self.reading.poll(deadline, what, cx)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.stream()?.poll_write(cx, bytes);
        self.written(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream()?.poll_write_vectored(cx, slices);
        self.written(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.stream()?.poll_flush(cx);
        // Whoever writes an answer flushes the socket when nothing is left in its own buffer.
        if flushed.is_ready() && self.state.is_handed_over() {
            self.state.head_sent.notify_one();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(cx)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take_if(|_| self.state.is_handed_over()) {
            self.state.keep(stream);
        }
    }
}

/// The body of a request, which notes when it keeps us waiting.
pub(crate) struct Arriving(pub(crate) Incoming, pub(crate) Arc<State>);

impl HttpBody for Arriving {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.0).poll_frame(cx);
        self.1.enter(if frame.is_pending() { Phase::Body } else { Phase::Answering });
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// Says that the connection is idle once the answer that carries it has left.
pub(crate) struct IdleAfter(pub(crate) Arc<State>);

impl Drop for IdleAfter {
    fn drop(&mut self) {
        self.0.enter(Phase::Idle);
    }
}
