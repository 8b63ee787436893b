//! The port through which everything is kept.
//!
//! The methods are whole verbs: each is one transaction, takes many items at once, and never hands out a transaction.
//! Two drivers exist, and one conformance suite holds both to what is written here.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    Attempt, AuditEntry, AuditOutcome, AuditPage, Backlog, Batch, BatchId, BatchMade, Buried, CallbackAttempt,
    CallbackFilter, CallbackPage, ClaimedDispatches, Clerk, ClientFlow, ClientId, ClientKey, Decision, Declared,
    Destination, DispatchName, Dispatched, DueCallback, Fired, Ignored, InstanceKey, InstanceRecord, Joined, Json,
    LaneChange, Lanes, NewBatch, NewInstance, NewTask, Page, PublishedTask, QueueDepth, QueueSettings, QueueShare,
    Referee, Resend, Resent, Role, RunByHand, ScheduleChange, ScheduleName, ScheduleRecord, ServiceKey, ServiceLimits,
    ServiceName, SessionsOf, Settled, Settlement, State, Status, Submission, TakenIn, Task, TaskChange, TaskFilter,
    TaskId, Timestamp, Transport, Withdrawal,
};

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
pub struct Passed {
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
        transport: Transport,
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

/// Which tasks changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdsChanged {
    /// Those with these `id`s.
    These(Vec<i64>),
    /// Too many to name, or unknown because messages may have been missed.
    Perhaps,
}

/// A hint that something changed. It makes things fast; a slow sweep makes them certain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wakeup {
    /// These services have tasks to be claimed; none in the list means none.
    pub work: Vec<ServiceKey>,
    /// These tasks changed.
    pub tasks: IdsChanged,
    /// What is declared has changed.
    pub declared: bool,
    /// These lanes have callbacks to be sent.
    pub callbacks: Vec<i64>,
    /// These services have tasks to be dispatched that nobody has in hand.
    pub dispatch: Vec<ServiceKey>,
    /// Something happens to a task at this moment, by itself.
    pub timer: Option<Timestamp>,
    /// There is something in the inbox.
    pub inbox: bool,
}

impl Default for Wakeup {
    /// Nothing to tell.
    fn default() -> Self {
        Self {
            work: Vec::new(),
            tasks: IdsChanged::These(Vec::new()),
            declared: false,
            callbacks: Vec::new(),
            dispatch: Vec::new(),
            timer: None,
            inbox: false,
        }
    }
}

impl Wakeup {
    /// Anything may have happened.
    pub const fn anything() -> Self {
        Self {
            tasks: IdsChanged::Perhaps,
            declared: true,
            work: Vec::new(),
            callbacks: Vec::new(),
            dispatch: Vec::new(),
            timer: None,
            inbox: true,
        }
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.work.is_empty()
            && !self.declared
            && self.callbacks.is_empty()
            && self.dispatch.is_empty()
            && self.timer.is_none()
            && !self.inbox
            && self.tasks == IdsChanged::These(Vec::new())
    }
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
    fn withdrawn(&self, tasks: &[Withdrawal]) {
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

/// Where everything is kept.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Takes tasks in, all in one transaction, and answers each in its turn.
    ///
    /// A submission is refused when its service or its client's share is full, counted exactly under any concurrency. A
    /// submission whose idempotency key is known gets the first answer again, or is refused if its fingerprint differs.
    async fn submit_many(&self, tasks: Vec<NewTask>) -> Result<Vec<Submission>, StoreError>;

    /// The same, while a worker waits for tasks of this service, or a process that takes them in hand: with the commit that takes them
    /// in it may have what a claim right afterwards would give it, and need not wait for a second one. Or it has none, and claims.
    async fn submit_and_take(
        &self,
        tasks: Vec<NewTask>,
        request: ClaimRequest,
    ) -> Result<(Vec<Submission>, Vec<Task>), StoreError>;

    /// A task by its public name, placed in its queue if it is pending.
    async fn find_task(&self, task_id: TaskId) -> Result<Option<Task>, StoreError>;

    /// The tasks that match, the newest first. The cost grows with the page, not with what is stored.
    async fn list_tasks(&self, filter: TaskFilter) -> Result<Page, StoreError>;

    /// How many tasks match, counted up to `limit`: whoever gets that many knows that there may be more.
    async fn count_tasks(&self, filter: TaskFilter) -> Result<u64, StoreError>;

    /// The attempts of a task before its current or last one, in their order. `id` is the task's row.
    async fn attempts(&self, id: i64) -> Result<Vec<Attempt>, StoreError>;

    /// Hands out pending tasks in the order of their ranks, each to one caller only. Requests for the same service share them in
    /// their order. A paused service has none.
    ///
    /// What limits the service's flow ([`crate::FlowLimits`]) is held to over all processes, exactly under any concurrency: a
    /// claim takes all that may run, and no more. A worker that starts a pending task without a claim is counted, not stopped.
    ///
    /// What a process takes in hand is its own from then on, but may be PENDING to everybody else until the process says
    /// something of it. One that is not known any more gets nothing. What it was given by a call that was not answered goes back
    /// with its next claim of the service: the driver knows of it, whoever calls need not.
    async fn claim(&self, requests: Vec<ClaimRequest>) -> Result<Claimed, StoreError>;

    /// A process begins. What the one before it of the same name had in hand is taken care of first, as that one asked for.
    async fn join(&self, instance: NewInstance) -> Result<Joined, StoreError>;

    /// A process gives a sign of life, and may keep silent for so long again. False if it is not known any more: it was
    /// silent for too long, or another one has its name. Then nothing that it says of tasks counts.
    async fn beat(&self, instance: InstanceKey, silence: Duration) -> Result<bool, StoreError>;

    /// A process ends. What it still has in hand goes back to where it was.
    async fn leave(&self, instance: InstanceKey) -> Result<(), StoreError>;

    /// Takes care of what processes had in hand that have been silent for too long.
    async fn bury(&self) -> Result<Buried, StoreError>;

    /// The processes, in the order of their names.
    async fn instances(&self) -> Result<Vec<InstanceRecord>, StoreError>;

    /// Decides what becomes of the tasks of a process that died; tells how many there were. None if nothing is to be
    /// decided under this name.
    async fn decide(&self, name: String, decision: Decision) -> Result<Option<usize>, StoreError>;

    /// Applies events in their order by [`crate::apply`], and tells what became of each.
    async fn record(&self, events: Vec<TaskEvent>) -> Result<Vec<Outcome>, StoreError>;

    /// Does what time does, to at most `limit` tasks: those that are due come into their queues, those that nobody started in
    /// time fail, those that ran for too long fail or are tried again, and those of silent workers are taken away.
    async fn pass_time(&self, limit: usize) -> Result<Passed, StoreError>;

    /// Does what the end of tasks does to those that wait for them ([`crate::After`]), to about `limit` of them: they come into
    /// their queues, or fail. A failure may be what others wait for in their turn; that is done by the next call.
    async fn settle_dependencies(&self, limit: usize) -> Result<Settled, StoreError>;

    /// Looks for ends that nobody told those of who wait for them, after this task's row: a process of an older version does
    /// not. Tells where to go on; none when all were looked at.
    async fn recheck_dependencies(&self, after: i64, limit: usize) -> Result<Option<i64>, StoreError>;

    /// Makes a batch with these tasks: all of them, or nothing if one is refused.
    async fn make_batch(&self, batch: NewBatch, tasks: Vec<NewTask>) -> Result<BatchMade, StoreError>;

    /// A batch by its public name.
    async fn find_batch(&self, batch_id: BatchId) -> Result<Option<Batch>, StoreError>;

    /// A client's batches, or those of all, the newest first, at most `limit`, before this one.
    async fn list_batches(
        &self,
        client: Option<ClientKey>,
        before: Option<BatchId>,
        limit: usize,
    ) -> Result<Vec<Batch>, StoreError>;

    /// Takes no more tasks into a batch; again is the same. It ends if none of its tasks is unfinished.
    async fn close_batch(&self, batch_id: BatchId) -> Result<(), StoreError>;

    /// Removes batches that ended longer than `finished` ago, or were made longer than `any` ago, and of which nothing is to be
    /// told any more; at most `limit`. Tells how many.
    async fn purge_batches(&self, finished: Duration, any: Duration, limit: usize) -> Result<u64, StoreError>;

    /// Hands out tasks of these services that are to be dispatched to a broker, the oldest first, at most `each` of each
    /// service, each to one caller only. What is not settled within `lease` is handed out again. A service with a window
    /// ([`crate::FlowLimits::dispatch_window`]) has no more at the broker, in hand or with a worker than that, and its other
    /// limits hold for those as they do for what runs elsewhere; where clients take turns, tasks are in their order.
    async fn claim_dispatches(
        &self,
        services: Vec<ServiceKey>,
        each: usize,
        lease: Duration,
    ) -> Result<ClaimedDispatches, StoreError>;

    /// Writes what became of dispatches. One that was published to a queue that is not the service's any more, or that the
    /// broker has lost meanwhile, is not done.
    async fn settle_dispatches(&self, dispatches: Vec<DispatchName>, outcome: Dispatched) -> Result<(), StoreError>;

    /// Gives a lease to tasks that a worker has and that nobody watches: their service has left the broker. Tells how many.
    async fn lease_strays(&self, limit: usize) -> Result<usize, StoreError>;

    /// Notes that the unfinished tasks of a service are to be dispatched again, because the broker has lost them.
    async fn dispatch_again(&self, service: ServiceKey) -> Result<(), StoreError>;

    /// Makes some of what is to be dispatched again due, at most `limit`; tells whether there may be more.
    async fn refill_dispatches(&self, limit: usize) -> Result<bool, StoreError>;

    /// Lanes in which callbacks wait, in the order of their names, after this one. The cost is that of the lanes, not of
    /// what waits in them.
    async fn callback_lanes(&self, after: Option<i64>, limit: usize) -> Result<Lanes, StoreError>;

    /// Hands out callbacks that are due, at most `each` of each of these lanes, each to one caller only; a lane that is
    /// parked has none. What is not settled within `lease` is handed out again.
    async fn claim_callbacks(
        &self,
        lanes: Vec<i64>,
        each: usize,
        lease: Duration,
    ) -> Result<Vec<DueCallback>, StoreError>;

    /// Writes what became of tries, and of the endpoints that they were made to.
    async fn settle_callbacks(
        &self,
        settlements: Vec<Settlement>,
        lanes: Vec<(i64, LaneChange)>,
    ) -> Result<(), StoreError>;

    /// Gives up callbacks of a lane that have been due for longer than this, at most `limit`; tells how many.
    async fn give_up_callbacks(&self, lane: i64, older_than: Duration, limit: usize) -> Result<u64, StoreError>;

    /// The callbacks that match, the newest first. The cost of a page is bounded, whatever is stored.
    async fn list_callbacks(&self, filter: CallbackFilter) -> Result<CallbackPage, StoreError>;

    /// The tries of these callbacks, each list in its order.
    async fn callback_attempts(&self, rows: Vec<i64>) -> Result<HashMap<i64, Vec<CallbackAttempt>>, StoreError>;

    /// Makes callbacks due again, a batch at a time, whatever became of them.
    async fn resend_callbacks(&self, resend: Resend) -> Result<Resent, StoreError>;

    /// Removes what is too old, a small batch at a time. A finished task stays while its end is still to be told, any task while
    /// another one waits for it.
    async fn purge(&self, rule: PurgeRule) -> Result<PurgeReport, StoreError>;

    /// Forgets idempotency keys that are older than this, and counters that no place depends on; tells how many keys.
    async fn tidy(&self, idempotency_age: Duration) -> Result<u64, StoreError>;

    /// Writes down what operators did.
    async fn write_audit(&self, entries: Vec<AuditEntry>) -> Result<(), StoreError>;

    /// Writes down what an operator is about to do; gives the line, of which it is not known what came of it.
    async fn begin_audit(&self, entry: AuditEntry) -> Result<i64, StoreError>;

    /// Writes down what came of it; takes the line back where nothing did.
    async fn settle_audit(&self, line: i64, outcome: Option<AuditOutcome>) -> Result<(), StoreError>;

    /// What operators did, the newest first, before this line of the log.
    async fn audit_log(&self, before: Option<i64>, limit: usize) -> Result<AuditPage, StoreError>;

    /// Forgets what operators did longer ago than this; tells how many lines.
    async fn forget_audit(&self, older_than: Duration) -> Result<u64, StoreError>;

    /// An operator has signed in, for so long.
    async fn open_session(&self, id: String, operator: String, lasts: Duration) -> Result<(), StoreError>;

    /// Whether a session was opened, and neither ended nor expired.
    async fn session_is_open(&self, id: String) -> Result<bool, StoreError>;

    /// Ends a session, or all of an operator's; tells how many.
    async fn end_sessions(&self, which: SessionsOf) -> Result<u64, StoreError>;

    /// Tells other processes which workers this one has heard of, in its own words; none if of none.
    async fn tell_workers(&self, process: String, workers: Option<String>) -> Result<(), StoreError>;

    /// What other processes have told of workers, not longer ago than this, and how long ago.
    async fn told_workers(&self, but: String, within: Duration) -> Result<Vec<(String, Duration)>, StoreError>;

    /// Whether it is this caller's turn to do `chore`, which is to be done once per `period` by one process of all.
    async fn take_turn(&self, chore: &str, period: Duration) -> Result<bool, StoreError>;

    /// How full the queues are.
    async fn backlog(&self) -> Result<Backlog, StoreError>;

    /// How full these queues are, in the order in which they are asked for. The cost is that of the queues, not of what is
    /// in them.
    async fn queue_depths(&self, services: Vec<ServiceKey>) -> Result<Vec<QueueDepth>, StoreError>;

    /// The clients that have unfinished tasks of a service, and how many. The cost is that of the clients.
    async fn queue_shares(&self, service: ServiceKey) -> Result<Vec<QueueShare>, StoreError>;

    /// Everything that is declared.
    async fn declared(&self) -> Result<Declared, StoreError>;

    /// The number of changes to what is declared: cheap to ask.
    async fn declared_version(&self) -> Result<i64, StoreError>;

    /// Makes changes to what is declared, all or none.
    async fn declare(&self, changes: Vec<Change>) -> Result<(), StoreError>;

    /// The oldest pending task of a service that is at its broker, as far as the store knows; none if all are still to be
    /// published. Cheap to ask.
    async fn oldest_published(&self, service: ServiceKey) -> Result<Option<PublishedTask>, StoreError>;

    /// The schedules, in the order of their names, and how far they have come; only those that are named, where any are.
    async fn schedules(&self, names: Vec<ScheduleName>) -> Result<Vec<ScheduleRecord>, StoreError>;

    /// How long it is until a schedule runs; none if none does. Cheap to ask.
    async fn next_run(&self) -> Result<Option<Duration>, StoreError>;

    /// Makes the runs that are due, of at most `limit` schedules, passing over those that others have in hand: in one
    /// transaction their tasks are submitted, and it is written when they run next. So a run happens once, whoever makes
    /// it and whoever dies. A run that is refused is noted and over.
    async fn fire_schedules(&self, limit: usize, referee: Arc<dyn Referee>) -> Result<Fired, StoreError>;

    /// Submits this task as a run of the schedule that is due now, paused or not. Its other runs stay as they are.
    async fn run_schedule(&self, name: ScheduleName, task: NewTask) -> Result<RunByHand, StoreError>;

    /// Makes tasks of what programs put into the inbox, at most `limit`, passing over what others have in hand, in one
    /// transaction with the removal from there. What is refused stays there, with the reason.
    async fn take_in(&self, limit: usize, clerk: Arc<dyn Clerk>) -> Result<TakenIn, StoreError>;

    /// Lets so much time pass, at once, for tests: all that is written is moved back.
    async fn advance(&self, by: Duration) -> Result<(), StoreError>;

    /// Whether the store answers, and takes writes.
    async fn ping(&self) -> Result<Timestamp, StoreError>;

    /// From now on `listener` hears of changes made through this value.
    fn listen(&self, listener: Arc<dyn WakeupListener>);

    /// Says something to all processes on the same store, in this order: up to [`wakeup::MAX_TEXT`](crate::wakeup::MAX_TEXT)
    /// bytes each. Heard by those who listen, as a hint: a text may be lost. A store for one process says it to nobody.
    async fn tell(&self, texts: Vec<String>) -> Result<(), StoreError>;

    /// Passes on the changes that other processes make. Runs until it is dropped, and reconnects by itself.
    async fn relay_wakeups(&self);

    /// Creates or upgrades the tables, then does what [`Store::encrypt_secrets`] does; tells how many migrations were
    /// applied.
    async fn migrate(&self) -> Result<usize, StoreError>;

    /// Encrypts signing secrets that lie in clear or under another key than the first, in one transaction; tells how many.
    /// Fails with [`StoreError::Encrypted`] if there is one that this process can not decrypt, also where it has no key
    /// and there is nothing else to do. For processes that do not migrate.
    async fn encrypt_secrets(&self) -> Result<u64, StoreError>;

    /// Lets go of all connections.
    async fn close(&self);
}
