//! Batches as parameters.
//!
//! Small values go as one JSON array, which `json_each` unfolds. Payloads do not: SQLite would parse each again for
//! every column, and a batch of large ones would take seconds. They are bound one by one to a statement with many rows
//! of VALUES, whose numbers of rows are powers of two, so that a few statements, prepared once, serve batches of any
//! size.

use sqlx::{
    AssertSqlSafe, Sqlite,
    query::Query,
    sqlite::{SqliteArguments, SqliteConnection},
};

use crate::{row::corrupt, session::Result};

/// As many rows as one statement takes.
const MOST_ROWS: usize = 64;

/// A statement that values are being bound to.
pub(crate) type Statement<'q> = Query<'q, Sqlite, SqliteArguments>;

/// A batch of small values: a JSON array.
pub(crate) fn array<T: serde::Serialize>(rows: &[T]) -> Result<String> {
    serde_json::to_string(rows).map_err(corrupt)
}

/// A statement over many rows of VALUES: the text before them, one row, and the text behind them.
#[derive(Debug)]
pub(crate) struct Values {
    pub(crate) before: &'static str,
    pub(crate) row: &'static str,
    pub(crate) after: &'static str,
}

impl Values {
    /// The statement's text for so many rows.
    pub(crate) fn text(&self, rows: usize) -> String {
        let mut text = String::from(self.before);
        for i in 0..rows {
            text.push_str(if i == 0 { "" } else { ", " });
            text.push_str(self.row);
        }
        text + self.after
    }

    /// Executes it over the rows; `bind` adds the values of one. Tells how many rows it changed.
    pub(crate) async fn execute<'q, T>(
        &self,
        connection: &mut SqliteConnection,
        mut rows: &'q [T],
        bind: impl Fn(Statement<'q>, &'q T) -> Statement<'q>,
    ) -> std::result::Result<usize, sqlx::Error> {
        let mut changed = 0;
        while !rows.is_empty() {
            let (now, later) = rows.split_at(at_once(rows.len()));
            // The text is made of constants; all values are bound.
            let statement = sqlx::query(AssertSqlSafe(self.text(now.len())));
            let done = now.iter().fold(statement, &bind).execute(&mut *connection).await?;
            changed += usize::try_from(done.rows_affected()).unwrap_or(usize::MAX);
            rows = later;
        }
        Ok(changed)
    }
}

/// The largest power of two that is not more than there are, nor than [`MOST_ROWS`].
fn at_once(rows: usize) -> usize {
    1 << rows.min(MOST_ROWS).ilog2()
}
