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
    /// The database failed.
    #[error("the outbox's database failed")]
    Database(#[from] sqlx::Error),
}
