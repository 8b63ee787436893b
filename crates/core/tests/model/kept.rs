//! A task as a model keeps it: the real state, less what grows for ever, changed by the real [`apply`].
//!
//! Time is relative: it is always [`NOW`], and a lease that is in the future comes nearer when time passes.

use std::{
    hash::{Hash, Hasher},
    time::Duration,
};

use relais_core::{Event, Ignored, Json, State, Status, Timestamp, apply};

/// The present.
pub const NOW: Timestamp = Timestamp::from_millis(1_000_000);

/// How long a worker may keep silent: until time passes once.
pub const LEASE: Duration = Duration::from_millis(1);

/// Hosts by the number of their worker.
pub const HOSTS: [&str; 2] = ["a", "b"];

/// A task.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept(pub State);

// Progress is never NaN: `apply` sees to it.
impl Eq for Kept {}

impl Hash for Kept {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let State { status, attempt, losses, failures, lease_until, .. } = &self.0;
        (status, attempt, losses, failures, lease_until, &self.0.worker_host).hash(hasher);
    }
}

impl Kept {
    /// One that was just taken in.
    pub fn new() -> Self {
        Self(State::pending())
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.0.status.is_final()
    }

    /// What it becomes when something happens.
    pub fn after(&self, event: &Event) -> Result<Self, Ignored> {
        apply(&self.0, event, NOW).map(|state| Self(State { revision: 0, ..state }))
    }

    /// Whether its lease has not run out.
    pub fn is_leased(&self) -> bool {
        self.0.lease_until.is_some_and(|until| until > NOW)
    }

    /// Whether something will happen to it when time passes.
    pub fn has_time(&self) -> bool {
        self.is_leased() || self.0.due.is_some_and(|due| due > NOW)
    }

    /// Time passes.
    pub fn later(&mut self) {
        for moment in [&mut self.0.lease_until, &mut self.0.due] {
            *moment = moment.map(|moment| moment.min(NOW));
        }
    }

    /// How it ended.
    pub fn end(&self) -> Option<&'static str> {
        self.has_ended().then(|| self.0.status.as_str())
    }
}

/// A result.
pub fn response() -> Json {
    match Json::parse("{}".to_owned()) {
        Ok(json) => json,
        Err(error) => unreachable!("{error}"),
    }
}

/// Whether an event is a worker's result.
pub const fn is_result(event: &Event) -> bool {
    matches!(event, Event::Succeeded { .. } | Event::Failed { .. })
}

/// What must hold of every change, whoever made it: a final state stays, and only what a worker has or waits is
/// changed.
pub fn check_change(before: &Kept, after: &Kept, event: &Event) -> Result<(), String> {
    if before.has_ended() && before != after {
        return Err(format!("a final state never changes: {event:?}"));
    }
    if let Some(attempt) = event.attempt()
        && attempt < before.0.attempt
        && before != after
    {
        return Err(format!("a message of an older attempt changes nothing: {event:?}"));
    }
    if matches!(event, Event::LeaseExpired { .. }) && before.is_leased() && before != after {
        return Err("a lease that runs is left alone".to_owned());
    }
    if after.0.status == Status::Pending && after.0.lease_until.is_some() {
        return Err("nobody has a lease on a task that waits".to_owned());
    }
    Ok(())
}
