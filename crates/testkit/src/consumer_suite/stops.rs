//! Promises about the end of a worker: in good order, at its deadline, and without a word.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use relais_push_worker::WorkerState;
use tokio::{sync::Semaphore, time::timeout};

use super::{ConsumerHarness, DEADLINE, Seen, messages, names, one, settings, sorted, start, stop, until, well};

/// The next worker goes on where this one ended.
pub async fn a_stop_finishes_what_runs_and_nothing_is_lost_or_repeated<H: ConsumerHarness>(harness: &H) -> Result<()> {
    let gate = Arc::new(Semaphore::new(0));
    let act = {
        let gate = Arc::clone(&gate);
        move |_| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await?.forget();
                Ok(())
            }
        }
    };
    let (worker, mut sight) = start(harness, settings(harness).concurrency(4), act).await?;
    let sent = messages(4, 50);
    harness.publish(&sent).await?;
    let mut seen = sight.next_many(4).await?;
    // The stop begins while four run; they end only then.
    let (report, ()) = tokio::join!(stop(worker), async {
        tokio::task::yield_now().await;
        gate.add_permits(sent.len());
    });
    let report = report?;
    seen.extend(sight.rest());
    ensure!(report.left.is_empty() && report.processed == seen.len() as u64, "what began is done");
    if harness.features().redelivers {
        let (worker, mut sight) = start(harness, settings(harness), well).await?;
        seen.extend(sight.next_many(sent.len() - seen.len()).await?);
        stop(worker).await?;
        seen.extend(sight.rest());
    }
    ensure!(sorted(names(&seen)) == sorted(sent), "each message once: {} came", seen.len());
    Ok(())
}

/// And the report says what they are.
pub async fn what_a_stop_leaves_at_its_deadline_comes_again<H: ConsumerHarness>(harness: &H) -> Result<()> {
    let act = |seen: Seen| async move {
        if seen.key == "stuck" {
            std::future::pending::<()>().await;
        }
        Ok(())
    };
    let hasty = settings(harness).concurrency(1).stop_timeout(Duration::from_millis(200));
    let (worker, mut sight) = start(harness, hasty, act).await?;
    harness.publish(&[one("a", 0), one("stuck", 0), one("a", 1)]).await?;
    sight.next_many(2).await?;
    let report = stop(worker).await?;
    let left: Vec<Seen> = report.left.iter().map(|message| H::read(message)).collect();
    ensure!(left.iter().any(|seen| seen.key == "stuck"), "what was cut off is left: {left:?}");
    ensure!(report.processed == 1, "one was done");
    if harness.features().redelivers {
        let (worker, mut sight) = start(harness, settings(harness), well).await?;
        let seen = sight.until_all(&[one("stuck", 0), one("a", 1)]).await?;
        ensure!(!names(&seen).contains(&one("a", 0)), "what was done does not come again: {seen:?}");
        stop(worker).await?;
    }
    Ok(())
}

/// It says so while it ends, and afterwards.
pub async fn a_stopped_worker_is_not_healthy<H: ConsumerHarness>(harness: &H) -> Result<()> {
    let act = |_| async {
        std::future::pending::<()>().await;
        Ok(())
    };
    let hasty = settings(harness).concurrency(1).slow_after(Duration::from_millis(20));
    let (worker, mut sight) = start(harness, hasty.stop_timeout(Duration::from_millis(100)), act).await?;
    until("a worker that was started is healthy", || worker.worker().is_healthy()).await?;
    harness.publish(&[one("a", 0)]).await?;
    sight.next().await?;
    ensure!(worker.worker().backlog() >= 1, "what runs is not done");
    until("a worker whose places are all taken for too long is not", || !worker.worker().is_healthy()).await?;
    ensure!(worker.worker().stats().state == WorkerState::Running, "though it runs");
    let report = stop(worker).await?;
    ensure!(report.left.len() == 1, "it is left");
    Ok(())
}

/// Nothing that it has not finished is lost.
pub async fn what_a_killed_worker_had_comes_again<H: ConsumerHarness>(harness: &H) -> Result<()> {
    let act = |seen: Seen| async move {
        if seen.number > 2 {
            std::future::pending::<()>().await;
        }
        Ok(())
    };
    let (worker, mut sight) = start(harness, settings(harness).concurrency(4), act).await?;
    let sent = messages(1, 20);
    harness.publish(&sent).await?;
    let mut seen = sight.next_many(7).await?;
    worker.kill();
    let gone = async { while sight.0.recv().await.is_some() {} };
    timeout(DEADLINE, gone).await.context("its handlers end with it")?;
    if harness.features().redelivers {
        let (worker, mut sight) = start(harness, settings(harness), well).await?;
        seen.extend(sight.until_all(&sent[3..]).await?);
        stop(worker).await?;
    }
    Ok(())
}
