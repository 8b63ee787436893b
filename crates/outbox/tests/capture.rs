//! An outbox that is captured, and what happens when it can not be.

mod world;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use relais_outbox::{Activity, CaptureOptions, Mode, RelayOptions, Retry, Spool, SpoolOptions};
use world::World;

/// A relay that looks often and retries at once.
fn options() -> Result<RelayOptions> {
    Ok(RelayOptions {
        poll: Duration::from_millis(20),
        retry: Retry { limit: 3, base: Duration::from_millis(10), ..Retry::default() },
        capture: CaptureOptions { retry: Duration::from_millis(200), ..CaptureOptions::default() },
        ..RelayOptions::new("orders")?
    })
}

async fn world() -> Result<World> {
    let world = World::postgres().await?.with_mode(Mode::Auto);
    world.create().await?;
    Ok(world)
}

#[tokio::test]
async fn a_relay_polls_until_the_slot_is_there() -> Result<()> {
    let world = world().await?;
    // A slot waits for all transactions that are open, of whatever table.
    let mut open = world.begin().await?;
    open.add("o-1", 0).await?;
    let relay = world.relay(options()?).await?;
    world.add("o-2", 0).await?;
    world.sink.until(1).await?;
    ensure!(relay.stats().activity == Activity::Polling, "{:?}", relay.stats());
    open.commit().await?;
    relay.until(|stats| stats.activity == Activity::Capturing).await?;
    world.add_together("o-2", 1..50).await?;
    world.add("o-1", 1).await?;
    world.sink.until(52).await?;
    world.until_published().await?;
    relay.stop().await?;
    world.sink.check_order()
}

#[tokio::test]
async fn a_slot_that_is_dropped_is_made_again_and_nothing_is_lost() -> Result<()> {
    let world = world().await?;
    let relay = world.relay(options()?).await?;
    relay.until(|stats| stats.activity == Activity::Capturing).await?;
    for number in 0..5 {
        world.add("o-1", number * 2).await?;
        world
            .execute(
                "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots
                       WHERE database = current_database() AND active_pid IS NOT NULL",
            )
            .await?;
        // Whoever reads it may have been faster.
        let _ = world
            .execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
                               WHERE database = current_database()",
            )
            .await;
        world.add("o-1", number * 2 + 1).await?;
        world.sink.until((number + 1) * 2).await?;
        relay.until(|stats| stats.activity == Activity::Capturing).await?;
    }
    world.until_published().await?;
    relay.stop().await?;
    world.sink.check_order()
}

#[tokio::test]
async fn a_slot_that_keeps_too_much_of_the_log_is_given_up() -> Result<()> {
    let world = world().await?;
    let capture = CaptureOptions { max_retained_wal: 4 << 20, ..options()?.capture };
    let relay = world.relay(RelayOptions { capture, ..options()? }).await?;
    relay.until(|stats| stats.activity == Activity::Capturing).await?;
    world.sink.away(true);
    world.add("o-1", 0).await?;
    world.execute("CREATE TABLE other (filling text)").await?;
    world.execute("INSERT INTO other SELECT repeat(n::text, 1000) FROM generate_series(1, 5000) n").await?;
    relay.until(|stats| stats.why_not_capture.as_ref().is_some_and(|why| why.contains("more than the limit"))).await?;
    world.until_no_slot().await?;
    world.add("o-1", 1).await?;
    world.sink.away(false);
    world.sink.until(2).await?;
    relay.until(|stats| stats.activity == Activity::Capturing && stats.why_not_capture.is_none()).await?;
    world.add("o-1", 2).await?;
    world.sink.until(3).await?;
    relay.stop().await?;
    world.sink.check_order()
}

#[tokio::test]
async fn a_relay_without_the_right_to_replicate_polls_and_says_so() -> Result<()> {
    let world = world().await?;
    let user = world.user_with_rights().await?;
    let relay = world.relay_as(&user, options()?).await?;
    relay.until(|stats| stats.activity == Activity::Capturing).await?;
    world.execute(&format!("ALTER ROLE {user} NOREPLICATION")).await?;
    world.add("o-1", 0).await?;
    world.sink.until(1).await?;
    // Rights are looked at when the stream begins.
    world.end_senders().await?;
    relay.until(|stats| stats.why_not_capture.as_ref().is_some_and(|why| why.contains("may not replicate"))).await?;
    world.add("o-1", 1).await?;
    world.sink.until(2).await?;
    ensure!(relay.stats().activity == Activity::Polling, "{:?}", relay.stats());
    world.execute(&format!("ALTER ROLE {user} REPLICATION")).await?;
    relay.until(|stats| stats.activity == Activity::Capturing).await?;
    world.add("o-1", 2).await?;
    world.sink.until(3).await?;
    relay.stop().await?;
    world.drop_user(&user).await?;
    world.sink.check_order()
}

#[tokio::test]
async fn another_relay_takes_over_from_one_that_was_killed() -> Result<()> {
    let world = world().await?;
    let first = world.relay(RelayOptions { relay: "a".to_owned(), ..options()? }).await?;
    first.until(|stats| stats.activity == Activity::Capturing).await?;
    let second = world.relay(RelayOptions { relay: "b".to_owned(), ..options()? }).await?;
    second.until(|stats| stats.relays == 2).await?;
    ensure!(second.stats().activity == Activity::StandBy, "{:?}", second.stats());
    world.add("o-1", 0).await?;
    world.sink.until(1).await?;
    let killed = Instant::now();
    first.kill();
    world.add("o-1", 1).await?;
    world.sink.until(2).await?;
    let took = killed.elapsed();
    println!("the other relay went on after {took:?}");
    ensure!(took < options()?.lease, "sooner than the lease ends: {took:?}");
    second.until(|stats| stats.activity == Activity::Capturing).await?;
    second.stop().await?;
    world.sink.check_order()
}

#[tokio::test]
async fn a_failing_key_waits_alone_and_comes_back_in_order() -> Result<()> {
    let world = world().await?;
    let retry =
        Retry { limit: 100, base: Duration::from_millis(50), cap: Duration::from_millis(50), ..Retry::default() };
    let relay = world.relay(RelayOptions { retry, ..options()? }).await?;
    relay.until(|stats| stats.activity == Activity::Capturing).await?;
    world.sink.refuse(|outgoing| world::is_of(outgoing, "bad"));
    for number in 0..20 {
        world.add("bad", number).await?;
        world.add("good", number).await?;
        world.sink.until(number + 1).await?;
    }
    world.sink.refuse(|_| false);
    for number in 20..30 {
        world.add("bad", number).await?;
        world.add("good", number).await?;
    }
    world.sink.until(60).await?;
    world.until_published().await?;
    relay.until(|stats| stats.activity == Activity::Capturing).await?;
    relay.stop().await?;
    world.sink.check_order()
}

#[tokio::test]
async fn a_database_without_a_logical_log_is_polled() -> Result<()> {
    let server = relais_testkit::PostgresServer::options().set("wal_level", "replica").start().await?;
    let world = World::at(&server.url("postgres")).await?.with_mode(Mode::Auto);
    world.create().await?;
    let relay = world.relay(options()?).await?;
    world.add("o-1", 0).await?;
    world.sink.until(1).await?;
    relay.until(|stats| stats.why_not_capture.as_ref().is_some_and(|why| why.contains("wal_level"))).await?;
    ensure!(relay.stats().activity == Activity::Polling, "{:?}", relay.stats());
    relay.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_large_transaction_is_published_with_little_memory() -> Result<()> {
    let world = world().await?;
    let relay = world.relay(options()?).await?;
    relay.until(|stats| stats.activity == Activity::Capturing).await?;
    let before = world.sink.calls();
    world
        .execute(
            "INSERT INTO outbox (aggregate_id, event_type, payload)
                   SELECT ('00000000-0000-0000-0000-' || lpad((n % 500)::text, 12, '0'))::uuid, 'order.placed',
                          jsonb_build_object('key', (n % 500)::text, 'n', n, 'customer', 7)
                   FROM generate_series(1, 20000) n",
        )
        .await?;
    world.sink.until(20_000).await?;
    world.until_published().await?;
    ensure!(world.sink.calls() - before >= 20_000 / 500, "in batches");
    ensure!(relay.stats().activity == Activity::Capturing, "{:?}", relay.stats());
    relay.stop().await?;
    world.sink.check_order().context("within the transaction")
}

#[tokio::test]
async fn a_payload_of_50_mb_arrives_by_capture_and_by_polling() -> Result<()> {
    let world = world().await?;
    let relay = world.relay(options()?).await?;
    relay.until(|stats| stats.activity == Activity::Capturing).await?;
    let large = "INSERT INTO outbox (aggregate_id, event_type, payload)
                 SELECT gen_random_uuid(), 'large', jsonb_build_object('key', 'l', 'n', 1, 'filling', repeat('0123456789', 5000000))";
    world.execute(large).await?;
    world.sink.until(1).await?;
    relay.stop().await?;
    let world = world.with_mode(Mode::Polling);
    world.execute(large).await?;
    let relay = world.relay(options()?).await?;
    let arrived = world.sink.until(2).await?;
    relay.stop().await?;
    let sizes: Vec<usize> =
        arrived.iter().map(|outgoing| outgoing.message.payload.as_ref().map_or(0, bytes::Bytes::len)).collect();
    ensure!(sizes.iter().all(|size| *size > 50_000_000), "{sizes:?}");
    Ok(())
}

#[tokio::test]
async fn a_row_that_counts_as_published_when_it_is_written_is_left_alone() -> Result<()> {
    let world = world().await?;
    let relay = world.relay(options()?).await?;
    relay.until(|stats| stats.activity == Activity::Capturing).await?;
    let restored = "INSERT INTO outbox (aggregate_id, event_type, payload, published_at)
                    VALUES (gen_random_uuid(), 'restored', '{\"key\": \"o-0\", \"n\": 0}', now())";
    world.execute(restored).await?;
    world.add("o-1", 0).await?;
    let arrived = world.sink.until(1).await?;
    relay.stop().await?;
    ensure!(arrived.len() == 1 && world::is_of(&arrived[0], "o-1"), "{arrived:?}");
    Ok(())
}

/// An update is not in the stream.
#[tokio::test]
async fn a_row_that_the_stream_does_not_bring_is_found() -> Result<()> {
    let world = world().await?;
    let capture = CaptureOptions { sweep: Duration::from_millis(200), ..CaptureOptions::default() };
    let relay = world.relay(RelayOptions { capture, ..RelayOptions::new("orders")? }).await?;
    relay.until(|stats| stats.activity == Activity::Capturing).await?;
    world.add("k", 1).await?;
    relay.until(|stats| stats.published == 1).await?;
    world.execute("UPDATE outbox SET published_at = NULL").await?;
    relay.until(|stats| stats.published == 2).await?;
    relay.until(|stats| stats.activity == Activity::Capturing).await?;
    relay.stop().await
}

#[tokio::test]
async fn outboxes_with_similar_names_have_slots_of_their_own() -> Result<()> {
    let world = world().await?;
    let mut relays = Vec::new();
    for outbox in ["orders.eu", "orders-eu"] {
        let relay = world.relay(RelayOptions { outbox: outbox.to_owned(), ..options()? }).await?;
        relay.until(|stats| stats.activity == Activity::Capturing).await?;
        relays.push(relay);
    }
    ensure!(world.slots().await? == 2, "each has one");
    for relay in relays {
        relay.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_url_that_a_replication_connection_can_not_keep_to_is_polled_and_says_so() -> Result<()> {
    let database = relais_testkit::TestDatabase::create().await?;
    let world = World::at(&format!("{}?require_auth=scram-sha-256", database.url())).await?.with_mode(Mode::Auto);
    world.create().await?;
    let relay = world.relay(options()?).await?;
    let said = "does not know require_auth";
    relay.until(|stats| stats.why_not_capture.as_ref().is_some_and(|why| why.contains(said))).await?;
    world.add("o-1", 0).await?;
    world.sink.until(1).await?;
    ensure!(relay.stats().activity == Activity::Polling, "{:?}", relay.stats());
    relay.stop().await?;
    let refused = world.with_mode(Mode::Capture).relay(options()?).await.err().context("it must be captured")?;
    ensure!(format!("{refused:#}").contains(said), "{refused:#}");
    Ok(())
}

#[tokio::test]
async fn a_large_transaction_is_published_after_its_commit_whatever_its_spool_can_hold() -> Result<()> {
    for limit in [1 << 30, 150_000] {
        let world = world().await?;
        world
            .execute(
                "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET logical_decoding_work_mem = ''64kB''',
                                            current_database()); END $$",
            )
            .await?;
        let directory = tempfile::tempdir()?;
        let spool = Spool::open(SpoolOptions { directory: directory.path().to_owned(), limit }).await?;
        let capture = CaptureOptions { spool: Some(spool.clone()), ..options()?.capture };
        let relay = world.relay(RelayOptions { capture, ..options()? }).await?;
        relay.until(|stats| stats.activity == Activity::Capturing).await?;
        let mut large = world.begin().await?;
        let adding = async {
            for number in 0..1500 {
                large.add("o-1", number).await?;
            }
            anyhow::Ok(())
        };
        let spooled = async {
            while spool.used() == 0 {
                tokio::task::yield_now().await;
            }
        };
        let spooled = tokio::time::timeout(Duration::from_secs(60), spooled);
        let (added, spooled) = tokio::join!(adding, spooled);
        added?;
        spooled.context("it comes while it is open")?;
        world.add("o-2", 0).await?;
        world.sink.until(1).await?;
        large.commit().await?;
        world.sink.until(1501).await?;
        world.until_published().await?;
        relay.stop().await?;
        world.sink.check_order()?;
    }
    Ok(())
}

#[tokio::test]
async fn many_keys_that_fail_are_left_to_polling_and_hold_up_nobody() -> Result<()> {
    let world = world().await?;
    world.sink.refuse(|outgoing| world::is_of(outgoing, "bad"));
    let capture = CaptureOptions { max_failed_keys: 3, ..options()?.capture };
    let relay = world.relay(RelayOptions { capture, ..options()? }).await?;
    relay.until(|stats| stats.activity == Activity::Capturing).await?;
    // Rows of aggregates of their own, which all say that they are bad.
    world
        .execute(
            "INSERT INTO outbox (aggregate_id, event_type, payload)
             SELECT gen_random_uuid(), 'order.placed', '{\"key\": \"bad\", \"n\": 0}' FROM generate_series(1, 20)",
        )
        .await?;
    let said = "more than 3 keys have a message that failed";
    relay.until(|stats| stats.why_not_capture.as_ref().is_some_and(|why| why.contains(said))).await?;
    world.add("good", 0).await?;
    world.sink.until(1).await?;
    relay.until(|stats| stats.parked == 20).await?;
    world.sink.refuse(|_| false);
    let ids: Vec<String> = world.parked(&options()?).await?.into_iter().map(|row| row.id).collect();
    ensure!(world.store.retry_parked("orders", &ids).await? == 20);
    relay.until(|stats| stats.activity == Activity::Capturing).await?;
    world.sink.until(21).await?;
    relay.stop().await
}
