//! The one model of a message.

use bytes::Bytes;
use jiff::Timestamp;

/// Names of headers that mean the same on every sink.
pub mod header {
    /// What happened: the message's type.
    pub const EVENT_TYPE: &str = "event-type";
    /// Which version of the payload's schema it is.
    pub const SCHEMA_VERSION: &str = "schema-version";
    /// One id through a chain of tasks, messages and sagas.
    pub const CORRELATION_ID: &str = "correlation-id";
    /// W3C trace context.
    pub const TRACEPARENT: &str = "traceparent";
    /// W3C trace context.
    pub const TRACESTATE: &str = "tracestate";
}

/// A fact that one service tells others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The same each time the message is sent, so that receivers can drop repeats.
    pub id: String,
    /// What the fact is about: the aggregate. Messages of one key arrive in order. None means that no order is asked for.
    pub key: Option<String>,
    /// What happened, for example `order.placed`.
    pub event_type: String,
    /// When it happened.
    pub time: Timestamp,
    /// Anything else, as text.
    pub headers: Headers,
    /// What it says. None is a tombstone: the key has no value any more.
    pub payload: Option<Bytes>,
    /// The payload's media type.
    pub content_type: String,
}

impl Message {
    /// A message whose payload is JSON, with the time 0 and no key.
    pub fn new(id: impl Into<String>, event_type: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            id: id.into(),
            key: None,
            event_type: event_type.into(),
            time: Timestamp::UNIX_EPOCH,
            headers: Headers::default(),
            payload: Some(payload.into()),
            content_type: "application/json".to_owned(),
        }
    }

    /// Sets the key: what the message is about.
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets when it happened.
    pub fn with_time(mut self, time: Timestamp) -> Self {
        self.time = time;
        self
    }

    /// Adds a header, or replaces the one of that name.
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.set(name, value);
        self
    }

    /// How many bytes it has, headers and payload together: what memory and limits are counted in.
    pub fn size(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.id.len()
            + self.key.as_ref().map_or(0, String::len)
            + self.event_type.len()
            + headers
            + self.payload.as_ref().map_or(0, Bytes::len)
    }
}

/// Headers in the order in which they were set. A name is there once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// The value of a header.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Adds a header, or replaces the one of that name.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name, value)),
        }
    }

    /// All headers.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let mut headers = Self::default();
        pairs.into_iter().for_each(|(name, value)| headers.set(name, value));
        headers
    }
}
