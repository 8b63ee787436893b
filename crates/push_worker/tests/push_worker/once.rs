//! Messages that come again, and are handled once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use relais_dedup::{ClaimOutcome, ClaimToken, Dedup, DedupError, DedupKey, DedupStore, Hold, MemoryDedup};
use relais_push_worker::{Order, PushWorker, Settled, SubscriberError, WorkerSettings};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use crate::script::{Feed, Note, done, start};

fn settings(dedup: &Dedup) -> WorkerSettings<Note> {
    WorkerSettings::new("w").once(dedup.clone())
}

/// A worker whose handler fails by the rule, and how often it was called.
async fn counted(
    settings: WorkerSettings<Note>,
    rule: impl Fn(&Note) -> Result<(), SubscriberError> + Send + Sync + 'static,
) -> (PushWorker<Note>, Feed, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&calls);
    let (worker, feed) = start(settings, move |note| {
        counter.fetch_add(1, Ordering::Relaxed);
        let result = rule(&note);
        async { result }
    })
    .await;
    (worker, feed, calls)
}

#[tokio::test(start_paused = true)]
async fn a_message_that_comes_again_is_settled_without_its_handler() {
    let dedup = Dedup::new(MemoryDedup::default());
    let (worker, mut feed, calls) = counted(settings(&dedup), |_| Ok(())).await;
    for _ in 0..3 {
        feed.deliver(0, &["a-1"]);
        assert_eq!(feed.settled().await, done("a-1"));
    }
    feed.deliver(0, &["a-2"]);
    assert_eq!(feed.settled().await, done("a-2"));
    assert_eq!((calls.load(Ordering::Relaxed), worker.stats().execution_count), (2, 2));
    let report = worker.stop().await;
    assert_eq!((report.processed, report.errors), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_fails_or_panics_leaves_no_mark() {
    let dedup = Dedup::new(MemoryDedup::default());
    let (worker, mut feed, calls) = counted(settings(&dedup), |note| match note.retries {
        0 => Err(SubscriberError::retryable("not yet")),
        1 => panic!("not yet either"),
        _ => Ok(()),
    })
    .await;
    for _ in 0..2 {
        feed.deliver(0, &["a-1"]);
        assert_eq!(feed.settled().await, done("a-1"));
    }
    assert_eq!(calls.load(Ordering::Relaxed), 3, "two failures, one success, and nothing when it came again");
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_a_dead_letter_can_be_replayed() {
    let dedup = Dedup::new(MemoryDedup::default());
    let is_mended = Arc::new(AtomicU32::new(0));
    let rule = {
        let is_mended = Arc::clone(&is_mended);
        move |_: &Note| match is_mended.load(Ordering::Relaxed) {
            0 => Err(SubscriberError::fatal("poison")),
            _ => Ok(()),
        }
    };
    let (worker, mut feed, _) = counted(settings(&dedup), rule).await;
    feed.deliver(0, &["a-1"]);
    assert_eq!(feed.settled().await, ("a-1".to_owned(), Settled::DeadLettered));
    is_mended.store(1, Ordering::Relaxed);
    feed.deliver(0, &["a-1"]);
    assert_eq!(feed.settled().await, done("a-1"));
    assert_eq!(worker.stats().execution_count, 1);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_handled_elsewhere_waits_in_its_order() {
    let dedup = Dedup::new(MemoryDedup::default());
    let release = Arc::new(Notify::new());
    let (first, mut first_feed) = start(settings(&dedup), {
        let release = Arc::clone(&release);
        move |_| {
            let release = Arc::clone(&release);
            async move {
                release.notified().await;
                Ok(())
            }
        }
    })
    .await;
    first_feed.deliver(0, &["a-1"]);
    while first.backlog() == 0 || first.stats().queue_size > 0 {
        tokio::task::yield_now().await;
    }
    let (second, mut feed, calls) = counted(settings(&dedup).concurrency(2).order(Order::Key), |_| Ok(())).await;
    feed.deliver(0, &["a-1", "a-2", "b-1"]);
    assert_eq!(feed.settled().await, done("b-1"), "other keys go on");
    assert!(timeout(Duration::from_secs(20), feed.settled()).await.is_err(), "a-2 waits for a-1");
    release.notify_one();
    assert_eq!(first_feed.settled().await, done("a-1"));
    assert_eq!([feed.settled().await, feed.settled().await], [done("a-1"), done("a-2")]);
    assert_eq!(calls.load(Ordering::Relaxed), 2, "a-1 was not handled twice");
    assert_eq!(second.stop().await.errors, 0, "to wait is no error");
    first.stop().await;
}

/// A store that is away for its first calls.
struct Away(MemoryDedup, AtomicU32);

#[async_trait]
impl DedupStore for Away {
    async fn claim(&self, key: &DedupKey, token: &ClaimToken, claim: Duration) -> Result<ClaimOutcome, DedupError> {
        if self.1.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
            return Err(DedupError::store("connection refused"));
        }
        self.0.claim(key, token, claim).await
    }

    async fn extend(&self, key: &DedupKey, token: &ClaimToken, claim: Duration) -> Result<Hold, DedupError> {
        self.0.extend(key, token, claim).await
    }

    async fn mark(&self, key: &DedupKey, token: &ClaimToken, window: Duration) -> Result<Hold, DedupError> {
        self.0.mark(key, token, window).await
    }

    async fn release(&self, key: &DedupKey, token: &ClaimToken) -> Result<(), DedupError> {
        self.0.release(key, token).await
    }

    async fn is_marked(&self, key: &DedupKey) -> Result<bool, DedupError> {
        self.0.is_marked(key).await
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_messages_wait_and_none_becomes_a_dead_letter() {
    let dedup = Dedup::new(Away(MemoryDedup::default(), AtomicU32::new(100)));
    let (worker, mut feed, calls) = counted(settings(&dedup).retries(1), |_| Ok(())).await;
    let begin = Instant::now();
    feed.deliver(0, &["a-1"]);
    assert_eq!(feed.settled().await, done("a-1"));
    assert!(begin.elapsed() >= Duration::from_secs(90), "it was asked about now and then, for {:?}", begin.elapsed());
    let report = worker.stop().await;
    assert_eq!((calls.load(Ordering::Relaxed), report.errors, report.dead_lettered), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_id_can_not_be_remembered_is_a_dead_letter() {
    let dedup = Dedup::new(MemoryDedup::default());
    let (worker, mut feed, calls) = counted(settings(&dedup), |_| Ok(())).await;
    let long = "a".repeat(2000);
    feed.deliver(0, &[&long]);
    assert_eq!(feed.settled().await.1, Settled::DeadLettered);
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_retries_outlast_the_window_does_not_start() {
    let begun = |settings: WorkerSettings<Note>, window: u64| {
        let dedup = Dedup::new(MemoryDedup::default()).with_window(Duration::from_secs(window));
        let consumer = std::future::pending::<Result<crate::script::Script, relais_push_worker::InitializeError>>();
        let handler = relais_push_worker::handler(|_: Arc<Note>| async { Ok(()) });
        let starting = settings.once(dedup).start(consumer, handler);
        // Whoever is not refused waits for a consumer.
        async move { timeout(Duration::from_secs(1), starting).await.map_err(drop) }
    };
    // 2 + 4 + 8 seconds.
    let settings = || WorkerSettings::<Note>::new("w");
    let refused = begun(settings(), 14).await.expect("it is refused").expect_err("14 s are not more than 14 s");
    assert!(refused.to_string().contains("the window must be longer"), "{refused}");
    assert!(begun(settings(), 15).await.is_err(), "it starts");
    let slow = || settings().handler_timeout(Duration::from_secs(60));
    assert!(begun(slow(), 15).await.is_ok(), "handlers take their time too");
    assert!(begun(slow(), 200).await.is_err());
    assert!(begun(settings().retries(u32::MAX), u64::from(u32::MAX)).await.is_ok(), "no number is too large");
}
