//! Partitions that are handed over, and partitions that are lost.

use std::{sync::Arc, time::Duration};

use relais_push_worker::{Order, PushWorker, SubscriberError, WorkerSettings};
use tokio::sync::{Semaphore, mpsc};

use crate::script::{Feed, Note, done, left, start};

/// A worker whose handlers end when they are let, with what they are told.
struct Held {
    worker: PushWorker<Note>,
    feed: Feed,
    begun: mpsc::UnboundedReceiver<String>,
    gate: Arc<Semaphore>,
}

async fn held(fails: bool) -> Held {
    let gate = Arc::new(Semaphore::new(0));
    let (sender, begun) = mpsc::unbounded_channel();
    let handler = {
        let gate = Arc::clone(&gate);
        move |note: Arc<Note>| {
            let gate = Arc::clone(&gate);
            sender.send(note.name.clone()).unwrap();
            async move {
                gate.acquire().await?.forget();
                if fails { Err(SubscriberError::retryable("no")) } else { Ok(()) }
            }
        }
    };
    let (worker, feed) = start(WorkerSettings::new("w").concurrency(2).order(Order::Key), handler).await;
    Held { worker, feed, begun, gate }
}

#[tokio::test(start_paused = true)]
async fn a_revoked_partition_is_handed_over_once_what_runs_of_it_is_settled() {
    let Held { worker, mut feed, mut begun, gate } = held(false).await;
    feed.deliver(0, &["a-1", "a-2", "b-1", "c-1"]);
    feed.deliver(1, &["x-1"]);
    assert_eq!((begun.recv().await.unwrap(), begun.recv().await.unwrap()), ("a-1".to_owned(), "b-1".to_owned()));
    let mut handed_over = feed.revoke(0);
    assert_eq!(feed.settled_many(2).await, [left("a-2"), left("c-1")], "what has not begun goes back at once");
    assert!(handed_over.try_recv().is_err(), "two run still");
    gate.add_permits(2);
    assert_eq!(feed.settled_many(2).await, [done("a-1"), done("b-1")]);
    handed_over.await.unwrap();
    assert_eq!(begun.recv().await.unwrap(), "x-1", "other partitions go on");
    gate.add_permits(1);
    assert_eq!(feed.settled().await, done("x-1"));
    assert!(worker.stop().await.left.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_revoked_partition_of_which_nothing_runs_is_handed_over_at_once() {
    let Held { worker, mut feed, mut begun, gate } = held(false).await;
    feed.deliver(1, &["x-1", "y-1"]);
    feed.deliver(0, &["a-1"]);
    begun.recv().await.unwrap();
    feed.revoke(0).await.unwrap();
    assert_eq!(feed.settled().await, left("a-1"));
    gate.add_permits(2);
    assert!(worker.stop().await.left.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_message_that_fails_while_its_partition_is_handed_over_is_left_for_the_next_owner() {
    let Held { worker, mut feed, mut begun, gate } = held(true).await;
    feed.deliver(0, &["a-1", "b-1"]);
    begun.recv().await.unwrap();
    begun.recv().await.unwrap();
    let handed_over = feed.revoke(0);
    gate.add_permits(1);
    feed.settled().await;
    gate.add_permits(1);
    handed_over.await.unwrap();
    feed.settled().await;
    assert!(feed.is_quiet() && worker.backlog() == 0, "neither waits for a retry");
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_for_its_retry_goes_back_with_its_partition() {
    let Held { worker, mut feed, mut begun, gate } = held(true).await;
    gate.add_permits(1);
    feed.deliver(0, &["a-1"]);
    begun.recv().await.unwrap();
    while worker.stats().errors_count < 1 || worker.stats().queue_size < 1 {
        tokio::task::yield_now().await;
    }
    feed.revoke(0).await.unwrap();
    assert_eq!(feed.settled().await, left("a-1"));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(begun.try_recv().is_err(), "it is not retried here");
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_becomes_of_a_lost_partition_does_not_count_and_its_keys_stay_in_order() {
    let Held { worker, mut feed, mut begun, gate } = held(false).await;
    feed.deliver(0, &["a-1", "a-2"]);
    assert_eq!(begun.recv().await.unwrap(), "a-1");
    feed.lose(0);
    assert_eq!(feed.settled().await, left("a-2"));
    // It comes back, while the handler of before still runs.
    feed.deliver(1, &["a-1", "a-2", "b-1"]);
    assert_eq!(begun.recv().await.unwrap(), "b-1", "a-1 must not run twice at the same time");
    gate.add_permits(2);
    assert_eq!(feed.settled_many(2).await, [left("a-1"), done("b-1")]);
    gate.add_permits(2);
    assert_eq!(feed.settled_many(2).await, [done("a-1"), done("a-2")]);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_cut_off_hands_its_partitions_over() {
    let Held { worker, mut feed, mut begun, .. } = held(false).await;
    feed.deliver(0, &["a-1"]);
    begun.recv().await.unwrap();
    let handed_over = feed.revoke(0);
    let report = worker.stop().await;
    assert_eq!(report.left.len(), 1);
    assert_eq!(feed.settled().await, left("a-1"));
    handed_over.await.unwrap();
}
