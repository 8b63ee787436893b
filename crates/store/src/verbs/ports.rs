//! The ports of the store, on any database. A verb is done where it is defined, under the same name: what takes more than a
//! few lines is a method of [`Verbs`] in the file of its domain.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use relais_core::*;

use super::{Verbs, ledger::Ledger};
use crate::{
    batches::statements::Batches as _,
    callbacks::statements::CallbackQueue as _,
    flow::statements::Flows as _,
    session::{Database, Heard, Session},
};

#[async_trait]
impl<D: Database> TaskStore for Verbs<D> {
    async fn submit_many(&self, tasks: Vec<NewTask>) -> Result<Vec<Submission>, StoreError> {
        self.submit(tasks, None).await.map(|(answers, _)| answers)
    }

    async fn find_task(&self, task_id: TaskId) -> Result<Option<Task>, StoreError> {
        let mut task = self.database.find_task(task_id).await?;
        if let Some(task) = task.as_mut().filter(|task| task.links.when.is_some()) {
            task.links.after = self.database.prerequisites(task.id).await?;
        }
        Ok(task)
    }

    async fn list_tasks(&self, filter: TaskFilter) -> Result<Page, StoreError> {
        self.list_tasks(filter).await
    }

    async fn count_tasks(&self, filter: TaskFilter) -> Result<u64, StoreError> {
        self.count_tasks(filter).await
    }

    async fn list_attempts(&self, id: i64) -> Result<Vec<Attempt>, StoreError> {
        self.database.attempts(id).await
    }

    async fn record_events(&self, events: Vec<TaskEvent>) -> Result<Vec<Outcome>, StoreError> {
        self.record_events(events).await
    }

    async fn fire_timers(&self, limit: usize) -> Result<TimersFired, StoreError> {
        self.mind_the_clock().await?;
        self.fire_timers(limit).await
    }

    async fn resolve_dependencies(&self, limit: usize) -> Result<DependenciesResolved, StoreError> {
        self.resolve_dependencies(limit).await
    }

    async fn recheck_dependencies(&self, after: i64, limit: usize) -> Result<Option<i64>, StoreError> {
        self.recheck_dependencies(after, limit).await
    }

    async fn collect_submissions(
        &self,
        limit: usize,
        validator: Arc<dyn SubmissionValidator>,
    ) -> Result<CollectedSubmissions, StoreError> {
        self.collect_submissions(limit, validator.as_ref()).await
    }

    async fn purge_tasks(&self, rule: PurgeRule) -> Result<PurgeReport, StoreError> {
        self.purge_tasks(rule).await
    }

    async fn purge_keys(&self, idempotency_age: Duration) -> Result<u64, StoreError> {
        self.purge_keys(idempotency_age).await
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
}

#[async_trait]
impl<D: Database> ClaimStore for Verbs<D> {
    async fn claim_tasks(&self, requests: Vec<ClaimRequest>) -> Result<Claimed, StoreError> {
        self.claim_tasks(requests).await
    }

    async fn submit_and_claim(
        &self,
        tasks: Vec<NewTask>,
        request: ClaimRequest,
    ) -> Result<(Vec<Submission>, Vec<Task>), StoreError> {
        if tasks.is_empty() || tasks.iter().any(|task| task.service != request.service) {
            return Ok((self.submit_many(tasks).await?, Vec::new()));
        }
        match request.instance {
            Some(instance) => self.submit_and_lease(tasks, request, instance).await,
            None => self.submit_and_claim(tasks, request).await,
        }
    }
}

#[async_trait]
impl<D: Database> InstanceStore for Verbs<D> {
    async fn register_instance(&self, instance: NewInstance) -> Result<Registration, StoreError> {
        self.register_instance(instance).await
    }

    async fn heartbeat_instance(&self, instance: InstanceKey, silence: Duration) -> Result<bool, StoreError> {
        self.heartbeat_instance(instance, silence).await
    }

    async fn deregister_instance(&self, instance: InstanceKey) -> Result<(), StoreError> {
        self.deregister_instance(instance).await
    }

    async fn reap_instances(&self) -> Result<ReapedInstances, StoreError> {
        self.mind_the_clock().await?;
        self.reap_instances().await
    }

    async fn list_instances(&self) -> Result<Vec<InstanceRecord>, StoreError> {
        self.database.instances().await
    }

    async fn resolve_instance(&self, name: String, decision: Decision) -> Result<Option<usize>, StoreError> {
        self.resolve_instance(&name, decision).await
    }
}

#[async_trait]
impl<D: Database> DispatchStore for Verbs<D> {
    async fn claim_dispatches(
        &self,
        services: Vec<ServiceKey>,
        each: usize,
        lease: Duration,
    ) -> Result<ClaimedDispatches, StoreError> {
        self.claim_dispatches(&services, each, lease).await
    }

    async fn complete_dispatches(&self, dispatches: Vec<DispatchName>, outcome: Dispatched) -> Result<(), StoreError> {
        Self::complete_dispatches(self, dispatches, outcome).await
    }

    async fn lease_orphans(&self, limit: usize) -> Result<usize, StoreError> {
        self.lease_orphans(limit).await
    }

    async fn redispatch_service(&self, service: ServiceKey) -> Result<(), StoreError> {
        self.redispatch_service(service).await
    }

    async fn refill_dispatches(&self, limit: usize) -> Result<bool, StoreError> {
        self.refill_dispatches(limit).await
    }

    async fn oldest_published(&self, service: ServiceKey) -> Result<Option<PublishedTask>, StoreError> {
        self.database.oldest_published(service).await
    }
}

#[async_trait]
impl<D: Database> CallbackStore for Verbs<D> {
    async fn list_callback_lanes(&self, after: Option<i64>, limit: usize) -> Result<CallbackLanePage, StoreError> {
        self.database.list_callback_lanes(after, limit).await
    }

    async fn claim_callbacks(
        &self,
        lanes: Vec<i64>,
        each: usize,
        lease: Duration,
    ) -> Result<Vec<DueCallback>, StoreError> {
        let mut session = self.database.begin().await?;
        let held = session.claim_callbacks(&lanes, each, lease).await?;
        session.commit().await?;
        Ok(held)
    }

    async fn complete_callbacks(
        &self,
        settlements: Vec<Settlement>,
        lanes: Vec<(i64, LaneChange)>,
    ) -> Result<(), StoreError> {
        self.complete_callbacks(settlements, lanes).await
    }

    async fn expire_callbacks(&self, lane: i64, older_than: Duration, limit: usize) -> Result<u64, StoreError> {
        self.expire_callbacks(lane, older_than, limit).await
    }

    async fn list_callbacks(&self, filter: CallbackFilter) -> Result<CallbackPage, StoreError> {
        self.list_callbacks(filter).await
    }

    async fn list_callback_attempts(&self, rows: Vec<i64>) -> Result<HashMap<i64, Vec<CallbackAttempt>>, StoreError> {
        let mut attempts: HashMap<i64, Vec<CallbackAttempt>> = HashMap::new();
        for (row, attempt) in self.database.list_callback_attempts(&rows).await? {
            attempts.entry(row).or_default().push(attempt);
        }
        Ok(attempts)
    }

    async fn resend_callbacks(&self, resend: Resend) -> Result<Resent, StoreError> {
        self.resend_callbacks(resend).await
    }
}

#[async_trait]
impl<D: Database> ScheduleStore for Verbs<D> {
    async fn list_schedules(&self, names: Vec<ScheduleName>) -> Result<Vec<ScheduleRecord>, StoreError> {
        self.database.schedules(&names).await
    }

    async fn next_schedule_run(&self) -> Result<Option<Duration>, StoreError> {
        self.database.next_schedule_run().await
    }

    async fn fire_schedules(
        &self,
        limit: usize,
        validator: Arc<dyn ScheduleValidator>,
    ) -> Result<FiredSchedules, StoreError> {
        self.fire_schedules(limit, validator.as_ref()).await
    }

    async fn run_schedule(&self, name: ScheduleName, task: NewTask) -> Result<RunByHand, StoreError> {
        self.run_schedule(&name, task).await
    }
}

#[async_trait]
impl<D: Database> BatchStore for Verbs<D> {
    async fn create_batch(&self, batch: NewBatch, tasks: Vec<NewTask>) -> Result<BatchCreated, StoreError> {
        Self::create_batch(self, batch, tasks).await
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
}

#[async_trait]
impl<D: Database> DeclarationStore for Verbs<D> {
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

    async fn encrypt_secrets(&self) -> Result<u64, StoreError> {
        self.encrypt_secrets().await
    }
}

#[async_trait]
impl<D: Database> OperatorStore for Verbs<D> {
    async fn write_audit(&self, entries: Vec<AuditEntry>) -> Result<(), StoreError> {
        self.write_audit(entries).await
    }

    async fn begin_audit(&self, entry: AuditEntry) -> Result<i64, StoreError> {
        self.begin_audit(entry).await
    }

    async fn complete_audit(&self, line: i64, outcome: Option<AuditOutcome>) -> Result<(), StoreError> {
        self.complete_audit(line, outcome).await
    }

    async fn list_audit(&self, before: Option<i64>, limit: usize) -> Result<AuditPage, StoreError> {
        self.list_audit(before, limit).await
    }

    async fn purge_audit(&self, older_than: Duration) -> Result<u64, StoreError> {
        self.purge_audit(older_than).await
    }

    async fn open_session(&self, id: String, operator: String, lasts: Duration) -> Result<(), StoreError> {
        self.open_session(&id, &operator, lasts).await
    }

    async fn session_is_open(&self, id: String) -> Result<bool, StoreError> {
        self.database.session_is_open(&id).await
    }

    async fn end_sessions(&self, which: SessionsOf) -> Result<u64, StoreError> {
        self.end_sessions(&which).await
    }

    async fn publish_workers(&self, process: String, workers: Option<String>) -> Result<(), StoreError> {
        self.publish_workers(&process, workers.as_deref()).await
    }

    async fn list_published_workers(
        &self,
        except: String,
        within: Duration,
    ) -> Result<Vec<(String, Duration)>, StoreError> {
        self.list_published_workers(&except, within).await
    }
}

#[async_trait]
impl<D: Database> MaintenanceStore for Verbs<D> {
    async fn take_turn(&self, chore: &str, period: Duration) -> Result<bool, StoreError> {
        let mut session = self.database.begin().await?;
        let mine = session.take_turn(chore, period).await?;
        session.commit().await?;
        Ok(mine)
    }

    async fn advance(&self, by: Duration) -> Result<(), StoreError> {
        self.database.advance(by).await?;
        self.wake(&Wakeup::anything());
        Ok(())
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        self.database.ping().await
    }

    async fn broadcast(&self, texts: Vec<String>) -> Result<(), StoreError> {
        self.database.tell(&texts).await
    }

    async fn migrate(&self) -> Result<usize, StoreError> {
        let applied = self.database.migrate().await?;
        self.encrypt_secrets().await?;
        Ok(applied)
    }
}

#[async_trait]
impl<D: Database> Store for Verbs<D> {
    fn listen(&self, listener: Arc<dyn WakeupListener>) {
        self.listeners.write().unwrap_or_else(PoisonError::into_inner).push(listener);
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

    async fn close(&self) {
        self.database.close().await;
    }
}
