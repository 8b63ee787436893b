//! What a driver says in SQL about tasks that are to be dispatched to a broker.
//!
//! A row says that a task is still to be published. It is written with the task and removed when the broker has
//! confirmed; meanwhile a publisher has it until it is due, and any publisher may take it from then on. Where a service
//! has a window, the row is also the task's place in it, from when it is taken until the task has ended: it is never
//! due while the broker or a worker has it. A place is paid for once: the rate and the client's turn count when it is
//! taken, whatever the broker loses later.

use std::{future::Future, time::Duration};

use relais_core::{
    ClientKey, DispatchName, Dispatched, DueDispatch, FlowFacts, FlowState, PublishedTask, ServiceKey, TaskId,
};

use crate::{
    dependencies::statements::trace,
    flow::statements::{FlowKind, flow_facts, flow_kind},
    row::{Columns, json, millis, narrow, priority, service_key, unsigned},
    session::Result,
};

/// A service's window, while it is locked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// So many places are free.
    pub(crate) room: usize,
    /// What limits the service's flow besides.
    pub(crate) kind: FlowKind,
    /// What its flow remembers.
    pub(crate) state: FlowState,
}

/// A task that could have a place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) client: ClientKey,
    /// Its place in the queue: rank and `id`.
    pub(crate) place: (i64, i64),
    pub(crate) task_id: TaskId,
}

/// Dispatches within a transaction.
pub(crate) trait Dispatch: Send {
    /// Has tasks that came back to their queue dispatched again, where their service has a broker; tells which services
    /// do. What was published before is not done, and has no place any more.
    fn insert_dispatches(
        &mut self,
        tasks: &[(ServiceKey, TaskId)],
    ) -> impl Future<Output = Result<Vec<ServiceKey>>> + Send;

    /// Locks the window of a service against others who dispatch, gives back the places of tasks that have ended, and
    /// tells how many are free. None if it has no window.
    fn lock_window(&mut self, service: ServiceKey) -> impl Future<Output = Result<Option<Window>>> + Send;

    /// Reads what limits the flow of a service whose window is locked: what has a place is what runs. None if it is
    /// gone.
    fn window_facts(
        &mut self,
        service: ServiceKey,
        window: Window,
    ) -> impl Future<Output = Result<Option<FlowFacts>>> + Send;

    /// Takes what has a place in a service's window already, and is due once more. After [`Self::lock_window`], like
    /// all that follows.
    fn hold_placed(
        &mut self,
        service: ServiceKey,
        most: usize,
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<DueDispatch>>> + Send;

    /// Gives places to what is first in a service's queue, and takes it.
    fn hold_next(
        &mut self,
        service: ServiceKey,
        most: usize,
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<DueDispatch>>> + Send;

    /// The first tasks of these clients that wait for a place, so many of each.
    fn candidates(
        &mut self,
        service: ServiceKey,
        shares: &[(ClientKey, usize)],
    ) -> impl Future<Output = Result<Vec<Candidate>>> + Send;

    /// Gives places to these tasks, and takes them, in the order of the queue. What others have locked is passed over.
    fn hold_these(
        &mut self,
        service: ServiceKey,
        tasks: &[TaskId],
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<DueDispatch>>> + Send;

    /// Forgets some of what waits for a place in a service's window, and has ended: nobody comes by it who goes through
    /// the queue.
    fn forget_ended(&mut self, service: ServiceKey, most: usize) -> impl Future<Output = Result<()>> + Send;

    /// Takes what is due of these services, the oldest first, at most `each` of each. Services with a window have
    /// nothing.
    fn claim_dispatches(
        &mut self,
        services: &[ServiceKey],
        each: usize,
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<DueDispatch>>> + Send;

    /// Writes what became of dispatches, which are in the order of their names.
    fn complete_dispatches(
        &mut self,
        tasks: &[DispatchName],
        outcome: Dispatched,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Notes that the unfinished tasks of a service are to be dispatched again; those that a worker has too, if it says
    /// so.
    fn redispatch_service(&mut self, service: ServiceKey, running: bool) -> impl Future<Output = Result<()>> + Send;

    /// Makes the next of what was noted so due, or gives it places in its window, at most `limit` of one service; tells
    /// which service, if there was any.
    fn refill_dispatches(&mut self, limit: usize) -> impl Future<Output = Result<Option<ServiceKey>>> + Send;

    /// Gives running tasks of services that left the broker a lease: nobody follows there any more what their workers
    /// say, and nobody else would take them away. Tells how many.
    fn lease_orphans(&mut self, limit: usize) -> impl Future<Output = Result<usize>> + Send;
}

/// Dispatches, without a transaction.
pub(crate) trait Dispatches: Send + Sync {
    /// The oldest pending task of a service that is at its broker: that has no row, or has a place in its window and is
    /// never due. Only the first hundred of the queue are looked at besides those with places.
    fn oldest_published(&self, service: ServiceKey) -> impl Future<Output = Result<Option<PublishedTask>>> + Send;
}

/// What one row says of a window.
pub(crate) fn window(row: &impl Columns, state: FlowState) -> Result<Window> {
    let room = row.big("room")?;
    Ok(Window { room: usize::try_from(room).unwrap_or(0), kind: flow_kind(row)?, state })
}

/// What one row says of a service whose window is locked. What has a place is what runs, and the window is one limit
/// more.
pub(crate) fn window_facts(row: &impl Columns, locked: Window) -> Result<FlowFacts> {
    let mut facts = flow_facts(row, locked.state)?;
    let window = row.int("dispatch_window").map(narrow)?;
    facts.running = u64::from(window).saturating_sub(locked.room as u64);
    facts.limits.max_running = Some(facts.limits.max_running.map_or(window, |most| most.min(window)));
    Ok(facts)
}

pub(crate) fn candidate(row: &impl Columns, client: ClientKey) -> Result<Candidate> {
    Ok(Candidate { client, place: (row.big("rank")?, row.big("id")?), task_id: row.task_id("task_id")? })
}

pub(crate) fn published_task(row: &impl Columns) -> Result<Option<PublishedTask>> {
    let running = row.flag("running")?;
    Ok(row.task_id_if_any("task_id")?.map(|task_id| PublishedTask { task_id, running }))
}

/// A round that nobody has spoken of before. Whoever says late, or once more, that it is done with what it published
/// may mean a row that was written anew since; counting from zero each time would let it be believed.
pub(crate) fn fresh_round() -> i32 {
    // Zero is what a row has that was written with its task.
    1 + (uuid::Uuid::now_v7().as_u128() & 0x3fff_ffff) as i32
}

/// A task to be dispatched. Its own columns are empty if it is gone.
pub(crate) fn due_dispatch(row: &impl Columns) -> Result<DueDispatch> {
    Ok(DueDispatch {
        name: DispatchName {
            service: service_key(row)?,
            queue: row.text("queue_name")?.into(),
            round: row.int("round")?,
            task_id: row.task_id("task_id")?,
        },
        request: json(row.text_if_any("request")?)?,
        correlation_id: row.text_if_any("correlation_id")?,
        trace: trace(row)?,
        priority: priority(row.small_if_any("priority")?),
        timeout: row.big_if_any("timeout_ms")?.map(millis),
        revision: row.big_if_any("revision")?.map_or(0, unsigned),
    })
}
