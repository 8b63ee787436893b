//! Server-sent events: the one place that writes them.
//!
//! All streams have the same rules. A comment goes out every 15 seconds, so that proxies do not take a quiet stream for
//! a dead one. Nothing is gathered on the way: a proxy is told not to buffer. What is written waits in the connection's
//! buffer, and a reader that takes nothing of it for [`write_timeout`](crate::ServeOptions::write_timeout) is closed; it
//! comes back with `Last-Event-ID`. How many events may wait before that is for whoever makes the stream.

use std::{convert::Infallible, time::Duration};

use axum::{
    http::HeaderValue,
    response::{IntoResponse as _, Response, Sse, sse::KeepAlive},
};
use futures::{Stream, StreamExt as _};

pub use axum::response::sse::Event;

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
