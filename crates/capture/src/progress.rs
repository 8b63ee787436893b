//! How far a capture is, kept in the captured database: what the sink has confirmed, and how much of a snapshot is done.
//!
//! The slot alone is not enough. It remembers whole transactions, and after a crash of the server perhaps older ones.

use sqlx::{PgPool, Row as _};

use crate::{CaptureError, StreamPosition, SystemIdentity, format_lsn, parse_lsn};

type Result<T> = std::result::Result<T, CaptureError>;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS relais_capture (
    capture    text PRIMARY KEY,
    system     text NOT NULL,
    timeline   bigint NOT NULL,
    commit_lsn pg_lsn NOT NULL DEFAULT '0/0',
    ordinal    bigint NOT NULL DEFAULT 0,
    snapshot   text[] NOT NULL DEFAULT '{}',
    after_key  text[],
    updated_at timestamptz NOT NULL DEFAULT now()
)";

/// The index that [`SLOT`] makes.
const SLOT_INDEX: &str = "relais_capture_slot";

/// The column came later. A slot that two captures read would give each of them a part of the changes.
const SLOT: &str = "ALTER TABLE relais_capture ADD COLUMN IF NOT EXISTS slot text;
    CREATE UNIQUE INDEX IF NOT EXISTS relais_capture_slot ON relais_capture (slot)";

/// How far a capture is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureProgress {
    /// Which cluster was captured.
    pub system: String,
    /// Its timeline then.
    pub timeline: u32,
    /// What the sink has confirmed.
    pub position: StreamPosition,
    /// Tables that are still to be read, as `schema.table`; the first one is being read.
    pub snapshot: Vec<String>,
    /// The key of that table's row that was published last.
    pub after_key: Option<Vec<String>>,
}

/// Keeps progress in the captured database.
#[derive(Debug, Clone)]
pub(crate) struct ProgressStore {
    pub(crate) pool: PgPool,
    pub(crate) capture: String,
    pub(crate) slot: String,
}

impl ProgressStore {
    pub(crate) async fn prepare(&self) -> Result<()> {
        if !self.is_there(SLOT_INDEX).await? {
            let mut transaction = self.pool.begin().await?;
            sqlx::query("SELECT pg_advisory_xact_lock(hashtext('relais_capture'))").execute(&mut *transaction).await?;
            sqlx::query(TABLE).execute(&mut *transaction).await?;
            sqlx::raw_sql(SLOT).execute(&mut *transaction).await?;
            transaction.commit().await?;
        }
        Ok(())
    }

    /// Whether there is a table or an index of this name.
    async fn is_there(&self, name: &str) -> Result<bool> {
        Ok(sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL").bind(name).fetch_one(&self.pool).await?)
    }

    /// The other capture that has the slot, if there is one.
    pub(crate) async fn other_of_slot(&self) -> Result<Option<String>> {
        if !self.is_there(SLOT_INDEX).await? {
            return Ok(None);
        }
        let other = sqlx::query_scalar("SELECT capture FROM relais_capture WHERE slot = $1 AND capture <> $2");
        Ok(other.bind(&self.slot).bind(&self.capture).fetch_optional(&self.pool).await?)
    }

    /// Notes that the slot is this capture's and nobody else's.
    pub(crate) async fn claim_slot(&self) -> Result<()> {
        let sql = "UPDATE relais_capture SET slot = $2 WHERE capture = $1 AND slot IS DISTINCT FROM $2";
        let claimed = sqlx::query(sql).bind(&self.capture).bind(&self.slot).execute(&self.pool).await;
        claimed.map(drop).map_err(|error| self.slot_taken(error))
    }

    fn slot_taken(&self, error: sqlx::Error) -> CaptureError {
        match &error {
            sqlx::Error::Database(cause) if cause.is_unique_violation() => CaptureError::SlotTaken(self.slot.clone()),
            _ => error.into(),
        }
    }

    /// How far it is; none if it never began.
    pub(crate) async fn read(&self) -> Result<Option<CaptureProgress>> {
        if !self.is_there("relais_capture").await? {
            return Ok(None);
        }
        let row = sqlx::query(
            "SELECT system, timeline, commit_lsn::text AS commit_lsn, ordinal, snapshot, after_key
             FROM relais_capture WHERE capture = $1",
        )
        .bind(&self.capture)
        .fetch_optional(&self.pool)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let ordinal: i64 = row.try_get("ordinal")?;
        Ok(Some(CaptureProgress {
            system: row.try_get("system")?,
            timeline: u32::try_from(row.try_get::<i64, _>("timeline")?).unwrap_or_default(),
            position: StreamPosition {
                commit_lsn: parse_lsn(row.try_get("commit_lsn")?).unwrap_or_default(),
                ordinal: u64::try_from(ordinal).unwrap_or_default(),
            },
            snapshot: row.try_get("snapshot")?,
            after_key: row.try_get("after_key")?,
        }))
    }

    /// Begins anew: nothing is confirmed, and these tables are to be read.
    pub(crate) async fn begin(&self, identity: &SystemIdentity, snapshot: &[String]) -> Result<()> {
        sqlx::query(
            "INSERT INTO relais_capture (capture, system, timeline, snapshot, slot) VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (capture) DO UPDATE SET system = excluded.system, timeline = excluded.timeline,
                 slot = excluded.slot, commit_lsn = '0/0', ordinal = 0, snapshot = excluded.snapshot, after_key = NULL, updated_at = now()",
        )
        .bind(&self.capture)
        .bind(&identity.system)
        .bind(i64::from(identity.timeline))
        .bind(snapshot)
        .bind(&self.slot)
        .execute(&self.pool)
        .await
        .map_err(|error| self.slot_taken(error))?;
        Ok(())
    }

    /// The server goes on with another timeline, which has all that was confirmed.
    pub(crate) async fn set_timeline(&self, timeline: u32) -> Result<()> {
        let sql = "UPDATE relais_capture SET timeline = $2, updated_at = now() WHERE capture = $1";
        sqlx::query(sql).bind(&self.capture).bind(i64::from(timeline)).execute(&self.pool).await?;
        Ok(())
    }

    /// The sink has confirmed all up to here.
    pub(crate) async fn advance(&self, position: StreamPosition) -> Result<()> {
        let sql = "UPDATE relais_capture SET commit_lsn = $2::text::pg_lsn, ordinal = $3, updated_at = now() WHERE capture = $1";
        sqlx::query(sql)
            .bind(&self.capture)
            .bind(format_lsn(position.commit_lsn))
            .bind(i64::try_from(position.ordinal).unwrap_or(i64::MAX))
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// A part of a snapshot was published: all of the first table up to a key, or all of it.
    pub(crate) async fn advance_snapshot(&self, table: &str, after_key: Option<&[String]>) -> Result<()> {
        let sql = match after_key {
            Some(_) => {
                "UPDATE relais_capture SET after_key = $3, updated_at = now() WHERE capture = $1 AND snapshot[1] = $2"
            }
            None => {
                "UPDATE relais_capture SET after_key = $3, snapshot = snapshot[2:], updated_at = now()
                 WHERE capture = $1 AND snapshot[1] = $2"
            }
        };
        sqlx::query(sql).bind(&self.capture).bind(table).bind(after_key).execute(&self.pool).await?;
        Ok(())
    }

    /// A table is not to be read any more.
    pub(crate) async fn remove_from_snapshot(&self, table: &str) -> Result<()> {
        let sql = "UPDATE relais_capture SET after_key = CASE WHEN snapshot[1] = $2 THEN NULL ELSE after_key END,
                       snapshot = array_remove(snapshot, $2), updated_at = now()
                   WHERE capture = $1";
        sqlx::query(sql).bind(&self.capture).bind(table).execute(&self.pool).await?;
        Ok(())
    }

    /// Asks for tables to be read again, behind those that are being read; whether there is such a capture.
    pub(crate) async fn request_snapshot(&self, tables: &[String]) -> Result<bool> {
        let sql = "UPDATE relais_capture SET snapshot = snapshot || $2, updated_at = now() WHERE capture = $1";
        let asked = sqlx::query(sql).bind(&self.capture).bind(tables).execute(&self.pool).await?;
        Ok(asked.rows_affected() > 0)
    }

    /// Forgets it.
    pub(crate) async fn forget(&self) -> Result<()> {
        if self.read().await?.is_some() {
            sqlx::query("DELETE FROM relais_capture WHERE capture = $1")
                .bind(&self.capture)
                .execute(&self.pool)
                .await?;
        }
        Ok(())
    }
}
