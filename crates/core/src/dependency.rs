//! Dependencies: the tasks that a task waits for, and when it is released.
//!
//! A dependent task is [`Status::Waiting`] without a due time. Each of its dependencies is resolved once, by its first
//! end. [`After::gate`] decides what follows, both at submission and each time that a dependency ends.

use crate::{BatchId, Failure, State, Status, TaskId};

/// The most dependencies of one task.
pub const MOST_PREREQUISITES: usize = 100;

/// The condition that releases a dependent task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Condition {
    /// All dependencies succeeded. As soon as one ends otherwise, the task fails.
    #[default]
    AllSucceeded,
    /// All dependencies ended, in any way.
    AllEnded,
    /// One dependency ended, in any way.
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

/// The dependencies of a new task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct After {
    /// These tasks, each once. They belong to the same client, and were submitted before, or come before it in the same
    /// call.
    pub tasks: Vec<TaskId>,
    /// The condition.
    pub when: Condition,
}

/// One dependency of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prerequisite {
    /// Its public name.
    pub task_id: TaskId,
    /// Its first end.
    pub ended: Option<Status>,
}

/// Whether a dependent task may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Not yet.
    Closed,
    /// It may start.
    Open,
    /// Never: this dependency ended in a way that does not meet the condition.
    Barred(TaskId, Status),
}

impl Condition {
    /// Decides for a task with these dependencies.
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

/// What a list of tasks can have in common besides service and client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskLink {
    /// The correlation id.
    Correlation(String),
    /// The parent.
    Parent(TaskId),
    /// The batch.
    Batch(BatchId),
    /// An unresolved dependency on this task.
    After(TaskId),
}

/// What a call that resolves dependencies did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DependenciesResolved {
    /// How many tasks changed.
    pub changed: usize,
    /// Whether there may be more to resolve.
    pub more: bool,
}

/// The failure of a task whose dependency did not meet the condition.
pub fn barred(task_id: TaskId, status: Status) -> Failure {
    Failure::new(format!("It was to start after task {task_id}, which ended as {}.", status.as_str()))
        .of_kind("dependency")
}

impl State {
    /// The state of a task that was just submitted and has dependencies.
    pub fn blocked() -> Self {
        Self { status: Status::Waiting, ..Self::pending() }
    }

    /// Whether it waits for its dependencies.
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
