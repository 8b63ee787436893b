//! The conformance suite on the store in memory, and what a program is told when a store fails.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use async_trait::async_trait;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use relais_dedup::{
    BloomDedup, BloomOptions, ClaimOutcome, ClaimToken, Claiming, Dedup, DedupError, DedupKey, DedupStore, Hold,
    MemoryBloom, MemoryDedup, Outcome,
};
use relais_testkit::dedup_suite::DedupHarness;
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(60);

struct InMemory {
    memory: Arc<MemoryDedup>,
    store: Arc<dyn DedupStore>,
}

#[async_trait]
impl DedupHarness for InMemory {
    fn store(&self) -> Arc<dyn DedupStore> {
        Arc::clone(&self.store)
    }

    async fn advance(&self, time: Duration) -> Result<()> {
        self.memory.advance(time);
        Ok(())
    }
}

mod plain {
    use super::*;

    async fn harness() -> Result<InMemory> {
        let memory = Arc::new(MemoryDedup::default());
        Ok(InMemory { store: Arc::<MemoryDedup>::clone(&memory), memory })
    }

    relais_testkit::dedup_suite!(harness);
}

/// A filter that the store is asked behind changes nothing, not even one that takes most ids for others.
mod behind_a_filter {
    use super::*;

    async fn harness() -> Result<InMemory> {
        let memory = Arc::new(MemoryDedup::default());
        let options = BloomOptions { ids: 64, false_positives: 1.0, ..BloomOptions::default() };
        let store = Arc::new(BloomDedup::new(Arc::clone(&memory), MemoryBloom::new(options)));
        Ok(InMemory { store, memory })
    }

    relais_testkit::dedup_suite!(harness);
}

/// A store that fails when it is told to, and counts its calls.
#[derive(Default)]
struct Failing {
    memory: MemoryDedup,
    extends: AtomicBool,
    marks: AtomicBool,
    claims: AtomicBool,
    /// Claims are answered late.
    slow: AtomicBool,
    claimed: AtomicUsize,
}

impl Failing {
    fn unless(&self, fails: &AtomicBool) -> Result<(), DedupError> {
        match fails.load(Ordering::SeqCst) {
            true => Err(DedupError::store("the store is away")),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl DedupStore for Failing {
    async fn claim(&self, key: &DedupKey, token: &ClaimToken, claim: Duration) -> Result<ClaimOutcome, DedupError> {
        self.unless(&self.claims)?;
        self.claimed.fetch_add(1, Ordering::SeqCst);
        let outcome = self.memory.claim(key, token, claim).await;
        if self.slow.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        outcome
    }

    async fn extend(&self, key: &DedupKey, token: &ClaimToken, claim: Duration) -> Result<Hold, DedupError> {
        self.unless(&self.extends)?;
        self.memory.extend(key, token, claim).await
    }

    async fn mark(&self, key: &DedupKey, token: &ClaimToken, window: Duration) -> Result<Hold, DedupError> {
        self.unless(&self.marks)?;
        self.memory.mark(key, token, window).await
    }

    async fn release(&self, key: &DedupKey, token: &ClaimToken) -> Result<(), DedupError> {
        self.memory.release(key, token).await
    }

    async fn is_marked(&self, key: &DedupKey) -> Result<bool, DedupError> {
        self.memory.is_marked(key).await
    }
}

async fn succeed() -> Result<&'static str, String> {
    Ok("done")
}

#[tokio::test]
async fn a_handler_does_not_run_while_the_store_is_away() -> Result<()> {
    let store = Arc::new(Failing::default());
    let dedup = Dedup::new(Arc::clone(&store));
    store.claims.store(true, Ordering::SeqCst);
    let runs = AtomicUsize::new(0);
    let handler = || async {
        runs.fetch_add(1, Ordering::SeqCst);
        succeed().await
    };
    ensure!(matches!(dedup.once("7", handler).await, Err(DedupError::Store(_))));
    ensure!(runs.load(Ordering::SeqCst) == 0);
    store.claims.store(false, Ordering::SeqCst);
    ensure!(dedup.once("7", handler).await? == Outcome::Done("done"));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_stopped_when_its_claim_ends_because_the_store_is_away() -> Result<()> {
    let store = Arc::new(Failing::default());
    let dedup = Dedup::new(Arc::clone(&store)).with_claim(Duration::from_secs(30));
    store.extends.store(true, Ordering::SeqCst);
    let begin = tokio::time::Instant::now();
    let ended = dedup.once("7", std::future::pending::<Result<(), String>>).await;
    ensure!(matches!(ended, Err(DedupError::ClaimExpired)), "{ended:?}");
    ensure!(begin.elapsed() >= Duration::from_secs(29) && begin.elapsed() <= Duration::from_secs(31));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_store_that_comes_back_before_the_claim_ends_stops_nobody() -> Result<()> {
    let store = Arc::new(Failing::default());
    let dedup = Dedup::new(Arc::clone(&store)).with_claim(Duration::from_secs(30));
    store.extends.store(true, Ordering::SeqCst);
    let handler = || async {
        tokio::time::sleep(Duration::from_secs(25)).await;
        store.extends.store(false, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(300)).await;
        succeed().await
    };
    ensure!(dedup.once("7", handler).await? == Outcome::Done("done"));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_mark_is_tried_until_the_store_is_back() -> Result<()> {
    let store = Arc::new(Failing::default());
    let dedup = Dedup::new(Arc::clone(&store)).with_claim(Duration::from_secs(30));
    store.marks.store(true, Ordering::SeqCst);
    let back = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        store.marks.store(false, Ordering::SeqCst);
    };
    let (outcome, ()) = tokio::join!(dedup.once("7", succeed), back);
    ensure!(outcome? == Outcome::Done("done"));
    ensure!(dedup.once("7", succeed).await? == Outcome::AlreadyDone);
    Ok(())
}

#[test]
fn outcomes_are_counted_by_consumer() -> Result<()> {
    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let store = Arc::new(Failing::default());
            let dedup = Dedup::new(Arc::clone(&store)).for_consumer("billing")?.with_metrics_prefix("shop_");
            ensure!(dedup.once("1", succeed).await? == Outcome::Done("done"));
            ensure!(dedup.once("1", succeed).await? == Outcome::AlreadyDone);
            ensure!(matches!(dedup.once("2", || async { Err::<(), _>(()) }).await?, Outcome::Failed(())));
            let claim = dedup.claim("3").await?;
            ensure!(matches!(dedup.once("3", succeed).await?, Outcome::Busy { .. }));
            drop(claim);
            store.marks.store(true, Ordering::SeqCst);
            ensure!(dedup.once("4", succeed).await? == Outcome::Done("done"), "it is done, if not marked");
            store.claims.store(true, Ordering::SeqCst);
            ensure!(dedup.once("5", succeed).await.is_err());
            Ok(())
        })
    })?;
    let counted = snapshots.snapshot().into_vec();
    let count = |outcome: &str| {
        let found = counted.iter().find(|(key, ..)| {
            let labels: Vec<_> = key.key().labels().map(|label| (label.key(), label.value())).collect();
            key.key().name() == "shop_dedup_total" && labels == [("consumer", "billing"), ("outcome", outcome)]
        });
        found.map(|(.., value)| value)
    };
    for (outcome, expected) in
        [("done", 2), ("already_done", 1), ("failed", 1), ("busy", 1), ("unmarked", 1), ("error", 1)]
    {
        ensure!(count(outcome) == Some(&DebugValue::Counter(expected)), "{outcome}: {:?}", count(outcome));
    }
    Ok(())
}

#[tokio::test]
async fn a_window_that_ends_before_the_last_retry_is_refused() -> Result<()> {
    let hour = Duration::from_secs(3600);
    let dedup = Dedup::new(MemoryDedup::default());
    dedup.check(17 * hour)?;
    let refused = dedup.check(24 * hour).err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(refused.contains("86400s") && refused.contains("the window must be longer"), "{refused}");
    ensure!(matches!(dedup.clone().with_window(Duration::ZERO).check(hour), Err(DedupError::NoTime)));
    ensure!(matches!(dedup.with_claim(Duration::ZERO).check(hour), Err(DedupError::NoTime)));
    Ok(())
}

#[tokio::test]
async fn a_claim_can_be_kept_by_hand() -> Result<()> {
    let dedup = Dedup::new(MemoryDedup::default());
    let Claiming::Claimed(claim) = dedup.claim("7").await? else { anyhow::bail!("it is free") };
    ensure!(matches!(dedup.claim("7").await?, Claiming::Busy { .. }));
    claim.release().await?;
    let Claiming::Claimed(mut claim) = dedup.claim("7").await? else { anyhow::bail!("it is free again") };
    ensure!(timeout(Duration::from_millis(1), claim.lost()).await.is_err(), "it is not lost");
    ensure!(claim.mark().await? == Hold::Held);
    ensure!(matches!(dedup.claim("7").await?, Claiming::AlreadyDone));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn who_stops_waiting_for_a_claim_leaves_none() -> Result<()> {
    let store = Arc::new(Failing { slow: AtomicBool::new(true), ..Failing::default() });
    let dedup = Dedup::new(Arc::clone(&store)).with_claim(Duration::from_secs(3600));
    ensure!(timeout(Duration::from_secs(1), dedup.once("7", succeed)).await.is_err(), "it has no answer yet");
    ensure!(store.claimed.load(Ordering::SeqCst) == 1);
    store.slow.store(false, Ordering::SeqCst);
    ensure!(matches!(dedup.once("7", succeed).await?, Outcome::Busy { .. }), "the answer is on its way");
    tokio::time::sleep(Duration::from_secs(10)).await;
    ensure!(dedup.once("7", succeed).await? == Outcome::Done("done"));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_message_is_marked_even_if_nobody_waits_for_that() -> Result<()> {
    let store = Arc::new(Failing::default());
    let dedup = Dedup::new(Arc::clone(&store)).with_claim(Duration::from_secs(60));
    store.marks.store(true, Ordering::SeqCst);
    ensure!(timeout(Duration::from_secs(10), dedup.once("7", succeed)).await.is_err(), "it is not marked yet");
    store.marks.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(30)).await;
    ensure!(dedup.once("7", succeed).await? == Outcome::AlreadyDone);
    Ok(())
}

#[tokio::test]
async fn a_store_in_memory_that_is_full_says_so() -> Result<()> {
    let memory = Arc::new(MemoryDedup::with_capacity(2));
    let dedup = Dedup::new(Arc::clone(&memory));
    ensure!(dedup.once("1", succeed).await? == Outcome::Done("done"));
    ensure!(dedup.once("2", succeed).await? == Outcome::Done("done"));
    ensure!(matches!(dedup.once("3", succeed).await, Err(DedupError::Full(2))));
    ensure!(dedup.once("1", succeed).await? == Outcome::AlreadyDone, "what is there is known");
    memory.advance(Duration::from_secs(24 * 3600));
    ensure!(dedup.once("3", succeed).await? == Outcome::Done("done"), "what is over makes room");
    Ok(())
}

#[tokio::test]
async fn a_repeat_that_the_filter_knows_is_not_claimed() -> Result<()> {
    let store = Arc::new(Failing::default());
    let filtered =
        BloomDedup::new(Arc::clone(&store), MemoryBloom::new(BloomOptions { ids: 1000, ..Default::default() }));
    let dedup = Dedup::new(filtered);
    ensure!(dedup.once("1", succeed).await? == Outcome::Done("done"));
    for _ in 0..3 {
        ensure!(dedup.once("1", succeed).await? == Outcome::AlreadyDone);
    }
    ensure!(store.claimed.load(Ordering::SeqCst) == 1);
    // The process starts again: its filter is empty, and knows no more than before.
    let options = BloomOptions { ids: 1000, ..Default::default() };
    let dedup = Dedup::new(BloomDedup::new(Arc::clone(&store), MemoryBloom::new(options)));
    for _ in 0..3 {
        ensure!(dedup.once("1", succeed).await? == Outcome::AlreadyDone);
    }
    ensure!(store.claimed.load(Ordering::SeqCst) == 2, "it is told once, and knows it then");
    Ok(())
}

#[tokio::test]
async fn a_filter_that_is_lost_with_the_process_is_not_trusted() -> Result<()> {
    let filter = MemoryBloom::new(BloomOptions { ids: 1000, ..Default::default() });
    let refused = BloomDedup::new(MemoryDedup::default(), filter).trusting();
    ensure!(matches!(refused.err(), Some(DedupError::ForgetfulFilter)));
    Ok(())
}

#[tokio::test]
async fn a_claim_that_outlives_its_runtime_does_no_harm() -> Result<()> {
    let dedup = Dedup::new(MemoryDedup::default());
    let claim = {
        let dedup = dedup.clone();
        let other = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(dedup.claim("7")).map_err(anyhow::Error::from)
        });
        other.join().map_err(|_| anyhow::anyhow!("the other thread panicked"))??
    };
    drop(claim);
    ensure!(timeout(DEADLINE, dedup.once("7", succeed)).await?.is_ok());
    Ok(())
}
