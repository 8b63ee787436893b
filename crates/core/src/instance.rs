//! Instances: their registration, their heartbeats, and what happens to their leased tasks when they die.
//!
//! A worker over HTTP has a lease for each task. An instance covers all its leased tasks with one heartbeat, so leasing
//! a thousand tasks costs one row.

use std::time::Duration;

use crate::{ServiceKey, Timestamp};

/// The key of one run of a process: a new one each time that it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceKey(pub i64);

/// The crash policy: what happens to the leased tasks of a dead instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CrashPolicy {
    /// They run again anywhere. At the delivery limit of the service, they fail.
    #[default]
    Restart,
    /// They fail.
    Fail,
    /// They stay as they are, and no instance of that name starts, until an operator decides.
    Refuse,
}

impl CrashPolicy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Restart, Self::Fail, Self::Refuse];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Fail => "fail",
            Self::Refuse => "refuse",
        }
    }

    /// Reads the name on the wire.
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

/// An instance to be registered.
#[derive(Debug, Clone)]
pub struct NewInstance {
    /// Its name. It replaces an instance with the same name.
    pub name: String,
    /// The host or pod it runs on.
    pub host: Option<String>,
    /// Which version of Relais it is.
    pub version: String,
    /// Its crash policy.
    pub policy: CrashPolicy,
    /// How long it may be silent before it counts as dead.
    pub silence: Duration,
    /// The services whose tasks it runs.
    pub services: Vec<ServiceKey>,
}

/// The answer to a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
    /// It is registered.
    In {
        /// Its key.
        key: InstanceKey,
        /// How many tasks of its predecessor were recovered.
        recovered: usize,
    },
    /// The predecessor died with so many leased tasks, and an operator has to decide what happens to them.
    Refused {
        /// How many.
        tasks: usize,
    },
}

/// An operator's decision about the tasks of a dead instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// They run again.
    Restart,
    /// They fail.
    Fail,
}

/// The status of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceStatus {
    /// Its heartbeats arrive.
    Alive,
    /// It has been silent for too long, and is about to be reaped.
    Silent,
    /// It died with leased tasks, and an operator has to decide what happens to them.
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

/// A registered instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceRecord {
    /// Its key.
    pub key: InstanceKey,
    /// Its name.
    pub name: String,
    /// The host or pod it runs on.
    pub host: Option<String>,
    /// Which version of Relais it is.
    pub version: String,
    /// Its crash policy.
    pub policy: CrashPolicy,
    /// Its status.
    pub status: InstanceStatus,
    /// When it registered.
    pub started: Timestamp,
    /// Its last heartbeat.
    pub seen: Timestamp,
    /// About how many tasks it has leased. Tasks that it has just finished may be among them.
    pub leased: u64,
}

/// What a call of the reaper did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReapedInstances {
    /// How many instances were reaped.
    pub instances: usize,
    /// How many of their tasks were recovered.
    pub tasks: usize,
    /// How long until the next instance has been silent for too long, unless its heartbeat arrives.
    pub next: Option<Duration>,
}
