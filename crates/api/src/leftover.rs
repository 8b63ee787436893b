//! The unread rest of a request.
//!
//! A refusal may come before the request's body was read, because authentication comes first. If little of the body is
//! left, it is read and dropped, and the connection serves the next request. Otherwise the answer says that the
//! connection closes, so that nobody sends another request on it.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::{HeaderValue, header},
    middleware::Next,
    response::Response,
};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;

/// The most bytes that are read and dropped.
const MOST: usize = 256 * 1024;

/// The timeout of that.
const PATIENCE: Duration = Duration::from_secs(1);

/// A body that can be read on by somebody else.
struct Shared(Arc<Mutex<Body>>);

impl Shared {
    fn body(&self) -> MutexGuard<'_, Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpBody for Shared {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *self.body()).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body().size_hint()
    }
}

/// Answers, and sees to what is left of the request.
pub(crate) async fn clear(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    let mut rest = Shared(Arc::new(Mutex::new(body)));
    let request = Request::from_parts(parts, Body::new(Shared(Arc::clone(&rest.0))));
    let mut response = next.run(request).await;
    let read = tokio::time::timeout(PATIENCE, finish(&mut rest)).await;
    if !matches!(read, Ok(true)) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Reads to the end, unless that is far.
async fn finish(body: &mut Shared) -> bool {
    let mut room = MOST;
    while !body.is_end_stream() {
        if body.size_hint().lower() > room as u64 {
            return false;
        }
        match body.frame().await {
            None => return true,
            Some(Err(_)) => return false,
            Some(Ok(frame)) => match room.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                Some(left) => room = left,
                None => return false,
            },
        }
    }
    true
}
