//! A stream of server-sent events, read one by one.

use futures::StreamExt as _;
use serde_json::Value;

use super::DEADLINE;

/// One event.
#[derive(Debug, Clone)]
pub struct Event {
    /// `status`, `progress` or `position`.
    pub name: String,
    /// What to give as `Last-Event-ID`.
    pub id: u64,
    /// The data, read.
    pub data: Value,
}

/// Events as they arrive.
pub struct Events {
    /// The HTTP status of the answer that carries them.
    pub status: u16,
    /// What the answer says it is.
    pub content_type: String,
    bytes: futures::stream::BoxStream<'static, reqwest::Result<Vec<u8>>>,
    buffer: String,
}

impl Events {
    pub(super) fn new(response: reqwest::Response) -> Self {
        let content_type = response.headers().get("content-type").and_then(|value| value.to_str().ok());
        Self {
            status: response.status().as_u16(),
            content_type: content_type.unwrap_or_default().to_owned(),
            bytes: response.bytes_stream().map(|chunk| chunk.map(|bytes| bytes.to_vec())).boxed(),
            buffer: String::new(),
        }
    }

    /// The next event, within the deadline; none when the stream has ended.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((block, rest)) = self.buffer.split_once("\n\n") {
                let (event, rest) = (parse(block), rest.to_owned());
                self.buffer = rest;
                match event {
                    Some(event) => return Some(event),
                    None => continue,
                }
            }
            let chunk = tokio::time::timeout(DEADLINE, self.bytes.next())
                .await
                .unwrap_or_else(|_| panic!("no event came within {DEADLINE:?}"))?;
            let chunk = chunk.unwrap_or_else(|error| panic!("the stream broke off: {error}"));
            self.buffer.push_str(std::str::from_utf8(&chunk).unwrap_or_else(|error| panic!("{error}")));
        }
    }

    /// The next event, which must come.
    pub async fn expect(&mut self) -> Event {
        self.next().await.unwrap_or_else(|| panic!("the stream ended"))
    }
}

/// Reads one event; comments are none. A line ends with either sign, or both.
fn parse(block: &str) -> Option<Event> {
    let block = block.replace("\r\n", "\n").replace('\r', "\n");
    let fields = |name: &str| -> Vec<&str> {
        let values = block.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        values.map(|value| value.strip_prefix(' ').unwrap_or(value)).collect()
    };
    let field = |name: &str| fields(name).first().map(|value| (*value).to_owned());
    let lines = fields("data");
    if lines.is_empty() {
        return None;
    }
    let data = lines.join("\n");
    Some(Event {
        name: field("event").unwrap_or_default(),
        id: field("id").and_then(|id| id.parse().ok()).unwrap_or_else(|| panic!("an event without an id: {block}")),
        data: serde_json::from_str(&data).unwrap_or_else(|error| panic!("{error}: {data}")),
    })
}
