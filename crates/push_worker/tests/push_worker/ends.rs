//! How a worker ends: asked to, by its source, at once.

use std::{sync::Arc, time::Duration};

use relais_push_worker::{SubscriberError, WorkerSettings, WorkerState};
use tokio::{sync::mpsc, time::Instant};

use crate::script::{Note, done, left, start};

fn settings() -> WorkerSettings<Note> {
    WorkerSettings::new("w")
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_retries_that_are_due_in_time_only() {
    let fails = |_| async { Err(SubscriberError::retryable("no")) };
    let (worker, mut feed) = start(settings().stop_timeout(Duration::from_secs(4)), fails).await;
    feed.deliver(0, &["a-1"]);
    let begin = Instant::now();
    let report = worker.stop().await;
    assert_eq!((report.errors, report.left.len()), (2, 1), "the retry after 2 s, not the one after 4 s more");
    assert_eq!(begin.elapsed(), Duration::from_secs(2), "there is nothing to wait for");
    assert_eq!(report.left[0].retries, 2);
    assert_eq!(feed.settled().await, left("a-1"));
    assert_eq!(feed.is_closed(), (true, true));
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_at_its_deadline_even_if_the_consumer_hangs() {
    let (worker, mut feed) = start(settings(), |_| std::future::pending()).await;
    feed.rule(|rules| rules.hangs = true);
    feed.deliver(0, &["a-1", "a-2"]);
    let begin = Instant::now();
    let report = worker.stop().await;
    assert_eq!((begin.elapsed().as_secs(), report.left.len()), (30, 2));
    assert_eq!(feed.settled_many(2).await, [left("a-1"), left("a-2")]);
}

#[tokio::test(start_paused = true)]
async fn a_worker_ends_with_its_source_once_everything_is_done() {
    let (worker, mut feed) = start(settings(), |_| async { Ok(()) }).await;
    feed.deliver(0, &["a-1", "a-2"]);
    feed.close();
    assert_eq!(feed.settled_many(2).await, [done("a-1"), done("a-2")]);
    while worker.stats().state != WorkerState::Stopped {
        tokio::task::yield_now().await;
    }
    assert!(!worker.is_healthy() && worker.stats().schedule == relais_push_worker::WorkerSchedule::Push);
    assert_eq!(worker.stop().await.processed, 2);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_cut_off_lets_go_of_its_consumer() {
    let (sender, mut begun) = mpsc::unbounded_channel();
    let handler = move |_: Arc<Note>| {
        sender.send(()).unwrap();
        std::future::pending()
    };
    let (worker, mut feed) = start(settings(), handler).await;
    feed.deliver(0, &["a-1"]);
    begun.recv().await.unwrap();
    worker.abort_handle().abort();
    assert!(begun.recv().await.is_none(), "its handlers end with it");
    while feed.is_closed() != (false, true) {
        tokio::task::yield_now().await;
    }
    assert!(feed.is_quiet() && !worker.is_healthy(), "unsettled, though its owner still holds it");
}
