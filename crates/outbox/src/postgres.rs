//! The outbox on PostgreSQL 14 or newer.
//!
//! Rows are read without locks: a lease on partitions of keys excludes other relays, and a row that somebody else has locked
//! must not be passed over, since the later ones of its key would overtake it.

use std::{sync::OnceLock, time::Duration};

use async_trait::async_trait;
use futures::TryStreamExt as _;
use relais_capture::Address;
use relais_message::Template;
use sqlx::{AssertSqlSafe, PgPool, Row as _, postgres::PgPoolOptions};

use crate::{
    CaptureSource, Dialect, FailedKey, FailedRow, Layout, OutboxBacklog, OutboxError, OutboxRow, OutboxStore,
    ParkedRow, PartitionLeases, ReadRequest, RelayIntent, TableName,
    listen::RowListener,
    rows::read,
    table::{RETRY_KEYS, failed_aggregates_index, key_expression, relay_tables},
};

type Result<T> = std::result::Result<T, OutboxError>;

/// Connections of a relay: one to read and mark, one for operators, one to look after the slot.
const CONNECTIONS: u32 = 3;

/// Keys that wait are hashed where no index has them. Without room for that they would be compared one by one.
const HASH_MEMORY: &str = "SET work_mem = '64MB'";

/// An outbox on PostgreSQL.
#[derive(Debug)]
pub struct PostgresOutbox {
    pool: PgPool,
    url: String,
    /// Or why the URL can not be used by a replication connection.
    address: std::result::Result<Address, String>,
    table: TableName,
    layout: OnceLock<Layout>,
    /// There once a relay has waited.
    listener: OnceLock<RowListener>,
}

impl PostgresOutbox {
    /// Connects to the database of an outbox.
    pub async fn connect(url: &str, table: TableName) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).test_before_acquire(false);
        let pool = pool.after_connect(|connection, _| {
            Box::pin(async move {
                sqlx::query(HASH_MEMORY).execute(connection).await?;
                Ok(())
            })
        });
        let pool = pool.connect(url).await?;
        let address = Address::parse(url).map_err(|error| error.to_string());
        Ok(Self { pool, url: url.to_owned(), address, table, layout: OnceLock::new(), listener: OnceLock::new() })
    }

    async fn layout(&self) -> Result<&Layout> {
        match self.layout.get() {
            Some(layout) => Ok(layout),
            None => {
                let layout = self.read_layout().await?;
                Ok(self.layout.get_or_init(|| layout))
            }
        }
    }

    async fn read_layout(&self) -> Result<Layout> {
        let columns = sqlx::query_as::<_, (String, String)>(
            "SELECT attname::text, format_type(atttypid, -1) FROM pg_attribute
             WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped",
        )
        .bind(self.table.sql())
        .fetch_all(&self.pool)
        .await?;
        let has_index: bool = sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL")
            .bind(self.beside(&failed_aggregates_index(&self.table)))
            .fetch_one(&self.pool)
            .await?;
        let layout = Layout::new(&self.table, &columns)?.with_index_of_failed_aggregates(has_index);
        for right in ["SELECT", "UPDATE", "DELETE"] {
            let has: bool = sqlx::query_scalar("SELECT has_table_privilege($1, $2)")
                .bind(self.table.sql())
                .bind(right)
                .fetch_one(&self.pool)
                .await?;
            if !has {
                return Err(OutboxError::Right { table: self.table.to_string(), right });
            }
        }
        Ok(layout)
    }

    fn beside(&self, name: &str) -> String {
        self.table.beside(name)
    }

    /// That no row of the key of `o` is parked or waits for a retry; `$1` is the outbox, and `key` how a key is computed. There
    /// may be a million such keys: each row looks them up in an index, or all are read once and hashed. The time must be the same
    /// for all rows: else a key's wait could end between its first row and the next one, which would overtake it.
    fn key_does_not_wait(&self, layout: &Layout, template: &Template, key: &str) -> String {
        let table = self.table.sql();
        let waits = |w: &str| {
            format!(
                "{w}.published_at IS NULL AND ({w}.next_try_at IS NOT NULL OR {w}.parked_at IS NOT NULL)
                 AND ({w}.parked_at IS NOT NULL OR {w}.next_try_at > statement_timestamp())"
            )
        };
        // `OFFSET 0` keeps it from becoming a join, which would read the whole backlog for each batch.
        if layout.finds_failed_keys(template) {
            format!(
                "o.parked_at IS NULL AND $1 <> ''
                 AND NOT EXISTS (SELECT 1 FROM {table} w WHERE w.aggregate_id = o.aggregate_id AND {} OFFSET 0)",
                waits("w")
            )
        } else if layout.keeps_retries() {
            // `o` within the brackets is another row, so that the key is computed alike.
            format!(
                "o.parked_at IS NULL AND $1 <> '' AND {key} NOT IN (SELECT {key} FROM {table} o WHERE {})",
                waits("o")
            )
        } else {
            format!(
                "NOT EXISTS (SELECT 1 FROM {retry} r JOIN {table} w ON w.id = r.id::{id_type}
                             WHERE r.outbox = $1 AND r.key = {key} AND w.published_at IS NULL AND w.retry_count > 0
                                   AND (r.parked_at IS NOT NULL OR r.next_try_at > statement_timestamp()) OFFSET 0)",
                retry = self.beside("relais_outbox_retry"),
                id_type = layout.id_type
            )
        }
    }
}

#[async_trait]
impl OutboxStore for PostgresOutbox {
    async fn prepare(&self) -> Result<Layout> {
        let layout = self.layout().await?.clone();
        let there: bool = sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL AND to_regclass($2) IS NOT NULL")
            .bind(self.beside("relais_outbox_lease"))
            .bind(self.beside(RETRY_KEYS))
            .fetch_one(&self.pool)
            .await?;
        if !there {
            // Relays that start at once would both find nothing, and one would fail.
            let mut transaction = self.pool.begin().await?;
            sqlx::query("SELECT pg_advisory_xact_lock(hashtext('relais_outbox'))").execute(&mut *transaction).await?;
            for statement in relay_tables(&self.table, Dialect::Postgres) {
                sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *transaction).await?;
            }
            transaction.commit().await?;
        }
        Ok(layout)
    }

    async fn renew_leases(
        &self,
        outbox: &str,
        relay: &str,
        partitions: i32,
        lease: Duration,
        intent: RelayIntent,
    ) -> Result<PartitionLeases> {
        let (relays, leases) = (self.beside("relais_outbox_relay"), self.beside("relais_outbox_lease"));
        let mut transaction = self.pool.begin().await?;
        let alive = format!(
            "INSERT INTO {relays} (outbox, relay, until, intent)
             VALUES ($1, $2, clock_timestamp() + make_interval(secs => $3), $4)
             ON CONFLICT (outbox, relay) DO UPDATE SET until = excluded.until, intent = excluded.intent"
        );
        sqlx::query(AssertSqlSafe(alive))
            .bind(outbox)
            .bind(relay)
            .bind(lease.as_secs_f64())
            .bind(intent.name())
            .execute(&mut *transaction)
            .await?;
        let dead = format!("DELETE FROM {relays} WHERE outbox = $1 AND until < clock_timestamp() - interval '1 hour'");
        sqlx::query(AssertSqlSafe(dead)).bind(outbox).execute(&mut *transaction).await?;
        let all = format!(
            "SELECT relay, intent FROM {relays} WHERE outbox = $1 AND until > clock_timestamp() ORDER BY relay"
        );
        let all: Vec<(String, String)> =
            sqlx::query_as(AssertSqlSafe(all)).bind(outbox).fetch_all(&mut *transaction).await?;
        let share = share(&all, relay, partitions);
        let give_up = format!("DELETE FROM {leases} WHERE outbox = $1 AND relay = $2 AND NOT partition = ANY($3)");
        sqlx::query(AssertSqlSafe(give_up)).bind(outbox).bind(relay).bind(&share).execute(&mut *transaction).await?;
        // Given up first, so that two relays that change places do not wait for each other.
        transaction.commit().await?;
        let mut transaction = self.pool.begin().await?;
        let take = format!(
            "INSERT INTO {leases} AS l (outbox, partition, relay, until)
             SELECT $1, p, $2, clock_timestamp() + make_interval(secs => $4) FROM unnest($3::integer[]) AS p ORDER BY p
             ON CONFLICT (outbox, partition) DO UPDATE SET relay = excluded.relay, until = excluded.until
             WHERE l.relay = excluded.relay OR l.until < clock_timestamp()
             RETURNING partition"
        );
        let partitions: Vec<i32> = sqlx::query_scalar(AssertSqlSafe(take))
            .bind(outbox)
            .bind(relay)
            .bind(&share)
            .bind(lease.as_secs_f64())
            .fetch_all(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(PartitionLeases { partitions, relays: all.len() })
    }

    async fn release_leases(&self, outbox: &str, relay: &str) -> Result<()> {
        for table in ["relais_outbox_lease", "relais_outbox_relay"] {
            let sql = format!("DELETE FROM {} WHERE outbox = $1 AND relay = $2", self.beside(table));
            sqlx::query(AssertSqlSafe(sql)).bind(outbox).bind(relay).execute(&self.pool).await?;
        }
        Ok(())
    }

    async fn read_unpublished(&self, request: &ReadRequest) -> Result<Vec<OutboxRow>> {
        let layout = self.layout().await?;
        let key = key_expression(&request.key, layout, Dialect::Postgres)?;
        let does_not_wait = self.key_does_not_wait(layout, &request.key, &key);
        let column = |name: &str, sql: &str| match layout.has(name) {
            true => format!("{sql} AS {name}"),
            false => format!("NULL::text AS {name}"),
        };
        // Where the relay has all partitions, the hash need not be computed.
        let partition = match request.partitions.len() == usize::try_from(request.of).unwrap_or_default() {
            true => "($2::integer[] IS NOT NULL AND $3::integer > 0)".to_owned(),
            false => format!("((hashtext({key}) & 2147483647) % $3::integer) = ANY($2::integer[])"),
        };
        // The size on disk is known without reading the payload. It may be compressed: the reader counts again.
        let sql = format!(
            "SELECT id, key, aggregate_id, event_type, payload::text AS payload, created_at, retry_count, aggregate_type,
                    headers, destination, schema_version, correlation_id
             FROM (
                 SELECT o.*, sum(o.size) OVER (ORDER BY o.place ROWS UNBOUNDED PRECEDING) - o.size AS before
                 FROM (
                     SELECT o.id::text AS id, {key} AS key, o.aggregate_id::text AS aggregate_id, o.event_type::text AS event_type,
                            o.payload, o.created_at, o.retry_count::bigint AS retry_count, {aggregate_type}, {headers}, {destination},
                            {schema_version}, {correlation_id}, pg_column_size(o.payload) AS size,
                            row_number() OVER (ORDER BY {order}) AS place
                     FROM {table} o
                     WHERE o.published_at IS NULL AND {partition} AND {up_to} AND {does_not_wait}
                     ORDER BY {order} LIMIT $4
                 ) o
             ) o
             WHERE before < $5 ORDER BY place",
            order = layout.order(Dialect::Postgres),
            up_to = match layout.has("sequence") {
                true => "($6::text IS NULL OR o.sequence <= $6::text::bigint)",
                false => "($6::text IS NULL OR o.created_at <= $6::text::timestamptz)",
            },
            table = self.table.sql(),
            aggregate_type = column("aggregate_type", "o.aggregate_type::text"),
            headers = column("headers", "o.headers::text"),
            destination = column("destination", "o.destination::text"),
            schema_version = column("schema_version", "o.schema_version::text"),
            correlation_id = column("correlation_id", "o.correlation_id::text"),
        );
        let mut found = sqlx::query(AssertSqlSafe(sql))
            .bind(&request.outbox)
            .bind(&request.partitions)
            .bind(request.of)
            .bind(i64::try_from(request.rows).unwrap_or(i64::MAX))
            .bind(i64::try_from(request.bytes).unwrap_or(i64::MAX))
            .bind(&request.up_to)
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
        if let Some(listener) = self.listener.get().filter(|_| !rows.is_empty()) {
            listener.found_rows();
        }
        Ok(rows)
    }

    async fn next_retry(&self, outbox: &str) -> Result<Option<Duration>> {
        let layout = self.layout().await?;
        let rows = match layout.keeps_retries() {
            true => format!(
                "{} WHERE published_at IS NULL AND (next_try_at IS NOT NULL OR parked_at IS NOT NULL)
                   AND parked_at IS NULL AND $1 <> ''",
                self.table.sql()
            ),
            false => format!("{} WHERE outbox = $1 AND parked_at IS NULL", self.beside("relais_outbox_retry")),
        };
        let sql = format!(
            "SELECT extract(epoch FROM min(next_try_at) - clock_timestamp())::float8 FROM {rows}
                           AND next_try_at > clock_timestamp()"
        );
        let seconds: Option<f64> = sqlx::query_scalar(AssertSqlSafe(sql)).bind(outbox).fetch_one(&self.pool).await?;
        Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()))
    }

    async fn mark_published(&self, outbox: &str, ids: &[String], delete: bool) -> Result<u64> {
        let layout = self.layout().await?;
        let (table, id_type) = (self.table.sql(), &layout.id_type);
        let sql = match (delete, layout.keeps_retries()) {
            (true, _) => format!("DELETE FROM {table} WHERE id = ANY($1::text[]::{id_type}[])"),
            (false, true) => format!(
                "UPDATE {table} SET published_at = clock_timestamp(), next_try_at = NULL, parked_at = NULL
                 WHERE id = ANY($1::text[]::{id_type}[]) AND published_at IS NULL"
            ),
            (false, false) => format!(
                "UPDATE {table} SET published_at = clock_timestamp()
                 WHERE id = ANY($1::text[]::{id_type}[]) AND published_at IS NULL"
            ),
        };
        let marked = sqlx::query(AssertSqlSafe(sql)).bind(ids).execute(&self.pool).await?;
        self.forget_retries(layout, outbox, ids).await?;
        Ok(marked.rows_affected())
    }

    async fn record_failures(&self, outbox: &str, failed: &[FailedRow]) -> Result<()> {
        let layout = self.layout().await?;
        let (table, id_type) = (self.table.sql(), &layout.id_type);
        let retries = match layout.keeps_retries() {
            true => {
                ", last_error = w.error, next_try_at = clock_timestamp() + make_interval(secs => w.again),
                 parked_at = CASE WHEN w.again IS NULL THEN clock_timestamp() END"
            }
            false => "",
        };
        let update = format!(
            "UPDATE {table} o SET retry_count = w.retry_count{retries}
             FROM unnest($1::text[], $2::integer[], $3::text[], $4::float8[]) AS w (id, retry_count, error, again)
             WHERE o.id = w.id::{id_type} AND o.id = ANY($1::text[]::{id_type}[]) AND o.published_at IS NULL"
        );
        let ids: Vec<&str> = failed.iter().map(|row| row.id.as_str()).collect();
        let counts: Vec<i32> = failed.iter().map(|row| i32::try_from(row.retry_count).unwrap_or(i32::MAX)).collect();
        let errors: Vec<&str> = failed.iter().map(|row| row.error.as_str()).collect();
        let again: Vec<Option<f64>> = failed.iter().map(|row| row.again.map(|again| again.as_secs_f64())).collect();
        let mut transaction = self.pool.begin().await?;
        sqlx::query(AssertSqlSafe(update))
            .bind(&ids)
            .bind(&counts)
            .bind(&errors)
            .bind(&again)
            .execute(&mut *transaction)
            .await?;
        if !layout.keeps_retries() {
            let keys: Vec<&str> = failed.iter().map(|row| row.key.as_str()).collect();
            let upsert = format!(
                "INSERT INTO {} (outbox, id, key, last_error, next_try_at, parked_at)
                 SELECT $1, w.id, w.key, w.error, clock_timestamp() + make_interval(secs => w.again),
                        CASE WHEN w.again IS NULL THEN clock_timestamp() END
                 FROM unnest($2::text[], $3::text[], $4::text[], $5::float8[]) AS w (id, key, error, again)
                 ON CONFLICT (outbox, id) DO UPDATE SET last_error = excluded.last_error,
                     next_try_at = excluded.next_try_at, parked_at = excluded.parked_at",
                self.beside("relais_outbox_retry")
            );
            sqlx::query(AssertSqlSafe(upsert))
                .bind(outbox)
                .bind(&ids)
                .bind(&keys)
                .bind(&errors)
                .bind(&again)
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    async fn purge_published(&self, older_than: Duration, limit: usize) -> Result<u64> {
        let table = self.table.sql();
        let sql = format!(
            "DELETE FROM {table} WHERE id = ANY(ARRAY(
                 SELECT id FROM {table} WHERE published_at < clock_timestamp() - make_interval(secs => $1) LIMIT $2
             ))"
        );
        let gone = sqlx::query(AssertSqlSafe(sql))
            .bind(older_than.as_secs_f64())
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .execute(&self.pool)
            .await?;
        Ok(gone.rows_affected())
    }

    async fn backlog(&self, outbox: &str, limit: u64) -> Result<OutboxBacklog> {
        let layout = self.layout().await?;
        let table = self.table.sql();
        let parked = match layout.keeps_retries() {
            true => format!(
                "SELECT count(*) FROM {table} WHERE published_at IS NULL
                   AND (next_try_at IS NOT NULL OR parked_at IS NOT NULL) AND parked_at IS NOT NULL AND $2 <> ''"
            ),
            false => format!(
                "SELECT count(*) FROM {} WHERE outbox = $2 AND parked_at IS NOT NULL",
                self.beside("relais_outbox_retry")
            ),
        };
        let sql = format!(
            "SELECT (SELECT count(*) FROM (SELECT 1 FROM {table} WHERE published_at IS NULL LIMIT $1 + 1) o) AS rows,
                    (SELECT extract(epoch FROM clock_timestamp() - min(created_at))::float8 FROM (
                         SELECT created_at FROM {table} WHERE published_at IS NULL ORDER BY created_at LIMIT 1
                     ) o) AS oldest,
                    ({parked}) AS parked"
        );
        let limit = i64::try_from(limit).unwrap_or(i64::MAX - 1);
        let row = sqlx::query(AssertSqlSafe(sql)).bind(limit).bind(outbox).fetch_one(&self.pool).await?;
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
        let key = key_expression(&request.key, layout, Dialect::Postgres)?;
        let (table, id_type) = (self.table.sql(), &layout.id_type);
        let rows = match layout.keeps_retries() {
            true => format!(
                "SELECT o.id::text AS id, {key} AS key, o.event_type::text AS event_type, o.retry_count::bigint AS retry_count,
                        o.last_error FROM {table} o
                 WHERE o.published_at IS NULL AND (o.next_try_at IS NOT NULL OR o.parked_at IS NOT NULL)
                       AND o.parked_at IS NOT NULL AND $1 <> '' ORDER BY o.created_at LIMIT $2"
            ),
            false => format!(
                "SELECT r.id, r.key, o.event_type::text AS event_type, o.retry_count::bigint AS retry_count, r.last_error
                 FROM {} r JOIN {table} o ON o.id = r.id::{id_type}
                 WHERE r.outbox = $1 AND r.parked_at IS NOT NULL AND o.published_at IS NULL ORDER BY o.created_at LIMIT $2",
                self.beside("relais_outbox_retry")
            ),
        };
        let rows = sqlx::query(AssertSqlSafe(rows))
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
        let layout = self.layout().await?;
        let (table, id_type) = (self.table.sql(), &layout.id_type);
        let (set, parked) = match layout.keeps_retries() {
            true => (", parked_at = NULL, next_try_at = NULL", "parked_at IS NOT NULL AND $2 <> ''".to_owned()),
            false => (
                "",
                format!(
                    "id IN (SELECT r.id::{id_type} FROM {} r WHERE r.outbox = $2 AND r.parked_at IS NOT NULL)",
                    self.beside("relais_outbox_retry")
                ),
            ),
        };
        // Without a sequence, what failed before is told by its count to be the first of its key.
        let first = i32::from(!layout.has("sequence"));
        let sql = format!(
            "UPDATE {table} SET retry_count = {first}{set}
             WHERE id = ANY($1::text[]::{id_type}[]) AND published_at IS NULL AND {parked}"
        );
        let done = sqlx::query(AssertSqlSafe(sql)).bind(ids).bind(outbox).execute(&self.pool).await?;
        self.forget_retries(layout, outbox, ids).await?;
        Ok(done.rows_affected())
    }

    async fn skip_parked(&self, outbox: &str, ids: &[String]) -> Result<u64> {
        let layout = self.layout().await?;
        let (table, id_type) = (self.table.sql(), &layout.id_type);
        let parked = match layout.keeps_retries() {
            true => "parked_at IS NOT NULL AND $2 <> ''".to_owned(),
            false => format!(
                "id IN (SELECT r.id::{id_type} FROM {} r WHERE r.outbox = $2 AND r.parked_at IS NOT NULL)",
                self.beside("relais_outbox_retry")
            ),
        };
        let sql = format!(
            "UPDATE {table} SET published_at = clock_timestamp()
             WHERE id = ANY($1::text[]::{id_type}[]) AND published_at IS NULL AND {parked}"
        );
        let done = sqlx::query(AssertSqlSafe(sql)).bind(ids).bind(outbox).execute(&self.pool).await?;
        self.forget_retries(layout, outbox, ids).await?;
        Ok(done.rows_affected())
    }

    async fn capture_source(&self) -> Result<Option<CaptureSource>> {
        let layout = self.layout().await?.clone();
        let schema: Option<String> = sqlx::query_scalar(
            "SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)",
        )
        .bind(self.table.sql())
        .fetch_optional(&self.pool)
        .await?;
        let Some(schema) = schema else { return Err(OutboxError::NoTable(self.table.to_string())) };
        let address = self.address.clone().map_err(OutboxError::ReplicationUrl)?;
        Ok(Some(CaptureSource { pool: self.pool.clone(), address, table: self.table.clone(), layout, schema }))
    }

    async fn relay_that_captures(&self, outbox: &str) -> Result<Option<String>> {
        let sql = format!(
            "SELECT relay FROM {} WHERE outbox = $1 AND intent = $2 AND until > clock_timestamp() ORDER BY relay LIMIT 1",
            self.beside("relais_outbox_relay")
        );
        let query = sqlx::query_scalar(AssertSqlSafe(sql)).bind(outbox).bind(RelayIntent::Captures.name());
        Ok(query.fetch_optional(&self.pool).await?)
    }

    async fn failed_keys(&self, request: &ReadRequest) -> Result<Vec<FailedKey>> {
        let layout = self.layout().await?;
        let key = key_expression(&request.key, layout, Dialect::Postgres)?;
        let table = self.table.sql();
        let (key, from, row) = match layout.keeps_retries() {
            true => (
                key.as_str(),
                format!("{table} o"),
                "(o.next_try_at IS NOT NULL OR o.parked_at IS NOT NULL) AND $1 <> ''",
            ),
            false => (
                "o.key",
                format!(
                    "(SELECT r.* FROM {} r JOIN {table} t ON t.id = r.id::{} WHERE t.published_at IS NULL) o",
                    self.beside("relais_outbox_retry"),
                    layout.id_type
                ),
                "o.outbox = $1",
            ),
        };
        let unpublished = if layout.keeps_retries() { "o.published_at IS NULL AND" } else { "" };
        let sql = format!(
            "SELECT {key}, bool_or(o.parked_at IS NULL AND o.next_try_at <= clock_timestamp())
             FROM {from} WHERE {unpublished} {row} GROUP BY 1 LIMIT $2"
        );
        let limit = i64::try_from(request.rows).unwrap_or(i64::MAX);
        let rows: Vec<(String, Option<bool>)> =
            sqlx::query_as(AssertSqlSafe(sql)).bind(&request.outbox).bind(limit).fetch_all(&self.pool).await?;
        Ok(rows.into_iter().map(|(key, due)| FailedKey { key, is_due: due.unwrap_or_default() }).collect())
    }

    async fn wait_for_rows(&self) {
        self.listener.get_or_init(|| RowListener::start(self.url.clone(), self.table.clone())).wait().await;
    }
}

impl PostgresOutbox {
    async fn forget_retries(&self, layout: &Layout, outbox: &str, ids: &[String]) -> Result<()> {
        if !layout.keeps_retries() {
            let sql = format!("DELETE FROM {} WHERE outbox = $1 AND id = ANY($2)", self.beside("relais_outbox_retry"));
            sqlx::query(AssertSqlSafe(sql)).bind(outbox).bind(ids).execute(&self.pool).await?;
        }
        Ok(())
    }
}

/// The partitions that a relay is to have: its part, or all or none where somebody captures or is about to.
fn share(relays: &[(String, String)], relay: &str, partitions: i32) -> Vec<i32> {
    let first = |wanted: RelayIntent| relays.iter().find(|(_, intent)| intent == wanted.name());
    if let Some((alone, _)) = first(RelayIntent::Captures).or_else(|| first(RelayIntent::WantsAll)) {
        return if alone == relay { (0..partitions).collect() } else { Vec::new() };
    }
    let rank = relays.iter().position(|(name, _)| name == relay).unwrap_or_default();
    (0..partitions).filter(|partition| (*partition as usize) % relays.len().max(1) == rank).collect()
}
