//! Batches as parameters.
//!
//! Small values go as one JSON array, which `json_each` unfolds. Payloads do not: SQLite would parse each again for every
//! column, and a batch of large ones would take seconds. They are bound one by one to a statement with many rows of
//! VALUES, whose numbers of rows are powers of two, so that a few statements, prepared once, serve batches of any size.

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

/// A statement over many rows of VALUES.
#[derive(Debug)]
pub(crate) struct Values {
    before: &'static str,
    row: &'static str,
    after: &'static str,
}

pub(crate) const INSERT_TASKS: Values = Values {
    before: "INSERT INTO task (task_id, service_id, client_id, seq, request, callback, correlation_id, priority, rank, status,
                               scheduled, due, expires, timer, timeout_ms, retry, unique_key, parent_id, batch_id, trace,
                               after_when, submitted) VALUES ",
    row: concat!(
        "(?, ?, ?, ?, ?, ?, ?, ?, max(",
        now!(),
        ", ?) - ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ",
        now!(),
        ")"
    ),
    after: "",
};

pub(crate) const INSERT_KEYS: Values = Values {
    before: "INSERT INTO idempotency (service_id, client_id, key, fingerprint, task_id, position, created) VALUES ",
    row: concat!("(?, ?, ?, ?, ?, ?, ", now!(), ")"),
    after: "",
};

pub(crate) const WRITE_TASKS: Values = Values {
    before: "UPDATE task SET status = w.column2, attempt = w.column3, losses = w.column4, revision = w.column5,
                 progress = w.column6, worker_host = w.column7, started = w.column8, ended = w.column9,
                 lease_until = w.column10, response = w.column11, error_message = w.column12, error_kind = w.column13,
                 error_trace = w.column14, failures = w.column15, due = w.column16, expires = w.column17,
                 deadline = w.column18, timer = w.column19
             FROM (VALUES ",
    row: "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    after: ") AS w WHERE task.id = w.column1",
};

/// Only where nobody else has changed the task.
pub(crate) const WRITE_DONE: Values = Values {
    before:
        "UPDATE task SET status = 2, revision = w.column3, attempt = w.column4, progress = 100, worker_host = w.column5,
                 started = w.column6, ended = w.column7, response = w.column8, error_message = NULL, error_kind = NULL,
                 error_trace = NULL, lease_until = NULL, due = NULL, expires = NULL, deadline = NULL, timer = NULL
             FROM (VALUES ",
    row: "(?, ?, ?, ?, ?, ?, ?, ?)",
    after: ") AS w WHERE task.id = w.column1 AND task.revision = w.column2",
};

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
            // The text is made of this module's constants; all values are bound.
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
