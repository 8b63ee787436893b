//! Promises about many workers, slow handlers, lost connections and servers that crash.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use relais_push_worker::Order;

use super::{
    ConsumerHarness, Seen, Sight, check_order, messages, names, one, settings, sorted, start, stop, until, well,
};

/// Each message is handled by one of them, and workers that come and go lose none. Where there are partitions, these are
/// handed over, and messages of a key stay in order: no two of them are ever handled at the same time.
pub async fn workers_share_the_messages<H: ConsumerHarness>(harness: &H) -> Result<()> {
    if !harness.features().shares_work {
        return Ok(());
    }
    // In the order in which they are done, whoever does it.
    let done = Arc::new(Mutex::new(Vec::new()));
    let (running, overlaps) = (Arc::new(Mutex::new(HashSet::new())), Arc::new(AtomicUsize::new(0)));
    let act = {
        let (done, running, overlaps) = (Arc::clone(&done), Arc::clone(&running), Arc::clone(&overlaps));
        move |seen: Seen| {
            let (done, running, overlaps) = (Arc::clone(&done), Arc::clone(&running), Arc::clone(&overlaps));
            async move {
                let alone = running.lock().unwrap_or_else(PoisonError::into_inner).insert(seen.key.clone());
                overlaps.fetch_add(usize::from(!alone), Ordering::Relaxed);
                // So that some run whenever a worker comes or goes.
                tokio::time::sleep(Duration::from_millis(2)).await;
                running.lock().unwrap_or_else(PoisonError::into_inner).remove(&seen.key);
                done.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
                Ok(())
            }
        }
    };
    let count = || done.lock().unwrap_or_else(PoisonError::into_inner).len();
    let sent = messages(20, 60);
    let (first, _sight) = start(harness, settings(harness).order(Order::Key), act.clone()).await?;
    harness.publish(&sent[..400]).await?;
    until("the first worker works", || count() > 0).await?;
    let (second, _sight) = start(harness, settings(harness).order(Order::Key), act).await?;
    harness.publish(&sent[400..800]).await?;
    until("both are done", || count() >= 800).await?;
    let shared = [&first, &second].map(|worker| worker.worker().stats().execution_count);
    harness.publish(&sent[800..]).await?;
    let report = stop(first).await?;
    ensure!(report.left.is_empty(), "it leaves in good order");
    until("the second one goes on alone", || count() >= sent.len()).await?;
    stop(second).await?;
    let seen = done.lock().unwrap_or_else(PoisonError::into_inner).clone();
    ensure!(
        sorted(names(&seen)) == sorted(sent),
        "each message once: {} were done, {shared:?} before the stop",
        seen.len()
    );
    if harness.features().has_partitions {
        check_order(&seen)?;
        ensure!(overlaps.load(Ordering::Relaxed) == 0, "two of a key at the same time");
    }
    Ok(())
}

/// However long it takes: nobody else gets it, and the worker goes on beside it and afterwards.
pub async fn a_slow_handler_keeps_its_message<H: ConsumerHarness>(harness: &H) -> Result<()> {
    let long = harness.patience() * 2;
    let act = move |seen: Seen| async move {
        if seen.key == "slow" {
            tokio::time::sleep(long).await;
        }
        Ok(())
    };
    let features = harness.features();
    let (first, mut sight) = start(harness, settings(harness).order(Order::Key), act).await?;
    harness.publish(&[one("slow", 0)]).await?;
    let mut seen = vec![sight.next().await?];
    let mut all = vec![first];
    // Somebody to whom it would go. One that joins where there are partitions takes some over, which is another promise.
    let mut beside = None;
    if features.shares_work && !features.has_partitions {
        let (second, sight) = start(harness, settings(harness).order(Order::Key), well).await?;
        all.push(second);
        beside = Some(sight);
    }
    let others = messages(3, 3);
    harness.publish(&others).await?;
    let done = || all.iter().map(|worker| worker.worker().stats().execution_count).sum::<u64>();
    until("all are done", || done() > others.len() as u64).await?;
    for worker in all {
        ensure!(stop(worker).await?.left.is_empty(), "nothing is left");
    }
    seen.extend(sight.rest());
    seen.extend(beside.iter_mut().flat_map(Sight::rest));
    ensure!(seen.iter().filter(|seen| seen.key == "slow").count() == 1, "it came once: {seen:?}");
    ensure!(seen.len() == 1 + others.len(), "and the others too: {seen:?}");
    Ok(())
}

/// The worker says that it is not healthy, and goes on when the connection is back.
pub async fn a_lost_connection_loses_nothing<H: ConsumerHarness>(harness: &H) -> Result<()> {
    let (worker, mut sight) = start(harness, settings(harness).order(Order::Key), well).await?;
    let sent = messages(10, 30);
    harness.publish(&sent[..150]).await?;
    let mut seen = sight.next_many(20).await?;
    if !harness.features().redelivers || !harness.cut().await? {
        return Ok(());
    }
    until("it notices", || !worker.worker().is_healthy()).await?;
    harness.publish(&sent[150..]).await?;
    harness.restore().await?;
    seen.extend(sight.until_all(&missing(&sent, &seen)).await?);
    check_order(&seen)?;
    until("it is healthy again", || worker.worker().is_healthy()).await?;
    stop(worker).await.map(drop)
}

/// What was not settled comes again, what was not delivered comes.
pub async fn a_crash_of_the_server_loses_nothing<H: ConsumerHarness>(harness: &H) -> Result<()> {
    let (worker, mut sight) = start(harness, settings(harness).order(Order::Key), well).await?;
    let sent = messages(10, 30);
    harness.publish(&sent).await?;
    let mut seen = sight.next_many(20).await?;
    if !harness.features().redelivers || !harness.crash().await? {
        return Ok(());
    }
    seen.extend(sight.until_all(&missing(&sent, &seen)).await?);
    check_order(&seen)?;
    until("it is healthy again", || worker.worker().is_healthy()).await?;
    stop(worker).await.map(drop)
}

/// What was sent and has not been seen.
fn missing(sent: &[(String, usize)], seen: &[Seen]) -> Vec<(String, usize)> {
    let known = names(seen);
    sent.iter().filter(|name| !known.contains(name)).cloned().collect()
}
