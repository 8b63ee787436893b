//! How much memory a transaction takes that waits in a spool. Alone in its process, so that only this is measured.

use std::time::Duration;

use anyhow::{Context as _, Result};
use relais_capture::{Address, ChangeStream, Publication, Slot, Spool, SpoolOptions, StreamEvent, StreamOptions};
use relais_testkit::TestDatabase;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};
use tokio::time::timeout;

/// For whatever should happen, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

const ROWS: usize = 300_000;

/// Of the 100 MB that the transaction has.
const MOST: u64 = 32 * 1024 * 1024;

#[tokio::test]
async fn a_transaction_of_300_000_rows_is_never_in_memory() -> Result<()> {
    let database = TestDatabase::create().await?;
    let pool = PgPool::connect(database.url()).await?;
    let name = database.name();
    let setup = format!(
        "CREATE TABLE orders (id integer PRIMARY KEY, note text);
         ALTER DATABASE \"{name}\" SET logical_decoding_work_mem = '1MB'"
    );
    sqlx::raw_sql(AssertSqlSafe(setup)).execute(&pool).await?;
    let tables = vec![("public".to_owned(), "orders".to_owned())];
    Publication { name: "shop".to_owned(), tables, operations: "insert".to_owned(), owner: "test".to_owned() }
        .ensure(&pool)
        .await?;
    let (slot, address) = (Slot::new("spool_memory")?, Address::parse(database.url())?);
    slot.create(&address).await?;
    let directory = tempfile::tempdir()?;
    let spool = Spool::open(SpoolOptions { directory: directory.path().to_owned(), limit: 1 << 30 }).await?;
    let options = StreamOptions {
        batch_bytes: 1024 * 1024,
        spool: Some(spool.clone()),
        ..StreamOptions::new(slot.name(), "shop")
    };
    let mut stream = ChangeStream::start(&address, options).await?;
    let mut writer = PgConnection::connect(database.url()).await?;
    let before = peak()?;
    let insert = format!("BEGIN; INSERT INTO orders SELECT n, repeat('x', 300) FROM generate_series(1, {ROWS}) n");
    sqlx::raw_sql(AssertSqlSafe(insert)).execute(&mut writer).await?;
    let spooled = async {
        // Nearly all of it comes before the commit.
        while spool.used() < 95_000_000 {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, spooled).await.with_context(|| format!("only {} bytes came", spool.used()))?;
    sqlx::raw_sql("COMMIT").execute(&mut writer).await?;
    let mut next = 1;
    while next <= ROWS {
        let batch = timeout(DEADLINE, stream.next()).await.context("changes come")??;
        for event in batch.events {
            let StreamEvent::Change(change) = event else { continue };
            assert_eq!(change.position.ordinal, u64::try_from(next)?);
            next += 1;
        }
    }
    let grown = peak()? - before;
    println!("{grown} bytes of memory for {ROWS} rows");
    assert!(grown < MOST, "{grown} bytes");
    stream.stop().await;
    slot.drop(&pool).await?;
    Ok(())
}

/// The most memory that this process ever had, in bytes.
fn peak() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1024)
}
