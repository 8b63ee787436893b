//! The SQL of deduplication, once in each dialect. The helpers of the libraries in Python and JavaScript say the same.
//!
//! A row whose `expires_at` has passed counts as absent in every statement. Times are the database's.

use std::sync::Arc;

use super::{DedupTable, Dialect};

/// The present moment in SQLite, as text.
const NOW: &str = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')";

/// What is said to a table.
#[derive(Debug, Clone)]
pub struct Statements {
    /// Writes a claim (`$3` is its token) or a mark (`$3` is null) for `$4` seconds, unless there is a row.
    pub(crate) insert: Arc<str>,
    /// Does the same in place of a row that is over.
    pub(crate) replace: Arc<str>,
    /// What the message has: whether it is a mark, and how many seconds are left.
    pub(crate) look: Arc<str>,
    /// Lets the claim `$3` last for `$4` seconds.
    pub(crate) extend: Arc<str>,
    /// Turns the claim `$3` into a mark for `$4` seconds.
    pub(crate) mark: Arc<str>,
    /// Removes the claim `$3`.
    pub(crate) release: Arc<str>,
    /// Removes at most `$1` rows that are over.
    pub(crate) purge: Arc<str>,
}

impl Statements {
    pub(crate) fn new(table: &DedupTable, dialect: Dialect) -> Self {
        match dialect {
            Dialect::Postgres => Self::postgres(&table.sql()),
            Dialect::Sqlite => Self::sqlite(&table.sql()),
        }
    }

    /// A message that another transaction has written, and that is still open, is passed over: that one holds an advisory lock.
    /// Without it, an insert would wait for the end of that transaction, with a connection in its hands.
    fn postgres(table: &str) -> Self {
        let later = "clock_timestamp() + make_interval(secs => $4)";
        let processed = "CASE WHEN $3::text IS NULL THEN clock_timestamp() END";
        let lock = "pg_try_advisory_xact_lock(hashtextextended($2::text, hashtext($1::text)))";
        let write = "ON CONFLICT (consumer, id) DO UPDATE
             SET token = excluded.token, processed_at = excluded.processed_at, expires_at = excluded.expires_at";
        Self {
            // A row that is there is not even locked.
            insert: format!(
                "INSERT INTO {table} (consumer, id, token, processed_at, expires_at)
                 SELECT $1::text, $2::text, $3::text, {processed}, {later} WHERE {lock} ON CONFLICT (consumer, id) DO NOTHING"
            )
            .into(),
            replace: format!(
                "UPDATE {table} SET token = $3::text, processed_at = {processed}, expires_at = {later}
                 WHERE consumer = $1 AND id = $2 AND expires_at <= clock_timestamp() AND {lock}"
            )
            .into(),
            look: format!(
                "SELECT token IS NULL, extract(epoch FROM expires_at - clock_timestamp())::float8
                 FROM {table} WHERE consumer = $1 AND id = $2"
            )
            .into(),
            extend: format!(
                "INSERT INTO {table} AS d (consumer, id, token, expires_at) VALUES ($1, $2, $3, {later})
                 {write} WHERE d.token = excluded.token OR d.expires_at <= clock_timestamp()"
            )
            .into(),
            mark: format!(
                "INSERT INTO {table} AS d (consumer, id, processed_at, expires_at) VALUES ($1, $2, clock_timestamp(), {later})
                 {write} WHERE d.token = $3 OR d.expires_at <= clock_timestamp()"
            )
            .into(),
            release: format!("DELETE FROM {table} WHERE consumer = $1 AND id = $2 AND token = $3").into(),
            purge: format!(
                "DELETE FROM {table} WHERE ctid = ANY(ARRAY(
                     SELECT ctid FROM {table} WHERE expires_at <= statement_timestamp()
                     ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))"
            )
            .into(),
        }
    }

    fn sqlite(table: &str) -> Self {
        let later = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?4 || ' seconds')";
        let processed = format!("CASE WHEN ?3 IS NULL THEN {NOW} END");
        let write = "ON CONFLICT (consumer, id) DO UPDATE
             SET token = excluded.token, processed_at = excluded.processed_at, expires_at = excluded.expires_at";
        Self {
            insert: format!(
                "INSERT INTO {table} (consumer, id, token, processed_at, expires_at)
                 VALUES (?1, ?2, ?3, {processed}, {later}) ON CONFLICT (consumer, id) DO NOTHING"
            )
            .into(),
            replace: format!(
                "UPDATE {table} SET token = ?3, processed_at = {processed}, expires_at = {later}
                 WHERE consumer = ?1 AND id = ?2 AND expires_at <= {NOW}"
            )
            .into(),
            look: format!(
                "SELECT token IS NULL, round((julianday(expires_at) - julianday('now')) * 86400.0, 3)
                 FROM {table} WHERE consumer = ?1 AND id = ?2"
            )
            .into(),
            extend: format!(
                "INSERT INTO {table} AS d (consumer, id, token, expires_at) VALUES (?1, ?2, ?3, {later})
                 {write} WHERE d.token = excluded.token OR d.expires_at <= {NOW}"
            )
            .into(),
            mark: format!(
                "INSERT INTO {table} AS d (consumer, id, processed_at, expires_at) VALUES (?1, ?2, {NOW}, {later})
                 {write} WHERE d.token = ?3 OR d.expires_at <= {NOW}"
            )
            .into(),
            release: format!("DELETE FROM {table} WHERE consumer = ?1 AND id = ?2 AND token = ?3").into(),
            purge: format!(
                "DELETE FROM {table} WHERE (consumer, id) IN (
                     SELECT consumer, id FROM {table} WHERE expires_at <= {NOW} ORDER BY expires_at LIMIT ?1)"
            )
            .into(),
        }
    }
}
