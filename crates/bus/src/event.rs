//! An event, and how it is written where it has to leave the process.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::{BusError, Payload, id};

/// Something that happened, as its subscribers receive it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Event {
    /// Its name, a UUID of version 7. A replayed dead letter keeps the one it had.
    pub id: Uuid,
    /// Where it was published.
    pub channel: Arc<str>,
    /// When it was published, by the publisher's clock.
    pub timestamp: Timestamp,
    /// Who published it: the bus's source unless the publisher said otherwise.
    pub source: Arc<str>,
    /// What it says.
    pub payload: Payload,
    /// What was said beside it.
    pub metadata: Metadata,
}

impl Event {
    pub(crate) fn new(channel: Arc<str>, source: Arc<str>, payload: Payload, metadata: Metadata) -> Self {
        let timestamp = Timestamp::now();
        Self { id: id::new(timestamp), channel, timestamp, source, payload, metadata }
    }

    /// The event as JSON, the form that transports carry: `id`, `channel`, `timestamp`, `source`, `payload`,
    /// `metadata`.
    ///
    /// # Errors
    ///
    /// If the payload can not be serialised.
    pub fn to_json(&self) -> Result<String, BusError> {
        let wire = Wire {
            id: self.id,
            channel: Cow::Borrowed(&self.channel),
            timestamp: Cow::Owned(format!("{:.6}", self.timestamp)),
            source: Cow::Borrowed(&self.source),
            payload: Cow::Borrowed(self.payload.as_json()?),
            metadata: self.metadata.0.as_deref().map(Cow::Borrowed),
        };
        serde_json::to_string(&wire).map_err(BusError::Envelope)
    }

    /// Reads what [`to_json`](Self::to_json) wrote.
    ///
    /// # Errors
    ///
    /// If it is not an event.
    pub fn from_json(text: &str) -> Result<Self, BusError> {
        let wire: Wire<'_> = serde_json::from_str(text).map_err(BusError::Envelope)?;
        let timestamp = wire.timestamp.parse().map_err(|error| BusError::Envelope(serde::de::Error::custom(error)))?;
        Ok(Self {
            id: wire.id,
            channel: wire.channel.into(),
            timestamp,
            source: wire.source.into(),
            payload: Payload::json(wire.payload.into_owned()),
            metadata: Metadata(wire.metadata.map(|map| Arc::new(map.into_owned())).filter(|map| !map.is_empty())),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct Wire<'a> {
    id: Uuid,
    channel: Cow<'a, str>,
    timestamp: Cow<'a, str>,
    source: Cow<'a, str>,
    payload: Cow<'a, RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metadata: Option<Cow<'a, BTreeMap<String, String>>>,
}

/// Words beside the payload: a trace, a key, a number of retries. Costs nothing while there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata(Option<Arc<BTreeMap<String, String>>>);

impl Metadata {
    /// What keeps events in order in a worker that is [ordered by key](crate::Order::Key).
    pub const KEY: &str = "key";
    /// How many times a push worker has tried the event again.
    pub const RETRY_COUNT: &str = "retry_count";
    /// On a dead letter: why it is one.
    pub const ERROR: &str = "error";
    /// On a dead letter: the channel of the event that it was.
    pub const ORIGINAL_CHANNEL: &str = "original_channel";
    /// On a dead letter: the id of the event that it was.
    pub const ORIGINAL_ID: &str = "original_id";
    /// On a dead letter: the source of the event that it was.
    pub const ORIGINAL_SOURCE: &str = "original_source";
    /// On a dead letter: the worker or subscription that gave up.
    pub const FAILED_BY: &str = "failed_by";

    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with one more.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.set(name, value);
        self
    }

    /// Adds or replaces one.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let map = self.0.get_or_insert_default();
        Arc::make_mut(map).insert(name.into(), value.into());
    }

    /// Takes one away.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        let map = self.0.as_mut()?;
        let removed = Arc::make_mut(map).remove(name);
        if map.is_empty() {
            self.0 = None;
        }
        removed
    }

    /// One of them.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.as_ref()?.get(name).map(String::as_str)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(|map| map.iter()).map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let map: BTreeMap<_, _> = pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Self((!map.is_empty()).then(|| Arc::new(map)))
    }
}

impl<N: Into<String>, V: Into<String>, const COUNT: usize> From<[(N, V); COUNT]> for Metadata {
    fn from(pairs: [(N, V); COUNT]) -> Self {
        pairs.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_survives_the_wire() {
        let metadata = Metadata::from([("trace", "00-ab"), ("key", "customer \"7\"")]);
        let event = Event::new("orders.created".into(), "shop".into(), Payload::from(vec![1, 2]), metadata);
        let again = Event::from_json(&event.to_json().unwrap()).unwrap();
        assert_eq!((again.id, &again.channel, &again.source), (event.id, &event.channel, &event.source));
        assert_eq!(again.timestamp.as_microsecond(), event.timestamp.as_microsecond());
        assert_eq!(again.metadata, event.metadata);
        assert_eq!(*again.payload.get::<Vec<u8>>().unwrap(), [1, 2]);
    }

    #[test]
    fn a_malformed_event_is_refused() {
        for text in ["", "{}", r#"{"id":"x"}"#] {
            assert!(Event::from_json(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn metadata_that_is_empty_is_none() {
        let mut metadata = Metadata::new().with("a", "1");
        assert_eq!(metadata.remove("a").as_deref(), Some("1"));
        assert!(metadata.is_empty() && metadata == Metadata::new());
    }
}
