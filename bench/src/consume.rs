//! What it costs to consume: deduplication beside what it stands on. The mark in the handler's transaction beside that transaction
//! alone, claims in Redis beside bare `SET NX`; and a Bloom filter with as many ids as it was made for.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use relais_dedup::{
    BloomOptions, Dedup, DedupKey, MemoryBloom, Outcome, PostgresDedup, RedisDedup, SeenFilter as _, TransactionDedup,
};
use relais_testkit::RedisServer;
use sqlx::{PgConnection, PgPool, postgres::PgPoolOptions};

use crate::{
    Plan,
    report::Section,
    sample::{Sample, ms, number},
    world::{create_database, postgres},
};

/// So many messages are consumed at the same time.
const AT_ONCE: [usize; 2] = [1, 16];

/// Runs it.
pub async fn run(plan: &Plan) -> Result<Section> {
    let header = ["what", "at once", "messages/s", "p50 ms", "p99 ms"];
    let mut section = Section::new("consume", "deduplication beside what it stands on", &header);
    in_transactions(plan, &mut section).await?;
    in_redis(plan, &mut section).await?;
    in_a_filter(plan, &mut section).await?;
    Ok(section)
}

/// Each of so many consumers calls this with a number of its own, time and again.
async fn consume<F, W>(at_once: usize, time: Duration, work: W) -> Result<Sample>
where
    F: Future<Output = Result<()>>,
    W: Fn(u64) -> F,
{
    let (begin, next) = (Instant::now(), AtomicU64::new(0));
    let consumers = (0..at_once).map(|_| async {
        let mut latencies = Vec::new();
        while begin.elapsed() < time {
            let sent = Instant::now();
            work(next.fetch_add(1, Ordering::Relaxed)).await?;
            latencies.push(sent.elapsed());
        }
        anyhow::Ok(latencies)
    });
    let latencies = try_join_all(consumers).await?.concat();
    Ok(Sample::new(latencies.len(), begin.elapsed(), latencies))
}

fn row(section: &mut Section, what: &str, at_once: usize, sample: &Sample) {
    let (p50, p99) = (ms(sample.percentile(0.5)), ms(sample.percentile(0.99)));
    section.row([what.to_owned(), at_once.to_string(), number(sample.rate), p50, p99]);
}

/// The handler: one row, as a service would write it.
async fn bill(connection: &mut PgConnection, message: &str) -> Result<()> {
    let insert = sqlx::query("INSERT INTO bill (message, amount) VALUES ($1, $2)").bind(message).bind(42_i64);
    insert.execute(connection).await?;
    Ok(())
}

async fn in_transactions(plan: &Plan, section: &mut Section) -> Result<()> {
    let (server, _) = postgres(plan).await?;
    let pool = PgPoolOptions::new().max_connections(20).test_before_acquire(false);
    let pool: PgPool = pool.connect(&create_database(&server, "consumed").await?).await?;
    sqlx::raw_sql("CREATE TABLE bill (id bigserial PRIMARY KEY, message text, amount bigint)").execute(&pool).await?;
    let dedup = TransactionDedup::new("billing")?;
    dedup.create(&mut *pool.acquire().await?).await?;
    let fill = "INSERT INTO relais_dedup (consumer, id, processed_at, expires_at)
        SELECT 'billing', gen_random_uuid()::text, now(), now() + interval '1 day' FROM generate_series(1, $1)";
    sqlx::query(fill).bind(i64::try_from(plan.finished)?).execute(&pool).await?;
    for statement in ["VACUUM ANALYZE relais_dedup", "CHECKPOINT"] {
        sqlx::raw_sql(statement).execute(&pool).await?;
    }
    let claims = Dedup::new(PostgresDedup::new(pool.clone())).for_consumer("claiming")?;

    for at_once in AT_ONCE {
        let (mut alone, mut marked, mut claimed) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=plan.rounds {
            let bare = async |message: u64| {
                let mut transaction = pool.begin().await?;
                bill(&mut transaction, &format!("{message}")).await?;
                Ok(transaction.commit().await?)
            };
            let in_transaction = async |message: u64| {
                let id = format!("order-{at_once}-{round}-{message}");
                let handler = async |transaction: &mut PgConnection| bill(transaction, &id).await;
                let outcome = dedup.once(&pool, &id, handler).await?;
                ensure!(matches!(outcome, Outcome::Done(())), "{outcome:?}");
                Ok(())
            };
            let by_claim = async |message: u64| {
                let id = format!("order-{at_once}-{round}-{message}");
                let outcome = claims.once(&id, || bare(message)).await?;
                ensure!(matches!(outcome, Outcome::Done(())), "{outcome:?}");
                Ok(())
            };
            let measured = (
                consume(at_once, plan.time, bare).await?,
                consume(at_once, plan.time, in_transaction).await?,
                consume(at_once, plan.time, by_claim).await?,
            );
            if round > 0 {
                alone.push(measured.0);
                marked.push(measured.1);
                claimed.push(measured.2);
            }
        }
        let (alone, marked, claimed) = (Sample::median(alone), Sample::median(marked), Sample::median(claimed));
        row(section, "PostgreSQL: the handler's transaction alone", at_once, &alone);
        row(section, "… with the mark in it", at_once, &marked);
        row(section, "… between a claim and a mark", at_once, &claimed);
        let what = format!("the time of the handler's transaction, with the mark in it, {at_once} at once");
        section.below(&what, alone.rate / marked.rate, 1.5, " ×");
    }
    section.note(format!("The table of marks had {} rows before.", number(plan.finished as f64)));
    Ok(())
}

async fn in_redis(plan: &Plan, section: &mut Section) -> Result<()> {
    let server = RedisServer::start_with(&["--save", ""]).await?;
    let connection = redis::Client::open(server.url())?.get_connection_manager().await?;
    let dedup = Dedup::new(RedisDedup::new(connection.clone()));
    for at_once in AT_ONCE {
        let (mut sets, mut pairs, mut onces) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=plan.rounds {
            let set = async |key: String, condition: &str| {
                let command = redis::cmd("SET").arg(key).arg("1").arg(condition).arg("EX").arg(86_400).to_owned();
                Ok(command.exec_async(&mut connection.clone()).await?)
            };
            let key = |kind: &str, message: u64| format!("{kind}:{at_once}:{round}:{message}");
            let measured = (
                consume(at_once, plan.time, async |message| set(key("bare", message), "NX").await).await?,
                consume(at_once, plan.time, async |message| {
                    set(key("pair", message), "NX").await?;
                    set(key("pair", message), "XX").await
                })
                .await?,
                consume(at_once, plan.time, async |message| {
                    let outcome = dedup.once(&key("once", message), || async { anyhow::Ok(()) }).await?;
                    ensure!(matches!(outcome, Outcome::Done(())), "{outcome:?}");
                    Ok(())
                })
                .await?,
            );
            redis::cmd("FLUSHALL").exec_async(&mut connection.clone()).await?;
            if round > 0 {
                sets.push(measured.0);
                pairs.push(measured.1);
                onces.push(measured.2);
            }
        }
        let (set, pair, once) = (Sample::median(sets), Sample::median(pairs), Sample::median(onces));
        row(section, "Redis: bare SET NX EX", at_once, &set);
        row(section, "… and a bare SET after it", at_once, &pair);
        row(section, "… claim and mark", at_once, &once);
        section.ratio(&format!("bare SET NX EX, {at_once} at once"), once.rate / set.rate);
        section.at_least(&format!("two bare round trips, {at_once} at once"), once.rate / pair.rate, 0.75);
    }
    Ok(())
}

async fn in_a_filter(plan: &Plan, section: &mut Section) -> Result<()> {
    let ids = if plan.time < Duration::from_secs(1) { 100_000 } else { 10_000_000 };
    let filter = Arc::new(MemoryBloom::new(BloomOptions { ids, ..BloomOptions::default() }));
    // The second generation too: both are full when the answers are the worst.
    let added = 2 * ids - 1;
    let key = |number: u64| DedupKey::new("billing", &format!("order-{number}"));
    let begin = Instant::now();
    for number in 0..added {
        filter.add(&key(number)?).await?;
    }
    let sample = Sample::new(usize::try_from(added)?, begin.elapsed(), Vec::new());
    let (mut wrong, others) = (0_u32, 1_000_000_u32);
    for other in 0..u64::from(others) {
        wrong += u32::from(filter.maybe_seen(&key(added + other)?).await?);
    }
    section.row(["Bloom filter in the process: add".to_owned(), "1".to_owned(), number(sample.rate)]);
    let (each, memory) = (number(ids as f64), filter.bytes() / 1_000_000);
    let what = format!("of new ids are maybe seen, with {each} ids in each of two generations ({memory} MB)");
    section.below(&what, 100.0 * f64::from(wrong) / f64::from(others), 0.11, " %");
    Ok(())
}
