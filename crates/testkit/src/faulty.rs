//! A store that fails on purpose: any call may be refused, done without an answer, or broken off half-way.
//!
//! Whoever uses a store through its port must live with all three: an error never says whether a write was done. The plan
//! is a seed, and what happens to the n-th call of a verb depends on nothing else, so that a plan can be tried again.

use std::{
    collections::{BTreeMap, HashMap},
    future::{Future, poll_fn},
    ops::AddAssign,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use async_trait::async_trait;
use relais_core::{
    Attempt, AuditEntry, AuditOutcome, AuditPage, Backlog, Batch, BatchId, BatchMade, Buried, CallbackAttempt,
    CallbackFilter, CallbackPage, Change, ClaimRequest, Claimed, ClaimedDispatches, Clerk, ClientKey, Decision,
    Declared, DispatchName, Dispatched, DueCallback, Fired, InstanceKey, InstanceRecord, Joined, LaneChange, Lanes,
    NewBatch, NewInstance, NewTask, Outcome, Page, Passed, PublishedTask, PurgeReport, PurgeRule, QueueDepth,
    QueueShare, Referee, Resend, Resent, RunByHand, ScheduleName, ScheduleRecord, ServiceKey, SessionsOf, Settled,
    Settlement, Store, StoreError, Submission, TakenIn, Task, TaskEvent, TaskFilter, TaskId, Timestamp, WakeupListener,
};

/// A call that is broken off has been given at most so many chances to go on.
const MOST_POLLS: u64 = 12;

/// What processes that do tasks themselves are given is counted apart.
const CLAIM_IN_HAND: &str = "claim_in_hand";
const SUBMIT_IN_HAND: &str = "submit_and_take_in_hand";

/// What a process is given and not told of is known to nobody but the driver, so these are broken off where others are not
/// answered.
const IN_HAND: [&str; 2] = [CLAIM_IN_HAND, SUBMIT_IN_HAND];

/// How many calls of a thousand fail, and how.
#[derive(Debug, Clone, Copy)]
pub struct FaultPlan {
    /// What all else follows from.
    pub seed: u64,
    /// Not made at all.
    pub refused: u64,
    /// Made, and whoever made it is told that it may have failed.
    pub unanswered: u64,
    /// Broken off half-way, as by a caller that has waited long enough.
    pub broken_off: u64,
    /// Only calls of this verb, where one is given.
    pub only: Option<&'static str>,
}

/// What became of the calls of one verb, or of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultCount {
    /// All calls while faults were on.
    pub calls: u64,
    /// Not made at all.
    pub refused: u64,
    /// Made, and not answered.
    pub unanswered: u64,
    /// Broken off.
    pub broken_off: u64,
}

impl FaultCount {
    /// All that went wrong.
    pub const fn faults(&self) -> u64 {
        self.refused + self.unanswered + self.broken_off
    }
}

impl AddAssign for FaultCount {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.refused += other.refused;
        self.unanswered += other.unanswered;
        self.broken_off += other.broken_off;
    }
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Refused,
    Unanswered,
    BrokenOff { polls: u64 },
}

/// A store that fails on purpose while its faults are on. They are off at first.
pub struct Faulty {
    store: Arc<dyn Store>,
    plan: FaultPlan,
    on: AtomicBool,
    counts: Mutex<BTreeMap<&'static str, FaultCount>>,
}

impl Faulty {
    /// Wraps a store.
    pub fn new(store: Arc<dyn Store>, plan: FaultPlan) -> Arc<Self> {
        Arc::new(Self { store, plan, on: AtomicBool::new(false), counts: Mutex::default() })
    }

    /// Calls fail from now on, or do not.
    pub fn switch(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// What became of the calls so far, by verb.
    pub fn counts(&self) -> BTreeMap<&'static str, FaultCount> {
        self.book().clone()
    }

    /// What became of all calls so far.
    pub fn total(&self) -> FaultCount {
        let mut total = FaultCount::default();
        self.book().values().for_each(|count| total += *count);
        total
    }

    fn book(&self) -> MutexGuard<'_, BTreeMap<&'static str, FaultCount>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, verb: &'static str, add: impl FnOnce(&mut FaultCount)) {
        add(self.book().entry(verb).or_default());
    }

    /// What happens to the next call of a verb.
    fn next(&self, verb: &'static str) -> Option<Fault> {
        if !self.on.load(Ordering::Relaxed) || self.plan.only.is_some_and(|only| only != verb) {
            return None;
        }
        let mut number = 0;
        self.count(verb, |count| {
            number = count.calls;
            count.calls += 1;
        });
        let name = verb.bytes().fold(0, |name, byte| mix(name ^ u64::from(byte)));
        let chance = mix(mix(self.plan.seed) ^ name ^ mix(number));
        let FaultPlan { refused, unanswered, broken_off, .. } = self.plan;
        match chance % 1000 {
            at if at < refused => Some(Fault::Refused),
            at if at < refused + unanswered && !IN_HAND.contains(&verb) => Some(Fault::Unanswered),
            at if at < refused + unanswered + broken_off => {
                Some(Fault::BrokenOff { polls: (chance >> 32) % MOST_POLLS })
            }
            _ => None,
        }
    }

    async fn disturb<T>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        match self.next(verb) {
            None => call.await,
            Some(Fault::Refused) => {
                self.count(verb, |count| count.refused += 1);
                Err(away("refused on purpose"))
            }
            Some(Fault::Unanswered) => {
                call.await?;
                self.count(verb, |count| count.unanswered += 1);
                Err(away("done, and not answered on purpose"))
            }
            Some(Fault::BrokenOff { polls }) => {
                let done = break_off(call, polls).await;
                done.unwrap_or_else(|| {
                    self.count(verb, |count| count.broken_off += 1);
                    Err(away("broken off on purpose"))
                })
            }
        }
    }
}

/// Gives a call so many chances to go on, and then breaks it off. None if it had not ended by then.
pub async fn break_off<T>(call: impl Future<Output = T>, polls: u64) -> Option<T> {
    let (mut call, mut left) = (pin!(call), polls);
    poll_fn(|context| match call.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

fn away(why: &str) -> StoreError {
    StoreError::Unavailable(why.into())
}

/// One step of SplitMix64.
const fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

macro_rules! faulty {
    ($($verb:ident($($name:ident: $type:ty),*) -> $output:ty;)*) => {
        #[async_trait]
        impl Store for Faulty {
            $(async fn $verb(&self, $($name: $type),*) -> Result<$output, StoreError> {
                self.disturb(stringify!($verb), self.store.$verb($($name),*)).await
            })*

            async fn claim(&self, requests: Vec<ClaimRequest>) -> Result<Claimed, StoreError> {
                let in_hand = requests.iter().any(|request| request.instance.is_some());
                self.disturb(if in_hand { CLAIM_IN_HAND } else { "claim" }, self.store.claim(requests)).await
            }

            async fn submit_and_take(
                &self,
                tasks: Vec<NewTask>,
                request: ClaimRequest,
            ) -> Result<(Vec<Submission>, Vec<Task>), StoreError> {
                let verb = if request.instance.is_some() { SUBMIT_IN_HAND } else { "submit_and_take" };
                self.disturb(verb, self.store.submit_and_take(tasks, request)).await
            }

            fn listen(&self, listener: Arc<dyn WakeupListener>) {
                self.store.listen(listener);
            }

            async fn relay_wakeups(&self) {
                self.store.relay_wakeups().await;
            }

            async fn close(&self) {
                self.store.close().await;
            }
        }
    };
}

faulty! {
    submit_many(tasks: Vec<NewTask>) -> Vec<Submission>;
    find_task(task_id: TaskId) -> Option<Task>;
    list_tasks(filter: TaskFilter) -> Page;
    count_tasks(filter: TaskFilter) -> u64;
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
    migrate() -> usize;
    encrypt_secrets() -> u64;
}
