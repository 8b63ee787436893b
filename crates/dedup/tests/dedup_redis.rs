//! The conformance suite on Redis and on Valkey, with and without a Bloom filter in the server; and what is Redis' own: keys that
//! other code writes too, and filters.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use relais_dedup::{
    BloomDedup, BloomOptions, ClaimOutcome, ClaimToken, Dedup, DedupError, DedupKey, DedupStore, MemoryBloom, Outcome,
    RedisBloom, RedisDedup, SeenFilter, redis_or_memory_bloom,
};
use relais_testkit::{RedisServer, dedup_suite::DedupHarness};
use tokio::sync::OnceCell;

const HOUR: Duration = Duration::from_secs(3600);

struct OnRedis {
    connection: MultiplexedConnection,
    prefix: String,
    store: Arc<dyn DedupStore>,
}

/// Tests on one server do not see each other's keys.
fn prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("dedup:t{}:", NEXT.fetch_add(1, Ordering::Relaxed))
}

async fn connection(url: &str) -> Result<MultiplexedConnection> {
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection().await?)
}

async fn on(url: &str) -> Result<OnRedis> {
    let prefix = prefix();
    let store = Arc::new(RedisDedup::connect(url).await?.with_prefix(&prefix));
    Ok(OnRedis { connection: connection(url).await?, prefix, store })
}

/// Its guardian ends it with the process.
async fn redis_url() -> Result<String> {
    static SERVER: OnceCell<RedisServer> = OnceCell::const_new();
    Ok(SERVER.get_or_try_init(RedisServer::start).await?.url())
}

/// Another one, with the module RedisBloom.
async fn bloom_url() -> Result<String> {
    static SERVER: OnceCell<RedisServer> = OnceCell::const_new();
    Ok(SERVER.get_or_try_init(RedisServer::start_with_bloom).await?.url())
}

#[async_trait]
impl DedupHarness for OnRedis {
    fn store(&self) -> Arc<dyn DedupStore> {
        Arc::clone(&self.store)
    }

    /// Lets each key end so much earlier.
    async fn advance(&self, time: Duration) -> Result<()> {
        let mut connection = self.connection.clone();
        let pattern = format!("{}*", self.prefix);
        let keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(&mut connection).await?;
        for key in keys {
            let left: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut connection).await?;
            let left = left - i64::try_from(time.as_millis())?;
            redis::cmd("PEXPIRE").arg(&key).arg(left.max(0)).exec_async(&mut connection).await?;
        }
        Ok(())
    }
}

mod on_redis {
    async fn harness() -> anyhow::Result<super::OnRedis> {
        super::on(&super::redis_url().await?).await
    }

    relais_testkit::dedup_suite!(harness);
}

mod on_valkey {
    use relais_testkit::RedisServer;
    use tokio::sync::OnceCell;

    async fn harness() -> anyhow::Result<super::OnRedis> {
        static SERVER: OnceCell<RedisServer> = OnceCell::const_new();
        super::on(&SERVER.get_or_try_init(RedisServer::start_valkey).await?.url()).await
    }

    relais_testkit::dedup_suite!(harness);
}

/// A filter that is shared, and asked about behind the store, changes nothing.
mod behind_a_filter {
    use super::*;

    async fn harness() -> Result<OnRedis> {
        let url = bloom_url().await?;
        let plain = on(&url).await?;
        let options = BloomOptions { ids: 1000, ..BloomOptions::default() };
        let filter =
            RedisBloom::connect(&url, options).await?.with_key(&format!("{}bloom", plain.prefix.replace("t", "f")));
        Ok(OnRedis { store: Arc::new(BloomDedup::new(Arc::clone(&plain.store), filter)), ..plain })
    }

    relais_testkit::dedup_suite!(harness);
}

async fn succeed() -> Result<(), String> {
    Ok(())
}

#[tokio::test]
async fn code_that_says_set_nx_ex_shares_the_window_both_ways() -> Result<()> {
    let mut world = on(&redis_url().await?).await?;
    let set = |key: &str| {
        redis::cmd("SET").arg(format!("{}{key}", world.prefix)).arg("1").arg("NX").arg("EX").arg(60).to_owned()
    };
    let (named, nameless) = (Dedup::new(world.store()).for_consumer("billing")?, Dedup::new(world.store()));
    for (dedup, theirs, ours) in [(&nameless, "7", "8"), (&named, "billing:7", "billing:8")] {
        let done: Option<String> = set(theirs).query_async(&mut world.connection).await?;
        ensure!(done.is_some(), "it claims {theirs} before it processes the message");
        ensure!(dedup.once("7", succeed).await? == Outcome::AlreadyDone, "{theirs}");
        let (set, connection) = (set(ours), world.connection.clone());
        let handler = || async {
            let mut connection = connection.clone();
            match set.query_async::<Option<String>>(&mut connection).await {
                Ok(None) => Ok(()),
                other => Err(format!("our claim is not seen: {other:?}")),
            }
        };
        ensure!(dedup.once("8", handler).await? == Outcome::Done(()));
        ensure!(handler().await == Ok(()), "nor our mark");
    }
    let left: i64 = redis::cmd("TTL").arg(format!("{}8", world.prefix)).query_async(&mut world.connection).await?;
    ensure!((86_300..=86_400).contains(&left), "a mark lasts for the window: {left} s");
    Ok(())
}

#[tokio::test]
async fn keys_are_those_of_the_guide() -> Result<()> {
    let server = RedisServer::start().await?;
    let mut connection = connection(&server.url()).await?;
    let store = RedisDedup::connect(&server.url()).await?;
    let (named, nameless) = (Dedup::new(store.clone()).for_consumer("billing")?, Dedup::new(store));
    let value = async |key: &str| -> Result<Option<String>> {
        Ok(redis::cmd("GET").arg(key).query_async(&mut connection.clone()).await?)
    };
    let handler = || async {
        let claim = value("dedup:processed:order-7").await.ok().flatten().unwrap_or_default();
        if claim.starts_with("claim:") && claim.len() == 38 { Ok(()) } else { Err(claim) }
    };
    ensure!(nameless.once("order-7", handler).await? == Outcome::Done(()));
    ensure!(named.once("order-7", succeed).await? == Outcome::Done(()));
    for key in ["dedup:processed:order-7", "dedup:processed:billing:order-7"] {
        ensure!(value(key).await?.as_deref() == Some("1"), "{key}");
    }
    let keys: usize = redis::cmd("DBSIZE").query_async(&mut connection).await?;
    ensure!(keys == 2, "and no others");
    Ok(())
}

#[tokio::test]
async fn a_claim_takes_one_round_trip_and_a_mark_another() -> Result<()> {
    let server = RedisServer::start().await?;
    let dedup = Dedup::new(RedisDedup::connect(&server.url()).await?);
    ensure!(dedup.once("first", succeed).await? == Outcome::Done(()), "scripts are loaded");
    let calls = async || -> Result<Vec<(String, u64)>> {
        let info = server.tell_all("INFO commandstats").await?;
        let calls = info.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
        });
        Ok(calls.collect())
    };
    let before = calls().await?;
    for number in 0..10 {
        ensure!(dedup.once(&format!("{number}"), succeed).await? == Outcome::Done(()));
    }
    let after = calls().await?;
    let count =
        |calls: &[(String, u64)], name: &str| calls.iter().find(|(known, _)| known == name).map_or(0, |call| call.1);
    let new = |name: &str| count(&after, name) - count(&before, name);
    // Within a script: a GET, and a SET.
    ensure!((new("evalsha"), new("get"), new("set")) == (10, 10, 20), "{before:?} {after:?}");
    ensure!(new("eval") + new("script|load") + new("pttl") == 0);
    Ok(())
}

fn key(id: usize) -> Result<DedupKey> {
    Ok(DedupKey::new("billing", &format!("order-{id}"))?)
}

#[tokio::test]
async fn a_filter_in_the_server_knows_ids_for_a_window_and_few_others() -> Result<()> {
    const IDS: usize = 2000;
    let (url, name) = (bloom_url().await?, prefix());
    let options = BloomOptions { ids: IDS as u64, false_positives: 0.01, window: HOUR };
    let filter = RedisBloom::connect(&url, options).await?.with_key(&name);
    let (previous, since) = (format!("{name}:previous"), format!("{name}:since"));
    let mut connection = connection(&url).await?;
    for id in 0..IDS {
        filter.add(&key(id)?).await?;
    }
    let seen = async |ids: std::ops::Range<usize>| -> Result<usize> {
        let mut seen = 0;
        for id in ids {
            seen += usize::from(filter.maybe_seen(&key(id)?).await?);
        }
        Ok(seen)
    };
    ensure!(seen(0..IDS).await? == IDS);
    let wrong = seen(IDS..2 * IDS).await?;
    ensure!(wrong < 40, "{wrong} of {IDS} others are seen; 10 are expected");

    // A window later there is a new generation; what is known stays for one more.
    let step = async |connection: &mut MultiplexedConnection| -> Result<()> {
        let begun: i64 = redis::cmd("GET").arg(&since).query_async(connection).await?;
        let earlier = begun - i64::try_from(HOUR.as_millis())?;
        redis::cmd("SET").arg(&since).arg(earlier).arg("KEEPTTL").exec_async(connection).await?;
        Ok(())
    };
    step(&mut connection).await?;
    filter.add(&key(IDS)?).await?;
    ensure!(seen(0..IDS + 1).await? == IDS + 1, "the older generation is asked too");
    let left: i64 = redis::cmd("PTTL").arg(&previous).query_async(&mut connection).await?;
    ensure!((0..=i64::try_from(HOUR.as_millis())?).contains(&left), "and is gone a window later: {left} ms");
    step(&mut connection).await?;
    ensure!(seen(0..IDS).await? < 40, "the oldest are forgotten");
    ensure!(filter.maybe_seen(&key(IDS)?).await?, "the younger ones are not");
    // Nobody has used it for long.
    step(&mut connection).await?;
    step(&mut connection).await?;
    ensure!(!filter.maybe_seen(&key(IDS)?).await?);
    Ok(())
}

#[tokio::test]
async fn code_that_says_bf_add_shares_the_filter() -> Result<()> {
    let (url, name) = (bloom_url().await?, prefix());
    let mut connection = connection(&url).await?;
    redis::cmd("BF.ADD").arg(&name).arg("order-7").exec_async(&mut connection).await?;
    let filter = RedisBloom::connect(&url, BloomOptions { ids: 1000, ..Default::default() }).await?.with_key(&name);
    ensure!(filter.maybe_seen(&DedupKey::new("", "order-7")?).await?, "theirs");
    filter.add(&DedupKey::new("", "order-8")?).await?;
    let ours: bool = redis::cmd("BF.EXISTS").arg(&name).arg("order-8").query_async(&mut connection).await?;
    ensure!(ours, "ours");
    Ok(())
}

#[tokio::test]
async fn a_trusted_filter_is_the_only_memory() -> Result<()> {
    let url = bloom_url().await?;
    let world = on(&url).await?;
    let options = BloomOptions { ids: 1000, false_positives: 0.001, window: 24 * HOUR };
    let filter = RedisBloom::connect(&url, options).await?.with_key(&prefix());
    let store = Arc::new(BloomDedup::new(world.store(), filter).trusting()?);
    let dedup = Dedup::new(Arc::clone(&store)).for_consumer("billing")?;
    dedup.check(HOUR)?;
    let longer = dedup.clone().with_window(25 * HOUR).check(HOUR);
    ensure!(matches!(longer, Err(DedupError::LongWindow { .. })), "{longer:?}");

    ensure!(dedup.once("7", succeed).await? == Outcome::Done(()));
    for _ in 0..2 {
        ensure!(dedup.once("7", succeed).await? == Outcome::AlreadyDone);
    }
    ensure!(dedup.once("8", || async { Err::<(), _>("no") }).await? == Outcome::Failed("no"));
    ensure!(dedup.once("8", succeed).await? == Outcome::Done(()), "a handler that failed left nothing");
    let key = DedupKey::new("billing", "9")?;
    ensure!(store.claim(&key, &ClaimToken::generate()?, HOUR).await? == ClaimOutcome::Claimed);
    ensure!(matches!(dedup.once("9", succeed).await?, Outcome::Busy { .. }), "claims exclude each other as before");
    let pattern = format!("{}*", world.prefix);
    let keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(&mut world.connection.clone()).await?;
    ensure!(keys == [format!("{}billing:9", world.prefix)], "the store keeps no mark: {keys:?}");
    Ok(())
}

#[tokio::test]
async fn a_server_without_filters_is_found_out() -> Result<()> {
    let (without, with) = (redis_url().await?, bloom_url().await?);
    let options = BloomOptions { ids: 1000, ..BloomOptions::default() };
    let refused = RedisBloom::connect(&without, options).await;
    ensure!(matches!(refused, Err(DedupError::NoBloom)), "{refused:?}");
    ensure!(redis_or_memory_bloom(&with, options).await?.remembers().is_some());
    let local = redis_or_memory_bloom(&without, options).await?;
    ensure!(local.remembers().is_none());
    ensure!(MemoryBloom::new(options).bytes() < 4000);
    Ok(())
}

#[tokio::test]
async fn a_filter_that_is_away_is_done_without() -> Result<()> {
    let mut server = RedisServer::start_with_bloom().await?;
    let filter = RedisBloom::connect(&server.url(), BloomOptions { ids: 1000, ..BloomOptions::default() }).await?;
    let world = on(&redis_url().await?).await?;
    let dedup = Dedup::new(BloomDedup::new(world.store(), filter));
    server.kill9()?;
    ensure!(dedup.once("7", succeed).await? == Outcome::Done(()));
    ensure!(dedup.once("7", succeed).await? == Outcome::AlreadyDone);
    Ok(())
}
