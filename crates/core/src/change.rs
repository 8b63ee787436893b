//! Milestones of tasks, for subscribers to events, and revocations, for workers.

use crate::{Attempt, ClientKey, Event, Failure, ServiceKey, State, Status, TaskId, Timestamp};

/// The most bytes of JSON of a failure's message in an event. An event has to fit into a text between processes
/// ([`MAX_TEXT`](crate::wakeup::MAX_TEXT)). The task has the whole message.
const LONGEST_MESSAGE: usize = 1_000;

/// The most bytes of its trace.
const LONGEST_TRACE: usize = 2_500;

/// The most bytes of its kind.
const LONGEST_KIND: usize = 200;

/// A milestone: a step in a task's life that others may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Milestone {
    /// It was submitted.
    Submitted,
    /// A worker has started it, or another worker has started it again.
    Started,
    /// A worker reported its progress.
    Progress,
    /// Its worker returned it or fell silent, or its time has come: it is pending again.
    Returned,
    /// It failed, and is retried later.
    Retrying,
    /// It succeeded.
    Success,
    /// It failed for good.
    Failure,
    /// It was cancelled.
    Cancelled,
}

impl Milestone {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Submitted,
        Self::Started,
        Self::Progress,
        Self::Returned,
        Self::Retrying,
        Self::Success,
        Self::Failure,
        Self::Cancelled,
    ];

    /// Its name: the last word of the channel on which it is published.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Started => "started",
            Self::Progress => "progress",
            Self::Returned => "returned",
            Self::Retrying => "retrying",
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Cancelled => "cancelled",
        }
    }

    /// The milestone of a change of state; none for a change that only the store needs to know, such as a longer lease.
    pub fn of(before: &State, after: &State) -> Option<Self> {
        if before.revision == after.revision {
            return None;
        }
        Some(match after.status {
            Status::Pending => Self::Returned,
            // Its dependencies are met, but it is not due yet.
            Status::Waiting if before.status == Status::Waiting => return None,
            Status::Waiting => Self::Retrying,
            Status::InProgress if before.status != Status::InProgress || before.started != after.started => {
                Self::Started
            }
            Status::InProgress => Self::Progress,
            Status::Success => Self::Success,
            Status::Failure => Self::Failure,
            Status::Cancelled => Self::Cancelled,
        })
    }
}

/// An event: a task that has reached a milestone.
#[derive(Debug, Clone)]
pub struct TaskChange {
    /// The task's public name.
    pub task_id: TaskId,
    /// The service.
    pub service: ServiceKey,
    /// The consumer.
    pub client: ClientKey,
    /// The milestone.
    pub milestone: Milestone,
    /// The task's state after the change.
    pub state: State,
    /// When it was submitted; none for a task that was just submitted.
    pub submitted: Option<Timestamp>,
    /// One id through a chain of tasks.
    pub correlation_id: Option<String>,
    /// The attempt that ended with this change while the task goes on. The state no longer describes it.
    pub over: Option<Attempt>,
    /// Why it failed, [in brief](Self::in_brief).
    pub failure: Option<Failure>,
}

impl TaskChange {
    /// A failure as events carry it: long texts are cut.
    pub fn in_brief(failure: &Failure) -> Failure {
        Failure {
            message: beginning(&failure.message, LONGEST_MESSAGE),
            kind: failure.kind.as_deref().map(|kind| beginning(kind, LONGEST_KIND)),
            trace: failure.trace.as_deref().map(|trace| beginning(trace, LONGEST_TRACE)),
            ..*failure
        }
    }
}

/// A revocation: tells a worker to stop a task that was cancelled, timed out, or has already ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Revocation {
    /// Its public name.
    pub task_id: TaskId,
    /// The service.
    pub service: ServiceKey,
    /// The task's status since then: final, or waiting for a retry.
    pub status: Status,
    /// Its revision. The revocation is about deliveries with an earlier revision, not about later ones.
    pub revision: u64,
    /// Whether the change just happened. Otherwise a worker reported on the task without knowing of it.
    pub fresh: bool,
}

impl Revocation {
    /// Whether this event took the task from a worker that does not know. A worker knows of an end that it reported
    /// itself, and no worker needs to know of a task that none could have.
    pub fn follows(before: &State, event: &Event, after: &State) -> bool {
        matches!(event, Event::Cancelled | Event::Expired | Event::Delivered { .. })
            && matches!(before.status, Status::Pending | Status::InProgress)
            && is_withdrawn(after)
    }

    /// Whether a worker that sends this message through a broker still runs the task without knowing of the change. A
    /// worker that sends a result has finished it.
    pub fn is_unknown_to_whoever_says(event: &Event, state: &State) -> bool {
        let goes_on = match event {
            Event::Delivered { delivery_limit, .. } => *delivery_limit < u32::MAX,
            Event::Progressed { lease, .. } => lease.is_none(),
            _ => false,
        };
        goes_on && is_withdrawn(state)
    }
}

/// Whether no worker may run the task in this state. A retry is delivered anew.
fn is_withdrawn(state: &State) -> bool {
    state.status.is_final() || state.status == Status::Waiting
}

fn beginning(text: &str, most: usize) -> String {
    let mut size = 0;
    let end = text.char_indices().find_map(|(at, char)| {
        size += match char {
            '"' | '\\' | '\n' | '\r' | '\t' => 2,
            _ if char.is_ascii_control() => 6,
            _ => char.len_utf8(),
        };
        (size > most).then_some(at)
    });
    match end {
        Some(end) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::apply;

    #[test]
    fn every_milestone_has_its_name() {
        let lease = Duration::from_secs(60);
        let at = |second: i64| Timestamp::from_millis(second * 1000);
        let steps = [
            (Event::Claimed { worker_host: None, lease }, Some(Milestone::Started)),
            (Event::Renewed { attempt: None, lease }, None),
            (Event::Progressed { attempt: None, progress: 10.0, lease: Some(lease) }, Some(Milestone::Progress)),
            (Event::Returned { attempt: None }, Some(Milestone::Returned)),
            (Event::Claimed { worker_host: None, lease }, Some(Milestone::Started)),
            (Event::LeaseExpired { delivery_limit: 9 }, Some(Milestone::Returned)),
            (Event::Cancelled, Some(Milestone::Cancelled)),
        ];
        let mut state = State::pending();
        for (second, (event, expected)) in (100..).step_by(100).zip(steps) {
            let next = apply(&state, &event, at(second)).unwrap();
            assert_eq!(Milestone::of(&state, &next), expected, "{event:?}");
            state = next;
        }
    }

    #[test]
    fn a_worker_gets_a_revocation_for_a_change_made_by_others() {
        let at = Timestamp::from_millis(1_000);
        let expires = State { expires: Some(at), ..State::pending() };
        let began = Event::Delivered { worker_host: None, again: false, delivery_limit: 1 };
        let running = apply(&State::pending(), &began, at).unwrap();
        let other = Event::Delivered { worker_host: Some("b".to_owned()), again: false, delivery_limit: 1 };
        let known = State { worker_host: Some("a".to_owned()), ..running.clone() };
        for (before, event, told) in [
            (State::pending(), Event::Cancelled, true),
            (running.clone(), Event::Cancelled, true),
            (State::waiting(at), Event::Cancelled, false),
            (expires, Event::Expired, true),
            (State::pending(), began.clone(), false),
            (known, other, true),
            (running.clone(), Event::failed(None, "no"), false),
            (running.clone(), Event::GivenBack { worker_host: None }, false),
        ] {
            let after = apply(&before, &event, at).unwrap();
            assert_eq!(Revocation::follows(&before, &event, &after), told, "{event:?}");
        }
    }

    #[test]
    fn a_worker_that_reports_on_an_ended_task_gets_a_revocation() {
        let at = Timestamp::from_millis(1_000);
        let cancelled = apply(&State::pending(), &Event::Cancelled, at).unwrap();
        let progress = |lease| Event::Progressed { attempt: None, progress: 1.0, lease };
        let began = |delivery_limit| Event::Delivered { worker_host: None, again: false, delivery_limit };
        for (event, state, unknown) in [
            (progress(None), &cancelled, true),
            (progress(None), &State::waiting(at), true),
            (progress(None), &State::pending(), false),
            (began(20), &cancelled, true),
            // It comes with a result.
            (began(u32::MAX), &cancelled, false),
            (Event::failed(None, "no"), &cancelled, false),
            // Over HTTP the answer says it.
            (progress(Some(Duration::from_secs(1))), &cancelled, false),
        ] {
            assert_eq!(Revocation::is_unknown_to_whoever_says(&event, state), unknown, "{event:?}");
        }
    }

    #[test]
    fn a_long_failure_is_truncated_in_events() {
        let short = Failure { trace: Some("at a\n\tat b".to_owned()), ..Failure::new("no").of_kind("ink") };
        assert_eq!(TaskChange::in_brief(&short), short);
        for piece in ["a", "é", "🦀", "\n", "\"", "\u{1}"] {
            let long = Failure { trace: Some(piece.repeat(65_536)), ..Failure::new(piece.repeat(65_536)) };
            let told = TaskChange::in_brief(&long);
            for (told, most) in [(told.message, LONGEST_MESSAGE), (told.trace.unwrap_or_default(), LONGEST_TRACE)] {
                let size = serde_json::to_string(&told).unwrap().len() - "\"…\"".len();
                assert!(size <= most && size + 6 > most && told.ends_with('…'), "{piece:?}: {size}");
            }
        }
    }
}
