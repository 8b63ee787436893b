//! The port that pushes are sent by, to push services of browsers.

use async_trait::async_trait;

use crate::{NotAllowed, Reply, Timestamp};

/// A push on its way to a push service: encrypted, and signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushRequest {
    /// The URL that the browser's push service gave to the browser.
    pub endpoint: String,
    /// Its headers. The names are in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// Its body: nobody but the browser can read it.
    pub body: Vec<u8>,
    /// The database's time.
    pub now: Timestamp,
}

/// Sends pushes. Endpoints are written by web pages, so they are judged by the rules of callbacks.
#[async_trait]
pub trait PushSender: Send + Sync + 'static {
    /// Whether an endpoint may be called, as far as that is known without asking DNS.
    fn judge(&self, endpoint: &str) -> Result<(), NotAllowed>;

    /// Sends a push once.
    async fn push(&self, request: PushRequest) -> Reply;
}
