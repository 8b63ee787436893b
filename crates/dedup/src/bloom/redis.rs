//! A filter in a server that has `BF.*`: Redis 8, Redis with RedisBloom, Valkey with valkey-bloom. All processes share it.
//!
//! The younger generation is `dedup:bloom`, so that code which says `BF.ADD dedup:bloom ID` shares it. Scripts turn the generations
//! by the server's clock; on a cluster they would need all keys on one node.

use std::{
    fmt,
    sync::{Arc, LazyLock},
    time::Duration,
};

use async_trait::async_trait;
use redis::{Script, Value, aio::ConnectionManager};

use super::{BloomOptions, MemoryBloom, SeenFilter};
use crate::{
    DedupError, DedupKey,
    redis::{connect, millis, scoped},
};

/// The key of the younger generation, unless it is said.
const KEY: &str = "dedup:bloom";

static SEEN: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("rotate.lua"), include_str!("seen.lua"))));
static ADD: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("rotate.lua"), include_str!("add.lua"))));

/// A Bloom filter in a server that has `BF.*`: 40 MB there for 10 million ids in a window with 0.1 % false answers.
///
/// More ids than it was made for make it grow (`EXPANSION 2`), so it forgets none within the window. All that use a key must
/// say the same window.
#[derive(Clone)]
pub struct RedisBloom {
    connection: ConnectionManager,
    options: BloomOptions,
    key: String,
}

impl fmt::Debug for RedisBloom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { options, key, .. } = self;
        f.debug_struct("RedisBloom").field("key", key).field("options", options).finish_non_exhaustive()
    }
}

impl RedisBloom {
    /// The filter `dedup:bloom` of a server.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or has no `BF.*`.
    pub async fn connect(url: &str, options: BloomOptions) -> Result<Self, DedupError> {
        Self::new(connect(url).await?, options).await
    }

    /// On a connection that is there.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or has no `BF.*`.
    pub async fn new(mut connection: ConnectionManager, options: BloomOptions) -> Result<Self, DedupError> {
        let ask = redis::cmd("COMMAND").arg("INFO").arg("BF.RESERVE").to_owned();
        match ask.query_async::<Vec<Value>>(&mut connection).await?.first() {
            Some(Value::Nil) | None => Err(DedupError::NoBloom),
            Some(_) => Ok(Self { connection, options, key: KEY.to_owned() }),
        }
    }

    /// Another key instead of `dedup:bloom`.
    pub fn with_key(self, key: &str) -> Self {
        Self { key: key.to_owned(), ..self }
    }

    async fn run(&self, script: &Script, key: &DedupKey) -> Result<bool, DedupError> {
        let mut connection = self.connection.clone();
        let mut call = script.key(self.key.as_str());
        call.key(format!("{}:previous", self.key)).key(format!("{}:since", self.key));
        call.arg(scoped(key)).arg(millis(self.options.window));
        call.arg(self.options.of_a_generation()).arg(self.options.ids.max(64));
        Ok(call.invoke_async(&mut connection).await?)
    }
}

#[async_trait]
impl SeenFilter for RedisBloom {
    async fn maybe_seen(&self, key: &DedupKey) -> Result<bool, DedupError> {
        self.run(&SEEN, key).await
    }

    async fn add(&self, key: &DedupKey) -> Result<(), DedupError> {
        self.run(&ADD, key).await.map(drop)
    }

    fn remembers(&self) -> Option<Duration> {
        Some(self.options.window)
    }
}

/// A filter in the server if that has `BF.*`, and in the process otherwise.
///
/// # Errors
///
/// If the server does not answer.
pub async fn redis_or_memory_bloom(url: &str, options: BloomOptions) -> Result<Arc<dyn SeenFilter>, DedupError> {
    match RedisBloom::connect(url, options).await {
        Ok(filter) => Ok(Arc::new(filter)),
        Err(DedupError::NoBloom) => {
            tracing::info!("the server has no BF.*: the Bloom filter of processed messages is in the process");
            Ok(Arc::new(MemoryBloom::new(options)))
        }
        Err(error) => Err(error),
    }
}
