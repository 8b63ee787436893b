//! An operator who follows the event bus of a server.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, stream::BoxStream};
use serde_json::Value;

use crate::chaos::Api;

/// How long anything may take before a test is failed for it.
const DEADLINE: Duration = Duration::from_secs(30);

/// Events as they arrive.
pub struct Tail {
    bytes: BoxStream<'static, reqwest::Result<Vec<u8>>>,
    buffer: Vec<u8>,
}

/// One of them.
#[derive(Debug, Clone)]
pub struct Told {
    /// The stream's own name for it: empty for an event of the bus.
    pub name: String,
    /// Its data, read.
    pub data: Value,
}

impl Told {
    /// Where it was published.
    pub fn channel(&self) -> &str {
        self.data["channel"].as_str().unwrap_or_default()
    }

    /// What it says.
    pub fn payload(&self) -> &Value {
        &self.data["payload"]
    }
}

impl Tail {
    /// Follows these patterns on the server at `url`, from when this returns.
    pub async fn open(url: &str, patterns: &[&str]) -> Result<Self> {
        let query: Vec<String> =
            patterns.iter().map(|pattern| format!("channel={}", pattern.replace('>', "%3E"))).collect();
        let path = format!("/admin/events?{}", query.join("&"));
        let request = Api::admin(url)?.request(reqwest::Method::GET, &path).timeout(Duration::from_secs(600));
        let response = request.send().await?;
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        ensure!(response.status() == 200 && kind == "text/event-stream", "answered {} {kind}", response.status());
        let bytes = response.bytes_stream().map(|chunk| chunk.map(|bytes| bytes.to_vec())).boxed();
        Ok(Self { bytes, buffer: Vec::new() })
    }

    /// The next event; none when the server has ended the stream.
    pub async fn next(&mut self) -> Result<Option<Told>> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
                match parse(std::str::from_utf8(&block)?)? {
                    Some(told) => return Ok(Some(told)),
                    None => continue,
                }
            }
            match tokio::time::timeout(DEADLINE, self.bytes.next()).await.context("nothing was told in time")? {
                Some(chunk) => self.buffer.extend(chunk.context("the stream broke off")?),
                None => return Ok(None),
            }
        }
    }

    /// The next one that is like this; others are passed over.
    pub async fn until(&mut self, wanted: impl Fn(&Told) -> bool) -> Result<Told> {
        loop {
            let told = self.next().await?.context("the stream ended")?;
            if wanted(&told) {
                return Ok(told);
            }
        }
    }
}

/// Reads one event; comments are none.
fn parse(block: &str) -> Result<Option<Told>> {
    let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let Some(data) = field("data") else { return Ok(None) };
    let name = field("event").unwrap_or_default().to_owned();
    Ok(Some(Told { name, data: serde_json::from_str(data).with_context(|| data.to_owned())? }))
}
