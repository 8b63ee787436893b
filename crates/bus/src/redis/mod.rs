//! Many instances over Redis, KeyDB or Valkey.
//!
//! Two transports, for two kinds of events:
//!
//! - [`RedisPubSub`]: every instance gets every event it subscribes to, at once, if it is connected. What is published
//!   while it is not, it does not get; it is told ([`Notice::Reconnected`](crate::Notice::Reconnected)).
//! - [`RedisStreams`]: events are kept, and delivered until they are acknowledged. Instances of one group share them.
//!
//! Both keep dead letters in Redis, where all instances see them. Neither needs anything but a URL; neither supports a
//! cluster with its keys on several nodes.

mod dead_letters;
mod pubsub;
mod stream_reader;
mod streams;

use std::{sync::Arc, time::Duration};

use redis::{
    Client, IntoConnectionInfo,
    aio::{ConnectionManager, ConnectionManagerConfig},
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};
use tokio::sync::OnceCell;

pub use self::{pubsub::RedisPubSub, streams::RedisStreams};
use crate::{BusError, deliver::chain};

/// How long a connection, or an answer to a command that does not wait for events, may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The server, and the connection for everything but waiting for events.
#[derive(Clone)]
struct Server {
    client: Client,
    prefix: Arc<str>,
    /// Connects itself again; made at the first use.
    commands: Arc<OnceCell<ConnectionManager>>,
}

impl Server {
    fn new(url: &str) -> Result<Self, BusError> {
        let failed = |error| BusError::transport("read the address of Redis", error);
        // A peer that vanished without a word is noticed by the system, which costs this process no timer.
        let alive = TcpKeepalive::new()
            .with_time(Duration::from_secs(15))
            .with_interval(Duration::from_secs(5))
            .with_retries(3);
        let tcp =
            TcpSettings::default().set_nodelay(true).set_keepalive(alive).set_user_timeout(Duration::from_secs(30));
        let info = url.into_connection_info().map_err(failed)?.set_tcp_settings(tcp);
        let client = Client::open(info).map_err(failed)?;
        Ok(Self { client, prefix: "relais:bus:".into(), commands: Arc::default() })
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    async fn commands(&self) -> Result<ConnectionManager, BusError> {
        let connect = || async {
            let config = ConnectionManagerConfig::new()
                .set_connection_timeout(Some(PATIENCE))
                .set_response_timeout(Some(PATIENCE))
                .set_number_of_retries(3);
            self.client.get_connection_manager_with_config(config).await
        };
        self.commands.get_or_try_init(connect).await.cloned().map_err(|error| BusError::transport("connect", error))
    }
}

impl std::fmt::Debug for Server {
    /// Without the URL, which may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// Something that came from Redis and is no event: logged, and gone.
fn log_garbage(error: &BusError) {
    tracing::error!(error = chain(error), "something that is no event came over Redis; ignored");
}
