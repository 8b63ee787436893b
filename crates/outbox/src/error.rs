//! What can go wrong with an outbox.

/// Why an outbox can not be used.
#[derive(Debug, thiserror::Error)]
pub enum OutboxError {
    /// The database's URL names neither of the two.
    #[error("the URL of an outbox's database must begin with postgres: or sqlite:")]
    Url,
    /// The table's name can not be used.
    #[error("`{0}` is not the name of a table: write name or schema.name, each of at most 40 characters")]
    TableName(String),
    /// There is no such table.
    #[error("there is no table {0}, or this user may not see it; `relais outbox init` makes it")]
    NoTable(String),
    /// The table lacks columns.
    #[error("the table {table} is not an outbox: it has no column {columns}")]
    NoColumn {
        /// The table.
        table: String,
        /// What it lacks.
        columns: String,
    },
    /// A column has a type that can not be used.
    #[error("the column {column} of {table} can not be {kind}")]
    ColumnType {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// Its type.
        kind: String,
    },
    /// The user lacks a right.
    #[error("this user may not {right} {table}; grant it: GRANT {right} ON {table} TO …")]
    Right {
        /// The table.
        table: String,
        /// What it may not.
        right: &'static str,
    },
    /// A template can not be used.
    #[error(transparent)]
    Template(#[from] relais_message::TemplateError),
    /// The key's template can not be used.
    #[error("the key can not be used: {0}")]
    Key(String),
    /// A payload can not be written as JSON.
    #[error("the payload can not be written as JSON")]
    Payload(#[from] serde_json::Error),
    /// The database has no log to capture from.
    #[error("only an outbox on PostgreSQL can be captured: choose the mode auto or polling")]
    NoCapture,
    /// The URL has something that a replication connection does not know.
    #[error("the outbox can not be captured: {0}")]
    ReplicationUrl(String),
    /// The database lacks something that capture needs.
    #[error("the database can not be captured: {0}")]
    CaptureLacks(String),
    /// The slot is being made.
    #[error("the replication slot is being made: that waits for transactions that are open")]
    SlotIsMade,
    /// Rows were committed, and the stream did not bring them.
    #[error("the stream of changes does not bring the outbox's rows: was its table or its publication changed?")]
    StreamMisses,
    /// More keys fail than can be left to polling while the others are captured.
    #[error("more than {0} keys have a message that failed: the outbox is polled until there are fewer")]
    ManyFailedKeys(usize),
    /// The slot is gone or invalidated.
    #[error("the replication slot is gone")]
    SlotGone,
    /// The server keeps too much WAL for the slot.
    #[error("the server kept {retained} bytes of WAL for the slot, more than the limit of {limit}")]
    SlotTooLarge {
        /// How much it kept.
        retained: u64,
        /// How much it may keep.
        limit: u64,
    },
    /// A commit is in the log, and its rows are not to be seen.
    #[error("a committed transaction was not visible within {0:?}; is a synchronous standby away?")]
    NotVisible(std::time::Duration),
    /// Changes can not be captured.
    #[error("the outbox can not be captured: {}", .0.describe())]
    Capture(#[from] relais_capture::CaptureError),
    /// The database failed.
    #[error("the outbox's database failed")]
    Database(#[from] sqlx::Error),
}

impl OutboxError {
    /// Whether it is worth to try again without anybody doing something.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Capture(error) => error.is_passing() || error.is_gap(),
            Self::Database(error) => !matches!(error, sqlx::Error::Database(_)),
            Self::SlotGone | Self::SlotIsMade | Self::StreamMisses => true,
            _ => false,
        }
    }
}
