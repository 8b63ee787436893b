//! Bodies: reads a request's body, bounded in size and time; and keeps guards as long as an answer.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    response::Response,
};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

/// Why a body could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It has more bytes than are taken.
    #[error("the body is too large")]
    TooLarge,
    /// It took too long to arrive.
    #[error("the body took too long to arrive")]
    TimedOut,
    /// The connection broke, or what came over it is not HTTP.
    #[error("the body could not be read: {0}")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// All bytes of a body, at most `most`, if they arrive within a time. Whoever says beforehand that it is too large need
/// not send it.
pub async fn read_body(body: Body, most: usize, within: Duration) -> Result<Bytes, BodyError> {
    if body.size_hint().lower() > most as u64 {
        return Err(BodyError::TooLarge);
    }
    match tokio::time::timeout(within, Limited::new(body, most).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge),
        Ok(Err(error)) => Err(BodyError::Broken(error)),
        Err(_) => Err(BodyError::TimedOut),
    }
}

/// Keeps something until an answer has left, or its connection is gone.
pub fn carrying<T: Send + Unpin + 'static>(answer: Response, kept: T) -> Response {
    answer.map(|body| Body::new(Carrying { body, _kept: kept }))
}

/// A body that keeps something until it has left.
pub(crate) struct Carrying<T> {
    pub(crate) body: Body,
    pub(crate) _kept: T,
}

impl<T: Unpin> HttpBody for Carrying<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
