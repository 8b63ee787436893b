//! The callback sender over HTTP: one signed `POST` for each try, to the URL of the client.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use relais_core::{CallbackDelivery, CallbackSender, CallbackType, Client, NotAllowed, Reply, ReplyOutcome};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use url::Url;

use crate::{
    answer,
    exchange::{Answer, Exchange, HttpSenderError, HttpSenderOptions, Post, webhook_headers},
    resolve::{Resolver, SystemResolver},
    signature,
    trouble::SendError,
};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Sends callbacks of the types `https` and `http`.
#[derive(Debug)]
pub struct HttpSender {
    exchange: Exchange,
}

impl HttpSender {
    /// Creates a callback sender with the system's resolver.
    pub fn new(options: HttpSenderOptions) -> Result<Self, HttpSenderError> {
        Self::with_resolver(options, Arc::new(SystemResolver::default()))
    }

    /// Creates a callback sender with this resolver. Its answers are checked like those of any other.
    pub fn with_resolver(options: HttpSenderOptions, resolver: Arc<dyn Resolver>) -> Result<Self, HttpSenderError> {
        Ok(Self { exchange: Exchange::new(options, &resolver)? })
    }

    fn judge_target(&self, kind: CallbackType, target: &str) -> Result<Url, NotAllowed> {
        let url = self.exchange.judge_url(target)?;
        if url.scheme() != kind.as_str() {
            return Err(NotAllowed(format!("a callback of type {} needs a URL of that scheme", kind.as_str())));
        }
        Ok(url)
    }

    async fn post(&self, delivery: &CallbackDelivery) -> Result<Answer, SendError> {
        let url =
            self.judge_target(delivery.kind, &delivery.target).map_err(|NotAllowed(why)| SendError::Forbidden(why))?;
        let headers = headers(delivery).map_err(|why| SendError::Forbidden(format!("the callback {why}")))?;
        let body = delivery.body.clone().into_bytes();
        self.exchange.post(url, Post { headers, body, gzip: delivery.gzip }).await
    }
}

#[async_trait]
impl CallbackSender for HttpSender {
    fn judge(&self, kind: CallbackType, target: &str, _client: &Client) -> Result<String, NotAllowed> {
        let url = self.judge_target(kind, target)?;
        let port = url.port_or_known_default().unwrap_or_default();
        Ok(format!("{}://{}:{port}", url.scheme(), url.host_str().unwrap_or_default()))
    }

    async fn send(&self, delivery: &CallbackDelivery) -> Reply {
        match self.post(delivery).await {
            Ok(Answer { status, headers, excerpt }) => {
                let (outcome, error) = answer::outcome(status, &headers, delivery.now);
                let answer = Some(excerpt).filter(|text| !text.is_empty());
                Reply { outcome, status: Some(status.as_u16()), error, answer }
            }
            Err(error) => no_answer(error, self.exchange.timeout()),
        }
    }
}

/// The headers of a callback; or what is wrong with it, as the end of a sentence.
fn headers(delivery: &CallbackDelivery) -> Result<HeaderMap, String> {
    let mut headers = webhook_headers(&delivery.id, delivery.now, || {
        signature::sign_all(&delivery.client.signing_secrets, &delivery.id, delivery.now, delivery.body.as_bytes())
    })?;
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(trace) = &delivery.trace {
        let value = |text: &str| HeaderValue::from_str(text).map_err(|_| "has a trace that can not be sent".to_owned());
        headers.insert(TRACEPARENT, value(trace.traceparent())?);
        if let Some(state) = trace.tracestate() {
            headers.insert(TRACESTATE, value(state)?);
        }
    }
    Ok(headers)
}

/// The reply where there was no answer.
pub(crate) fn no_answer(error: SendError, timeout: Duration) -> Reply {
    let (outcome, why) = match error {
        SendError::Forbidden(why) => (ReplyOutcome::Forbidden, why),
        SendError::Unwell(why) => (ReplyOutcome::Unwell { retry_after: None }, why),
        SendError::Late => (ReplyOutcome::Unwell { retry_after: None }, format!("no answer within {timeout:?}")),
    };
    Reply { outcome, status: None, error: Some(why), answer: None }
}
