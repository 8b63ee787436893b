//! Revocations: tell workers to stop tasks that were cancelled, timed out or ended otherwise.
//!
//! The store reports revocations after the commit to the process that committed ([`WakeupListener::revoked`]), so
//! nothing is polled. A revocation may be lost, with the broker or before a worker listens. It is sent again when a
//! worker reports on the task without knowing.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use relais_core::{
    Revocation, Service, ServiceKey, Status, TaskBroker, TaskBrokerState, TaskId, Wakeup, WakeupListener,
};
use relais_protocol::worker::{MAX_MESSAGES, OutcomeKind, StopMessage, StopOutcome};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use super::mailbox;
use crate::Engine;

/// How many transactions may wait. What is beyond is sent when a worker reports on the task.
const MOST_WAITING: usize = 1024;

/// How long until a revocation of the same task is repeated, however often its worker reports.
const AGAIN: Duration = Duration::from_secs(2);

/// How long to wait for a lost connection. Meanwhile revocations wait too.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many repeated revocations are remembered.
const MOST_REMEMBERED: usize = 20_000;

/// Receives revocations from the store.
struct RevocationListener(mpsc::Sender<Vec<Revocation>>);

impl WakeupListener for RevocationListener {
    fn wake(&self, _: &Wakeup) {}

    fn revoked(&self, tasks: &[Revocation]) {
        let _ = self.0.try_send(tasks.to_vec());
    }
}

/// Sends revocations from now on.
pub(super) fn start(engine: &Engine, task_broker: &Arc<dyn TaskBroker>) {
    let (tell, revoked) = mpsc::channel(MOST_WAITING);
    engine.0.store.listen(Arc::new(RevocationListener(tell)));
    engine.spawn(run(engine.clone(), Arc::clone(task_broker), revoked));
}

async fn run(engine: Engine, task_broker: Arc<dyn TaskBroker>, mut revoked: mpsc::Receiver<Vec<Revocation>>) {
    let mut reminders = Reminders::default();
    let mut gathered = Vec::new();
    while let Some(1..) = engine.0.closing.run_until_cancelled(revoked.recv_many(&mut gathered, MOST_WAITING)).await {
        let mut of_services: BTreeMap<ServiceKey, HashSet<Revocation>> = BTreeMap::new();
        for task in gathered.drain(..).flatten() {
            of_services.entry(task.service).or_default().insert(task);
        }
        let Ok(snapshot) = engine.snapshot() else { continue };
        let deadline = Instant::now() + PATIENCE;
        for (service, tasks) in of_services {
            let Some(service) = snapshot.declared.service_by_key(service) else { continue };
            if !service.transport.is_brokered() {
                continue;
            }
            let tasks = tasks.into_iter().filter(|task| task.fresh || reminders.is_due(task)).map(outcome);
            tell(&engine, task_broker.as_ref(), deadline, service, &tasks.collect::<Vec<_>>()).await;
        }
    }
}

/// Sends revocations to the workers of a service.
async fn tell(
    engine: &Engine,
    task_broker: &dyn TaskBroker,
    deadline: Instant,
    service: &Service,
    outcomes: &[StopOutcome],
) {
    for outcomes in outcomes.chunks(MAX_MESSAGES) {
        // This process alone may have lost its connection. If the broker is away, its workers are losing their tasks
        // anyway.
        if task_broker.state() != TaskBrokerState::Up {
            let back = timeout_at(deadline, task_broker.until_up());
            let Some(Ok(())) = engine.0.closing.run_until_cancelled(back).await else { return };
        }
        // Texts and numbers always can be written.
        let body = serde_json::to_vec(&StopMessage { outcomes: outcomes.to_vec() }).unwrap_or_default();
        match task_broker.announce(&mailbox(service), body).await {
            Ok(()) => {
                let told = metrics::counter!("relais_stops_told_total", "service" => service.name.to_string());
                told.increment(outcomes.len() as u64);
            }
            Err(error) => {
                tracing::debug!(service = %service.name, %error, "its workers could not be told to stop");
                return;
            }
        }
    }
}

fn outcome(task: Revocation) -> StopOutcome {
    let outcome = match task.status {
        Status::Cancelled => OutcomeKind::Cancelled,
        Status::Success | Status::Failure => OutcomeKind::Ended,
        Status::Waiting | Status::Pending | Status::InProgress => OutcomeKind::Lost,
    };
    StopOutcome { task_id: task.task_id.to_string(), outcome, revision: task.revision }
}

/// The revocations that were repeated lately.
struct Reminders {
    lately: HashSet<(TaskId, u64)>,
    before: HashSet<(TaskId, u64)>,
    since: Instant,
}

impl Default for Reminders {
    fn default() -> Self {
        Self { lately: HashSet::new(), before: HashSet::new(), since: Instant::now() }
    }
}

impl Reminders {
    /// Whether it is time to repeat the revocation of a task; if so, that counts as done.
    fn is_due(&mut self, task: &Revocation) -> bool {
        if self.since.elapsed() >= AGAIN || self.lately.len() >= MOST_REMEMBERED {
            let idle = self.since.elapsed() >= 2 * AGAIN;
            self.before = std::mem::take(&mut self.lately);
            if idle {
                self.before.clear();
            }
            self.since = Instant::now();
        }
        let name = (task.task_id, task.revision);
        !self.before.contains(&name) && self.lately.insert(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revocation(revision: u64) -> Revocation {
        let task_id = TaskId::parse("019a0000-0000-7000-8000-000000000001").unwrap();
        Revocation { task_id, service: ServiceKey(1), status: Status::Cancelled, revision, fresh: false }
    }

    #[tokio::test(start_paused = true)]
    async fn revocations_are_repeated_at_intervals() {
        let mut reminders = Reminders::default();
        assert!(reminders.is_due(&revocation(1)) && !reminders.is_due(&revocation(1)));
        assert!(reminders.is_due(&revocation(2)), "it was given up once more");
        tokio::time::advance(AGAIN).await;
        assert!(!reminders.is_due(&revocation(1)));
        tokio::time::advance(AGAIN).await;
        assert!(reminders.is_due(&revocation(1)));
    }

    #[test]
    fn a_revocation_has_the_outcome_that_http_would_answer() {
        for (status, kind) in [
            (Status::Cancelled, OutcomeKind::Cancelled),
            (Status::Failure, OutcomeKind::Ended),
            (Status::Success, OutcomeKind::Ended),
            (Status::Waiting, OutcomeKind::Lost),
        ] {
            assert_eq!(outcome(Revocation { status, ..revocation(1) }).outcome, kind);
        }
    }
}
