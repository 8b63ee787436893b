//! What can go wrong: [`BrokerError`] when a broker is set up, [`PublishError`] when a message is sent.

use std::{path::PathBuf, time::Duration};

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
    /// The broker says no: a queue is full, the message is too large, this user may not write there.
    #[error("the broker refused the message: {why}")]
    Refused {
        /// The broker's reason.
        why: String,
    },
}

impl PublishError {
    /// Whether the broker is to blame and not the message: trying again later may help, and the message may have arrived.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Away { .. } | Self::Blocked { .. } | Self::Late(_))
    }

    /// Whether there was nowhere to put the message.
    pub fn is_unroutable(&self) -> bool {
        matches!(self, Self::Unroutable { .. } | Self::NoExchange { .. })
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
