//! What submissions need of a database, and how the rows are read.

use std::future::Future;

use relais_core::{ClientKey, NewTask, Room, ServiceKey, State, StoreError, TaskId, Timestamp, Wakeup};

use crate::{
    instances::statements::{Leased, Lessee},
    row::{Columns, client_key, narrow, service_key, unsigned},
    session::Result,
};

/// A queue that is locked for submissions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LockedQueue {
    pub service: ServiceKey,
    /// How many tasks it ever got: the number of the next one.
    pub arrived: i64,
    /// Whether its tasks go to a broker.
    pub brokered: bool,
    /// The database's time.
    pub now: Timestamp,
}

/// What a batch of submissions has to know. It is read after the queues were locked, since only then is it final.
#[derive(Debug, Default)]
pub(crate) struct QueueFacts {
    /// How many tasks left each queue, and its room without the pending tasks. Deleted services are left out.
    pub queues: Vec<(ServiceKey, i64, Room)>,
    /// The room of each client on each service of the batch.
    pub shares: Vec<(ServiceKey, ClientKey, Room)>,
    /// The idempotency keys of the batch that are known.
    pub known: Vec<KnownKey>,
}

/// An idempotency key that was used.
#[derive(Debug, Clone)]
pub(crate) struct KnownKey {
    pub service: ServiceKey,
    pub client: ClientKey,
    pub key: String,
    pub fingerprint: Vec<u8>,
    pub task_id: TaskId,
    pub position: u64,
}

/// A task to be inserted.
#[derive(Debug)]
pub(crate) struct InsertedTask {
    pub task: NewTask,
    pub seq: i64,
    pub position: u64,
    /// Whether it is to be dispatched to a broker.
    pub brokered: bool,
    /// Its first state: pending, or waiting until it is due or for other tasks.
    pub state: State,
    /// For when it was asked, if not for at once.
    pub scheduled: Option<Timestamp>,
}

/// A submission in one statement, which is a transaction of its own.
pub(crate) trait UnlimitedSubmit: Send + Sync {
    /// Takes tasks in, in a transaction of its own, if that can be said in one statement: all are for one service, and
    /// none has an idempotency key. Tells where in the queue the first one stands; or none, and does nothing, if a
    /// capacity has to be looked at, or if the database gains nothing by it. An instance that waits for tasks leases
    /// them, unless others wait before them, or anybody else claims some at this moment.
    fn submit_unlimited(
        &self,
        _tasks: &[NewTask],
        _wakeup: &Wakeup,
        _lessee: Option<&Lessee>,
    ) -> impl Future<Output = Result<Option<(u64, Option<Leased>)>>> + Send {
        std::future::ready(Ok(None))
    }
}

/// Submissions within a transaction.
pub(crate) trait SubmitRows: Send {
    /// Locks the queues of these services, in this order, against other submissions.
    fn lock_queues(&mut self, services: &[ServiceKey]) -> impl Future<Output = Result<Vec<LockedQueue>>> + Send;

    /// Reads what these submissions have to know.
    fn queue_facts(&mut self, tasks: &[NewTask]) -> impl Future<Output = Result<QueueFacts>> + Send;

    /// The same as [`UnlimitedSubmit::submit_unlimited`], within this transaction. Others are not woken.
    fn insert_unlimited(&mut self, _tasks: &[NewTask]) -> impl Future<Output = Result<Option<u64>>> + Send {
        std::future::ready(Ok(None))
    }

    /// Inserts tasks, the idempotency keys of those that have one, and what is to be dispatched.
    fn insert_tasks(&mut self, tasks: &[InsertedTask]) -> impl Future<Output = Result<()>> + Send;
}

pub(crate) fn locked_queue(row: &impl Columns) -> Result<LockedQueue> {
    Ok(LockedQueue {
        service: service_key(row)?,
        arrived: row.big("n")?,
        brokered: row.flag("brokered")?,
        now: row.moment("now")?,
    })
}

/// Reads one row for each pair of service and client. Deleted services have none.
pub(crate) fn queue_facts(rows: &[impl Columns], known: Vec<KnownKey>) -> Result<QueueFacts> {
    let mut facts = QueueFacts { known, ..QueueFacts::default() };
    for row in rows {
        let (service, client) = (service_key(row)?, client_key(row)?);
        let room = |waiting, capacity| {
            Ok::<_, StoreError>(Room {
                pending: 0,
                waiting: unsigned(row.big(waiting)?),
                capacity: row.int_if_any(capacity)?.map(|capacity| narrow(capacity).into()),
            })
        };
        facts.queues.push((service, row.big("departed")?, room("waiting", "capacity")?));
        let share = Room { pending: unsigned(row.big("pending")?), ..room("share_waiting", "share")? };
        facts.shares.push((service, client, share));
    }
    Ok(facts)
}

pub(crate) fn known_key(row: &impl Columns) -> Result<KnownKey> {
    Ok(KnownKey {
        service: service_key(row)?,
        client: client_key(row)?,
        key: row.text("key")?,
        fingerprint: row.bytes("fingerprint")?,
        task_id: row.task_id("task_id")?,
        position: unsigned(row.big("position")?),
    })
}
