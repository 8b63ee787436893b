//! The only way a task's state changes.
//!
//! Every driver loads a [`State`], calls [`apply`] with an event, and stores the result. Messages may arrive late,
//! twice or out of order, from workers that were replaced long ago. A final state never changes, and a message of
//! another attempt than the current one changes nothing.

use std::time::Duration;

use crate::{Failure, Json, Status, Timestamp};

/// How long a worker has to stop by itself after its attempt has timed out.
pub const GRACE: Duration = Duration::from_secs(10);

/// The part of a task that changes.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// Where it is in its life.
    pub status: Status,
    /// How many times it was given to a worker: the number of the current attempt.
    pub attempt: u32,
    /// How many times a worker was lost without a message.
    pub losses: u32,
    /// How many attempts have failed: what a retry policy counts.
    pub failures: u32,
    /// From 0 to 100, as the worker reports it.
    pub progress: f64,
    /// The host or pod that runs it.
    pub worker_host: Option<String>,
    /// When the current attempt started.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// When its lease expires. None where a broker watches the worker instead.
    pub lease_until: Option<Timestamp>,
    /// When it enters its queue, while it is waiting.
    pub due: Option<Timestamp>,
    /// When it expires, while nobody has started it.
    pub expires: Option<Timestamp>,
    /// How long an attempt may take. It does not change.
    pub timeout: Option<Duration>,
    /// When the current attempt times out.
    pub deadline: Option<Timestamp>,
    /// Counts the visible changes, so that watchers know whether they have seen this one.
    pub revision: u64,
}

impl State {
    /// The state of a task that was just submitted.
    pub const fn pending() -> Self {
        Self {
            status: Status::Pending,
            attempt: 0,
            losses: 0,
            failures: 0,
            progress: 0.0,
            worker_host: None,
            started: None,
            ended: None,
            lease_until: None,
            due: None,
            expires: None,
            timeout: None,
            deadline: None,
            revision: 0,
        }
    }

    /// The state of a task that was just submitted and is delayed until this time.
    pub fn waiting(due: Timestamp) -> Self {
        Self { status: Status::Waiting, due: Some(due), ..Self::pending() }
    }

    /// When the next timer of the task fires, if nothing else happens before.
    pub fn timer(&self) -> Option<Timestamp> {
        let (one, other) = match self.status {
            Status::Waiting => (self.due, self.expires),
            Status::Pending => (self.expires, None),
            Status::InProgress => (self.lease_until, self.deadline.map(|deadline| deadline.after(GRACE))),
            Status::Success | Status::Failure | Status::Cancelled => (None, None),
        };
        [one, other].into_iter().flatten().min()
    }

    /// The event that its timer fires at this time. `delivery_limit` is that of [`Event::LeaseExpired`].
    pub fn overdue(&self, now: Timestamp, delivery_limit: u32) -> Option<Event> {
        let passed = |moment: Option<Timestamp>| moment.is_some_and(|moment| moment <= now);
        match self.status {
            Status::Waiting | Status::Pending if passed(self.expires) => Some(Event::Expired),
            Status::Waiting if passed(self.due) => Some(Event::Due),
            // A worker that is silent after its deadline has stopped, as it was told.
            Status::InProgress
                if passed(self.deadline.map(|deadline| deadline.after(GRACE)))
                    || passed(self.deadline) && passed(self.lease_until) =>
            {
                Some(Event::failure(None, timed_out()))
            }
            Status::InProgress if passed(self.lease_until) => Some(Event::LeaseExpired { delivery_limit }),
            _ => None,
        }
    }
}

/// The failure of an attempt that timed out.
fn timed_out() -> Failure {
    Failure::new("It ran for longer than it may.").of_kind("timeout")
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
    /// An instance leased it. One heartbeat of the instance covers all its tasks, so there is no lease per task.
    Taken {
        /// The instance's name.
        worker_host: Option<String>,
    },
    /// The instance still runs it. Nothing changes, unless the task was taken from it.
    Kept {
        /// The attempt.
        attempt: u32,
    },
    /// The instance was reaped.
    Abandoned {
        /// The delivery limit: after so many losses the task fails, because it may crash its workers.
        delivery_limit: u32,
    },
    /// The worker has started it.
    Started {
        /// The attempt.
        attempt: Option<u32>,
        /// The host or pod that runs it.
        worker_host: Option<String>,
        /// Its lease from now on. None where a broker watches the worker instead.
        lease: Option<Duration>,
    },
    /// A worker has started a task that a broker delivered. The broker watches that worker, so there is no lease. The
    /// broker does not report lost workers: a second start shows that the worker before was lost.
    Delivered {
        /// The host or pod that runs it.
        worker_host: Option<String>,
        /// Whether this message may be a duplicate.
        again: bool,
        /// The delivery limit: after so many losses the task fails, because it may crash its workers. `u32::MAX` where
        /// a result comes with the start, so that no limit matters.
        delivery_limit: u32,
    },
    /// The worker reports its progress.
    Progressed {
        /// The attempt.
        attempt: Option<u32>,
        /// From 0 to 100; anything else is brought into that range.
        progress: f64,
        /// Its lease from now on. None where a broker watches the worker instead.
        lease: Option<Duration>,
    },
    /// The task succeeded.
    Succeeded {
        /// The attempt.
        attempt: Option<u32>,
        /// The result.
        response: Json,
    },
    /// The attempt failed or timed out.
    Failed {
        /// The attempt.
        attempt: Option<u32>,
        /// Why.
        failure: Failure,
        /// How long until the retry; none if there is none. Decided by the policy
        /// ([`RetryPolicy::again`](crate::RetryPolicy::again)) when it is recorded.
        again_after: Option<Duration>,
        /// Whether this message may be a duplicate, as after a redelivery by a broker.
        again: bool,
        /// The host that reports it, where a broker watches the worker and it has given its name.
        worker_host: Option<String>,
        /// Whether that host is known to have run the task before the host that runs it now. Looked up when it is
        /// recorded.
        replaced: bool,
    },
    /// A heartbeat: the worker still runs it.
    Renewed {
        /// The attempt.
        attempt: Option<u32>,
        /// Its lease from now on.
        lease: Duration,
    },
    /// The worker returns it unfinished, so that another worker can claim it.
    Returned {
        /// The attempt.
        attempt: Option<u32>,
    },
    /// The worker returns it to the broker, which delivers it to another worker.
    GivenBack {
        /// The host or pod that ran it.
        worker_host: Option<String>,
    },
    /// The lease expired.
    LeaseExpired {
        /// The delivery limit: after so many losses the task fails, because it may crash its workers.
        delivery_limit: u32,
    },
    /// It is due, and enters its queue.
    Due,
    /// Its dependencies are met: it enters its queue, or waits until it is due.
    Released {
        /// When it is due.
        due: Option<Timestamp>,
    },
    /// Its dependencies can never be met.
    Barred(Failure),
    /// It expired before a worker started it.
    Expired,
    /// Its consumer, or an operator, cancels it.
    Cancelled,
    /// Its consumer, or an operator, retries it. This is the only event that changes a final state.
    Revived,
}

/// Why an event changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Ignored {
    /// The task has ended, with this status.
    #[error("the task has ended ({})", .0.as_str())]
    Ended(Status),
    /// The message is about another attempt than the current one.
    #[error("the message is of another attempt than the current one ({0})")]
    OtherAttempt(u32),
    /// No worker has the task at the moment.
    #[error("the lease was lost")]
    NotHeld,
    /// The attempt has timed out.
    #[error("the task has run for longer than it may")]
    Overdue,
    /// It cannot be retried: another unfinished task holds its unique key. Only a store knows.
    #[error("another task that has not ended has its uniqueKey")]
    KeyTaken,
    /// The event does not fit the state, e.g. a claim of a task that is not pending.
    #[error("nothing to do in this state")]
    NoEffect,
}

/// Applies an event to a state: the new state, or why it stays as it is.
pub fn apply(state: &State, event: &Event, now: Timestamp) -> Result<State, Ignored> {
    if state.status.is_final() && !matches!(event, Event::Revived) {
        return Err(Ignored::Ended(state.status));
    }
    if let Some(attempt) = event.attempt()
        && attempt != state.attempt
    {
        return Err(Ignored::OtherAttempt(state.attempt));
    }
    if state.status == Status::Waiting && event.is_of_worker() {
        // A message about a waiting task is a duplicate, or comes from a worker that was replaced.
        return Err(Ignored::NotHeld);
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
        Event::Taken { worker_host } => {
            if state.status != Status::Pending {
                return Err(Ignored::NoEffect);
            }
            next.attempt += 1;
            next.begin(worker_host.clone(), now);
        }
        Event::Kept { .. } => {
            if state.status != Status::InProgress {
                return Err(Ignored::NotHeld);
            }
            if state.deadline.is_some_and(|deadline| deadline <= now) {
                return Err(Ignored::Overdue);
            }
            next.revision = state.revision;
        }
        Event::Abandoned { delivery_limit } => {
            if state.status != Status::InProgress {
                return Err(Ignored::NoEffect);
            }
            next.lose(*delivery_limit, now);
        }
        Event::Started { worker_host, lease, .. } => {
            started(state, &mut next, event, worker_host, now)?;
            next.extend_lease(*lease, now);
        }
        Event::Delivered { worker_host, again, delivery_limit } => {
            let same = worker_host.is_none() || *worker_host == state.worker_host;
            match state.status {
                Status::InProgress if *again && same => return Err(Ignored::NoEffect),
                // It may be about the attempt that failed. If it is about the next one, its worker will say more.
                Status::Pending if *again && state.failures > 0 && *delivery_limit < u32::MAX => {
                    return Err(Ignored::NotHeld);
                }
                // Messages without a host overtook its `started`.
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
                // The `started` message is still on its way: this one proves that the attempt has begun.
                next.attempt += 1;
                next.begin(None, now);
            }
            next.extend_lease(*lease, now);
            next.progress = if progress.is_nan() { state.progress } else { progress.clamp(0.0, 100.0) };
        }
        Event::Succeeded { .. } => {
            next.overtaken(event);
            next.end(Status::Success, now);
            next.progress = 100.0;
        }
        Event::Failed { again_after, again, replaced, .. } => {
            // Another worker will try. Or it is a duplicate of the failure whose backoff is running.
            held(state, event)?;
            if *again && state.status == Status::Pending && state.attempt > 0 {
                // It may be about an earlier attempt, and was counted then; or about an attempt that nothing else was
                // heard of, and then no worker has the task. So it is not counted, and the task enters its queue once
                // more.
                next.revision = state.revision;
                return Ok(next);
            }
            if *replaced {
                // Fencing: a slow worker does not speak for its successor.
                return Err(Ignored::NotHeld);
            }
            next.overtaken(event);
            next.failures += 1;
            match again_after {
                Some(wait) => {
                    next.requeue();
                    next.status = Status::Waiting;
                    next.due = Some(now.after(*wait));
                }
                None => next.end(Status::Failure, now),
            }
        }
        Event::Renewed { lease, .. } => {
            if state.status != Status::InProgress {
                return Err(Ignored::NotHeld);
            }
            if state.deadline.is_some_and(|deadline| deadline <= now) {
                return Err(Ignored::Overdue);
            }
            next.lease_until = Some(now.after(*lease));
            // A heartbeat wakes nobody.
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
            next.lose(*delivery_limit, now);
        }
        Event::Due => {
            if state.status != Status::Waiting || state.due.is_none_or(|due| due > now) {
                return Err(Ignored::NoEffect);
            }
            next.requeue();
        }
        Event::Released { due } => {
            if !state.is_blocked() {
                return Err(Ignored::NoEffect);
            }
            match due.filter(|due| *due > now) {
                Some(due) => next.due = Some(due),
                None => next.requeue(),
            }
        }
        Event::Barred(_) => {
            if !state.is_blocked() {
                return Err(Ignored::NoEffect);
            }
            next.end(Status::Failure, now);
        }
        Event::Expired => {
            if state.expires.is_none_or(|expires| expires > now) {
                return Err(Ignored::NoEffect);
            }
            next.end(Status::Failure, now);
        }
        Event::Cancelled => next.end(Status::Cancelled, now),
        Event::Revived => {
            if matches!(state.status, Status::Pending | Status::InProgress) {
                return Err(Ignored::NoEffect);
            }
            next.requeue();
            (next.failures, next.losses) = (0, 0);
        }
    }
    Ok(next)
}

/// A `started` is either the first one (the claim, or the broker's delivery, named no host), a duplicate, or the sign
/// that the broker delivered the task to another worker.
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
        // A message with the current attempt comes from its worker; its `started` adds only the host.
        Status::InProgress
            if event.attempt().is_some() && worker_host.is_some() && *worker_host != state.worker_host =>
        {
            next.worker_host.clone_from(worker_host);
        }
        // The worker that claimed the task reports the start once more.
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

/// A message with an attempt is accepted only while that attempt holds the task.
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
        self.expires = None;
        self.deadline = self.timeout.map(|timeout| now.after(timeout));
        self.progress = 0.0;
    }

    fn lose(&mut self, delivery_limit: u32, now: Timestamp) {
        self.losses += 1;
        if self.losses >= delivery_limit { self.end(Status::Failure, now) } else { self.requeue() }
    }

    /// Counts an attempt for a result that arrived before its `started`.
    fn overtaken(&mut self, event: &Event) {
        if self.status == Status::Pending && event.attempt().is_none() {
            self.attempt += 1;
            self.expires = None;
        }
    }

    /// Extends the lease, because every message is a sign of life. A longer lease, as a claim may have asked for, is
    /// kept.
    fn extend_lease(&mut self, lease: Option<Duration>, now: Timestamp) {
        if let Some(lease) = lease {
            self.lease_until = self.lease_until.max(Some(now.after(lease)));
        }
    }

    fn requeue(&mut self) {
        *self = Self {
            attempt: self.attempt,
            losses: self.losses,
            failures: self.failures,
            expires: self.expires,
            timeout: self.timeout,
            revision: self.revision,
            ..Self::pending()
        };
    }

    fn end(&mut self, status: Status, now: Timestamp) {
        if status != Status::Cancelled {
            // The result arrived before its `started`.
            self.started.get_or_insert(now);
        }
        self.status = status;
        self.ended = Some(now);
        (self.lease_until, self.due, self.expires, self.deadline) = (None, None, None, None);
    }
}

impl Event {
    /// A failure with only a message.
    pub fn failed(attempt: Option<u32>, message: impl Into<String>) -> Self {
        Self::failure(attempt, Failure::new(message))
    }

    /// A failure that is not a duplicate. The retry is not decided yet.
    pub const fn failure(attempt: Option<u32>, failure: Failure) -> Self {
        Self::Failed { attempt, failure, again_after: None, again: false, worker_host: None, replaced: false }
    }

    /// The start that a failure implies. A worker behind a broker need not report its start if its result names its
    /// host: the worker before it was lost. No limit matters any more, since there is a result.
    pub fn unsaid_start(&self, state: &State) -> Option<Self> {
        let Self::Failed { worker_host: Some(host), again, replaced, .. } = self else { return None };
        // A possible duplicate implies no start where no worker has the task.
        let doubtful = *again && state.status == Status::Pending && state.attempt > 0;
        (!replaced && !doubtful).then(|| Self::Delivered {
            worker_host: Some(host.clone()),
            again: true,
            delivery_limit: u32::MAX,
        })
    }

    /// The host that a failure names, while another host has the task. The failure counts unless that host was
    /// replaced.
    pub fn other_host(&self, state: &State) -> Option<&str> {
        let Self::Failed { worker_host: Some(host), .. } = self else { return None };
        let other = state.worker_host.as_ref().is_some_and(|has| has != host);
        (state.status == Status::InProgress && other).then_some(host)
    }

    /// The attempt that the event names, if any.
    pub const fn attempt(&self) -> Option<u32> {
        match self {
            Self::Started { attempt, .. }
            | Self::Progressed { attempt, .. }
            | Self::Succeeded { attempt, .. }
            | Self::Failed { attempt, .. }
            | Self::Renewed { attempt, .. }
            | Self::Returned { attempt } => *attempt,
            Self::Kept { attempt } => Some(*attempt),
            Self::Claimed { .. }
            | Self::Taken { .. }
            | Self::Abandoned { .. }
            | Self::Delivered { .. }
            | Self::GivenBack { .. }
            | Self::LeaseExpired { .. }
            | Self::Due
            | Self::Released { .. }
            | Self::Barred(_)
            | Self::Expired
            | Self::Cancelled
            | Self::Revived => None,
        }
    }

    /// Whether the event comes from a worker, or from the loss of one.
    const fn is_of_worker(&self) -> bool {
        !matches!(
            self,
            Self::Due | Self::Released { .. } | Self::Barred(_) | Self::Expired | Self::Cancelled | Self::Revived
        )
    }
}
