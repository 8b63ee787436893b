//! Claims and marks in Redis, Valkey or KeyDB: one key for each message.
//!
//! A claim is `SET key claim:TOKEN NX PX ms`. A mark is the value `1` under the same key. Any other value is somebody else's code
//! that writes `SET key value NX EX n` before it processes a message: it counts as a mark, as our keys do to that code.
//! What changes a key that is there is a script, so that it changes only what is still the caller's.

use std::{fmt, sync::LazyLock, time::Duration};

use async_trait::async_trait;
use redis::{
    Client, RedisError, Script,
    aio::{ConnectionManager, ConnectionManagerConfig},
};

use crate::{ClaimOutcome, ClaimToken, DedupError, DedupKey, DedupStore, Hold};

/// What keys begin with, unless it is said.
const PREFIX: &str = "dedup:processed:";

/// What the value of a claim begins with. The libraries in Python and JavaScript say the same.
const CLAIM: &str = "claim:";

/// How long a connection, or an answer, may take.
const PATIENCE: Duration = Duration::from_secs(5);

static EXTEND: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("extend.lua")));
static MARK: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("mark.lua")));
static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("release.lua")));

impl From<RedisError> for DedupError {
    fn from(error: RedisError) -> Self {
        Self::store(error)
    }
}

/// Claims and marks in Redis, under `dedup:processed:ID`, or `dedup:processed:CONSUMER:ID` where the consumer has a name.
///
/// A mark is as safe as the server keeps it: one that is lost with the server, or in a failover, lets a repeat run.
#[derive(Clone)]
pub struct RedisDedup {
    connection: ConnectionManager,
    prefix: String,
}

impl fmt::Debug for RedisDedup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisDedup").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl RedisDedup {
    /// Connects to `redis://user:password@host:port/database`, or `rediss://`. Later the connection comes back by itself.
    ///
    /// # Errors
    ///
    /// If that is not an address, or the server does not answer.
    pub async fn connect(url: &str) -> Result<Self, DedupError> {
        Ok(Self::new(connect(url).await?))
    }

    /// On a connection that is there.
    pub fn new(connection: ConnectionManager) -> Self {
        Self { connection, prefix: PREFIX.to_owned() }
    }

    /// What keys begin with, instead of `dedup:processed:`.
    pub fn with_prefix(self, prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), ..self }
    }

    fn key(&self, key: &DedupKey) -> String {
        format!("{}{}", self.prefix, scoped(key))
    }

    async fn run(
        &self,
        script: &Script,
        key: &DedupKey,
        token: &ClaimToken,
        time: Duration,
    ) -> Result<Hold, DedupError> {
        let mut connection = self.connection.clone();
        let mut call = script.key(self.key(key));
        let done: bool = call.arg(value(token)).arg(millis(time)).invoke_async(&mut connection).await?;
        Ok(if done { Hold::Held } else { Hold::Lost })
    }
}

pub(crate) async fn connect(url: &str) -> Result<ConnectionManager, DedupError> {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE))
        .set_number_of_retries(1);
    Ok(Client::open(url)?.get_connection_manager_with_config(config).await?)
}

/// A message within the keys of all: `ID`, or `CONSUMER:ID`. In a consumer's name `%` and `:` are written `%25` and `%3A`, so that
/// no two named consumers share a key.
pub(crate) fn scoped(key: &DedupKey) -> String {
    match key.consumer() {
        "" => key.id().to_owned(),
        consumer => format!("{}:{}", consumer.replace('%', "%25").replace(':', "%3A"), key.id()),
    }
}

fn value(token: &ClaimToken) -> String {
    format!("{CLAIM}{}", token.as_str())
}

/// At least one: a key for no time can not be.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).clamp(1, 1 << 50)
}

#[async_trait]
impl DedupStore for RedisDedup {
    async fn claim(&self, key: &DedupKey, token: &ClaimToken, claim: Duration) -> Result<ClaimOutcome, DedupError> {
        let (mut connection, key) = (self.connection.clone(), self.key(key));
        let set = redis::cmd("SET").arg(&key).arg(value(token)).arg("NX").arg("PX").arg(millis(claim)).to_owned();
        if set.query_async::<Option<String>>(&mut connection).await?.is_some() {
            return Ok(ClaimOutcome::Claimed);
        }
        let mut look = redis::pipe();
        look.atomic().cmd("GET").arg(&key).cmd("PTTL").arg(&key);
        let (found, left): (Option<Vec<u8>>, i64) = look.query_async(&mut connection).await?;
        Ok(match found {
            Some(found) if !found.starts_with(CLAIM.as_bytes()) => ClaimOutcome::AlreadyDone,
            // What is not there any more was a claim: a mark would not end just now, a day after it was made.
            _ => ClaimOutcome::Busy { wait: Duration::from_millis(left.max(0).unsigned_abs()) },
        })
    }

    async fn extend(&self, key: &DedupKey, token: &ClaimToken, claim: Duration) -> Result<Hold, DedupError> {
        self.run(&EXTEND, key, token, claim).await
    }

    async fn mark(&self, key: &DedupKey, token: &ClaimToken, window: Duration) -> Result<Hold, DedupError> {
        self.run(&MARK, key, token, window).await
    }

    async fn release(&self, key: &DedupKey, token: &ClaimToken) -> Result<(), DedupError> {
        self.run(&RELEASE, key, token, Duration::ZERO).await.map(drop)
    }

    async fn is_marked(&self, key: &DedupKey) -> Result<bool, DedupError> {
        let mut connection = self.connection.clone();
        let found: Option<Vec<u8>> = redis::cmd("GET").arg(self.key(key)).query_async(&mut connection).await?;
        Ok(found.is_some_and(|found| !found.starts_with(CLAIM.as_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_in_other_languages_have_the_same_scripts() {
        for library in ["python/src/relais/dedup/redis.py", "javascript/src/dedup/redis.js"] {
            let path = format!("{}/../../sdk/{library}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&path).unwrap();
            for script in [include_str!("extend.lua"), include_str!("mark.lua"), include_str!("release.lua")] {
                assert!(text.contains(script), "{library} lacks: {script}");
            }
        }
    }

    #[test]
    fn a_key_has_the_name_of_its_consumer_if_there_is_one() {
        let key = |consumer: &str, id: &str| scoped(&DedupKey::new(consumer, id).unwrap());
        assert_eq!(key("", "order-7"), "order-7");
        assert_eq!(key("billing", "order-7"), "billing:order-7");
        assert_eq!(key("a:b", "c"), "a%3Ab:c");
        assert_eq!(key("a%3Ab", "c"), "a%253Ab:c");
    }
}
