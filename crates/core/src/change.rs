//! What became of a task, as those hear it who want to know of every change and not only that something changed.

use crate::{ClientKey, ServiceKey, State, Status, TaskId, Timestamp};

/// A step in a task's life that others may want to hear of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Milestone {
    /// It was taken in.
    Submitted,
    /// A worker has begun, or another one has begun anew.
    Started,
    /// A worker said how far it is.
    Progress,
    /// Its worker gave it back or fell silent, or its time has come: it waits for a worker again.
    Returned,
    /// It failed, and is tried again later.
    Retrying,
    /// It ended well.
    Success,
    /// It ended badly.
    Failure,
    /// It was given up.
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

    /// What a change of state was; none if nobody but the store need know, such as a lease that is longer now.
    pub fn of(before: &State, after: &State) -> Option<Self> {
        if before.revision == after.revision {
            return None;
        }
        Some(match after.status {
            Status::Pending => Self::Returned,
            // What it waited for is there; its time has not come.
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

/// A task that has come to a milestone.
#[derive(Debug, Clone)]
pub struct TaskChange {
    /// Its public name.
    pub task_id: TaskId,
    /// The service.
    pub service: ServiceKey,
    /// The consumer.
    pub client: ClientKey,
    /// What happened.
    pub milestone: Milestone,
    /// Its state since then.
    pub state: State,
    /// When it was taken in; not known of one that just was.
    pub submitted: Option<Timestamp>,
    /// One id through a chain of tasks.
    pub correlation_id: Option<String>,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Event, apply};

    #[test]
    fn every_step_of_a_life_has_its_name() {
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
}
