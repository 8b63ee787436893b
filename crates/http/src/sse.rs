//! Server-sent events: the one place that writes them.
//!
//! All streams have the same rules. A comment goes out every 25 seconds, so that proxies do not take a quiet stream for
//! a dead one. Nothing is gathered on the way: a proxy is told not to buffer. What is written waits in the connection's
//! buffer, and a reader that takes nothing of it for [`write_timeout`](crate::ServeOptions::write_timeout) is closed; it
//! comes back with `Last-Event-ID`. How many events may wait before that is for whoever makes the stream.
//!
//! Streams of which there are many ([`byte_stream`]) take the socket of their connection, so that one that says nothing
//! costs little.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::OnceLock,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, header},
    response::{IntoResponse as _, Response, Sse, sse::KeepAlive},
};
use futures::{Stream, StreamExt as _};
use tokio::time::{Instant, Sleep, sleep_until};

pub use axum::response::sse::Event;

use crate::handover::{Handover, HandoverBody};

/// How often a stream that says nothing else says a comment. Less than half of the minute that proxies wait by default.
pub const HEARTBEAT: Duration = Duration::from_secs(25);

/// Heartbeats wait for the next of these ticks: those of many streams wake the process together, and not one by one.
const TICK: Duration = Duration::from_millis(100);

/// Answers with a stream of events. It begins with a comment at once: whoever reads it knows that the stream is there.
pub fn event_stream(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let begun = futures::stream::iter([Event::default().comment("stream")]);
    let events = begun.chain(events).map(Ok::<_, Infallible>);
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT)).into_response();
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The same, of events that were written before, such as those that many streams share. With `handover`, the stream takes the
/// socket of its connection.
pub fn byte_stream(events: impl Stream<Item = Bytes> + Send + 'static, handover: Option<&Handover>) -> Response {
    let now = Instant::now();
    let timer = Box::pin(sleep_until(tick_after(now + HEARTBEAT)));
    let kept_alive = KeptAlive { events: Box::pin(events), timer, last: now, begun: false };
    let body = match handover {
        Some(handover) => Body::new(HandoverBody::new(handover, kept_alive)),
        None => Body::from_stream(kept_alive.map(Ok::<_, Infallible>)),
    };
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Events, and comments while there are none.
struct KeptAlive<S> {
    events: Pin<Box<S>>,
    /// When to look whether a comment is due: an event does not set it anew.
    timer: Pin<Box<Sleep>>,
    /// When something was said last.
    last: Instant,
    begun: bool,
}

impl<S: Stream<Item = Bytes>> Stream for KeptAlive<S> {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if !std::mem::replace(&mut self.begun, true) {
            return Poll::Ready(Some(Bytes::from_static(b": stream\n\n")));
        }
        if let Poll::Ready(event) = self.events.poll_next_unpin(context) {
            self.last = Instant::now();
            return Poll::Ready(event);
        }
        loop {
            ready!(self.timer.as_mut().poll(context));
            let now = Instant::now();
            let is_due = now >= self.last + HEARTBEAT;
            if is_due {
                self.last = now;
            }
            let next = tick_after(self.last + HEARTBEAT);
            self.timer.as_mut().reset(next);
            if is_due {
                return Poll::Ready(Some(Bytes::from_static(b":\n\n")));
            }
        }
    }
}

/// The first tick that is not before this moment.
fn tick_after(moment: Instant) -> Instant {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let since = moment.saturating_duration_since(*FIRST.get_or_init(|| moment)).as_nanos();
    let past = since % TICK.as_nanos();
    let wait = if past == 0 { 0 } else { TICK.as_nanos() - past };
    moment + Duration::from_nanos(u64::try_from(wait).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use futures::stream;
    use tokio::time::advance;

    use super::*;

    fn kept_alive<S: Stream<Item = Bytes>>(events: S) -> KeptAlive<S> {
        let (last, timer) = (Instant::now(), sleep_until(tick_after(Instant::now() + HEARTBEAT)));
        KeptAlive { events: Box::pin(events), timer: Box::pin(timer), last, begun: true }
    }

    fn said<S: Stream<Item = Bytes>>(stream: &mut KeptAlive<S>) -> Option<Bytes> {
        match stream.poll_next_unpin(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(said) => said,
            Poll::Pending => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_says_a_comment_only_when_it_has_said_nothing_for_long() {
        let (sender, receiver) = futures::channel::mpsc::unbounded();
        let mut stream = kept_alive(receiver);
        assert_eq!(said(&mut stream), None);
        advance(HEARTBEAT - TICK).await;
        sender.unbounded_send(Bytes::from_static(b"event")).unwrap();
        assert_eq!(said(&mut stream).as_deref(), Some(&b"event"[..]));
        advance(TICK * 2).await;
        assert_eq!(said(&mut stream), None, "the event was enough");
        advance(HEARTBEAT - TICK).await;
        assert_eq!(said(&mut stream).as_deref(), Some(&b":\n\n"[..]));
        assert_eq!(said(&mut stream), None, "one comment at a time");
        advance(HEARTBEAT + TICK).await;
        assert_eq!(said(&mut stream).as_deref(), Some(&b":\n\n"[..]));
    }

    #[tokio::test(start_paused = true)]
    async fn the_heartbeats_of_streams_that_began_apart_wake_the_process_together() {
        let mut ends = std::collections::BTreeSet::new();
        for _ in 0..100 {
            ends.insert(kept_alive(stream::pending()).timer.deadline());
            advance(Duration::from_millis(10)).await;
        }
        assert!(ends.len() <= 11, "{} moments for 100 streams of a second", ends.len());
    }
}
