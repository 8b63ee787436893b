//! What can go wrong with change capture.

use std::{io, path::PathBuf, time::Duration};

/// Why changes can not be captured.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The database's URL can not be used.
    #[error("the URL of the database can not be used: {0}")]
    Url(String),
    /// A slot can not have this name.
    #[error("{0}")]
    Name(String),
    /// The server could not be reached, or the connection was lost.
    #[error("the connection to {address} failed")]
    Connection {
        /// The server.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The server did not answer in time.
    #[error("{address} did not answer within {within:?}")]
    Silent {
        /// The server.
        address: String,
        /// How long was waited.
        within: Duration,
    },
    /// TLS can not be used.
    #[error("TLS can not be used: {0}")]
    Tls(String),
    /// The server asks for what we do not know or do not have, or it does not prove who it is.
    #[error("authentication is not possible: {0}")]
    Authentication(String),
    /// The server said no.
    #[error("{message} ({code})")]
    Server {
        /// SQLSTATE.
        code: String,
        /// What it said.
        message: String,
    },
    /// The server ended the stream.
    #[error("the server ended the stream of changes")]
    Ended,
    /// The server sent what can not be understood.
    #[error("the stream of changes can not be understood: {0}")]
    Protocol(String),
    /// A message is larger than allowed.
    #[error("a change of {bytes} bytes is larger than the limit of {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The database lacks something that capture needs.
    #[error("the database can not be captured: {0}")]
    Lacks(String),
    /// Another capture of the database has the slot.
    #[error("another capture of this database has the slot {0}: name another slot")]
    SlotTaken(String),
    /// The slot is gone, and changes with it.
    #[error(
        "the replication slot is gone or invalidated, and changes since then with it: ask for a snapshot, or drop the capture"
    )]
    Gap,
    /// The server keeps too much WAL for the slot.
    #[error(
        "the server kept {retained} bytes of WAL for the slot, more than the limit of {limit}: the slot was dropped"
    )]
    SlotTooLarge {
        /// How much it kept.
        retained: u64,
        /// How much it may keep.
        limit: u64,
    },
    /// The URL names another server than before.
    #[error("this is another server than the one that was captured before: drop the capture to begin anew")]
    OtherServer,
    /// The server has less than it had.
    #[error(
        "the server does not have all that was published already: it was restored, or a standby that was behind took over. \
         Ask for a snapshot, or drop the capture"
    )]
    Rewound,
    /// The spool's disk failed, or its directory can not be used.
    #[error(
        "the spool in {} can not be used: this user must be able to write there, and the disk must have room",
        directory.display()
    )]
    Spool {
        /// Its directory.
        directory: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Open transactions are larger than the spool may be.
    #[error(
        "open transactions need more room than the spool has, {limit} bytes: the stream goes on without it, \
         and the server keeps them until their commit"
    )]
    SpoolFull {
        /// How large it may be.
        limit: u64,
    },
    /// The server does not say whether a logical message was rolled back.
    #[error(
        "transaction {transaction} has logical messages and a savepoint that was rolled back: the stream goes on \
         without the spool, because the server tells only after the commit which messages are left"
    )]
    SpoolUnclear {
        /// Its number.
        transaction: u32,
    },
    /// A query failed.
    #[error("a query of the captured database failed")]
    Database(#[from] sqlx::Error),
}

impl CaptureError {
    /// What went wrong, with its causes.
    pub fn describe(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        text
    }

    /// SQLSTATE of what the server said.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Server { code, .. } => Some(code),
            Self::Database(sqlx::Error::Database(error)) => error.code().and_then(|code| match code {
                std::borrow::Cow::Borrowed(code) => Some(code),
                std::borrow::Cow::Owned(_) => None,
            }),
            _ => None,
        }
    }

    /// Somebody else reads the slot.
    pub(crate) fn in_use() -> Self {
        Self::Server { code: "55006".to_owned(), message: "another process reads the slot".to_owned() }
    }

    /// Whether somebody else reads the slot.
    pub fn is_in_use(&self) -> bool {
        self.code() == Some("55006")
    }

    /// Whether changes are gone: the slot is missing or invalidated, or its WAL was removed.
    pub fn is_gap(&self) -> bool {
        matches!(self.code(), Some("42704" | "55000" | "58P01"))
    }

    /// Whether a stream without the spool may do better.
    pub(crate) fn is_of_spool(&self) -> bool {
        matches!(self, Self::Spool { .. } | Self::SpoolFull { .. } | Self::SpoolUnclear { .. } | Self::Protocol(_))
    }

    /// Whether it is worth to try again without anybody doing something.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Connection { .. } | Self::Silent { .. } | Self::Ended => true,
            // The next stream goes without the spool.
            Self::Spool { .. } | Self::SpoolFull { .. } | Self::SpoolUnclear { .. } => true,
            Self::Database(error) => !matches!(error, sqlx::Error::Database(_)),
            // Shutting down, starting up, crashed, too many connections, in use.
            Self::Server { code, .. } => matches!(code.as_str(), "57P01" | "57P02" | "57P03" | "53300" | "55006"),
            _ => false,
        }
    }
}
