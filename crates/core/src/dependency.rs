//! Tasks that wait for others: what they wait for, and when they need not wait any more.
//!
//! A task that waits so is [`Status::Waiting`] without being due. Each of those that it waits for settles its part once, by the
//! first end that it comes to; [`After::gate`] says what follows, the same when the task is submitted and each time that one
//! of the others ends.

use crate::{BatchId, Failure, State, Status, TaskId};

/// So many tasks may one wait for.
pub const MOST_PREREQUISITES: usize = 100;

/// When a task need not wait any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Condition {
    /// All of the others ended well. As soon as one ends otherwise it never will be so, and the task fails.
    #[default]
    AllSucceeded,
    /// All of the others ended, however they did.
    AllEnded,
    /// One of the others ended, however it did.
    AnyEnded,
}

impl Condition {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 3] = [Self::AllSucceeded, Self::AllEnded, Self::AnyEnded];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AllSucceeded => "allSucceeded",
            Self::AllEnded => "allEnded",
            Self::AnyEnded => "anyEnded",
        }
    }

    /// The number that stands for it in a row.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// Reads the number that stands for it in a row.
    pub fn from_code(code: i16) -> Option<Self> {
        usize::try_from(code).ok().and_then(|index| Self::ALL.get(index).copied())
    }
}

/// What a new task waits for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct After {
    /// These tasks, each once. They are of the same client, and were taken in before, or come before it in the same call.
    pub tasks: Vec<TaskId>,
    /// When it need not wait any more.
    pub when: Condition,
}

/// One of the tasks that another one waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prerequisite {
    /// Its public name.
    pub task_id: TaskId,
    /// How it ended, the first time that it did.
    pub ended: Option<Status>,
}

/// Whether a task may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Not yet.
    Closed,
    /// It may.
    Open,
    /// Never: this one ended in a way that it was not to.
    Barred(TaskId, Status),
}

impl Condition {
    /// Whether a task that waits for these may go on.
    pub fn gate<'a>(self, prerequisites: impl IntoIterator<Item = &'a Prerequisite>) -> Gate {
        let (mut any, mut all) = (false, true);
        for prerequisite in prerequisites {
            match prerequisite.ended {
                Some(status) if self == Self::AllSucceeded && status != Status::Success => {
                    return Gate::Barred(prerequisite.task_id, status);
                }
                Some(_) => any = true,
                None => all = false,
            }
        }
        if all || any && self == Self::AnyEnded { Gate::Open } else { Gate::Closed }
    }
}

/// What tasks can have in common besides their service and their client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskLink {
    /// This correlation id.
    Correlation(String),
    /// This task is their parent.
    Parent(TaskId),
    /// This is their batch.
    Batch(BatchId),
    /// They wait for this task, and were not told yet that it has ended.
    After(TaskId),
}

/// What became of tasks because others ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DependenciesResolved {
    /// So many tasks changed.
    pub changed: usize,
    /// Whether there may be more to do.
    pub more: bool,
}

/// Why a task fails that waits for one that ended otherwise than it was to.
pub fn barred(task_id: TaskId, status: Status) -> Failure {
    Failure::new(format!("It was to start after task {task_id}, which ended as {}.", status.as_str()))
        .of_kind("dependency")
}

impl State {
    /// A task that was just taken in, and waits for others.
    pub fn blocked() -> Self {
        Self { status: Status::Waiting, ..Self::pending() }
    }

    /// Whether it waits for other tasks.
    pub fn is_blocked(&self) -> bool {
        self.status == Status::Waiting && self.due.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dependency_condition_is_met_by_its_statuses() {
        use Status::{Cancelled, Failure, Success};
        let id = TaskId::generate();
        let gate = |when: Condition, ends: &[Option<Status>]| {
            let all: Vec<_> = ends.iter().map(|&ended| Prerequisite { task_id: id, ended }).collect();
            when.gate(&all)
        };
        for (when, ends, expected) in [
            (Condition::AllSucceeded, vec![None, None], Gate::Closed),
            (Condition::AllSucceeded, vec![Some(Success), None], Gate::Closed),
            (Condition::AllSucceeded, vec![Some(Success), Some(Success)], Gate::Open),
            (Condition::AllSucceeded, vec![None, Some(Failure)], Gate::Barred(id, Failure)),
            (Condition::AllSucceeded, vec![Some(Success), Some(Cancelled)], Gate::Barred(id, Cancelled)),
            (Condition::AllEnded, vec![Some(Failure), None], Gate::Closed),
            (Condition::AllEnded, vec![Some(Failure), Some(Cancelled)], Gate::Open),
            (Condition::AnyEnded, vec![None, None], Gate::Closed),
            (Condition::AnyEnded, vec![None, Some(Failure)], Gate::Open),
        ] {
            assert_eq!(gate(when, &ends), expected, "{when:?} {ends:?}");
        }
    }

    #[test]
    fn conditions_keep_their_codes() {
        for when in Condition::ALL {
            assert_eq!(Condition::from_code(when.code()), Some(when));
        }
        assert_eq!(Condition::from_code(3), None);
    }
}
