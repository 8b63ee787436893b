//! Reads tables beside the running stream, in chunks by primary key.
//!
//! Before and after it reads a chunk, the reader writes a watermark into the log. Whoever follows the stream drops from the chunk
//! all rows whose keys were changed between the two, and publishes the rest at the second: so that no row of a snapshot comes
//! after a newer change of the same key. A commit is in the log before others see it; a chunk that was read without seeing a
//! transaction that had already been streamed is read again.

use std::collections::VecDeque;

use bytes::Bytes;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _, ValueRef as _, postgres::PgRow};

use crate::{
    CaptureError, Row, Value,
    connection::{SETTINGS, literal, protocol, quoted},
};

type Result<T> = std::result::Result<T, CaptureError>;

/// What watermarks are called in the log.
pub(crate) const PREFIX: &str = "relais";

/// What a row is called in SQL: no column has that name.
const ROW: &str = "\"relais row\"";

/// How many transactions are remembered, to see whether a chunk has seen them.
const REMEMBERED: usize = 1000;

/// Which keys of a table are still to be read. Rows that are inserted behind the last key that it had at the beginning are in
/// the stream: a table that grows all the time must come to its end.
#[derive(Debug, Default)]
pub(crate) struct KeyRange {
    /// What was read last; none at the beginning.
    pub(crate) after: Option<Vec<String>>,
    /// The last key; none if it is not known yet.
    pub(crate) up_to: Option<Vec<String>>,
}

/// Rows of one table.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// `schema.table`.
    pub(crate) table: String,
    /// Names of all columns, in the order of the values.
    pub(crate) columns: Vec<SnapshotColumn>,
    /// The rows.
    pub(crate) rows: Vec<Row>,
    /// The key of the last row that was read; none if there was none.
    pub(crate) last: Option<Vec<String>>,
    /// The last key of the table when its first chunk was read.
    pub(crate) up_to: Option<Vec<String>>,
    /// Whether the table ends here.
    pub(crate) is_last: bool,
    /// OID, schema and name.
    pub(crate) oid: u32,
    pub(crate) schema: String,
    pub(crate) name: String,
    seen: Seen,
}

#[derive(Debug, Clone)]
pub(crate) struct SnapshotColumn {
    pub(crate) name: String,
    pub(crate) type_oid: u32,
    pub(crate) type_modifier: i32,
    pub(crate) in_identity: bool,
}

/// Which transactions a statement sees.
#[derive(Debug)]
struct Seen {
    /// All before this number, but those below.
    before: u64,
    open: Vec<u64>,
}

/// The transactions that were streamed last.
#[derive(Debug, Default)]
pub(crate) struct Streamed(VecDeque<u32>);

impl Streamed {
    pub(crate) fn note(&mut self, transaction: u32) {
        if self.0.back() != Some(&transaction) {
            self.0.push_back(transaction);
            if self.0.len() > REMEMBERED {
                self.0.pop_front();
            }
        }
    }

    /// Whether a chunk has seen all of them.
    pub(crate) fn are_in(&self, chunk: &Chunk) -> bool {
        self.0.iter().all(|number| {
            // The log has 32 bits of a number. It is near the newest.
            let distance = number.wrapping_sub(chunk.seen.before as u32).cast_signed();
            let whole = chunk.seen.before.wrapping_add_signed(i64::from(distance));
            whole < chunk.seen.before && !chunk.seen.open.contains(&whole)
        })
    }
}

/// Reads chunks.
#[derive(Debug)]
pub(crate) struct SnapshotReader {
    connection: PgConnection,
    /// Tells our watermarks from others'.
    run: String,
    number: u64,
    rows: usize,
    bytes: usize,
}

impl SnapshotReader {
    pub(crate) async fn connect(url: &str, run: String, rows: usize, bytes: usize) -> Result<Self> {
        let mut connection = PgConnection::connect(url).await?;
        for (name, value) in SETTINGS {
            let set = format!("SET {name} = {}", literal(value));
            sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut connection).await?;
        }
        Ok(Self { connection, run, number: 0, rows, bytes })
    }

    /// Reads the rows behind a key between two watermarks. The chunk is to be published when the second is streamed.
    pub(crate) async fn read(&mut self, table: &str, range: KeyRange) -> Result<(Chunk, Watermarks)> {
        self.number += 1;
        let marks = Watermarks { run: self.run.clone(), number: self.number };
        self.mark(&marks.low()).await?;
        let chunk = self.read_rows(table, range).await;
        // Also after an error, so that nobody waits for it.
        self.mark(&marks.high()).await?;
        Ok((chunk?, marks))
    }

    async fn mark(&mut self, text: &str) -> Result<()> {
        sqlx::query("SELECT pg_logical_emit_message(true, $1, $2)")
            .bind(PREFIX)
            .bind(text)
            .execute(&mut self.connection)
            .await?;
        Ok(())
    }

    async fn read_rows(&mut self, table: &str, mut range: KeyRange) -> Result<Chunk> {
        let (schema, name) = table.split_once('.').ok_or_else(|| protocol(format!("{table} has no schema")))?;
        let mut transaction = self.connection.begin().await?;
        sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY").execute(&mut *transaction).await?;
        let seen: (String, Vec<String>) = sqlx::query_as(
            "SELECT pg_snapshot_xmax(pg_current_snapshot())::text,
                    ARRAY(SELECT x::text FROM pg_snapshot_xip(pg_current_snapshot()) x)",
        )
        .fetch_one(&mut *transaction)
        .await?;
        let seen = Seen {
            before: seen.0.parse().map_err(|_| protocol("a snapshot without an end"))?,
            open: seen.1.iter().filter_map(|number| number.parse().ok()).collect(),
        };
        let described = sqlx::query(
            "SELECT c.oid::bigint AS oid, a.attname::text AS name, a.atttypid::bigint AS type_oid, a.atttypmod AS modifier,
                    format_type(a.atttypid, a.atttypmod) AS type_name,
                    coalesce(array_position(i.indkey::int2[], a.attnum), -1)::integer AS key_place,
                    c.relreplident = 'f' OR coalesce(a.attnum = ANY (r.indkey), false) AS in_identity
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
             LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
             LEFT JOIN pg_index r ON r.indrelid = c.oid
                  AND CASE c.relreplident WHEN 'd' THEN r.indisprimary WHEN 'i' THEN r.indisreplident ELSE false END
             WHERE n.nspname = $1 AND c.relname = $2 AND a.attgenerated = '' ORDER BY a.attnum",
        )
        .bind(schema)
        .bind(name)
        .fetch_all(&mut *transaction)
        .await?;
        let (mut columns, mut key, mut oid) = (Vec::new(), Vec::new(), 0);
        for (place, row) in described.iter().enumerate() {
            oid = u32::try_from(row.try_get::<i64, _>("oid")?).unwrap_or_default();
            columns.push(SnapshotColumn {
                name: row.try_get("name")?,
                type_oid: u32::try_from(row.try_get::<i64, _>("type_oid")?).unwrap_or_default(),
                type_modifier: row.try_get("modifier")?,
                in_identity: row.try_get("in_identity")?,
            });
            let key_place: i32 = row.try_get("key_place")?;
            if key_place >= 0 {
                key.push((key_place, place, row.try_get::<String, _>("type_name")?));
            }
        }
        key.sort_unstable_by_key(|(key_place, ..)| *key_place);
        if range.up_to.is_none() && !key.is_empty() {
            let sql = last_key(schema, name, &columns, &key);
            let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_optional(&mut *transaction).await?;
            let value = |row: &PgRow, place| row.try_get::<String, _>(place);
            range.up_to = row.map(|row| (0..key.len()).map(|place| value(&row, place)).collect()).transpose()?;
        }
        let sql = statement(schema, name, &columns, &key, &range, self.rows, self.bytes);
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut *transaction).await?;
        transaction.rollback().await?;
        let mut read = Vec::with_capacity(rows.len());
        for row in &rows {
            let value = |place: usize| {
                let value = row.try_get_raw(place)?;
                Ok::<_, sqlx::Error>(match value.is_null() {
                    true => Value::Null,
                    false => Value::Text(Bytes::copy_from_slice(value.as_bytes().map_err(sqlx::Error::Decode)?)),
                })
            };
            read.push((0..columns.len()).map(value).collect::<std::result::Result<Row, _>>()?);
        }
        let key: Vec<usize> = key.into_iter().map(|(_, place, _)| place).collect();
        let last = read.last().map(|row| key_of(row, &key));
        // A table without a key is read at once, and one whose columns are gone is over.
        let found = match rows.first().filter(|_| !key.is_empty()) {
            Some(row) => {
                let text = row.try_get_raw(columns.len())?.as_str().map_err(sqlx::Error::Decode)?.to_owned();
                text.parse().map_err(|_| protocol("a chunk without a number of rows"))?
            }
            None => 0,
        };
        let is_last = key.is_empty() || (found == read.len() && found < self.rows);
        let (schema, name) = (schema.to_owned(), name.to_owned());
        let up_to = range.up_to;
        Ok(Chunk { table: table.to_owned(), columns, rows: read, last, up_to, is_last, oid, schema, name, seen })
    }
}

/// The values of a row's key.
pub(crate) fn key_of(row: &Row, key: &[usize]) -> Vec<String> {
    key.iter()
        .map(|place| match row.get(*place) {
            Some(Value::Text(text)) => String::from_utf8_lossy(text).into_owned(),
            _ => String::new(),
        })
        .collect()
}

/// The last key of a table, as text.
fn last_key(schema: &str, name: &str, columns: &[SnapshotColumn], key: &[(i32, usize, String)]) -> String {
    let each = |form: fn(String) -> String| -> String {
        let names = key.iter().map(|(_, place, _)| form(format!("{ROW}.{}", quoted(&columns[*place].name))));
        names.collect::<Vec<_>>().join(", ")
    };
    let (texts, order) = (each(|name| format!("{name}::text")), each(|name| format!("{name} DESC")));
    // By the columns themselves: a bare name would be that of the text.
    format!("SELECT {texts} FROM {}.{} {ROW} ORDER BY {order} LIMIT 1", quoted(schema), quoted(name))
}

fn statement(
    schema: &str,
    name: &str,
    columns: &[SnapshotColumn],
    key: &[(i32, usize, String)],
    range: &KeyRange,
    rows: usize,
    bytes: usize,
) -> String {
    let table = format!("{}.{}", quoted(schema), quoted(name));
    let all: Vec<String> = columns.iter().map(|column| format!("{ROW}.{}", quoted(&column.name))).collect();
    let all = if all.is_empty() { "1".to_owned() } else { all.join(", ") };
    if key.is_empty() {
        return format!("SELECT {all} FROM {table} {ROW}");
    }
    let names: Vec<String> =
        key.iter().map(|(_, place, _)| format!("{ROW}.{}", quoted(&columns[*place].name))).collect();
    let names = names.join(", ");
    let compared = |sign: &str, values: &Option<Vec<String>>| match values {
        None => "true".to_owned(),
        Some(values) => {
            let values = key.iter().zip(values).map(|((_, _, kind), value)| format!("{}::{kind}", literal(value)));
            format!("({names}) {sign} ({})", values.collect::<Vec<_>>().join(", "))
        }
    };
    let within = format!("{} AND {}", compared(">", &range.after), compared("<=", &range.up_to));
    // One row at least, and about so many bytes. Whether bytes or rows were the limit is told by the number of rows.
    format!(
        "SELECT {all}, \"relais found\" FROM (
             SELECT {ROW}.*, count(*) OVER () AS \"relais found\",
                    sum(pg_column_size({ROW}.*)) OVER (ORDER BY {names} ROWS UNBOUNDED PRECEDING)
                    - pg_column_size({ROW}.*) AS \"relais before\"
             FROM (SELECT * FROM {table} {ROW} WHERE {within} ORDER BY {names} LIMIT {rows}) {ROW}
         ) {ROW} WHERE \"relais before\" < {bytes} ORDER BY {names}"
    )
}

/// The two marks of a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Watermarks {
    run: String,
    number: u64,
}

impl Watermarks {
    /// Those of the first chunk that a reader of this name reads.
    pub(crate) fn first(run: &str) -> Self {
        Self { run: run.to_owned(), number: 1 }
    }

    pub(crate) fn low(&self) -> String {
        format!("low {} {}", self.run, self.number)
    }

    pub(crate) fn high(&self) -> String {
        format!("high {} {}", self.run, self.number)
    }
}
