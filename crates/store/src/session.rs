//! What a driver says in SQL. One [`Session`] is one transaction; [`Database`] has what needs none.
//!
//! The methods are the vocabulary of `verbs/`, no more: each is one statement or two, batch first. Rows are locked in the
//! order of their keys, so that two sessions never wait for each other in a circle.

use std::{future::Future, time::Duration};

use relais_core::{
    Attempt, Backlog, BatchId, Callback, Change, ClientKey, Condition, Declared, Failure, InstanceRecord, Json,
    NewTask, Page, QueueDepth, QueueShare, Room, ServiceKey, State, Status, StoreError, Task, TaskFilter, TaskId,
    Timestamp, Wakeup, position::Node,
};

use crate::{
    batches::statements::{BatchList, BatchMoves, Batches},
    callbacks::statements::{CallbackQueue, CallbackReader},
    clock::statements::{Clock, Reading},
    dependencies::statements::{Dependencies, Linked},
    dispatch::statements::{Dispatch, Dispatches},
    flow::statements::Flows,
    history::statements::History,
    instances::statements::{InstanceRows, Leased, Taker},
    operators::statements::{OperatorReader, OperatorRows},
    schedules::statements::{Schedules, Timetable},
    secrets::statements::Secrets,
    submissions::statements::SubmissionRows,
};

/// What a driver answers.
pub(crate) type Result<T> = std::result::Result<T, StoreError>;

/// A queue that was locked for submissions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LockedQueue {
    pub service: ServiceKey,
    /// How many tasks came into it, ever: the number that the next one gets.
    pub arrived: i64,
    /// Whether its tasks go to a broker.
    pub brokered: bool,
    /// The database's time.
    pub now: Timestamp,
}

/// What else a batch of submissions has to know, read after the queues were locked: only then is it the truth.
#[derive(Debug, Default)]
pub(crate) struct QueueFacts {
    /// How many tasks left each queue, and the room in it but for those that are pending. Services that are gone are left out.
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
    /// As it is at first: pending, or waiting until it is due or for others.
    pub state: State,
    /// For when it was asked, if not for at once.
    pub scheduled: Option<Timestamp>,
}

/// A task that was locked, without its payloads.
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
    /// For when it was asked, if not for at once; or when somebody asked for it once more.
    pub scheduled: Option<Timestamp>,
    pub correlation_id: Option<String>,
    /// How often to try again, as it is written; see [`crate::history::statements::policy_of_task`].
    pub retry: Option<String>,
    pub unique_key: Option<String>,
    /// Whether tasks of its service may be in hand.
    pub handed: bool,
    /// The batch that it belongs to.
    pub batch: Option<BatchId>,
    /// Whether others wait for it.
    pub followed: bool,
    /// When it need not wait for others any more.
    pub when: Option<Condition>,
}

/// Rows that were locked, and the database's time when they were.
#[derive(Debug)]
pub(crate) struct Locked<T> {
    pub now: Timestamp,
    pub rows: Vec<T>,
}

/// A pending task that was locked, with all that its worker gets.
#[derive(Debug)]
pub(crate) struct LockedPending {
    pub locked: LockedTask,
    pub task: Task,
    /// The lease that the service grants.
    pub lease: Duration,
    /// Its rank: the order in which tasks are handed out.
    pub rank: i64,
}

impl LockedPending {
    /// Where it stands in its queue.
    pub(crate) fn position(&self) -> (i64, i64) {
        (self.rank, self.locked.id)
    }
}

impl Locked<LockedPending> {
    /// Where the last one stands.
    pub(crate) fn last(&self) -> (i64, i64) {
        self.rows.iter().map(LockedPending::position).max().unwrap_or((i64::MIN, 0))
    }
}

/// What a task is to become that was not locked.
#[derive(Debug)]
pub(crate) struct UnlockedTask {
    /// What its revision was.
    pub known: u64,
    pub written: WrittenTask,
}

/// What a task is to become.
#[derive(Debug)]
pub(crate) struct WrittenTask {
    pub id: i64,
    pub state: State,
    pub response: Option<Json>,
    pub failure: Option<Failure>,
}

/// So many tasks came into a status, or left it. Client 0 stands for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Counter {
    pub service: ServiceKey,
    pub client: ClientKey,
    pub status: Status,
    pub departed: bool,
}

/// What a transaction adds to the counters, in the order of their keys.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    pub counts: Vec<(Counter, i64)>,
    /// Nodes of the trees of departures.
    pub departures: Vec<(ServiceKey, Node, i64)>,
    /// Of batches.
    pub batches: Vec<(BatchId, BatchMoves)>,
}

impl Accounts {
    /// Whether nothing is added.
    pub(crate) fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.departures.is_empty()
    }
}

/// Stands for all clients in a [`Counter`].
pub(crate) const ALL_CLIENTS: ClientKey = ClientKey(0);

/// Which tasks may be purged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PurgeScan {
    pub service: ServiceKey,
    pub status: Status,
    pub after_id: i64,
    pub finished: Duration,
    pub any: Duration,
    pub batch: usize,
}

/// A task that a purge looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PurgeCandidate {
    pub id: i64,
    pub client: ClientKey,
    pub seq: i64,
    pub too_old: bool,
    pub batch: Option<BatchId>,
}

/// What is heard from other processes.
#[derive(Debug)]
pub(crate) enum Heard<'a> {
    /// Something changed.
    Wakeup(&'a Wakeup),
    /// What somebody told.
    Text(&'a str),
    /// From now on something is heard.
    Listening,
    /// Nothing is heard any more.
    Lost(&'a str),
}

/// A database: how to begin a transaction, and reads that need none.
pub(crate) trait Database:
    CallbackReader + Timetable + Linked + BatchList + OperatorReader + Dispatches + 'static
{
    type Session: Session;

    /// Whether one session at a time writes, so that the order in which it locks things does not matter.
    const ONE_WRITER: bool;

    /// What the clock says.
    fn read_clock(&self) -> impl Future<Output = Result<Reading>> + Send;

    /// Begins a transaction that may write.
    fn begin(&self) -> impl Future<Output = Result<Self::Session>> + Send;

    /// Takes tasks in, in a transaction of its own, if that can be said in one statement: all are for one service, and none
    /// has an idempotency key. Tells where in the queue the first one stands; or none, and does nothing, if a capacity has
    /// to be looked at, or if the database gains nothing by it. A process that waits for tasks takes them in hand, unless others
    /// wait before them, or anybody else takes some at this moment.
    fn submit_unlimited(
        &self,
        _tasks: &[NewTask],
        _wakeup: &Wakeup,
        _taker: Option<&Taker>,
    ) -> impl Future<Output = Result<Option<(u64, Option<Leased>)>>> + Send {
        std::future::ready(Ok(None))
    }

    /// Pending tasks of a service whose flow is not limited, in the order in which they are handed out; not locked. None if it
    /// is limited, or if the database gains nothing by it.
    fn pending_unlocked(
        &self,
        _service: ServiceKey,
        _limit: usize,
    ) -> impl Future<Output = Result<Option<Locked<LockedPending>>>> + Send {
        std::future::ready(Ok(None))
    }

    /// Writes what tasks of a service become that were not locked, and the counters, in one statement and a transaction of its
    /// own. False, and nothing is written, if one is not any more what it was known to be, or the service's flow is limited now.
    fn write_unlocked(
        &self,
        _service: ServiceKey,
        _tasks: &[UnlockedTask],
        _accounts: &Accounts,
        _wakeup: &Wakeup,
    ) -> impl Future<Output = Result<bool>> + Send {
        std::future::ready(Ok(false))
    }

    /// Takes pending tasks of a service in hand without locking anything first. None if there are none, if somebody else takes some
    /// at this moment, if the flow is limited or the process is not alive, or if the database gains nothing by it; then hands
    /// that the process is done with may still be there.
    fn take_at_once(
        &self,
        _service: ServiceKey,
        _taker: &Taker,
    ) -> impl Future<Output = Result<Option<Leased>>> + Send {
        std::future::ready(Ok(None))
    }

    /// A task, with its place if it is pending.
    fn find_task(&self, task_id: TaskId) -> impl Future<Output = Result<Option<Task>>> + Send;

    /// The attempts of a task that are over, in their order.
    fn attempts(&self, id: i64) -> impl Future<Output = Result<Vec<Attempt>>> + Send;

    /// The tasks that match. Dates are given as bounds on `id` too: `from_id` is the lowest that can match.
    fn list_tasks(&self, filter: &TaskFilter, from_id: i64) -> impl Future<Output = Result<Page>> + Send;

    /// How many tasks match, up to the limit.
    fn count_tasks(&self, filter: &TaskFilter, from_id: i64) -> impl Future<Output = Result<u64>> + Send;

    /// The first task with this `id` or a higher one, and when it was submitted.
    fn first_from(&self, id: i64) -> impl Future<Output = Result<Option<(i64, Timestamp)>>> + Send;

    /// The highest `id`; 0 if there is no task.
    fn last_id(&self) -> impl Future<Output = Result<i64>> + Send;

    fn backlog(&self) -> impl Future<Output = Result<Backlog>> + Send;

    /// How full these queues are, in this order.
    fn queue_depths(&self, services: &[ServiceKey]) -> impl Future<Output = Result<Vec<QueueDepth>>> + Send;

    /// The clients with unfinished tasks of a service, in the order of their keys.
    fn queue_shares(&self, service: ServiceKey) -> impl Future<Output = Result<Vec<QueueShare>>> + Send;

    /// The processes that do tasks themselves, in the order of their names.
    fn instances(&self) -> impl Future<Output = Result<Vec<InstanceRecord>>> + Send;

    fn declared(&self) -> impl Future<Output = Result<Declared>> + Send;

    fn declared_version(&self) -> impl Future<Output = Result<i64>> + Send;

    /// Reads the clock, and makes sure that a write would be taken.
    fn ping(&self) -> impl Future<Output = Result<Timestamp>> + Send;

    /// Moves all times that are written back by so much.
    fn advance(&self, by: Duration) -> impl Future<Output = Result<()>> + Send;

    fn migrate(&self) -> impl Future<Output = Result<usize>> + Send;

    /// Removes from the files what was overwritten by [`Secrets::rewrite_signing_secrets`], as far as a driver can;
    /// `clear_text` is whether signing secrets lay there in clear.
    fn wipe_overwritten(&self, _clear_text: bool) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }

    /// Hears what other processes tell, for ever; each message is handed to `heard`.
    fn hear(&self, heard: &(dyn Fn(Heard<'_>) + Send + Sync)) -> impl Future<Output = ()> + Send;

    /// Says something to all processes that hear; to nobody where there is one process only.
    fn tell(&self, _texts: &[String]) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }

    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// One transaction. Dropped without [`Session::commit`], it never was.
pub(crate) trait Session:
    CallbackQueue
    + Dispatch
    + Flows
    + InstanceRows
    + History
    + SubmissionRows
    + OperatorRows
    + Schedules
    + Secrets
    + Dependencies
    + Batches
    + Clock
{
    /// Locks the queues of these services, in this order, against other submissions.
    fn lock_queues(&mut self, services: &[ServiceKey]) -> impl Future<Output = Result<Vec<LockedQueue>>> + Send;

    /// Reads what else these submissions have to know.
    fn queue_facts(&mut self, tasks: &[NewTask]) -> impl Future<Output = Result<QueueFacts>> + Send;

    /// The same as [`Database::submit_unlimited`], within this transaction, and without telling others of it.
    fn insert_unlimited(&mut self, _tasks: &[NewTask]) -> impl Future<Output = Result<Option<u64>>> + Send {
        std::future::ready(Ok(None))
    }

    /// Inserts tasks, the idempotency keys of those that have one, and what is to be dispatched.
    fn insert_tasks(&mut self, tasks: &[InsertedTask]) -> impl Future<Output = Result<()>> + Send;

    /// Locks tasks by their public names.
    fn lock_tasks(&mut self, task_ids: &[TaskId]) -> impl Future<Output = Result<Locked<LockedTask>>> + Send;

    /// Locks the oldest pending tasks of a service that is not paused, passing over those that others have locked. None if
    /// its flow is limited, unless that was looked at (`counted`).
    fn lock_pending(
        &mut self,
        service: ServiceKey,
        limit: usize,
        counted: bool,
    ) -> impl Future<Output = Result<Option<Locked<LockedPending>>>> + Send;

    /// Locks tasks to which something happens by itself about now, passing over those that others have locked.
    fn lock_overdue(&mut self, limit: usize) -> impl Future<Output = Result<Locked<LockedTask>>> + Send;

    /// How long until something happens to the next task by itself. What happens about now is left out.
    fn next_timer(&mut self) -> impl Future<Output = Result<Option<Duration>>> + Send;

    fn write_tasks(&mut self, tasks: &[WrittenTask]) -> impl Future<Output = Result<()>> + Send;

    /// Adds to the counters, and tells other processes of the wake-up when the transaction commits. The last thing before
    /// that: these are the rows that others wait for.
    fn account(&mut self, accounts: &Accounts, wakeup: &Wakeup) -> impl Future<Output = Result<()>> + Send;

    /// Tasks that a purge is to look at, in the order of arrival, without locking them. Those not old enough to matter end the scan.
    fn scan_for_purge(&mut self, scan: &PurgeScan) -> impl Future<Output = Result<Vec<PurgeCandidate>>> + Send;

    /// Removes those of the tasks that are still in this status, that nobody has locked and of which nothing is to be told
    /// any more, and that nobody waits for, with their callbacks; tells which.
    fn delete_tasks(&mut self, ids: &[i64], status: Status) -> impl Future<Output = Result<Vec<i64>>> + Send;

    /// Forgets at most `limit` idempotency keys that are older than this; tells how many.
    fn forget_keys(&mut self, older_than: Duration, limit: usize) -> impl Future<Output = Result<u64>> + Send;

    /// The services that have counters, and the number of the first task of each that is not finished (or would be next).
    fn queue_floors(&mut self) -> impl Future<Output = Result<Vec<(ServiceKey, i64)>>> + Send;

    /// Drops nodes of a level that no place depends on any more, among its first `limit` slots; tells how many.
    fn drop_departures(
        &mut self,
        service: ServiceKey,
        level: i16,
        before_slot: i64,
        limit: usize,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Takes a turn at a chore, if the last one began longer than `period` ago.
    fn take_turn(&mut self, chore: &str, period: Duration) -> impl Future<Output = Result<bool>> + Send;

    /// Makes one change to what is declared, but for schedules.
    fn declare(&mut self, change: &Change) -> impl Future<Output = Result<()>> + Send;

    /// Notes on each queue whether it has a capacity, after all changes were made; nothing to do for a database whose
    /// submissions always look.
    fn note_limits(&mut self) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }

    /// Counts a change to what is declared.
    fn bump_declared(&mut self) -> impl Future<Output = Result<()>> + Send;

    fn commit(self) -> impl Future<Output = Result<()>> + Send;
}
