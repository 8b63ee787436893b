//! Server-sent events: the one place that writes them.
//!
//! All streams have the same rules. A comment goes out every 15 seconds, so that proxies do not take a quiet stream for
//! a dead one. Nothing is gathered on the way: a proxy is told not to buffer. What is written waits in the connection's
//! buffer, and a reader that takes nothing of it for [`write_timeout`](crate::ServeOptions::write_timeout) is closed; it
//! comes back with `Last-Event-ID`. How many events may wait before that is for whoever makes the stream.
//!
//! Streams of which there are many ([`byte_stream`]) take the socket of their connection, so that one that says nothing
//! costs little.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, header},
    response::{IntoResponse as _, Response, Sse, sse::KeepAlive},
};
use futures::{Stream, StreamExt as _};
use tokio::time::{Instant, Sleep};

pub use axum::response::sse::Event;

use crate::handover::{Handover, HandoverBody};

/// How often a stream that says nothing else says a comment.
const HEARTBEAT: Duration = Duration::from_secs(15);

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
    let quiet = Box::pin(tokio::time::sleep(HEARTBEAT));
    let kept_alive = KeptAlive { events: Box::pin(events), quiet, begun: false };
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
    quiet: Pin<Box<Sleep>>,
    begun: bool,
}

impl<S: Stream<Item = Bytes>> Stream for KeptAlive<S> {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if !std::mem::replace(&mut self.begun, true) {
            return Poll::Ready(Some(Bytes::from_static(b": stream\n\n")));
        }
        if let Poll::Ready(event) = self.events.poll_next_unpin(context) {
            self.quiet.as_mut().reset(Instant::now() + HEARTBEAT);
            return Poll::Ready(event);
        }
        ready!(self.quiet.as_mut().poll(context));
        self.quiet.as_mut().reset(Instant::now() + HEARTBEAT);
        Poll::Ready(Some(Bytes::from_static(b":\n\n")))
    }
}
