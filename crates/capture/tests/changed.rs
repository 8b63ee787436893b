//! What becomes of a capture when what it is to do changes, and when what it has on the server is gone.

mod running;

use anyhow::{Context as _, Result, ensure};
use relais_capture::{CaptureOptions, CapturedDatabase, Publication, Slot};
use relais_message::RoutedMessage;
use running::{DEADLINE, World, ids, value};
use tokio::time::timeout;

/// Orders, and customers whose mail is masked.
async fn world() -> Result<(World, CaptureOptions, CaptureOptions)> {
    let world = World::new(&["orders", "customers"]).await?;
    world.execute("CREATE TABLE customers (id integer PRIMARY KEY, mail text)").await?;
    let mask = relais_capture::Mask::Text("***".to_owned());
    let mut both = CaptureOptions { initial_snapshot: false, ..world.options.clone() };
    both.columns.masks.insert("public.customers.mail".to_owned(), mask);
    // Whoever removes a table removes its masks with it.
    let without = CaptureOptions {
        tables: vec![("public".to_owned(), "orders".to_owned())],
        columns: relais_capture::ColumnRules::default(),
        ..both.clone()
    };
    Ok((world, both, without))
}

async fn published_tables(world: &World) -> Result<Vec<String>> {
    let sql = "SELECT tablename::text FROM pg_publication_tables WHERE pubname = $1 ORDER BY tablename";
    Ok(sqlx::query_scalar(sql).bind(&world.options.publication).fetch_all(&world.pool).await?)
}

#[tokio::test]
async fn a_removed_table_is_published_no_more_and_never_in_clear() -> Result<()> {
    let (world, both, without) = world().await?;
    let capture = world.start(both.clone()).await?;
    capture.streams().await?;
    world.execute("INSERT INTO customers VALUES (100, 'secret')").await?;
    world.sink.until("the customer", |arrived| ids(arrived).contains(&100)).await?;
    capture.stop().await?;
    // In the log before the table was removed, and asked for before it was.
    world.execute("INSERT INTO customers VALUES (101, 'secret'); INSERT INTO orders VALUES (1, 'x', NULL)").await?;
    let database = CapturedDatabase::connect(&world.url).await?;
    ensure!(database.request_snapshot(&both, &["public.customers".to_owned()]).await?);
    let capture = world.start(without.clone()).await?;
    world.sink.until("the order", |arrived| ids(arrived).contains(&1)).await?;
    ensure!(published_tables(&world).await? == ["orders"], "the server does not send it any more");
    // Asked for by somebody who does not know that it was removed.
    let asked = ["public.customers".to_owned(), "public.orders".to_owned()];
    ensure!(database.request_snapshot(&both, &asked).await?);
    world.execute("INSERT INTO customers VALUES (102, 'secret')").await?;
    let is_read = |message: &RoutedMessage| value(message)["op"] == "r" && value(message)["after"]["id"] == 1;
    world.sink.until("the order, once more", |arrived| arrived.iter().any(is_read)).await?;
    let emptied = async {
        while !database.progress(&without).await?.context("progress")?.snapshot.is_empty() {
            tokio::task::yield_now().await;
        }
        anyhow::Ok(())
    };
    timeout(DEADLINE, emptied).await.context("nothing is left to be read")??;
    capture.stop().await?;
    let arrived = world.sink.arrived();
    let said: Vec<String> = arrived.iter().map(|message| value(message).to_string()).collect();
    ensure!(!said.iter().any(|text| text.contains("secret")), "{said:#?}");
    let customers = arrived.iter().filter(|message| message.destination.ends_with("customers")).count();
    ensure!(customers == 1, "{said:#?}");
    Ok(())
}

#[tokio::test]
async fn a_process_that_stands_by_leaves_the_publication_as_it_is() -> Result<()> {
    let (world, both, without) = world().await?;
    let newer = world.start(both).await?;
    newer.streams().await?;
    // Still with the declaration of before.
    let older = world.start_at(&format!("{}?application_name=older", world.url), without).await?;
    let looked = async {
        let sql = "SELECT max(extract(epoch FROM query_start))::float8 FROM pg_stat_activity
                   WHERE datname = current_database() AND application_name = 'older'
                         AND query LIKE '%pg_replication_slots%'";
        let mut first = None;
        loop {
            let last: Option<f64> = sqlx::query_scalar(sql).fetch_one(&world.pool).await?;
            // Once more, some time after all that it did when it looked first.
            match (first, last) {
                (Some(first), Some(last)) if last > first + 0.4 => return anyhow::Ok(()),
                _ => first = first.or(last),
            }
        }
    };
    timeout(DEADLINE, looked).await.context("it looks whether the slot is free")??;
    ensure!(published_tables(&world).await? == ["customers", "orders"], "it was set back");
    world.execute("INSERT INTO customers VALUES (100, 'secret')").await?;
    world.sink.until("the customer", |arrived| ids(arrived).contains(&100)).await?;
    older.stop().await?;
    newer.stop().await
}

#[tokio::test]
async fn a_drop_that_was_interrupted_can_be_repeated() -> Result<()> {
    let (world, both, _) = world().await?;
    let database = CapturedDatabase::connect(&world.url).await?;
    // Before anything was made, after each step, and once more.
    database.drop(&both).await?;
    for steps in 0..=3 {
        let capture = world.start(both.clone()).await?;
        capture.streams().await?;
        world.execute(&format!("INSERT INTO orders VALUES ({steps}, 'x', NULL)")).await?;
        world.sink.until("a row", |arrived| ids(arrived).contains(&steps)).await?;
        capture.stop().await?;
        if steps > 0 {
            database.drop_slot(&both).await?;
        }
        if steps > 1 {
            world.execute("DELETE FROM relais_capture").await?;
        }
        if steps > 2 {
            Publication::drop(&both.publication, &format!("capture {}", both.name), &world.pool).await?;
        }
        for _ in 0..2 {
            database.drop(&both).await?;
            ensure!(database.slot(&both).await?.is_none() && database.progress(&both).await?.is_none(), "{steps}");
            ensure!(published_tables(&world).await?.is_empty(), "{steps}");
        }
    }
    // Also of one that is read.
    let capture = world.start(both.clone()).await?;
    capture.streams().await?;
    database.drop(&both).await?;
    capture.task.abort();
    Ok(())
}

#[tokio::test]
async fn a_gap_ends_with_the_snapshot_that_was_asked_for() -> Result<()> {
    let (world, both, _) = world().await?;
    let capture = world.start(both.clone()).await?;
    capture.streams().await?;
    world.execute("INSERT INTO orders VALUES (1, 'x', NULL)").await?;
    world.sink.until("the first", |arrived| ids(arrived).contains(&1)).await?;
    // While it runs: whoever reads it is sent away.
    Slot::new(&both.slot)?.drop(&world.pool).await?;
    world.execute("INSERT INTO orders VALUES (2, 'lost from the log', NULL)").await?;
    capture.until(|stats| stats.trouble.as_ref().is_some_and(|why| why.contains("ask for a snapshot"))).await?;
    let database = CapturedDatabase::connect(&world.url).await?;
    ensure!(database.slot(&both).await?.is_none(), "no slot is made in silence");
    ensure!(database.request_snapshot(&both, &["public.orders".to_owned()]).await?);
    world.sink.until("what was lost", |arrived| ids(arrived).contains(&2)).await?;
    capture.until(|stats| stats.trouble.is_none()).await?;
    world.execute("INSERT INTO orders VALUES (3, 'x', NULL)").await?;
    world.sink.until("what comes after", |arrived| ids(arrived).contains(&3)).await?;
    capture.stop().await?;
    // Over for good: the next start has nothing to say.
    let capture = world.start(both.clone()).await?;
    capture.streams().await?;
    capture.stop().await
}
