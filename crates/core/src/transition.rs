//! The only way a task's state changes.
//!
//! Every driver loads a [`State`], hands it to [`apply`] with what happened, and stores what comes back. Messages may
//! arrive late, twice or out of order, from workers that were replaced long ago: whatever they say, a final state stays
//! as it is, and a message that carries another attempt than the current one changes nothing.

use std::time::Duration;

use crate::{Failure, Json, Status, Timestamp};

/// A worker whose task has run for too long is told so, and has this long to stop by itself.
pub const GRACE: Duration = Duration::from_secs(10);

/// The part of a task that changes.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// Where it is in its life.
    pub status: Status,
    /// How many times it was handed to a worker; the number of the current attempt.
    pub attempt: u32,
    /// How many times a worker lost it without a word.
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
    /// Until when its worker may keep silent. None where a broker watches the worker instead.
    pub lease_until: Option<Timestamp>,
    /// When it comes into its queue, while it is waiting.
    pub due: Option<Timestamp>,
    /// When it is too late to start, while nobody has started it.
    pub expires: Option<Timestamp>,
    /// How long an attempt may take. It does not change.
    pub timeout: Option<Duration>,
    /// When the current attempt has taken too long.
    pub deadline: Option<Timestamp>,
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

    /// A task that was just taken in, and is not to be handed out before this moment.
    pub fn waiting(due: Timestamp) -> Self {
        Self { status: Status::Waiting, due: Some(due), ..Self::pending() }
    }

    /// When something happens to it by itself, if nothing else does before.
    pub fn timer(&self) -> Option<Timestamp> {
        let (one, other) = match self.status {
            Status::Waiting => (self.due, self.expires),
            Status::Pending => (self.expires, None),
            Status::InProgress => (self.lease_until, self.deadline.map(|deadline| deadline.after(GRACE))),
            Status::Success | Status::Failure | Status::Cancelled => (None, None),
        };
        [one, other].into_iter().flatten().min()
    }

    /// What happens to it by itself at this moment. `delivery_limit` is that of [`Event::LeaseExpired`].
    pub fn overdue(&self, now: Timestamp, delivery_limit: u32) -> Option<Event> {
        let passed = |moment: Option<Timestamp>| moment.is_some_and(|moment| moment <= now);
        match self.status {
            Status::Waiting | Status::Pending if passed(self.expires) => Some(Event::Expired),
            Status::Waiting if passed(self.due) => Some(Event::Due),
            // Whoever has fallen silent after its deadline has stopped, as it was told.
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

/// Why a task fails whose attempt took too long.
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
    /// A process on the store itself took it. It answers for all that it has in hand at once, so there is no lease.
    Taken {
        /// What the process is called.
        worker_host: Option<String>,
    },
    /// That process still has it. Nothing changes, unless it is not so.
    Kept {
        /// The attempt it speaks of.
        attempt: u32,
    },
    /// That process is gone.
    Abandoned {
        /// After so many losses the task fails: it may be what kills its workers.
        delivery_limit: u32,
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
        /// After so many losses the task fails: it may be what kills its workers. `u32::MAX` where a result comes with it, so that
        /// no limit matters.
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
    /// The worker could not do it, or took too long.
    Failed {
        /// The attempt it speaks of.
        attempt: Option<u32>,
        /// Why.
        failure: Failure,
        /// How long until it is tried again; none if this is the end. Decided by the policy
        /// ([`RetryPolicy::again`](crate::RetryPolicy::again)) when it is recorded.
        again_after: Option<Duration>,
        /// Whether this may have been heard before, as it is where a broker hands out a message once more.
        again: bool,
        /// Who says so, where a broker watches the worker and it has given its name.
        worker_host: Option<String>,
        /// Whether that host is known to have had the task before the one that has it now. Looked up when it is recorded.
        replaced: bool,
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
    /// Its time has come: it comes into its queue.
    Due,
    /// What it waited for is there: it comes into its queue, or waits for its time.
    Released {
        /// For when it was asked.
        due: Option<Timestamp>,
    },
    /// What it waited for will never be.
    Barred(Failure),
    /// Nobody has started it in time.
    Expired,
    /// Its consumer, or an operator, gives it up.
    Cancelled,
    /// Its consumer, or an operator, wants it done once more, or at last: the one event that a final state knows.
    Revived,
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
    /// The attempt has taken longer than it may.
    #[error("the task has run for longer than it may")]
    Overdue,
    /// It can not be done once more: another task that has not ended has its unique key. Only a store knows.
    #[error("another task that has not ended has its uniqueKey")]
    KeyTaken,
    /// The event does not fit the state, e.g. a claim of what is not pending.
    #[error("nothing to do in this state")]
    NoEffect,
}

/// What a task becomes when something happens to it, or why it stays as it is.
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
        // Whoever speaks of a task that waits was replaced, or says the same thing twice.
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
                // Of the attempt that has failed, it may be. If it is of the next one, its worker will say more.
                Status::Pending if *again && state.failures > 0 && *delivery_limit < u32::MAX => {
                    return Err(Ignored::NotHeld);
                }
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
            next.extend_lease(*lease, now);
            next.progress = if progress.is_nan() { state.progress } else { progress.clamp(0.0, 100.0) };
        }
        Event::Succeeded { .. } => {
            next.overtaken(event);
            next.end(Status::Success, now);
            next.progress = 100.0;
        }
        Event::Failed { again_after, again, replaced, .. } => {
            // Somebody else will try; and it may be the failure that is being waited out, heard again.
            held(state, event)?;
            if *again && state.status == Status::Pending && state.attempt > 0 {
                // Of an attempt before, it may be, and then it was counted; or of one that nothing else was heard of, and then
                // nobody has the task. So it is not counted, and the task comes into its queue once more.
                next.revision = state.revision;
                return Ok(next);
            }
            if *replaced {
                // A slow worker does not speak for its successor.
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
        self.expires = None;
        self.deadline = self.timeout.map(|timeout| now.after(timeout));
        self.progress = 0.0;
    }

    fn lose(&mut self, delivery_limit: u32, now: Timestamp) {
        self.losses += 1;
        if self.losses >= delivery_limit { self.end(Status::Failure, now) } else { self.requeue() }
    }

    /// A result that came before its `started` is of an attempt all the same.
    fn overtaken(&mut self, event: &Event) {
        if self.status == Status::Pending && event.attempt().is_none() {
            self.attempt += 1;
            self.expires = None;
        }
    }

    /// Whoever says something is alive. A longer lease, as a claim may have asked for, stays as long.
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
            // The result overtook its `started`.
            self.started.get_or_insert(now);
        }
        self.status = status;
        self.ended = Some(now);
        (self.lease_until, self.due, self.expires, self.deadline) = (None, None, None, None);
    }
}

impl Event {
    /// A failure of which nothing is known but its message.
    pub fn failed(attempt: Option<u32>, message: impl Into<String>) -> Self {
        Self::failure(attempt, Failure::new(message))
    }

    /// A failure that is heard for the first time. Whether it is tried again is not decided yet.
    pub const fn failure(attempt: Option<u32>, failure: Failure) -> Self {
        Self::Failed { attempt, failure, again_after: None, again: false, worker_host: None, replaced: false }
    }

    /// The start that a failure stands for. A worker that a broker watches need not say that it has begun, if it gives its name
    /// with its result: whoever had the task before was lost. No limit matters any more, since a result is there.
    pub fn unsaid_start(&self, state: &State) -> Option<Self> {
        let Self::Failed { worker_host: Some(host), again, replaced, .. } = self else { return None };
        // One that may have been heard before is the start of nothing where nobody has the task.
        let doubtful = *again && state.status == Status::Pending && state.attempt > 0;
        (!replaced && !doubtful).then(|| Self::Delivered {
            worker_host: Some(host.clone()),
            again: true,
            delivery_limit: u32::MAX,
        })
    }

    /// The host that a failure names, while another one has the task. Whether it counts depends on whether that host was
    /// replaced, or was never heard of.
    pub fn other_host(&self, state: &State) -> Option<&str> {
        let Self::Failed { worker_host: Some(host), .. } = self else { return None };
        let other = state.worker_host.as_ref().is_some_and(|has| has != host);
        (state.status == Status::InProgress && other).then_some(host)
    }

    /// The attempt that the event speaks of, where it says so.
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

    /// Whether a worker says it, or the want of one.
    const fn is_of_worker(&self) -> bool {
        !matches!(
            self,
            Self::Due | Self::Released { .. } | Self::Barred(_) | Self::Expired | Self::Cancelled | Self::Revived
        )
    }
}
