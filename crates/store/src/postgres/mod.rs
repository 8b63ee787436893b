//! PostgreSQL: for many processes. UNNEST for batches, SKIP LOCKED for claims, LISTEN/NOTIFY for wake-ups.
//!
//! This folder has connections, migrations and how rows are read. Statements are in the folders of the features.
//!
//! # How statements are written
//!
//! A connection plans each statement once and keeps the plan. It may do so while a table is empty, and the plan must
//! still be right when the table no longer is. Hence these habits:
//!
//! - Where tasks of one service and status are wanted in their order, the statement says `service_id = … AND status
//!   BETWEEN 0 AND 0 ORDER BY service_id, status, id` instead of `status = 0 ORDER BY id`. Both mean the same, but the
//!   latter lets the planner walk the primary key, past all that ever was, as soon as its statistics make that look
//!   short. A comparison of whole rows would prevent that as well, but only its first column ends a scan.
//! - Rows of a batch are named by `id = ANY(…)` besides being joined.
//! - What is found by a list of keys is ordered by `id + 0`, which no index has: in the order of an index, the list
//!   would only be a filter on all of it.
//! - The service and the client of a task are looked up by `CROSS JOIN LATERAL (… OFFSET 0)`, once for each task.
//!   Joined in any other way, a plan may begin with the services, and go through all tasks of each.
//! - Rows that are to be written come from `ROWS FROM (unnest(…), generate_series(1, cardinality($1)))`. The planner
//!   takes an array for ten rows, few enough to go through all of them for each row of the table, and a series for a
//!   thousand.
//! - No joins are merged.

pub(crate) mod lent;
pub(crate) mod names;
pub(crate) mod row;
pub(crate) mod session;
pub(crate) mod warm;

use std::{str::FromStr, time::Duration};

use relais_core::{StoreError, Timestamp, Wakeup, wakeup};
use sqlx::{
    Executor as _, PgPool,
    error::DatabaseError,
    postgres::{PgArguments, PgConnectOptions, PgListener, PgPoolOptions},
    query::Query,
};
use tokio::time::timeout;

use self::{
    lent::{Kept, Lent, Trust},
    session::PgSession,
};
use crate::{
    Options,
    migrations::{self, Steps},
    row::Columns as _,
    session::{Database, Heard, Result},
};

/// The channel on which processes tell each other what changed.
pub(crate) const CHANNEL: &str = "relais";

/// The channel of what they tell each other besides ([`relais_core::MaintenanceStore::broadcast`]).
const TEXTS: &str = "relais_texts";

/// How long to wait before the listening connection is tried again.
const RECONNECT: Duration = Duration::from_millis(500);

/// After so much silence the listening connection is asked whether it is alive...
const QUIET: Duration = Duration::from_secs(15);

/// ...and has so long for its answer.
const ANSWER: Duration = Duration::from_secs(5);

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
    ("turns", include_str!("migrations/0015_turns.sql")),
    ("by_id", include_str!("migrations/0016_by_id.sql")),
    ("room", include_str!("migrations/0017_room.sql")),
    ("clock", include_str!("migrations/0018_clock.sql")),
    ("revived", include_str!("migrations/0019_revived.sql")),
    ("epoch", include_str!("migrations/0020_epoch.sql")),
    ("plain names", include_str!("migrations/0021_plain_names.sql")),
    ("outboxes", include_str!("migrations/0022_outboxes.sql")),
    ("captures", include_str!("migrations/0023_captures.sql")),
    ("notification rights", include_str!("migrations/0024_notification_rights.sql")),
    ("notifications", include_str!("migrations/0025_notifications.sql")),
    ("pushes", include_str!("migrations/0026_pushes.sql")),
    ("audiences", include_str!("migrations/0027_audiences.sql")),
];

/// Every time that is written: time that passes spares none of them.
const MOVE_BACK: &[&str] = &[
    "UPDATE relais.task SET submitted = submitted - $1, scheduled = scheduled - $1, revived = revived - $1, due = due - $1, expires = expires - $1, deadline = deadline - $1, timer = timer - $1, started = started - $1, ended = ended - $1, lease_until = lease_until - $1,
         rank = rank - (extract(epoch FROM $1) * 1000)::bigint",
    "UPDATE relais.attempt SET started = started - $1, ended = ended - $1",
    "UPDATE relais.unique_key SET until = until - $1",
    "UPDATE relais.idempotency SET created = created - $1",
    "UPDATE relais.batch_key SET created = created - $1",
    "UPDATE relais.schedule SET next_fire = next_fire - $1, last_run = last_run - $1, last_error_at = last_error_at - $1",
    "UPDATE relais.callback SET due = due - $1, created = created - $1, started = started - $1, ended = ended - $1, happened = happened - $1",
    "UPDATE relais.callback_attempt SET at = at - $1",
    "UPDATE relais.callback_lane SET parked_until = parked_until - $1",
    "UPDATE relais.signing_secret SET created = created - $1, expires = expires - $1",
    "UPDATE relais.dispatch SET due = due - $1",
    "UPDATE relais.flow SET ahead_until = ahead_until - (extract(epoch FROM $1) * 1000000000)::bigint",
    "UPDATE relais.batch SET created = created - $1, closed = closed - $1, ended = ended - $1",
    "UPDATE relais.instance SET started = started - $1, seen = seen - $1, until = until - $1",
    "UPDATE relais.submission SET created = created - $1",
    "UPDATE relais.chore SET begun = begun - $1",
    "UPDATE relais.audit SET at = at - $1",
    "UPDATE relais.session SET expires = expires - $1",
    "UPDATE relais.worker_registry SET at = at - $1",
    "UPDATE relais.relay_report SET at = at - $1",
    "UPDATE relais.capture_report SET at = at - $1",
    "UPDATE relais.notification_source_report SET at = at - $1",
    "UPDATE relais.notification SET expiration = expiration - $1, due = due - $1",
    "UPDATE relais.notification_entry SET at = at - $1",
    "UPDATE relais.notification_recipient SET delivered = delivered - $1, acknowledged = acknowledged - $1",
    "UPDATE relais.push_subscription SET created = created - $1, pushed = pushed - $1",
    "UPDATE relais.push SET due = due - $1, expiration = expiration - $1",
];

/// A statement that values are being bound to.
pub(crate) type Statement<'q> = Query<'q, sqlx::Postgres, PgArguments>;

/// A PostgreSQL database.
pub(crate) struct Postgres {
    pool: PgPool,
    trust: Trust,
    kept: Kept,
    options: PgConnectOptions,
    pub(crate) names: names::Names,
    /// Names this process in wake-ups.
    origin: String,
    /// Whether other processes are told of what changes, and heard.
    notify: bool,
}

impl Postgres {
    /// Connects when it is first used: the server need not be up yet.
    pub(crate) fn open(url: &str, options: &Options) -> Result<Self> {
        let connect = PgConnectOptions::from_str(url)
            .map_err(|error| StoreError::Schema(format!("the database's URL is not understood: {error}")))?
            .application_name("relais");
        let trust = Trust::default();
        let trusted = trust.clone();
        let pool = PgPoolOptions::new()
            .max_connections(options.max_connections)
            .acquire_timeout(options.acquire_timeout)
            // A connection that died is noticed by the call that uses it; asking each time costs a round trip.
            .test_before_acquire(false)
            .before_acquire(move |_, connection| {
                let usable = trusted.covers(connection.age);
                Box::pin(async move { Ok(usable) })
            })
            // Statements are written so that one plan is right for all values, and planning them each time would cost
            // more than running them. That plan is made when tables may still be small: it must not be one that reads
            // all of them. Nor one that walks a whole index to merge it with a short list, nor one that sorts a queue
            // of which a few are wanted because another index has a part of the order, or because a bitmap has them in
            // none. Where there is no other, it counts as so dear that compiling it would seem worth half a second,
            // each time.
            .after_connect(|connection, _| {
                Box::pin(async move {
                    connection
                        .execute(
                            "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off;
                             SET enable_bitmapscan = off; SET enable_incremental_sort = off;
                             SET enable_mergejoin = off; SET jit = off",
                        )
                        .await?;
                    warm::up(connection).await
                })
            })
            .connect_lazy_with(connect.clone());
        Ok(Self {
            pool,
            trust,
            kept: Kept::new(options.max_connections, options.acquire_timeout),
            options: connect,
            names: names::Names::default(),
            origin: uuid::Uuid::now_v7().simple().to_string(),
            notify: options.notify,
        })
    }

    /// A connection for one call.
    pub(crate) async fn lend(&self) -> Result<Lent> {
        Lent::take(&self.pool, &self.trust, &self.kept).await
    }

    /// The name under which other processes are told of what changes, if they are.
    pub(crate) fn tells_as(&self) -> Option<&str> {
        self.notify.then_some(self.origin.as_str())
    }

    async fn migrate_all(&self) -> Result<usize> {
        let mut migrator = migrations::migrator("relais.migration", STEPS);
        migrator.create_schema("relais");
        let before = self.applied_migrations().await?;
        migrator.run(&self.pool).await.map_err(|failure| migrations::failed(failure, error))?;
        Ok(STEPS.len().saturating_sub(before))
    }

    async fn applied_migrations(&self) -> Result<usize> {
        let exists: bool = sqlx::query_scalar("SELECT to_regclass('relais.migration') IS NOT NULL")
            .fetch_one(&self.pool)
            .await
            .map_err(error)?;
        if !exists {
            return Ok(0);
        }
        let applied: i64 =
            sqlx::query_scalar("SELECT count(*) FROM relais.migration").fetch_one(&self.pool).await.map_err(error)?;
        Ok(usize::try_from(applied).unwrap_or(0))
    }

    /// Moves all times back.
    async fn move_back(&self, by: Duration) -> Result<()> {
        let mut tx = self.pool.begin().await.map_err(error)?;
        for &statement in MOVE_BACK {
            let by = sqlx::postgres::types::PgInterval::try_from(by);
            let by = by.map_err(|failure| StoreError::Conflict(failure.to_string()))?;
            sqlx::query(statement).bind(by).execute(&mut *tx).await.map_err(error)?;
        }
        tx.commit().await.map_err(error)
    }

    /// Hears wake-ups on a connection of its own, for ever.
    async fn hear_all(&self, heard: &(dyn Fn(Heard<'_>) + Send + Sync)) {
        if !self.notify {
            return std::future::pending().await;
        }
        // One line for each outage, however often it is tried.
        let mut told = false;
        loop {
            let why = match self.hear_once(heard, &mut told).await {
                Ok(()) => "the connection was closed".to_owned(),
                Err(error) => error.to_string(),
            };
            if !std::mem::replace(&mut told, true) {
                tracing::warn!(error = why, "wake-ups of other processes are not heard; sweeps go on");
                heard(Heard::Lost(&why));
            }
            tokio::time::sleep(RECONNECT).await;
        }
    }

    async fn hear_once(
        &self,
        heard: &(dyn Fn(Heard<'_>) + Send + Sync),
        told: &mut bool,
    ) -> std::result::Result<(), sqlx::Error> {
        let mut listener = in_time(async {
            let pool = PgPoolOptions::new().max_connections(1).connect_with(self.options.clone()).await?;
            let mut listener = PgListener::connect_with(&pool).await?;
            // That the connection is lost is to be known at once, not when there is another one.
            listener.eager_reconnect(false);
            listener.listen_all([CHANNEL, TEXTS]).await?;
            Ok(listener)
        })
        .await?;
        *told = false;
        // Whatever was told before we listened was missed.
        heard(Heard::Wakeup(&Wakeup::anything()));
        heard(Heard::Listening);
        loop {
            match timeout(QUIET, listener.try_recv()).await {
                Ok(Ok(Some(notification))) if notification.channel() == TEXTS => {
                    heard(Heard::Text(notification.payload()));
                }
                Ok(Ok(Some(notification))) => {
                    if let Some(wakeup) = wakeup::decode(&self.origin, notification.payload()) {
                        heard(Heard::Wakeup(&wakeup));
                    }
                }
                Ok(Ok(None)) => return Ok(()),
                Ok(Err(error)) => return Err(error),
                // Nobody had anything to tell, or the connection died without a word.
                Err(_) => {
                    in_time(async { sqlx::query("SELECT 1").execute(&mut listener).await.map(drop) }).await?;
                }
            }
        }
    }
}

impl Database for Postgres {
    type Session = PgSession;
    const ONE_WRITER: bool = false;

    async fn begin(&self) -> Result<PgSession> {
        PgSession::begin(self.lend().await?, self.tells_as(), self.names.clone()).await
    }

    async fn ping(&self) -> Result<Timestamp> {
        let row = sqlx::query("SELECT clock_timestamp() AS now, pg_is_in_recovery() AS standby")
            .fetch_one(&mut *self.lend().await?)
            .await
            .map_err(error)?;
        if row.flag("standby")? {
            return Err(StoreError::Unavailable("the server is a standby: it takes no writes".into()));
        }
        row.moment("now")
    }

    async fn advance(&self, by: Duration) -> Result<()> {
        self.move_back(by).await
    }

    async fn migrate(&self) -> Result<usize> {
        self.migrate_all().await
    }

    async fn hear(&self, heard: &(dyn Fn(Heard<'_>) + Send + Sync)) {
        self.hear_all(heard).await;
    }

    async fn broadcast(&self, texts: &[String]) -> Result<()> {
        let mut lent = self.lend().await?;
        sqlx::query("SELECT pg_notify($1, text) FROM unnest($2::text[]) AS text")
            .bind(TEXTS)
            .bind(texts)
            .execute(&mut *lent)
            .await
            .map_err(error)?;
        lent.keep();
        Ok(())
    }

    async fn close(&self) {
        self.kept.close();
        self.pool.close().await;
    }
}

/// An answer that is late counts as none.
async fn in_time<T>(
    answer: impl Future<Output = std::result::Result<T, sqlx::Error>>,
) -> std::result::Result<T, sqlx::Error> {
    timeout(ANSWER, answer).await.unwrap_or_else(|late| Err(sqlx::Error::Io(std::io::Error::other(late))))
}

/// What a failure of the database means to the caller.
pub(crate) fn error(error: sqlx::Error) -> StoreError {
    let passing = match &error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => true,
        sqlx::Error::Database(refusal) => is_passing(refusal.as_ref()),
        _ => false,
    };
    if passing { StoreError::Unavailable(error.into()) } else { StoreError::Failed(error.into()) }
}

/// Whether the server refused for a reason that goes away: connection lost, deadlock, no resources, read-only after a
/// failover, shutting down, disk full. By the class of its SQLSTATE.
fn is_passing(refusal: &dyn DatabaseError) -> bool {
    let code = refusal.code().unwrap_or_default();
    code == "25006" || ["08", "40", "53", "55", "57", "58"].iter().any(|class| code.starts_with(class))
}

pub(crate) fn from_sql(moment: jiff_sqlx::Timestamp) -> Timestamp {
    Timestamp::from_millis(moment.to_jiff().as_millisecond())
}

pub(crate) fn to_sql(moment: Timestamp) -> jiff_sqlx::Timestamp {
    let moment = jiff::Timestamp::from_millisecond(moment.as_millis()).unwrap_or(jiff::Timestamp::MAX);
    jiff_sqlx::ToSqlx::to_sqlx(moment)
}
