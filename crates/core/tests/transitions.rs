//! The state machine under random, late, repeated and reordered messages.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use proptest::prelude::*;
use relais_core::{Event, Failure, Ignored, Json, State, Status, Timestamp, apply};

const LEASE: Duration = Duration::from_secs(60);

fn json() -> Json {
    Json::parse(r#"{"done":true}"#.to_owned()).unwrap()
}

fn attempt() -> impl Strategy<Value = Option<u32>> {
    prop_oneof![Just(None), (0u32..6).prop_map(Some)]
}

fn host() -> impl Strategy<Value = Option<String>> {
    prop_oneof![Just(None), Just(Some("pod-1".to_owned())), Just(Some("pod-2".to_owned()))]
}

fn delivered() -> impl Strategy<Value = Event> {
    (host(), any::<bool>(), 1u32..4).prop_map(|(worker_host, again, delivery_limit)| Event::Delivered {
        worker_host,
        again,
        delivery_limit,
    })
}

fn event() -> impl Strategy<Value = Event> {
    let progress = prop_oneof![0.0..100.0f64, Just(-5.0), Just(250.0), Just(f64::NAN), Just(f64::INFINITY)];
    prop_oneof![
        3 => host().prop_map(|worker_host| Event::Claimed { worker_host, lease: LEASE }),
        2 => host().prop_map(|worker_host| Event::Taken { worker_host }),
        1 => (0u32..4).prop_map(|attempt| Event::Kept { attempt }),
        1 => (1u32..4).prop_map(|delivery_limit| Event::Abandoned { delivery_limit }),
        3 => (attempt(), host()).prop_map(|(attempt, worker_host)| Event::Started { attempt, worker_host, lease: None }),
        3 => (attempt(), progress).prop_map(|(attempt, progress)| Event::Progressed { attempt, progress, lease: None }),
        1 => attempt().prop_map(|attempt| Event::Succeeded { attempt, response: json() }),
        2 => (attempt(), proptest::option::of(0u64..100), any::<bool>(), host()).prop_map(
            |(attempt, seconds, again, worker_host)| Event::Failed {
                attempt,
                failure: Failure::new("no"),
                again_after: seconds.map(Duration::from_secs),
                again,
                worker_host,
                replaced: false,
            }
        ),
        3 => Just(Event::Due),
        1 => Just(Event::Expired),
        1 => Just(Event::Revived),
        2 => attempt().prop_map(|attempt| Event::Renewed { attempt, lease: LEASE }),
        2 => attempt().prop_map(|attempt| Event::Returned { attempt }),
        3 => delivered(),
        2 => host().prop_map(|worker_host| Event::GivenBack { worker_host }),
        2 => (1u32..4).prop_map(|delivery_limit| Event::LeaseExpired { delivery_limit }),
        1 => Just(Event::Cancelled),
    ]
}

/// What must hold of any state, however it was reached.
fn check(state: &State) {
    assert!((0.0..=100.0).contains(&state.progress), "{state:?}");
    assert_eq!(state.ended.is_some(), state.status.is_final(), "{state:?}");
    match state.status {
        Status::Pending => {
            assert!(state.started.is_none() && state.lease_until.is_none() && state.worker_host.is_none(), "{state:?}");
            assert!(state.deadline.is_none() && state.due.is_none(), "{state:?}");
            assert_eq!(state.progress, 0.0);
        }
        Status::Waiting => {
            assert!(state.started.is_none() && state.lease_until.is_none() && state.worker_host.is_none(), "{state:?}");
            assert!(state.deadline.is_none() && state.due.is_some() && state.timer().is_some(), "{state:?}");
        }
        Status::InProgress => {
            assert!(state.started.is_some() && state.expires.is_none() && state.due.is_none(), "{state:?}");
            assert_eq!(
                state.deadline,
                state.timeout.and_then(|timeout| Some(state.started?.after(timeout))),
                "{state:?}"
            );
        }
        Status::Success => assert!(state.progress == 100.0 && state.started.is_some(), "{state:?}"),
        Status::Failure => assert!(state.started.is_some(), "{state:?}"),
        Status::Cancelled => {}
    }
    if state.status.is_final() {
        assert!(state.lease_until.is_none() && state.timer().is_none(), "{state:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn messages_in_any_order_keep_the_invariants(
        steps in proptest::collection::vec((event(), 0i64..90_000), 1..40),
    ) {
        let mut state = State { timeout: Some(LEASE), expires: Some(Timestamp::from_millis(1_100_000)), ..State::pending() };
        let mut now = 1_000_000i64;
        let (mut results, mut revivals) = (0, 0);
        for (event, later) in steps {
            now += later;
            let before = state.clone();
            match apply(&before, &event, Timestamp::from_millis(now)) {
                Ok(next) => {
                    let revived = matches!(event, Event::Revived);
                    prop_assert!(!before.status.is_final() || revived, "a final state changed: {before:?} by {event:?}");
                    if before.status == Status::Waiting {
                        let by_itself = matches!(event, Event::Due | Event::Expired | Event::Cancelled);
                        prop_assert!(by_itself || revived, "somebody had it while it waited: {event:?}");
                    }
                    revivals += u32::from(before.status.is_final());
                    if let Some(attempt) = event.attempt() {
                        prop_assert_eq!(attempt, before.attempt, "another attempt was believed");
                    }
                    prop_assert!(next.attempt >= before.attempt && (next.losses >= before.losses || revived));
                    // Only a failure counts as one: who gives a task back, or is lost, has not failed.
                    // One that may have been counted before changes nothing where nobody is known to have the task.
                    let unsure = matches!(event, Event::Failed { again: true, .. })
                        && before.status == Status::Pending
                        && before.attempt > 0;
                    prop_assert!(!unsure || next == before);
                    let failed = u32::from(matches!(event, Event::Failed { .. }) && !unsure);
                    prop_assert!(revived || next.failures == before.failures + failed);
                    prop_assert_eq!(next.timeout, before.timeout);
                    let quiet = unsure || matches!(event, Event::Renewed { .. } | Event::Kept { .. });
                    prop_assert_eq!(next.revision, before.revision + u64::from(!quiet));
                    results += u32::from(next.status.is_final());
                    check(&next);
                    state = next;
                }
                Err(ignored) => {
                    if before.status.is_final() {
                        prop_assert_eq!(ignored, Ignored::Ended(before.status));
                    }
                }
            }
        }
        prop_assert!(results <= 1 + revivals, "more than one result was accepted");
    }

    /// Whatever state a task is in, time brings it to an end or to a queue: nothing waits for ever but for a worker.
    #[test]
    fn every_timer_fires_a_transition(steps in proptest::collection::vec((event(), 0i64..90_000), 0..20)) {
        let mut state = State { timeout: Some(LEASE), expires: Some(Timestamp::from_millis(1_100_000)), ..State::pending() };
        let mut now = 1_000_000i64;
        for (event, later) in steps {
            now += later;
            state = apply(&state, &event, Timestamp::from_millis(now)).unwrap_or(state);
        }
        for _ in 0..50 {
            let Some(timer) = state.timer() else { break };
            prop_assert!(state.overdue(timer.before(Duration::from_millis(1)), 3).is_none(), "too early: {state:?}");
            let event = state.overdue(timer, 3);
            prop_assert!(event.is_some(), "nothing happens at its time: {state:?}");
            let next = apply(&state, &event.unwrap(), timer);
            prop_assert!(next.is_ok(), "{next:?}");
            state = next.unwrap();
            check(&state);
        }
        prop_assert!(state.timer().is_none(), "{state:?}");
        let watched_by_a_broker = state.status == Status::InProgress && state.lease_until.is_none();
        prop_assert!(state.status.is_final() || state.status == Status::Pending || watched_by_a_broker, "{state:?}");
    }

    /// Only what a broker's workers say: nobody has a lease, and nothing counts as lost that was given back.
    #[test]
    fn a_broker_task_has_no_lease_and_counts_unreturned_starts_as_losses(
        steps in proptest::collection::vec(
            prop_oneof![
                3 => delivered(),
                2 => host().prop_map(|worker_host| Event::GivenBack { worker_host }),
                1 => Just(Event::Progressed { attempt: None, progress: 10.0, lease: None }),
            ],
            1..40,
        ),
    ) {
        let mut state = State::pending();
        for (second, event) in steps.into_iter().enumerate() {
            let before = state.clone();
            let Ok(next) = apply(&before, &event, at(second as i64)) else { continue };
            prop_assert!(next.lease_until.is_none());
            let lost = next.losses - before.losses;
            let delivery = matches!(event, Event::Delivered { .. });
            prop_assert!(lost == 0 || before.status == Status::InProgress && delivery);
            match &event {
                Event::GivenBack { .. } => prop_assert_eq!((next.status, lost), (Status::Pending, 0)),
                Event::Delivered { delivery_limit, .. } => {
                    prop_assert_eq!(next.status == Status::Failure, lost == 1 && next.losses >= *delivery_limit);
                    if lost == 1 && next.status == Status::InProgress {
                        prop_assert_eq!((next.progress, next.started), (0.0, Some(at(second as i64))));
                        prop_assert_eq!(next.attempt, before.attempt + 1);
                    }
                }
                _ => prop_assert_eq!(next.status, Status::InProgress),
            }
            // Whatever was heard once and is heard again says nothing new.
            if let Event::Delivered { worker_host, delivery_limit, .. } = &event {
                let again = Event::Delivered {
                    worker_host: worker_host.clone(),
                    again: true,
                    delivery_limit: *delivery_limit,
                };
                if next.worker_host.is_some() || worker_host.is_none() {
                    prop_assert!(apply(&next, &again, at(second as i64)).is_err(), "{next:?} by {again:?}");
                }
            }
            state = next;
        }
    }

    #[test]
    fn fencing_ignores_a_replaced_worker(late in event()) {
        let now = Timestamp::from_millis(0);
        let claimed = |state: &State| apply(state, &Event::Claimed { worker_host: None, lease: LEASE }, now).unwrap();
        let first = claimed(&State::pending());
        let expired = apply(&first, &Event::LeaseExpired { delivery_limit: 9 }, now.after(LEASE)).unwrap();
        let second = claimed(&expired);
        prop_assert_eq!((first.attempt, second.attempt), (1, 2));
        if late.attempt() == Some(1) {
            prop_assert_eq!(apply(&second, &late, now), Err(Ignored::OtherAttempt(2)));
        }
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

fn started(host: &str) -> Event {
    Event::Started { attempt: None, worker_host: Some(host.to_owned()), lease: None }
}

fn claimed(state: &State, now: Timestamp) -> State {
    apply(state, &Event::Claimed { worker_host: None, lease: LEASE }, now).unwrap()
}

fn expired(state: &State, delivery_limit: u32) -> State {
    apply(state, &Event::LeaseExpired { delivery_limit }, at(60)).unwrap()
}

#[test]
fn a_redelivery_sets_the_host_and_resets_the_attempt() {
    let running = apply(&State::pending(), &started("pod-1"), at(1)).unwrap();
    let half = apply(&running, &Event::Progressed { attempt: None, progress: 50.0, lease: None }, at(2)).unwrap();
    let again = apply(&half, &started("pod-2"), at(3)).unwrap();
    assert_eq!((again.worker_host.as_deref(), again.progress, again.started), (Some("pod-2"), 0.0, Some(at(3))));
}

#[test]
fn messages_that_arrive_before_started_are_accepted() {
    let early =
        apply(&State::pending(), &Event::Progressed { attempt: None, progress: 30.0, lease: None }, at(1)).unwrap();
    assert_eq!((early.status, early.progress), (Status::InProgress, 30.0));
    let named = apply(&early, &started("pod-1"), at(2)).unwrap();
    assert_eq!((named.worker_host.as_deref(), named.progress), (Some("pod-1"), 30.0), "its `started` resets nothing");
    let done = apply(&State::pending(), &Event::Succeeded { attempt: None, response: json() }, at(1)).unwrap();
    assert_eq!((done.status, done.started, done.ended), (Status::Success, Some(at(1)), Some(at(1))));
}

#[test]
fn every_message_extends_the_lease_and_a_task_started_by_message_gets_one() {
    let lease = Some(LEASE);
    let claim = claimed(&State::pending(), at(0));
    let spoke = apply(&claim, &Event::Progressed { attempt: Some(1), progress: 1.0, lease }, at(50)).unwrap();
    assert_eq!(spoke.lease_until, Some(at(110)));
    let longer = Some(Duration::from_secs(5));
    let kept = apply(&spoke, &Event::Progressed { attempt: Some(1), progress: 2.0, lease: longer }, at(51)).unwrap();
    assert_eq!(kept.lease_until, Some(at(110)), "a shorter lease takes nothing away");
    for event in [
        Event::Progressed { attempt: None, progress: 1.0, lease },
        Event::Started { attempt: None, worker_host: None, lease },
    ] {
        let begun = apply(&State::pending(), &event, at(0)).unwrap();
        assert_eq!((begun.attempt, begun.lease_until), (1, Some(at(60))));
        assert_eq!(expired(&begun, 9).status, Status::Pending);
    }
}

#[test]
fn a_task_fails_at_its_delivery_limit_and_returns_do_not_count() {
    let mut state = State::pending();
    for _ in 0..50 {
        state = apply(&claimed(&state, at(0)), &Event::Returned { attempt: None }, at(1)).unwrap();
    }
    assert_eq!((state.status, state.losses, state.attempt), (Status::Pending, 0, 50));
    for loss in 1..=3 {
        state = expired(&claimed(&state, at(0)), 3);
        assert_eq!(state.losses, loss);
    }
    assert_eq!(state.status, Status::Failure);
}

#[test]
fn a_result_after_an_expired_lease_is_accepted_unless_another_worker_has_the_task() {
    let lost = expired(&claimed(&State::pending(), at(0)), 9);
    let late = Event::Succeeded { attempt: Some(1), response: json() };
    assert_eq!(apply(&lost, &late, at(61)).unwrap().status, Status::Success);
    let progress = Event::Progressed { attempt: Some(1), progress: 70.0, lease: None };
    assert_eq!(apply(&lost, &progress, at(61)), Err(Ignored::NotHeld));
    assert_eq!(apply(&claimed(&lost, at(61)), &late, at(62)), Err(Ignored::OtherAttempt(2)));
}

#[test]
fn a_retried_failure_waits_and_a_duplicate_failure_changes_nothing() {
    let again = |attempt| failed(attempt, Some(LEASE), false, None);
    let waiting = apply(&claimed(&State::pending(), at(0)), &again(Some(1)), at(5)).unwrap();
    assert_eq!((waiting.status, waiting.due, waiting.failures), (Status::Waiting, Some(at(65)), 1));
    for late in [again(Some(1)), again(None), started("pod-2"), Event::Succeeded { attempt: None, response: json() }] {
        assert_eq!(apply(&waiting, &late, at(6)), Err(Ignored::NotHeld), "{late:?}");
    }
    assert_eq!(apply(&waiting, &Event::Due, at(64)), Err(Ignored::NoEffect));
    let back = apply(&waiting, &Event::Due, at(65)).unwrap();
    assert_eq!((back.status, back.attempt, back.failures, back.due), (Status::Pending, 1, 1, None));
    // A result that came before its `started` is an attempt of its own.
    let overtaken = apply(&State::pending(), &again(None), at(5)).unwrap();
    assert_eq!((overtaken.attempt, overtaken.failures), (1, 1));
}

#[test]
fn an_attempt_past_its_timeout_is_overdue_and_then_times_out() {
    let state = State { timeout: Some(Duration::from_secs(5)), ..State::pending() };
    let running = claimed(&state, at(0));
    let renew = Event::Renewed { attempt: Some(1), lease: LEASE };
    assert_eq!(running.deadline, Some(at(5)));
    assert!(apply(&running, &renew, at(4)).is_ok());
    assert_eq!(apply(&running, &renew, at(5)), Err(Ignored::Overdue));
    let done = apply(&running, &Event::Succeeded { attempt: Some(1), response: json() }, at(6)).unwrap();
    assert_eq!(done.status, Status::Success, "a result is worth more than a deadline");
    assert!(running.overdue(at(14), 9).is_none(), "it has a while to stop by itself");
    // Whoever is silent after its deadline was told to be: that is no lost worker.
    let brief = State { lease_until: Some(at(8)), ..running.clone() };
    assert_eq!(brief.timer(), Some(at(8)));
    assert!(matches!(brief.overdue(at(8), 9), Some(Event::Failed { .. })));
    let event = running.overdue(at(15), 9).unwrap();
    assert!(matches!(&event, Event::Failed { failure, .. } if failure.kind.as_deref() == Some("timeout")));
    assert_eq!(apply(&running, &event, at(15)).unwrap().status, Status::Failure);
}

#[test]
fn a_duplicate_failure_after_the_backoff_is_not_counted_twice() {
    let failed = |again_after| failed(Some(1), again_after, false, None);
    let again = Some(Duration::from_secs(5));
    let waiting = apply(&claimed(&State::pending(), at(0)), &failed(again), at(1)).unwrap();
    let due = apply(&waiting, &Event::Due, at(6)).unwrap();
    assert_eq!((due.status, due.attempt, due.failures), (Status::Pending, 1, 1));
    assert_eq!(apply(&due, &failed(again), at(7)), Err(Ignored::NotHeld));
    assert_eq!(apply(&due, &failed(None), at(7)), Err(Ignored::NotHeld));
    let lost = expired(&claimed(&State::pending(), at(0)), 9);
    assert_eq!(apply(&lost, &failed(None), at(61)), Err(Ignored::NotHeld), "somebody else will try");
}

fn failed(attempt: Option<u32>, again_after: Option<Duration>, again: bool, worker_host: Option<&str>) -> Event {
    let worker_host = worker_host.map(str::to_owned);
    Event::Failed { attempt, failure: Failure::new("no"), again_after, again, worker_host, replaced: false }
}

/// A failure that a broker's worker tells of, with what it stands for; `had_it` are the hosts that had the task before.
fn told(state: &State, again: bool, host: &str, had_it: &[&str], now: Timestamp) -> Result<State, Ignored> {
    let mut event = failed(None, Some(LEASE), again, Some(host));
    let other = event.other_host(state).is_some_and(|host| had_it.contains(&host));
    if let Event::Failed { replaced, .. } = &mut event {
        *replaced = other;
    }
    let start = event.unsaid_start(state).and_then(|start| apply(state, &start, now).ok());
    apply(start.as_ref().unwrap_or(state), &event, now)
}

#[test]
fn a_late_failure_of_a_lost_worker_does_not_fail_the_next_attempt() {
    let first = apply(&State::pending(), &delivered_to("pod-1", false, 9), at(0)).unwrap();
    let second = apply(&first, &delivered_to("pod-2", false, 9), at(1)).unwrap();
    for again in [false, true] {
        assert_eq!(told(&second, again, "pod-1", &["pod-1"], at(2)), Err(Ignored::NotHeld), "that one was replaced");
        let own = told(&second, again, "pod-2", &["pod-1"], at(2)).unwrap();
        assert_eq!((own.status, own.attempt, own.failures, own.losses), (Status::Waiting, 2, 1, 1));
        // One that was never heard of did not say that it began. Nobody else has the task, or will say so.
        let third = told(&second, again, "pod-3", &["pod-1"], at(2)).unwrap();
        assert_eq!((third.status, third.attempt, third.failures, third.losses), (Status::Waiting, 3, 1, 2));
    }
    // Work that is done is done, whoever did it.
    let success = Event::Succeeded { attempt: None, response: json() };
    assert_eq!(apply(&second, &success, at(2)).unwrap().status, Status::Success);
    // Where nobody has the task, a failure counts.
    let pending = told(&State::pending(), false, "pod-1", &["pod-1"], at(2)).unwrap();
    assert_eq!((pending.status, pending.attempt, pending.failures), (Status::Waiting, 1, 1));
    let back = apply(&pending, &Event::Due, at(100)).unwrap();
    assert_eq!(told(&back, false, "pod-1", &["pod-1"], at(101)).unwrap().failures, 2);
    assert_eq!(told(&back, true, "pod-1", &["pod-1"], at(101)), Ok(back.clone()), "it may have been counted");
}

#[test]
fn a_redelivered_failure_of_a_broker_is_not_counted_twice() {
    let started = |again| delivered_to("pod-1", again, 9);
    let failure = |again, host| failed(None, Some(LEASE), again, host);
    let running = apply(&State::pending(), &started(false), at(0)).unwrap();
    let waiting = apply(&running, &failure(false, None), at(1)).unwrap();
    let back = apply(&waiting, &Event::Due, at(61)).unwrap();
    assert_eq!((back.status, back.failures), (Status::Pending, 1));
    assert_eq!(apply(&back, &started(true), at(62)), Err(Ignored::NotHeld), "it may be of the attempt that failed");
    // It comes into its queue once more, in case that nobody has it.
    assert_eq!(apply(&back, &failure(true, None), at(62)), Ok(back.clone()));
    assert_eq!(apply(&back, &failure(true, Some("pod-1")), at(62)), Ok(back.clone()));

    // What is said for the first time counts, and so does what is said again of an attempt that is known to run.
    assert_eq!(apply(&back, &failure(false, None), at(62)).unwrap().failures, 2, "its start was not heard");
    let next = apply(&back, &delivered_to("pod-2", false, 9), at(62)).unwrap();
    assert_eq!(apply(&next, &failure(true, None), at(63)).unwrap().failures, 2);
    assert_eq!(apply(&next, &failure(true, Some("pod-2")), at(63)).unwrap().failures, 2);
    assert_eq!(told(&next, true, "pod-1", &["pod-1"], at(63)), Err(Ignored::NotHeld), "that one was replaced");
    // One that was never begun before has no attempt to be of but this one.
    assert_eq!(apply(&State::pending(), &failure(true, None), at(1)).unwrap().failures, 1);
    // Done by hand once more: its failures are forgotten, its attempt is not.
    let ended = apply(&running, &failed(None, None, false, None), at(1)).unwrap();
    let revived = apply(&ended, &Event::Revived, at(2)).unwrap();
    assert_eq!(apply(&revived, &failed(None, None, true, None), at(3)), Ok(revived.clone()));
    let succeeded = Event::Succeeded { attempt: None, response: json() };
    assert_eq!(apply(&back, &succeeded, at(62)).unwrap().status, Status::Success, "a result is a result");
}

fn delivered_to(host: &str, again: bool, delivery_limit: u32) -> Event {
    Event::Delivered { worker_host: Some(host.to_owned()), again, delivery_limit }
}

#[test]
fn a_second_start_from_a_broker_counts_as_a_lost_worker() {
    let first = apply(&State::pending(), &delivered_to("pod-1", false, 3), at(1)).unwrap();
    assert_eq!((first.status, first.attempt, first.losses), (Status::InProgress, 1, 0));
    let half = apply(&first, &Event::Progressed { attempt: None, progress: 50.0, lease: None }, at(2)).unwrap();
    assert_eq!(apply(&half, &delivered_to("pod-1", true, 3), at(3)), Err(Ignored::NoEffect), "heard before");
    let second = apply(&half, &delivered_to("pod-1", false, 3), at(3)).unwrap();
    assert_eq!((second.attempt, second.losses, second.progress, second.started), (2, 1, 0.0, Some(at(3))));
    let third = apply(&second, &delivered_to("pod-2", true, 3), at(4)).unwrap();
    assert_eq!((third.worker_host.as_deref(), third.losses), (Some("pod-2"), 2));
    let fourth = apply(&third, &delivered_to("pod-3", false, 3), at(5)).unwrap();
    assert_eq!((fourth.status, fourth.losses, fourth.ended), (Status::Failure, 3, Some(at(5))));
}

#[test]
fn a_task_returned_to_a_broker_is_pending_and_only_its_worker_can_return_it() {
    let given_back = |host: Option<&str>| Event::GivenBack { worker_host: host.map(str::to_owned) };
    let mut state = State::pending();
    assert_eq!(apply(&state, &given_back(Some("pod-1")), at(0)), Err(Ignored::NotHeld));
    for round in 1..=30 {
        let running = apply(&state, &delivered_to("pod-1", false, 1), at(round)).unwrap();
        assert_eq!(apply(&running, &given_back(Some("pod-2")), at(round)), Err(Ignored::NotHeld));
        let host = (round % 2 == 0).then_some("pod-1");
        state = apply(&running, &given_back(host), at(round)).unwrap();
        assert_eq!((state.status, state.losses, state.worker_host.as_deref()), (Status::Pending, 0, None));
    }
    assert_eq!(state.attempt, 30);
}

#[test]
fn a_start_that_arrives_late_is_no_loss() {
    let early =
        apply(&State::pending(), &Event::Progressed { attempt: None, progress: 30.0, lease: None }, at(1)).unwrap();
    let named = apply(&early, &delivered_to("pod-1", false, 1), at(2)).unwrap();
    assert_eq!((named.status, named.losses, named.progress), (Status::InProgress, 0, 30.0));
    assert_eq!(named.worker_host.as_deref(), Some("pod-1"));
}

#[test]
fn a_dependent_task_ignores_messages_until_its_dependencies_resolve() {
    let blocked = State { expires: Some(at(50)), ..State::blocked() };
    assert!(blocked.is_blocked());
    assert_eq!(blocked.timer(), Some(at(50)), "how long it is of use counts all the same");
    for event in [
        Event::Claimed { worker_host: None, lease: LEASE },
        Event::Delivered { worker_host: None, again: false, delivery_limit: 3 },
        Event::Succeeded { attempt: None, response: json() },
        Event::Due,
    ] {
        assert!(apply(&blocked, &event, at(1)).is_err(), "{event:?}");
    }
    let free = apply(&blocked, &Event::Released { due: None }, at(1)).unwrap();
    assert_eq!((free.status, free.expires), (Status::Pending, Some(at(50))));
    assert_eq!(apply(&free, &Event::Released { due: None }, at(1)), Err(Ignored::NoEffect), "once");
    let later = apply(&blocked, &Event::Released { due: Some(at(20)) }, at(1)).unwrap();
    assert_eq!((later.status, later.due), (Status::Waiting, Some(at(20))));
    assert_eq!(apply(&later, &Event::Barred(Failure::new("no")), at(2)), Err(Ignored::NoEffect), "it is free");
    let past = apply(&blocked, &Event::Released { due: Some(at(1)) }, at(2)).unwrap();
    assert_eq!(past.status, Status::Pending, "its time has come");
    let barred = apply(&blocked, &Event::Barred(Failure::new("no")), at(3)).unwrap();
    assert_eq!((barred.status, barred.ended, barred.attempt), (Status::Failure, Some(at(3)), 0));
    for ended in [barred.clone(), apply(&blocked, &Event::Cancelled, at(3)).unwrap()] {
        assert!(matches!(apply(&ended, &Event::Released { due: None }, at(4)), Err(Ignored::Ended(_))));
    }
    assert_eq!(apply(&barred, &Event::Revived, at(5)).unwrap().status, Status::Pending, "by hand means now");
    assert_eq!(apply(&blocked, &Event::Revived, at(5)).unwrap().status, Status::Pending, "and so it does here");
}
