//! The outbox in an SQLite file. One relay at a time has all partitions; times are text in UTC, as the table's defaults write
//! them.

use std::{str::FromStr as _, sync::OnceLock, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt as _;
use jiff::Timestamp;
use sqlx::{
    AssertSqlSafe, Row as _, SqlitePool,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteRow},
};

use crate::{
    Dialect, FailedRow, Layout, OutboxBacklog, OutboxError, OutboxRow, OutboxStore, ParkedRow, PartitionLeases,
    ReadRequest, RelayIntent, TableName,
    rows::read_headers,
    table::{key_expression, relay_tables, sqlite_text},
};

type Result<T> = std::result::Result<T, OutboxError>;

/// The present moment, as the table's defaults write it.
const NOW: &str = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')";

/// How long a statement waits for somebody else's write.
const BUSY: Duration = Duration::from_secs(5);

/// An outbox in an SQLite file.
#[derive(Debug)]
pub struct SqliteOutbox {
    pool: SqlitePool,
    table: TableName,
    layout: OnceLock<Layout>,
}

impl SqliteOutbox {
    /// Opens the file of an outbox.
    pub async fn connect(url: &str, table: TableName) -> Result<Self> {
        let options = SqliteConnectOptions::from_str(url)?.busy_timeout(BUSY);
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await?;
        Ok(Self { pool, table, layout: OnceLock::new() })
    }

    async fn layout(&self) -> Result<&Layout> {
        if let Some(layout) = self.layout.get() {
            return Ok(layout);
        }
        let columns = sqlx::query_as::<_, (String, String)>("SELECT name, lower(type) FROM pragma_table_info(?1)")
            .bind(self.table.name())
            .fetch_all(&self.pool)
            .await?;
        let layout = Layout::new(&self.table, &columns)?;
        Ok(self.layout.get_or_init(|| layout))
    }

    /// The moment that lies so many seconds ahead (parameter `number`), or none.
    fn ahead(number: usize) -> String {
        format!("strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?{number} || ' seconds')")
    }

    fn waiting(&self, layout: &Layout, key: &str) -> String {
        match layout.keeps_retries() {
            true => format!(
                "SELECT {key} FROM {table} o WHERE o.published_at IS NULL AND (o.parked_at IS NOT NULL OR o.next_try_at > {NOW})",
                table = self.table.sql()
            ),
            false => format!(
                "SELECT r.key FROM relais_outbox_retry r JOIN {table} o ON o.id = r.id OR o.id = unhex(r.id, '-')
                 WHERE r.outbox = ?1 AND o.published_at IS NULL AND o.retry_count > 0
                       AND (r.parked_at IS NOT NULL OR r.next_try_at > {NOW})",
                table = self.table.sql()
            ),
        }
    }

    /// What says of a row that it is parked; `?1` is the outbox.
    fn parked(layout: &Layout) -> &'static str {
        match layout.keeps_retries() {
            true => "parked_at IS NOT NULL",
            false => {
                "lower(CASE typeof(id) WHEN 'blob' THEN hex(id) ELSE id END) IN (
                 SELECT lower(id) FROM relais_outbox_retry WHERE outbox = ?1 AND parked_at IS NOT NULL)"
            }
        }
    }

    /// Changes parked rows by `set`, one after the other; how many there were.
    async fn change_parked(&self, outbox: &str, ids: &[String], set: &str) -> Result<u64> {
        let layout = self.layout().await?;
        let update = format!(
            "UPDATE {} SET {set} WHERE (id = ?2 OR id = unhex(?2, '-')) AND published_at IS NULL AND {}",
            self.table.sql(),
            Self::parked(layout)
        );
        let mut done = 0;
        let mut transaction = self.pool.begin().await?;
        for id in ids {
            let update = sqlx::query(AssertSqlSafe(update.clone())).bind(outbox).bind(id);
            done += update.execute(&mut *transaction).await?.rows_affected();
            sqlx::query("DELETE FROM relais_outbox_retry WHERE outbox = ?1 AND id = ?2")
                .bind(outbox)
                .bind(id)
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
        Ok(done)
    }
}

#[async_trait]
impl OutboxStore for SqliteOutbox {
    async fn prepare(&self) -> Result<Layout> {
        let layout = self.layout().await?.clone();
        for statement in relay_tables(&self.table, Dialect::Sqlite) {
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&self.pool).await?;
        }
        Ok(layout)
    }

    async fn renew_leases(
        &self,
        outbox: &str,
        relay: &str,
        partitions: i32,
        lease: Duration,
        _intent: RelayIntent,
    ) -> Result<PartitionLeases> {
        // A file has one writer: dividing the work among relays would only make them wait for each other.
        let take = format!(
            "INSERT INTO relais_outbox_lease (outbox, partition, relay, until) VALUES (?1, 0, ?2, {until})
             ON CONFLICT (outbox, partition) DO UPDATE SET relay = excluded.relay, until = excluded.until
             WHERE relais_outbox_lease.relay = excluded.relay OR relais_outbox_lease.until < {NOW}",
            until = Self::ahead(3)
        );
        let taken = sqlx::query(AssertSqlSafe(take))
            .bind(outbox)
            .bind(relay)
            .bind(lease.as_secs_f64())
            .execute(&self.pool)
            .await?
            .rows_affected();
        let partitions = if taken > 0 { (0..partitions).collect() } else { Vec::new() };
        Ok(PartitionLeases { partitions, relays: 1 })
    }

    async fn release_leases(&self, outbox: &str, relay: &str) -> Result<()> {
        sqlx::query("DELETE FROM relais_outbox_lease WHERE outbox = ?1 AND relay = ?2")
            .bind(outbox)
            .bind(relay)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn read_unpublished(&self, request: &ReadRequest) -> Result<Vec<OutboxRow>> {
        let layout = self.layout().await?;
        let key = key_expression(&request.key, layout, Dialect::Sqlite)?;
        let column = |name: &str| match layout.has(name) {
            true => format!("CAST(o.{name} AS TEXT) AS {name}"),
            false => format!("NULL AS {name}"),
        };
        let optional = ["aggregate_type", "headers", "destination", "schema_version", "correlation_id"].map(column);
        let sql = format!(
            "SELECT {id} AS id, {key} AS key, {aggregate_id} AS aggregate_id, o.event_type,
                    CAST(o.payload AS TEXT) AS payload, o.created_at, o.retry_count, {optional}
             FROM {table} o WHERE o.published_at IS NULL AND {key} NOT IN ({waiting})
             ORDER BY {order} LIMIT ?2",
            id = sqlite_text("o.id"),
            aggregate_id = sqlite_text("o.aggregate_id"),
            optional = optional.join(", "),
            table = self.table.sql(),
            waiting = self.waiting(layout, &key),
            order = layout.order(Dialect::Sqlite)
        );
        let mut found = sqlx::query(AssertSqlSafe(sql))
            .bind(&request.outbox)
            .bind(i64::try_from(request.rows).unwrap_or(i64::MAX))
            .fetch(&self.pool);
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while let Some(row) = found.try_next().await? {
            let row = read(&row)?;
            bytes += row.payload.len();
            rows.push(row);
            if bytes >= request.bytes {
                break;
            }
        }
        Ok(rows)
    }

    async fn next_retry(&self, outbox: &str) -> Result<Option<Duration>> {
        let layout = self.layout().await?;
        let rows = match layout.keeps_retries() {
            true => format!("{} WHERE published_at IS NULL AND ?1 <> ''", self.table.sql()),
            false => "relais_outbox_retry WHERE outbox = ?1".to_owned(),
        };
        let sql = format!(
            "SELECT (julianday(min(next_try_at)) - julianday('now')) * 86400.0 FROM {rows}
               AND parked_at IS NULL AND next_try_at > {NOW}"
        );
        let seconds: Option<f64> = sqlx::query_scalar(AssertSqlSafe(sql)).bind(outbox).fetch_one(&self.pool).await?;
        Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()))
    }

    async fn mark_published(&self, outbox: &str, ids: &[String], delete: bool) -> Result<u64> {
        let layout = self.layout().await?;
        let table = self.table.sql();
        let named = "(id IN (SELECT value FROM json_each(?1)) OR id IN (SELECT unhex(value, '-') FROM json_each(?1)))";
        let sql = match (delete, layout.keeps_retries()) {
            (true, _) => format!("DELETE FROM {table} WHERE {named}"),
            (false, true) => format!(
                "UPDATE {table} SET published_at = {NOW}, next_try_at = NULL, parked_at = NULL
                 WHERE {named} AND published_at IS NULL"
            ),
            (false, false) => {
                format!("UPDATE {table} SET published_at = {NOW} WHERE {named} AND published_at IS NULL")
            }
        };
        let ids = serde_json::to_string(ids)?;
        let mut transaction = self.pool.begin().await?;
        let marked = sqlx::query(AssertSqlSafe(sql)).bind(&ids).execute(&mut *transaction).await?;
        if !layout.keeps_retries() {
            let sql = "DELETE FROM relais_outbox_retry WHERE outbox = ?2 AND id IN (SELECT value FROM json_each(?1))";
            sqlx::query(sql).bind(&ids).bind(outbox).execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
        Ok(marked.rows_affected())
    }

    async fn record_failures(&self, outbox: &str, failed: &[FailedRow]) -> Result<()> {
        let layout = self.layout().await?;
        let again = format!("CASE WHEN ?3 IS NOT NULL THEN {} END", Self::ahead(3));
        let parked = format!("CASE WHEN ?3 IS NULL THEN {NOW} END");
        let retries = match layout.keeps_retries() {
            true => format!(", last_error = ?4, next_try_at = {again}, parked_at = {parked}"),
            false => String::new(),
        };
        let update = format!(
            "UPDATE {} SET retry_count = ?2{retries} WHERE (id = ?1 OR id = unhex(?1, '-')) AND published_at IS NULL
               AND ?3 IS ?3 AND ?4 IS ?4",
            self.table.sql()
        );
        let upsert = format!(
            "INSERT INTO relais_outbox_retry (outbox, id, key, last_error, next_try_at, parked_at)
             VALUES (?5, ?1, ?2, ?4, {again}, {parked})
             ON CONFLICT (outbox, id) DO UPDATE SET last_error = excluded.last_error,
                 next_try_at = excluded.next_try_at, parked_at = excluded.parked_at"
        );
        let mut transaction = self.pool.begin().await?;
        for row in failed {
            let again = row.again.map(|again| again.as_secs_f64());
            sqlx::query(AssertSqlSafe(update.clone()))
                .bind(&row.id)
                .bind(i64::from(row.retry_count))
                .bind(again)
                .bind(&row.error)
                .execute(&mut *transaction)
                .await?;
            if !layout.keeps_retries() {
                sqlx::query(AssertSqlSafe(upsert.clone()))
                    .bind(&row.id)
                    .bind(&row.key)
                    .bind(again)
                    .bind(&row.error)
                    .bind(outbox)
                    .execute(&mut *transaction)
                    .await?;
            }
        }
        transaction.commit().await?;
        Ok(())
    }

    async fn purge_published(&self, older_than: Duration, limit: usize) -> Result<u64> {
        let sql = format!(
            "DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE published_at < {before} LIMIT ?2)",
            table = self.table.sql(),
            before = Self::ahead(1)
        );
        let gone = sqlx::query(AssertSqlSafe(sql))
            .bind(-older_than.as_secs_f64())
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .execute(&self.pool)
            .await?;
        Ok(gone.rows_affected())
    }

    async fn backlog(&self, outbox: &str, limit: u64) -> Result<OutboxBacklog> {
        let layout = self.layout().await?;
        let sql = format!(
            "SELECT (SELECT count(*) FROM (SELECT 1 FROM {table} WHERE published_at IS NULL LIMIT ?2 + 1)) AS rows,
                    (SELECT (julianday('now') - julianday(created_at)) * 86400.0 FROM {table}
                     WHERE published_at IS NULL ORDER BY created_at LIMIT 1) AS oldest,
                    (SELECT count(*) FROM {table} WHERE published_at IS NULL AND ?1 <> '' AND {parked}) AS parked",
            table = self.table.sql(),
            parked = Self::parked(layout)
        );
        let limit = i64::try_from(limit).unwrap_or(i64::MAX - 1);
        let row = sqlx::query(AssertSqlSafe(sql)).bind(outbox).bind(limit).fetch_one(&self.pool).await?;
        let (rows, parked): (i64, i64) = (row.try_get("rows")?, row.try_get("parked")?);
        let oldest: Option<f64> = row.try_get("oldest")?;
        Ok(OutboxBacklog {
            unpublished: u64::try_from(rows.min(limit)).unwrap_or_default(),
            more: rows > limit,
            oldest: oldest.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok()),
            parked: u64::try_from(parked).unwrap_or_default(),
        })
    }

    async fn list_parked(&self, request: &ReadRequest) -> Result<Vec<ParkedRow>> {
        let layout = self.layout().await?;
        let key = key_expression(&request.key, layout, Dialect::Sqlite)?;
        let (error, parked, join) = match layout.keeps_retries() {
            true => ("o.last_error", "o.parked_at IS NOT NULL", ""),
            false => (
                "r.last_error",
                "r.parked_at IS NOT NULL",
                "JOIN relais_outbox_retry r ON (o.id = r.id OR o.id = unhex(r.id, '-')) AND r.outbox = ?1",
            ),
        };
        let sql = format!(
            "SELECT {id} AS id, {key} AS key, o.event_type, o.retry_count, {error} AS last_error
             FROM {table} o {join}
             WHERE o.published_at IS NULL AND ?1 <> '' AND {parked} ORDER BY o.created_at LIMIT ?2",
            id = sqlite_text("o.id"),
            table = self.table.sql()
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(&request.outbox)
            .bind(i64::try_from(request.rows).unwrap_or(i64::MAX))
            .fetch_all(&self.pool)
            .await?;
        rows.iter()
            .map(|row| {
                Ok(ParkedRow {
                    id: row.try_get("id")?,
                    key: row.try_get("key")?,
                    event_type: row.try_get("event_type")?,
                    retry_count: u32::try_from(row.try_get::<i64, _>("retry_count")?).unwrap_or_default(),
                    error: row.try_get("last_error")?,
                })
            })
            .collect()
    }

    async fn retry_parked(&self, outbox: &str, ids: &[String]) -> Result<u64> {
        let set = match self.layout().await?.keeps_retries() {
            true => "retry_count = 0, parked_at = NULL, next_try_at = NULL",
            false => "retry_count = 0",
        };
        self.change_parked(outbox, ids, set).await
    }

    async fn skip_parked(&self, outbox: &str, ids: &[String]) -> Result<u64> {
        self.change_parked(outbox, ids, &format!("published_at = {NOW}")).await
    }

    async fn wait_for_rows(&self) {
        std::future::pending::<()>().await;
    }
}

/// Reads a row. One whose values can not be read is not published, and holds back only its own key.
fn read(row: &SqliteRow) -> Result<OutboxRow> {
    let (id, key) = (row.try_get("id")?, row.try_get("key")?);
    Ok(match read_values(row) {
        Ok(values) => OutboxRow { id, key, ..values },
        Err(error) => OutboxRow {
            id,
            key,
            retry_count: retry_count(row)?,
            ..OutboxRow::unreadable(format!("the row can not be read: {error}"))
        },
    })
}

fn retry_count(row: &SqliteRow) -> std::result::Result<u32, sqlx::Error> {
    Ok(u32::try_from(row.try_get::<i64, _>("retry_count")?).unwrap_or_default())
}

fn read_values(row: &SqliteRow) -> std::result::Result<OutboxRow, sqlx::Error> {
    let created_at: String = row.try_get("created_at")?;
    let headers: Option<String> = row.try_get("headers")?;
    Ok(OutboxRow {
        id: String::new(),
        key: String::new(),
        aggregate_id: row.try_get("aggregate_id")?,
        event_type: row.try_get("event_type")?,
        payload: Bytes::from(row.try_get::<String, _>("payload")?),
        created_at: moment(&created_at),
        retry_count: retry_count(row)?,
        aggregate_type: row.try_get("aggregate_type")?,
        headers: headers.as_deref().map(read_headers).unwrap_or_default(),
        destination: row.try_get("destination")?,
        schema_version: row.try_get("schema_version")?,
        correlation_id: row.try_get("correlation_id")?,
        unreadable: None,
    })
}

/// A time as the table's default writes it, or as `CURRENT_TIMESTAMP` does. What cannot be read is 1970.
fn moment(text: &str) -> Timestamp {
    let utc = || format!("{}Z", text.replace(' ', "T")).parse();
    text.parse().or_else(|_| utc()).unwrap_or(Timestamp::UNIX_EPOCH)
}
