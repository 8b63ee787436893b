//! The link of a page as a stream of server-sent events, read one by one.

use futures::{StreamExt as _, stream::BoxStream};
use relais_tests::app::{Answer, Caller, DEADLINE};
use serde_json::Value;

/// One event of a link.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub name: String,
    /// The cursor behind it.
    pub id: Option<String>,
    pub data: Value,
}

/// An open link.
pub struct Link {
    bytes: BoxStream<'static, reqwest::Result<Vec<u8>>>,
    buffer: Vec<u8>,
    /// Its id, as `hello` said it.
    pub id: String,
    /// The last cursor.
    pub cursor: String,
}

impl Event {
    /// The id of the message that it is about.
    pub fn message(&self) -> String {
        let id = if self.name == "notification" { &self.data["metadata"]["id"] } else { &self.data["id"] };
        id.as_str().unwrap_or_default().to_owned()
    }

    /// The payload of a message.
    pub fn payload(&self) -> &Value {
        assert_eq!(self.name, "notification", "{self:?}");
        &self.data["payload"]
    }
}

impl Link {
    /// Opens a link, which must begin; after a cursor, or behind all that was ever answered. Without a cursor it would begin
    /// where the instance has read the log, which may be a moment ago.
    pub async fn open(user: &Caller, after: Option<&str>) -> Self {
        let cursor = match after {
            Some(cursor) => cursor.to_owned(),
            None => {
                let listed = user.get("/v1/notifications?limit=1").await.data();
                listed["cursor"].as_str().unwrap_or_default().to_owned()
            }
        };
        Self::begin(user.clone().with("last-event-id", &cursor).open("/v1/notifications/stream").await).await
    }

    /// Opens a link without a cursor.
    pub async fn open_now(user: &Caller) -> Self {
        Self::begin(user.open("/v1/notifications/stream").await).await
    }

    /// Reads until the link has begun.
    pub async fn begin(response: reqwest::Response) -> Self {
        let status = response.status();
        if status != 200 {
            panic!("the link is refused: {status} {}", response.text().await.unwrap_or_default());
        }
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let bytes = response.bytes_stream().map(|chunk| chunk.map(|bytes| bytes.to_vec())).boxed();
        let mut link = Self { bytes, buffer: Vec::new(), id: String::new(), cursor: String::new() };
        let hello = link.expect("hello").await;
        link.id = hello.data["link"].as_str().unwrap_or_default().to_owned();
        assert!(hello.id.is_some() && !link.id.is_empty(), "{hello:?}");
        link
    }

    /// The refusal of a link.
    pub async fn refused(user: &Caller) -> Answer {
        user.get("/v1/notifications/stream").await
    }

    /// The next event, within the deadline; none when the link has ended, or broke off.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let block = String::from_utf8(block).unwrap_or_else(|error| panic!("{error}"));
                let Some(event) = parse(&block) else { continue };
                if let Some(id) = &event.id {
                    self.cursor.clone_from(id);
                }
                return Some(event);
            }
            let chunk = tokio::time::timeout(DEADLINE, self.bytes.next()).await;
            match chunk.unwrap_or_else(|_| panic!("no event came within {DEADLINE:?}")) {
                Some(Ok(bytes)) => self.buffer.extend(bytes),
                Some(Err(_)) | None => return None,
            }
        }
    }

    /// The next event, which must have this name.
    pub async fn expect(&mut self, name: &str) -> Event {
        let event = self.next().await.unwrap_or_else(|| panic!("the link ended, and {name} was expected"));
        assert_eq!(event.name, name, "{event:?}");
        event
    }

    /// The next event, which must have one of these names.
    pub async fn expect_any(&mut self, names: &[&str]) -> Event {
        let event = self.next().await.unwrap_or_else(|| panic!("the link ended, and one of {names:?} was expected"));
        assert!(names.contains(&event.name.as_str()), "{event:?}");
        event
    }

    /// The next event, which must be a message with this payload.
    pub async fn expect_payload(&mut self, payload: &Value) -> Event {
        let event = self.expect("notification").await;
        assert_eq!(event.payload(), payload);
        event
    }

    /// The next event, which must end the link, and say why.
    pub async fn expect_bye(&mut self, reason: &str) {
        let bye = self.expect("bye").await;
        assert_eq!(bye.data["reason"], reason);
        assert_eq!(self.next().await, None, "nothing comes after bye");
    }
}

/// Reads one event; comments are none.
pub fn parse(block: &str) -> Option<Event> {
    let fields = |name: &str| -> Vec<&str> {
        let values = block.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        values.map(|value| value.strip_prefix(' ').unwrap_or(value)).collect()
    };
    let field = |name: &str| fields(name).first().map(|value| (*value).to_owned());
    let data = fields("data");
    if data.is_empty() {
        return None;
    }
    let data = data.join("\n");
    Some(Event {
        name: field("event").unwrap_or_default(),
        id: field("id"),
        data: serde_json::from_str(&data).unwrap_or_else(|error| panic!("{error}: {data}")),
    })
}
