//! What a store does, once for all databases.
//!
//! Every verb that writes is one transaction of the same shape: lock rows, ask `relais-core` what they become, write them
//! back with the counters, commit, then wake whoever waits. No transaction spans anything but the database.

mod audit;
mod batches;
mod callbacks;
mod change;
mod clock;
mod dependency;
mod dispatch;
mod flow;
mod hand;
mod held;
mod inbox;
mod known;
mod ledger;
mod list;
mod plain;
mod purge;
mod schedule;
mod secrets;
mod submit;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use relais_core::{
    Attempt, AuditEntry, AuditOutcome, AuditPage, Backlog, Batch, BatchId, BatchMade, Buried, CallbackAttempt,
    CallbackFilter, CallbackPage, Change, ClaimRequest, Claimed, ClaimedDispatches, Clerk, ClientKey, Decision,
    Declared, DispatchName, Dispatched, DueCallback, Fired, InstanceKey, InstanceRecord, Joined, LaneChange, Lanes,
    NewBatch, NewInstance, NewTask, Outcome, Page, Passed, PublishedTask, PurgeReport, PurgeRule, QueueDepth,
    QueueShare, Referee, Resend, Resent, RunByHand, ScheduleName, ScheduleRecord, ServiceKey, SessionsOf, Settled,
    Settlement, Store, StoreError, Submission, TakenIn, Task, TaskChange, TaskEvent, TaskFilter, TaskId, Timestamp,
    Wakeup, WakeupListener, Withdrawal,
};

use self::{flow::Limited, held::InHand, ledger::Ledger};
use crate::{
    batches::Batches as _,
    clock::ClockWatch,
    dependency::Dependencies as _,
    encryption::Keys,
    flow::Flows as _,
    outbox::Outbox as _,
    session::{Database, Heard, Session},
};

/// A store, over any database.
pub(crate) struct Verbs<D> {
    database: D,
    /// What signing secrets are encrypted with.
    keys: Keys,
    listeners: RwLock<Vec<Arc<dyn WakeupListener>>>,
    /// Services that somebody waits for to make room, as far as this process knows.
    limited: RwLock<Arc<Limited>>,
    /// What this process has in hand.
    in_hand: Mutex<InHand>,
    /// Services of which somebody else has claimed tasks in the same moment, and when.
    crowded: Mutex<HashMap<ServiceKey, Instant>>,
    clock: ClockWatch,
}

impl<D: Database> Verbs<D> {
    pub(crate) fn new(database: D, keys: Keys) -> Self {
        Self {
            database,
            keys,
            listeners: RwLock::default(),
            limited: RwLock::default(),
            in_hand: Mutex::default(),
            crowded: Mutex::default(),
            clock: ClockWatch::default(),
        }
    }

    /// Wakes those who wait in this process.
    fn wake(&self, wakeup: &Wakeup) {
        self.each_listener(|listener| listener.wake(wakeup));
    }

    /// Whether somebody in this process wants to hear of every change.
    fn wants_changes(&self) -> bool {
        self.listeners.read().unwrap_or_else(PoisonError::into_inner).iter().any(|listener| listener.wants_changes())
    }

    /// Tells them, after the commit.
    fn changed(&self, changes: &[TaskChange]) {
        if !changes.is_empty() {
            self.each_listener(|listener| listener.changed(changes));
        }
    }

    /// The same, of tasks that workers are to leave alone.
    fn withdrawn(&self, tasks: &[Withdrawal]) {
        if !tasks.is_empty() {
            self.each_listener(|listener| listener.withdrawn(tasks));
        }
    }

    fn each_listener(&self, say: impl Fn(&dyn WakeupListener)) {
        for listener in self.listeners.read().unwrap_or_else(PoisonError::into_inner).iter() {
            say(listener.as_ref());
        }
    }

    /// Adds to the counters, tells other processes, commits, wakes this one. Also where nothing was written: a session that is dropped instead
    /// keeps its locks for a moment more, and whoever passes over locked rows would not find them.
    async fn finish(&self, session: D::Session, ledger: Ledger, wakeup: Wakeup) -> Result<(), StoreError> {
        self.finish_telling(session, ledger, wakeup, &[]).await
    }

    /// The same, of a transaction that has told all who wait for these ends. They are forgotten last: whoever notes the same
    /// end anew waits for this transaction from then on, and it must not wait for anybody any more.
    async fn finish_telling(
        &self,
        mut session: D::Session,
        ledger: Ledger,
        mut wakeup: Wakeup,
        told: &[i64],
    ) -> Result<(), StoreError> {
        let accounts = ledger.close();
        if !accounts.batches.is_empty() {
            wakeup.callbacks.extend(Self::count_batches(&mut session, &accounts.batches).await?);
        }
        if !accounts.is_empty() || !wakeup.is_empty() {
            session.account(&accounts, &wakeup).await?;
        }
        if !told.is_empty() {
            session.drop_endings(told).await?;
        }
        session.commit().await?;
        if !wakeup.is_empty() {
            self.wake(&wakeup);
        }
        Ok(())
    }
}

#[async_trait]
impl<D: Database> Store for Verbs<D> {
    async fn submit_many(&self, tasks: Vec<NewTask>) -> Result<Vec<Submission>, StoreError> {
        self.submit(tasks, None).await.map(|(answers, _)| answers)
    }

    async fn submit_and_take(
        &self,
        tasks: Vec<NewTask>,
        request: ClaimRequest,
    ) -> Result<(Vec<Submission>, Vec<Task>), StoreError> {
        if tasks.is_empty() || tasks.iter().any(|task| task.service != request.service) {
            return Ok((self.submit_many(tasks).await?, Vec::new()));
        }
        match request.instance {
            Some(instance) => self.submit_and_take_in_hand(tasks, request, instance).await,
            None => self.submit_and_claim(tasks, request).await,
        }
    }

    async fn find_task(&self, task_id: TaskId) -> Result<Option<Task>, StoreError> {
        let mut task = self.database.find_task(task_id).await?;
        if let Some(task) = task.as_mut().filter(|task| task.links.when.is_some()) {
            task.links.after = self.database.prerequisites(task.id).await?;
        }
        Ok(task)
    }

    async fn settle_dependencies(&self, limit: usize) -> Result<Settled, StoreError> {
        self.settle_some(limit).await
    }

    async fn recheck_dependencies(&self, after: i64, limit: usize) -> Result<Option<i64>, StoreError> {
        self.find_missed(after, limit).await
    }

    async fn make_batch(&self, batch: NewBatch, tasks: Vec<NewTask>) -> Result<BatchMade, StoreError> {
        Self::make_batch(self, batch, tasks).await
    }

    async fn find_batch(&self, batch_id: BatchId) -> Result<Option<Batch>, StoreError> {
        self.database.find_batch(batch_id).await
    }

    async fn list_batches(
        &self,
        client: Option<ClientKey>,
        before: Option<BatchId>,
        limit: usize,
    ) -> Result<Vec<Batch>, StoreError> {
        self.database.list_batches(client, before, limit).await
    }

    async fn close_batch(&self, batch_id: BatchId) -> Result<(), StoreError> {
        Self::close_batch(self, batch_id).await
    }

    async fn purge_batches(&self, finished: Duration, any: Duration, limit: usize) -> Result<u64, StoreError> {
        let mut session = self.database.begin().await?;
        let gone = session.delete_batches(finished, any, limit).await?;
        session.commit().await?;
        Ok(gone)
    }

    async fn list_tasks(&self, filter: TaskFilter) -> Result<Page, StoreError> {
        self.list(filter).await
    }

    async fn count_tasks(&self, filter: TaskFilter) -> Result<u64, StoreError> {
        self.count(filter).await
    }

    async fn claim(&self, requests: Vec<ClaimRequest>) -> Result<Claimed, StoreError> {
        self.claim_tasks(requests).await
    }

    async fn join(&self, instance: NewInstance) -> Result<Joined, StoreError> {
        self.let_join(instance).await
    }

    async fn beat(&self, instance: InstanceKey, silence: Duration) -> Result<bool, StoreError> {
        self.prolong(instance, silence).await
    }

    async fn leave(&self, instance: InstanceKey) -> Result<(), StoreError> {
        self.let_leave(instance).await
    }

    async fn bury(&self) -> Result<Buried, StoreError> {
        self.mind_the_clock().await?;
        self.bury_the_dead().await
    }

    async fn instances(&self) -> Result<Vec<InstanceRecord>, StoreError> {
        self.database.instances().await
    }

    async fn decide(&self, name: String, decision: Decision) -> Result<Option<usize>, StoreError> {
        self.decide_about(&name, decision).await
    }

    async fn record(&self, events: Vec<TaskEvent>) -> Result<Vec<Outcome>, StoreError> {
        self.record_events(events).await
    }

    async fn attempts(&self, id: i64) -> Result<Vec<Attempt>, StoreError> {
        self.database.attempts(id).await
    }

    async fn pass_time(&self, limit: usize) -> Result<Passed, StoreError> {
        self.mind_the_clock().await?;
        self.let_time_pass(limit).await
    }

    async fn claim_dispatches(
        &self,
        services: Vec<ServiceKey>,
        each: usize,
        lease: Duration,
    ) -> Result<ClaimedDispatches, StoreError> {
        self.hold_dispatches(&services, each, lease).await
    }

    async fn settle_dispatches(&self, dispatches: Vec<DispatchName>, outcome: Dispatched) -> Result<(), StoreError> {
        Self::settle_dispatches(self, dispatches, outcome).await
    }

    async fn lease_strays(&self, limit: usize) -> Result<usize, StoreError> {
        self.lease_some_strays(limit).await
    }

    async fn dispatch_again(&self, service: ServiceKey) -> Result<(), StoreError> {
        self.note_dispatch_again(service).await
    }

    async fn refill_dispatches(&self, limit: usize) -> Result<bool, StoreError> {
        self.dispatch_noted(limit).await
    }

    async fn callback_lanes(&self, after: Option<i64>, limit: usize) -> Result<Lanes, StoreError> {
        self.database.callback_lanes(after, limit).await
    }

    async fn claim_callbacks(
        &self,
        lanes: Vec<i64>,
        each: usize,
        lease: Duration,
    ) -> Result<Vec<DueCallback>, StoreError> {
        let mut session = self.database.begin().await?;
        let held = session.hold_callbacks(&lanes, each, lease).await?;
        session.commit().await?;
        Ok(held)
    }

    async fn settle_callbacks(
        &self,
        settlements: Vec<Settlement>,
        lanes: Vec<(i64, LaneChange)>,
    ) -> Result<(), StoreError> {
        self.settle(settlements, lanes).await
    }

    async fn give_up_callbacks(&self, lane: i64, older_than: Duration, limit: usize) -> Result<u64, StoreError> {
        self.give_up(lane, older_than, limit).await
    }

    async fn list_callbacks(&self, filter: CallbackFilter) -> Result<CallbackPage, StoreError> {
        self.page_of_callbacks(filter).await
    }

    async fn callback_attempts(&self, rows: Vec<i64>) -> Result<HashMap<i64, Vec<CallbackAttempt>>, StoreError> {
        let mut attempts: HashMap<i64, Vec<CallbackAttempt>> = HashMap::new();
        for (row, attempt) in self.database.callback_attempts(&rows).await? {
            attempts.entry(row).or_default().push(attempt);
        }
        Ok(attempts)
    }

    async fn resend_callbacks(&self, resend: Resend) -> Result<Resent, StoreError> {
        self.resend(resend).await
    }

    async fn purge(&self, rule: PurgeRule) -> Result<PurgeReport, StoreError> {
        self.purge_batch(rule).await
    }

    async fn tidy(&self, idempotency_age: Duration) -> Result<u64, StoreError> {
        self.tidy_up(idempotency_age).await
    }

    async fn write_audit(&self, entries: Vec<AuditEntry>) -> Result<(), StoreError> {
        self.write_down(entries).await
    }

    async fn begin_audit(&self, entry: AuditEntry) -> Result<i64, StoreError> {
        self.begin_line(entry).await
    }

    async fn settle_audit(&self, line: i64, outcome: Option<AuditOutcome>) -> Result<(), StoreError> {
        self.settle_line(line, outcome).await
    }

    async fn open_session(&self, id: String, operator: String, lasts: Duration) -> Result<(), StoreError> {
        self.sign_in(&id, &operator, lasts).await
    }

    async fn session_is_open(&self, id: String) -> Result<bool, StoreError> {
        self.database.session_is_open(&id).await
    }

    async fn end_sessions(&self, which: SessionsOf) -> Result<u64, StoreError> {
        self.sign_out(&which).await
    }

    async fn tell_workers(&self, process: String, workers: Option<String>) -> Result<(), StoreError> {
        self.tell_roll_call(&process, workers.as_deref()).await
    }

    async fn told_workers(&self, but: String, within: Duration) -> Result<Vec<(String, Duration)>, StoreError> {
        self.hear_roll_calls(&but, within).await
    }

    async fn audit_log(&self, before: Option<i64>, limit: usize) -> Result<AuditPage, StoreError> {
        self.read_log(before, limit).await
    }

    async fn forget_audit(&self, older_than: Duration) -> Result<u64, StoreError> {
        self.forget_log(older_than).await
    }

    async fn take_turn(&self, chore: &str, period: Duration) -> Result<bool, StoreError> {
        let mut session = self.database.begin().await?;
        let mine = session.take_turn(chore, period).await?;
        session.commit().await?;
        Ok(mine)
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        self.database.backlog().await
    }

    async fn queue_depths(&self, services: Vec<ServiceKey>) -> Result<Vec<QueueDepth>, StoreError> {
        self.database.queue_depths(&services).await
    }

    async fn queue_shares(&self, service: ServiceKey) -> Result<Vec<QueueShare>, StoreError> {
        self.database.queue_shares(service).await
    }

    async fn declared(&self) -> Result<Declared, StoreError> {
        let mut declared = self.database.declared().await?;
        self.decrypt(&mut declared)?;
        self.note_limited(&declared);
        Ok(declared)
    }

    async fn declared_version(&self) -> Result<i64, StoreError> {
        self.database.declared_version().await
    }

    async fn declare(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let mut session = self.database.begin().await?;
        // First, so that two declarations take turns instead of meeting half-way.
        session.bump_declared().await?;
        for change in &changes {
            match change {
                Change::Schedule(change) => Self::change_schedule(&mut session, change).await?,
                Change::PutSigningSecret { client_id, secret, overlap, unless_any } => {
                    self.put_secret(&mut session, (client_id, secret), *overlap, *unless_any).await?;
                }
                other => session.declare(other).await?,
            }
        }
        session.note_limits().await?;
        session.note_flows().await?;
        // A service that goes on may have tasks to be claimed.
        let wakeup = Wakeup { declared: true, ..Wakeup::default() };
        self.finish(session, Ledger::default(), wakeup).await
    }

    async fn schedules(&self, names: Vec<ScheduleName>) -> Result<Vec<ScheduleRecord>, StoreError> {
        self.database.schedules(&names).await
    }

    async fn oldest_published(&self, service: ServiceKey) -> Result<Option<PublishedTask>, StoreError> {
        self.database.oldest_published(service).await
    }

    async fn next_run(&self) -> Result<Option<Duration>, StoreError> {
        self.database.next_run().await
    }

    async fn fire_schedules(&self, limit: usize, referee: Arc<dyn Referee>) -> Result<Fired, StoreError> {
        self.fire(limit, referee.as_ref()).await
    }

    async fn run_schedule(&self, name: ScheduleName, task: NewTask) -> Result<RunByHand, StoreError> {
        self.fire_by_hand(&name, task).await
    }

    async fn take_in(&self, limit: usize, clerk: Arc<dyn Clerk>) -> Result<TakenIn, StoreError> {
        self.take_in_inbox(limit, clerk.as_ref()).await
    }

    async fn advance(&self, by: Duration) -> Result<(), StoreError> {
        self.database.advance(by).await?;
        self.wake(&Wakeup::anything());
        Ok(())
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        self.database.ping().await
    }

    fn listen(&self, listener: Arc<dyn WakeupListener>) {
        self.listeners.write().unwrap_or_else(PoisonError::into_inner).push(listener);
    }

    async fn tell(&self, texts: Vec<String>) -> Result<(), StoreError> {
        self.database.tell(&texts).await
    }

    async fn relay_wakeups(&self) {
        self.database
            .hear(&|heard| match heard {
                Heard::Wakeup(wakeup) => self.wake(wakeup),
                Heard::Text(text) => self.each_listener(|listener| listener.told(text)),
                Heard::Listening => self.each_listener(|listener| listener.hears(Ok(()))),
                Heard::Lost(why) => self.each_listener(|listener| listener.hears(Err(why))),
            })
            .await;
    }

    async fn migrate(&self) -> Result<usize, StoreError> {
        let applied = self.database.migrate().await?;
        self.encrypt_all().await?;
        Ok(applied)
    }

    async fn encrypt_secrets(&self) -> Result<u64, StoreError> {
        self.encrypt_all().await
    }

    async fn close(&self) {
        self.database.close().await;
    }
}
