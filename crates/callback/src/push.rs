//! The sender of pushes to browsers' push services, by the rules of callbacks: the same guard, one deadline, no redirects.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use relais_core::{NotAllowed, PushRequest, PushSender, Reply};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use crate::{
    answer,
    exchange::{Answer, Exchange, HttpSenderError, HttpSenderOptions, Post},
    http::no_answer,
    resolve::{Resolver, SystemResolver},
    trouble::SendError,
};

/// Sends pushes over HTTP.
pub struct HttpPushSender(Exchange);

impl fmt::Debug for HttpPushSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpPushSender").finish_non_exhaustive()
    }
}

impl HttpPushSender {
    /// One with the system's resolver.
    pub fn new(options: HttpSenderOptions) -> Result<Self, HttpSenderError> {
        let resolver: Arc<dyn Resolver> = Arc::new(SystemResolver::default());
        Ok(Self(Exchange::new(options, &resolver)?))
    }

    async fn post(&self, request: PushRequest) -> Result<Answer, SendError> {
        let url = self.0.judge_url(&request.endpoint).map_err(|NotAllowed(why)| SendError::Forbidden(why))?;
        let mut headers = HeaderMap::new();
        for (name, value) in request.headers {
            let value = HeaderValue::from_str(&value)
                .map_err(|_| SendError::Forbidden(format!("the header {name} of the push can not be sent")))?;
            headers.insert(HeaderName::from_static(name), value);
        }
        self.0.post(url, Post { headers, body: request.body, gzip: false }).await
    }
}

#[async_trait]
impl PushSender for HttpPushSender {
    fn judge(&self, endpoint: &str) -> Result<(), NotAllowed> {
        self.0.judge_url(endpoint).map(drop)
    }

    async fn push(&self, request: PushRequest) -> Reply {
        let now = request.now;
        match self.post(request).await {
            Ok(Answer { status, headers, excerpt }) => {
                let (outcome, error) = answer::outcome(status, &headers, now);
                let answer = Some(excerpt).filter(|text| !text.is_empty());
                Reply { outcome, status: Some(status.as_u16()), error, answer }
            }
            Err(error) => no_answer(error, self.0.timeout()),
        }
    }
}
