//! The connection to Redis, and the name of the log.
//!
//! One connection carries all commands of a process. Whenever it is made anew, the server is asked who it is, because what it
//! had answered may be gone. The log keeps its name only as long as that is known not to be so:
//!
//! - the server runs as it did before; or
//! - it was started again and had every change on disk before it was answered (`appendfsync always`), and it is not a replica
//!   that was promoted, which may lack what its predecessor had answered; and
//! - its log is not shorter than this process has seen it.
//!
//! Else the log gets a new name. A cursor of the old one is then answered with a gap. A server that does not say who it is
//! (`INFO` is forbidden) is judged by the last rule alone.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, FromRedisValue, Pipeline, RedisError, RedisResult, Script,
    aio::MultiplexedConnection,
};
use relais_core::StoreError;
use relais_notify::{LogHead, LogPosition};
use ring::rand::SecureRandom as _;

use crate::{
    error::{GONE, corrupt, is_of_connection, store_error},
    keys::Keys,
    safety::RedisSafety,
    scripts,
};

/// After a connection failed, callers are refused for so long without another try.
const PAUSE: Duration = Duration::from_millis(200);

/// A cluster sends us on to the node that has our keys; that one may just have handed them over.
const MOST_REDIRECTS: usize = 3;

/// How far this process knows the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) epoch: String,
    pub(crate) position: LogPosition,
}

#[derive(Clone)]
pub(crate) struct Live {
    connection: MultiplexedConnection,
    /// The node that has our keys.
    pub(crate) client: Client,
    safety: RedisSafety,
    number: u64,
}

#[derive(Default)]
struct Current {
    live: Option<Live>,
    made: u64,
    /// Since when there is none, and why.
    failed: Option<(Instant, String)>,
}

/// The connection, made when it is needed.
pub(crate) struct Connections {
    client: Client,
    keys: Keys,
    timeout: Duration,
    /// Held while one is made: all others wait for it.
    current: tokio::sync::Mutex<Current>,
    known: Mutex<Known>,
    /// The key of tickets as this process knows it: it outlives a log that is lost.
    tickets: Mutex<Option<[u8; 32]>>,
}

impl std::fmt::Debug for Connections {
    /// Without the URL, which may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").field("keys", &self.keys).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unavailable(why: impl Into<String>) -> StoreError {
    StoreError::Unavailable(why.into().into())
}

impl Connections {
    pub(crate) fn new(client: Client, keys: Keys, timeout: Duration) -> Self {
        let (current, known, tickets) = Default::default();
        Self { client, keys, timeout, current, known, tickets }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) async fn inspect(&self) -> Result<RedisSafety, StoreError> {
        Ok(self.live().await?.safety)
    }

    /// Sends commands; none of them changes anything that scripts change.
    pub(crate) async fn ask<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Result<T, StoreError> {
        let mut live = self.live().await?;
        match pipeline.query_async(&mut live.connection).await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.failed(&live, error).await),
        }
    }

    /// Runs a script. If the log is not there, it is made first.
    pub(crate) async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        arguments: &[impl AsRef<[u8]>],
    ) -> Result<T, StoreError> {
        let mut invocation = script.prepare_invoke();
        invocation.key(self.keys.head());
        for argument in arguments {
            invocation.arg(argument.as_ref());
        }
        let mut live = self.live().await?;
        let mut answer = invocation.invoke_async(&mut live.connection).await;
        if answer.as_ref().is_err_and(|error: &RedisError| error.code() == Some(GONE)) {
            self.open(&mut live, &self.known()).await?;
            answer = invocation.invoke_async(&mut live.connection).await;
        }
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.failed(&live, error).await),
        }
    }

    /// Where the log begins and ends. It has a new name if it is shorter than it was.
    pub(crate) async fn read_head(&self) -> Result<LogHead, StoreError> {
        let before = self.known();
        let head = self.find_head().await?;
        let head = match head.filter(|head| head.epoch != before.epoch || head.position >= before.position) {
            Some(head) => head,
            None => {
                let mut live = self.live().await?;
                self.open(&mut live, &before).await?;
                self.find_head().await?.ok_or_else(|| unavailable("the log was lost once more"))?
            }
        };
        self.note(&head.epoch, head.position);
        Ok(head)
    }

    async fn find_head(&self) -> Result<Option<LogHead>, StoreError> {
        type Fields = (Option<String>, Option<u64>, Option<u64>);
        let mut pipeline = redis::pipe();
        pipeline.cmd("HMGET").arg(self.keys.head()).arg(&["epoch", "position", "floor"]).cmd("TIME");
        let ((epoch, position, floor), (seconds, micros)): (Fields, (i64, i64)) = self.ask(&pipeline).await?;
        let now = jiff::Timestamp::from_millisecond(seconds * 1000 + micros / 1000).map_err(corrupt)?;
        let complete = epoch.zip(position).zip(floor);
        Ok(complete.map(|((epoch, position), floor)| LogHead { epoch, position, floor, now }))
    }

    /// How far this process knows the log.
    pub(crate) fn known(&self) -> Known {
        lock(&self.known).clone()
    }

    fn note(&self, epoch: &str, position: LogPosition) {
        let mut known = lock(&self.known);
        if known.epoch == epoch {
            known.position = known.position.max(position);
        } else {
            *known = Known { epoch: epoch.to_owned(), position };
        }
    }

    /// Notes that something was written to a log whose end was at `begin`. If this process knew it to be longer before, what
    /// came after has been lost, and the log gets a new name. What was written counts in either case.
    pub(crate) async fn note_written(&self, before: &Known, epoch: &str, begin: LogPosition, position: LogPosition) {
        if before.epoch != epoch || begin >= before.position {
            return self.note(epoch, position);
        }
        // By now it may be as long as before.
        let longer = Known { position: LogPosition::MAX, ..before.clone() };
        if let Ok(mut live) = self.live().await
            && let Err(error) = self.open(&mut live, &longer).await
        {
            tracing::debug!(%error, "the log of notifications could not be named anew yet");
        }
    }

    /// The connection that there is, or a new one.
    pub(crate) async fn live(&self) -> Result<Live, StoreError> {
        let mut current = self.current.lock().await;
        if let Some(live) = &current.live {
            return Ok(live.clone());
        }
        if let Some((since, why)) = &current.failed
            && since.elapsed() < PAUSE
        {
            return Err(unavailable(why.clone()));
        }
        let number = current.made + 1;
        match self.connect(number).await {
            Ok(live) => {
                current.made = number;
                current.failed = None;
                current.live = Some(live.clone());
                Ok(live)
            }
            Err(error) => {
                let why = chain(&error);
                tracing::debug!(error = why, "the log of notifications on Redis can not be used");
                current.failed = Some((Instant::now(), why));
                Err(error)
            }
        }
    }

    async fn connect(&self, number: u64) -> Result<Live, StoreError> {
        let mut client = self.client.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout));
        for _ in 0..=MOST_REDIRECTS {
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&config).await.map_err(store_error)?;
            // In a cluster, the node that does not have a key says who has it.
            let has = redis::cmd("EXISTS").arg(self.keys.head()).query_async::<bool>(&mut connection).await;
            if let Some(other) = has.as_ref().err().and_then(|error| redirected(&client, error)) {
                client = other.map_err(store_error)?;
                continue;
            }
            has.map_err(store_error)?;
            let safety = greet(&mut connection).await.map_err(store_error)?;
            if safety.is_replica {
                return Err(unavailable("the server is a replica, which takes no changes"));
            }
            let mut live = Live { connection, client, safety, number };
            self.open(&mut live, &self.known()).await?;
            return Ok(live);
        }
        Err(unavailable("the nodes of the cluster send from one to the other"))
    }

    /// Makes the log if it is not there, and names it anew if something of it may be lost: also if it is shorter than known.
    async fn open(&self, live: &mut Live, known: &Known) -> Result<(), StoreError> {
        let random = ring::rand::SystemRandom::new();
        let (mut epoch, mut tickets) = ([0; 8], [0; 32]);
        random.fill(&mut epoch).map_err(|error| corrupt(error.to_string()))?;
        random.fill(&mut tickets).map_err(|error| corrupt(error.to_string()))?;
        let tickets = lock(&self.tickets).unwrap_or(tickets);
        let opened: RedisResult<(String, String, LogPosition)> = scripts::OPEN
            .key(self.keys.head())
            .arg(format!("{:016x}", u64::from_be_bytes(epoch)))
            .arg(&live.safety.run)
            .arg(&tickets[..])
            .arg(i32::from(live.safety.is_lossless()))
            .arg(&known.epoch)
            .arg(known.position)
            .invoke_async(&mut live.connection)
            .await;
        let (outcome, epoch, position) = opened.map_err(store_error)?;
        match outcome.as_str() {
            "made" => tracing::info!(epoch, "made a log of notifications on Redis"),
            "renewed" => tracing::warn!(
                epoch,
                "entries of the log of notifications on Redis are lost, or may be: pages are told of a gap"
            ),
            _ => {}
        }
        self.note(&epoch, position);
        Ok(())
    }

    /// What an error means, after which the connection may not be used again.
    async fn failed(&self, live: &Live, error: RedisError) -> StoreError {
        if is_of_connection(&error) {
            let mut current = self.current.lock().await;
            if current.live.as_ref().is_some_and(|current| current.number == live.number) {
                current.live = None;
            }
        }
        store_error(error)
    }

    /// The key of tickets that all processes have.
    pub(crate) async fn ticket_key(&self) -> Result<[u8; 32], StoreError> {
        if let Some(key) = *lock(&self.tickets) {
            return Ok(key);
        }
        // It is made with the log, which is made anew here if it was lost just now.
        self.read_head().await?;
        let mut pipeline = redis::pipe();
        pipeline.cmd("HGET").arg(self.keys.head()).arg("tickets");
        let (key,): (Option<Vec<u8>>,) = self.ask(&pipeline).await?;
        let key = key.ok_or_else(|| unavailable("the log was lost"))?;
        let key = key.try_into().map_err(|_| corrupt("the key of tickets is not one"))?;
        Ok(*lock(&self.tickets).insert(key))
    }
}

/// Asks the server who it is and how it keeps what it is told. It may refuse to say so.
async fn greet(connection: &mut MultiplexedConnection) -> RedisResult<RedisSafety> {
    let mut pipeline = redis::pipe();
    for section in ["server", "replication", "persistence", "memory"] {
        pipeline.cmd("INFO").arg(section);
    }
    type Answers = Vec<RedisResult<String>>;
    let answers: Answers = pipeline.ignore_errors().query_async(connection).await?;
    let info: Vec<String> = answers.into_iter().filter_map(Result::ok).collect();
    let ask = redis::cmd("CONFIG").arg("GET").arg("appendfsync").clone();
    let appendfsync: RedisResult<Vec<String>> = ask.query_async(connection).await;
    let appendfsync = appendfsync.ok().and_then(|pair| pair.into_iter().nth(1));
    Ok(RedisSafety::read(&info.join("\r\n"), appendfsync.as_deref()))
}

/// The node that an error names, spoken to as the first one was.
fn redirected(client: &Client, error: &RedisError) -> Option<RedisResult<Client>> {
    let (node, _) = error.redirect_node()?;
    let (host, port) = node.rsplit_once(':')?;
    let (host, port) = (host.trim_matches(['[', ']']).to_owned(), port.parse().ok()?);
    let info = client.get_connection_info().clone();
    let addr = match info.addr().clone() {
        // The same host, where a node does not know its own name.
        ConnectionAddr::Tcp(same, _) => ConnectionAddr::Tcp(if host.is_empty() { same } else { host }, port),
        ConnectionAddr::TcpTls { host: same, insecure, tls_params, .. } => {
            let host = if host.is_empty() { same } else { host };
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => return None,
    };
    Some(Client::open(info.set_addr(addr)))
}

/// An error with all that caused it.
fn chain(error: &StoreError) -> String {
    let mut text = String::new();
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = next {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&error.to_string());
        next = error.source();
    }
    text
}
