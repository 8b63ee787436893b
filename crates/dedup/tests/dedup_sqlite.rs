//! The conformance suites on SQLite.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use async_trait::async_trait;
use relais_dedup::{Dedup, DedupError, DedupStore, Outcome, SqliteDedup, TransactionDedup};
use relais_testkit::dedup_suite::{
    DedupHarness,
    transaction::{Then, TransactionHarness},
};
use sqlx::{
    SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};
use tempfile::TempDir;

struct OnSqlite {
    pool: SqlitePool,
    store: Arc<SqliteDedup>,
    _folder: TempDir,
}

async fn open(folder: &TempDir, busy: Duration) -> Result<SqlitePool> {
    let options = SqliteConnectOptions::new().filename(folder.path().join("test.db")).create_if_missing(true);
    let options = options.journal_mode(SqliteJournalMode::Wal).busy_timeout(busy);
    Ok(SqlitePoolOptions::new().max_connections(4).connect_with(options).await?)
}

async fn harness() -> Result<OnSqlite> {
    let folder = tempfile::tempdir()?;
    let pool = open(&folder, Duration::from_secs(30)).await?;
    let store = Arc::new(SqliteDedup::new(pool.clone()));
    store.create().await?;
    store.create().await?;
    Ok(OnSqlite { pool, store, _folder: folder })
}

async fn advance(pool: &SqlitePool, time: Duration) -> Result<()> {
    let sql =
        "UPDATE relais_dedup SET expires_at = strftime('%Y-%m-%dT%H:%M:%fZ', expires_at, '-' || ?1 || ' seconds')";
    sqlx::query(sql).bind(time.as_secs_f64()).execute(pool).await?;
    Ok(())
}

#[async_trait]
impl DedupHarness for OnSqlite {
    fn store(&self) -> Arc<dyn DedupStore> {
        Arc::<SqliteDedup>::clone(&self.store)
    }

    async fn advance(&self, time: Duration) -> Result<()> {
        advance(&self.pool, time).await
    }
}

relais_testkit::dedup_suite!(harness);

mod in_transaction {
    use super::*;

    struct World {
        pool: SqlitePool,
        dedup: TransactionDedup,
        _folder: TempDir,
    }

    async fn world() -> Result<World> {
        let folder = tempfile::tempdir()?;
        // A second transaction waits for so long, and is then told that the message is busy.
        let pool = open(&folder, Duration::from_millis(300)).await?;
        let dedup = TransactionDedup::new("billing")?;
        dedup.create(&mut *pool.acquire().await?).await?;
        sqlx::raw_sql("CREATE TABLE effect (message text)").execute(&pool).await?;
        Ok(World { pool, dedup, _folder: folder })
    }

    #[async_trait]
    impl TransactionHarness for World {
        async fn deliver(&self, id: &str, then: Then) -> Result<Outcome<(), String>, DedupError> {
            let handler = async |transaction: &mut SqliteConnection| {
                let effect = sqlx::query("INSERT INTO effect VALUES (?1)").bind(id);
                effect.execute(transaction).await.map_err(|error| error.to_string())?;
                match then {
                    Then::Succeed => Ok(()),
                    Then::Fail | Then::LoseConnection => Err("fails".to_owned()),
                    Then::Panic => panic!("a handler of the suite panics"),
                    Then::Wait(begun, go) => {
                        let _ = begun.send(());
                        go.notified().await;
                        Ok(())
                    }
                }
            };
            self.dedup.once(&self.pool, id, handler).await
        }

        async fn effects(&self, id: Option<&str>) -> Result<usize> {
            let sql = "SELECT count(*) FROM effect WHERE message = ?1 OR ?1 IS NULL";
            Ok(usize::try_from(sqlx::query_scalar::<_, i64>(sql).bind(id).fetch_one(&self.pool).await?)?)
        }

        async fn advance(&self, time: Duration) -> Result<()> {
            advance(&self.pool, time).await
        }

        fn can_lose_connections(&self) -> bool {
            false
        }
    }

    relais_testkit::transaction_dedup_suite!(world);
}

#[tokio::test]
async fn what_is_over_is_removed_and_nothing_else() -> Result<()> {
    let world = harness().await?;
    let dedup = Dedup::new(world.store()).for_consumer("billing")?;
    let handler = || async { Ok::<_, String>(()) };
    for number in 0..25 {
        ensure!(dedup.once(&format!("old-{number}"), handler).await? == Outcome::Done(()));
    }
    advance(&world.pool, Duration::from_secs(24 * 3600)).await?;
    ensure!(dedup.once("new", handler).await? == Outcome::Done(()));
    ensure!(world.store.purge(10).await? == 10);
    ensure!(world.store.purge(1000).await? == 15);
    ensure!(dedup.once("new", handler).await? == Outcome::AlreadyDone);
    Ok(())
}
