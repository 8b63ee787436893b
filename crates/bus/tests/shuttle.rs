//! The concurrent core under thousands of interleavings.
//!
//! The core's files are compiled here a second time, with locks and atomics that shuttle schedules: what `sync` is in
//! the crate, it is here with other types. No flag is needed, and what is tested is the code that ships.

#[path = "../src/queue.rs"]
#[expect(dead_code, reason = "not all of it is needed here")]
mod queue;
#[path = "../src/router.rs"]
#[expect(dead_code, reason = "not all of it is needed here")]
mod router;
#[path = "../src/trie.rs"]
mod trie;

/// What `crate::sync` is for the files above.
mod sync {
    pub(crate) use std::sync::PoisonError;

    pub(crate) use shuttle::sync::{
        Arc, Mutex, MutexGuard, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    };
}

use std::{collections::VecDeque, future::poll_fn};

use shuttle::{future::block_on, sync::Arc, thread};

use self::{
    queue::Queue,
    router::{RouteCell, Router},
};

const INTERLEAVINGS: usize = 2_000;

/// Takes everything until the queue is closed.
fn consume(queue: &Queue<u32>) -> Vec<u32> {
    let (mut all, mut batch) = (Vec::new(), VecDeque::new());
    while block_on(poll_fn(|context| queue.poll_take(&mut batch, context))) {
        assert!(queue.len() <= queue.capacity());
        while let Some(item) = batch.pop_front() {
            all.push(item);
            queue.release(1);
        }
    }
    all
}

#[test]
fn no_event_is_lost_and_each_publisher_keeps_its_order() {
    let test = || {
        let queue = Arc::new(Queue::new(2));
        let publishers: Vec<_> = (0..3_u32)
            .map(|publisher| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    for number in 0..3 {
                        block_on(queue.push(publisher * 10 + number)).expect("nobody closes it yet");
                    }
                })
            })
            .collect();
        let consumer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || consume(&queue))
        };
        publishers.into_iter().for_each(|publisher| publisher.join().expect("a publisher ends"));
        queue.close();
        let all = consumer.join().expect("the consumer ends: it was woken for everything");
        for publisher in 0..3 {
            let own: Vec<u32> = all.iter().copied().filter(|item| item / 10 == publisher).collect();
            assert_eq!(own, [publisher * 10, publisher * 10 + 1, publisher * 10 + 2]);
        }
        assert_eq!((all.len(), queue.len()), (9, 0));
    };
    shuttle::check_random(test, INTERLEAVINGS);
    shuttle::check_pct(test, INTERLEAVINGS, 3);
}

#[test]
fn room_of_a_cancelled_publisher_goes_to_the_next_in_order() {
    let test = || {
        let queue = Arc::new(Queue::new(1));
        assert!(queue.try_push(0).is_ok());
        let impatient = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let mut push = queue.push(1);
                let pushed = block_on(poll_fn(|context| {
                    std::task::Poll::Ready(std::pin::Pin::new(&mut push).poll(context).is_ready())
                }));
                thread::yield_now();
                drop(push);
                usize::from(pushed)
            })
        };
        let patient = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || block_on(queue.push(2)).is_ok())
        };
        let consumer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || consume(&queue))
        };
        let pushed = impatient.join().expect("it ends");
        assert!(patient.join().expect("it is woken, whoever leaves"));
        queue.close();
        assert_eq!(consumer.join().expect("it ends").len(), 2 + pushed);
    };
    shuttle::check_random(test, INTERLEAVINGS);
}

#[test]
fn a_subscriber_is_found_from_the_moment_it_is_added_and_not_after_it_is_removed() {
    let test = || {
        let (router, cell) = (Arc::new(Router::new()), Arc::new(RouteCell::new()));
        let find = |router: &Router<u64>, cell: &RouteCell<u64>| cell.get(router, "a.b", false).subscribers.to_vec();
        let threads: Vec<_> = (1..=2_u64)
            .map(|id| {
                let (router, cell) = (Arc::clone(&router), Arc::clone(&cell));
                thread::spawn(move || {
                    router.insert(["a.*"].into_iter(), id, &id);
                    assert!(find(&router, &cell).contains(&id));
                    router.remove(["a.*"].into_iter(), id);
                    assert!(!find(&router, &cell).contains(&id));
                })
            })
            .collect();
        find(&router, &cell);
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        assert!(find(&router, &cell).is_empty());
    };
    shuttle::check_random(test, INTERLEAVINGS);
}
