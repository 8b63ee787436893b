//! Bills for orders in an SQLite file, one for each: `cargo run -p relais-dedup --features sqlite --example bill`.
//!
//! Each order is delivered three times. The first delivery of one fails after it has written its bill.

use std::time::Duration;

use relais_dedup::{Outcome, TransactionDedup};
use sqlx::{SqliteConnection, sqlite::SqliteConnectOptions, sqlite::SqlitePoolOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let options = SqliteConnectOptions::new().filename(folder.path().join("shop.db")).create_if_missing(true);
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await?;
    sqlx::query("CREATE TABLE bill (order_id TEXT)").execute(&pool).await?;

    let dedup = TransactionDedup::new("billing")?;
    dedup.create(&mut *pool.acquire().await?).await?;
    // The last retry comes 17 hours after the first delivery: the mark is still there.
    dedup.check(Duration::from_secs(17 * 3600))?;

    for delivery in 1..=3 {
        for order in ["order-7", "order-8"] {
            let handler = async |transaction: &mut SqliteConnection| {
                sqlx::query("INSERT INTO bill VALUES (?1)").bind(order).execute(transaction).await?;
                // What was written is rolled back, and so is the mark.
                if (delivery, order) == (1, "order-8") { Err(sqlx::Error::WorkerCrashed) } else { Ok(()) }
            };
            let said = match dedup.once(&pool, order, handler).await? {
                Outcome::Done(()) => "billed",
                Outcome::AlreadyDone => "was billed before",
                Outcome::Busy { .. } => "is being billed by somebody else",
                Outcome::Failed(_) => "was not billed, and can be tried again",
            };
            show(&format!("delivery {delivery} of {order}: {said}"));
        }
    }
    let bills: i64 = sqlx::query_scalar("SELECT count(*) FROM bill").fetch_one(&pool).await?;
    show(&format!("{bills} bills"));
    Ok(())
}

#[expect(clippy::print_stdout, reason = "it is what the example shows")]
fn show(line: &str) {
    println!("{line}");
}
