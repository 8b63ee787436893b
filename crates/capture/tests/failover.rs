//! PostgreSQL 18, and what becomes of a capture when a standby takes over.
//!
//! Failover slots are of PostgreSQL 17: an older standby has no slot, and a capture must not pass over that in silence.

mod running;

use anyhow::{Context as _, Result, ensure};
use relais_capture::{CaptureOptions, CaptureStats, CapturedDatabase, Slot};
use relais_testkit::{PostgresOptions, PostgresServer, TcpProxy};
use running::{DEADLINE, Running, World, ids, value};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};
use tokio::time::timeout;

/// A primary, its standby, and the name that leads to one of them.
struct Cluster {
    primary: PostgresServer,
    standby: PostgresServer,
    name: TcpProxy,
}

impl Cluster {
    async fn start(primary: PostgresOptions, standby: PostgresOptions) -> Result<Self> {
        let mut primary = primary.start().await?;
        let standby = standby.start_standby(&mut primary, "standby").await?;
        let name = TcpProxy::start(primary.addr()).await?;
        Ok(Self { primary, standby, name })
    }

    /// Slots are synchronized, and nobody is told what the standby does not have.
    async fn with_slots() -> Result<Self> {
        let options = || PostgresServer::options().version_18();
        let primary = options().set("synchronized_standby_slots", "standby");
        Self::start(primary, options().set("sync_replication_slots", "on")).await
    }

    fn url(&self) -> String {
        self.primary.url_via(self.name.addr(), "postgres")
    }

    /// Waits until the standby could go on with the slot, and has all that is committed.
    async fn until_synchronized(&self, slot: &str) -> Result<()> {
        let mut primary = PgConnection::connect(&self.primary.url("postgres")).await?;
        let mut standby = PgConnection::connect(&self.standby.url("postgres")).await?;
        let waiting = async {
            loop {
                // A slot moves only with the log, and where transactions that run are noted.
                sqlx::raw_sql("SELECT pg_log_standby_snapshot()").execute(&mut primary).await?;
                let synchronized = "SELECT count(*) FROM pg_replication_slots
                                    WHERE slot_name = $1 AND synced AND NOT temporary AND invalidation_reason IS NULL";
                let found: i64 = sqlx::query_scalar(synchronized).bind(slot).fetch_one(&mut standby).await?;
                if found == 1 {
                    return anyhow::Ok(());
                }
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, waiting).await.context("the slot is synchronized")??;
        self.until_replayed().await
    }

    /// Waits until the standby has all that is committed.
    async fn until_replayed(&self) -> Result<()> {
        let mut primary = PgConnection::connect(&self.primary.url("postgres")).await?;
        let mut standby = PgConnection::connect(&self.standby.url("postgres")).await?;
        let end: String = sqlx::query_scalar("SELECT pg_current_wal_lsn()::text").fetch_one(&mut primary).await?;
        let waiting = async {
            let replayed = "SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn";
            while !sqlx::query_scalar::<_, bool>(replayed).bind(&end).fetch_one(&mut standby).await? {
                tokio::task::yield_now().await;
            }
            anyhow::Ok(())
        };
        timeout(DEADLINE, waiting).await.context("the standby follows")?
    }

    /// The primary is lost, and the standby takes its place.
    async fn fail_over(&mut self) -> Result<PgPool> {
        self.primary.kill9()?;
        let pool = PgPool::connect(&self.standby.url("postgres")).await?;
        ensure!(sqlx::query_scalar::<_, bool>("SELECT pg_promote()").fetch_one(&pool).await?, "it is promoted");
        self.name.redirect(self.standby.addr()).await?;
        Ok(pool)
    }
}

/// A capture without snapshots that has published the first rows.
async fn capturing(cluster: &Cluster, rows: i32) -> Result<(World, CaptureOptions, Running)> {
    let world = World::at(&cluster.primary.url("postgres"), &["orders"]).await?;
    let never = CaptureOptions { initial_snapshot: false, ..world.options.clone() };
    let capture = world.start_at(&cluster.url(), never.clone()).await?;
    capture.streams().await?;
    insert(&world.pool, 1..=rows).await?;
    world.sink.until("the first", |arrived| ids(arrived).len() == usize::try_from(rows).unwrap_or(0)).await?;
    Ok((world, never, capture))
}

async fn insert(pool: &PgPool, rows: std::ops::RangeInclusive<i32>) -> Result<()> {
    for id in rows {
        let sql = format!("INSERT INTO orders VALUES ({id}, 'x', NULL)");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_capture_goes_on_with_the_promoted_standby_and_loses_nothing() -> Result<()> {
    let mut cluster = Cluster::with_slots().await?;
    let (world, options, capture) = capturing(&cluster, 20).await?;
    cluster.until_synchronized(&options.slot).await?;
    // Published, or only committed: the standby has them all.
    insert(&world.pool, 21..=60).await?;
    cluster.until_replayed().await?;
    let promoted = cluster.fail_over().await?;
    insert(&promoted, 61..=80).await?;
    world.sink.until("all", |arrived| ids(arrived).len() == 80).await?;
    let database = CapturedDatabase::connect(&cluster.url()).await?;
    let progress = database.progress(&options).await?.context("progress")?;
    ensure!(progress.timeline == 2, "{progress:?}");
    capture.stop().await?;
    let mut seen = std::collections::HashSet::new();
    let arrived = world.sink.arrived();
    let first: Vec<i64> = arrived.iter().filter_map(|message| value(message)["after"]["id"].as_i64()).collect();
    println!("{} rows arrived, {} of them again", first.len(), first.len() - 80);
    let first: Vec<i64> = first.into_iter().filter(|id| seen.insert(*id)).collect();
    ensure!(first == (1..=80).collect::<Vec<_>>(), "{first:?}");
    Ok(())
}

/// As with every PostgreSQL before 17.
#[tokio::test]
async fn a_promoted_standby_without_the_slot_is_a_gap_that_is_said_or_read_anew() -> Result<()> {
    let mut cluster = Cluster::start(PostgresServer::options(), PostgresServer::options()).await?;
    let (world, never, capture) = capturing(&cluster, 5).await?;
    cluster.until_replayed().await?;
    let promoted = cluster.fail_over().await?;
    insert(&promoted, 6..=8).await?;
    capture.until(|stats| stats.trouble.as_ref().is_some_and(|why| why.contains("ask for a snapshot"))).await?;
    ensure!(Slot::new(&never.slot)?.state(&promoted).await?.is_none(), "nobody made one in silence");
    capture.stop().await?;
    let capture = world.start_at(&cluster.url(), world.options.clone()).await?;
    world.sink.until("what was missed", |arrived| ids(arrived).len() == 8).await?;
    capture.stop().await
}

/// Without `synchronized_standby_slots` the server tells us what the standby does not have yet.
#[tokio::test]
async fn what_was_published_and_the_promoted_standby_never_had_is_said() -> Result<()> {
    let options = || PostgresServer::options().version_18();
    let mut cluster = Cluster::start(options(), options().set("sync_replication_slots", "on")).await?;
    let (world, never, capture) = capturing(&cluster, 5).await?;
    cluster.until_synchronized(&never.slot).await?;
    cluster.standby.stop().await?;
    insert(&world.pool, 6..=8).await?;
    world.sink.until("what is lost", |arrived| ids(arrived).len() == 8).await?;
    cluster.primary.kill9()?;
    cluster.standby.restart().await?;
    let promoted = cluster.fail_over().await?;
    insert(&promoted, 11..=12).await?;
    let said =
        |stats: &CaptureStats| stats.trouble.as_ref().is_some_and(|why| why.contains("a standby that was behind"));
    capture.until(said).await?;
    capture.stop().await?;
    // A process that knows nothing of it is told by the one that did.
    let capture = world.start_at(&cluster.url(), never.clone()).await?;
    capture.until(said).await?;
    ensure!(ids(&world.sink.arrived()).len() == 8, "nothing goes on meanwhile");
    ensure!(CapturedDatabase::connect(&cluster.url()).await?.request_snapshot(&never, &[]).await?);
    world
        .sink
        .until("the rows that are there", |arrived| [1, 5, 11, 12].iter().all(|id| ids(arrived).contains(id)))
        .await?;
    insert(&promoted, 13..=13).await?;
    world.sink.until("what comes after", |arrived| ids(arrived).contains(&13)).await?;
    capture.until(|stats| stats.trouble.is_none()).await?;
    capture.stop().await
}

#[tokio::test]
async fn tables_of_postgresql_18_are_captured_as_those_of_older_ones() -> Result<()> {
    let server = PostgresServer::options().version_18().set("idle_replication_slot_timeout", "1s").start().await?;
    let world = World::at(&server.url("postgres"), &["orders", "sums"]).await?;
    // Values that are computed are in neither the stream nor the snapshot: virtual ones, the default of 18, can not be.
    world
        .execute(
            "CREATE TABLE sums (id integer PRIMARY KEY, a integer, twice integer GENERATED ALWAYS AS (a * 2) VIRTUAL,
                 thrice integer GENERATED ALWAYS AS (a * 3) STORED);
             ALTER TABLE sums REPLICA IDENTITY DEFAULT; INSERT INTO sums VALUES (1, 10)",
        )
        .await?;
    let capture = world.start(world.options.clone()).await?;
    world.sink.until("the snapshot", |arrived| arrived.len() == 1).await?;
    capture.streams().await?;
    world
        .execute("INSERT INTO sums VALUES (2, 20); UPDATE sums SET a = 21 WHERE id = 2; DELETE FROM sums WHERE id = 1")
        .await?;
    world.execute("INSERT INTO orders VALUES (3, 'x', NULL); TRUNCATE sums").await?;
    world.sink.until("the changes", |arrived| arrived.len() == 7).await?;
    let failover = "SELECT failover FROM pg_replication_slots WHERE slot_name = $1";
    let failover: bool = sqlx::query_scalar(failover).bind(&world.options.slot).fetch_one(&world.pool).await?;
    ensure!(failover, "a standby may go on with the slot");
    capture.stop().await?;
    let said: Vec<_> = world
        .sink
        .arrived()
        .iter()
        .map(|message| (value(message)["op"].clone(), value(message)["after"].clone()))
        .collect();
    let row = |id: i32, a: i32| json!({"id": id, "a": a});
    let expected = [
        (json!("r"), row(1, 10)),
        (json!("c"), row(2, 20)),
        (json!("u"), row(2, 21)),
        (json!("d"), json!(null)),
        (json!(null), json!(null)),
        (json!("c"), json!({"id": 3, "state": "x", "note": null})),
        (json!("t"), json!(null)),
    ];
    ensure!(said == expected, "{said:?}");

    // A server that takes the slot of a capture that is paused.
    let invalidated = async {
        let sql = "SELECT invalidation_reason = 'idle_timeout' FROM pg_replication_slots WHERE slot_name = $1";
        while !sqlx::query_scalar::<_, Option<bool>>(sql)
            .bind(&world.options.slot)
            .fetch_one(&world.pool)
            .await?
            .unwrap_or(false)
        {
            world.execute("CHECKPOINT").await?;
        }
        anyhow::Ok(())
    };
    timeout(DEADLINE, invalidated).await.context("the slot is invalidated")??;
    world.execute("INSERT INTO orders VALUES (4, 'nobody listened', NULL)").await?;
    let never = CaptureOptions { initial_snapshot: false, ..world.options.clone() };
    let capture = world.start(never).await?;
    capture.until(|stats| stats.trouble.as_ref().is_some_and(|why| why.contains("ask for a snapshot"))).await?;
    capture.stop().await?;
    let capture = world.start(world.options.clone()).await?;
    world.sink.until("what was missed", |arrived| ids(arrived).contains(&4)).await?;
    capture.stop().await
}
