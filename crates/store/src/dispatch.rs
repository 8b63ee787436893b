//! What a driver says in SQL about tasks that are to be dispatched to a broker.
//!
//! A row says that a task is still to be published. It is written with the task and removed when the broker has confirmed;
//! meanwhile it is in somebody's hand until it is due, and anybody's from then on. Where a service has a window, the row is also
//! the task's place in it, from when it is taken until the task has ended: it is never due while the broker or a worker has it.

use std::{future::Future, time::Duration};

use relais_core::{DispatchName, Dispatched, DueDispatch, PublishedTask, ServiceKey, TaskId};

use crate::{row::Columns, session::Result};

/// Dispatches within a transaction.
pub(crate) trait Dispatch: Send {
    /// Has tasks that came back to their queue dispatched again, where their service has a broker; tells which services do.
    /// What was published before is not done.
    fn insert_dispatches(
        &mut self,
        tasks: &[(ServiceKey, TaskId)],
    ) -> impl Future<Output = Result<Vec<ServiceKey>>> + Send;

    /// Locks the window of a service against others who dispatch, gives back the places of tasks that have ended, and tells how
    /// many are free. None if it has no window.
    fn window_room(&mut self, service: ServiceKey) -> impl Future<Output = Result<Option<usize>>> + Send;

    /// Takes what is due of a service with a window: what has a place already, and then what is first in its queue, at most
    /// `room` of that; at most `most` in all. After [`Self::window_room`].
    fn hold_places(
        &mut self,
        service: ServiceKey,
        most: usize,
        room: usize,
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<DueDispatch>>> + Send;

    /// Takes what is due of these services, the oldest first, at most `each` of each. Services with a window have nothing.
    fn hold_dispatches(
        &mut self,
        services: &[ServiceKey],
        each: usize,
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<DueDispatch>>> + Send;

    /// Writes what became of dispatches, which are in the order of their names.
    fn settle_dispatches(
        &mut self,
        tasks: &[DispatchName],
        outcome: Dispatched,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Notes that the unfinished tasks of a service are to be dispatched again; those that a worker has too, if it says so.
    fn note_dispatch_again(&mut self, service: ServiceKey, running: bool) -> impl Future<Output = Result<()>> + Send;

    /// Makes the next of what was noted so due, or gives it places in its window, at most `limit` of one service; tells which
    /// service, if there was any.
    fn dispatch_noted(&mut self, limit: usize) -> impl Future<Output = Result<Option<ServiceKey>>> + Send;

    /// Gives running tasks of services that left the broker a lease: nobody follows there any more what their workers say, and
    /// nobody else would take them away. Tells how many.
    fn lease_strays(&mut self, limit: usize) -> impl Future<Output = Result<usize>> + Send;
}

/// Dispatches, without a transaction.
pub(crate) trait Dispatches: Send + Sync {
    /// The oldest pending task of a service that is at its broker: that has no row, or has a place in its window and is never
    /// due. Only the first hundred of the queue are looked at besides those with places.
    fn oldest_published(&self, service: ServiceKey) -> impl Future<Output = Result<Option<PublishedTask>>> + Send;
}

pub(crate) fn published_task(row: &impl Columns) -> Result<Option<PublishedTask>> {
    let running = row.flag("running")?;
    Ok(row.task_id_if_any("task_id")?.map(|task_id| PublishedTask { task_id, running }))
}

/// A round that nobody has spoken of before. Whoever says late, or once more, that it is done with what it published may
/// mean a row that was written anew since; counting from zero each time would let it be believed.
pub(crate) fn fresh_round() -> i32 {
    // Zero is what a row has that was written with its task.
    1 + (uuid::Uuid::now_v7().as_u128() & 0x3fff_ffff) as i32
}
