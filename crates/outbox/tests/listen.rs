//! How relays hear of new rows on PostgreSQL. They poll once an hour here: a wake-up that is lost fails a test.

mod world;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use relais_outbox::{ReadRequest, RelayOptions};
use relais_testkit::TestDatabase;
use sqlx::{Connection as _, PgConnection, postgres::PgListener};
use tokio::sync::watch;

use world::{DEADLINE, World};

fn options() -> Result<RelayOptions> {
    Ok(RelayOptions { poll: Duration::from_secs(3600), ..RelayOptions::new("orders")? })
}

/// Waits until so many relays have the lock or wait for it.
async fn until_waiting(connection: &mut PgConnection, relays: i64) -> Result<()> {
    let waiting = async {
        loop {
            let found: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                 WHERE l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND d.datname = current_database()",
            )
            .fetch_one(&mut *connection)
            .await?;
            if found == relays {
                return anyhow::Ok(());
            }
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.with_context(|| format!("{relays} relays wait"))?
}

/// Everything that was said on the channel so far.
async fn heard(listener: &mut PgListener) -> Result<usize> {
    sqlx::query("SELECT pg_notify('relais_outbox', 'so far')").execute(&mut *listener).await?;
    let mut count = 0;
    while tokio::time::timeout(DEADLINE, listener.recv()).await??.payload() != "so far" {
        count += 1;
    }
    Ok(count)
}

#[tokio::test]
async fn writers_notify_only_while_a_relay_waits() -> Result<()> {
    let world = World::postgres().await?;
    world.create().await?;
    let mut listener = world.listener().await?;
    for number in 0..10 {
        world.add("o-1", number).await?;
    }
    ensure!(heard(&mut listener).await? == 0, "nobody waits, so nothing is said");

    let relay = world.relay(options()?).await?;
    world.sink.until(10).await?;
    until_waiting(&mut world.connect().await?, 1).await?;
    heard(&mut listener).await?;
    world.add("o-1", 10).await?;
    world.sink.until(11).await?;
    ensure!(heard(&mut listener).await? > 0, "the writer has woken the relay");

    relay.stop().await?;
    until_waiting(&mut world.connect().await?, 0).await?;
    heard(&mut listener).await?;
    world.add("o-1", 11).await?;
    ensure!(heard(&mut listener).await? == 0, "a relay that is gone is told nothing");
    Ok(())
}

#[tokio::test]
async fn a_writer_that_said_nothing_is_read_once_it_has_committed() -> Result<()> {
    let world = World::postgres().await?;
    world.create().await?;
    // It passes the trigger while nobody waits, and commits while a relay does.
    let mut late = world.begin().await?;
    late.add("late", 0).await?;
    let relay = world.relay(options()?).await?;
    until_waiting(&mut world.connect().await?, 1).await?;
    // A relay that waits for the lock is told of others meanwhile.
    world.add("early", 0).await?;
    world.sink.until(1).await?;
    late.commit().await?;
    world.sink.until(2).await?;
    relay.stop().await
}

/// Reads and marks rows of some partitions, and does nothing but wait in between: as a relay does, but for its leases.
async fn read_and_wait(world: &World, partitions: Vec<i32>, total: usize, marked: &watch::Sender<usize>) -> Result<()> {
    let store = world.open().await?;
    let request = ReadRequest { partitions, rows: 1000, bytes: 1 << 20, ..world.request(&options()?) };
    loop {
        let rows = store.read_unpublished(&request).await?;
        let ids: Vec<String> = rows.into_iter().map(|row| row.id).collect();
        if ids.is_empty() {
            let mut done = marked.subscribe();
            tokio::select! {
                () = store.wait_for_rows() => continue,
                done = done.wait_for(|marked| *marked >= total) => return Ok(done.map(|_| ())?),
            }
        }
        store.mark_published(&request.outbox, &ids, false).await?;
        marked.send_modify(|marked| *marked += ids.len());
    }
}

#[tokio::test]
async fn all_who_wait_hear_of_a_writer_that_said_nothing() -> Result<()> {
    let world = World::postgres().await?;
    world.create().await?;
    let marked = watch::Sender::new(0);
    let mut late = world.begin().await?;
    for key in 0..40 {
        late.add(&format!("k{key}"), 0).await?;
    }
    let commit = async {
        until_waiting(&mut world.connect().await?, 2).await?;
        late.commit().await
    };
    let first = read_and_wait(&world, (0..8).collect(), 40, &marked);
    let second = read_and_wait(&world, (8..16).collect(), 40, &marked);
    tokio::time::timeout(DEADLINE, async { tokio::try_join!(commit, first, second) }).await??;
    Ok(())
}

#[tokio::test]
async fn no_wake_up_is_lost_between_many_writers_and_readers() -> Result<()> {
    const WRITERS: usize = 8;
    const TRANSACTIONS: usize = 60;
    const TOTAL: usize = WRITERS * TRANSACTIONS;
    let world = World::postgres().await?;
    world.create().await?;
    let marked = watch::Sender::new(0);
    let readers = [0..5, 5..10, 10..16].map(|partitions| read_and_wait(&world, partitions.collect(), TOTAL, &marked));
    let writers = (0..WRITERS).map(|writer| {
        let (world, marked) = (&world, &marked);
        async move {
            for number in 0..TRANSACTIONS {
                let mut open = world.begin().await?;
                open.add(&format!("w{writer}-{number}"), 0).await?;
                for _ in 0..(writer * 7 + number) % 5 {
                    open.idle().await?;
                }
                open.commit().await?;
                // Now and then all wait for all, so that readers often wait and often work.
                if number % 4 == 3 {
                    marked.subscribe().wait_for(|marked| *marked >= number / 2).await?;
                }
            }
            anyhow::Ok(())
        }
    });
    let all = async { tokio::try_join!(try_join_all(writers), try_join_all(readers)) };
    tokio::time::timeout(DEADLINE, all).await.with_context(|| format!("{} of {TOTAL} read", *marked.borrow()))??;
    println!("{TOTAL} transactions, every row was read without a poll");
    Ok(())
}

#[tokio::test]
async fn a_trigger_of_an_earlier_version_is_replaced_by_init() -> Result<()> {
    let database = TestDatabase::create().await?;
    let mut connection = PgConnection::connect(database.url()).await?;
    let outbox = relais_outbox::Outbox::new("outbox")?;
    let init = || relais_outbox::init(database.url(), outbox.table(), relais_outbox::AggregateId::Uuid, true);
    ensure!(init().await?, "made");
    sqlx::raw_sql(
        "CREATE OR REPLACE FUNCTION outbox_notify() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN PERFORM pg_notify('relais_outbox', 'outbox'); RETURN NULL; END $$",
    )
    .execute(&mut connection)
    .await?;
    ensure!(!init().await?, "it was there");
    let mut listener = PgListener::connect(database.url()).await?;
    listener.listen("relais_outbox").await?;
    outbox.add(&mut connection, &world::event("o-1", 0, 0)?).await?;
    ensure!(heard(&mut listener).await? == 0, "the new function says nothing while nobody waits");
    // A function of that name that somebody else made stays.
    let theirs = "CREATE OR REPLACE FUNCTION outbox_notify() RETURNS trigger LANGUAGE plpgsql AS $$
                  BEGIN PERFORM pg_notify('theirs', 'outbox'); RETURN NULL; END $$";
    sqlx::raw_sql(theirs).execute(&mut connection).await?;
    ensure!(!init().await?, "it was there");
    listener.listen("theirs").await?;
    outbox.add(&mut connection, &world::event("o-1", 1, 0)?).await?;
    ensure!(heard(&mut listener).await? == 1, "it still says what it said");
    Ok(())
}
