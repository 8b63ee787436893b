//! Frames: what links send, written once for all links that send it.

use std::sync::{Arc, OnceLock};

use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::{Gap, Notification};

/// An event of a link, as server-sent event and as JSON.
#[derive(Debug)]
pub struct Frame {
    /// Its name.
    pub event: FrameEvent,
    /// The cursor to resume from after it; none if it has no place in the log.
    pub cursor: Option<String>,
    /// JSON.
    pub data: String,
    sse: OnceLock<Arc<[u8]>>,
    json: OnceLock<String>,
}

/// The events of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FrameEvent {
    /// The link begins.
    Hello,
    /// A message, for the first time or again.
    Notification,
    /// A message was withdrawn or replaced.
    Withdrawn,
    /// The user has acknowledged messages, here or elsewhere.
    Acknowledged,
    /// The user's audiences have changed.
    Audiences,
    /// What came since the cursor is not known.
    Gap,
    /// The link ends.
    Bye,
}

impl FrameEvent {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Notification => "notification",
            Self::Withdrawn => "withdrawn",
            Self::Acknowledged => "acknowledged",
            Self::Audiences => "audiences",
            Self::Gap => "gap",
            Self::Bye => "bye",
        }
    }
}

/// Why a link ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bye {
    /// Its token has expired.
    Expired,
    /// Its reader does not take what is sent.
    Slow,
    /// The server stops.
    Stopping,
}

impl Bye {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Slow => "slow",
            Self::Stopping => "stopping",
        }
    }
}

impl Frame {
    fn new(event: FrameEvent, cursor: Option<String>, data: String) -> Arc<Self> {
        Arc::new(Self { event, cursor, data, sse: OnceLock::new(), json: OnceLock::new() })
    }

    fn of(event: FrameEvent, cursor: Option<String>, data: &impl Serialize) -> Arc<Self> {
        // Nothing that is sent has keys that are no texts.
        Self::new(event, cursor, serde_json::to_string(data).unwrap_or_default())
    }

    pub(crate) fn hello(link: Uuid, user: &str, cursor: String) -> Arc<Self> {
        Self::of(FrameEvent::Hello, Some(cursor), &serde_json::json!({"link": link, "user": user}))
    }

    pub(crate) fn notification(notification: &Notification, cursor: String) -> Arc<Self> {
        Self::of(FrameEvent::Notification, Some(cursor), notification)
    }

    pub(crate) fn withdrawn(id: Uuid, replaced_by: Option<Uuid>, cursor: String) -> Arc<Self> {
        let data = match replaced_by {
            Some(new) => serde_json::json!({"id": id, "replacedBy": new}),
            None => serde_json::json!({"id": id}),
        };
        Self::of(FrameEvent::Withdrawn, Some(cursor), &data)
    }

    pub(crate) fn acknowledged(ids: &[Uuid], cursor: String) -> Arc<Self> {
        Self::of(FrameEvent::Acknowledged, Some(cursor), &serde_json::json!({"ids": ids}))
    }

    pub(crate) fn audiences(cursor: Option<String>) -> Arc<Self> {
        Self::new(FrameEvent::Audiences, cursor, "{}".to_owned())
    }

    pub(crate) fn gap(gap: Gap, cursor: String) -> Arc<Self> {
        Self::of(FrameEvent::Gap, Some(cursor), &serde_json::json!({"reason": gap.as_str()}))
    }

    pub(crate) fn bye(bye: Bye) -> Arc<Self> {
        Self::of(FrameEvent::Bye, None, &serde_json::json!({"reason": bye.as_str()}))
    }

    /// As a server-sent event.
    pub fn sse(&self) -> Arc<[u8]> {
        let written = self.sse.get_or_init(|| {
            let mut text = String::with_capacity(self.data.len() + 64);
            if let Some(cursor) = &self.cursor {
                text.extend(["id: ", cursor, "\n"]);
            }
            text.extend(["event: ", self.event.as_str(), "\n"]);
            // A payload is sent as its emitter has written it, perhaps on many lines.
            for line in self.data.split(['\n', '\r']) {
                text.extend(["data: ", line, "\n"]);
            }
            text.push('\n');
            Arc::from(text.into_bytes())
        });
        Arc::clone(written)
    }

    /// As JSON, for links that are no streams of server-sent events.
    pub fn json(&self) -> &str {
        #[derive(Serialize)]
        struct Written<'a> {
            event: FrameEvent,
            #[serde(skip_serializing_if = "Option::is_none")]
            id: Option<&'a str>,
            data: &'a RawValue,
        }
        self.json.get_or_init(|| {
            let data = serde_json::from_str(&self.data).unwrap_or(RawValue::NULL);
            let written = Written { event: self.event, id: self.cursor.as_deref(), data };
            serde_json::to_string(&written).unwrap_or_default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_on_many_lines_stays_one_event() {
        let frame = Frame::new(FrameEvent::Notification, Some("a-1".into()), "{\n\"a\":\r\n1}".into());
        let text = String::from_utf8(frame.sse().to_vec()).unwrap();
        assert_eq!(text, "id: a-1\nevent: notification\ndata: {\ndata: \"a\":\ndata: \ndata: 1}\n\n");
        assert_eq!(frame.json(), "{\"event\":\"notification\",\"id\":\"a-1\",\"data\":{\n\"a\":\r\n1}}");
        assert_eq!(Frame::bye(Bye::Slow).json(), r#"{"event":"bye","data":{"reason":"slow"}}"#);
    }
}
