//! Captures of tables on a real PostgreSQL.

mod running;

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context as _, Result, ensure};
use relais_capture::{
    CaptureActivity, CaptureError, CaptureOptions, CapturedDatabase, Mask, Slot, Spool, SpoolOptions,
};
use relais_testkit::PostgresServer;
use running::{DEADLINE, World, ids, table, value};
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn rows_that_are_there_come_first_and_changes_follow() -> Result<()> {
    let world = World::new(&["orders"]).await?;
    world.execute("INSERT INTO orders VALUES (1, 'old', 'n')").await?;
    let capture = world.start(world.options.clone()).await?;
    world.sink.until("the snapshot", |arrived| arrived.len() == 1).await?;
    world.execute("INSERT INTO orders VALUES (2, 'new', NULL); UPDATE orders SET state = 'paid' WHERE id = 1").await?;
    world.execute("DELETE FROM orders WHERE id = 2; TRUNCATE orders").await?;
    world.sink.until("all changes", |arrived| arrived.len() == 6).await?;
    capture.stop().await?;
    let arrived = world.sink.arrived();
    let ops: Vec<String> = arrived.iter().map(|message| value(message)["op"].to_string()).collect();
    assert_eq!(ops, ["\"r\"", "\"c\"", "\"u\"", "\"d\"", "null", "\"t\""]);
    assert_eq!(value(&arrived[0])["after"], json!({"id": 1, "state": "old", "note": "n"}));
    assert_eq!(arrived[1].message.key.as_deref(), Some(r#"{"id":2}"#));
    assert_eq!(arrived[1].destination, world.topic());
    assert!(arrived[4].message.payload.is_none(), "a tombstone");
    let ids: std::collections::HashSet<_> = arrived.iter().map(|message| message.message.id.clone()).collect();
    assert_eq!(ids.len(), arrived.len(), "each message has an id of its own");
    Ok(())
}

#[tokio::test]
async fn a_capture_resumes_where_the_sink_has_confirmed() -> Result<()> {
    let world = World::new(&["orders"]).await?;
    let options = CaptureOptions { initial_snapshot: false, batch_rows: 10, ..world.options.clone() };
    for round in 0..5 {
        let capture = world.start(options.clone()).await?;
        capture.streams().await?;
        world
            .execute(&format!(
                "INSERT INTO orders SELECT n, 'x', NULL FROM generate_series({}, {}) n",
                round * 100 + 1,
                round * 100 + 100
            ))
            .await?;
        // Killed in the middle, or after it.
        world.sink.until("some", |arrived| arrived.len() >= round * 100 + 35).await?;
        capture.task.abort();
    }
    let capture = world.start(options).await?;
    world.sink.until("all", |arrived| ids(arrived).len() >= 500).await?;
    capture.stop().await?;
    let arrived = world.sink.arrived();
    let first: Vec<i64> = {
        let mut seen = std::collections::HashSet::new();
        let ids = arrived.iter().map(|message| value(message)["after"]["id"].as_i64().unwrap_or_default());
        ids.filter(|id| seen.insert(*id)).collect()
    };
    assert!(first.is_sorted() && first.len() == 500, "{first:?}");
    // What is repeated is what was not confirmed: one batch for each kill, at most two.
    assert!(arrived.len() <= 500 + 5 * 20, "{} arrived", arrived.len());
    Ok(())
}

/// While rows are inserted, updated, moved and deleted, the table is read beside the stream. In the end whoever read the topic has
/// what the table has, and no key ever went back to an older state.
#[tokio::test]
async fn a_snapshot_beside_the_stream_is_never_older_than_it() -> Result<()> {
    let world = World::new(&["orders"]).await?;
    world.execute("ALTER TABLE orders ADD COLUMN version integer NOT NULL DEFAULT 0").await?;
    world.execute("INSERT INTO orders SELECT n, 'old', NULL, 0 FROM generate_series(1, 3000) n").await?;
    let options = CaptureOptions { chunk_rows: 100, ..world.options.clone() };
    let capture = world.start(options.clone()).await?;
    let (pool, busy) = (world.pool.clone(), CancellationToken::new());
    let writing = tokio::spawn({
        let busy = busy.clone();
        async move {
            let mut n: i64 = 1;
            while !busy.is_cancelled() {
                n = n * 1103 % 3001;
                let sql = match n % 5 {
                    0 => format!("DELETE FROM orders WHERE id = {n}"),
                    1 => format!(
                        "INSERT INTO orders VALUES ({n}, 'again', NULL, 1) ON CONFLICT (id) DO UPDATE SET version = orders.version + 1"
                    ),
                    _ => format!("UPDATE orders SET version = version + 1, state = 'changed' WHERE id = {n}"),
                };
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(&pool).await?;
            }
            Ok::<_, sqlx::Error>(())
        }
    });
    capture.until(|stats| stats.snapshot_rows > 500).await?;
    // Killed in the middle of the snapshot: it goes on there.
    capture.task.abort();
    let capture = world.start(options.clone()).await?;
    capture.until(|stats| stats.snapshot_rows > 100 && stats.activity == CaptureActivity::Streaming).await?;
    busy.cancel();
    writing.await??;
    let rows: Vec<(i32, String, i32)> =
        sqlx::query_as("SELECT id, state, version FROM orders").fetch_all(&world.pool).await?;
    let expected: BTreeMap<String, Value> = rows
        .into_iter()
        .map(|(id, state, version)| {
            (json!({"id": id}).to_string(), json!({"id": id, "state": state, "note": null, "version": version}))
        })
        .collect();
    let topic = world.topic();
    world.sink.until("the topic and the table are the same", |arrived| table(arrived, &topic) == expected).await?;
    capture.stop().await?;
    // Versions of a row grow until it is deleted.
    let mut versions: HashMap<String, i64> = HashMap::new();
    let (mut reads, mut older) = (0, 0);
    for message in world.sink.arrived().iter() {
        let (key, value) = (message.message.key.clone().unwrap_or_default(), value(message));
        reads += usize::from(value["op"] == "r");
        match value["after"]["version"].as_i64() {
            Some(version) => {
                let before = versions.insert(key, version);
                older += usize::from(value["op"] == "r" && before.is_some_and(|before| before > version));
            }
            None => drop(versions.remove(&key)),
        }
    }
    println!("rows read {reads}, messages {}, older than the stream {older}", world.sink.arrived().len());
    ensure!(older == 0 && reads > 1000);
    Ok(())
}

#[tokio::test]
async fn a_snapshot_can_be_asked_for_again() -> Result<()> {
    let world = World::new(&["orders"]).await?;
    let options = CaptureOptions { initial_snapshot: false, ..world.options.clone() };
    world.execute("INSERT INTO orders SELECT n, 'x', NULL FROM generate_series(1, 25) n").await?;
    let database = CapturedDatabase::connect(&world.url).await?;
    ensure!(!database.request_snapshot(&options, &[]).await.unwrap_or(false), "it never ran");
    let capture = world.start(options.clone()).await?;
    capture.streams().await?;
    ensure!(database.request_snapshot(&options, &["public.orders".to_owned()]).await?, "it runs");
    let unknown = database.request_snapshot(&options, &["public.nobody".to_owned()]).await;
    ensure!(unknown.is_err_and(|error| error.to_string().contains("is not captured")), "only its own tables");
    world.sink.until("the rows", |arrived| arrived.len() == 25).await?;
    capture.until(|stats| stats.snapshot_rows == 25).await?;
    let progress = database.progress(&options).await?.context("progress")?;
    capture.stop().await?;
    ensure!(progress.position.commit_lsn > 0, "{progress:?}");
    database.drop(&options).await?;
    ensure!(database.slot(&options).await?.is_none() && database.progress(&options).await?.is_none(), "all is gone");
    Ok(())
}

#[tokio::test]
async fn columns_are_left_out_and_masked() -> Result<()> {
    let world = World::new(&["orders"]).await?;
    let mut options = world.options.clone();
    options.columns.exclude.insert("public.orders.note".to_owned());
    options.columns.masks.insert("public.orders.state".to_owned(), Mask::Text("***".to_owned()));
    world.execute("INSERT INTO orders VALUES (1, 'secret', 'secret')").await?;
    let capture = world.start(options).await?;
    world.sink.until("the row", |arrived| arrived.len() == 1).await?;
    world.execute("UPDATE orders SET state = 'other secret'").await?;
    world.sink.until("the change", |arrived| arrived.len() == 2).await?;
    capture.stop().await?;
    for message in world.sink.arrived().iter() {
        assert_eq!(value(message)["after"], json!({"id": 1, "state": "***"}));
    }
    Ok(())
}

#[tokio::test]
async fn another_process_takes_over_and_a_sink_that_is_away_loses_nothing() -> Result<()> {
    let world = World::new(&["orders"]).await?;
    let options = CaptureOptions { initial_snapshot: false, ..world.options.clone() };
    let first = world.start(options.clone()).await?;
    first.streams().await?;
    let second = world.start(options.clone()).await?;
    world.execute("INSERT INTO orders VALUES (1, 'x', NULL)").await?;
    world.sink.until("the first", |arrived| arrived.len() == 1).await?;
    world.sink.away(true);
    world.execute("INSERT INTO orders VALUES (2, 'x', NULL)").await?;
    first.until(|stats| stats.trouble.as_ref().is_some_and(|why| why.contains("away"))).await?;
    assert_eq!(second.handle.stats().activity, CaptureActivity::StandBy);
    first.task.abort();
    world.sink.away(false);
    second.streams().await?;
    world.sink.until("the second", |arrived| ids(arrived).len() == 2).await?;
    second.stop().await
}

#[tokio::test]
async fn a_gap_is_never_passed_over_in_silence() -> Result<()> {
    let world = World::new(&["orders"]).await?;
    let never = CaptureOptions { initial_snapshot: false, ..world.options.clone() };
    let capture = world.start(never.clone()).await?;
    capture.streams().await?;
    world.execute("INSERT INTO orders VALUES (1, 'x', NULL)").await?;
    world.sink.until("the first", |arrived| arrived.len() == 1).await?;
    capture.stop().await?;
    Slot::new(&never.slot)?.drop(&world.pool).await?;
    world.execute("INSERT INTO orders VALUES (2, 'lost from the log', NULL)").await?;
    let capture = world.start(never).await?;
    capture.until(|stats| stats.trouble.as_ref().is_some_and(|why| why.contains("ask for a snapshot"))).await?;
    capture.stop().await?;
    // With a snapshot it is read anew.
    let capture = world.start(world.options.clone()).await?;
    world.sink.until("the second", |arrived| ids(arrived).len() == 2).await?;
    capture.stop().await
}

#[tokio::test]
async fn a_database_that_lacks_something_is_said_so() -> Result<()> {
    let world = World::new(&["public.nothing"]).await?;
    let capture = world.start(world.options.clone()).await?;
    capture.until(|stats| stats.trouble.as_ref().is_some_and(|why| why.contains("no table public.nothing"))).await?;
    capture.stop().await
}

#[tokio::test]
async fn a_capture_goes_on_after_its_server_was_killed() -> Result<()> {
    let mut server = PostgresServer::options().fsync(true).start().await?;
    let world = World::at(&server.url("postgres"), &["orders"]).await?;
    let capture = world.start(world.options.clone()).await?;
    capture.streams().await?;
    for id in 1..=3 {
        world.execute(&format!("INSERT INTO orders VALUES ({id}, 'x', NULL)")).await?;
        server.kill9()?;
        server.restart().await?;
        // The pool's connections are dead, too.
        let _ = world.execute("SELECT 1").await;
        let _ = world.execute("SELECT 1").await;
    }
    world.sink.until("all", |arrived| ids(arrived).len() == 3).await?;
    capture.stop().await
}

#[tokio::test]
async fn a_snapshot_of_a_table_that_grows_all_the_time_comes_to_its_end() -> Result<()> {
    let world = World::new(&["orders"]).await?;
    world.execute("INSERT INTO orders SELECT n, 'x', NULL FROM generate_series(1, 25) n").await?;
    let capture = world.start(CaptureOptions { chunk_rows: 10, ..world.options.clone() }).await?;
    let grow = async {
        for number in 26.. {
            world.execute(&format!("INSERT INTO orders VALUES ({number}, 'y', NULL)")).await?;
        }
        anyhow::Ok(())
    };
    let ended = capture.until(|stats| stats.snapshot_rows >= 25 && stats.activity == CaptureActivity::Streaming);
    tokio::select! {
        ended = ended => ended?,
        grown = grow => grown?,
    }
    capture.stop().await
}

#[tokio::test]
async fn a_capture_that_can_not_start_does_not_fill_the_disk_of_its_database() -> Result<()> {
    let world = World::new(&["orders"]).await?;
    let options = CaptureOptions { max_retained_wal: Some(2 << 20), ..world.options.clone() };
    let capture = world.start(options.clone()).await?;
    capture.streams().await?;
    capture.stop().await?;
    // It comes back, and finds that its table is gone.
    world.execute("ALTER TABLE orders RENAME TO orders_of_yesterday").await?;
    let capture = world.start(options).await?;
    capture.until(|stats| stats.trouble.is_some()).await?;
    world.execute("CREATE TABLE noise AS SELECT repeat(md5(n::text), 30) FROM generate_series(1, 5000) AS n").await?;
    let slot = Slot::new(&world.options.slot)?;
    let dropped = async {
        while slot.state(&world.pool).await?.is_some() {
            tokio::task::yield_now().await;
        }
        anyhow::Ok(())
    };
    timeout(DEADLINE, dropped).await.context("the slot is dropped")??;
    capture.stop().await
}

/// Large transactions come while they are open, where there is a spool.
const LITTLE_MEMORY: &str = "DO $$ BEGIN
    EXECUTE format('ALTER DATABASE %I SET logical_decoding_work_mem = ''64kB''', current_database()); END $$";

#[tokio::test]
async fn a_large_transaction_is_published_after_its_commit_whatever_its_spool_can_hold() -> Result<()> {
    for limit in [1 << 30, 200_000] {
        let world = World::new(&["orders"]).await?;
        world.execute(LITTLE_MEMORY).await?;
        let directory = tempfile::tempdir()?;
        let spool = Spool::open(SpoolOptions { directory: directory.path().to_owned(), limit }).await?;
        let options = CaptureOptions { spool: Some(spool.clone()), ..world.options.clone() };
        let capture = world.start(options).await?;
        capture.streams().await?;
        let mut large = world.pool.begin().await?;
        let rows = "INSERT INTO orders SELECT n, 'x', repeat('y', 100) FROM generate_series(1, 3000) n";
        sqlx::query(rows).execute(&mut *large).await?;
        let spooled = async {
            while spool.used() == 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, spooled).await.context("it comes while it is open")?;
        // With little room, the capture gives up the spool by itself.
        world.execute("INSERT INTO orders VALUES (5000, 'small', NULL)").await?;
        world.sink.until("the small one", |arrived| !arrived.is_empty()).await?;
        assert_eq!(world.sink.arrived().len(), 1);
        large.commit().await?;
        world.sink.until("all", |arrived| arrived.len() >= 3001).await?;
        capture.stop().await?;
        let arrived = world.sink.arrived();
        let found: Vec<i64> = arrived.iter().filter_map(|message| value(message)["after"]["id"].as_i64()).collect();
        assert_eq!(found, [5000].into_iter().chain(1..=3000).collect::<Vec<_>>(), "limit {limit}");
    }
    Ok(())
}

#[tokio::test]
async fn a_publication_or_slot_of_another_capture_is_neither_changed_nor_dropped() -> Result<()> {
    let world = World::new(&["orders"]).await?;
    world.execute("CREATE TABLE invoices (id integer PRIMARY KEY)").await?;
    let capture = world.start(world.options.clone()).await?;
    capture.streams().await?;
    let other = CaptureOptions::new(format!("{}_other", world.options.name), &["invoices"])?;
    let shares_publication = CaptureOptions { publication: world.options.publication.clone(), ..other.clone() };
    let shares_slot = CaptureOptions { slot: world.options.slot.clone(), max_retained_wal: Some(1), ..other };
    let database = CapturedDatabase::connect(&world.url).await?;
    for options in [shares_publication, shares_slot] {
        let second = world.start(options.clone()).await?;
        let said = format!("is that of the capture {}", world.options.name);
        let told = |trouble: &String| trouble.contains(&said) || trouble.contains("another process reads");
        second
            .until(|stats| stats.trouble.as_ref().is_some_and(told) || stats.activity == CaptureActivity::StandBy)
            .await?;
        let lacks: Vec<String> = database.check(&options).await?.iter().map(ToString::to_string).collect();
        ensure!(lacks.iter().any(|lack| lack.contains(&said)), "{lacks:?}");
        // It has more WAL than one byte, and is not its own.
        if options.max_retained_wal.is_some() {
            ensure!(matches!(database.protect(&options).await, Err(CaptureError::SlotTaken(_))));
        }
        second.stop().await?;
        database.drop(&options).await?;
    }
    world.execute("INSERT INTO orders VALUES (1, 'x', NULL)").await?;
    world.sink.until("the change", |arrived| ids(arrived).contains(&1)).await?;
    capture.stop().await
}

#[tokio::test]
async fn a_slot_that_is_lost_before_anything_was_published_is_a_gap() -> Result<()> {
    let world = World::new(&["orders"]).await?;
    let options = CaptureOptions { initial_snapshot: false, ..world.options.clone() };
    let capture = world.start(options.clone()).await?;
    capture.streams().await?;
    capture.stop().await?;
    Slot::new(&options.slot)?.drop(&world.pool).await?;
    world.execute("INSERT INTO orders VALUES (1, 'x', NULL)").await?;
    let capture = world.start(options.clone()).await?;
    capture.until(|stats| stats.trouble.as_ref().is_some_and(|why| why.contains("slot is gone"))).await?;
    // An operator asks for the rows; the process dies while it makes the slot.
    CapturedDatabase::connect(&world.url).await?.request_snapshot(&options, &[]).await?;
    capture.stop().await?;
    Slot::new(&options.slot)?.drop(&world.pool).await?;
    world.execute("UPDATE relais_capture SET commit_lsn = '0/0', ordinal = 0").await?;
    let capture = world.start(options).await?;
    world.sink.until("the row", |arrived| ids(arrived).contains(&1)).await?;
    capture.stop().await
}

#[tokio::test]
async fn a_masked_key_is_in_no_id() -> Result<()> {
    let world = World::new(&["people"]).await?;
    world.execute("CREATE TABLE people (mail text PRIMARY KEY); INSERT INTO people VALUES ('ada@example.org')").await?;
    let mut options = world.options.clone();
    options.columns.masks.insert("public.people.mail".to_owned(), Mask::Hash { salt: "pepper".to_owned() });
    let capture = world.start(options).await?;
    world.sink.until("the snapshot", |arrived| arrived.len() == 1).await?;
    world.execute("INSERT INTO people VALUES ('bob@example.org')").await?;
    world.sink.until("the change", |arrived| arrived.len() == 2).await?;
    let told = format!("{:?}", world.sink.arrived());
    ensure!(!told.contains("example.org"), "{told}");
    capture.stop().await
}
