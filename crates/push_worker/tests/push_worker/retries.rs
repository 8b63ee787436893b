//! When a message is retried, and what waits for it meanwhile.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use relais_push_worker::{Order, RetriedBy, Settled, SubscriberError, WorkerSettings};
use tokio::{sync::mpsc, time::Instant};

use crate::script::{Note, done, start};

fn settings() -> WorkerSettings<Note> {
    WorkerSettings::new("w")
}

#[tokio::test(start_paused = true)]
async fn retries_come_after_2_4_and_8_seconds_and_up_to_the_longest_pause() {
    for (retries, unit, longest, expected) in
        [(3, 1, 3600, &[0, 2, 6, 14][..]), (5, 10, 100, &[0, 20, 60, 140, 240, 340][..])]
    {
        let (sender, mut tries) = mpsc::unbounded_channel();
        let settings = settings().retries(retries).retry_unit(Duration::from_secs(unit));
        let settings = settings.max_retry_pause(Duration::from_secs(longest));
        let begin = Instant::now();
        let (worker, mut feed) = start(settings, move |note| {
            sender.send(((Instant::now() - begin).as_secs(), note.retries)).unwrap();
            async { Err(SubscriberError::retryable("away")) }
        })
        .await;
        feed.deliver(0, &["a-1"]);
        assert_eq!(feed.settled().await, ("a-1".to_owned(), Settled::DeadLettered));
        for (count, second) in (0_u32..).zip(expected) {
            assert_eq!(tries.recv().await.unwrap(), (*second, count));
        }
        let stats = worker.stats();
        assert_eq!((stats.execution_count, stats.errors_count), (0, u64::from(retries) + 1));
        worker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn other_keys_go_on_while_a_key_waits_for_its_retry() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let handler = {
        let log = Arc::clone(&log);
        move |note: Arc<Note>| {
            let fails = note.name == "a-1" && note.retries == 0;
            log.lock().unwrap().push(format!("{}{}", note.name, if fails { " fails" } else { "" }));
            async move { if fails { Err(SubscriberError::retryable("not yet")) } else { Ok(()) } }
        }
    };
    let begin = Instant::now();
    let (worker, mut feed) = start(settings().concurrency(4).order(Order::Key), handler).await;
    feed.deliver(0, &["a-1", "b-1", "a-2", "b-2", "a-3"]);
    for name in ["b-1", "b-2", "a-1", "a-2", "a-3"] {
        assert_eq!(feed.settled().await, done(name), "b does not wait for a");
    }
    assert_eq!(begin.elapsed().as_secs(), 2);
    let log = log.lock().unwrap().clone();
    let of_a: Vec<_> = log.iter().filter(|line| line.starts_with('a')).collect();
    assert_eq!(of_a, ["a-1 fails", "a-1", "a-2", "a-3"]);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_its_retry_counts_as_waiting() {
    let (worker, feed) = start(settings(), |_| async { Err(SubscriberError::retryable("no")) }).await;
    feed.deliver(0, &["a-1", "a-2"]);
    while worker.stats().errors_count < 2 {
        tokio::task::yield_now().await;
    }
    tokio::task::yield_now().await;
    assert_eq!((worker.stats().queue_size, worker.backlog()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_the_broker_retries_makes_way_for_the_next_of_its_key() {
    let fails = |note: Arc<Note>| async move {
        if note.name == "a-1" && note.retries < 2 { Err(SubscriberError::retryable("no")) } else { Ok(()) }
    };
    let (worker, mut feed) = start(settings().order(Order::Key).retries(2), fails).await;
    feed.rule(|rules| rules.retry = Some(Ok(RetriedBy::Broker)));
    feed.deliver(0, &["a-1", "a-2"]);
    assert_eq!(feed.settled().await, ("a-1".to_owned(), Settled::Retried));
    assert_eq!(feed.settled().await, done("a-2"));
    // The broker counts, and brings it again.
    feed.deliver_retried(0, &["a-1"], 2);
    assert_eq!(feed.settled().await, done("a-1"));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_brokers_count_of_retries_is_gone_on_with() {
    let (worker, mut feed) = start(settings().retries(3), |_| async { Err(SubscriberError::retryable("no")) }).await;
    feed.deliver_retried(0, &["a-1"], 2);
    assert_eq!(feed.settled().await, ("a-1".to_owned(), Settled::DeadLettered));
    assert_eq!(worker.stats().errors_count, 2, "one retry was left");
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_the_broker_refuses_waits_in_the_worker() {
    let fails =
        |note: Arc<Note>| async move { if note.retries == 0 { Err(SubscriberError::retryable("no")) } else { Ok(()) } };
    let (worker, mut feed) = start(settings(), fails).await;
    feed.rule(|rules| rules.retry = Some(Err("the connection is lost".to_owned())));
    feed.deliver(0, &["a-1"]);
    assert_eq!(feed.settled().await, done("a-1"));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_busy_message_is_asked_for_again_until_it_is_free() {
    let times = Arc::new(Mutex::new(0));
    let handler = move |note: Arc<Note>| {
        assert_eq!(note.retries, 0, "to wait is no retry");
        let mut times = times.lock().unwrap();
        *times += u32::from(note.name == "a-1");
        let is_busy = note.name == "a-1" && *times <= 10;
        async move { if is_busy { Err(SubscriberError::busy("somebody has it")) } else { Ok(()) } }
    };
    let begin = Instant::now();
    let settings = settings().order(Order::Key).retries(0).busy_pause(Duration::from_secs(3));
    let (worker, mut feed) = start(settings, handler).await;
    feed.deliver(0, &["a-1", "a-2", "b-1"]);
    assert_eq!(feed.settled().await, done("b-1"));
    assert_eq!(feed.settled().await, done("a-1"));
    assert_eq!(begin.elapsed().as_secs(), 30);
    assert_eq!(feed.settled().await, done("a-2"));
    let stats = worker.stats();
    assert_eq!((stats.execution_count, stats.errors_count), (3, 0));
    worker.stop().await;
}
