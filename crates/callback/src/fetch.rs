//! Fetches a small document, such as a JWKS, from where the guard allows.

use std::{fmt, sync::Arc};

use crate::{
    exchange::{Exchange, HttpSenderError, HttpSenderOptions},
    resolve::{Resolver, SystemResolver},
    trouble::SendError,
};

/// Why a document could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The URL, or the address behind it, is not allowed.
    #[error("the URL is not allowed: {0}")]
    NotAllowed(String),
    /// The exchange failed.
    #[error("{0}")]
    Failed(String),
    /// The answer was no document.
    #[error("the answer has the status {0}")]
    Status(u16),
    /// The document is larger than that, or is not UTF-8.
    #[error("the document has more than {0} bytes, or is not UTF-8")]
    NotADocument(usize),
}

/// Fetches documents by the rules of callbacks: the same guard, one deadline, no redirects.
pub struct DocumentFetcher(Exchange);

impl fmt::Debug for DocumentFetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DocumentFetcher").finish_non_exhaustive()
    }
}

impl DocumentFetcher {
    /// One with the system's resolver.
    pub fn new(options: HttpSenderOptions) -> Result<Self, HttpSenderError> {
        let resolver: Arc<dyn Resolver> = Arc::new(SystemResolver::default());
        Ok(Self(Exchange::new(options, &resolver)?))
    }

    /// The document at a URL, of at most so many bytes.
    pub async fn get(&self, url: &str, limit: usize) -> Result<String, FetchError> {
        let url = self.0.judge_url(url).map_err(|refused| FetchError::NotAllowed(refused.0))?;
        let (status, body) = self.0.get(url, limit).await.map_err(|error| match error {
            SendError::Forbidden(why) => FetchError::NotAllowed(why),
            SendError::Unwell(why) => FetchError::Failed(why),
            SendError::Late => FetchError::Failed("there was no answer in time".to_owned()),
        })?;
        if !status.is_success() {
            return Err(FetchError::Status(status.as_u16()));
        }
        if body.len() > limit {
            return Err(FetchError::NotADocument(limit));
        }
        String::from_utf8(body).map_err(|_| FetchError::NotADocument(limit))
    }
}
