//! Promises about messages that meet no trouble: each once, in order where asked for, counted.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Result, ensure};
use relais_push_worker::{Order, WorkerState};
use tokio::sync::Barrier;

use super::{ConsumerHarness, check_order, messages, names, settings, sorted, start, stop, until, well};

/// The numbers say so, and have the keys that they should have.
pub async fn every_message_is_handled_once_and_counted<H: ConsumerHarness>(harness: &H) -> Result<()> {
    let (worker, mut sight) = start(harness, settings(harness), well).await?;
    ensure!(worker.worker().features() == harness.features(), "the features are those that the suite is told");
    until("a worker that was started is healthy", || worker.worker().is_healthy()).await?;
    let sent = messages(5, 20);
    harness.publish(&sent).await?;
    let seen = sight.next_many(sent.len()).await?;
    ensure!(sorted(names(&seen)) == sorted(sent), "all come: {seen:?}");
    until("all are counted", || worker.worker().stats().execution_count == 100).await?;
    until("nothing is left to do", || worker.worker().backlog() == 0).await?;
    let stats = worker.worker().stats();
    ensure!(stats.state == WorkerState::Running && stats.errors_count == 0 && stats.concurrency == 8, "{stats:?}");
    ensure!(
        stats.last_execution.is_some() && stats.avg_duration_ms > 0.0 && stats.throughput_per_sec > 0.0,
        "{stats:?}"
    );
    ensure!(!stats.channels.is_empty() && stats.subscriptions.len() >= stats.channels.len(), "{stats:?}");
    let report = stop(worker).await?;
    ensure!((report.processed, report.errors, report.left.len()) == (100, 0, 0), "once each");
    ensure!(sight.rest().is_empty(), "and no more");
    Ok(())
}

/// While those of other keys run beside them.
pub async fn messages_of_a_key_are_handled_one_after_the_other<H: ConsumerHarness>(harness: &H) -> Result<()> {
    let running = Arc::new(Mutex::new(HashSet::new()));
    let act = move |seen: super::Seen| {
        let running = Arc::clone(&running);
        async move {
            let alone = running.lock().unwrap_or_else(PoisonError::into_inner).insert(seen.key.clone());
            tokio::task::yield_now().await;
            running.lock().unwrap_or_else(PoisonError::into_inner).remove(&seen.key);
            if alone {
                Ok(())
            } else {
                Err(relais_push_worker::SubscriberError::fatal("two of a key at the same time"))
            }
        }
    };
    let (worker, mut sight) = start(harness, settings(harness).order(Order::Key), act).await?;
    let sent = messages(5, 40);
    harness.publish(&sent).await?;
    let seen = sight.next_many(sent.len()).await?;
    check_order(&seen)?;
    ensure!(seen.iter().all(|seen| seen.retries == 0), "none failed");
    let report = stop(worker).await?;
    ensure!((report.processed, report.errors) == (200, 0), "no two of a key at the same time");
    Ok(())
}

/// Up to the concurrency.
pub async fn messages_without_order_are_handled_at_the_same_time<H: ConsumerHarness>(harness: &H) -> Result<()> {
    // Nobody passes before all eight are there.
    let all = Arc::new(Barrier::new(8));
    let act = move |_| {
        let all = Arc::clone(&all);
        async move {
            all.wait().await;
            Ok(())
        }
    };
    let (worker, mut sight) = start(harness, settings(harness), act).await?;
    harness.publish(&messages(1, 16)).await?;
    sight.next_many(16).await?;
    ensure!(stop(worker).await?.processed == 16, "all pass");
    Ok(())
}
