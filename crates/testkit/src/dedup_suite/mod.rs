//! The conformance suite of the [`DedupStore`] port: what every store of claims and marks must hold to.
//!
//! A driver's own test implements [`DedupHarness`] and names it to [`dedup_suite!`](crate::dedup_suite). Nothing here knows a
//! database. What every database must hold to where the mark is in the handler's transaction is in [`transaction`].

mod gate;
mod model;
pub mod transaction;

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use async_trait::async_trait;
use relais_dedup::{ClaimOutcome, ClaimToken, Dedup, DedupKey, DedupStore, Hold, Outcome};
use tokio::{
    sync::{Notify, oneshot},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use self::gate::Gate;
pub use self::model::answers_are_those_of_the_rules_whatever_is_asked;
use crate::Random;

/// For whatever should happen soon, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Longer than any test takes: what ends earlier was not left to expire.
const LONG: Duration = Duration::from_secs(3600);

const WINDOW: Duration = Duration::from_secs(24 * 3600);

/// Between two looks at something that nobody tells.
const POLL: Duration = Duration::from_millis(5);

/// A store with nothing in it.
#[async_trait]
pub trait DedupHarness: Send + Sync {
    /// The store under test.
    fn store(&self) -> Arc<dyn DedupStore>;

    /// Lets time pass for all that is stored.
    async fn advance(&self, time: Duration) -> Result<()>;
}

/// Makes one test of each promise. The argument is an async function without parameters that returns
/// `anyhow::Result<impl DedupHarness>`.
#[macro_export]
macro_rules! dedup_suite {
    ($harness:ident) => {
        $crate::dedup_suite! { @tests $harness;
            a_second_delivery_does_nothing,
            a_handler_that_fails_leaves_no_mark,
            a_handler_that_panics_leaves_no_mark,
            a_handler_that_is_dropped_leaves_no_mark,
            of_many_at_once_one_runs_and_the_others_are_busy,
            an_expired_claim_is_taken_over_and_its_owner_can_neither_mark_nor_release,
            an_expired_claim_that_nobody_took_over_is_still_its_owners,
            a_mark_lasts_for_its_window,
            a_claimed_message_is_busy_for_as_long_as_the_claim_lasts,
            consumers_process_each_message_for_themselves,
            any_text_can_be_an_id,
            a_long_handler_keeps_its_claim,
            a_handler_whose_claim_was_taken_over_is_stopped,
            messages_that_come_many_times_are_processed_once_whatever_fails,
            answers_are_those_of_the_rules_whatever_is_asked,
        }
    };
    (@tests $harness:ident; $($promise:ident),* $(,)?) => {
        $(#[tokio::test]
        async fn $promise() -> anyhow::Result<()> {
            $crate::dedup_suite::$promise(&$harness().await?).await
        })*
    };
}

/// With claims that do not expire within a test.
fn dedup(harness: &impl DedupHarness) -> Result<Dedup> {
    Ok(Dedup::new(harness.store()).with_claim(LONG).for_consumer("billing")?)
}

fn key(id: &str) -> Result<DedupKey> {
    Ok(DedupKey::new("billing", id)?)
}

/// A handler that does nothing, and counts how often it did.
async fn count(runs: &AtomicUsize) -> Result<(), String> {
    runs.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

/// What becomes of a message once nobody else has it: for what is released in the background.
async fn once_it_is_free(dedup: &Dedup, id: &str, runs: &AtomicUsize) -> Result<Outcome<(), String>> {
    let begin = Instant::now();
    loop {
        match dedup.once(id, || count(runs)).await? {
            Outcome::Busy { .. } if begin.elapsed() < DEADLINE => sleep(POLL).await,
            outcome => return Ok(outcome),
        }
    }
}

/// And is no failure.
pub async fn a_second_delivery_does_nothing(harness: &impl DedupHarness) -> Result<()> {
    let (dedup, runs) = (dedup(harness)?, AtomicUsize::new(0));
    ensure!(dedup.once("order-7", || count(&runs)).await? == Outcome::Done(()));
    for _ in 0..3 {
        ensure!(dedup.once("order-7", || count(&runs)).await? == Outcome::AlreadyDone);
    }
    ensure!(harness.store().is_marked(&key("order-7")?).await?);
    ensure!(dedup.once("order-8", || count(&runs)).await? == Outcome::Done(()), "another message is another message");
    ensure!(runs.load(Ordering::SeqCst) == 2);
    Ok(())
}

/// It can be tried again at once.
pub async fn a_handler_that_fails_leaves_no_mark(harness: &impl DedupHarness) -> Result<()> {
    let (dedup, runs) = (dedup(harness)?, AtomicUsize::new(0));
    for _ in 0..2 {
        let failed = dedup.once("order-7", || async { Err::<(), _>("no".to_owned()) }).await?;
        ensure!(failed == Outcome::Failed("no".to_owned()), "{failed:?}");
    }
    ensure!(!harness.store().is_marked(&key("order-7")?).await?);
    ensure!(dedup.once("order-7", || count(&runs)).await? == Outcome::Done(()));
    Ok(())
}

/// Nor a claim.
pub async fn a_handler_that_panics_leaves_no_mark(harness: &impl DedupHarness) -> Result<()> {
    let (dedup, runs) = (dedup(harness)?, AtomicUsize::new(0));
    let panics = dedup.clone();
    let panicked = tokio::spawn(async move {
        let outcome = panics.once("order-7", || async {
            if panics.check(Duration::ZERO).is_ok() {
                panic!("a handler of the suite panics");
            }
            Ok::<_, String>(())
        });
        outcome.await.is_ok()
    });
    ensure!(panicked.await.is_err_and(|error| error.is_panic()), "the panic goes on");
    ensure!(once_it_is_free(&dedup, "order-7", &runs).await? == Outcome::Done(()));
    Ok(())
}

/// Nor a claim: its worker was stopped in the middle.
pub async fn a_handler_that_is_dropped_leaves_no_mark(harness: &impl DedupHarness) -> Result<()> {
    let (dedup, runs) = (dedup(harness)?, AtomicUsize::new(0));
    let (begin, begun) = oneshot::channel();
    let dropped = dedup.clone();
    let task = tokio::spawn(async move {
        let handler = || async {
            let _ = begin.send(());
            std::future::pending::<Result<(), String>>().await
        };
        dropped.once("order-7", handler).await.is_ok()
    });
    timeout(DEADLINE, begun).await??;
    let busy = dedup.once("order-7", || count(&runs)).await?;
    ensure!(matches!(busy, Outcome::Busy { .. }), "while it runs: {busy:?}");
    task.abort();
    ensure!(task.await.is_err_and(|error| error.is_cancelled()));
    ensure!(once_it_is_free(&dedup, "order-7", &runs).await? == Outcome::Done(()));
    Ok(())
}

/// They come again, and find it done.
pub async fn of_many_at_once_one_runs_and_the_others_are_busy(harness: &impl DedupHarness) -> Result<()> {
    const MANY: usize = 16;
    let (dedup, runs, go) = (dedup(harness)?, Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let mut deliveries = JoinSet::new();
    for _ in 0..MANY {
        let (dedup, runs, go) = (dedup.clone(), Arc::clone(&runs), Arc::clone(&go));
        deliveries.spawn(async move {
            let handler = || async {
                runs.fetch_add(1, Ordering::SeqCst);
                go.notified().await;
                Ok::<_, String>(())
            };
            dedup.once("order-7", handler).await
        });
    }
    for _ in 1..MANY {
        let outcome = timeout(DEADLINE, deliveries.join_next()).await?.context("a delivery")???;
        ensure!(matches!(outcome, Outcome::Busy { .. }), "{outcome:?}");
    }
    go.notify_one();
    ensure!(timeout(DEADLINE, deliveries.join_next()).await?.context("the last one")??? == Outcome::Done(()));
    ensure!(runs.load(Ordering::SeqCst) == 1);
    ensure!(dedup.once("order-7", || count(&runs)).await? == Outcome::AlreadyDone);
    Ok(())
}

/// The owner was paused for longer than its claim.
pub async fn an_expired_claim_is_taken_over_and_its_owner_can_neither_mark_nor_release(
    harness: &impl DedupHarness,
) -> Result<()> {
    let (store, key) = (harness.store(), key("order-7")?);
    let (late, next, third) = (ClaimToken::generate()?, ClaimToken::generate()?, ClaimToken::generate()?);
    let minute = Duration::from_secs(60);
    ensure!(store.claim(&key, &late, minute).await? == ClaimOutcome::Claimed);
    harness.advance(2 * minute).await?;
    ensure!(store.claim(&key, &next, LONG).await? == ClaimOutcome::Claimed, "an expired claim is nobody's");
    ensure!(store.extend(&key, &late, LONG).await? == Hold::Lost);
    ensure!(store.mark(&key, &late, WINDOW).await? == Hold::Lost);
    store.release(&key, &late).await?;
    ensure!(
        matches!(store.claim(&key, &third, LONG).await?, ClaimOutcome::Busy { .. }),
        "the second owner still has it"
    );
    ensure!(store.extend(&key, &next, LONG).await? == Hold::Held);
    ensure!(store.mark(&key, &next, WINDOW).await? == Hold::Held);
    for owner in [&late, &next] {
        ensure!(store.extend(&key, owner, LONG).await? == Hold::Lost, "a mark is no claim");
        store.release(&key, owner).await?;
    }
    ensure!(store.claim(&key, &third, LONG).await? == ClaimOutcome::AlreadyDone);
    Ok(())
}

/// What it has done can be marked, and it can go on.
pub async fn an_expired_claim_that_nobody_took_over_is_still_its_owners(harness: &impl DedupHarness) -> Result<()> {
    let (store, minute) = (harness.store(), Duration::from_secs(60));
    let (token, other) = (ClaimToken::generate()?, ClaimToken::generate()?);
    let (marked, extended) = (key("order-7")?, key("order-8")?);
    for key in [&marked, &extended] {
        ensure!(store.claim(key, &token, minute).await? == ClaimOutcome::Claimed);
    }
    harness.advance(2 * minute).await?;
    ensure!(store.mark(&marked, &token, WINDOW).await? == Hold::Held);
    ensure!(store.claim(&marked, &other, LONG).await? == ClaimOutcome::AlreadyDone);
    ensure!(store.extend(&extended, &token, LONG).await? == Hold::Held);
    ensure!(matches!(store.claim(&extended, &other, LONG).await?, ClaimOutcome::Busy { .. }));
    Ok(())
}

/// Not longer, and not less.
pub async fn a_mark_lasts_for_its_window(harness: &impl DedupHarness) -> Result<()> {
    let (dedup, runs) = (dedup(harness)?.with_window(WINDOW), AtomicUsize::new(0));
    ensure!(dedup.once("order-7", || count(&runs)).await? == Outcome::Done(()));
    harness.advance(WINDOW - LONG).await?;
    ensure!(dedup.once("order-7", || count(&runs)).await? == Outcome::AlreadyDone, "an hour before its end");
    harness.advance(LONG).await?;
    ensure!(!harness.store().is_marked(&key("order-7")?).await?);
    ensure!(dedup.once("order-7", || count(&runs)).await? == Outcome::Done(()), "after its end");
    Ok(())
}

/// By the store's clock.
pub async fn a_claimed_message_is_busy_for_as_long_as_the_claim_lasts(harness: &impl DedupHarness) -> Result<()> {
    let (store, key, token) = (harness.store(), key("order-7")?, ClaimToken::generate()?);
    ensure!(store.claim(&key, &token, LONG).await? == ClaimOutcome::Claimed);
    ensure!(!store.is_marked(&key).await?, "a claim is no mark");
    for left in [LONG, LONG / 2] {
        let ClaimOutcome::Busy { wait } = store.claim(&key, &ClaimToken::generate()?, LONG).await? else {
            bail!("it is claimed");
        };
        ensure!(wait <= left && wait + DEADLINE > left, "{wait:?} of {left:?}");
        harness.advance(LONG / 2).await?;
    }
    ensure!(store.claim(&key, &ClaimToken::generate()?, LONG).await? == ClaimOutcome::Claimed);
    Ok(())
}

/// Whatever their names are, and if they have none.
pub async fn consumers_process_each_message_for_themselves(harness: &impl DedupHarness) -> Result<()> {
    let runs = AtomicUsize::new(0);
    for (name, id) in [("a", "7"), ("b", "7"), ("a", "b:7"), ("a:b", "7"), ("a%3Ab", "7"), ("A", "7")] {
        let dedup = Dedup::new(harness.store()).for_consumer(name)?;
        ensure!(dedup.once(id, || count(&runs)).await? == Outcome::Done(()), "{name} and {id}");
        ensure!(dedup.once(id, || count(&runs)).await? == Outcome::AlreadyDone, "{name} and {id}");
    }
    let nameless = Dedup::new(harness.store());
    ensure!(nameless.once("7", || count(&runs)).await? == Outcome::Done(()));
    ensure!(nameless.once("7", || count(&runs)).await? == Outcome::AlreadyDone);
    Ok(())
}

/// Up to its length.
pub async fn any_text_can_be_an_id(harness: &impl DedupHarness) -> Result<()> {
    let (dedup, runs) = (dedup(harness)?, AtomicUsize::new(0));
    let long = "é".repeat(512);
    let ids = ["a b", "'; DROP TABLE x; --", "{order}:7", "żółć \u{1F980}", "%s $1 ?1", "\n", " ", "a", "A", &long];
    for id in ids {
        ensure!(dedup.once(id, || count(&runs)).await? == Outcome::Done(()), "{id:?}");
        ensure!(dedup.once(id, || count(&runs)).await? == Outcome::AlreadyDone, "{id:?}");
    }
    for wrong in ["", "a\0b", &"x".repeat(1025)] {
        ensure!(dedup.once(wrong, || count(&runs)).await.is_err(), "{wrong:?}");
    }
    ensure!(runs.load(Ordering::SeqCst) == ids.len());
    Ok(())
}

/// However short that is.
pub async fn a_long_handler_keeps_its_claim(harness: &impl DedupHarness) -> Result<()> {
    const CLAIM: Duration = Duration::from_secs(3);
    let gate = Arc::new(Gate::open(harness.store()));
    let dedup = Dedup::new(Arc::clone(&gate)).with_claim(CLAIM).for_consumer("billing")?;
    let handler = || async {
        // In all it takes longer than a claim lasts, as far as the store knows.
        for _ in 0..2 {
            gate.until_extended().await?;
            harness.advance(CLAIM * 2 / 3).await?;
        }
        gate.until_extended().await?;
        let other = harness.store().claim(&key("order-7")?, &ClaimToken::generate()?, LONG).await?;
        ensure!(matches!(other, ClaimOutcome::Busy { wait } if wait <= CLAIM), "{other:?}");
        Ok(())
    };
    match timeout(DEADLINE, dedup.once("order-7", handler)).await?? {
        Outcome::Done(()) => Ok(()),
        Outcome::Failed(error) => Err(error),
        outcome => bail!("{outcome:?}"),
    }
}

/// So that two do not go on with the same message.
pub async fn a_handler_whose_claim_was_taken_over_is_stopped(harness: &impl DedupHarness) -> Result<()> {
    const CLAIM: Duration = Duration::from_secs(3);
    struct Dropped<'a>(&'a AtomicUsize);
    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let gate = Arc::new(Gate::closed(harness.store()));
    let dedup = Dedup::new(Arc::clone(&gate)).with_claim(CLAIM).for_consumer("billing")?;
    let (dropped, token) = (AtomicUsize::new(0), ClaimToken::generate()?);
    let handler = || async {
        let _dropped = Dropped(&dropped);
        harness.advance(2 * CLAIM).await?;
        let taken = harness.store().claim(&key("order-7")?, &token, LONG).await?;
        ensure!(taken == ClaimOutcome::Claimed, "{taken:?}");
        gate.let_through();
        std::future::pending::<Result<()>>().await
    };
    let outcome = timeout(DEADLINE, dedup.once("order-7", handler)).await??;
    ensure!(matches!(outcome, Outcome::Busy { .. }), "{outcome:?}");
    ensure!(dropped.load(Ordering::SeqCst) == 1, "the handler was dropped");
    ensure!(harness.store().mark(&key("order-7")?, &token, WINDOW).await? == Hold::Held, "the other one goes on");
    Ok(())
}

/// What was seen of a message.
#[derive(Debug, Default, Clone)]
struct Seen {
    running: bool,
    overlaps: usize,
    runs: usize,
    done: usize,
}

/// A handler that runs, until it ends or is dropped.
struct Running<'a>(&'a Mutex<Vec<Seen>>, usize);

impl<'a> Running<'a> {
    fn begin(seen: &'a Mutex<Vec<Seen>>, number: usize) -> Self {
        let running = Self(seen, number);
        running.note(|seen| {
            (seen.overlaps, seen.runs) = (seen.overlaps + usize::from(seen.running), seen.runs + 1);
            seen.running = true;
        });
        running
    }

    fn note(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)[self.1]);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.note(|seen| seen.running = false);
    }
}

/// Each is delivered several times at once; handlers fail, panic and are dropped.
#[expect(clippy::print_stdout, reason = "the figures of a fault test")]
pub async fn messages_that_come_many_times_are_processed_once_whatever_fails(
    harness: &impl DedupHarness,
) -> Result<()> {
    const MESSAGES: usize = 40;
    const WORKERS: usize = 8;
    let seen = Arc::new(Mutex::new(vec![Seen::default(); MESSAGES]));
    let mut random = Random::new();
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (dedup, seen, mut random) = (dedup(harness)?, Arc::clone(&seen), Random::from_seed(random.bits()));
        workers.spawn(async move {
            let mut left: Vec<usize> = (0..MESSAGES).collect();
            while !left.is_empty() {
                let at = random.below(left.len());
                let (number, fate) = (left[at], random.below(6));
                let handler = || async {
                    let running = Running::begin(&seen, number);
                    tokio::task::yield_now().await;
                    match fate {
                        0 => Err("fails"),
                        1 => std::future::pending().await,
                        _ => {
                            running.note(|seen| seen.done += 1);
                            Ok(())
                        }
                    }
                };
                let id = format!("order-{number}");
                let delivery = dedup.once(&id, handler);
                // What waits for ever is dropped, like a worker that is stopped.
                let patience = if fate == 1 { Duration::from_millis(20) } else { DEADLINE };
                match timeout(patience, delivery).await {
                    Ok(Ok(outcome)) if outcome.is_processed() => drop(left.swap_remove(at)),
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => bail!("{error}"),
                    Err(_) => ensure!(fate == 1, "a delivery is not answered"),
                }
                tokio::task::yield_now().await;
            }
            Ok(())
        });
    }
    while let Some(worker) = timeout(DEADLINE, workers.join_next()).await? {
        worker??;
    }
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let sum = |of: fn(&Seen) -> usize| seen.iter().map(of).sum::<usize>();
    let (runs, doubled) = (sum(|seen| seen.runs), sum(|seen| seen.done.saturating_sub(1)));
    println!("messages {MESSAGES}, runs {runs}, done twice {doubled}, at once {}", sum(|seen| seen.overlaps));
    ensure!(seen.iter().all(|seen| seen.done == 1 && seen.overlaps == 0), "each is processed once, by one at a time");
    Ok(())
}
