//! Tests of the core's parts that `tests/shuttle.rs` compiles a second time, kept out of their files for that reason.

use std::collections::VecDeque;

use futures::{FutureExt, future::poll_fn};
use proptest::prelude::*;

use crate::{
    Pattern, name,
    queue::{Queue, Refused},
    router::{RouteCell, Router},
    trie::Trie,
};

fn channel() -> impl Strategy<Value = String> {
    let segment = prop::sample::select(vec!["a", "b", "c", "dlq", "$x"]);
    prop::collection::vec(segment, 1..5).prop_map(|segments| segments.join("."))
}

fn pattern() -> impl Strategy<Value = String> {
    let segment = prop::sample::select(vec!["a", "b", "*", "dlq", "$x"]);
    let end = prop::sample::select(vec!["", ".>"]);
    (prop::collection::vec(segment, 1..4), end).prop_map(|(segments, end)| segments.join(".") + end)
}

proptest! {
    /// The tree is an optimisation of asking each pattern, and says the same.
    #[test]
    fn the_tree_finds_what_the_patterns_match(
        patterns in prop::collection::vec(pattern(), 0..20),
        gone in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        channels in prop::collection::vec(channel(), 1..10),
    ) {
        let mut patterns: Vec<_> = patterns.into_iter().enumerate().map(|(id, text)| (id as u64, Pattern::new(text).unwrap())).collect();
        let mut trie = Trie::new();
        for (id, pattern) in &patterns {
            trie.insert(pattern.segments(), *id, *id);
        }
        for index in gone {
            if !patterns.is_empty() {
                let (id, pattern) = patterns.remove(index.index(patterns.len()));
                prop_assert!(trie.remove(pattern.segments(), id));
                prop_assert!(!trie.remove(pattern.segments(), id));
            }
        }
        for channel in channels {
            let reserved = name::is_reserved(channel.split('.').next().unwrap());
            let found: Vec<u64> = trie.find(&channel, reserved).into_iter().map(|(id, _)| id).collect();
            let expected: Vec<u64> =
                patterns.iter().filter(|(_, pattern)| pattern.matches(&channel)).map(|(id, _)| *id).collect();
            prop_assert_eq!(found, expected, "{}", channel);
        }
    }
}

#[test]
fn a_subscriber_of_several_matching_patterns_is_found_once() {
    let router = Router::new();
    router.insert(["a.*", "a.>", "a.b"].into_iter(), 1, &"x");
    assert_eq!(*router.resolve("a.b", false).subscribers, ["x"]);
    router.remove(["a.*", "a.>", "a.b"].into_iter(), 1);
    assert!(router.resolve("a.b", false).subscribers.is_empty());
}

#[test]
fn a_route_is_remembered_until_a_subscription_changes() {
    let (router, cell) = (Router::new(), RouteCell::new());
    let empty = cell.get(&router, "a", false);
    assert!(std::sync::Arc::ptr_eq(&empty, &cell.get(&router, "a", false)));
    router.insert(["a"].into_iter(), 1, &1);
    assert_eq!(*cell.get(&router, "a", false).subscribers, [1]);
    router.remove(["a"].into_iter(), 1);
    assert!(cell.get(&router, "a", false).subscribers.is_empty());
}

#[test]
fn the_bound_is_exact_wherever_the_events_are() {
    let (queue, mut batch) = (Queue::new(2), VecDeque::new());
    assert_eq!((queue.try_push(1).unwrap(), queue.try_push(2).unwrap()), (1, 2));
    assert!(matches!(queue.try_push(3), Err(Refused::Full(3))));
    assert!(queue.take_now(&mut batch));
    assert!(matches!(queue.try_push(3), Err(Refused::Full(3))), "taken, but not yet read");
    queue.release(1);
    assert_eq!(queue.try_push(3).unwrap(), 2);
    queue.readmit();
    assert!(queue.len() == 3 && queue.try_push(4).is_err());
}

#[test]
fn publishers_that_wait_for_queue_room_get_it_in_order() {
    let queue = Queue::new(1);
    queue.try_push(0).unwrap();
    let (mut first, mut second, mut third) = (queue.push(1), queue.push(2), queue.push(3));
    for waiting in [&mut first, &mut second, &mut third] {
        assert!(waiting.now_or_never().is_none());
    }
    let mut batch = VecDeque::new();
    assert!(queue.take_now(&mut batch));
    queue.release(1);
    drop(first);
    assert_eq!(second.now_or_never().unwrap(), Ok(1));
    queue.close();
    assert_eq!(third.now_or_never().unwrap(), Err(3));
}

#[test]
fn a_closed_queue_is_read_to_its_end() {
    let (queue, mut batch) = (Queue::new(4), VecDeque::new());
    queue.try_push(1).unwrap();
    queue.close();
    assert!(matches!(queue.try_push(2), Err(Refused::Closed(2))));
    assert_eq!(poll_fn(|context| queue.poll_take(&mut batch, context)).now_or_never(), Some(true));
    batch.clear();
    assert_eq!(poll_fn(|context| queue.poll_take(&mut batch, context)).now_or_never(), Some(false));
}
