//! An HTTP endpoint as a sink: a `POST` for each message, signed like a callback.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use async_trait::async_trait;
use futures::{StreamExt as _, stream};
use relais_core::{NotAllowed, Timestamp};
use relais_message::{Durability, Message, PublishOutcome, RoutedMessage, Sink, in_waves};
use reqwest::{
    StatusCode,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};
use tokio::time::Instant;

use crate::{
    answer,
    exchange::{Answer, Exchange, HttpSenderError, HttpSenderOptions, Post, webhook_headers},
    resolve::{Resolver, SystemResolver},
    signature::{self, SecretError},
    trouble::SendError,
};

const MESSAGE_KEY: HeaderName = HeaderName::from_static("message-key");

/// How much of an answer is told, in bytes.
const MAX_REASON: usize = 200;

/// Names that belong to HTTP, or to what is sent by ourselves.
const OWN_NAMES: [&str; 18] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "message-key",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
];

/// How messages are sent over HTTP.
#[derive(Clone)]
pub struct HttpSinkOptions {
    /// What is allowed, how long a message may take, and how much of an answer is read: the settings of callbacks.
    pub http: HttpSenderOptions,
    /// The secrets that sign each message, as in Standard Webhooks: `whsec_` and base64. Two while one replaces the
    /// other. Without any, messages are not signed.
    pub signing_secrets: Vec<String>,
    /// Whether bodies are compressed (`content-encoding: gzip`). The endpoint must know.
    pub gzip: bool,
    /// How many messages are on their way at once, in one call.
    pub concurrency: usize,
}

impl Default for HttpSinkOptions {
    fn default() -> Self {
        Self { http: HttpSenderOptions::default(), signing_secrets: Vec::new(), gzip: false, concurrency: 32 }
    }
}

impl std::fmt::Debug for HttpSinkOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { http, signing_secrets, gzip, concurrency } = self;
        f.debug_struct("HttpSinkOptions")
            .field("http", http)
            .field("signing_secrets", &signing_secrets.len())
            .field("gzip", gzip)
            .field("concurrency", concurrency)
            .finish()
    }
}

/// Why there can be no sink.
#[derive(Debug, thiserror::Error)]
pub enum HttpSinkError {
    /// The settings of HTTP are not valid.
    #[error(transparent)]
    Http(#[from] HttpSenderError),
    /// A signing secret is not valid.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Nothing could ever be sent.
    #[error("the concurrency of an HTTP sink is at least 1")]
    Concurrency,
}

/// Sends each message as a `POST`: the destination is the URL, and the body is the payload.
///
/// The message's id is `webhook-id`, its key is `message-key`, and its headers are headers. Names are made valid: other
/// characters than those of HTTP become `-`. Names that belong to HTTP itself (`host`, `content-length`) are left out. Id
/// and key are percent-encoded where they have `%` or anything but printable ASCII; so are the headers of CloudEvents
/// (`ce-`), as their specification says. Another header is percent-encoded if HTTP can not carry it as it is. A tombstone
/// has an empty body.
///
/// An answer of 2xx confirms. 3xx and 4xx refuse, because the endpoint says that it did not take the message. After 408,
/// 5xx, a lost connection or a late answer nobody knows. A call takes at most twice the timeout of a message: what has not
/// begun by then is not sent.
#[derive(Debug)]
pub struct HttpSink {
    exchange: Exchange,
    signing_secrets: Vec<String>,
    gzip: bool,
    concurrency: usize,
    closed: AtomicBool,
}

impl HttpSink {
    /// A sink with the system's resolver.
    pub fn new(options: HttpSinkOptions) -> Result<Self, HttpSinkError> {
        Self::with_resolver(options, Arc::new(SystemResolver::default()))
    }

    /// A sink with this resolver. Its answers are checked like those of any other.
    pub fn with_resolver(options: HttpSinkOptions, resolver: Arc<dyn Resolver>) -> Result<Self, HttpSinkError> {
        let HttpSinkOptions { http, signing_secrets, gzip, concurrency } = options;
        signing_secrets.iter().try_for_each(|secret| signature::check_secret(secret))?;
        if concurrency == 0 {
            return Err(HttpSinkError::Concurrency);
        }
        let exchange = Exchange::new(http, &resolver)?;
        Ok(Self { exchange, signing_secrets, gzip, concurrency, closed: AtomicBool::new(false) })
    }

    async fn send(&self, outgoing: RoutedMessage) -> PublishOutcome {
        let RoutedMessage { destination, message, .. } = outgoing;
        let url = match self.exchange.judge_url(&destination) {
            Ok(url) => url,
            Err(NotAllowed(why)) => return PublishOutcome::Refused(why),
        };
        let headers = match self.headers(&message) {
            Ok(headers) => headers,
            Err(why) => return PublishOutcome::Refused(format!("the message {why}")),
        };
        let body = message.payload.map(Vec::from).unwrap_or_default();
        match self.exchange.post(url, Post { headers, body, gzip: self.gzip }).await {
            Ok(answer) => outcome(&answer),
            Err(SendError::Forbidden(why)) => PublishOutcome::Refused(why),
            Err(SendError::Unwell(why)) => PublishOutcome::Unknown(why),
            Err(SendError::Late) => PublishOutcome::Unknown(format!("no answer within {:?}", self.exchange.timeout())),
        }
    }

    /// The headers of a message; or what is wrong with it, as the end of a sentence.
    fn headers(&self, message: &Message) -> Result<HeaderMap, String> {
        let (id, now) = (encoded(&message.id), now());
        let body = message.payload.as_deref().unwrap_or_default();
        let mut headers = webhook_headers(&id, now, || {
            let sign = |secret: &String| signature::sign(secret, &id, now, body);
            let signatures = self.signing_secrets.iter().map(sign).collect::<Result<Vec<_>, _>>()?;
            Ok((!signatures.is_empty()).then(|| signatures.join(" ")))
        })?;
        let value =
            |text: &str| HeaderValue::from_str(text).map_err(|_| "has a header that can not be sent".to_owned());
        if !message.content_type.is_empty() {
            let wrong = |_| format!("has a content type that can not be sent: {:?}", message.content_type);
            headers.insert(CONTENT_TYPE, HeaderValue::from_str(&message.content_type).map_err(wrong)?);
        }
        if let Some(key) = &message.key {
            headers.insert(MESSAGE_KEY, value(&encoded(key))?);
        }
        for (name, text) in message.headers.iter() {
            let Some(name) = header_name(name) else { continue };
            let as_it_is = !name.as_str().starts_with("ce-") && is_plain(text);
            let value = if as_it_is { value(text)? } else { value(&encoded(text))? };
            headers.try_insert(name, value).map_err(|_| "has too many headers".to_owned())?;
        }
        Ok(headers)
    }
}

#[async_trait]
impl Sink for HttpSink {
    fn durability(&self) -> Durability {
        // What an endpoint does before it answers is its own affair.
        Durability::HandedOver
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        if self.closed.load(Ordering::Acquire) {
            return vec![PublishOutcome::Refused("the sink is closed".to_owned()); batch.len()];
        }
        let limit = self.exchange.timeout();
        let last_start = Instant::now() + limit;
        in_waves(batch, limit, |wave| async move {
            let sending = wave.into_iter().enumerate().map(|(place, outgoing)| async move {
                // Many messages to an endpoint that hangs would take this long each.
                let late = Instant::now() >= last_start;
                (place, if late { PublishOutcome::NotSent } else { self.send(outgoing).await })
            });
            // Whichever ends first makes room for the next: one that is slow takes one place, not all.
            let mut answers: Vec<_> = stream::iter(sending).buffer_unordered(self.concurrency).collect().await;
            answers.sort_unstable_by_key(|(place, _)| *place);
            answers.into_iter().map(|(_, outcome)| outcome).collect()
        })
        .await
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

/// What an answer means. Only what says "not taken" is a refusal: an endpoint that fails may have taken it before.
fn outcome(answer: &Answer) -> PublishOutcome {
    let Answer { status, excerpt, .. } = answer;
    if status.is_success() {
        return PublishOutcome::Confirmed;
    }
    let mut why = format!("answered {}", status.as_u16());
    if let Some(reason) = status.canonical_reason() {
        let _ = write!(why, " {reason}");
    }
    if !excerpt.is_empty() {
        let _ = write!(why, ": {}", answer::excerpt(excerpt.as_bytes(), MAX_REASON));
    }
    let refuses = status.is_redirection() || status.is_client_error() && *status != StatusCode::REQUEST_TIMEOUT;
    if refuses { PublishOutcome::Refused(why) } else { PublishOutcome::Unknown(why) }
}

/// A header's name in HTTP; none if it is not sent.
fn header_name(name: &str) -> Option<HeaderName> {
    let valid = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let name: String = name.chars().map(|c| if valid(c) { c.to_ascii_lowercase() } else { '-' }).collect();
    if OWN_NAMES.contains(&name.as_str()) {
        return None;
    }
    HeaderName::try_from(name).ok()
}

/// Whether HTTP carries a value as it is. White space at the ends is no part of a value.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~')) && text.trim_ascii() == text
}

/// Percent-encoded as CloudEvents does in headers.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'%' | b'"' => drop(write!(encoded, "%{byte:02X}")),
            b'!'..=b'~' => encoded.push(char::from(byte)),
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}

/// The moment of sending: receivers refuse what is too old. Two machines agree about it as well as their clocks do.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_valid_and_those_of_http_are_left_out() {
        for (name, expected) in [
            ("event-type", Some("event-type")),
            ("X Tenant:é", Some("x-tenant--")),
            ("Host", None),
            ("CONTENT-LENGTH", None),
            ("webhook-signature", None),
            ("", None),
        ] {
            assert_eq!(header_name(name).as_ref().map(HeaderName::as_str), expected, "{name}");
        }
    }

    #[test]
    fn what_http_can_not_carry_is_percent_encoded() {
        assert_eq!(encoded("o-é 1%\r\n\""), "o-%C3%A9%201%25%0D%0A%22");
        assert_eq!(encoded("0191e7f2-7d9c"), "0191e7f2-7d9c");
        assert!(is_plain("a=%20; b") && !is_plain(" a") && !is_plain("é") && !is_plain("a\nb"));
    }

    #[test]
    fn only_an_answer_that_says_not_taken_is_a_refusal() {
        let of = |status: u16| {
            let status = StatusCode::from_u16(status).unwrap();
            outcome(&Answer { status, headers: HeaderMap::new(), excerpt: "x".repeat(1000) })
        };
        for status in [200, 201, 202, 204] {
            assert_eq!(of(status), PublishOutcome::Confirmed, "{status}");
        }
        for status in [301, 308, 400, 401, 403, 404, 409, 410, 413, 422, 429, 431] {
            assert!(matches!(of(status), PublishOutcome::Refused(why) if why.len() < 300), "{status}");
        }
        for status in [101, 408, 500, 502, 503, 504, 599] {
            assert!(matches!(of(status), PublishOutcome::Unknown(_)), "{status}");
        }
    }
}
