//! What can go wrong: [`BrokerError`] when a broker is set up, [`PublishError`] when a message is sent,
//! [`ConsumeError`] when a queue is declared or read.

use std::{path::PathBuf, time::Duration};

use lapin::protocol::{AMQPErrorKind, AMQPSoftError};

/// Why there can be no broker.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The URL can not be read.
    #[error("the URL of the broker is not acceptable: {0}")]
    Url(String),
    /// The file with certificates can not be read.
    #[error("failed to read the certificates in {path}")]
    RootCertificates {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rustls::pki_types::pem::Error,
    },
    /// The file with certificates has none.
    #[error("there is no certificate in PEM in {path}")]
    NoRootCertificate {
        /// The file.
        path: PathBuf,
    },
    /// TLS can not be set up.
    #[error("failed to set up TLS")]
    Tls(#[source] rustls::Error),
}

/// Why a message was not sent, as far as anybody knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// There is no connection, or it was lost before the broker confirmed.
    #[error("the broker is away: {why}")]
    Away {
        /// What happened.
        why: String,
    },
    /// There is a connection, but the broker has run out of memory or disk and reads nothing that is published.
    #[error("the broker takes no messages for now: {why}")]
    Blocked {
        /// What it lacks.
        why: String,
    },
    /// The broker did not confirm in time.
    #[error("the broker did not confirm within {0:?}")]
    Late(Duration),
    /// The exchange leads such messages nowhere.
    #[error("no queue takes messages from the exchange {exchange:?} with the routing key {routing_key:?}")]
    Unroutable {
        /// The exchange.
        exchange: String,
        /// The routing key.
        routing_key: String,
    },
    /// There is no such exchange.
    #[error("there is no exchange {exchange:?}")]
    NoExchange {
        /// The exchange.
        exchange: String,
    },
    /// The broker will never take such a message: it is larger than it allows, or says something of itself that is not
    /// so.
    #[error("the broker does not take such a message: {why}")]
    Unacceptable {
        /// The broker's reason.
        why: String,
    },
    /// The broker says no: a queue is full, this user may not write there.
    #[error("the broker refused the message: {why}")]
    Refused {
        /// The broker's reason.
        why: String,
    },
}

impl PublishError {
    /// Whether the broker is to blame and not the message: trying again later may help, and the message may have
    /// arrived.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Away { .. } | Self::Blocked { .. } | Self::Late(_))
    }

    /// Whether there was nowhere to put the message.
    pub fn is_unroutable(&self) -> bool {
        matches!(self, Self::Unroutable { .. } | Self::NoExchange { .. })
    }
}

/// Why a queue can not be declared or read, or what was read can not be acknowledged.
///
/// After any of them the broker gives what was not acknowledged to somebody else, or again to the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConsumeError {
    /// There is no connection, or it was lost.
    #[error("the broker is away: {why}")]
    Away {
        /// What happened.
        why: String,
    },
    /// The broker did not answer in time.
    #[error("the broker did not answer within {0:?}")]
    Late(Duration),
    /// There is no such queue.
    #[error("there is no queue {queue:?}")]
    NoQueue {
        /// The queue.
        queue: String,
    },
    /// The queue was deleted while it was read, or the node that has it is down.
    #[error("the queue {queue:?} is gone")]
    QueueGone {
        /// The queue.
        queue: String,
    },
    /// The broker says no: this user may not, or somebody else has the queue for himself.
    #[error("the broker refused: {why}")]
    Refused {
        /// The broker's reason.
        why: String,
    },
    /// The broker closed the channel: something was acknowledged twice, or not within the broker's time limit.
    #[error("the broker closed the channel: {why}")]
    Closed {
        /// The broker's reason.
        why: String,
    },
    /// The consumer was [cancelled](super::Consumer::cancel), and all that it had was handed out.
    #[error("the consumer was cancelled")]
    Cancelled,
}

impl ConsumeError {
    /// Whether trying again later may help without anybody changing anything.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Away { .. } | Self::Late(_) | Self::Closed { .. })
    }

    /// Whether the queue is missing.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::NoQueue { .. } | Self::QueueGone { .. })
    }

    /// The end of a connection.
    pub(super) fn lost() -> Self {
        Self::Away { why: LOST.to_owned() }
    }

    /// What the broker answered to a request about a queue.
    pub(super) fn answer(queue: &str, error: &lapin::Error) -> Self {
        match soft(error) {
            // A queue whose node is down is not found either, and comes back with all that is in it.
            Some(AMQPSoftError::NOTFOUND) if words(error).contains("home node") => Self::Away { why: words(error) },
            Some(AMQPSoftError::NOTFOUND) => Self::NoQueue { queue: queue.to_owned() },
            Some(_) => Self::Refused { why: words(error) },
            None => Self::Away { why: words(error) },
        }
    }

    /// What ended a channel.
    pub(super) fn end(error: &lapin::Error) -> Self {
        match soft(error) {
            Some(_) => Self::Closed { why: words(error) },
            None => Self::Away { why: words(error) },
        }
    }
}

/// What is said when nobody knows better.
pub(super) const LOST: &str = "the connection was lost";

/// The broker's reason, if it closed a channel and not the whole connection, on behalf of whomever.
pub(super) fn soft(error: &lapin::Error) -> Option<&AMQPSoftError> {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(refusal) => match refusal.kind() {
            AMQPErrorKind::Soft(soft) => Some(soft),
            AMQPErrorKind::Hard(_) => None,
        },
        _ => None,
    }
}

/// An error of the library, in words for operators. The broker's own words are the best there are.
pub(super) fn words(error: &lapin::Error) -> String {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        lapin::ErrorKind::IOError(error) => error.to_string(),
        lapin::ErrorKind::InvalidChannelState(..) | lapin::ErrorKind::InvalidConnectionState(_) => {
            "the connection is closed".to_owned()
        }
        _ => error.to_string(),
    }
}
