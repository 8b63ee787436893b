//! The only way a task's state changes.
//!
//! Every driver loads a [`State`], hands it to [`apply`] with what happened, and stores what comes back. Messages may
//! arrive late, twice or out of order, from workers that were replaced long ago: whatever they say, a final state stays
//! as it is, and a message that carries another attempt than the current one changes nothing.

use std::time::Duration;

use crate::{Json, Status, Timestamp};

/// The part of a task that changes.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// Where it is in its life.
    pub status: Status,
    /// How many times it was handed to a worker; the number of the current attempt.
    pub attempt: u32,
    /// How many times a worker lost it without a word.
    pub losses: u32,
    /// From 0 to 100, as the worker reports it.
    pub progress: f64,
    /// The host or pod that runs it.
    pub worker_host: Option<String>,
    /// When the current attempt started.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// Until when its worker may keep silent. None where a broker watches the worker instead.
    pub lease_until: Option<Timestamp>,
    /// Counts the changes; watchers use it to know whether they have seen this one.
    pub revision: u64,
}

impl State {
    /// A task that was just taken in.
    pub const fn pending() -> Self {
        Self {
            status: Status::Pending,
            attempt: 0,
            losses: 0,
            progress: 0.0,
            worker_host: None,
            started: None,
            ended: None,
            lease_until: None,
            revision: 0,
        }
    }
}

/// Something that happened to a task. `attempt` is the fencing number; workers that know none send none.
#[derive(Debug, Clone)]
pub enum Event {
    /// A worker took it from the built-in queue, under a lease.
    Claimed {
        /// The host or pod that runs it.
        worker_host: Option<String>,
        /// How long the worker may keep silent.
        lease: Duration,
    },
    /// The worker says that it has begun.
    Started {
        /// The attempt it speaks of.
        attempt: Option<u32>,
        /// The host or pod that runs it.
        worker_host: Option<String>,
        /// How long it may keep silent from now on. None where a broker watches the worker instead.
        lease: Option<Duration>,
    },
    /// A worker to whom a broker gave it says that it has begun. The broker watches that worker, so there is no lease, and it
    /// says nothing of its own: a second start is how one learns that the worker before was lost.
    Delivered {
        /// The host or pod that runs it.
        worker_host: Option<String>,
        /// Whether this may have been heard before.
        again: bool,
        /// After so many losses the task fails: it may be what kills its workers.
        delivery_limit: u32,
    },
    /// The worker says how far it is.
    Progressed {
        /// The attempt it speaks of.
        attempt: Option<u32>,
        /// From 0 to 100; anything else is brought into that range.
        progress: f64,
        /// How long it may keep silent from now on. None where a broker watches the worker instead.
        lease: Option<Duration>,
    },
    /// The worker has a result.
    Succeeded {
        /// The attempt it speaks of.
        attempt: Option<u32>,
        /// The result.
        response: Json,
    },
    /// The worker could not do it.
    Failed {
        /// The attempt it speaks of.
        attempt: Option<u32>,
        /// Why.
        error_message: String,
    },
    /// The worker is alive and still has it.
    Renewed {
        /// The attempt it speaks of.
        attempt: Option<u32>,
        /// How long it may keep silent from now on.
        lease: Duration,
    },
    /// The worker gives it back unfinished; somebody else may take it.
    Returned {
        /// The attempt it speaks of.
        attempt: Option<u32>,
    },
    /// The worker gives it back to the broker, which gives it to another one.
    GivenBack {
        /// The host or pod that ran it.
        worker_host: Option<String>,
    },
    /// The worker kept silent for too long.
    LeaseExpired {
        /// After so many losses the task fails: it may be what kills its workers.
        delivery_limit: u32,
    },
    /// Its consumer, or an operator, gives it up.
    Cancelled,
}

/// Why an event changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Ignored {
    /// The task had ended; it has the status it has.
    #[error("the task has ended ({})", .0.as_str())]
    Ended(Status),
    /// The message is of another attempt than the current one.
    #[error("the message is of another attempt than the current one ({0})")]
    OtherAttempt(u32),
    /// Nobody holds the task at the moment.
    #[error("the lease was lost")]
    NotHeld,
    /// The event does not fit the state, e.g. a claim of what is not pending.
    #[error("nothing to do in this state")]
    NoEffect,
}

/// What a task becomes when something happens to it, or why it stays as it is.
pub fn apply(state: &State, event: &Event, now: Timestamp) -> Result<State, Ignored> {
    if state.status.is_final() {
        return Err(Ignored::Ended(state.status));
    }
    if let Some(attempt) = event.attempt()
        && attempt != state.attempt
    {
        return Err(Ignored::OtherAttempt(state.attempt));
    }
    let mut next = state.clone();
    next.revision += 1;
    match event {
        Event::Claimed { worker_host, lease } => {
            if state.status != Status::Pending {
                return Err(Ignored::NoEffect);
            }
            next.attempt += 1;
            next.begin(worker_host.clone(), now);
            next.lease_until = Some(now.after(*lease));
        }
        Event::Started { worker_host, lease, .. } => {
            started(state, &mut next, event, worker_host, now)?;
            next.prolong(*lease, now);
        }
        Event::Delivered { worker_host, again, delivery_limit } => {
            let same = worker_host.is_none() || *worker_host == state.worker_host;
            match state.status {
                Status::InProgress if *again && same => return Err(Ignored::NoEffect),
                // Its first words were overtaken by others, which said no name.
                Status::InProgress if state.worker_host.is_none() => next.worker_host.clone_from(worker_host),
                Status::InProgress if state.losses + 1 >= *delivery_limit => {
                    next.losses += 1;
                    next.end(Status::Failure, now);
                }
                status => {
                    next.losses += u32::from(status == Status::InProgress);
                    next.attempt += 1;
                    next.begin(worker_host.clone(), now);
                    next.lease_until = None;
                }
            }
        }
        Event::GivenBack { worker_host } => {
            if state.status != Status::InProgress || worker_host.is_some() && *worker_host != state.worker_host {
                return Err(Ignored::NotHeld);
            }
            next.requeue();
        }
        Event::Progressed { progress, lease, .. } => {
            held(state, event)?;
            if state.status == Status::Pending {
                // The `started` message is still on its way: this one proves that the work has begun.
                next.attempt += 1;
                next.begin(None, now);
            }
            next.prolong(*lease, now);
            next.progress = if progress.is_nan() { state.progress } else { progress.clamp(0.0, 100.0) };
        }
        Event::Succeeded { .. } => {
            next.end(Status::Success, now);
            next.progress = 100.0;
        }
        Event::Failed { .. } => next.end(Status::Failure, now),
        Event::Renewed { lease, .. } => {
            if state.status != Status::InProgress {
                return Err(Ignored::NotHeld);
            }
            next.lease_until = Some(now.after(*lease));
            // Nobody waits for a renewal.
            next.revision = state.revision;
        }
        Event::Returned { .. } => {
            if state.status != Status::InProgress {
                return Err(Ignored::NotHeld);
            }
            next.requeue();
        }
        Event::LeaseExpired { delivery_limit } => {
            if state.status != Status::InProgress || state.lease_until.is_none_or(|until| until > now) {
                return Err(Ignored::NoEffect);
            }
            next.losses += 1;
            if next.losses >= *delivery_limit { next.end(Status::Failure, now) } else { next.requeue() }
        }
        Event::Cancelled => next.end(Status::Cancelled, now),
    }
    Ok(next)
}

/// A `started` is the first one (the claim, or the broker's delivery, said no host), the same one again, or the sign that
/// the broker gave the task to another worker.
fn started(
    state: &State,
    next: &mut State,
    event: &Event,
    worker_host: &Option<String>,
    now: Timestamp,
) -> Result<(), Ignored> {
    held(state, event)?;
    match state.status {
        Status::InProgress if state.worker_host.is_none() => next.worker_host.clone_from(worker_host),
        // Whoever names the current attempt has it; its `started` adds nothing but its name.
        Status::InProgress
            if event.attempt().is_some() && worker_host.is_some() && *worker_host != state.worker_host =>
        {
            next.worker_host.clone_from(worker_host);
        }
        // The worker that took the task by claim says so once more.
        Status::InProgress
            if event.attempt().is_some()
                || state.lease_until.is_some() && (worker_host.is_none() || *worker_host == state.worker_host) =>
        {
            return Err(Ignored::NoEffect);
        }
        _ => {
            next.attempt += u32::from(event.attempt().is_none());
            next.begin(worker_host.clone(), now);
        }
    }
    Ok(())
}

/// A message that names its attempt is believed only while that attempt holds the task.
fn held(state: &State, event: &Event) -> Result<(), Ignored> {
    match (event.attempt(), state.status) {
        (Some(_), Status::Pending) => Err(Ignored::NotHeld),
        _ => Ok(()),
    }
}

impl State {
    fn begin(&mut self, worker_host: Option<String>, now: Timestamp) {
        self.status = Status::InProgress;
        self.worker_host = worker_host;
        self.started = Some(now);
        self.progress = 0.0;
    }

    /// Whoever says something is alive. A longer lease, as a claim may have asked for, stays as long.
    fn prolong(&mut self, lease: Option<Duration>, now: Timestamp) {
        if let Some(lease) = lease {
            self.lease_until = self.lease_until.max(Some(now.after(lease)));
        }
    }

    fn requeue(&mut self) {
        *self = Self { attempt: self.attempt, losses: self.losses, revision: self.revision, ..Self::pending() };
    }

    fn end(&mut self, status: Status, now: Timestamp) {
        if status != Status::Cancelled {
            // The result overtook its `started`.
            self.started.get_or_insert(now);
        }
        self.status = status;
        self.ended = Some(now);
        self.lease_until = None;
    }
}

impl Event {
    /// The attempt that the event speaks of, where it says so.
    pub const fn attempt(&self) -> Option<u32> {
        match self {
            Self::Started { attempt, .. }
            | Self::Progressed { attempt, .. }
            | Self::Succeeded { attempt, .. }
            | Self::Failed { attempt, .. }
            | Self::Renewed { attempt, .. }
            | Self::Returned { attempt } => *attempt,
            Self::Claimed { .. }
            | Self::Delivered { .. }
            | Self::GivenBack { .. }
            | Self::LeaseExpired { .. }
            | Self::Cancelled => None,
        }
    }
}
