//! What capture needs of the outbox's PostgreSQL beside the stream: the slot's care, and what the table says about rows that
//! come from the log.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use relais_capture::{Address, Publication, Slot, Wanted, check};
use sqlx::{AssertSqlSafe, PgPool, Row as _};

use crate::{Layout, OutboxError, RelayOptions, TableName};

type Result<T> = std::result::Result<T, OutboxError>;

/// How long a commit in the log may take until others see it; a synchronous standby can hold it up.
const VISIBLE_WITHIN: Duration = Duration::from_secs(60);

/// How often to look.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A PostgreSQL whose log has the outbox's rows.
#[derive(Debug, Clone)]
pub struct CaptureSource {
    pub(crate) pool: PgPool,
    pub(crate) address: Address,
    pub(crate) table: TableName,
    pub(crate) layout: Layout,
    /// The table's schema, as the catalog says.
    pub(crate) schema: String,
}

/// Whether all of these transactions are visible to the statement; `$1` are their numbers. The log has 32 bits of each.
const ALL_VISIBLE: &str = "(SELECT coalesce(bool_and(pg_visible_in_snapshot(
        (x.most + (((t.number - x.most + 2147483648) & 4294967295) - 2147483648))::text::xid8, pg_current_snapshot())), true)
    FROM unnest($1::bigint[]) AS t (number),
         (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS most) x)";

impl CaptureSource {
    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// The outbox's slot. Slots are of the whole server, so that its name has the database in it; and the sum of what tells
    /// outboxes of one database apart, since not every character of a name can be in a slot's.
    pub(crate) fn slot(&self, options: &RelayOptions) -> Result<Slot> {
        let name = options.capture.slot.clone().unwrap_or_else(|| {
            let (database, outbox) = (self.address.database(), &options.outbox);
            let sum = checksum(&format!("{database}\n{outbox}\n{}\n{}", self.schema, self.table.name()));
            let name = format!("relais_{database}_{outbox}").to_lowercase();
            let mut name = name.replace(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit(), "_");
            name.truncate(54);
            format!("{name}_{sum:08x}")
        });
        Ok(Slot::new(name)?)
    }

    /// Drops slot and publication: nobody is going to read them.
    pub(crate) async fn forget(&self, options: &RelayOptions) -> Result<()> {
        let slot = self.slot(options)?;
        if slot.state(&self.pool).await?.is_some() {
            slot.drop(&self.pool).await?;
            Publication::drop(&self.publication_name(options)?, &owner(options), &self.pool).await?;
        }
        Ok(())
    }

    fn publication(&self, options: &RelayOptions) -> Result<Publication> {
        let name = match &options.capture.publication {
            Some(name) => name.clone(),
            None => self.slot(options)?.name().to_owned(),
        };
        let tables = vec![(self.schema.clone(), self.table.name().to_owned())];
        Ok(Publication { name, tables, operations: "insert".to_owned(), owner: owner(options) })
    }

    pub(crate) fn publication_name(&self, options: &RelayOptions) -> Result<String> {
        Ok(self.publication(options)?.name)
    }

    /// What the database lacks, and what to do; without what is only a warning.
    pub(crate) async fn lacks(&self, options: &RelayOptions) -> Result<Vec<String>> {
        let (slot, publication) = (self.slot(options)?, self.publication(options)?);
        let wanted = Wanted {
            tables: publication.tables,
            changes: false,
            slot: slot.name().to_owned(),
            publication: publication.name,
            owner: publication.owner,
        };
        let lacks = check(&self.pool, &wanted).await?;
        Ok(lacks.iter().filter(|lack| !lack.only_a_warning).map(ToString::to_string).collect())
    }

    /// Makes publication and slot where they are missing. Waits for open transactions, however long they are.
    pub(crate) async fn prepare(&self, options: &RelayOptions) -> Result<()> {
        let (slot, publication) = (self.slot(options)?, self.publication(options)?);
        let lacks = self.lacks(options).await?;
        if !lacks.is_empty() {
            return Err(OutboxError::CaptureLacks(lacks.join("; ")));
        }
        publication.ensure(&self.pool).await?;
        match slot.state(&self.pool).await? {
            Some(state) if state.lost => slot.drop(&self.pool).await?,
            // Somebody begins to make it, or did and is gone: the server still waits for open transactions.
            Some(state) if state.confirmed_lsn == 0 => return Err(OutboxError::SlotIsMade),
            Some(_) => return Ok(()),
            None => {}
        }
        let new = slot.create(&self.address).await?;
        // What was committed before the slot is not streamed: it must be there for whoever reads the table.
        let mut transaction = self.pool.begin().await?;
        let import =
            format!("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{}'", new.snapshot);
        sqlx::raw_sql(AssertSqlSafe(import)).execute(&mut *transaction).await?;
        let seen: String =
            sqlx::query_scalar("SELECT pg_current_snapshot()::text").fetch_one(&mut *transaction).await?;
        transaction.rollback().await?;
        let all = "SELECT pg_snapshot_xmax(pg_current_snapshot()) >= pg_snapshot_xmax($1::text::pg_snapshot)
                          AND NOT EXISTS (SELECT 1 FROM pg_snapshot_xip(pg_current_snapshot()) x
                                          WHERE pg_visible_in_snapshot(x, $1::text::pg_snapshot))";
        let patience = Patience::new();
        while !sqlx::query_scalar::<_, bool>(all).bind(&seen).fetch_one(&self.pool).await? {
            patience.again().await?;
        }
        Ok(())
    }

    /// Where the log ends now: all that polling has published is before that.
    pub(crate) async fn wal_end(&self) -> Result<u64> {
        Ok(relais_capture::wal_end(&self.pool).await?)
    }

    /// The place of the last unpublished row, in the order in which rows are read; none if there is none.
    pub(crate) async fn last_unpublished(&self) -> Result<Option<String>> {
        let column = self.layout.order_column();
        // One that is parked is not read.
        let parked = if self.layout.keeps_retries() { " AND o.parked_at IS NULL" } else { "" };
        let sql = format!(
            "SELECT o.{column}::text FROM {} o WHERE o.published_at IS NULL{parked} ORDER BY o.{column} DESC LIMIT 1",
            self.table.sql()
        );
        Ok(sqlx::query_scalar(AssertSqlSafe(sql)).fetch_optional(&self.pool).await?)
    }

    /// Whether there is an unpublished row that is older than `age`; or older than that was at a time, in microseconds of Unix.
    pub(crate) async fn has_overdue(&self, age: Duration, at: Option<i64>) -> Result<bool> {
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM {} WHERE published_at IS NULL AND created_at <
                 LEAST(clock_timestamp(), timestamptz 'epoch' + $2 * interval '1 microsecond') - $1 * interval '1 second')",
            self.table.sql()
        );
        let found = sqlx::query_scalar(AssertSqlSafe(sql)).bind(age.as_secs_f64()).bind(at.map(|micros| micros as f64));
        Ok(found.fetch_one(&self.pool).await?)
    }

    /// Waits until others see what these transactions have written.
    pub(crate) async fn until_visible(&self, transactions: &[u32]) -> Result<()> {
        let numbers: Vec<i64> = transactions.iter().map(|number| i64::from(*number)).collect();
        let sql = format!("SELECT {ALL_VISIBLE}");
        let patience = Patience::new();
        while !sqlx::query_scalar::<_, bool>(AssertSqlSafe(sql.clone())).bind(&numbers).fetch_one(&self.pool).await? {
            patience.again().await?;
        }
        Ok(())
    }

    /// Which of these rows were published by now, by whoever reads the table.
    pub(crate) async fn published(&self, ids: &[&str], transactions: &[u32], deleted: bool) -> Result<HashSet<String>> {
        self.until_visible(transactions).await?;
        let (table, id_type) = (self.table.sql(), &self.layout.id_type);
        let sql = match deleted {
            true => format!(
                "SELECT i.id FROM unnest($1::text[]) AS i (id)
                 WHERE NOT EXISTS (SELECT 1 FROM {table} o WHERE o.id = i.id::{id_type} AND o.published_at IS NULL)"
            ),
            // A row that is gone was deleted by its writer.
            false => format!(
                "SELECT o.id::text AS id FROM {table} o
                 WHERE o.id = ANY($1::text[]::{id_type}[]) AND o.published_at IS NOT NULL"
            ),
        };
        let rows = sqlx::query(AssertSqlSafe(sql)).bind(ids).fetch_all(&self.pool).await?;
        Ok(rows.iter().map(|row| row.try_get("id")).collect::<std::result::Result<_, _>>()?)
    }
}

/// Whose an outbox's publication is.
fn owner(options: &RelayOptions) -> String {
    format!("outbox {}", options.outbox)
}

/// Waits for a commit to be visible, but not for ever.
struct Patience(Instant);

impl Patience {
    fn new() -> Self {
        Self(Instant::now())
    }

    async fn again(&self) -> Result<()> {
        if self.0.elapsed() > VISIBLE_WITHIN {
            return Err(OutboxError::NotVisible(VISIBLE_WITHIN));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
        Ok(())
    }
}

/// Tells long names apart (FNV-1a).
fn checksum(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
