//! The port through which everything is kept.
//!
//! The methods are whole verbs: each is one transaction, takes many items at once, and never hands out a transaction.
//! Two drivers exist, and one conformance suite holds both to what is written here.

mod ports;

use std::time::Duration;

use crate::{
    ClientFlow, ClientId, ClientKey, Destination, Ignored, InstanceKey, Json, QueueSettings, Revocation, Role,
    ScheduleChange, ServiceKey, ServiceLimits, ServiceName, State, Status, Task, TaskChange, TaskId, TaskTransport,
    Wakeup,
};

pub use ports::*;

/// What a store can not do, whatever it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database is away, too slow, full, or shutting down. The same call may succeed later; a write may have been
    /// done in spite of the error.
    #[error("the store is unavailable")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The database refused what it was asked: a fault of ours.
    #[error("the store failed")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The change contradicts what is stored.
    #[error("{0}")]
    Conflict(String),
    /// The database is of another version of Relais.
    #[error("{0}")]
    Schema(String),
    /// Signing secrets are encrypted with a key that this process does not have. Says which setting is missing.
    #[error("{0}")]
    Encrypted(String),
}

/// A worker's wish for tasks.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// The service.
    pub service: ServiceKey,
    /// As many as it can use.
    pub max: usize,
    /// How long it may keep silent; none means the service's setting.
    pub lease: Option<Duration>,
    /// The host or pod that asks.
    pub worker_host: Option<String>,
    /// The process that takes them in hand, where it is one on this store: there is no lease then.
    pub instance: Option<InstanceKey>,
}

/// What was handed out.
#[derive(Debug, Clone, Default)]
pub struct Claimed {
    /// The tasks of each request, in their order.
    pub tasks: Vec<Vec<Task>>,
    /// When to look again for those who want more, where a rate holds tasks back. Whatever else does wakes them.
    pub again: Option<Duration>,
}

/// Something that happened to a task, and who says so.
#[derive(Debug, Clone)]
pub struct TaskEvent {
    /// The task.
    pub task_id: TaskId,
    /// The event counts only if the task is of this service.
    pub service: ServiceKey,
    /// The event counts only if the task is of this client, where one is given.
    pub client: Option<ClientKey>,
    /// What happened.
    pub event: crate::Event,
}

/// What became of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The task is now in this state.
    Applied(State),
    /// The task stays as it was.
    Ignored(Ignored),
    /// There is no such task for whoever said so.
    NotFound,
}

/// What happened to tasks because time passed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimersFired {
    /// So many tasks changed.
    pub changed: usize,
    /// So many of them were lost by their workers.
    pub lost: usize,
    /// How long until something happens to the next one, if nothing comes before; zero if there is more to do at once.
    pub next: Option<Duration>,
}

/// What is too old, for one service.
#[derive(Debug, Clone, Copy)]
pub struct PurgeRule {
    /// The service.
    pub service: ServiceKey,
    /// How long finished tasks are kept after their end.
    pub finished: Duration,
    /// How long any task is kept after its submission.
    pub any: Duration,
    /// Only count.
    pub dry_run: bool,
    /// At most so many tasks are looked at in this call.
    pub batch: usize,
    /// Where the call before left off.
    pub cursor: Option<(Status, i64)>,
}

/// What one call to purge did.
#[derive(Debug, Clone, Copy, Default)]
pub struct PurgeReport {
    /// Removed, or to be removed in a dry run.
    pub purged: u64,
    /// Where to go on; none when the service is done.
    pub cursor: Option<(Status, i64)>,
}

/// A change to what is declared.
#[expect(clippy::large_enum_variant, reason = "a few at a time, and rarely")]
#[derive(Debug, Clone)]
pub enum Change {
    /// The service is to be like this.
    PutService {
        /// Its name.
        name: ServiceName,
        /// Prefix of its queues on a broker.
        queue_name: String,
        /// How its tasks reach its workers.
        transport: TaskTransport,
        /// Its queues on a broker.
        queue: QueueSettings,
        /// What a request must conform to.
        json_schema: Option<Json>,
        /// Whether it is to be paused; none leaves it as it is.
        paused: Option<bool>,
        /// Its limits.
        limits: ServiceLimits,
    },
    /// The service is to be paused, or to go on.
    PauseService {
        /// Its name.
        name: ServiceName,
        /// Whether it is to be paused.
        paused: bool,
    },
    /// The service is to go. Refused while it has tasks that are not finished.
    DeleteService(ServiceName),
    /// The client is to be there; with this secret, where one is given.
    PutClient {
        /// Its name.
        client_id: ClientId,
        /// The bcrypt hash of its secret; none keeps the one it has.
        secret_hash: Option<String>,
        /// Where on the broker it may be told; none keeps what it has.
        destinations: Option<Vec<Destination>>,
    },
    /// The client's callbacks are to be signed with this from now on.
    PutSigningSecret {
        /// The client.
        client_id: ClientId,
        /// `whsec_` and base64.
        secret: String,
        /// How long the one before is used as well.
        overlap: Duration,
        /// Only if it has none.
        unless_any: bool,
    },
    /// The client is to go, with its authorizations. Its tasks stay until they are purged.
    DeleteClient(ClientId),
    /// The client is to have these roles on the service.
    PutAuthorization {
        /// The client.
        client_id: ClientId,
        /// The service.
        service: ServiceName,
        /// What it may do.
        roles: Vec<Role>,
        /// How many pending tasks it may have there.
        capacity: Option<u32>,
        /// Its part in the service's flow.
        flow: ClientFlow,
    },
    /// The client is to have no role on the service.
    DeleteAuthorization {
        /// The client.
        client_id: ClientId,
        /// The service.
        service: ServiceName,
    },
    /// A schedule.
    Schedule(ScheduleChange),
}

/// Somebody who wants to be woken. Called after the commit, from any thread; must return at once.
pub trait WakeupListener: Send + Sync {
    /// Something changed.
    fn wake(&self, wakeup: &Wakeup);

    /// Whether it wants every single change too. Asked before each transaction: what nobody wants is not put together.
    fn wants_changes(&self) -> bool {
        false
    }

    /// This process committed these changes, in this order. Said only to those who want it.
    fn changed(&self, changes: &[TaskChange]) {
        let _ = changes;
    }

    /// This process has committed that workers are to leave these tasks alone, or has found one that does not know. Whoever
    /// is told may lose it: a worker that says more of such a task is told of again.
    fn revoked(&self, tasks: &[Revocation]) {
        let _ = tasks;
    }

    /// A process on the same store, perhaps this one, has said this by [`Store::tell`].
    fn told(&self, text: &str) {
        let _ = text;
    }

    /// Whether other processes are heard from now on; if not, why.
    fn hears(&self, hears: Result<(), &str>) {
        let _ = hears;
    }
}
