//! Replication slots: made, watched and dropped. Nothing here happens by itself.

use sqlx::{AssertSqlSafe, PgPool, Row as _};

use crate::{
    Address, CaptureError, ReplicationConnection,
    connection::{parse_lsn, protocol, quoted},
};

type Result<T> = std::result::Result<T, CaptureError>;

/// Larger than any answer to a command.
const ANSWER_BYTES: usize = 1024 * 1024;

/// A logical replication slot, by name.
#[derive(Debug, Clone)]
pub struct Slot {
    name: String,
}

/// A slot that was just made.
#[derive(Debug)]
pub struct NewSlot {
    /// Changes of transactions that commit from here on are streamed.
    pub consistent_point: u64,
    /// The snapshot that sees exactly what was committed before. It lives as long as this value.
    pub snapshot: String,
    _connection: ReplicationConnection,
}

/// How a slot is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotState {
    /// Whether somebody reads it.
    pub active: bool,
    /// What was confirmed.
    pub confirmed_lsn: u64,
    /// How much WAL the server keeps for it, in bytes.
    pub retained: u64,
    /// How much WAL is behind what was confirmed, in bytes.
    pub unconfirmed: u64,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: String,
    /// How much more WAL may come before the slot is lost, where the server has a limit.
    pub safe_wal_size: Option<i64>,
    /// Whether it is lost for good.
    pub lost: bool,
}

impl Slot {
    /// The slot of this name: lower-case letters, digits and underscores.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if name.is_empty() || name.len() > 63 || !name.chars().all(fits) {
            let what = format!("`{name}` is no name of a slot: use lower-case letters, digits and _, at most 63");
            return Err(CaptureError::Name(what));
        }
        Ok(Self { name })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes it. That waits for all transactions that are open, however long they are. Its publication must be there first.
    pub async fn create(&self, address: &Address) -> Result<NewSlot> {
        let mut connection = ReplicationConnection::connect(address, ANSWER_BYTES).await?;
        let options = match connection.version() {
            // A standby that takes over has the slot too.
            170_000.. => "(SNAPSHOT 'export', FAILOVER true)",
            150_000.. => "(SNAPSHOT 'export')",
            _ => "EXPORT_SNAPSHOT",
        };
        let command = format!("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput {options}", quoted(&self.name));
        let rows = connection.query_unbounded(&command).await?;
        let column =
            |number: usize| rows.first().and_then(|row| row.get(number).cloned().flatten()).unwrap_or_default();
        let consistent_point = parse_lsn(&column(1)).ok_or_else(|| protocol("a new slot has no position"))?;
        Ok(NewSlot { consistent_point, snapshot: column(2), _connection: connection })
    }

    /// How it is; none if there is no such slot.
    pub async fn state(&self, pool: &PgPool) -> Result<Option<SlotState>> {
        let sql = "SELECT to_jsonb(s) ->> 'conflicting' AS conflicting, s.active, coalesce(s.wal_status, 'lost') AS wal_status,
                          s.safe_wal_size,
                          coalesce(s.confirmed_flush_lsn, '0/0')::text AS confirmed,
                          greatest(pg_wal_lsn_diff(w.lsn, coalesce(s.restart_lsn, w.lsn)), 0)::bigint AS retained,
                          greatest(pg_wal_lsn_diff(w.lsn, coalesce(s.confirmed_flush_lsn, w.lsn)), 0)::bigint AS unconfirmed,
                          (to_jsonb(s) ->> 'invalidation_reason') IS NOT NULL AS invalidated
                   FROM pg_replication_slots s,
                        (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                                     ELSE pg_current_wal_lsn() END AS lsn) w
                   WHERE s.slot_name = $1 AND s.database = current_database()";
        let Some(row) = sqlx::query(sql).bind(&self.name).fetch_optional(pool).await? else {
            return Ok(None);
        };
        let wal_status: String = row.try_get("wal_status")?;
        let bytes = |name: &str| Ok::<u64, sqlx::Error>(row.try_get::<i64, _>(name)?.try_into().unwrap_or_default());
        Ok(Some(SlotState {
            active: row.try_get("active")?,
            confirmed_lsn: parse_lsn(&row.try_get::<String, _>("confirmed")?).unwrap_or_default(),
            retained: bytes("retained")?,
            unconfirmed: bytes("unconfirmed")?,
            safe_wal_size: row.try_get("safe_wal_size")?,
            lost: wal_status == "lost" || row.try_get("invalidated")?,
            wal_status,
        }))
    }

    /// Drops it, if it is there. Whoever reads it is sent away first.
    pub async fn drop(&self, pool: &PgPool) -> Result<()> {
        let terminate = "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots
                         WHERE slot_name = $1 AND active_pid IS NOT NULL AND database = current_database()";
        sqlx::query(terminate).bind(&self.name).execute(pool).await?;
        let drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
                    WHERE slot_name = $1 AND database = current_database()";
        match sqlx::query(drop).bind(&self.name).execute(pool).await.map_err(CaptureError::from) {
            // Somebody else has just dropped it.
            Err(error) if error.code() == Some("42704") => Ok(()),
            dropped => dropped.map(|_| ()),
        }
    }
}

/// Where the server's WAL ends: all that is committed by now is before that.
pub async fn wal_end(pool: &PgPool) -> Result<u64> {
    let text: String =
        sqlx::query_scalar(AssertSqlSafe("SELECT pg_current_wal_insert_lsn()::text")).fetch_one(pool).await?;
    parse_lsn(&text).ok_or_else(|| protocol("the server has no position"))
}
