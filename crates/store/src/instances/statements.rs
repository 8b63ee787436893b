//! What a driver says in SQL about processes that do tasks themselves, and about what they have in hand.
//!
//! A process answers for all that it has in hand by its row: whoever locks that row and finds it alive knows that nobody has
//! taken anything away from it. Claims on a service whose tasks may be in hand lock the service's flow, one after the other,
//! and leave out what is in hand.

use std::{
    collections::{HashMap, HashSet},
    future::Future,
    time::Duration,
};

use relais_core::{CrashPolicy, InstanceKey, InstanceRecord, InstanceStatus, Json, NewInstance, ServiceKey, Timestamp};

use crate::{
    claims::statements::LockedPending,
    row::{Columns, corrupt, unsigned},
    session::Result,
    tasks::statements::{Locked, LockedTask},
};

/// A process that was locked.
#[derive(Debug, Clone)]
pub(crate) struct LockedInstance {
    pub key: InstanceKey,
    pub name: String,
    pub policy: CrashPolicy,
    /// Whether it is to be decided what becomes of its tasks.
    pub undecided: bool,
}

/// A task that a process has done.
#[derive(Debug)]
pub(crate) struct DoneTask {
    pub id: i64,
    /// What its revision was when it was taken: if it is not that any more, somebody else has changed it.
    pub known: u64,
    pub revision: u64,
    pub attempt: u32,
    pub worker_host: Option<String>,
    pub started: Option<Timestamp>,
    pub ended: Option<Timestamp>,
    pub response: Json,
}

/// A process that takes tasks in hand.
#[derive(Debug)]
pub(crate) struct Taker {
    pub instance: InstanceKey,
    /// How often it gave up what it had under way: whatever was begun before that takes nothing.
    pub epoch: i64,
    /// It has room for so many.
    pub limit: usize,
    /// Leases that it is done with.
    pub done_with: Vec<i64>,
    /// Where it looks for them.
    pub onward: Onward,
}

/// Where to look for tasks: behind the last one that a process was given. All before it are in these hands of its, or were when it
/// looked; it need not pass over them one by one.
#[derive(Debug, Clone)]
pub(crate) struct Onward {
    pub rank: i64,
    pub id: i64,
    pub hands: Vec<i64>,
}

impl Onward {
    /// From the head of the queue.
    pub(crate) const START: Self = Self { rank: i64::MIN, id: 0, hands: Vec::new() };

    pub(crate) fn is_start(&self) -> bool {
        self.rank == i64::MIN
    }
}

/// What was taken in hand.
#[derive(Debug)]
pub(crate) struct Leased {
    /// The row that lists it; none if it is nothing.
    pub hand: Option<i64>,
    pub locked: Locked<LockedPending>,
}

/// Processes, and leases that need no transaction of ours.
pub(crate) trait InstanceReader: Send + Sync {
    /// The processes that do tasks themselves, in the order of their names.
    fn list_instances(&self) -> impl Future<Output = Result<Vec<InstanceRecord>>> + Send;

    /// Takes pending tasks of a service in hand without locking anything first. None if there are none, if somebody else takes some
    /// at this moment, if the flow is limited or the process is not alive, or if the database gains nothing by it; then hands
    /// that the process is done with may still be there.
    fn lease_unlocked(
        &self,
        _service: ServiceKey,
        _taker: &Taker,
    ) -> impl Future<Output = Result<Option<Leased>>> + Send {
        std::future::ready(Ok(None))
    }
}

/// Processes and what they have in hand, within a transaction.
pub(crate) trait InstanceRows: Send {
    /// Makes a process known.
    fn insert_instance(&mut self, instance: &NewInstance) -> impl Future<Output = Result<InstanceKey>> + Send;

    /// Locks the process of this name.
    fn lock_instance(&mut self, name: &str) -> impl Future<Output = Result<Option<LockedInstance>>> + Send;

    /// Locks a process that has been silent for too long, passing over those that others have locked.
    fn lock_dead(&mut self) -> impl Future<Output = Result<Option<LockedInstance>>> + Send;

    /// How long until the next process has been silent for too long.
    fn next_death(&mut self) -> impl Future<Output = Result<Option<Duration>>> + Send;

    /// Notes that it is to be decided what becomes of a process's tasks.
    fn leave_undecided(&mut self, instance: InstanceKey) -> impl Future<Output = Result<()>> + Send;

    /// Locks a process; false if it is gone. A statement of its own: what it has in hand is read afterwards.
    fn lock_own(&mut self, instance: InstanceKey) -> impl Future<Output = Result<bool>> + Send;

    /// Forgets a process, and what it had in hand.
    fn delete_instance(&mut self, instance: InstanceKey) -> impl Future<Output = Result<()>> + Send;

    /// Prolongs a process's life; false if it is over. Leases that it is done with go.
    fn heartbeat_instance(
        &mut self,
        instance: InstanceKey,
        silence: Duration,
        done_with: &[i64],
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Makes sure that a process is alive, and that it stays so until this transaction is over: then nothing that it has in
    /// hand is taken away. Tells the time.
    fn hold_instance(&mut self, instance: InstanceKey) -> impl Future<Output = Result<Option<Timestamp>>> + Send;

    /// A process gives up whatever it has under way: once this is committed, what was begun before takes nothing, unless it has
    /// locked the coordinator already. Tells how often the process has done so; none if it is not alive.
    fn renew(&mut self, instance: InstanceKey) -> impl Future<Output = Result<Option<i64>>> + Send;

    /// Notes that tasks of these services may be in hand from now on. When it returns, no claim is under way that knows
    /// nothing of it.
    fn note_leased(&mut self, services: &[ServiceKey]) -> impl Future<Output = Result<()>> + Send;

    /// Locks the service against other claims, and holds the process; tells whether nothing limits the service's flow. None
    /// if the process is not alive, or never said that it does tasks of this service. Leases that it is done with go.
    fn lock_desk(
        &mut self,
        service: ServiceKey,
        instance: InstanceKey,
        done_with: &[i64],
    ) -> impl Future<Output = Result<Option<bool>>> + Send;

    /// Forgets what a process has in hand of a service, but for these: it was never told that it has it. The desk is locked, and
    /// whoever was about to take some without locking it finds that somebody was there.
    fn drop_unknown(
        &mut self,
        service: ServiceKey,
        instance: InstanceKey,
        known: &[i64],
    ) -> impl Future<Output = Result<()>> + Send;

    /// Takes the first pending tasks of a service in hand that nobody has, and does not write to them.
    fn lease_tasks(&mut self, service: ServiceKey, taker: &Taker) -> impl Future<Output = Result<Leased>> + Send;

    /// Lists tasks as being in hand.
    fn insert_lease(
        &mut self,
        service: ServiceKey,
        instance: InstanceKey,
        tasks: &[i64],
    ) -> impl Future<Output = Result<i64>> + Send;

    /// Takes tasks out of the hands of these services: they are anybody's.
    fn let_go(&mut self, services: &[ServiceKey], tasks: &[i64]) -> impl Future<Output = Result<()>> + Send;

    /// The tasks of a service that are in hand.
    fn leased(&mut self, service: ServiceKey) -> impl Future<Output = Result<HashSet<i64>>> + Send;

    /// Those of the tasks that are in hand, and the names of the processes that have them.
    fn leased_among(&mut self, tasks: &[i64]) -> impl Future<Output = Result<HashMap<i64, String>>> + Send;

    /// Locks the tasks that a process has in hand.
    fn lock_leased(&mut self, instance: InstanceKey) -> impl Future<Output = Result<Locked<LockedTask>>> + Send;

    /// Writes that tasks were done, those that nobody else has changed; tells how many.
    fn write_done(&mut self, tasks: &[DoneTask]) -> impl Future<Output = Result<usize>> + Send;
}

pub(crate) fn locked_instance(row: &impl Columns) -> Result<LockedInstance> {
    Ok(LockedInstance {
        key: InstanceKey(row.big("id")?),
        name: row.text("name")?,
        policy: policy(row)?,
        undecided: row.flag("undecided")?,
    })
}

pub(crate) fn instance_record(row: &impl Columns) -> Result<InstanceRecord> {
    let status = match (row.flag("undecided")?, row.flag("silent")?) {
        (true, _) => InstanceStatus::Undecided,
        (_, true) => InstanceStatus::Silent,
        _ => InstanceStatus::Alive,
    };
    Ok(InstanceRecord {
        key: InstanceKey(row.big("id")?),
        name: row.text("name")?,
        host: row.text_if_any("host")?,
        version: row.text("version")?,
        policy: policy(row)?,
        status,
        started: row.moment("started")?,
        seen: row.moment("seen")?,
        leased: unsigned(row.big("leased")?),
    })
}

fn policy(row: &impl Columns) -> Result<CrashPolicy> {
    let code = row.small("policy")?;
    CrashPolicy::from_code(code).ok_or_else(|| corrupt(format!("crash policy {code}")))
}
