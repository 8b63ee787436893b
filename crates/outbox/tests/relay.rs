//! The relay by polling, on PostgreSQL and on SQLite: what is committed is published, in order per key, and nothing else.

mod world;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use relais_message::Template;
use relais_outbox::{OutboxError, RelayOptions, Retry};
use world::{DEADLINE, World};

/// Makes of each function a test on each database.
macro_rules! both {
    ($($(#[$doc:meta])* async fn $name:ident($world:ident: &World) -> Result<()> $body:block)*) => {
        $($(#[$doc])*
        mod $name {
            use super::*;

            async fn run($world: &World) -> Result<()> $body

            #[tokio::test]
            async fn on_postgres() -> Result<()> {
                run(&World::postgres().await?).await
            }

            #[tokio::test]
            async fn on_postgres_by_capture() -> Result<()> {
                run(&World::captured().await?).await
            }

            #[tokio::test]
            async fn on_sqlite() -> Result<()> {
                run(&World::sqlite().await?).await
            }
        })*
    };
}

/// A relay that looks often and retries at once.
fn options() -> Result<RelayOptions> {
    Ok(RelayOptions {
        poll: Duration::from_millis(20),
        retry: Retry { limit: 3, base: Duration::from_millis(10), ..Retry::default() },
        ..RelayOptions::new("orders")?
    })
}

both! {
    /// And carries what the row says.
    async fn a_committed_event_is_published_and_a_rolled_back_one_is_not(world: &World) -> Result<()> {
        world.create().await?;
        world.add("o-1", 0).await?;
        world.add_and_roll_back("o-1", 1).await?;
        world.add("o-1", 2).await?;
        let relay = world.relay(options()?).await?;
        let arrived = world.sink.until(2).await?;
        relay.stop().await?;
        ensure!(arrived.iter().map(world::number).collect::<Vec<_>>() == [0, 2], "{arrived:?}");
        let first = &arrived[0];
        ensure!(first.destination == "outbox.event.order.placed", "{first:?}");
        ensure!(first.message.headers.get("event-type") == Some("order.placed"), "{first:?}");
        ensure!(first.message.key.as_deref() == Some(world.aggregate("o-1").as_str()), "{first:?}");
        ensure!(world.unpublished().await? == 0, "all are marked");
        Ok(())
    }

    /// The seven columns of a table that somebody made by hand are enough.
    async fn a_table_with_the_seven_columns_is_published_with_retries_and_parking(world: &World) -> Result<()> {
        world.create_by_hand().await?;
        for number in 0..3 {
            world.add("bad", number).await?;
            world.add("good", number).await?;
        }
        world.sink.refuse(|outgoing| world::number(outgoing) == 1 && world::is_of(outgoing, "bad"));
        let relay = world.relay(options()?).await?;
        world.sink.until(4).await?;
        relay.until(|stats| stats.parked == 1).await?;
        ensure!(world.retry_count("bad", 1).await? == 3, "failed tries are counted");
        ensure!(world.unpublished().await? == 2, "the parked one and the one behind it wait");
        let parked = world.parked(&options()?).await?;
        ensure!(parked.len() == 1 && parked[0].error.as_deref() == Some("refused by the test"), "{parked:?}");

        world.sink.refuse(|_| false);
        ensure!(world.store.retry_parked("orders", &[parked[0].id.clone()]).await? == 1, "it can be retried");
        world.sink.until(6).await?;
        relay.stop().await?;
        world.sink.check_order()?;
        ensure!(world.unpublished().await? == 0, "nothing is left");
        Ok(())
    }

    /// Its rows have one time, and a write moves a row within the table.
    async fn events_of_one_transaction_stay_in_order_after_a_failure(world: &World) -> Result<()> {
        world.create_by_hand().await?;
        world.add_together("o-1", 0..5).await?;
        world.sink.refuse_once(|outgoing| world::number(outgoing) == 0);
        let relay = world.relay(options()?).await?;
        let arrived = world.sink.until(5).await?;
        relay.stop().await?;
        ensure!(arrived.iter().map(world::number).collect::<Vec<_>>() == [0, 1, 2, 3, 4], "{arrived:?}");
        Ok(())
    }

    /// A failing key waits alone.
    async fn a_refused_message_holds_back_its_own_key_only_and_is_parked_at_the_limit(world: &World) -> Result<()> {
        world.create().await?;
        for number in 0..5 {
            for key in ["bad", "good", "other"] {
                world.add(key, number).await?;
            }
        }
        world.sink.refuse(|outgoing| world::number(outgoing) == 2 && world::is_of(outgoing, "bad"));
        let relay = world.relay(options()?).await?;
        world.sink.until(12).await?;
        relay.until(|stats| stats.parked == 1).await?;
        let parked = world.parked(&options()?).await?;
        ensure!(parked.len() == 1 && parked[0].retry_count == 3, "{parked:?}");
        ensure!(world.store.backlog("orders", 100).await?.parked == 1, "it is counted");
        ensure!(world.store.skip_parked("orders", &[parked[0].id.clone()]).await? == 1, "it can be skipped");
        world.sink.until(14).await?;
        relay.stop().await?;
        ensure!(world.unpublished().await? == 0, "nothing is left");
        Ok(())
    }

    /// However long it is away.
    async fn nothing_is_parked_while_the_sink_is_away(world: &World) -> Result<()> {
        world.create().await?;
        for number in 0..20 {
            world.add(&format!("k{}", number % 4), number / 4).await?;
        }
        world.sink.away(true);
        let relay = world.relay(options()?).await?;
        // Three times as often as a message is tried before it is parked. Each pause is twice the one before.
        world.sink.until_calls(10).await?;
        relay.until(|stats| stats.trouble.is_some()).await?;
        ensure!(relay.stats().parked == 0, "nothing is parked");
        world.sink.away(false);
        world.sink.until(20).await?;
        relay.until(|stats| stats.trouble.is_none()).await?;
        relay.stop().await?;
        world.sink.check_order()
    }

    /// A message that ends the connection looks like an outage to all that are sent with it.
    async fn a_message_that_the_sink_does_not_survive_is_found_and_parked(world: &World) -> Result<()> {
        world.create().await?;
        for number in 0..40 {
            world.add(&format!("k{}", number % 8), number / 8).await?;
        }
        world.sink.die_of(|outgoing| world::number(outgoing) == 2 && world::is_of(outgoing, "k3"));
        let relay = world.relay(options()?).await?;
        world.sink.until(37).await?;
        // Alone it can not be told from an outage. Others show that the sink is there.
        for number in 5..10_000 {
            if relay.stats().parked == 1 {
                break;
            }
            for key in ["k0", "k1", "k2"] {
                world.add(key, number).await?;
            }
            world.sink.until(37 + (number - 4) * 3).await?;
        }
        relay.until(|stats| stats.parked == 1).await?;
        relay.stop().await?;
        let parked = world.parked(&options()?).await?;
        ensure!(parked.len() == 1 && parked[0].key == world.aggregate("k3"), "{parked:?}");
        world.sink.check_order()
    }

    /// Memory is bounded by bytes, not by rows.
    async fn a_batch_has_a_limit_of_bytes(world: &World) -> Result<()> {
        world.create().await?;
        for number in 0..12 {
            world.add_sized("o-1", number, 1_000_000).await?;
        }
        let relay = world.relay(RelayOptions { batch_bytes: 3_000_000, ..options()? }).await?;
        world.sink.until(12).await?;
        relay.stop().await?;
        let largest = world.sink.largest_batch();
        ensure!(largest <= 4_100_000, "no batch is much larger than asked for: {largest}");
        world.sink.check_order()
    }

    /// A customer's id for example: the orders of one customer arrive in order.
    async fn the_key_can_be_a_value_of_the_payload(world: &World) -> Result<()> {
        world.create().await?;
        for number in 0..6 {
            world.add(&format!("o-{number}"), number).await?;
        }
        let key = relais_message::Template::parse("customer-{payload.customer}")?;
        world.sink.refuse(|outgoing| world::number(outgoing) == 1);
        let relay = world.relay(RelayOptions { key, ..options()? }).await?;
        // All are of one customer: the first goes, the second is refused, the others wait behind it.
        relay.until(|stats| stats.parked == 1).await?;
        ensure!(world.sink.arrived().len() == 1, "the others wait");
        world.sink.refuse(|_| false);
        let parked = world.parked(&options()?).await?;
        world.store.retry_parked("orders", &[parked[0].id.clone()]).await?;
        let arrived = world.sink.until(6).await?;
        relay.stop().await?;
        ensure!(arrived.iter().all(|outgoing| outgoing.message.key.as_deref() == Some("customer-7")), "{arrived:?}");
        ensure!(arrived.iter().map(world::number).collect::<Vec<_>>() == [0, 1, 2, 3, 4, 5], "{arrived:?}");
        Ok(())
    }

    /// So that the table does not grow for ever.
    async fn published_rows_are_purged_or_deleted(world: &World) -> Result<()> {
        world.create().await?;
        for number in 0..3 {
            world.add("o-1", number).await?;
        }
        let relay = world.relay(options()?).await?;
        world.sink.until(3).await?;
        relay.stop().await?;
        ensure!(world.rows().await? == 3, "published rows are kept");
        ensure!(world.store.purge_published(Duration::from_secs(3600), 100).await? == 0, "for the retention time");
        ensure!(world.store.purge_published(Duration::ZERO, 100).await? == 3, "and removed after it");
        world.add("o-1", 3).await?;
        let relay = world.relay(RelayOptions { delete_published: true, ..options()? }).await?;
        world.sink.until(4).await?;
        relay.stop().await?;
        ensure!(world.rows().await? == 0, "or deleted at once");
        Ok(())
    }

    /// Before anything is published.
    async fn what_is_wrong_is_said_when_the_relay_starts(world: &World) -> Result<()> {
        let wrong = |error: Result<_, OutboxError>| error.map(drop).expect_err("it is refused").to_string();
        let said = wrong(world.try_relay(options()?).await);
        ensure!(said.contains("there is no table") && said.contains("relais outbox init"), "{said}");
        world.execute("CREATE TABLE outbox (id text PRIMARY KEY, payload text)").await?;
        let said = wrong(world.try_relay(options()?).await);
        ensure!(said.contains("aggregate_id, event_type, created_at"), "{said}");
        world.execute("DROP TABLE outbox").await?;
        world.create_by_hand().await?;
        let template = |text: &str| relais_message::Template::parse(text);
        let said = wrong(world.try_relay(RelayOptions { destination: template("{evnt}")?, ..options()? }).await);
        ensure!(said.contains("there is no field `evnt`"), "{said}");
        let said = wrong(world.try_relay(RelayOptions { key: template("{aggregate_type}")?, ..options()? }).await);
        ensure!(said.contains("the table has no column aggregate_type"), "{said}");
        Ok(())
    }
}

/// Programs that bind a UUID write 16 bytes into SQLite.
#[tokio::test]
async fn binary_ids_are_published_and_marked() -> Result<()> {
    let world = World::sqlite().await?;
    world.create_by_hand().await?;
    for number in 0..3 {
        let row = format!(
            "(x'00000000000000000000000000000{number:03}', x'0a', 'order.placed', '{{\"key\":\"a\",\"n\":{number}}}')"
        );
        world.execute(&format!("INSERT INTO outbox (id, aggregate_id, event_type, payload) VALUES {row}")).await?;
    }
    world.sink.refuse(|outgoing| world::number(outgoing) == 1);
    let relay = world.relay(options()?).await?;
    relay.until(|stats| stats.parked == 1).await?;
    let parked = world.parked(&options()?).await?;
    ensure!(parked.len() == 1 && parked[0].key == "0a", "{parked:?}");
    world.sink.refuse(|_| false);
    ensure!(world.store.retry_parked("orders", &[parked[0].id.clone()]).await? == 1, "it can be retried");
    world.sink.until(3).await?;
    relay.stop().await?;
    ensure!(world.unpublished().await? == 0, "all are marked");
    world.sink.check_order()
}

#[tokio::test]
async fn a_row_that_can_not_be_read_holds_back_its_own_key_only() -> Result<()> {
    let world = World::postgres().await?;
    world.create().await?;
    world.add("bad", 0).await?;
    world.execute("UPDATE outbox SET created_at = 'infinity'").await?;
    world.add("bad", 1).await?;
    world.add("good", 0).await?;
    let relay = world.relay(options()?).await?;
    world.sink.until(1).await?;
    relay.until(|stats| stats.parked == 1).await?;
    relay.stop().await?;
    let parked = world.parked(&options()?).await?;
    let error = parked.first().and_then(|row| row.error.clone()).unwrap_or_default();
    ensure!(parked.len() == 1 && error.contains("can not be read"), "{parked:?}");
    ensure!(world.sink.arrived().len() == 1, "the one behind it waits");
    Ok(())
}

/// The cure of others, a horizon of transaction ids, would stall; a cursor by id or time would lose it.
#[tokio::test]
async fn a_transaction_that_commits_late_delays_only_its_own_rows_and_loses_none() -> Result<()> {
    let world = World::postgres().await?;
    world.create().await?;
    let relay = world.relay(options()?).await?;
    let mut late = world.begin().await?;
    late.add("late", 0).await?;
    for number in 0..10 {
        world.add("o-1", number).await?;
    }
    world.sink.until(10).await?;
    late.commit().await?;
    world.sink.until(11).await?;
    relay.stop().await?;
    world.sink.check_order()
}

#[tokio::test]
async fn a_relay_is_woken_by_a_commit_where_the_trigger_is_installed() -> Result<()> {
    let world = World::postgres().await?;
    world.create().await?;
    let relay = world.relay(RelayOptions { poll: Duration::from_secs(3600), ..options()? }).await?;
    for number in 0..3 {
        world.add("o-1", number).await?;
        world.sink.until(number + 1).await?;
    }
    relay.stop().await
}

#[tokio::test]
async fn relays_share_the_partitions_and_take_over_those_of_a_dead_one() -> Result<()> {
    let world = World::postgres().await?;
    world.create().await?;
    let short = || anyhow::Ok(RelayOptions { lease: Duration::from_secs(1), ..options()? });
    let first = world.relay(short()?).await?;
    let second = world.relay(short()?).await?;
    first.until(|stats| stats.partitions == 8 && stats.relays == 2).await?;
    second.until(|stats| stats.partitions == 8 && stats.relays == 2).await?;
    for number in 0..200 {
        world.add(&format!("k{}", number % 20), number / 20).await?;
    }
    world.sink.until(200).await?;
    first.kill();
    second.until(|stats| stats.partitions == 16).await?;
    for number in 200..400 {
        world.add(&format!("k{}", number % 20), number / 20).await?;
    }
    world.sink.until(400).await?;
    second.stop().await?;
    ensure!(world.unpublished().await? == 0, "all are marked");
    world.sink.check_order()
}

/// Writers commit and roll back while relays are killed and the sink fails.
#[tokio::test]
async fn nothing_is_lost_or_out_of_order_while_relays_die_and_the_sink_fails() -> Result<()> {
    const KEYS: usize = 30;
    const EACH: usize = 40;
    let world = World::postgres().await?;
    world.create().await?;
    let short = || {
        anyhow::Ok(RelayOptions {
            lease: Duration::from_millis(300),
            batch_rows: 37,
            retry: Retry { limit: 1000, base: Duration::from_millis(1), factor: 1.0, ..Retry::default() },
            ..options()?
        })
    };
    world.sink.chance_of_failure(0.05);
    let writing = async {
        for number in 0..EACH {
            for key in 0..KEYS {
                let key = format!("k{key}");
                if (number + key.len()) % 7 == 0 {
                    world.add_and_roll_back(&key, 1_000_000).await?;
                }
                world.add(&key, number).await?;
            }
        }
        anyhow::Ok(())
    };
    let mut kills = 0;
    let killing = async {
        let mut relays = vec![world.relay(short()?).await?, world.relay(short()?).await?];
        for round in 1..=12 {
            world.sink.until(round * KEYS * EACH / 14).await?;
            relays.remove(0).kill();
            kills += 1;
            relays.push(world.relay(short()?).await?);
        }
        anyhow::Ok(relays)
    };
    let (written, relays) = tokio::time::timeout(DEADLINE * 4, async { tokio::join!(writing, killing) }).await?;
    written?;
    world.sink.until(KEYS * EACH).await?;
    for relay in relays? {
        relay.stop().await?;
    }
    let (arrived, distinct) = (world.sink.arrived().len(), world.sink.distinct());
    let failures = world.sink.failures();
    println!(
        "messages {}, kills {kills}, failures of the sink {failures}, lost {}, repeated {}",
        KEYS * EACH,
        KEYS * EACH - distinct,
        arrived - distinct
    );
    ensure!(distinct == KEYS * EACH, "no message is lost, and none that was rolled back arrives");
    world.sink.check_order().context("in order")
}

/// However many keys wait, each read looks up its own. Compared one by one, these would take a minute for each read.
#[tokio::test]
async fn thirty_thousand_keys_that_are_parked_do_not_slow_down_the_others() -> Result<()> {
    for (key, by_hand) in
        [("{aggregate_id}", false), ("{payload.customer}-{aggregate_id}", false), ("{aggregate_id}", true)]
    {
        let world = World::postgres().await?;
        if by_hand {
            world.create_by_hand().await?;
        } else {
            world.create().await?;
        }
        let options = RelayOptions { key: Template::parse(key)?, ..options()? };
        let relay = world.relay(options.clone()).await?;
        world
            .execute(
                "INSERT INTO outbox (aggregate_id, event_type, payload, retry_count)
                 SELECT md5(n::text)::uuid, 'order.placed', '{\"customer\": 7, \"key\": \"bad\", \"n\": 0}', 9
                 FROM generate_series(1, 30000) n",
            )
            .await?;
        relay.until(|stats| stats.parked == 30_000).await?;
        let before = Instant::now();
        for number in 0..20 {
            world.add("o-1", number).await?;
            world.sink.until(number + 1).await?;
        }
        println!("{key}, by hand {by_hand}: 20 messages beside 30,000 that are parked in {:?}", before.elapsed());
        relay.stop().await?;
    }
    Ok(())
}
