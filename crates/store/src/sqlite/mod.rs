//! SQLite: for one process. One connection writes, others read beside it.
//!
//! Nobody else may have the file open: a lock file beside it sees to that. So there are no row locks here (a
//! transaction that writes is alone) and nobody to tell of changes.
//!
//! This folder has connections, migrations and how rows are read. Statements are in the folders of the features.

/// The database's time, in milliseconds. `unixepoch` gives them as a fraction, which may be a hair too small.
macro_rules! now {
    () => {
        "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)"
    };
}

pub(crate) mod private;
pub(crate) mod proof;
pub(crate) mod row;
pub(crate) mod session;
pub(crate) mod values;

#[cfg(test)]
mod tests;

use std::{
    fs::{File, TryLockError},
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use relais_core::{StoreError, Timestamp};
use sqlx::{
    Connection, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

use self::{proof::Proof, session::SqliteSession};
use crate::{
    Options,
    migrations::{self, Steps},
    session::{Database, Heard, Result, Session as _},
};

/// How long a statement waits for a lock that somebody else has on the file, such as a backup.
const BUSY: Duration = Duration::from_secs(5);
/// As much of the file is read where it lies in memory (bytes): a long queue does not fit into a connection's own
/// cache, and copying pages costs more than looking at them.
const MAPPED: &str = "1073741824";

const STEPS: Steps = &[
    ("tasks", include_str!("migrations/0001_tasks.sql")),
    ("callbacks", include_str!("migrations/0002_callbacks.sql")),
    ("dispatch", include_str!("migrations/0003_dispatch.sql")),
    ("attempts", include_str!("migrations/0004_attempts.sql")),
    ("schedules", include_str!("migrations/0005_schedules.sql")),
    ("flow", include_str!("migrations/0006_flow.sql")),
    ("dependencies", include_str!("migrations/0007_dependencies.sql")),
    ("instances", include_str!("migrations/0008_instances.sql")),
    ("window", include_str!("migrations/0009_window.sql")),
    ("inbox", include_str!("migrations/0010_inbox.sql")),
    ("audit", include_str!("migrations/0011_audit.sql")),
    ("operators", include_str!("migrations/0012_operators.sql")),
    ("schedule terms", include_str!("migrations/0013_schedule_terms.sql")),
    ("batch keys", include_str!("migrations/0014_batch_keys.sql")),
    ("clock", include_str!("migrations/0015_clock.sql")),
    ("revived", include_str!("migrations/0016_revived.sql")),
    ("plain names", include_str!("migrations/0017_plain_names.sql")),
    ("outboxes", include_str!("migrations/0018_outboxes.sql")),
    ("captures", include_str!("migrations/0019_captures.sql")),
    ("notification rights", include_str!("migrations/0020_notification_rights.sql")),
    ("notifications", include_str!("migrations/0021_notifications.sql")),
    ("pushes", include_str!("migrations/0022_pushes.sql")),
    ("audiences", include_str!("migrations/0023_audiences.sql")),
];

/// Every time that is written: time that passes spares none of them.
const MOVE_BACK: &[&str] = &[
    "UPDATE task SET submitted = submitted - ?1, scheduled = scheduled - ?1, revived = revived - ?1, due = due - ?1, expires = expires - ?1, deadline = deadline - ?1, timer = timer - ?1, started = started - ?1, ended = ended - ?1, lease_until = lease_until - ?1, rank = rank - ?1",
    "UPDATE attempt SET started = started - ?1, ended = ended - ?1",
    "UPDATE unique_key SET until = until - ?1",
    "UPDATE idempotency SET created = created - ?1",
    "UPDATE batch_key SET created = created - ?1",
    "UPDATE schedule SET next_fire = next_fire - ?1, last_run = last_run - ?1, last_error_at = last_error_at - ?1",
    "UPDATE callback SET due = due - ?1, created = created - ?1, started = started - ?1, ended = ended - ?1, happened = happened - ?1",
    "UPDATE callback_attempt SET at = at - ?1",
    "UPDATE callback_lane SET parked_until = parked_until - ?1",
    "UPDATE signing_secret SET created = created - ?1, expires = expires - ?1",
    // One that is never due stays so.
    "UPDATE dispatch SET due = due - ?1 WHERE due < 9223372036854775807",
    "UPDATE flow SET ahead_until = ahead_until - ?1 * 1000000",
    "UPDATE batch SET created = created - ?1, closed = closed - ?1, ended = ended - ?1",
    "UPDATE instance SET started = started - ?1, seen = seen - ?1, until = until - ?1",
    "UPDATE submission SET created = created - ?1",
    "UPDATE chore SET begun = begun - ?1",
    "UPDATE audit SET at = at - ?1",
    "UPDATE session SET expires = expires - ?1",
    "UPDATE worker_registry SET at = at - ?1",
    "UPDATE relay_report SET at = at - ?1",
    "UPDATE capture_report SET at = at - ?1",
    "UPDATE notification_source_report SET at = at - ?1",
    "UPDATE notification SET expiration = expiration - ?1, due = due - ?1",
    "UPDATE notification_entry SET at = at - ?1",
    "UPDATE notification_recipient SET delivered = delivered - ?1, acknowledged = acknowledged - ?1",
    "UPDATE push_subscription SET created = created - ?1, pushed = pushed - ?1",
    "UPDATE push SET due = due - ?1, expiration = expiration - ?1",
];

/// A SQLite database.
pub(crate) struct Sqlite {
    /// Exactly one connection: who has it is the one who writes.
    pub(crate) write: SqlitePool,
    /// Connections that cannot write.
    pub(crate) read: SqlitePool,
    /// Holds the lock that keeps other processes out; gone once the database was closed.
    lock: Mutex<Option<File>>,
    proof: Arc<Proof>,
}

impl Sqlite {
    /// Opens the file, and makes it if there is none.
    pub(crate) async fn open(url: &str, options: &Options) -> Result<Self> {
        let connect = SqliteConnectOptions::from_str(url)
            .map_err(|error| StoreError::Schema(format!("the database's URL is not understood: {error}")))?
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY)
            .foreign_keys(true)
            .create_if_missing(true);
        let file = file_of(url, &connect)?;
        let lock = lock_out_others(&file)?;
        private::create(&file)
            .map_err(|error| StoreError::Schema(format!("cannot create {}: {error}", file.display())))?;
        if let Some(warning) = private::warning(&file) {
            tracing::warn!("{warning}");
        }
        let pool = || {
            SqlitePoolOptions::new()
                .acquire_timeout(options.acquire_timeout)
                .idle_timeout(None)
                .max_lifetime(None)
                .test_before_acquire(false)
        };
        let write = pool()
            .max_connections(1)
            // When the disk is full, SQLite may end the transaction by itself, which sqlx does not notice: such a
            // connection would refuse every transaction from then on. The ping waits for a rollback under way.
            .after_release(|connection, _| {
                Box::pin(async move {
                    connection.ping().await?;
                    Ok(!connection.is_in_transaction())
                })
            })
            .connect_with(connect.clone())
            .await
            .map_err(error)?;
        let read = pool()
            .max_connections(options.max_connections.max(1))
            .connect_lazy_with(connect.create_if_missing(false).pragma("query_only", "on").pragma("mmap_size", MAPPED));
        Ok(Self { write, read, lock: Mutex::new(Some(lock)), proof: Arc::default() })
    }

    async fn migrate_all(&self) -> Result<usize> {
        let migrator = migrations::migrator("relais_migration", STEPS);
        let before = self.applied_migrations().await?;
        migrator.run(&self.write).await.map_err(|failure| migrations::failed(failure, error))?;
        Ok(STEPS.len().saturating_sub(before))
    }

    /// Moves all times back.
    async fn move_back(&self, by: Duration) -> Result<()> {
        let mut tx = self.write.begin().await.map_err(error)?;
        for &statement in MOVE_BACK {
            sqlx::query(statement).bind(crate::row::in_millis(by)).execute(&mut *tx).await.map_err(error)?;
        }
        tx.commit().await.map_err(error)
    }

    async fn applied_migrations(&self) -> Result<usize> {
        let exists: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'relais_migration')",
        )
        .fetch_one(&self.write)
        .await
        .map_err(error)?;
        if !exists {
            return Ok(0);
        }
        let applied: i64 =
            sqlx::query_scalar("SELECT count(*) FROM relais_migration").fetch_one(&self.write).await.map_err(error)?;
        Ok(usize::try_from(applied).unwrap_or(0))
    }

    async fn close_all(&self) {
        self.read.close().await;
        self.write.close().await;
        // Last: only now may somebody else open the file.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Database for Sqlite {
    type Session = SqliteSession;
    const ONE_WRITER: bool = true;

    async fn begin(&self) -> Result<SqliteSession> {
        SqliteSession::begin(&self.write, &self.proof).await
    }

    async fn ping(&self) -> Result<Timestamp> {
        if !self.proof.is_fresh() {
            // Nothing shows that a write is taken but a write.
            let mut session = self.begin().await?;
            session.touch().await?;
            session.commit().await?;
        }
        let mut connection = self.read.acquire().await.map_err(error)?;
        now(&mut connection).await
    }

    async fn advance(&self, by: Duration) -> Result<()> {
        self.move_back(by).await
    }

    async fn migrate(&self) -> Result<usize> {
        self.migrate_all().await
    }

    /// Nobody else has the file open.
    async fn hear(&self, _: &(dyn Fn(Heard<'_>) + Send + Sync)) {
        std::future::pending().await
    }

    async fn close(&self) {
        self.close_all().await;
    }
}

/// The database's time.
pub(crate) async fn now(connection: &mut SqliteConnection) -> Result<Timestamp> {
    let now = sqlx::query_scalar(concat!("SELECT ", now!())).fetch_one(connection).await.map_err(error)?;
    Ok(Timestamp::from_millis(now))
}

/// The file that the URL names. Nothing is kept in memory: a queue that forgets is not one.
fn file_of(url: &str, connect: &SqliteConnectOptions) -> Result<PathBuf> {
    let file = connect.get_filename();
    if url.contains(":memory:") || url.contains("mode=memory") || file.as_os_str().is_empty() {
        return Err(StoreError::Schema(
            "the database must be a file (e.g. sqlite:relais.db), not in memory".to_owned(),
        ));
    }
    // One name for one file, whatever links lead to it.
    Ok(file.canonicalize().unwrap_or_else(|_| file.to_owned()))
}

/// Takes the lock that one process can have. The kernel lets go of it when the process ends, however it ends.
fn lock_out_others(file: &Path) -> Result<File> {
    let path = private::with_suffix(file, ".lock");
    let failed =
        |what: &str, error: std::io::Error| StoreError::Schema(format!("cannot {what} {}: {error}", path.display()));
    let lock = private::options().open(&path).map_err(|error| failed("open", error))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(StoreError::Schema(format!(
            "another process has the database {} open; SQLite is for one process, use PostgreSQL for many",
            file.display()
        ))),
        Err(TryLockError::Error(error)) => Err(failed("lock", error)),
    }
}

/// What a failure of the database means to the caller.
pub(crate) fn error(error: sqlx::Error) -> StoreError {
    let passing = match &error {
        sqlx::Error::Io(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed
        // SQLite ended a transaction by itself; the next connection will do.
        | sqlx::Error::InvalidSavePointStatement => true,
        sqlx::Error::Database(refusal) => refusal.code().is_some_and(|code| is_passing(&code)),
        _ => false,
    };
    if passing { StoreError::Unavailable(error.into()) } else { StoreError::Failed(error.into()) }
}

/// Whether SQLite refused for a reason that goes away: the file is locked, the disk is full or broken, there is no
/// memory. The low byte of its code is the kind.
fn is_passing(code: &str) -> bool {
    const BUSY: u32 = 5;
    const LOCKED: u32 = 6;
    const NO_MEMORY: u32 = 7;
    const READ_ONLY: u32 = 8;
    const INTERRUPTED: u32 = 9;
    const IO_ERROR: u32 = 10;
    const FULL: u32 = 13;
    const CANNOT_OPEN: u32 = 14;
    const PROTOCOL: u32 = 15;
    code.parse::<u32>().is_ok_and(|code| {
        matches!(
            code & 0xff,
            BUSY | LOCKED | NO_MEMORY | READ_ONLY | INTERRUPTED | IO_ERROR | FULL | CANNOT_OPEN | PROTOCOL
        )
    })
}
