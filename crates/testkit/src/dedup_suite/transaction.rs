//! What every database must hold to where the mark is in the handler's own transaction: mark and effect commit together, so there
//! is exactly one effect.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use relais_dedup::{DedupError, Outcome};
use tokio::{
    sync::{Notify, oneshot},
    task::JoinSet,
    time::timeout,
};

use super::DEADLINE;
use crate::Random;

/// What a handler does after its effect, in the same transaction.
#[derive(Debug)]
pub enum Then {
    /// It succeeds.
    Succeed,
    /// It fails.
    Fail,
    /// It panics.
    Panic,
    /// It says that it has begun, and succeeds when it is told to.
    Wait(oneshot::Sender<()>, Arc<Notify>),
    /// Its connection is cut.
    LoseConnection,
}

/// A database with tables of effects and of marks, both empty.
#[async_trait]
pub trait TransactionHarness: Send + Sync + 'static {
    /// Delivers a message: its handler writes an effect, then does as it is told.
    async fn deliver(&self, id: &str, then: Then) -> Result<Outcome<(), String>, DedupError>;

    /// How many effects a message had; of all messages if there is no id.
    async fn effects(&self, id: Option<&str>) -> Result<usize>;

    /// Lets time pass for all marks.
    async fn advance(&self, time: Duration) -> Result<()>;

    /// Whether the server can cut a connection.
    fn can_lose_connections(&self) -> bool;
}

/// Makes one test of each promise. The argument is an async function without parameters that returns
/// `anyhow::Result<impl TransactionHarness>`.
#[macro_export]
macro_rules! transaction_dedup_suite {
    ($harness:ident) => {
        $crate::transaction_dedup_suite! { @tests $harness;
            a_second_delivery_has_no_effect,
            an_effect_is_rolled_back_with_its_mark,
            a_delivery_while_the_first_transaction_is_open_is_busy,
            a_transaction_that_is_dropped_leaves_nothing,
            a_message_has_an_effect_again_after_its_window,
            messages_have_one_effect_under_random_load_with_failures,
        }
    };
    (@tests $harness:ident; $($promise:ident),* $(,)?) => {
        $(#[tokio::test]
        async fn $promise() -> anyhow::Result<()> {
            $crate::dedup_suite::transaction::$promise(std::sync::Arc::new($harness().await?)).await
        })*
    };
}

/// And is no failure.
pub async fn a_second_delivery_has_no_effect(harness: Arc<impl TransactionHarness>) -> Result<()> {
    ensure!(harness.deliver("order-7", Then::Succeed).await? == Outcome::Done(()));
    ensure!(harness.deliver("order-7", Then::Succeed).await? == Outcome::AlreadyDone);
    ensure!(harness.effects(Some("order-7")).await? == 1);
    Ok(())
}

/// After a failure, a panic, or a lost connection.
pub async fn an_effect_is_rolled_back_with_its_mark(harness: Arc<impl TransactionHarness>) -> Result<()> {
    ensure!(harness.deliver("order-7", Then::Fail).await? == Outcome::Failed("fails".to_owned()));
    let panics = Arc::clone(&harness);
    let panicked = tokio::spawn(async move { panics.deliver("order-7", Then::Panic).await.is_ok() }).await;
    ensure!(panicked.is_err_and(|error| error.is_panic()), "the panic goes on");
    if harness.can_lose_connections() {
        ensure!(!matches!(harness.deliver("order-7", Then::LoseConnection).await, Ok(Outcome::Done(()))));
    }
    ensure!(harness.effects(None).await? == 0);
    ensure!(soon(&harness, "order-7").await? == Outcome::Done(()));
    ensure!(harness.effects(Some("order-7")).await? == 1);
    Ok(())
}

/// Delivers until nobody else has the message: a transaction that was dropped is rolled back in the background.
async fn soon(harness: &Arc<impl TransactionHarness>, id: &str) -> Result<Outcome<(), String>> {
    let delivered = async {
        loop {
            match harness.deliver(id, Then::Succeed).await? {
                Outcome::Busy { .. } => tokio::task::yield_now().await,
                outcome => return anyhow::Ok(outcome),
            }
        }
    };
    timeout(DEADLINE, delivered).await.context("nobody else has it")?
}

/// It is neither run nor acknowledged.
pub async fn a_delivery_while_the_first_transaction_is_open_is_busy(
    harness: Arc<impl TransactionHarness>,
) -> Result<()> {
    let (begin, begun) = oneshot::channel();
    let go = Arc::new(Notify::new());
    let (first, wait) = (Arc::clone(&harness), Then::Wait(begin, Arc::clone(&go)));
    let first = tokio::spawn(async move { first.deliver("order-7", wait).await });
    timeout(DEADLINE, begun).await??;
    let second = timeout(DEADLINE, harness.deliver("order-7", Then::Succeed)).await??;
    ensure!(matches!(second, Outcome::Busy { wait } if !wait.is_zero()), "{second:?}");
    go.notify_one();
    ensure!(timeout(DEADLINE, first).await??? == Outcome::Done(()));
    ensure!(harness.deliver("order-7", Then::Succeed).await? == Outcome::AlreadyDone);
    ensure!(harness.effects(Some("order-7")).await? == 1);
    Ok(())
}

/// Its worker was stopped in the middle.
pub async fn a_transaction_that_is_dropped_leaves_nothing(harness: Arc<impl TransactionHarness>) -> Result<()> {
    let (begin, begun) = oneshot::channel();
    let (dropped, wait) = (Arc::clone(&harness), Then::Wait(begin, Arc::default()));
    let task = tokio::spawn(async move { dropped.deliver("order-7", wait).await.is_ok() });
    timeout(DEADLINE, begun).await??;
    task.abort();
    ensure!(task.await.is_err_and(|error| error.is_cancelled()));
    ensure!(soon(&harness, "order-7").await? == Outcome::Done(()));
    ensure!(harness.effects(Some("order-7")).await? == 1);
    Ok(())
}

/// And not before.
pub async fn a_message_has_an_effect_again_after_its_window(harness: Arc<impl TransactionHarness>) -> Result<()> {
    let hour = Duration::from_secs(3600);
    ensure!(harness.deliver("order-7", Then::Succeed).await? == Outcome::Done(()));
    harness.advance(23 * hour).await?;
    ensure!(harness.deliver("order-7", Then::Succeed).await? == Outcome::AlreadyDone);
    harness.advance(hour).await?;
    ensure!(harness.deliver("order-7", Then::Succeed).await? == Outcome::Done(()));
    ensure!(harness.effects(Some("order-7")).await? == 2);
    Ok(())
}

/// Each is delivered by many at once until somebody is told that it is done. Handlers fail, panic and are dropped, and
/// connections are lost.
#[expect(clippy::print_stdout, reason = "the figures of a fault test")]
pub async fn messages_have_one_effect_under_random_load_with_failures(
    harness: Arc<impl TransactionHarness>,
) -> Result<()> {
    const MESSAGES: usize = 60;
    const WORKERS: usize = 6;
    let (mut random, mut workers) = (Random::new(), JoinSet::new());
    for _ in 0..WORKERS {
        let (harness, mut random) = (Arc::clone(&harness), Random::from_seed(random.bits()));
        workers.spawn(async move {
            let (mut left, mut deliveries) = ((0..MESSAGES).collect::<Vec<_>>(), 0);
            while !left.is_empty() {
                let (at, fate) = (random.below(left.len()), random.below(8));
                let (id, harness) = (format!("order-{}", left[at]), Arc::clone(&harness));
                deliveries += 1;
                let (begin, begun) = oneshot::channel();
                let then = match fate {
                    0 => Then::Fail,
                    1 => Then::Panic,
                    2 => Then::Wait(begin, Arc::default()),
                    3 if harness.can_lose_connections() => Then::LoseConnection,
                    _ => Then::Succeed,
                };
                let delivery = tokio::spawn(async move { harness.deliver(&id, then).await });
                if fate == 2 {
                    // It is dropped in the middle, unless it was busy or done.
                    let _ = timeout(DEADLINE, begun).await?;
                    delivery.abort();
                }
                // What fails in one way or the other is delivered again.
                if let Ok(Ok(outcome)) = timeout(DEADLINE, delivery).await?
                    && outcome.is_processed()
                {
                    left.swap_remove(at);
                }
            }
            anyhow::Ok(deliveries)
        });
    }
    let mut deliveries = 0;
    while let Some(worker) = timeout(DEADLINE, workers.join_next()).await? {
        deliveries += worker??;
    }
    let effects = harness.effects(None).await?;
    println!("messages {MESSAGES}, deliveries {deliveries}, effects {effects}");
    for number in 0..MESSAGES {
        let effects = harness.effects(Some(&format!("order-{number}"))).await?;
        ensure!(effects == 1, "order-{number} has {effects} effects");
    }
    Ok(())
}
