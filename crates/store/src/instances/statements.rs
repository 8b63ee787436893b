//! What instances, which are processes that run tasks themselves, and their leases need of a database.
//!
//! The row of an instance covers all its leases: whoever locks that row and finds it alive knows that nobody has taken
//! a task away from it. Claims on a service whose tasks may be leased lock the service's flow, one after the other, and
//! leave out leased tasks.

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

/// A locked instance.
#[derive(Debug, Clone)]
pub(crate) struct LockedInstance {
    pub key: InstanceKey,
    pub name: String,
    pub policy: CrashPolicy,
    /// Whether an operator has to decide what happens to its tasks.
    pub undecided: bool,
}

/// A leased task that succeeded.
#[derive(Debug)]
pub(crate) struct DoneTask {
    pub id: i64,
    /// Its revision when it was leased. If the task has another one now, somebody else has changed it.
    pub known: u64,
    pub revision: u64,
    pub attempt: u32,
    pub worker_host: Option<String>,
    pub started: Option<Timestamp>,
    pub ended: Option<Timestamp>,
    pub response: Json,
}

/// An instance that leases tasks.
#[derive(Debug)]
pub(crate) struct Lessee {
    pub instance: InstanceKey,
    /// How often it gave up the calls that it had under way. A call of an earlier epoch leases nothing.
    pub epoch: i64,
    /// How many tasks it has room for.
    pub limit: usize,
    /// Leases that it is done with.
    pub done_with: Vec<i64>,
    /// Where it looks for tasks.
    pub onward: Onward,
}

/// Where to look for tasks: behind the last one that an instance leased. All before it are in these leases, or were
/// when it looked, so that it need not pass over them one by one.
#[derive(Debug, Clone)]
pub(crate) struct Onward {
    pub rank: i64,
    pub id: i64,
    pub leases: Vec<i64>,
}

impl Onward {
    /// From the head of the queue.
    pub(crate) const START: Self = Self { rank: i64::MIN, id: 0, leases: Vec::new() };

    pub(crate) fn is_start(&self) -> bool {
        self.rank == i64::MIN
    }
}

/// What was leased.
#[derive(Debug)]
pub(crate) struct Leased {
    /// The row of the lease; none if nothing was leased.
    pub lease: Option<i64>,
    pub locked: Locked<LockedPending>,
}

/// What instances need outside of a transaction.
pub(crate) trait InstanceReader: Send + Sync {
    /// The instances, in the order of their names.
    fn list_instances(&self) -> impl Future<Output = Result<Vec<InstanceRecord>>> + Send;

    /// Leases pending tasks of a service without locking anything first. None if there are none, if somebody else
    /// claims some at this moment, if the flow is limited or the instance is not alive, or if the database gains
    /// nothing by it. Then leases that the instance is done with may still be there.
    fn lease_unlocked(
        &self,
        _service: ServiceKey,
        _lessee: &Lessee,
    ) -> impl Future<Output = Result<Option<Leased>>> + Send {
        std::future::ready(Ok(None))
    }
}

/// Instances and their leases, within a transaction.
pub(crate) trait InstanceRows: Send {
    /// Inserts an instance.
    fn insert_instance(&mut self, instance: &NewInstance) -> impl Future<Output = Result<InstanceKey>> + Send;

    /// Locks the instance of this name.
    fn lock_instance(&mut self, name: &str) -> impl Future<Output = Result<Option<LockedInstance>>> + Send;

    /// Locks an instance that has been silent for too long, passing over those that others have locked.
    fn lock_dead(&mut self) -> impl Future<Output = Result<Option<LockedInstance>>> + Send;

    /// How long until the next instance has been silent for too long.
    fn next_death(&mut self) -> impl Future<Output = Result<Option<Duration>>> + Send;

    /// Notes that an operator has to decide what happens to the tasks of an instance.
    fn leave_undecided(&mut self, instance: InstanceKey) -> impl Future<Output = Result<()>> + Send;

    /// Locks an instance; false if it is gone. A statement of its own: its leases are read afterwards.
    fn lock_own(&mut self, instance: InstanceKey) -> impl Future<Output = Result<bool>> + Send;

    /// Removes an instance and its leases.
    fn delete_instance(&mut self, instance: InstanceKey) -> impl Future<Output = Result<()>> + Send;

    /// Extends the life of an instance; false if it is over. Removes leases that it is done with.
    fn heartbeat_instance(
        &mut self,
        instance: InstanceKey,
        silence: Duration,
        done_with: &[i64],
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Makes sure that an instance is alive, and that it stays so until this transaction is over: then none of its
    /// leased tasks is taken away. Tells the time.
    fn hold_instance(&mut self, instance: InstanceKey) -> impl Future<Output = Result<Option<Timestamp>>> + Send;

    /// Begins a new epoch of an instance. Once this is committed, a call that began before leases nothing, unless it
    /// has locked the claims of the service already. Tells the number of the epoch; none if the instance is not alive.
    fn renew(&mut self, instance: InstanceKey) -> impl Future<Output = Result<Option<i64>>> + Send;

    /// Notes that tasks of these services may be leased from now on. When it returns, no claim is under way that knows
    /// nothing of it.
    fn note_leased(&mut self, services: &[ServiceKey]) -> impl Future<Output = Result<()>> + Send;

    /// Locks the service against other claims, and holds the instance; tells whether nothing limits the service's flow.
    /// None if the instance is not alive, or never said that it runs tasks of this service. Leases that it is done with
    /// are removed.
    fn lock_claims(
        &mut self,
        service: ServiceKey,
        instance: InstanceKey,
        done_with: &[i64],
    ) -> impl Future<Output = Result<Option<bool>>> + Send;

    /// Removes the leases of an instance on a service, but for these: the instance was never told of the others. The
    /// claims of the service are locked, and whoever was about to lease some without locking notices.
    fn drop_unknown(
        &mut self,
        service: ServiceKey,
        instance: InstanceKey,
        known: &[i64],
    ) -> impl Future<Output = Result<()>> + Send;

    /// Leases the first pending tasks of a service that nobody has, and does not write to them.
    fn lease_tasks(&mut self, service: ServiceKey, lessee: &Lessee) -> impl Future<Output = Result<Leased>> + Send;

    /// Writes a lease on these tasks.
    fn insert_lease(
        &mut self,
        service: ServiceKey,
        instance: InstanceKey,
        tasks: &[i64],
    ) -> impl Future<Output = Result<i64>> + Send;

    /// Takes tasks out of the leases of these services: anybody can claim them.
    fn end_leases(&mut self, services: &[ServiceKey], tasks: &[i64]) -> impl Future<Output = Result<()>> + Send;

    /// The tasks of a service that are leased.
    fn leased(&mut self, service: ServiceKey) -> impl Future<Output = Result<HashSet<i64>>> + Send;

    /// Those of the tasks that are leased, and the names of the instances that have them.
    fn leased_among(&mut self, tasks: &[i64]) -> impl Future<Output = Result<HashMap<i64, String>>> + Send;

    /// Locks the tasks that an instance has leased.
    fn lock_leased(&mut self, instance: InstanceKey) -> impl Future<Output = Result<Locked<LockedTask>>> + Send;

    /// Writes results of tasks that nobody else has changed; tells how many.
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
