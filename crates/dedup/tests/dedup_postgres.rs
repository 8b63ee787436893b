//! The conformance suites on PostgreSQL; and what is PostgreSQL's own: a process that is killed, plans, purge.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use relais_dedup::{
    ClaimOutcome, ClaimToken, Claiming, Dedup, DedupError, DedupKey, DedupStore, DedupTable, Dialect, Mark, Outcome,
    PostgresDedup, TransactionDedup,
};
use relais_testkit::{
    ServerProcess, TestDatabase,
    dedup_suite::{
        DedupHarness,
        transaction::{Then, TransactionHarness},
    },
};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool, postgres::PgPoolOptions};
use tokio::time::{Instant, sleep};

const DEADLINE: Duration = Duration::from_secs(60);

struct OnPostgres {
    database: TestDatabase,
    pool: PgPool,
    store: Arc<PostgresDedup>,
}

async fn harness() -> Result<OnPostgres> {
    let database = TestDatabase::create().await?;
    let pool = PgPoolOptions::new().max_connections(10).connect(database.url()).await?;
    let store = Arc::new(PostgresDedup::new(pool.clone()));
    store.create().await?;
    Ok(OnPostgres { database, pool, store })
}

async fn advance(pool: &PgPool, time: Duration) -> Result<()> {
    let sql = "UPDATE relais_dedup SET expires_at = expires_at - make_interval(secs => $1)";
    sqlx::query(sql).bind(time.as_secs_f64()).execute(pool).await?;
    Ok(())
}

#[async_trait]
impl DedupHarness for OnPostgres {
    fn store(&self) -> Arc<dyn DedupStore> {
        Arc::<PostgresDedup>::clone(&self.store)
    }

    async fn advance(&self, time: Duration) -> Result<()> {
        advance(&self.pool, time).await
    }
}

relais_testkit::dedup_suite!(harness);

mod in_transaction {
    use super::*;

    struct World {
        pool: PgPool,
        dedup: TransactionDedup,
        _database: TestDatabase,
    }

    async fn world() -> Result<World> {
        let database = TestDatabase::create().await?;
        let pool = PgPoolOptions::new().max_connections(10).connect(database.url()).await?;
        let dedup = TransactionDedup::new("billing")?;
        dedup.create(&mut *pool.acquire().await?).await?;
        sqlx::raw_sql("CREATE TABLE effect (message text)").execute(&pool).await?;
        Ok(World { pool, dedup, _database: database })
    }

    #[async_trait]
    impl TransactionHarness for World {
        async fn deliver(&self, id: &str, then: Then) -> Result<Outcome<(), String>, DedupError> {
            let handler = async |transaction: &mut PgConnection| {
                let effect = sqlx::query("INSERT INTO effect VALUES ($1)").bind(id);
                effect.execute(&mut *transaction).await.map_err(|error| error.to_string())?;
                match then {
                    Then::Succeed => Ok(()),
                    Then::Fail => Err("fails".to_owned()),
                    Then::Panic => panic!("a handler of the suite panics"),
                    Then::Wait(begun, go) => {
                        let _ = begun.send(());
                        go.notified().await;
                        Ok(())
                    }
                    Then::LoseConnection => {
                        let cut = sqlx::query("SELECT pg_terminate_backend(pg_backend_pid())");
                        cut.execute(transaction).await.map(drop).map_err(|error| error.to_string())
                    }
                }
            };
            self.dedup.once(&self.pool, id, handler).await
        }

        async fn effects(&self, id: Option<&str>) -> Result<usize> {
            let sql = "SELECT count(*) FROM effect WHERE message = $1 OR $1 IS NULL";
            Ok(usize::try_from(sqlx::query_scalar::<_, i64>(sql).bind(id).fetch_one(&self.pool).await?)?)
        }

        async fn advance(&self, time: Duration) -> Result<()> {
            advance(&self.pool, time).await
        }

        fn can_lose_connections(&self) -> bool {
            true
        }
    }

    relais_testkit::transaction_dedup_suite!(world);

    #[tokio::test]
    async fn a_mark_in_a_transaction_of_ones_own_is_known_to_claims_and_the_other_way_round() -> Result<()> {
        let world = world().await?;
        let store = Dedup::new(PostgresDedup::new(world.pool.clone())).for_consumer("billing")?;
        let mut transaction = world.pool.begin().await?;
        ensure!(world.dedup.mark(&mut *transaction, "1").await? == Mark::Written);
        ensure!(matches!(store.claim("1").await?, Claiming::Busy { .. }), "the transaction is open");
        ensure!(world.dedup.mark(&mut *transaction, "1").await? == Mark::AlreadyDone, "it was just now");
        transaction.commit().await?;
        ensure!(matches!(store.claim("1").await?, Claiming::AlreadyDone));

        let Claiming::Claimed(claim) = store.claim("2").await? else { anyhow::bail!("it is free") };
        let mut transaction = world.pool.begin().await?;
        ensure!(matches!(world.dedup.mark(&mut *transaction, "2").await?, Mark::Busy { wait } if wait > DEADLINE / 6));
        claim.mark().await?;
        ensure!(world.dedup.mark(&mut *transaction, "2").await? == Mark::AlreadyDone);
        Ok(())
    }
}

/// The address of the database is given by environment to the process that is killed.
const URL: &str = "RELAIS_TEST_DEDUP_URL";

/// What [`a_process_that_is_killed_leaves_a_claim_that_expires`] runs as a process of its own.
#[tokio::test]
async fn the_process_that_is_killed() -> Result<()> {
    let Ok(url) = std::env::var(URL) else { return Ok(()) };
    let dedup = Dedup::new(PostgresDedup::new(PgPool::connect(&url).await?)).for_consumer("billing")?;
    let handler = || async {
        println!("it runs");
        std::future::pending::<Result<(), String>>().await
    };
    dedup.once("order-7", handler).await.map(drop).map_err(anyhow::Error::from)
}

#[tokio::test]
async fn a_process_that_is_killed_leaves_a_claim_that_expires() -> Result<()> {
    let world = harness().await?;
    let arguments = ["--exact", "the_process_that_is_killed", "--nocapture"];
    let mut process = ServerProcess::spawn(std::env::current_exe()?, arguments, [(URL, world.database.url())])?;
    let begin = Instant::now();
    while !process.stdout()?.contains("it runs") {
        ensure!(begin.elapsed() < DEADLINE && process.is_running()?, "it does not run: {}", process.stderr()?);
        sleep(Duration::from_millis(5)).await;
    }
    process.kill9()?;
    let dedup = Dedup::new(world.store()).for_consumer("billing")?;
    let again = || async { Ok::<_, String>(()) };
    let busy = dedup.once("order-7", again).await?;
    ensure!(matches!(busy, Outcome::Busy { wait } if wait <= Duration::from_secs(30)), "{busy:?}");
    advance(&world.pool, Duration::from_secs(30)).await?;
    ensure!(dedup.once("order-7", again).await? == Outcome::Done(()), "it is not lost");
    ensure!(dedup.once("order-7", again).await? == Outcome::AlreadyDone);
    Ok(())
}

#[tokio::test]
async fn what_is_over_is_removed_and_nothing_else() -> Result<()> {
    let world = harness().await?;
    let fill = "INSERT INTO relais_dedup (consumer, id, processed_at, expires_at)
        SELECT 'old', n::text, now(), now() - interval '1 s' FROM generate_series(1, 3500) n
        UNION ALL SELECT 'new', n::text, now(), now() + interval '1 hour' FROM generate_series(1, 500) n";
    sqlx::raw_sql(fill).execute(&world.pool).await?;
    ensure!(world.store.purge(1000).await? == 1000, "by hand, a batch");
    // A claim does the rest beside it.
    let key = DedupKey::new("billing", "7")?;
    world.store.claim(&key, &ClaimToken::generate()?, DEADLINE).await?;
    let (begin, count) = (Instant::now(), "SELECT count(*) FROM relais_dedup WHERE consumer = $1");
    let left = async |consumer: &str| -> Result<i64> {
        Ok(sqlx::query_scalar(count).bind(consumer).fetch_one(&world.pool).await?)
    };
    while left("old").await? > 0 {
        ensure!(begin.elapsed() < DEADLINE, "{} are left", left("old").await?);
        sleep(Duration::from_millis(5)).await;
    }
    ensure!(left("new").await? == 500 && left("billing").await? == 1);
    Ok(())
}

/// How many rows and index entries of the table were read so far. `by` is the connection that reads them, and has to say so.
async fn read(by: &PgPool, watch: &mut PgConnection) -> Result<i64> {
    sqlx::query("SELECT pg_stat_force_next_flush()").execute(by).await?;
    sqlx::query("SELECT 1").execute(by).await?;
    let sql = "SELECT (seq_tup_read + coalesce(idx_tup_fetch, 0)
                       + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'relais_dedup'))::bigint
               FROM pg_stat_user_tables WHERE relname = 'relais_dedup'";
    Ok(sqlx::query_scalar(sql).fetch_one(watch).await?)
}

#[tokio::test]
async fn what_is_read_does_not_grow_with_the_rows_stored() -> Result<()> {
    let database = TestDatabase::create().await?;
    // One connection, which plans while the table is all but empty and known to be, and keeps the plans.
    let pool = PgPoolOptions::new().max_connections(1).connect(database.url()).await?;
    let (store, dedup) = (PostgresDedup::new(pool.clone()), TransactionDedup::new("billing")?);
    store.create().await?;
    sqlx::raw_sql("ANALYZE relais_dedup").execute(&pool).await?;
    let mut watch = PgConnection::connect(database.url()).await?;
    let mut costs = Vec::new();
    for round in ["first", "few", "many"] {
        if round == "many" {
            let fill = "INSERT INTO relais_dedup (consumer, id, processed_at, expires_at)
                SELECT 'billing', 'x' || n, now(), now() + make_interval(secs => n - 1000) FROM generate_series(1, 50000) n";
            sqlx::raw_sql(fill).execute(&mut watch).await?;
        }
        let before = read(&pool, &mut watch).await?;
        for number in 0..10 {
            let (key, token) = (DedupKey::new("billing", &format!("{round}-{number}"))?, ClaimToken::generate()?);
            ensure!(store.claim(&key, &token, DEADLINE).await? == ClaimOutcome::Claimed);
            store.extend(&key, &token, DEADLINE).await?;
            if number % 2 == 0 {
                store.mark(&key, &token, DEADLINE).await?;
                ensure!(store.claim(&key, &token, DEADLINE).await? == ClaimOutcome::AlreadyDone);
            }
            store.release(&key, &token).await?;
            let mut transaction = pool.begin().await?;
            ensure!(dedup.mark(&mut *transaction, &format!("in {round}-{number}")).await? == Mark::Written);
            transaction.commit().await?;
        }
        ensure!(store.purge(10).await? <= 10);
        costs.push(read(&pool, &mut watch).await? - before);
    }
    let [_, few, many] = costs[..] else { anyhow::bail!("three rounds") };
    ensure!(few > 0, "something is counted");
    ensure!(many < few + 100, "{few} rows and entries are read where there are few, {many} where there are many");
    Ok(())
}

#[tokio::test]
async fn the_table_can_be_in_a_schema_and_made_by_hand_or_by_many_at_once() -> Result<()> {
    let database = TestDatabase::create().await?;
    let pool = PgPool::connect(database.url()).await?;
    sqlx::raw_sql("CREATE SCHEMA \"Shop\"").execute(&pool).await?;
    let table = DedupTable::parse("Shop.done_messages")?;
    let stores: Vec<_> = (0..6).map(|_| PostgresDedup::in_table(pool.clone(), table.clone())).collect();
    let made: Vec<_> = stores.iter().cloned().map(|store| tokio::spawn(async move { store.create().await })).collect();
    for made in made {
        made.await??;
    }
    for statement in table.create_statements(Dialect::Postgres) {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&pool).await.context("it can be repeated")?;
    }
    let dedup = TransactionDedup::new("billing")?.in_table(table);
    let handled = async |_: &mut PgConnection| Ok::<_, String>(());
    ensure!(dedup.once(&pool, "1", handled).await? == Outcome::Done(()));
    let claims = Dedup::new(stores[0].clone()).for_consumer("billing")?;
    ensure!(matches!(claims.claim("1").await?, Claiming::AlreadyDone));
    Ok(())
}
