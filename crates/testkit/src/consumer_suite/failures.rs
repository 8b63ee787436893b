//! Promises about messages that fail: retries, dead letters, panics, hooks, busy messages.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use async_trait::async_trait;
use relais_push_worker::{ErrorDecision, FailedMessage, Hooks, Order, SubscriberError};

use super::{
    ConsumerHarness, Seen, SeenDeadLetter, check_order, dead_letters, messages, one, settings, start, stop, until, well,
};

/// `retry_count` says how often.
pub async fn a_failed_message_is_retried_with_its_count<H: ConsumerHarness>(harness: &H) -> Result<()> {
    let act =
        |seen: Seen| async move { if seen.retries < 2 { Err(std::io::Error::other("away").into()) } else { Ok(()) } };
    let (worker, mut sight) = start(harness, settings(harness), act).await?;
    harness.publish(&[one("a", 0)]).await?;
    let seen = sight.next_many(3).await?;
    let retries: Vec<u32> = seen.iter().map(|seen| seen.retries).collect();
    ensure!(retries == [0, 1, 2], "{seen:?}");
    until("its success is counted", || worker.worker().stats().execution_count == 1).await?;
    let report = stop(worker).await?;
    ensure!((report.processed, report.errors, report.dead_lettered) == (1, 2, 0), "and its two failures");
    ensure!(harness.dead_letters().await?.is_empty(), "it is no dead letter");
    Ok(())
}

/// And those of other keys go on.
pub async fn later_messages_of_a_key_wait_for_a_retry<H: ConsumerHarness>(harness: &H) -> Result<()> {
    let act = |seen: Seen| async move {
        let fails = seen.key == "k0" && seen.number == 1 && seen.retries < 2;
        if fails { Err(SubscriberError::retryable("not yet")) } else { Ok(()) }
    };
    let (worker, mut sight) = start(harness, settings(harness).order(Order::Key), act).await?;
    let sent = messages(3, 5);
    harness.publish(&sent).await?;
    let seen = sight.next_many(sent.len() + 2).await?;
    if harness.features().keeps_order {
        let of_key: Vec<_> =
            seen.iter().filter(|seen| seen.key == "k0").map(|seen| (seen.number, seen.retries)).collect();
        ensure!(of_key == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (3, 0), (4, 0)], "{of_key:?}");
    }
    check_order(&seen.into_iter().filter(|seen| seen.key != "k0").collect::<Vec<_>>())?;
    ensure!(stop(worker).await?.processed == 15, "all are done");
    Ok(())
}

/// With the last error.
pub async fn retries_that_are_used_up_make_a_dead_letter<H: ConsumerHarness>(harness: &H) -> Result<()> {
    let act = |seen: Seen| async move { Err(SubscriberError::retryable(format!("no paper at try {}", seen.retries))) };
    let (worker, mut sight) = start(harness, settings(harness).retries(2), act).await?;
    harness.publish(&[one("a", 7)]).await?;
    sight.next_many(3).await?;
    let letters = dead_letters(harness, 1).await?;
    let expected = SeenDeadLetter { key: "a".to_owned(), number: 7, error: "no paper at try 2".to_owned() };
    ensure!(letters == [expected], "{letters:?}");
    let report = stop(worker).await?;
    ensure!((report.processed, report.errors, report.dead_lettered, report.left.len()) == (0, 3, 1, 0), "counted");
    nothing_comes_again(harness).await
}

/// It is not retried, and does not come again.
pub async fn a_poison_message_becomes_a_dead_letter_and_the_rest_goes_on<H: ConsumerHarness>(
    harness: &H,
) -> Result<()> {
    let act = |seen: Seen| async move { if seen.key == "k1" { Err(SubscriberError::fatal("poison")) } else { Ok(()) } };
    let (worker, mut sight) = start(harness, settings(harness).order(Order::Key), act).await?;
    let sent = messages(3, 4);
    harness.publish(&sent).await?;
    let seen = sight.next_many(sent.len()).await?;
    check_order(&seen)?;
    let mut letters = dead_letters(harness, 4).await?;
    letters.sort_by_key(|letter| letter.number);
    for (number, letter) in letters.iter().enumerate() {
        ensure!((&*letter.key, letter.number, &*letter.error) == ("k1", number, "poison"), "{letters:?}");
    }
    let report = stop(worker).await?;
    ensure!((report.processed, report.errors, report.dead_lettered) == (8, 4, 4), "the rest is done");
    nothing_comes_again(harness).await
}

/// Its text is the error.
pub async fn a_panic_fails_its_message_only<H: ConsumerHarness>(harness: &H) -> Result<()> {
    let act = |seen: Seen| async move {
        assert_ne!(seen.number, 1, "a bad one");
        Ok(())
    };
    let (worker, mut sight) = start(harness, settings(harness).retries(0), act).await?;
    harness.publish(&messages(1, 3)).await?;
    sight.next_many(3).await?;
    let letters = dead_letters(harness, 1).await?;
    ensure!(letters[0].number == 1 && letters[0].error.contains("a bad one"), "{letters:?}");
    ensure!(worker.worker().is_healthy(), "it goes on");
    let report = stop(worker).await?;
    ensure!((report.processed, report.errors, report.dead_lettered) == (2, 1, 1), "the others are done");
    Ok(())
}

/// It counts as a retryable failure once the time is up.
pub async fn a_handler_that_does_not_return_fails_its_message_only<H: ConsumerHarness>(harness: &H) -> Result<()> {
    let act = |seen: Seen| async move {
        if seen.number == 0 {
            std::future::pending::<()>().await;
        }
        Ok(())
    };
    let timed = settings(harness).concurrency(1).retries(1).handler_timeout(Duration::from_millis(50));
    let (worker, mut sight) = start(harness, timed, act).await?;
    harness.publish(&messages(1, 3)).await?;
    let seen = sight.next_many(4).await?;
    ensure!(seen.iter().filter(|seen| seen.number == 0).count() == 2, "it was retried: {seen:?}");
    let letters = dead_letters(harness, 1).await?;
    ensure!(letters[0].number == 0 && letters[0].error.contains("longer than"), "{letters:?}");
    let report = stop(worker).await?;
    ensure!((report.processed, report.errors, report.dead_lettered) == (2, 2, 1), "the others are done");
    Ok(())
}

/// It keeps its place in the order.
pub async fn a_busy_message_waits_and_counts_neither_as_error_nor_as_retry<H: ConsumerHarness>(
    harness: &H,
) -> Result<()> {
    let busy = Arc::new(Mutex::new(HashMap::from([("k0", 5)])));
    let act = move |seen: Seen| {
        let mut busy = busy.lock().unwrap_or_else(PoisonError::into_inner);
        let left = busy.get_mut(&*seen.key).filter(|left| **left > 0);
        let is_busy = left.map(|left| *left -= 1).is_some();
        async move { if is_busy { Err(SubscriberError::busy("somebody else has it")) } else { Ok(()) } }
    };
    let (worker, mut sight) = start(harness, settings(harness).order(Order::Key).retries(0), act).await?;
    let sent = messages(2, 3);
    harness.publish(&sent).await?;
    let seen = sight.next_many(sent.len() + 5).await?;
    ensure!(seen.iter().all(|seen| seen.retries == 0), "{seen:?}");
    check_order(&seen)?;
    let report = stop(worker).await?;
    ensure!((report.processed, report.errors, report.dead_lettered, report.left.len()) == (6, 0, 0, 0), "all are done");
    ensure!(harness.dead_letters().await?.is_empty(), "none is a dead letter");
    Ok(())
}

/// Decides by the key of a message, and by what it is told.
struct Decides<H>(Arc<AtomicU32>, std::marker::PhantomData<fn() -> H>);

#[async_trait]
impl<H: ConsumerHarness + 'static> Hooks<H::Message> for Decides<H> {
    async fn error(&self, failed: &FailedMessage<'_, H::Message>) -> ErrorDecision {
        let seen = H::read(failed.message);
        let told = failed.worker == "suite" && failed.retries == seen.retries && failed.error.to_string() == seen.key;
        self.0.fetch_add(u32::from(told), Ordering::Relaxed);
        match &*seen.key {
            "drop" => ErrorDecision::Drop,
            "dead letter" => ErrorDecision::DeadLetter,
            "retry" => ErrorDecision::Retry,
            _ => ErrorDecision::BySettings,
        }
    }
}

/// It knows message, error and worker, and may have it retried, dead-lettered or dropped.
pub async fn an_error_hook_decides<H: ConsumerHarness + 'static>(harness: &H) -> Result<()> {
    let act = |seen: Seen| async move {
        let again = seen.key == "dead letter";
        let error: fn(String) -> _ = if again { SubscriberError::retryable } else { SubscriberError::fatal };
        if seen.key == "retry" && seen.retries == 2 { Ok(()) } else { Err(error(seen.key)) }
    };
    let told = Arc::new(AtomicU32::new(0));
    let hooks = Decides::<H>(Arc::clone(&told), std::marker::PhantomData);
    let (worker, mut sight) = start(harness, settings(harness).retries(1).hooks(hooks), act).await?;
    harness.publish(&["drop", "dead letter", "retry", "settings"].map(|key| one(key, 0))).await?;
    // "retry" fails twice, though the error is fatal and the settings allow one; "dead letter" fails once, though it is
    // retryable.
    let seen = sight.next_many(6).await?;
    ensure!(seen.iter().filter(|seen| seen.key == "retry").count() == 3, "{seen:?}");
    let mut letters: Vec<_> = dead_letters(harness, 2).await?.into_iter().map(|letter| letter.key).collect();
    letters.sort();
    ensure!(letters == ["dead letter", "settings"], "{letters:?}");
    let report = stop(worker).await?;
    ensure!((report.processed, report.errors, report.dead_lettered, report.dropped) == (1, 5, 2, 1), "counted");
    ensure!(told.load(Ordering::Relaxed) == 5, "the hook knows what failed, why and where");
    nothing_comes_again(harness).await
}

/// What was settled is not delivered to the next worker.
async fn nothing_comes_again<H: ConsumerHarness>(harness: &H) -> Result<()> {
    let (worker, mut sight) = start(harness, settings(harness), well).await?;
    harness.publish(&[one("last", 0)]).await?;
    let seen = sight.next().await?;
    ensure!(seen.key == "last", "{seen:?} came again");
    stop(worker).await?;
    Ok(())
}
