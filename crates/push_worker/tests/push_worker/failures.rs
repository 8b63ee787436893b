//! What becomes of failures that are not the handler's alone: of hooks, of dead letters, of time.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use relais_push_worker::{ErrorDecision, FailedMessage, Hooks, Settled, SubscriberError, WorkerSettings, WorkerState};
use tokio::{sync::Semaphore, time::Instant};

use crate::script::{Note, done, start};

fn settings() -> WorkerSettings<Note> {
    WorkerSettings::new("w").retries(0)
}

struct Panics;

#[async_trait]
impl Hooks<Note> for Panics {
    async fn error(&self, _: &FailedMessage<'_, Note>) -> ErrorDecision {
        panic!("a hook")
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_hook_that_panics_leaves_the_decision_to_the_settings() {
    let (worker, mut feed) = start(settings().hooks(Panics), |_| async { Err(SubscriberError::fatal("no")) }).await;
    feed.deliver(0, &["a-1"]);
    assert_eq!(feed.settled().await, ("a-1".to_owned(), Settled::DeadLettered));
    assert_eq!(worker.stats().state, WorkerState::Running);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_can_not_be_a_dead_letter_is_settled_as_failed() {
    let (worker, mut feed) = start(settings(), |_| async { Err(SubscriberError::fatal("no")) }).await;
    feed.rule(|rules| rules.refuses_dead_letters = true);
    feed.deliver(0, &["a-1"]);
    assert_eq!(feed.settled().await, ("a-1".to_owned(), Settled::Failed));
    assert_eq!(worker.stop().await.dead_lettered, 0);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_takes_too_long_is_cut_off_and_retried() {
    let handler = |note: Arc<Note>| async move {
        if note.retries == 0 {
            std::future::pending::<()>().await;
        }
        Ok(())
    };
    let begin = Instant::now();
    let (worker, mut feed) = start(settings().retries(1).handler_timeout(Duration::from_secs(5)), handler).await;
    feed.deliver(0, &["a-1"]);
    assert_eq!(feed.settled().await, done("a-1"));
    assert_eq!(begin.elapsed().as_secs(), 5 + 2);
    let report = worker.stop().await;
    assert_eq!((report.processed, report.errors), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_places_are_all_taken_for_too_long_is_not_healthy() {
    let gate = Arc::new(Semaphore::new(0));
    let handler = {
        let gate = Arc::clone(&gate);
        move |_| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await?.forget();
                Ok(())
            }
        }
    };
    let (worker, mut feed) = start(settings().concurrency(2).slow_after(Duration::from_secs(60)), handler).await;
    feed.deliver(0, &["a-1"]);
    tokio::time::sleep(Duration::from_secs(30)).await;
    feed.deliver(0, &["a-2", "a-3"]);
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert!(worker.is_healthy(), "one of two is slow");
    assert_eq!(worker.backlog(), 3);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!worker.is_healthy(), "both are");
    gate.add_permits(1);
    feed.settled().await;
    tokio::task::yield_now().await;
    assert!(worker.is_healthy(), "one has ended, and the next one began just now");
    gate.add_permits(2);
    worker.stop().await;
}
