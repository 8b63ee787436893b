//! What a driver says in SQL about callbacks: [`CallbackQueue`] within a transaction, [`CallbackReader`] without one.
//!
//! What is due is found by lane, never by date alone: ten thousand callbacks to an endpoint that does not answer are
//! one lane that is passed over. A callback that is being sent is not due until its sender has been silent for too
//! long, so one column says both when to send it and until when it is somebody's.

use std::{future::Future, time::Duration};

use relais_core::{
    CallbackAttempt, CallbackEvent, CallbackFilter, CallbackLanePage, CallbackOutcome, CallbackRecord, ClientKey,
    DueCallback, LaneChange, Resend, ServiceKey, Timestamp,
};

use crate::session::Result;

/// A callback to be kept.
#[derive(Debug, Clone)]
pub(crate) struct NewCallback {
    /// The task's id.
    pub task: i64,
    pub service: ServiceKey,
    pub client: ClientKey,
    pub event: CallbackEvent,
    pub revision: u64,
    pub lane: i64,
    /// Whether more is told of the task: this one may have to wait for the one before it.
    pub chain: bool,
    /// None: it comes after another one of the same batch.
    pub due: Option<Timestamp>,
    /// What the task was like.
    pub started: Option<Timestamp>,
    pub progress: Option<f64>,
}

/// How far a page of callbacks looks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floor {
    /// The last row.
    pub row: i64,
    /// When it came to be.
    pub created: Timestamp,
    /// How many there were to be looked at.
    pub looked: u64,
}

/// Callbacks within a transaction.
pub(crate) trait CallbackQueue: Send {
    /// Takes back the progress of these tasks that was not told yet and that nobody is telling; tells when each was
    /// due.
    fn supersede_progress(
        &mut self,
        tasks: &[i64],
    ) -> impl Future<Output = Result<Vec<(i64, Option<Timestamp>)>>> + Send;

    /// Keeps callbacks. One of a chain that has something to wait for is not due.
    fn insert_callbacks(&mut self, callbacks: &[NewCallback]) -> impl Future<Output = Result<()>> + Send;

    /// Takes what is due in lanes that are not parked, at most `each` a lane.
    fn claim_callbacks(
        &mut self,
        lanes: &[i64],
        each: usize,
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<DueCallback>>> + Send;

    /// Locks the tasks that these callbacks are about, so that nothing is added to their chains meanwhile.
    fn lock_chains(&mut self, callbacks: &[i64]) -> impl Future<Output = Result<()>> + Send;

    /// Writes what became of tries; tells which callbacks were still theirs.
    fn complete_callbacks(&mut self, outcomes: &[CallbackOutcome]) -> impl Future<Output = Result<Vec<i64>>> + Send;

    /// Makes what comes after these callbacks due, progress not before it is `progress_after` old; tells in which
    /// lanes.
    fn release_next(
        &mut self,
        callbacks: &[i64],
        progress_after: Duration,
    ) -> impl Future<Output = Result<Vec<i64>>> + Send;

    /// Makes the first of what is to be told of each of these tasks due, if it waits for something that is gone.
    fn release_heads(&mut self, tasks: &[i64]) -> impl Future<Output = Result<()>> + Send;

    /// Gives up all that is still to be told of the tasks of these callbacks, and says why.
    fn stop_chains(&mut self, callbacks: &[i64], why: &str) -> impl Future<Output = Result<()>> + Send;

    fn change_lanes(&mut self, lanes: &[(i64, LaneChange)]) -> impl Future<Output = Result<()>> + Send;

    /// Forgets endpoints that were left alone before this, and that nothing waits for.
    fn forget_lanes(&mut self, older_than: Duration) -> impl Future<Output = Result<()>> + Send;

    /// What has been due for longer than this; nothing is locked yet.
    fn overdue(
        &mut self,
        lane: i64,
        older_than: Duration,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<i64>>> + Send;

    /// Gives up those of these callbacks that are still due, and says why.
    fn expire_callbacks(&mut self, callbacks: &[i64], why: &str) -> impl Future<Output = Result<()>> + Send;

    /// Makes callbacks due again, whatever became of them; tells their rows and lanes in the order of the rows.
    fn resend_callbacks(
        &mut self,
        resend: &Resend,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(i64, i64)>>> + Send;
}

/// Callbacks, without a transaction.
pub(crate) trait CallbackReader: Send + Sync {
    /// Lanes in which something waits, in the order of their names, after this one.
    fn list_callback_lanes(
        &self,
        after: Option<i64>,
        limit: usize,
    ) -> impl Future<Output = Result<CallbackLanePage>> + Send;

    /// How far a page looks that looks at so many rows, going back from the cursor.
    fn callback_floor(
        &self,
        filter: &CallbackFilter,
        look: usize,
    ) -> impl Future<Output = Result<Option<Floor>>> + Send;

    /// The callbacks that match, from this row on, the newest first.
    fn list_callbacks(
        &self,
        filter: &CallbackFilter,
        floor: i64,
    ) -> impl Future<Output = Result<Vec<CallbackRecord>>> + Send;

    /// The tries of these callbacks, in their order.
    fn list_callback_attempts(&self, rows: &[i64]) -> impl Future<Output = Result<Vec<(i64, CallbackAttempt)>>> + Send;
}

/// The columns of a callback `b`, besides those of the task. `$due` says when it is due.
macro_rules! callback_columns {
    ($due:literal) => {
        concat!("b.id AS cb_id, b.event AS cb_event, b.status AS cb_status, b.revision AS cb_revision, b.attempts AS cb_attempts, \
         b.created AS cb_created, b.ended AS cb_ended, b.tries AS cb_tries, b.started AS cb_started, \
         b.progress AS cb_progress, ", $due, " AS cb_due")
    };
}
pub(crate) use callback_columns;

/// What is told of an end after which the task was done once more: what it was then. `a` is the attempt that ended.
macro_rules! past_columns {
    () => {
        "b.attempt AS past_attempt, b.happened AS past_ended, a.worker_host AS past_host, \
         a.error_message AS past_message, a.error_kind AS past_kind, a.error_trace AS past_trace"
    };
}
pub(crate) use past_columns;
