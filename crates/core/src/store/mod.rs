//! The port to the database.
//!
//! Each method is one transaction and takes many items at once. No method exposes a transaction. Two drivers exist, and
//! one conformance suite tests both.

mod ports;

use std::time::Duration;

use crate::{
    AudienceChange, ClientFlow, ClientId, ClientKey, Destination, Ignored, InstanceKey, Json, NotificationRights,
    QueueSettings, RelayChange, Revocation, Role, ScheduleChange, ServiceKey, ServiceLimits, ServiceName, State,
    Status, Task, TaskChange, TaskId, TaskTransport, Wakeup,
};

pub use ports::*;

/// Errors of a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database is away, too slow, full, or shutting down. The same call may succeed later. A write may have been
    /// committed in spite of the error.
    #[error("the store is unavailable")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The database refused the statement: a fault of Relais.
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

/// A claim of tasks by a worker or an instance.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// The service.
    pub service: ServiceKey,
    /// The most tasks to claim.
    pub max: usize,
    /// The lease; none means the service's setting.
    pub lease: Option<Duration>,
    /// The host or pod of the claimer.
    pub worker_host: Option<String>,
    /// The instance that leases the tasks, if it is one on this store. There is no lease per task then.
    pub instance: Option<InstanceKey>,
}

/// The answer to claims.
#[derive(Debug, Clone, Default)]
pub struct Claimed {
    /// The tasks of each request, in their order.
    pub tasks: Vec<Vec<Task>>,
    /// When to claim again, where a rate limit delays tasks. Other limits send a wake-up instead.
    pub again: Option<Duration>,
}

/// An event of a task, and who reports it.
#[derive(Debug, Clone)]
pub struct TaskEvent {
    /// The task.
    pub task_id: TaskId,
    /// The event is recorded only if the task belongs to this service.
    pub service: ServiceKey,
    /// The event is recorded only if the task belongs to this client, where one is given.
    pub client: Option<ClientKey>,
    /// The event.
    pub event: crate::Event,
}

/// The outcome of a recorded event.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The task has this new state.
    Applied(State),
    /// The task did not change.
    Ignored(Ignored),
    /// There is no such task for this service or client.
    NotFound,
}

/// What fired timers did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimersFired {
    /// How many tasks changed.
    pub changed: usize,
    /// How many of them lost their workers.
    pub lost: usize,
    /// How long until the next timer fires; zero if there is more to do at once.
    pub next: Option<Duration>,
}

/// What a purge removes of one service.
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

/// What one call of purge did.
#[derive(Debug, Clone, Copy, Default)]
pub struct PurgeReport {
    /// How many tasks were removed, or would be in a dry run.
    pub purged: u64,
    /// Where to go on; none when the service is done.
    pub cursor: Option<(Status, i64)>,
}

/// A change of a declaration.
#[expect(clippy::large_enum_variant, reason = "a few at a time, and rarely")]
#[derive(Debug, Clone)]
pub enum Change {
    /// Creates or changes a service.
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
    /// Pauses or resumes a service.
    PauseService {
        /// Its name.
        name: ServiceName,
        /// Whether it is paused.
        paused: bool,
    },
    /// Deletes a service. Refused while it has unfinished tasks.
    DeleteService(ServiceName),
    /// Creates a client, or changes its secret, destinations or rights for notifications.
    PutClient {
        /// Its name.
        client_id: ClientId,
        /// The bcrypt hash of its secret; none keeps the one it has.
        secret_hash: Option<String>,
        /// Its callback destinations on the broker; none keeps those it has.
        destinations: Option<Vec<Destination>>,
        /// What it may do with notifications; none leaves its rights as they are.
        notifications: Option<NotificationRights>,
    },
    /// Rotates the signing secret of a client.
    PutSigningSecret {
        /// The client.
        client_id: ClientId,
        /// `whsec_` and base64.
        secret: String,
        /// How long the previous secret signs as well.
        overlap: Duration,
        /// Only if the client has none.
        unless_any: bool,
    },
    /// Deletes a client with its authorizations. Its tasks stay until they are purged.
    DeleteClient(ClientId),
    /// Sets the roles of a client on a service.
    PutAuthorization {
        /// The client.
        client_id: ClientId,
        /// The service.
        service: ServiceName,
        /// What it may do.
        roles: Vec<Role>,
        /// How many pending tasks it may have there.
        capacity: Option<u32>,
        /// Its flow limits on the service.
        flow: ClientFlow,
    },
    /// Removes the roles of a client on a service.
    DeleteAuthorization {
        /// The client.
        client_id: ClientId,
        /// The service.
        service: ServiceName,
    },
    /// Changes a schedule.
    Schedule(ScheduleChange),
    /// Changes an outbox, a capture or a notification source.
    Relay(RelayChange),
    /// Changes what is declared of audiences.
    Audience(AudienceChange),
}

/// A listener to the store. Called after the commit, from any thread; must return at once.
pub trait WakeupListener: Send + Sync {
    /// A wake-up: something changed.
    fn wake(&self, wakeup: &Wakeup);

    /// Whether it follows every change too. Asked before each transaction, so that events that nobody follows are not
    /// made.
    fn wants_changes(&self) -> bool {
        false
    }

    /// This process committed these changes, in this order. Called only if it follows changes.
    fn changed(&self, changes: &[TaskChange]) {
        let _ = changes;
    }

    /// This process committed that workers must stop these tasks, or a worker reported on a task that has ended. A
    /// revocation may be lost: a worker that reports on such a task again is revoked again.
    fn revoked(&self, tasks: &[Revocation]) {
        let _ = tasks;
    }

    /// A process on the same store, perhaps this one, has broadcast this text
    /// ([`MaintenanceStore::broadcast`](crate::MaintenanceStore::broadcast)).
    fn told(&self, text: &str) {
        let _ = text;
    }

    /// Whether wake-ups of other processes arrive from now on; if not, why.
    fn hears(&self, hears: Result<(), &str>) {
        let _ = hears;
    }
}
