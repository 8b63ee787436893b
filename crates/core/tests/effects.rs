//! What follows from a change of a task: by example, and for every sequence of events.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use relais_core::{
    AttemptOutcome, Callback, CallbackEvent, CallbackType, Effects, Event, Failure, Json, KeyEffect, Milestone, State,
    Status, Subject, Timestamp, apply,
};

const LEASE: Duration = Duration::from_secs(60);

fn at(second: i64) -> Timestamp {
    Timestamp::from_millis(second * 1_000)
}

fn claimed() -> Event {
    Event::Claimed { worker_host: Some("pod-1".to_owned()), lease: LEASE }
}

fn failed(again_after: Option<Duration>) -> Event {
    let failure = Failure::new("no such file");
    Event::Failed { attempt: None, failure, again_after, again: false, worker_host: None, replaced: false }
}

fn succeeded() -> Event {
    Event::Succeeded { attempt: None, response: Json::parse("{}".to_owned()).unwrap() }
}

fn callback(events: &[CallbackEvent]) -> Callback {
    let target = "https://example.org".to_owned();
    Callback { kind: CallbackType::Https, target, events: events.to_vec(), gzip: false, lane: 1 }
}

/// The effects of an event on a task, and what it is then.
fn effects(subject: Subject<'_>, before: &State, event: &Event) -> (Effects, State) {
    let after = apply(before, event, at(10)).unwrap();
    (Effects::of(subject, before, event, &after, at(10)), after)
}

/// A task that a worker has.
fn running() -> State {
    effects(Subject::default(), &State::pending(), &claimed()).1
}

/// All that a task can have.
fn everything(callback: &Callback) -> Subject<'_> {
    Subject {
        callback: Some(callback),
        has_unique_key: true,
        has_dependents: true,
        may_be_leased: true,
        limits_running: true,
        has_window: true,
    }
}

#[test]
fn the_end_of_a_task_frees_its_key_opens_its_window_and_resolves_dependents() {
    let all = callback(&CallbackEvent::ALL);
    let (effects, after) = effects(everything(&all), &running(), &succeeded());
    assert_eq!(after.status, Status::Success);
    assert_eq!(effects.unique_key, Some(KeyEffect::Freed));
    assert_eq!(effects.callback, Some(CallbackEvent::Success));
    assert_eq!(effects.milestone, Some(Milestone::Success));
    assert_eq!(effects.timer, Some(at(10)), "dependents are resolved now");
    assert!(effects.ends_for_dependents && effects.opens_window && effects.wakes_claims && effects.response.is_some());
    assert!(!effects.returns_to_queue && !effects.ends_lease && !effects.revokes && effects.ended_attempt.is_none());
}

#[test]
fn a_task_without_key_dependents_limits_or_callback_has_none_of_their_effects() {
    let (effects, _) = effects(Subject::default(), &running(), &succeeded());
    assert_eq!((effects.unique_key, effects.callback, effects.timer), (None, None, None));
    assert!(!effects.ends_for_dependents && !effects.opens_window && !effects.wakes_claims);
}

#[test]
fn a_failure_that_is_retried_ends_an_attempt_and_keeps_the_key() {
    let all = callback(&CallbackEvent::ALL);
    let (effects, after) = effects(everything(&all), &running(), &failed(Some(LEASE)));
    assert_eq!(after.status, Status::Waiting);
    let attempt = effects.ended_attempt.unwrap();
    assert_eq!((attempt.number, attempt.outcome), (1, AttemptOutcome::Failure));
    assert_eq!(attempt.worker_host.as_deref(), Some("pod-1"));
    assert_eq!((effects.unique_key, effects.callback, effects.failure), (None, None, None));
    assert_eq!(effects.milestone, Some(Milestone::Retrying));
    assert_eq!(effects.timer, after.timer());
    assert!(effects.ends_lease && effects.opens_window && !effects.ends_for_dependents);
}

#[test]
fn a_failure_for_good_has_its_reason_and_a_callback_only_if_it_asks_for_failures() {
    let (on_success, on_failure) = (callback(&[CallbackEvent::Success]), callback(&[CallbackEvent::Failure]));
    for (asked, expected) in [(on_success, None), (on_failure, Some(CallbackEvent::Failure))] {
        let (effects, _) = effects(everything(&asked), &running(), &failed(None));
        assert_eq!(effects.callback, expected);
        assert_eq!(effects.failure.unwrap().message, "no such file");
    }
}

#[test]
fn a_lost_worker_gives_its_task_back_until_the_limit_and_then_the_task_fails_as_lost() {
    let lost = Event::Abandoned { delivery_limit: 2 };
    let (first, queued) = effects(Subject::default(), &running(), &lost);
    assert_eq!(first.ended_attempt.unwrap().outcome, AttemptOutcome::Lost);
    assert!(first.returns_to_queue && first.wakes_claims && first.failure.is_none());
    let again = effects(Subject::default(), &queued, &claimed()).1;
    let (last, after) = effects(Subject::default(), &again, &lost);
    assert_eq!(after.status, Status::Failure);
    assert_eq!(last.failure.unwrap().kind.as_deref(), Some("lost"));
}

#[test]
fn a_task_returned_to_the_broker_is_not_published_again() {
    let given_back = Event::GivenBack { worker_host: None };
    let (effects, after) = effects(Subject::default(), &running(), &given_back);
    assert_eq!(after.status, Status::Pending);
    assert!(effects.wakes_claims && !effects.returns_to_queue);
}

#[test]
fn a_cancelled_task_is_revoked_from_its_worker_and_a_result_is_not() {
    assert!(effects(Subject::default(), &running(), &Event::Cancelled).0.revokes);
    assert!(!effects(Subject::default(), &running(), &succeeded()).0.revokes);
}

#[test]
fn a_task_retried_by_an_operator_holds_its_unique_key_again() {
    let all = callback(&CallbackEvent::ALL);
    let ended = effects(everything(&all), &running(), &succeeded()).1;
    let (effects, after) = effects(everything(&all), &ended, &Event::Revived);
    assert_eq!(after.status, Status::Pending);
    assert_eq!(effects.unique_key, Some(KeyEffect::Retaken));
    assert!(effects.is_revived && effects.returns_to_queue && effects.ends_lease && !effects.ends_for_dependents);
}

#[test]
fn a_heartbeat_has_no_effects() {
    let taken = Event::Taken { worker_host: None };
    let held = effects(Subject::default(), &State::pending(), &taken).1;
    let all = callback(&CallbackEvent::ALL);
    assert_eq!(effects(everything(&all), &held, &Event::Kept { attempt: 1 }).0, Effects::default());
}
