//! The handle: what everybody who needs the broker holds.

use std::{
    future::Future,
    sync::{Arc, Once},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    BrokerError, BrokerOptions, ConsumeError, PublishError,
    error::LOST,
    keeper::{Keeper, Line},
    link::Link,
    options::Target,
    tls::Tls,
};

/// Why there is no connection before the first attempt has ended.
const NOT_YET: &str = "not connected yet";

/// A broker, connected when it is needed. Clones are cheap, and share the connection; it is closed with the last of
/// them.
#[derive(Clone)]
pub struct Broker {
    shared: Arc<Shared>,
}

struct Shared {
    target: Target,
    tls: Option<Tls>,
    options: BrokerOptions,
    line: Arc<watch::Sender<Line>>,
    keeper: Once,
    over: CancellationToken,
    _over: DropGuard,
}

/// How the broker is, for health checks and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerState {
    /// Nobody has needed it yet.
    Idle,
    /// There is a connection.
    Connected {
        /// For so long.
        duration: Duration,
    },
    /// There is a connection, but the broker has run out of memory or disk and reads nothing that is published.
    Blocked {
        /// For so long.
        duration: Duration,
        /// What it lacks.
        why: String,
    },
    /// There is no connection.
    Away {
        /// For so long.
        duration: Duration,
        /// What the last attempt failed at.
        why: String,
    },
}

impl BrokerState {
    /// Whether messages are taken.
    pub fn is_connected(&self) -> bool {
        matches!(self, Self::Connected { .. })
    }

    /// Whether there is a connection on which nothing is taken.
    pub fn is_blocked(&self) -> bool {
        matches!(self, Self::Blocked { .. })
    }

    /// Whether there is no connection although one is needed.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Away { .. })
    }
}

impl From<&Line> for BrokerState {
    fn from(line: &Line) -> Self {
        match line {
            Line::Idle => Self::Idle,
            Line::Up { since, .. } => Self::Connected { duration: since.elapsed() },
            Line::Blocked { since, why } => Self::Blocked { duration: since.elapsed(), why: why.clone() },
            Line::Away { since, why } => Self::Away { duration: since.elapsed(), why: why.clone() },
        }
    }
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Broker")
            .field("target", &self.shared.target.to_string())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl Broker {
    /// A broker at `amqp://user:password@host:port/vhost?heartbeat=seconds`, or `amqps://`. Does not connect yet.
    ///
    /// The port is 5672 (5671 with TLS), user and password are `guest`, the virtual host is `/`, unless they are named.
    /// What has a meaning in URLs is percent-encoded, a virtual host's `/` too.
    pub fn new(url: &str, options: BrokerOptions) -> Result<Self, BrokerError> {
        let target = Target::parse(url, &options)?;
        let tls = target.tls.then(|| Tls::new(options.root_certificates.as_deref())).transpose()?;
        let over = CancellationToken::new();
        let line = Arc::new(watch::Sender::new(Line::Idle));
        let keeper = Once::new();
        Ok(Self {
            shared: Arc::new(Shared { target, tls, options, line, keeper, _over: over.clone().drop_guard(), over }),
        })
    }

    /// The virtual host that the URL names.
    pub fn vhost(&self) -> &str {
        &self.shared.target.uri.vhost
    }

    /// How the broker is. Does not connect.
    pub fn state(&self) -> BrokerState {
        BrokerState::from(&*self.shared.line.borrow())
    }

    /// Waits until the broker is as wanted. Connects.
    pub async fn until(&self, mut wanted: impl FnMut(&BrokerState) -> bool) {
        self.keep_connected();
        let mut line = self.shared.line.subscribe();
        // An error would say that the line is gone, which this broker holds.
        let _ = line.wait_for(|line| wanted(&BrokerState::from(line))).await;
    }

    /// Connects, and tells how the first attempt went. One that failed is repeated all the same, like every one.
    pub async fn first_attempt(&self) -> BrokerState {
        let mut state = BrokerState::Idle;
        self.until(|now| {
            state.clone_from(now);
            !matches!(now, BrokerState::Idle) && !matches!(now, BrokerState::Away { why, .. } if why == NOT_YET)
        })
        .await;
        state
    }

    pub(super) fn options(&self) -> &BrokerOptions {
        &self.shared.options
    }

    /// Asks something of the broker, in time.
    pub(super) async fn request<T, F, R>(&self, ask: F) -> Result<T, ConsumeError>
    where
        F: FnOnce(Arc<Link>) -> R,
        R: Future<Output = Result<T, ConsumeError>>,
    {
        let limit = self.shared.options.publish_timeout;
        let asked = async {
            let link = self.link().await.map_err(|error| match error {
                PublishError::Away { why } | PublishError::Blocked { why } => ConsumeError::Away { why },
                error => ConsumeError::Away { why: error.to_string() },
            })?;
            link.unless_gone(ask(Arc::clone(&link))).await.unwrap_or_else(|| Err(ConsumeError::lost()))
        };
        timeout(limit, asked).await.unwrap_or_else(|_| {
            Err(match self.state() {
                BrokerState::Blocked { why, .. } | BrokerState::Away { why, .. } => ConsumeError::Away { why },
                BrokerState::Idle | BrokerState::Connected { .. } => ConsumeError::Late(limit),
            })
        })
    }

    /// The connection, as soon as it takes messages; or why it does not, if it has not for a while.
    pub(super) async fn link(&self) -> Result<Arc<Link>, PublishError> {
        self.keep_connected();
        let mut line = self.shared.line.subscribe();
        loop {
            let (since, error) = match &*line.borrow_and_update() {
                Line::Up { link, .. } if link.is_open() => return Ok(Arc::clone(link)),
                Line::Blocked { since, why } => (*since, PublishError::Blocked { why: why.clone() }),
                Line::Away { since, why } => (*since, PublishError::Away { why: why.clone() }),
                // The keeper is about to say what happened.
                Line::Up { .. } | Line::Idle => (Instant::now(), PublishError::Away { why: LOST.to_owned() }),
            };
            if timeout_at(since + self.shared.options.patience, line.changed()).await.is_err() {
                return Err(error);
            }
        }
    }

    /// Starts the keeper, the first time.
    fn keep_connected(&self) {
        let shared = &self.shared;
        shared.keeper.call_once(|| {
            let why = NOT_YET.to_owned();
            shared.line.send_replace(Line::Away { since: Instant::now(), why });
            let keeper = Keeper {
                target: shared.target.clone(),
                tls: shared.tls.clone(),
                options: shared.options.clone(),
                line: Arc::clone(&shared.line),
                over: shared.over.clone(),
            };
            tokio::spawn(keeper.run());
        });
    }
}
