//! A Redis stream as a sink: `XADD`, one message of a key at a time.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use redis::{
    Client, Cmd, Pipeline, RedisError, RedisResult,
    aio::{ConnectionManager, ConnectionManagerConfig},
};
use relais_message::{Durability, Message, PublishOutcome, RoutedMessage, Sink, in_waves};
use tokio::{sync::OnceCell, time::timeout};

/// How a stream is written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisSinkOptions {
    /// How long a wave of messages may take.
    pub timeout: Duration,
    /// About how many entries a stream keeps; none means all.
    pub max_length: Option<u64>,
    /// What a confirmation means. Redis answers before the disk has it, unless it runs with `appendfsync always`: say
    /// [`Durability::Disk`] only then.
    pub durability: Durability,
}

impl Default for RedisSinkOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(10), max_length: None, durability: Durability::HandedOver }
    }
}

/// Why there can be no sink.
#[derive(Debug, thiserror::Error)]
pub enum RedisSinkError {
    /// The URL can not be used.
    #[error("the URL of the Redis server is not acceptable: {0}")]
    Url(#[source] RedisError),
    /// The server does not answer, or not as it should.
    #[error("the Redis server does not answer: {0}")]
    Away(#[source] RedisError),
}

/// Appends to streams: the destination is the stream's key.
///
/// An entry has the fields `id`, `key`, `type`, `time`, `content_type`, `payload` and `headers` (a JSON object). A tombstone has
/// no `payload`, and a message without a key no `key`.
pub struct RedisSink {
    client: Client,
    connection: OnceCell<ConnectionManager>,
    options: RedisSinkOptions,
    closed: AtomicBool,
}

impl std::fmt::Debug for RedisSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisSink").field("options", &self.options).finish_non_exhaustive()
    }
}

impl RedisSink {
    /// A sink at `redis://user:password@host:port/database`, or `rediss://`. Does not connect yet.
    pub fn new(url: &str, options: RedisSinkOptions) -> Result<Self, RedisSinkError> {
        let client = Client::open(url).map_err(RedisSinkError::Url)?;
        Ok(Self { client, connection: OnceCell::new(), options, closed: AtomicBool::new(false) })
    }

    async fn connection(&self) -> RedisResult<ConnectionManager> {
        let connect = || async {
            let config = ConnectionManagerConfig::new()
                .set_connection_timeout(Some(self.options.timeout))
                .set_response_timeout(Some(self.options.timeout))
                .set_number_of_retries(1);
            self.client.get_connection_manager_with_config(config).await
        };
        self.connection.get_or_try_init(connect).await.cloned()
    }

    /// Asks the server whether it is there. Changes nothing.
    pub async fn ping(&self) -> Result<(), RedisSinkError> {
        let mut connection = self.connection().await.map_err(RedisSinkError::Away)?;
        redis::cmd("PING").query_async(&mut connection).await.map_err(RedisSinkError::Away)
    }

    async fn append(&self, wave: &[RoutedMessage]) -> RedisResult<Vec<RedisResult<String>>> {
        let mut connection = self.connection().await?;
        let mut pipeline = Pipeline::with_capacity(wave.len());
        for outgoing in wave {
            pipeline.add_command(self.command(outgoing));
        }
        pipeline.ignore_errors().query_async(&mut connection).await
    }

    fn command(&self, outgoing: &RoutedMessage) -> Cmd {
        let RoutedMessage { destination, message, .. } = outgoing;
        let mut command = redis::cmd("XADD");
        command.arg(destination);
        if let Some(length) = self.options.max_length {
            command.arg("MAXLEN").arg("~").arg(length);
        }
        command.arg("*").arg("id").arg(&message.id).arg("type").arg(&message.event_type);
        command.arg("time").arg(message.time.to_string()).arg("content_type").arg(&message.content_type);
        if let Some(key) = &message.key {
            command.arg("key").arg(key);
        }
        if !message.headers.is_empty() {
            command.arg("headers").arg(headers(message));
        }
        if let Some(payload) = &message.payload {
            command.arg("payload").arg(&payload[..]);
        }
        command
    }
}

#[async_trait]
impl Sink for RedisSink {
    fn durability(&self) -> Durability {
        self.options.durability
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        if self.closed.load(Ordering::Acquire) {
            return vec![PublishOutcome::Refused("the sink is closed".to_owned()); batch.len()];
        }
        in_waves(batch, self.options.timeout, |wave| async move {
            let (number, limit) = (wave.len(), self.options.timeout);
            match timeout(limit, self.append(&wave)).await {
                Ok(Ok(answers)) => answers.into_iter().map(outcome).collect(),
                // Of the whole wave, and of no message.
                Ok(Err(error)) => vec![PublishOutcome::Unknown(error.to_string()); number],
                Err(_) => vec![PublishOutcome::Unknown(format!("Redis did not answer within {limit:?}")); number],
            }
        })
        .await
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

fn headers(message: &Message) -> String {
    let headers: serde_json::Map<String, serde_json::Value> =
        message.headers.iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    serde_json::Value::Object(headers).to_string()
}

/// What the server says about a command is certain; anything else leaves open whether it was done.
fn outcome(answer: RedisResult<String>) -> PublishOutcome {
    match answer {
        Ok(_) => PublishOutcome::Confirmed,
        Err(error) if error.code().is_some() && !is_passing(&error) => PublishOutcome::Refused(error.to_string()),
        Err(error) => PublishOutcome::Unknown(error.to_string()),
    }
}

/// The server is there but takes no writes for now, whatever the message is.
fn is_passing(error: &RedisError) -> bool {
    matches!(
        error.code(),
        Some(
            "LOADING"
                | "MASTERDOWN"
                | "READONLY"
                | "CLUSTERDOWN"
                | "TRYAGAIN"
                | "BUSY"
                | "NOREPLICAS"
                | "OOM"
                | "MISCONF"
                | "NOAUTH"
                | "WRONGPASS"
        )
    )
}
