//! Processes that do tasks themselves: how they are known, what they have in hand, and what becomes of that when they die.
//!
//! A worker elsewhere holds each task under a lease of its own. A process on the store itself answers for all that it has
//! in hand with one sign of life: its heartbeat. So taking a thousand tasks costs it one row.

use std::time::Duration;

use crate::{ServiceKey, Timestamp};

/// One run of a process: another one each time that it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceKey(pub i64);

/// What becomes of the tasks that a process had in hand when it died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CrashPolicy {
    /// They are done again, by whoever is there. After as many losses as the service allows, they fail.
    #[default]
    Restart,
    /// They fail.
    Fail,
    /// They stay as they are, and no process of that name starts, until somebody has decided.
    Refuse,
}

impl CrashPolicy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Restart, Self::Fail, Self::Refuse];

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Fail => "fail",
            Self::Refuse => "refuse",
        }
    }

    /// The policy that a word means.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.as_str() == word)
    }

    /// The number under which it is stored.
    pub const fn code(self) -> i16 {
        match self {
            Self::Restart => 0,
            Self::Fail => 1,
            Self::Refuse => 2,
        }
    }

    /// The policy that is stored under a number.
    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.code() == code)
    }
}

/// A process that begins.
#[derive(Debug, Clone)]
pub struct NewInstance {
    /// What it is called. Whoever begins under a name replaces whoever had it.
    pub name: String,
    /// The host or pod it runs on.
    pub host: Option<String>,
    /// Which version of Relais it is.
    pub version: String,
    /// What becomes of its tasks if it dies.
    pub policy: CrashPolicy,
    /// How long it may keep silent before it counts as dead.
    pub silence: Duration,
    /// The services whose tasks it does itself.
    pub services: Vec<ServiceKey>,
}

/// Whether a process may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
    /// It may.
    In {
        /// What it is called from now on.
        key: InstanceKey,
        /// So many tasks of the one that had its name were taken care of.
        recovered: usize,
    },
    /// The one that had its name died with so many tasks in hand, and it is to be decided what becomes of them.
    Refused {
        /// How many.
        tasks: usize,
    },
}

/// What an operator decides about the tasks of a process that died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// They are done again.
    Restart,
    /// They fail.
    Fail,
}

/// How a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceStatus {
    /// It gives signs of life.
    Alive,
    /// It has been silent for too long; what it had is about to be taken care of.
    Silent,
    /// It died with tasks in hand, and somebody has to decide what becomes of them.
    Undecided,
}

impl InstanceStatus {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Silent => "silent",
            Self::Undecided => "undecided",
        }
    }
}

/// A process, as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceRecord {
    /// This run of it.
    pub key: InstanceKey,
    /// What it is called.
    pub name: String,
    /// The host or pod it runs on.
    pub host: Option<String>,
    /// Which version of Relais it is.
    pub version: String,
    /// What becomes of its tasks if it dies.
    pub policy: CrashPolicy,
    /// How it is.
    pub status: InstanceStatus,
    /// When it began.
    pub started: Timestamp,
    /// Its last sign of life.
    pub seen: Timestamp,
    /// How many tasks it has in hand, about: those that it has just finished may be among them.
    pub leased: u64,
}

/// What was done about processes that died.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReapedInstances {
    /// So many of them.
    pub instances: usize,
    /// So many tasks were taken care of.
    pub tasks: usize,
    /// How long until the next one has been silent for too long, unless it gives a sign of life.
    pub next: Option<Duration>,
}
