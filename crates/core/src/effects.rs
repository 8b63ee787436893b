//! What follows from a change of a task: the one place that decides it.
//!
//! [`apply`](crate::apply) says what a task becomes. [`Effects::of`] says what else the same transaction has to write,
//! and who is to be told after it: the attempt that ended, the callback, the unique key, the place in a window, those
//! who depend on the task, the worker whose task was revoked. It is pure: a store writes what it returns and decides
//! nothing.

use crate::{
    Attempt, AttemptOutcome, Callback, CallbackEvent, Event, Failure, Json, Milestone, Revocation, State, Status,
    Timestamp,
};

/// What the effects of a change depend on besides the change: facts of the task and of its service.
#[derive(Debug, Clone, Copy, Default)]
pub struct Subject<'t> {
    /// The callback that was asked for with the task.
    pub callback: Option<&'t Callback>,
    /// Whether the task has a unique key.
    pub has_unique_key: bool,
    /// Whether other tasks depend on it.
    pub has_dependents: bool,
    /// Whether instances may lease tasks of its service.
    pub may_be_leased: bool,
    /// Whether its service has a limit on how many tasks run, and no broker.
    pub limits_running: bool,
    /// Whether its service has a window on what is at its broker.
    pub has_window: bool,
}

/// What becomes of a task's unique key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyEffect {
    /// Another task may have it.
    Freed,
    /// The task has it again.
    Retaken,
}

/// What follows from one change.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Effects {
    /// The attempt that ended while the task goes on.
    pub ended_attempt: Option<Attempt>,
    /// The result that is stored with the task.
    pub response: Option<Json>,
    /// Why it failed for good.
    pub failure: Option<Failure>,
    /// What the task's callback is sent.
    pub callback: Option<CallbackEvent>,
    /// What becomes of its unique key.
    pub unique_key: Option<KeyEffect>,
    /// What subscribers to events are told.
    pub milestone: Option<Milestone>,
    /// Whether watchers of the task see something new.
    pub is_visible: bool,
    /// Whether the task had ended, or waited, and starts anew.
    pub is_revived: bool,
    /// Whether it is pending again, and must be published again where the service uses a broker.
    pub returns_to_queue: bool,
    /// Whether the instance lease on it ends.
    pub ends_lease: bool,
    /// Whether a claim on the service may find more than before.
    pub wakes_claims: bool,
    /// Whether the service's window has room for another task.
    pub opens_window: bool,
    /// Whether the dependents of the task must be resolved.
    pub ends_for_dependents: bool,
    /// Whether the worker that has the task gets a revocation.
    pub revokes: bool,
    /// When the next timer of the task fires.
    pub timer: Option<Timestamp>,
}

impl Effects {
    /// What follows from this event, by which a task that was `before` is `after`.
    pub fn of(subject: Subject<'_>, before: &State, event: &Event, after: &State, now: Timestamp) -> Self {
        // A heartbeat is written by whoever keeps leases, and nobody need hear of it.
        if matches!(event, Event::Kept { .. }) {
            return Self::default();
        }
        let ends = after.status.is_final() && !before.status.is_final();
        let is_queued = after.status == Status::Pending;
        let stops_running = before.status == Status::InProgress && after.status != Status::InProgress;
        let leaves_broker = after.status.is_final() || after.status == Status::Waiting;
        let ends_for_dependents = subject.has_dependents && ends;
        let unique_key = match after.status.is_final() {
            _ if !subject.has_unique_key || before.status.is_final() == after.status.is_final() => None,
            true => Some(KeyEffect::Freed),
            false => Some(KeyEffect::Retaken),
        };
        let (response, failure) = result(event, after);
        let due = (after.status == Status::Waiting).then(|| after.timer()).flatten();
        Self {
            ended_attempt: ended_attempt(before, event, after, now),
            response,
            failure,
            callback: callback_event(before, after)
                .filter(|event| subject.callback.is_some_and(|callback| callback.asks_for(*event))),
            unique_key,
            milestone: Milestone::of(before, after),
            is_visible: after.revision != before.revision,
            is_revived: matches!(event, Event::Revived),
            // What a broker took back is in its queue already.
            returns_to_queue: is_queued && !matches!(event, Event::GivenBack { .. }),
            ends_lease: subject.may_be_leased && matches!(after.status, Status::Pending | Status::Waiting),
            wakes_claims: is_queued || stops_running && subject.limits_running,
            opens_window: leaves_broker && subject.has_window,
            ends_for_dependents,
            revokes: Revocation::follows(before, event, after),
            // Dependents are resolved by whoever fires timers, and now is the time.
            timer: if ends_for_dependents { due.into_iter().chain([now]).min() } else { due },
        }
    }
}

/// The attempt that this change ended, if the task goes on without it.
fn ended_attempt(before: &State, event: &Event, after: &State, now: Timestamp) -> Option<Attempt> {
    let outcome = match event {
        Event::Failed { .. } if after.status == Status::Waiting => AttemptOutcome::Failure,
        _ if before.status != Status::InProgress || after.status.is_final() || after.attempt == 0 => return None,
        Event::Returned { .. } | Event::GivenBack { .. } => AttemptOutcome::Returned,
        Event::LeaseExpired { .. } | Event::Abandoned { .. } => AttemptOutcome::Lost,
        _ if before.attempt != after.attempt => AttemptOutcome::Lost,
        _ => return None,
    };
    Some(Attempt {
        number: if before.status == Status::InProgress { before.attempt } else { after.attempt },
        started: before.started.or(Some(now)),
        ended: Some(now),
        outcome,
        worker_host: before.worker_host.clone(),
        failure: match event {
            Event::Failed { failure, .. } => Some(failure.clone()),
            _ => None,
        },
        response: None,
    })
}

/// What a callback may be sent after a change, if it asks for it.
fn callback_event(before: &State, after: &State) -> Option<CallbackEvent> {
    if after.status != Status::InProgress {
        return CallbackEvent::of_end(after.status);
    }
    if before.status != Status::InProgress || before.started != after.started {
        return Some(CallbackEvent::Started);
    }
    (before.progress != after.progress).then_some(CallbackEvent::Progress)
}

/// The result that a task has from now on: a response, or why it failed.
fn result(event: &Event, after: &State) -> (Option<Json>, Option<Failure>) {
    match event {
        Event::Succeeded { response, .. } => (Some(response.clone()), None),
        Event::Failed { failure, .. } if after.status == Status::Failure => (None, Some(failure.clone())),
        Event::Barred(failure) => (None, Some(failure.clone())),
        Event::Expired => (None, Some(Failure::new("Nobody started it in time.").of_kind("expired"))),
        Event::LeaseExpired { .. } | Event::Abandoned { .. } | Event::Delivered { .. }
            if after.status == Status::Failure =>
        {
            let times = if after.losses == 1 { "once".to_owned() } else { format!("{} times", after.losses) };
            let message = format!("Taken by a worker that was not heard of again, {times}.");
            (None, Some(Failure::new(message).of_kind("lost")))
        }
        _ => (None, None),
    }
}
