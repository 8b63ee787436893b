//! The log and ledger of notifications on Redis, Valkey or KeyDB: a driver of [`NotificationStore`].
//!
//! The log is a stream. The id of an entry is its position, so positions are dense, and whoever waits with `XREAD` for the next
//! entry is woken by it ([`RedisNotifications::follow`]). Each change is one script, so that it happens as a whole or not at
//! all. Scripts decide nothing: the rules of `relais_notify` are asked here, of what was read, and a script writes their answer
//! only if that has not changed meanwhile. All keys have one hash tag, so that a cluster keeps them together.
//!
//! A log whose entries were lost, or may have been, gets a new name ([`LogHead::epoch`]), so that pages are told of a gap. What
//! can be known about that is in `connection.rs`.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use relais_notify_redis::{RedisNotificationOptions, RedisNotifications};
//!
//! let store = RedisNotifications::new("redis://127.0.0.1/", RedisNotificationOptions::default())?;
//! println!("{}", store.inspect().await?);
//! # Ok(())
//! # }
//! ```
//!
//! [`NotificationStore`]: relais_notify::NotificationStore
//! [`LogHead::epoch`]: relais_notify::LogHead::epoch

mod acknowledge;
mod change;
mod connection;
mod emit;
mod error;
mod follow;
mod keys;
mod ledger;
mod list;
mod log;
mod members;
mod message;
mod purge;
mod safety;
mod scripts;
mod store;
mod timers;

use std::{sync::Arc, time::Duration};

use redis::{
    Client, IntoConnectionInfo,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};
use relais_core::StoreError;

use self::{connection::Connections, keys::Keys};
pub use self::{
    error::InvalidRedis,
    safety::{Fsync, RedisSafety},
};

/// How the log is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisNotificationOptions {
    /// What all keys begin with, within their hash tag. Installations with different prefixes share a server.
    pub prefix: String,
    /// How long a connection, or an answer, may take.
    pub timeout: Duration,
}

impl Default for RedisNotificationOptions {
    fn default() -> Self {
        Self { prefix: "relais:notifications".to_owned(), timeout: Duration::from_secs(5) }
    }
}

/// The log and ledger of notifications on Redis. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RedisNotifications(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    keys: Keys,
    connections: Connections,
    /// Changes of members of this process do not compete with each other.
    members_turn: tokio::sync::Mutex<()>,
}

impl RedisNotifications {
    /// A log at `redis://user:password@host:port/database`, or `rediss://`. Does not connect yet.
    ///
    /// # Errors
    ///
    /// If that is not an address, or the prefix can not be one.
    pub fn new(url: &str, options: RedisNotificationOptions) -> Result<Self, InvalidRedis> {
        let keys = Keys::new(&options.prefix).ok_or(InvalidRedis::Prefix)?;
        // A peer that vanished without a word is noticed by the system, which costs this process no timer.
        let alive = TcpKeepalive::new()
            .with_time(Duration::from_secs(15))
            .with_interval(Duration::from_secs(5))
            .with_retries(3);
        let tcp =
            TcpSettings::default().set_nodelay(true).set_keepalive(alive).set_user_timeout(Duration::from_secs(30));
        let info = url.into_connection_info().map_err(InvalidRedis::Url)?.set_tcp_settings(tcp);
        let client = Client::open(info).map_err(InvalidRedis::Url)?;
        let connections = Connections::new(client, keys.clone(), options.timeout);
        Ok(Self(Arc::new(Inner { keys, connections, members_turn: tokio::sync::Mutex::default() })))
    }

    /// Connects if need be, and tells what is known about how safe entries are on the server.
    ///
    /// # Errors
    ///
    /// If the server is away, or can not be used as it is.
    pub async fn inspect(&self) -> Result<RedisSafety, StoreError> {
        self.0.connections.inspect().await
    }

    /// Whether an error of [`inspect`](Self::inspect) is one that waiting does not help against: the server is there, and
    /// refuses.
    pub fn is_refused(error: &StoreError) -> bool {
        error::is_refused(error)
    }
}
