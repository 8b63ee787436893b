//! What a driver says in SQL about tasks that wait for others: [`Dependencies`] within a transaction, [`Linked`]
//! without one.
//!
//! Who waits for whom is a row of its own. A task that others wait for says so itself (`followed`), so that the end of
//! one that nobody waits for costs nothing. Its end is noted (`ending`) in the transaction that brings it; those who
//! wait are told by another one, which locks nothing but them, in the order of their rows.

use std::future::Future;

use relais_core::{
    BatchId, ClientKey, Condition, Links, Prerequisite, ServiceKey, Status, Task, TaskId, TaskLink, Timestamp,
    TraceContext,
};

use crate::{
    row::{Columns, client_key, corrupt, service_key, status},
    session::Result,
    tasks::statements::{Locked, LockedTask},
};

/// A task that others are to wait for, locked.
#[derive(Debug, Clone)]
pub(crate) struct LockedPrerequisite {
    pub id: i64,
    pub task_id: TaskId,
    pub client: ClientKey,
    pub status: Status,
    /// Whether others wait for it already.
    pub followed: bool,
    pub correlation_id: Option<String>,
    pub trace: Option<TraceContext>,
}

/// That one task waits for another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewDependency {
    pub task: TaskId,
    pub prerequisite: TaskId,
    /// How the other has ended, if that is settled.
    pub outcome: Option<Status>,
}

/// That one task waits for another, by their rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Edge {
    pub task: i64,
    pub prerequisite: i64,
}

/// A task that has something in common with others, as much of it as a filter looks at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinkRow {
    pub id: i64,
    pub service: ServiceKey,
    pub status: Status,
    pub submitted: Timestamp,
}

/// Dependencies within a transaction.
pub(crate) trait Dependencies: Send {
    /// Locks those of these tasks that are of these clients, in the order of their rows.
    fn lock_prerequisites(
        &mut self,
        tasks: &[TaskId],
        clients: &[ClientKey],
    ) -> impl Future<Output = Result<Vec<LockedPrerequisite>>> + Send;

    /// Notes on these tasks that others wait for them. They are of a new revision then.
    fn follow(&mut self, tasks: &[TaskId]) -> impl Future<Output = Result<()>> + Send;

    fn insert_dependencies(&mut self, new: &[NewDependency]) -> impl Future<Output = Result<()>> + Send;

    /// Notes that these tasks have ended, and how. The first end counts.
    fn note_endings(&mut self, ended: &[(i64, Status)]) -> impl Future<Output = Result<()>> + Send;

    /// Locks ends that were noted, passing over those that others have locked.
    fn hold_endings(&mut self, limit: usize) -> impl Future<Output = Result<Vec<(i64, Status)>>> + Send;

    /// Those who wait for these, and were not told; nothing is locked yet.
    fn open_edges(&mut self, prerequisites: &[i64], limit: usize) -> impl Future<Output = Result<Vec<Edge>>> + Send;

    /// Locks tasks by their rows, in that order.
    fn lock_rows(&mut self, ids: &[i64]) -> impl Future<Output = Result<Locked<LockedTask>>> + Send;

    /// Notes how what they waited for has ended.
    fn close_edges(&mut self, edges: &[(Edge, Status)]) -> impl Future<Output = Result<()>> + Send;

    /// All that these tasks wait for, each with the row of the one that waits.
    fn prerequisites_of(&mut self, tasks: &[i64]) -> impl Future<Output = Result<Vec<(i64, Prerequisite)>>> + Send;

    /// Forgets ends of which everybody was told.
    fn drop_endings(&mut self, tasks: &[i64]) -> impl Future<Output = Result<()>> + Send;

    /// Notes ends that nobody has noted, looking at so many tasks that others wait for, from this row on; tells the
    /// last.
    fn find_endings(&mut self, from: i64, limit: usize) -> impl Future<Output = Result<Option<i64>>> + Send;
}

/// What tasks have to do with others, without a transaction.
pub(crate) trait Linked: Send + Sync {
    /// What a task waits for, in the order of their rows.
    fn prerequisites(&self, task: i64) -> impl Future<Output = Result<Vec<Prerequisite>>> + Send;

    /// Tasks that have this in common, the newest first, before this row, of this client or of all.
    fn linked(
        &self,
        link: &TaskLink,
        client: Option<ClientKey>,
        before: i64,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<LinkRow>>> + Send;

    /// Tasks by their rows, the newest first, without their payloads.
    fn tasks_by_row(&self, ids: &[i64]) -> impl Future<Output = Result<Vec<Task>>> + Send;
}

/// What a task's own row says of others.
pub(crate) fn links(row: &impl Columns) -> Result<Links> {
    Ok(Links {
        parent: row.task_id_if_any("parent_id")?,
        batch: batch_of(row)?,
        trace: trace(row)?,
        when: row.small_if_any("after_when")?.map(condition).transpose()?,
        after: Vec::new(),
    })
}

/// The batch that a task belongs to.
pub(crate) fn batch_of(row: &impl Columns) -> Result<Option<BatchId>> {
    Ok(row.task_id_if_any("batch_id")?.map(|TaskId(id)| BatchId(id)))
}

pub(crate) fn trace(row: &impl Columns) -> Result<Option<TraceContext>> {
    Ok(row.text_if_any("trace")?.as_deref().and_then(TraceContext::from_text))
}

fn condition(code: i16) -> Result<Condition> {
    Condition::from_code(code).ok_or_else(|| corrupt(format!("condition {code}")))
}

pub(crate) fn locked_prerequisite(row: &impl Columns) -> Result<LockedPrerequisite> {
    Ok(LockedPrerequisite {
        id: row.big("id")?,
        task_id: row.task_id("task_id")?,
        client: client_key(row)?,
        status: status(row.small("status")?)?,
        followed: row.flag("followed")?,
        correlation_id: row.text_if_any("correlation_id")?,
        trace: trace(row)?,
    })
}

pub(crate) fn prerequisite(row: &impl Columns) -> Result<Prerequisite> {
    Ok(Prerequisite {
        task_id: row.task_id("prerequisite_id")?,
        ended: row.small_if_any("outcome")?.map(status).transpose()?,
    })
}

pub(crate) fn ending(row: &impl Columns) -> Result<(i64, Status)> {
    Ok((row.big("task")?, status(row.small("status")?)?))
}

pub(crate) fn edge(row: &impl Columns) -> Result<Edge> {
    Ok(Edge { task: row.big("task")?, prerequisite: row.big("prerequisite")? })
}

pub(crate) fn linked_task(row: &impl Columns) -> Result<LinkRow> {
    Ok(LinkRow {
        id: row.big("id")?,
        service: service_key(row)?,
        status: status(row.small("status")?)?,
        submitted: row.moment("submitted")?,
    })
}
