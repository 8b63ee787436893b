//! Claims and marks in a table of a database: PostgreSQL and SQLite.
//!
//! [`SqlDedup`] is the store behind [`Dedup`](crate::Dedup). [`TransactionDedup`] writes the mark in the handler's own
//! transaction, so that mark and effect commit together. Both use the same table, and know each other's marks.
//!
//! The folder by file: `table` has the table's name and DDL, `statements` the SQL of each dialect, `connection` runs it, `store`
//! and `transaction` are the two above, `purge` removes what is over.

mod connection;
mod purge;
mod statements;
mod store;
mod table;
mod transaction;

pub use connection::DedupConnection;
pub use store::SqlDedup;
pub use table::{DedupTable, Dialect};
pub use transaction::{Mark, TransactionDedup};

/// Claims and marks in a table of PostgreSQL.
#[cfg(feature = "postgres")]
pub type PostgresDedup = SqlDedup<sqlx::Postgres>;

/// Claims and marks in a table of an SQLite file.
#[cfg(feature = "sqlite")]
pub type SqliteDedup = SqlDedup<sqlx::Sqlite>;
