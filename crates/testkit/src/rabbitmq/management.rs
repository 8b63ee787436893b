//! As much of RabbitMQ's management API as tests need.
//!
//! By hand, over plain HTTP: an HTTP client would be the crate's heaviest dependency. Speaks
//! HTTP/1.0, so that an answer is all there is until the connection closes.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use url::form_urlencoded::byte_serialize;

/// How long one request may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A node's management API.
#[derive(Debug, Clone)]
pub(super) struct Management {
    /// Host and port.
    authority: String,
    authorization: String,
}

/// A message that was taken out of a queue.
#[derive(Debug, Clone, PartialEq)]
pub struct TakenMessage {
    /// What it says.
    pub body: Vec<u8>,
    /// AMQP's properties by their names in snake case, `headers` among them; those that are not set are absent.
    pub properties: Value,
    /// The exchange that it was published to.
    pub exchange: String,
    /// The routing key that it was published with.
    pub routing_key: String,
    /// Whether somebody else was given it before.
    pub redelivered: bool,
}

impl Management {
    pub(super) fn new(authority: String, user: &str, password: &str) -> Self {
        let authorization = BASE64_STANDARD.encode(format!("{user}:{password}"));
        Self { authority, authorization }
    }

    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value> {
        self.request("GET", path, None).await
    }

    pub(super) async fn put(&self, path: &str, body: Value) -> Result<()> {
        self.request("PUT", path, Some(body)).await.map(drop)
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> Result<Value> {
        self.request("POST", path, Some(body)).await
    }

    pub(super) async fn delete(&self, path: &str) -> Result<()> {
        self.request("DELETE", path, None).await.map(drop)
    }

    /// Takes messages out of a queue for good, the oldest first, `at_most` so many.
    pub(super) async fn take(&self, vhost: &str, queue: &str, at_most: usize) -> Result<Vec<TakenMessage>> {
        let path = format!("queues/{}/{}/get", escaped(vhost), escaped(queue));
        let body = json!({"count": at_most, "ackmode": "ack_requeue_false", "encoding": "base64"});
        let answer = self.post(&path, body).await?;
        answer.as_array().context("not a list of messages")?.iter().map(taken).collect()
    }

    /// One request; any answer but a 2xx is an error.
    async fn request(&self, method: &str, path: &str, body: Option<Value>) -> Result<Value> {
        let exchange = timeout(PATIENCE, self.exchange(method, path, body));
        let (status, answer) = exchange
            .await
            .with_context(|| format!("no answer within {PATIENCE:?}"))
            .and_then(|answer| answer)
            .with_context(|| format!("{method} /api/{path}"))?;
        if !(200..300).contains(&status) {
            bail!("{method} /api/{path}: {status} {}", String::from_utf8_lossy(&answer));
        }
        if answer.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&answer).with_context(|| format!("{method} /api/{path}: read the answer"))
    }

    async fn exchange(&self, method: &str, path: &str, body: Option<Value>) -> Result<(u16, Vec<u8>)> {
        let body = body.map_or_else(String::new, |body| body.to_string());
        let Self { authority, authorization } = self;
        let length = body.len();
        let request = format!(
            "{method} /api/{path} HTTP/1.0\r\nHost: {authority}\r\nAuthorization: Basic {authorization}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let mut stream = TcpStream::connect(authority).await.context("connect")?;
        stream.write_all(request.as_bytes()).await.context("send")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.context("receive")?;
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").context("not HTTP")?;
        let head = String::from_utf8_lossy(&answer[..end]);
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("not HTTP: {head:?}"))?;
        Ok((status, answer.split_off(end + 4)))
    }
}

/// A name as one segment of a path.
pub(super) fn escaped(name: &str) -> String {
    // Forms write a space as `+`, paths do not.
    byte_serialize(name.as_bytes()).collect::<String>().replace('+', "%20")
}

fn taken(message: &Value) -> Result<TakenMessage> {
    let text = |name: &str| message[name].as_str().with_context(|| format!("a message without {name}"));
    Ok(TakenMessage {
        body: BASE64_STANDARD.decode(text("payload")?).context("decode a message's body")?,
        // Without any, the API writes an empty list.
        properties: Some(&message["properties"]).filter(|list| list.is_object()).cloned().unwrap_or(json!({})),
        exchange: text("exchange")?.to_owned(),
        routing_key: text("routing_key")?.to_owned(),
        redelivered: message["redelivered"] == true,
    })
}
