//! What tasks need of a database, and how their rows are read.

use std::{future::Future, time::Duration};

use relais_core::{
    BatchId, Callback, ClientKey, Condition, Failure, Json, Page, ServiceKey, State, Status, Task, TaskFilter, TaskId,
    Timestamp,
};

use crate::{
    dependencies::statements::{batch_of, links},
    row::{
        Columns, callback, client_key, client_name, json, millis, narrow, notification, priority, request, service_key,
        service_name, status, unsigned,
    },
    session::Result,
};

/// A locked task, without its payloads.
#[derive(Debug, Clone)]
pub(crate) struct LockedTask {
    pub id: i64,
    pub task_id: TaskId,
    pub service: ServiceKey,
    pub client: ClientKey,
    pub seq: i64,
    pub delivery_limit: u32,
    pub state: State,
    pub callback: Option<Callback>,
    pub submitted: Timestamp,
    /// The time for which it was asked, if not for at once; or when it was revived.
    pub scheduled: Option<Timestamp>,
    pub correlation_id: Option<String>,
    /// Its retry policy as it is stored; see [`crate::history::statements::policy_of_task`].
    pub retry: Option<String>,
    pub unique_key: Option<String>,
    /// Whether tasks of its service may be leased to instances.
    pub may_be_leased: bool,
    /// The batch that it belongs to.
    pub batch: Option<BatchId>,
    /// Whether other tasks depend on it.
    pub followed: bool,
    /// The condition under which it starts, if it depends on other tasks.
    pub when: Option<Condition>,
}

/// Locked rows, and the time of the database when they were locked.
#[derive(Debug)]
pub(crate) struct Locked<T> {
    pub now: Timestamp,
    pub rows: Vec<T>,
}

/// What is written of a task.
#[derive(Debug)]
pub(crate) struct WrittenTask {
    pub id: i64,
    pub state: State,
    pub response: Option<Json>,
    pub failure: Option<Failure>,
}

/// Reads of tasks that need no transaction.
pub(crate) trait TaskReader: Send + Sync {
    /// A task, with its position if it is pending.
    fn find_task(&self, task_id: TaskId) -> impl Future<Output = Result<Option<Task>>> + Send;

    /// The tasks that match. Dates are given as bounds on `id` too: `from_id` is the lowest that can match.
    fn list_tasks(&self, filter: &TaskFilter, from_id: i64) -> impl Future<Output = Result<Page>> + Send;

    /// How many tasks match, up to the limit.
    fn count_tasks(&self, filter: &TaskFilter, from_id: i64) -> impl Future<Output = Result<u64>> + Send;

    /// The first task with this `id` or a higher one, and when it was submitted.
    fn first_from(&self, id: i64) -> impl Future<Output = Result<Option<(i64, Timestamp)>>> + Send;

    /// The highest `id`; 0 if there is no task.
    fn last_id(&self) -> impl Future<Output = Result<i64>> + Send;
}

/// Tasks within a transaction.
pub(crate) trait TaskRows: Send {
    /// Locks tasks by their public names.
    fn lock_tasks(&mut self, task_ids: &[TaskId]) -> impl Future<Output = Result<Locked<LockedTask>>> + Send;

    /// Locks tasks whose timer is due, passing over those that others have locked.
    fn lock_overdue(&mut self, limit: usize) -> impl Future<Output = Result<Locked<LockedTask>>> + Send;

    /// How long until the next timer is due. Timers that are due already are left out.
    fn next_timer(&mut self) -> impl Future<Output = Result<Option<Duration>>> + Send;

    /// Writes what locked tasks became.
    fn write_tasks(&mut self, tasks: &[WrittenTask]) -> impl Future<Output = Result<()>> + Send;
}

pub(crate) fn state(row: &impl Columns) -> Result<State> {
    let status = status(row.small("status")?)?;
    let revision = unsigned(row.big("revision")?);
    if revision == 0 && matches!(status, Status::Pending | Status::Waiting) {
        // Nothing has happened to it: the rest need not be read.
        return Ok(State {
            status,
            due: row.moment_if_any("due")?,
            expires: row.moment_if_any("expires")?,
            timeout: row.big_if_any("timeout_ms")?.map(millis),
            ..State::pending()
        });
    }
    Ok(State {
        status,
        attempt: narrow(row.int("attempt")?),
        losses: narrow(row.int("losses")?),
        failures: narrow(row.int("failures")?),
        revision,
        progress: row.real("progress")?,
        worker_host: row.text_if_any("worker_host")?,
        started: row.moment_if_any("started")?,
        ended: row.moment_if_any("ended")?,
        lease_until: row.moment_if_any("lease_until")?,
        due: row.moment_if_any("due")?,
        expires: row.moment_if_any("expires")?,
        timeout: row.big_if_any("timeout_ms")?.map(millis),
        deadline: row.moment_if_any("deadline")?,
    })
}

pub(crate) fn task(row: &impl Columns) -> Result<Task> {
    Ok(Task {
        id: row.big("id")?,
        task_id: row.task_id("task_id")?,
        client_id: client_name(row)?,
        service: service_name(row)?,
        state: state(row)?,
        request: request(row)?,
        response: json(row.text_if_any("response")?)?,
        error_message: row.text_if_any("error_message")?,
        error_kind: row.text_if_any("error_kind")?,
        error_trace: row.text_if_any("error_trace")?,
        priority: priority(row.small_if_any("priority")?),
        callback: callback(row)?,
        notification: row.small_if_any("notification")?.map(notification).transpose()?,
        correlation_id: row.text_if_any("correlation_id")?,
        submitted: row.moment("submitted")?,
        scheduled: row.moment_if_any("scheduled")?,
        position: None,
        links: links(row)?,
    })
}

/// A task with its position.
pub(crate) fn found_task(row: &impl Columns) -> Result<Task> {
    Ok(Task { position: row.big_if_any("position")?.map(unsigned), ..task(row)? })
}

pub(crate) fn locked_task(row: &impl Columns) -> Result<LockedTask> {
    Ok(LockedTask {
        id: row.big("id")?,
        task_id: row.task_id("task_id")?,
        service: service_key(row)?,
        client: client_key(row)?,
        seq: row.big("seq")?,
        delivery_limit: narrow(row.int("delivery_limit")?),
        state: state(row)?,
        callback: callback(row)?,
        submitted: row.moment("submitted")?,
        scheduled: row.moment_if_any("scheduled")?,
        correlation_id: row.text_if_any("correlation_id")?,
        retry: row.text_if_any("retry")?,
        unique_key: row.text_if_any("unique_key")?,
        may_be_leased: row.flag("handed")?,
        batch: batch_of(row)?,
        followed: row.flag("followed")?,
        when: row.small_if_any("after_when")?.and_then(Condition::from_code),
    })
}

/// Locked rows. Their column `now` is the time of the database.
pub(crate) fn locked<R: Columns, T>(rows: &[R], read: impl Fn(&R) -> Result<T>) -> Result<Locked<T>> {
    // Without rows nobody asks what time it is.
    let now = rows.last().map_or(Ok(Timestamp::from_millis(0)), |row| row.moment("now"))?;
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        found.push(read(row)?);
    }
    Ok(Locked { now, rows: found })
}
