//! Committed changes, resuming, errors, and what is checked beforehand.

use anyhow::{Context as _, Result, ensure};
use relais_capture::{
    Address, CaptureError, ChangeStream, Operation, Slot, StreamEvent, StreamOptions, StreamPosition, Wanted, check,
};
use relais_testkit::{PostgresServer, TcpProxy};
use sqlx::{Connection as _, PgConnection, PgPool};
use tokio::time::timeout;

use crate::{DEADLINE, World, changes, show, text, until_nobody_reads};

#[tokio::test]
async fn committed_changes_come_in_the_order_of_commits_and_no_others() -> Result<()> {
    let world = World::with_slot().await?;
    let mut first = PgConnection::connect(world.database.url()).await?;
    let mut rolled_back = PgConnection::connect(world.database.url()).await?;
    sqlx::raw_sql("BEGIN; INSERT INTO orders VALUES (1, 'early', NULL)").execute(&mut first).await?;
    sqlx::raw_sql("BEGIN; INSERT INTO orders VALUES (9, 'never', NULL); ROLLBACK").execute(&mut rolled_back).await?;
    world.execute("INSERT INTO orders VALUES (2, 'late', 'x')").await?;
    sqlx::raw_sql("COMMIT").execute(&mut first).await?;
    world.execute("UPDATE orders SET state = 'paid' WHERE id = 2; UPDATE orders SET id = 3 WHERE id = 2").await?;
    world.execute("DELETE FROM orders WHERE id = 1; INSERT INTO other VALUES (1); TRUNCATE orders").await?;
    let mut stream = world.stream(world.options()).await?;
    let (found, _) = changes(&mut stream, 6).await?;
    let shown: Vec<String> = found.iter().map(show).collect();
    let expected = ["c 2,late,x", "c 1,early,NULL", "u 2,paid,x", "u 2,NULL,NULL -> 3,paid,x", "d 1,NULL,NULL", "t"];
    assert_eq!(shown, expected);
    assert!(found.is_sorted_by(|a, b| a.position < b.position));
    assert_eq!((found[0].relation.schema.as_str(), found[0].relation.name.as_str()), ("public", "orders"));
    stream.stop().await;
    world.end().await
}

#[tokio::test]
async fn a_stream_resumes_in_the_middle_of_a_transaction() -> Result<()> {
    let world = World::with_slot().await?;
    world.execute("INSERT INTO orders SELECT n, 'one statement', NULL FROM generate_series(1, 10) n").await?;
    world.execute("INSERT INTO orders VALUES (11, 'next', NULL)").await?;
    let mut stream = world.stream(StreamOptions { batch_rows: 3, ..world.options() }).await?;
    let (found, _) = changes(&mut stream, 4).await?;
    let resume = Some(found[3].position);
    assert_eq!(found[3].position.ordinal, 4);
    // As a crash would end it: nothing was confirmed.
    drop(stream);
    until_nobody_reads(&world).await?;
    let mut stream = world.stream(StreamOptions { resume, ..world.options() }).await?;
    let (found, confirm) = changes(&mut stream, 7).await?;
    let ids: Vec<&str> = found
        .iter()
        .map(|change| match &change.operation {
            Operation::Insert { after } => text(&after[0]),
            _ => "",
        })
        .collect();
    assert_eq!(ids, ["5", "6", "7", "8", "9", "10", "11"]);
    // Confirmed at a stop: the next one has nothing to repeat.
    let (commit, mut confirm) = (found[6].transaction.commit_lsn, confirm);
    while confirm < Some(commit) {
        confirm = confirm.max(timeout(DEADLINE, stream.next()).await.context("the end comes")??.confirm);
    }
    stream.confirm(confirm.context("a transaction ended")?);
    stream.stop().await;
    until_nobody_reads(&world).await?;
    world.execute("INSERT INTO orders VALUES (12, 'new', NULL)").await?;
    let mut stream = world.stream(world.options()).await?;
    let (found, _) = changes(&mut stream, 1).await?;
    assert_eq!(show(&found[0]), "c 12,new,NULL");
    world.end().await
}

#[tokio::test]
async fn a_slot_of_quiet_tables_goes_on_with_the_log() -> Result<()> {
    let world = World::with_slot().await?;
    let before = world.slot.state(&world.pool).await?.context("the slot")?;
    let mut stream = world.stream(world.options()).await?;
    world.execute("INSERT INTO other SELECT generate_series(1, 1000)").await?;
    let end: String = sqlx::query_scalar("SELECT pg_current_wal_lsn()::text").fetch_one(&world.pool).await?;
    let end = relais_capture::parse_lsn(&end).context("an LSN")?;
    let advancing = async {
        loop {
            let batch = stream.next().await?;
            ensure!(batch.events.is_empty(), "nobody asked for that table");
            stream.confirm(batch.confirm.context("something to confirm")?);
            if batch.confirm >= Some(end) {
                return Ok(());
            }
        }
    };
    timeout(DEADLINE, advancing).await.context("the server says where it is")??;
    stream.stop().await;
    let after = world.slot.state(&world.pool).await?.context("the slot")?;
    assert!(after.confirmed_lsn >= end && after.confirmed_lsn > before.confirmed_lsn, "{before:?} {after:?}");
    world.end().await
}

#[tokio::test]
async fn unchanged_large_values_and_changed_columns_are_told() -> Result<()> {
    let world = World::with_slot().await?;
    world.execute("ALTER TABLE orders ALTER note SET STORAGE EXTERNAL").await?;
    world.execute("INSERT INTO orders VALUES (1, 'new', repeat('x', 100000))").await?;
    world.execute("UPDATE orders SET state = 'paid'").await?;
    world.execute("ALTER TABLE orders ADD COLUMN total numeric(8, 2), DROP COLUMN note").await?;
    world.execute("UPDATE orders SET total = 12.50").await?;
    let mut stream = world.stream(world.options()).await?;
    let (found, _) = changes(&mut stream, 3).await?;
    assert_eq!(show(&found[1]), "u 1,paid,UNCHANGED");
    assert_eq!(show(&found[2]), "u 1,paid,12.50");
    let columns: Vec<&str> = found[2].relation.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(columns, ["id", "state", "total"]);
    assert_eq!(found[1].relation.columns.len(), 3);
    drop(stream);
    until_nobody_reads(&world).await?;
    world.end().await
}

#[tokio::test]
async fn a_message_outside_of_transactions_has_a_place_before_the_commit_that_follows_it() -> Result<()> {
    let world = World::with_slot().await?;
    let options = StreamOptions { messages: true, ..world.options() };
    let message = "SELECT pg_logical_emit_message(false, 'shop', 'hello')";
    world.execute(&format!("BEGIN; INSERT INTO orders VALUES (1, 'new', NULL); {message}; COMMIT")).await?;
    let mut stream = world.stream(options.clone()).await?;
    let mut events = Vec::new();
    while events.len() < 2 {
        events.extend(timeout(DEADLINE, stream.next()).await.context("events come")??.events);
    }
    let [StreamEvent::Message(message), StreamEvent::Change(change)] = &events[..] else {
        anyhow::bail!("{events:?}");
    };
    assert_eq!(message.position.commit_lsn, change.position.commit_lsn, "the commit is the record after the message");
    assert!(message.position < change.position, "{:?} {:?}", message.position, change.position);
    // Whoever has seen the message only must not miss the change.
    drop(stream);
    until_nobody_reads(&world).await?;
    let mut stream = world.stream(StreamOptions { resume: Some(message.position), ..options }).await?;
    let (found, _) = changes(&mut stream, 1).await?;
    assert_eq!(show(&found[0]), "c 1,new,NULL");
    drop(stream);
    until_nobody_reads(&world).await?;
    world.end().await
}

#[tokio::test]
async fn errors_tell_a_slot_in_use_from_one_that_is_gone() -> Result<()> {
    let world = World::with_slot().await?;
    let mut stream = world.stream(world.options()).await?;
    let second = ChangeStream::start(&world.address()?, world.options()).await.expect_err("the slot is in use");
    assert!(second.is_in_use() && second.is_passing() && !second.is_gap(), "{second:?}");
    stream.stop().await;
    world.slot.drop(&world.pool).await?;
    let gone = ChangeStream::start(&world.address()?, world.options()).await.expect_err("there is no slot");
    assert!(gone.is_gap() && !gone.is_passing(), "{gone:?}");
    assert_eq!(world.slot.state(&world.pool).await?, None);
    world.end().await
}

#[tokio::test]
async fn a_lost_connection_is_an_end_that_passes() -> Result<()> {
    let world = World::with_slot().await?;
    let address = world.address()?;
    let target = address.to_string().parse()?;
    let proxy = TcpProxy::start(target).await?;
    let url = world.database.url().replace(&address.to_string(), &proxy.addr().to_string());
    let mut stream = ChangeStream::start(&Address::parse(&url)?, world.options()).await?;
    world.execute("INSERT INTO orders VALUES (1, 'new', NULL)").await?;
    let (found, _) = changes(&mut stream, 1).await?;
    assert_eq!(show(&found[0]), "c 1,new,NULL");
    proxy.cut().await?;
    let ended = timeout(DEADLINE, async {
        loop {
            if let Err(error) = stream.next().await {
                return error;
            }
        }
    });
    let ended = ended.await.context("the end is noticed")?;
    assert!(matches!(ended, CaptureError::Connection { .. }) && ended.is_passing(), "{ended:?}");
    until_nobody_reads(&world).await?;
    world.end().await
}

#[tokio::test]
async fn a_transaction_larger_than_all_batches_comes_whole() -> Result<()> {
    const ROWS: i32 = 20_000;
    let world = World::with_slot().await?;
    world
        .execute(&format!("INSERT INTO orders SELECT n, repeat('y', 500), NULL FROM generate_series(1, {ROWS}) n"))
        .await?;
    let mut stream = world.stream(StreamOptions { batch_bytes: 100_000, ..world.options() }).await?;
    let mut next = 1;
    while next <= ROWS {
        let batch = timeout(DEADLINE, stream.next()).await.context("changes come")??;
        assert!(batch.events.len() <= 300, "{} changes at once", batch.events.len());
        let commit = batch.events.first().and_then(commit_lsn);
        for event in batch.events {
            let StreamEvent::Change(change) = event else { continue };
            assert_eq!(change.position.ordinal, u64::try_from(next)?);
            next += 1;
        }
        // Nothing of the transaction may be confirmed before its end.
        assert!(next > ROWS || batch.confirm.is_none_or(|lsn| commit.is_none_or(|commit| lsn < commit)));
    }
    drop(stream);
    until_nobody_reads(&world).await?;
    world.end().await
}

fn commit_lsn(event: &StreamEvent) -> Option<u64> {
    match event {
        StreamEvent::Change(change) => Some(change.transaction.commit_lsn),
        StreamEvent::Message(_) => None,
    }
}

#[tokio::test]
async fn what_a_database_lacks_is_said_before_anything_is_changed() -> Result<()> {
    let world = World::new().await?;
    let user = format!("poor_{}", world.slot.name());
    world.execute(&format!("CREATE ROLE {user} LOGIN; CREATE TABLE keyless (n integer)")).await?;
    let pool = PgPool::connect(&world.database.url().replace("postgres@", &format!("{user}@"))).await?;
    let tables = ["keyless", "missing"].map(|name| ("public".to_owned(), name.to_owned())).to_vec();
    let wanted = Wanted {
        tables,
        changes: true,
        slot: "none".to_owned(),
        publication: "none".to_owned(),
        owner: "test".to_owned(),
    };
    let said: Vec<String> = check(&pool, &wanted).await?.iter().map(ToString::to_string).collect();
    for part in ["may not replicate", "may not create a publication", "may not read public.keyless", "does not own"] {
        assert!(said.iter().any(|lack| lack.contains(part)), "{part}: {said:#?}");
    }
    for part in ["no replica identity", "no table public.missing", "max_slot_wal_keep_size"] {
        assert!(said.iter().any(|lack| lack.contains(part)), "{part}: {said:#?}");
    }
    pool.close().await;
    world.execute(&format!("DROP OWNED BY {user}; DROP ROLE {user}")).await?;
    let tables = vec![("public".to_owned(), "orders".to_owned())];
    let wanted = Wanted {
        tables,
        changes: false,
        slot: "none".to_owned(),
        publication: "none".to_owned(),
        owner: "test".to_owned(),
    };
    let lacks = check(&world.pool, &wanted).await?;
    assert!(lacks.iter().all(|lack| lack.only_a_warning), "{lacks:?}");
    // A publication that somebody made for something else.
    let narrow = format!("narrow_{}", world.slot.name());
    world.execute(&format!("CREATE PUBLICATION {narrow} FOR TABLE orders WHERE (false)")).await?;
    let said = check(&world.pool, &Wanted { publication: narrow, ..wanted }).await?;
    assert!(said.iter().any(|lack| lack.to_string().contains("only some rows or columns")), "{said:?}");
    world.end().await
}

#[tokio::test]
async fn a_server_without_logical_log_is_told_apart() -> Result<()> {
    let server = PostgresServer::options().set("wal_level", "replica").start().await?;
    let pool = PgPool::connect(&server.url("postgres")).await?;
    let lacks = check(&pool, &Wanted::default()).await?;
    assert!(lacks.iter().any(|lack| lack.to_string().contains("wal_level is replica")), "{lacks:?}");
    let address = Address::parse(&server.url("postgres"))?;
    let refused = Slot::new("shop")?.create(&address).await.expect_err("no slot without a logical log");
    assert!(matches!(refused, CaptureError::Server { .. }), "{refused:?}");
    Ok(())
}

#[test]
fn positions_are_ordered_by_commit_first() {
    let at = |commit_lsn, ordinal| StreamPosition { commit_lsn, ordinal };
    assert!(at(1, 9) < at(2, 1) && at(2, 1) < at(2, 2));
}
