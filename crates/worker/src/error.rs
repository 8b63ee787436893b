//! What can go wrong between this crate and the server.
//!
//! A failing handler is not here: that is a result like another, and it goes to the server.

use relais_protocol::ErrorDetail;

/// Why a worker could not be built, or ended before it was told to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The address, or the HTTP client for it, is not usable.
    #[error("failed to set up the worker")]
    Setup(#[from] CallError),
    /// The broker's URL is not usable.
    #[cfg(feature = "rabbitmq")]
    #[error("failed to set up the worker")]
    Broker(#[from] relais_messaging::rabbitmq::BrokerError),
    /// A variable of the environment is missing, or can not be understood.
    #[error("{variable} of the environment: {why}")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The address for health checks can not be had.
    #[cfg(feature = "health")]
    #[error("failed to listen on {address} for health checks")]
    Health {
        /// The address.
        address: std::net::SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The server is there, but does not let this client work on this service.
    #[error("the server refused the worker: {description} ({number})")]
    Refused {
        /// The number of the refusal, see [`relais_protocol::ErrorNumber`].
        number: u32,
        /// The same, for people.
        description: String,
    },
    /// The broker is there, but does not let this worker in: wrong credentials, no such virtual host, no right to use
    /// it.
    #[cfg(feature = "rabbitmq")]
    #[error("the broker refused the worker: {why}")]
    BrokerRefused {
        /// The broker's reason.
        why: String,
    },
}

/// Why a call brought nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The address is not one.
    #[error("{url:?} is not an http or https address")]
    Address {
        /// The address as it was given.
        url: String,
        /// What is wrong with it, where it is not just the scheme.
        source: Option<url::ParseError>,
    },
    /// The HTTP client could not be set up.
    #[error("failed to set up the HTTP client")]
    Setup(#[source] reqwest::Error),
    /// What was to be sent is not JSON.
    #[error("failed to write the request as JSON")]
    Unwritable(#[source] serde_json::Error),
    /// There was no answer.
    #[error("the server can not be reached")]
    Unreachable(#[source] reqwest::Error),
    /// There was an answer, but not one of Relais.
    #[error("the server's answer makes no sense")]
    Unreadable(#[source] serde_json::Error),
    /// There was an answer, but not one per message.
    #[error("the server answered {got} outcomes to {asked} messages")]
    Outcomes {
        /// How many were due.
        asked: usize,
        /// How many came.
        got: usize,
    },
    /// The broker did not take it.
    #[cfg(feature = "rabbitmq")]
    #[error("failed to publish")]
    Broker(#[source] relais_messaging::rabbitmq::PublishError),
    /// The broker did not let this worker in when it first came.
    #[cfg(feature = "rabbitmq")]
    #[error("the broker refused: {why}")]
    BrokerRefused {
        /// The broker's reason.
        why: String,
    },
    /// It is larger than a message may be.
    #[cfg(feature = "rabbitmq")]
    #[error("it has {bytes} bytes, and a message may have {most}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The largest that can be sent.
        most: usize,
    },
    /// The server refused.
    #[error("the server refused: {description} ({number})")]
    Refused {
        /// The number of the refusal; its first three digits are the HTTP status.
        number: u32,
        /// The same, for people.
        description: String,
        /// What exactly is wrong, where the server says so.
        details: Vec<ErrorDetail>,
    },
}

impl CallError {
    /// The number of the refusal, if it is one.
    pub fn number(&self) -> Option<u32> {
        match self {
            Self::Refused { number, .. } => Some(*number),
            _ => None,
        }
    }

    /// Whether the same call may well succeed later: the server is away, overloaded, or something before it answers.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Unreadable(_) | Self::Outcomes { .. } => true,
            Self::Refused { number, .. } => matches!(number / 1000, 408 | 429 | 500..),
            #[cfg(feature = "rabbitmq")]
            Self::Broker(_) => true,
            #[cfg(feature = "rabbitmq")]
            Self::BrokerRefused { .. } | Self::TooLarge { .. } => false,
            Self::Address { .. } | Self::Setup(_) | Self::Unwritable(_) => false,
        }
    }

    /// Whether it will never do, whatever worked before.
    pub(crate) fn is_for_good(&self) -> bool {
        #[cfg(feature = "rabbitmq")]
        if let Self::BrokerRefused { .. } = self {
            return true;
        }
        false
    }

    /// Whether it is what was sent that the server does not want, whoever sends it and however often.
    pub(crate) fn is_about_the_content(&self) -> bool {
        match self {
            #[cfg(feature = "rabbitmq")]
            Self::TooLarge { .. } => true,
            Self::Refused { number, .. } => matches!(number / 1000, 400 | 413 | 422),
            _ => false,
        }
    }

    /// The error and what is behind it, in one line for the log.
    pub(crate) fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            text.push_str(&format!(": {error}"));
            source = error.source();
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(number: u32) -> CallError {
        CallError::Refused { number, description: "no".to_owned(), details: Vec::new() }
    }

    #[test]
    fn only_transient_errors_are_retried() {
        for number in [408_001, 429_001, 500_001, 502_000, 503_003] {
            assert!(refused(number).is_passing(), "{number}");
        }
        for number in [400_003, 403_001, 404_001, 413_001] {
            assert!(!refused(number).is_passing(), "{number}");
        }
    }
}
