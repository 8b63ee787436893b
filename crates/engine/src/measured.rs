//! Wraps a store: every call is timed, counted and bounded once, here, so that drivers contain none of it.

use std::{
    collections::HashMap,
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use tracing::Instrument as _;

use relais_core::{
    Attempt, AuditEntry, AuditOutcome, AuditPage, Backlog, Batch, BatchId, BatchMade, Buried, CallbackAttempt,
    CallbackFilter, CallbackPage, Change, ClaimRequest, Claimed, ClaimedDispatches, Clerk, ClientKey, Decision,
    Declared, DispatchName, Dispatched, DueCallback, Fired, InstanceKey, InstanceRecord, Joined, LaneChange, Lanes,
    NewBatch, NewInstance, NewTask, Outcome, Page, Passed, PublishedTask, PurgeReport, PurgeRule, QueueDepth,
    QueueShare, Referee, Resend, Resent, RunByHand, ScheduleName, ScheduleRecord, ServiceKey, SessionsOf, Settled,
    Settlement, Store, StoreError, Submission, TakenIn, Task, TaskEvent, TaskFilter, TaskId, Timestamp, WakeupListener,
};

/// A call that takes longer is given up: a database that hangs is a database that is away.
const DEADLINE: Duration = Duration::from_secs(15);

/// Migrations may rewrite tables.
const MIGRATION_DEADLINE: Duration = Duration::from_secs(3600);

/// A store whose calls are measured.
pub(crate) struct Measured(pub(crate) Arc<dyn Store>);

async fn measure<T>(
    verb: &'static str,
    deadline: Duration,
    call: impl Future<Output = Result<T, StoreError>> + Send,
) -> Result<T, StoreError> {
    let begun = Instant::now();
    let span = tracing::debug_span!("store", verb);
    let result = match tokio::time::timeout(deadline, call).instrument(span).await {
        Ok(result) => result,
        Err(elapsed) => Err(StoreError::Unavailable(elapsed.into())),
    };
    metrics::histogram!("relais_store_seconds", "verb" => verb).record(begun.elapsed().as_secs_f64());
    if let Err(error) = &result {
        let kind = match error {
            StoreError::Unavailable(_) => "unavailable",
            StoreError::Failed(_) => "failed",
            StoreError::Conflict(_) => "conflict",
            StoreError::Schema(_) => "schema",
            StoreError::Encrypted(_) => "encrypted",
        };
        metrics::counter!("relais_store_errors_total", "verb" => verb, "kind" => kind).increment(1);
    }
    result
}

macro_rules! measured {
    ($($verb:ident($($name:ident: $type:ty),*) -> $output:ty;)*) => {
        #[async_trait]
        impl Store for Measured {
            $(async fn $verb(&self, $($name: $type),*) -> Result<$output, StoreError> {
                measure(stringify!($verb), DEADLINE, self.0.$verb($($name),*)).await
            })*

            async fn migrate(&self) -> Result<usize, StoreError> {
                measure("migrate", MIGRATION_DEADLINE, self.0.migrate()).await
            }

            async fn encrypt_secrets(&self) -> Result<u64, StoreError> {
                measure("encrypt_secrets", MIGRATION_DEADLINE, self.0.encrypt_secrets()).await
            }

            fn listen(&self, listener: Arc<dyn WakeupListener>) {
                self.0.listen(listener);
            }

            async fn relay_wakeups(&self) {
                self.0.relay_wakeups().await;
            }

            async fn close(&self) {
                self.0.close().await;
            }
        }
    };
}

measured! {
    submit_many(tasks: Vec<NewTask>) -> Vec<Submission>;
    submit_and_take(tasks: Vec<NewTask>, request: ClaimRequest) -> (Vec<Submission>, Vec<Task>);
    find_task(task_id: TaskId) -> Option<Task>;
    list_tasks(filter: TaskFilter) -> Page;
    count_tasks(filter: TaskFilter) -> u64;
    claim(requests: Vec<ClaimRequest>) -> Claimed;
    record(events: Vec<TaskEvent>) -> Vec<Outcome>;
    join(instance: NewInstance) -> Joined;
    beat(instance: InstanceKey, silence: Duration) -> bool;
    leave(instance: InstanceKey) -> ();
    bury() -> Buried;
    instances() -> Vec<InstanceRecord>;
    decide(name: String, decision: Decision) -> Option<usize>;
    pass_time(limit: usize) -> Passed;
    attempts(id: i64) -> Vec<Attempt>;
    settle_dependencies(limit: usize) -> Settled;
    recheck_dependencies(after: i64, limit: usize) -> Option<i64>;
    make_batch(batch: NewBatch, tasks: Vec<NewTask>) -> BatchMade;
    find_batch(batch_id: BatchId) -> Option<Batch>;
    list_batches(client: Option<ClientKey>, before: Option<BatchId>, limit: usize) -> Vec<Batch>;
    close_batch(batch_id: BatchId) -> ();
    purge_batches(finished: Duration, any: Duration, limit: usize) -> u64;
    claim_dispatches(services: Vec<ServiceKey>, each: usize, lease: Duration) -> ClaimedDispatches;
    settle_dispatches(dispatches: Vec<DispatchName>, outcome: Dispatched) -> ();
    lease_strays(limit: usize) -> usize;
    dispatch_again(service: ServiceKey) -> ();
    refill_dispatches(limit: usize) -> bool;
    callback_lanes(after: Option<i64>, limit: usize) -> Lanes;
    claim_callbacks(lanes: Vec<i64>, each: usize, lease: Duration) -> Vec<DueCallback>;
    settle_callbacks(settlements: Vec<Settlement>, lanes: Vec<(i64, LaneChange)>) -> ();
    give_up_callbacks(lane: i64, older_than: Duration, limit: usize) -> u64;
    list_callbacks(filter: CallbackFilter) -> CallbackPage;
    tell(texts: Vec<String>) -> ();
    callback_attempts(rows: Vec<i64>) -> HashMap<i64, Vec<CallbackAttempt>>;
    resend_callbacks(resend: Resend) -> Resent;
    purge(rule: PurgeRule) -> PurgeReport;
    tidy(idempotency_age: Duration) -> u64;
    write_audit(entries: Vec<AuditEntry>) -> ();
    begin_audit(entry: AuditEntry) -> i64;
    settle_audit(line: i64, outcome: Option<AuditOutcome>) -> ();
    open_session(id: String, operator: String, lasts: Duration) -> ();
    session_is_open(id: String) -> bool;
    end_sessions(which: SessionsOf) -> u64;
    tell_workers(process: String, workers: Option<String>) -> ();
    told_workers(but: String, within: Duration) -> Vec<(String, Duration)>;
    audit_log(before: Option<i64>, limit: usize) -> AuditPage;
    forget_audit(older_than: Duration) -> u64;
    take_turn(chore: &str, period: Duration) -> bool;
    backlog() -> Backlog;
    queue_depths(services: Vec<ServiceKey>) -> Vec<QueueDepth>;
    queue_shares(service: ServiceKey) -> Vec<QueueShare>;
    declared() -> Declared;
    declared_version() -> i64;
    declare(changes: Vec<Change>) -> ();
    schedules(names: Vec<ScheduleName>) -> Vec<ScheduleRecord>;
    next_run() -> Option<Duration>;
    oldest_published(service: ServiceKey) -> Option<PublishedTask>;
    fire_schedules(limit: usize, referee: Arc<dyn Referee>) -> Fired;
    run_schedule(name: ScheduleName, task: NewTask) -> RunByHand;
    take_in(limit: usize, clerk: Arc<dyn Clerk>) -> TakenIn;
    advance(by: Duration) -> ();
    ping() -> Timestamp;
}
