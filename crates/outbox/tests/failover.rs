//! What becomes of a captured outbox when a standby takes over from its server.

mod world;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use relais_outbox::{Activity, CaptureOptions, Mode, RelayOptions};
use relais_testkit::{PostgresOptions, PostgresServer, TcpProxy};
use sqlx::{Connection as _, PgConnection};
use tokio::time::timeout;
use world::{DEADLINE, World};

fn options() -> Result<RelayOptions> {
    Ok(RelayOptions {
        poll: Duration::from_millis(20),
        capture: CaptureOptions { retry: Duration::from_millis(200), ..CaptureOptions::default() },
        ..RelayOptions::new("orders")?
    })
}

/// Waits until a server says yes.
async fn until(server: &PostgresServer, what: &str, question: &'static str) -> Result<()> {
    let mut connection = PgConnection::connect(&server.url("postgres")).await?;
    let asking = async {
        while !sqlx::query_scalar::<_, Option<bool>>(question).fetch_one(&mut connection).await?.unwrap_or_default() {
            tokio::task::yield_now().await;
        }
        anyhow::Ok(())
    };
    timeout(DEADLINE, asking).await.with_context(|| what.to_owned())?
}

/// Publishes, loses the primary, and goes on with the standby; whether that had the slot.
async fn fail_over(primary: PostgresOptions, standby: PostgresOptions, synchronizes: bool) -> Result<()> {
    let mut primary = primary.start().await?;
    let mut standby = standby.start_standby(&mut primary, "standby").await?;
    let name = TcpProxy::start(primary.addr()).await?;
    let world = World::at(&primary.url("postgres")).await?.with_mode(Mode::Auto);
    world.create().await?;
    let relay = world.relay_at(&primary.url_via(name.addr(), "postgres"), options()?).await?;
    relay.until(|stats| stats.activity == Activity::Capturing).await?;
    world.add_together("o-1", 0..10).await?;
    world.sink.until(10).await?;
    if synchronizes {
        let waiting = async {
            loop {
                // A slot moves only with the log, and where transactions that run are noted.
                world.execute("SELECT pg_log_standby_snapshot()").await?;
                let mut connection = PgConnection::connect(&standby.url("postgres")).await?;
                let sql = "SELECT count(*) FROM pg_replication_slots WHERE synced AND NOT temporary";
                if sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut connection).await? > 0 {
                    return anyhow::Ok(());
                }
            }
        };
        timeout(DEADLINE, waiting).await.context("the slot is synchronized")??;
    }
    world.add_together("o-1", 10..20).await?;
    for number in 0..10 {
        world.add("o-2", number).await?;
    }
    until(
        &primary,
        "the standby follows",
        "SELECT bool_and(replay_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication
         WHERE application_name = 'walreceiver'",
    )
    .await?;
    primary.kill9()?;
    until(&standby, "the standby is promoted", "SELECT pg_promote()").await?;
    name.redirect(standby.addr()).await?;
    let after = World::at(&standby.url("postgres")).await?;
    after.add_together("o-1", 20..30).await?;
    for number in 10..20 {
        after.add("o-2", number).await?;
    }
    after.until_published().await?;
    // It captures again, by the slot that it found or by a new one.
    relay.until(|stats| stats.activity == Activity::Capturing).await?;
    after.add("o-2", 20).await?;
    after.until_published().await?;
    ensure!(world.sink.distinct() == 51, "{} of 51", world.sink.distinct());
    relay.stop().await?;
    world.sink.check_order()?;
    standby.stop().await
}

#[tokio::test]
async fn an_outbox_goes_on_with_the_slot_of_a_promoted_standby() -> Result<()> {
    let options = || PostgresServer::options().version_18();
    let primary = options().set("synchronized_standby_slots", "standby");
    fail_over(primary, options().set("sync_replication_slots", "on"), true).await
}

/// As with every PostgreSQL before 17: polling publishes what the log does not bring any more.
#[tokio::test]
async fn an_outbox_is_polled_if_the_promoted_standby_has_no_slot() -> Result<()> {
    fail_over(PostgresServer::options(), PostgresServer::options(), false).await
}
