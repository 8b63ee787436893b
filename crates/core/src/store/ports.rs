//! The verbs of the store, by domain: one list, from which the ports and their wrappers are made.
//!
//! [`store_ports!`] hands the list to a macro. This crate makes the traits of it; the engine makes the wrapper that
//! measures every call, and the testkit the one that fails on purpose. A new verb is a line here, a method in
//! `relais-store` (the folder of its feature), its SQL in both drivers, and a test in the suite of its port
//! (`testkit/src/store_suite/`).

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{
    Change, ClaimRequest, Claimed, Outcome, PurgeReport, PurgeRule, StoreError, TaskEvent, TimersFired, WakeupListener,
};
use crate::{
    Attempt, AuditEntry, AuditOutcome, AuditPage, Backlog, Batch, BatchCreated, BatchId, CallbackAttempt,
    CallbackFilter, CallbackLanePage, CallbackOutcome, CallbackPage, ClaimedDispatches, ClientKey,
    CollectedSubmissions, Decision, Declared, DependenciesResolved, DispatchName, Dispatched, DueCallback,
    FiredSchedules, InstanceKey, InstanceRecord, LaneChange, NewBatch, NewInstance, NewTask, Page, PublishedTask,
    QueueDepth, QueueShare, ReapedInstances, Registration, Resend, Resent, RunByHand, ScheduleName, ScheduleRecord,
    ScheduleValidator, ServiceKey, SessionsOf, Submission, SubmissionValidator, Task, TaskFilter, TaskId, Timestamp,
};

/// Calls `$each!` with all ports and their verbs.
#[macro_export]
macro_rules! store_ports {
    ($each:ident) => {
        $each! {
            /// Tasks: submitting, reading, what happens to them, and removing them.
            TaskStore {
                /// Stores tasks in one transaction, and answers each in its turn.
                ///
                /// A submission is refused when its service or its client's share is full, counted exactly under any
                /// concurrency. A submission whose idempotency key is known gets the first answer again, or is refused
                /// if its fingerprint differs.
                submit_many(tasks: Vec<NewTask>) -> Vec<Submission>;

                /// A task by its public name, with its position if it is pending.
                find_task(task_id: TaskId) -> Option<Task>;

                /// The tasks that match, the newest first. The cost grows with the page, not with what is stored.
                list_tasks(filter: TaskFilter) -> Page;

                /// How many tasks match, counted up to `limit`: at that number there may be more.
                count_tasks(filter: TaskFilter) -> u64;

                /// The attempts of a task before its current or last one, in their order. `id` is the task's row.
                list_attempts(id: i64) -> Vec<Attempt>;

                /// Applies events in their order by [`crate::apply`], and answers what became of each.
                record_events(events: Vec<TaskEvent>) -> Vec<Outcome>;

                /// Does what is due by the clock, to at most `limit` tasks: delayed ones enter their queues, those that
                /// nobody started in time fail, those that ran for too long fail or are retried, and those whose lease
                /// has expired are taken away from their workers.
                fire_timers(limit: usize) -> TimersFired;

                /// Resolves dependencies on tasks that have ended ([`crate::After`]), about `limit` of them: dependents
                /// enter their queues, or fail. A dependent that fails may have dependents itself; the next call does
                /// those.
                resolve_dependencies(limit: usize) -> DependenciesResolved;

                /// Looks for dependencies that were not resolved, after this task's row: a process of an older version
                /// does not note ends. Answers where to go on; none when all were looked at.
                recheck_dependencies(after: i64, limit: usize) -> Option<i64>;

                /// Makes tasks of submissions that programs stored in their own transactions, at most `limit`, skipping
                /// those that another process has locked. One transaction removes the submission and stores the task. A
                /// submission that is refused stays, with the reason.
                collect_submissions(limit: usize, validator: Arc<dyn SubmissionValidator>) -> CollectedSubmissions;

                /// Removes tasks that are too old, a small batch at a time. A finished task stays while its end is
                /// still to be called back, and any task while another one depends on it.
                purge_tasks(rule: PurgeRule) -> PurgeReport;

                /// Removes idempotency keys that are older than this, and counters that no position depends on; answers
                /// how many keys.
                purge_keys(idempotency_age: Duration) -> u64;

                /// How full the queues are.
                backlog() -> Backlog;

                /// How full these queues are, in the order in which they are asked for. The cost is that of the queues,
                /// not of what is in them.
                queue_depths(services: Vec<ServiceKey>) -> Vec<QueueDepth>;

                /// The clients that have unfinished tasks of a service, and how many. The cost is that of the clients.
                queue_shares(service: ServiceKey) -> Vec<QueueShare>;
            }

            /// Claims: giving pending tasks to workers and to instances.
            ClaimStore {
                /// Hands out pending tasks in the order of their ranks, each to one caller only. Requests for the same
                /// service share them in their order. A paused service has none.
                ///
                /// The limits of the service's flow ([`crate::FlowLimits`]) hold over all processes, exactly under any
                /// concurrency: a claim takes all that may run, and no more. A worker that starts a pending task
                /// without a claim is counted, not stopped.
                ///
                /// A task that an instance leases is its own from then on, but may be PENDING to everybody else until
                /// the instance says something of it. An instance that is not registered any more gets nothing. What it
                /// was given by a call that was not answered goes back with its next claim of the service: the driver
                /// knows of it, the caller need not.
                claim_tasks(requests: Vec<ClaimRequest>) -> Claimed;

                /// Submits, while a worker or an instance waits for tasks of this service: the commit that stores the
                /// tasks may also give it what a claim right afterwards would. Or it gives none, and the waiter claims.
                submit_and_claim(tasks: Vec<NewTask>, request: ClaimRequest) -> (Vec<Submission>, Vec<Task>);
            }

            /// Instances: the processes on the store, their heartbeats, and what they leave behind.
            InstanceStore {
                /// Registers a process. What the one before it of the same name had leased is taken care of first, by
                /// that one's crash policy.
                register_instance(instance: NewInstance) -> Registration;

                /// A heartbeat: the process may be silent for so long again. False if it is not registered any more: it
                /// was silent for too long, or another process has its name. Then nothing that it says of tasks counts.
                heartbeat_instance(instance: InstanceKey, silence: Duration) -> bool;

                /// Deregisters a process. What it still leases goes back to its queue.
                deregister_instance(instance: InstanceKey) -> ();

                /// Reaps instances that have been silent for too long: their crash policy decides what becomes of what
                /// they leased.
                reap_instances() -> ReapedInstances;

                /// The instances, in the order of their names.
                list_instances() -> Vec<InstanceRecord>;

                /// Decides what becomes of the tasks of an instance that died; answers how many there were. None if
                /// there is nothing to decide under this name.
                resolve_instance(name: String, decision: Decision) -> Option<usize>;
            }

            /// Dispatches: tasks that are to be published to a broker.
            DispatchStore {
                /// Hands out tasks of these services that are to be published, the oldest first, at most `each` of each
                /// service, each to one caller only. What is not completed within `lease` is handed out again. A
                /// service with a window ([`crate::FlowLimits::dispatch_window`]) has no more at the broker, claimed or
                /// with a worker than that, and its other limits hold for those as they do for what runs elsewhere;
                /// where clients take turns, tasks are in their order.
                claim_dispatches(services: Vec<ServiceKey>, each: usize, lease: Duration) -> ClaimedDispatches;

                /// Writes what became of dispatches. One that was published to a queue that is not the service's any
                /// more, or that the broker has lost meanwhile, is not done.
                complete_dispatches(dispatches: Vec<DispatchName>, outcome: Dispatched) -> ();

                /// Gives a lease to orphans: tasks that a worker has and that nobody watches, because their service has
                /// left the broker. Answers how many.
                lease_orphans(limit: usize) -> usize;

                /// Notes that the unfinished tasks of a service are to be published again, because the broker has lost
                /// them.
                redispatch_service(service: ServiceKey) -> ();

                /// Makes some of what is to be published again due, at most `limit`; answers whether there may be more.
                refill_dispatches(limit: usize) -> bool;

                /// The oldest pending task of a service that is at its broker, as far as the store knows; none if all
                /// are still to be published. Cheap to ask.
                oldest_published(service: ServiceKey) -> Option<PublishedTask>;
            }

            /// Callbacks: the queue of what is to be sent, by lanes, and every try.
            CallbackStore {
                /// Lanes in which callbacks wait, in the order of their names, after this one. The cost is that of the
                /// lanes, not of what waits in them.
                list_callback_lanes(after: Option<i64>, limit: usize) -> CallbackLanePage;

                /// Hands out callbacks that are due, at most `each` of each of these lanes, each to one caller only; a
                /// lane that is parked has none. What is not completed within `lease` is handed out again.
                claim_callbacks(lanes: Vec<i64>, each: usize, lease: Duration) -> Vec<DueCallback>;

                /// Writes what became of tries, and of the endpoints that they were made to.
                complete_callbacks(outcomes: Vec<CallbackOutcome>, lanes: Vec<(i64, LaneChange)>) -> ();

                /// Gives up callbacks of a lane that have been due for longer than this, at most `limit`; answers how
                /// many.
                expire_callbacks(lane: i64, older_than: Duration, limit: usize) -> u64;

                /// The callbacks that match, the newest first. The cost of a page is bounded, whatever is stored.
                list_callbacks(filter: CallbackFilter) -> CallbackPage;

                /// The tries of these callbacks, each list in its order.
                list_callback_attempts(rows: Vec<i64>) -> HashMap<i64, Vec<CallbackAttempt>>;

                /// Makes callbacks due again, a batch at a time, whatever became of them.
                resend_callbacks(resend: Resend) -> Resent;
            }

            /// Schedules: when they run, and their runs.
            ScheduleStore {
                /// The schedules, in the order of their names, and how far they have come; only those that are named,
                /// where any are.
                list_schedules(names: Vec<ScheduleName>) -> Vec<ScheduleRecord>;

                /// How long it is until a schedule runs; none if none does. Cheap to ask.
                next_schedule_run() -> Option<Duration>;

                /// Makes the runs that are due, of at most `limit` schedules, skipping those that another process has
                /// locked: one transaction submits their tasks and writes when they run next. So a run happens once,
                /// whoever makes it and whoever dies. A run that is refused is noted and over.
                fire_schedules(limit: usize, validator: Arc<dyn ScheduleValidator>) -> FiredSchedules;

                /// Submits this task as a run of the schedule that is due now, paused or not. Its other runs stay as
                /// they are.
                run_schedule(name: ScheduleName, task: NewTask) -> RunByHand;
            }

            /// Batches of tasks.
            BatchStore {
                /// Creates a batch with these tasks: all of them, or nothing if one is refused.
                create_batch(batch: NewBatch, tasks: Vec<NewTask>) -> BatchCreated;

                /// A batch by its public name.
                find_batch(batch_id: BatchId) -> Option<Batch>;

                /// A client's batches, or those of all, the newest first, at most `limit`, before this one.
                list_batches(client: Option<ClientKey>, before: Option<BatchId>, limit: usize) -> Vec<Batch>;

                /// Takes no more tasks into a batch; again is the same. It ends if none of its tasks is unfinished.
                close_batch(batch_id: BatchId) -> ();

                /// Removes batches that ended longer than `finished` ago, or were created longer than `any` ago, and
                /// whose end has been called back; at most `limit`. Answers how many.
                purge_batches(finished: Duration, any: Duration, limit: usize) -> u64;
            }

            /// Declarations: services, clients, authorizations.
            DeclarationStore {
                /// Everything that is declared.
                declared() -> Declared;

                /// The number of changes to what is declared: cheap to ask.
                declared_version() -> i64;

                /// Makes changes to what is declared, all or none.
                declare(changes: Vec<Change>) -> ();

                /// Encrypts signing secrets that lie in clear or under another key than the first, in one transaction;
                /// answers how many. Fails with [`StoreError::Encrypted`] if there is one that this process can not
                /// decrypt, also where it has no key and there is nothing else to do. For processes that do not
                /// migrate.
                encrypt_secrets() -> u64;
            }

            /// Operators: the audit log, sessions, and the workers that processes have heard of.
            OperatorStore {
                /// Writes what operators did.
                write_audit(entries: Vec<AuditEntry>) -> ();

                /// Writes what an operator is about to do; answers the line, whose outcome is not known yet.
                begin_audit(entry: AuditEntry) -> i64;

                /// Writes the outcome; removes the line where nothing was done.
                complete_audit(line: i64, outcome: Option<AuditOutcome>) -> ();

                /// What operators did, the newest first, before this line of the log.
                list_audit(before: Option<i64>, limit: usize) -> AuditPage;

                /// Removes what operators did longer ago than this; answers how many lines.
                purge_audit(older_than: Duration) -> u64;

                /// An operator has signed in, for so long.
                open_session(id: String, operator: String, lasts: Duration) -> ();

                /// Whether a session was opened, and neither ended nor expired.
                session_is_open(id: String) -> bool;

                /// Ends a session, or all of an operator's; answers how many.
                end_sessions(which: SessionsOf) -> u64;

                /// Publishes which workers this process has heard of, in its own words; none if of none.
                publish_workers(process: String, workers: Option<String>) -> ();

                /// What other processes have published of workers, not longer ago than this, and how long ago.
                list_published_workers(except: String, within: Duration) -> Vec<(String, Duration)>;
            }

            /// What belongs to no domain: the store itself, and what processes on it say to each other.
            MaintenanceStore {
                /// Whether it is this caller's turn to do `chore`, which is to be done once per `period` by one process
                /// of all.
                take_turn(chore: &str, period: Duration) -> bool;

                /// Lets so much time pass, at once, for tests: all that is written is moved back.
                advance(by: Duration) -> ();

                /// Whether the store answers, and takes writes.
                ping() -> Timestamp;

                /// Sends texts to all processes on the same store, in this order: up to
                /// [`wakeup::MAX_TEXT`](crate::wakeup::MAX_TEXT) bytes each. They are hints: a text may be lost. A
                /// store for one process sends them to nobody.
                broadcast(texts: Vec<String>) -> ();

                /// Creates or upgrades the tables, then does what [`DeclarationStore::encrypt_secrets`] does; answers
                /// how many migrations were applied.
                migrate() -> usize;
            }
        }
    };
}

macro_rules! define_ports {
    ($($(#[$port_doc:meta])* $port:ident {
        $($(#[$doc:meta])* $verb:ident($($name:ident: $type:ty),*) -> $output:ty;)*
    })*) => {
        $($(#[$port_doc])*
        #[async_trait]
        pub trait $port: Send + Sync + 'static {
            $($(#[$doc])*
            async fn $verb(&self, $($name: $type),*) -> Result<$output, StoreError>;)*
        })*

        /// A store: all ports, and how it is listened to.
        #[async_trait]
        pub trait Store: $($port +)* Send + Sync + 'static {
            /// From now on `listener` hears of changes made through this value.
            fn listen(&self, listener: Arc<dyn WakeupListener>);

            /// Passes on the changes that other processes make. Runs until it is dropped, and reconnects by itself.
            async fn relay_wakeups(&self);

            /// Lets go of all connections.
            async fn close(&self);
        }
    };
}

store_ports!(define_ports);
