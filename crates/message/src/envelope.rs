//! How a payload is wrapped: not at all, or as [CloudEvents 1.0](https://cloudevents.io).

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde_json::{Map, Value};

use crate::{Message, header};

/// The media type of an event that is one JSON object.
const STRUCTURED: &str = "application/cloudevents+json";

/// How a payload is wrapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Envelope {
    /// The payload as it is.
    #[default]
    Bare,
    /// A CloudEvent in structured mode: one JSON object with the payload in it.
    CloudEvents,
    /// A CloudEvent in binary mode: the payload as it is, and the attributes in headers.
    CloudEventsBinary,
}

impl Envelope {
    /// Wraps a message. `source` says where it comes from (`/outboxes/orders`). In binary mode, `prefix` comes before the names
    /// of attributes in headers: `ce_` for Kafka, `ce-` for HTTP, `cloudEvents_` for AMQP. A tombstone stays as it is.
    pub fn wrap(self, message: &Message, source: &str, prefix: &str) -> Message {
        let Some(payload) = &message.payload else { return message.clone() };
        match self {
            Self::Bare => message.clone(),
            Self::CloudEvents => {
                let mut event: Map<String, Value> =
                    attributes(message, source).map(|(name, value)| (name.to_owned(), Value::String(value))).collect();
                event.insert("datacontenttype".to_owned(), Value::String(message.content_type.clone()));
                match serde_json::from_slice(payload).ok().filter(|_| is_json(&message.content_type)) {
                    Some(data) => event.insert("data".to_owned(), data),
                    None => event.insert("data_base64".to_owned(), Value::String(BASE64_STANDARD.encode(payload))),
                };
                let payload = Some(Bytes::from(Value::Object(event).to_string()));
                Message { payload, content_type: STRUCTURED.to_owned(), ..message.clone() }
            }
            Self::CloudEventsBinary => {
                let mut wrapped = message.clone();
                for (name, value) in attributes(message, source) {
                    wrapped.headers.set(format!("{prefix}{name}"), value);
                }
                wrapped
            }
        }
    }
}

/// What a CloudEvent says of a message. Names of extensions have letters and digits only.
fn attributes(message: &Message, source: &str) -> impl Iterator<Item = (&'static str, String)> {
    let extension = |name: &str| message.headers.get(name).map(str::to_owned);
    [
        ("specversion", Some("1.0".to_owned())),
        ("id", Some(message.id.clone())),
        ("source", Some(source.to_owned())),
        ("type", Some(message.event_type.clone())),
        ("subject", message.key.clone()),
        ("time", Some(message.time.to_string())),
        ("correlationid", extension(header::CORRELATION_ID)),
        ("schemaversion", extension(header::SCHEMA_VERSION)),
        ("traceparent", extension(header::TRACEPARENT)),
        ("tracestate", extension(header::TRACESTATE)),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
}

fn is_json(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    media_type == "application/json" || media_type.ends_with("+json")
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn message() -> Message {
        Message::new("m-1", "order.placed", r#"{"order":7,"total":1234567890123456789.10}"#)
            .with_key("o-7")
            .with_time(Timestamp::from_millisecond(1_769_848_200_125).unwrap())
            .with_header("correlation-id", "c-1")
            .with_header("x", "y")
    }

    #[test]
    fn a_structured_event_has_the_attributes_and_the_payload() {
        let wrapped = Envelope::CloudEvents.wrap(&message(), "/outboxes/orders", "ce-");
        let event: Value = serde_json::from_slice(&wrapped.payload.unwrap()).unwrap();
        // The number is longer than a float: it is carried as it was written.
        let expected: Value = serde_json::from_str(
            r#"{"specversion":"1.0","id":"m-1","source":"/outboxes/orders","type":"order.placed","subject":"o-7",
                "time":"2026-01-31T08:30:00.125Z","correlationid":"c-1","datacontenttype":"application/json",
                "data":{"order":7,"total":1234567890123456789.10}}"#,
        )
        .unwrap();
        assert_eq!(event, expected);
        assert_eq!(wrapped.content_type, "application/cloudevents+json");
        assert_eq!(wrapped.headers.get("x"), Some("y"));
    }

    #[test]
    fn bytes_that_are_not_json_are_base64_in_a_structured_event() {
        let message = Message { content_type: "application/avro".to_owned(), ..Message::new("1", "t", vec![0, 255]) };
        let wrapped = Envelope::CloudEvents.wrap(&message, "/s", "");
        let event: Value = serde_json::from_slice(&wrapped.payload.unwrap()).unwrap();
        assert_eq!((event["data_base64"].as_str(), event.get("data")), (Some("AP8="), None));
    }

    #[test]
    fn a_binary_event_has_its_attributes_in_headers() {
        let wrapped = Envelope::CloudEventsBinary.wrap(&message(), "/outboxes/orders", "ce_");
        assert_eq!(wrapped.payload, message().payload);
        for (name, value) in
            [("ce_specversion", "1.0"), ("ce_id", "m-1"), ("ce_source", "/outboxes/orders"), ("ce_subject", "o-7")]
        {
            assert_eq!(wrapped.headers.get(name), Some(value), "{name}");
        }
    }

    #[test]
    fn bare_messages_and_tombstones_stay_as_they_are() {
        assert_eq!(Envelope::Bare.wrap(&message(), "/s", "ce-"), message());
        let tombstone = Message { payload: None, ..message() };
        assert_eq!(Envelope::CloudEvents.wrap(&tombstone, "/s", "ce-"), tombstone);
    }
}
