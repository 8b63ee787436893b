//! Taking tasks in.

use std::collections::{BTreeSet, HashMap};

use relais_core::{
    Admission, ClientKey, Milestone, NewTask, Refusal, Room, ServiceKey, State, StoreError, Submission, Submitted,
    TaskChange, Wakeup,
};

use super::{Verbs, ledger::Ledger, plain};
use crate::session::{Database, InsertedTask, KnownKey, Session};

impl<D: Database> Verbs<D> {
    /// One transaction for the whole batch: lock the queues, count the room, insert, count.
    pub(super) async fn submit(&self, mut tasks: Vec<NewTask>) -> Result<Vec<Submission>, StoreError> {
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        tasks.iter_mut().for_each(plain::submission);
        if let Some(answers) = self.submit_at_once(&tasks).await? {
            return Ok(answers);
        }
        let mut session = self.database.begin().await?;
        let services: Vec<ServiceKey> =
            tasks.iter().map(|task| task.service).collect::<BTreeSet<_>>().into_iter().collect();
        let queues = session.lock_queues(&services).await?;
        // A second statement on purpose: it sees what was committed while the first one waited for the locks.
        let facts = session.queue_facts(&tasks).await?;

        let brokered: BTreeSet<ServiceKey> =
            queues.iter().filter(|queue| queue.brokered).map(|queue| queue.service).collect();
        let mut next: HashMap<ServiceKey, i64> =
            queues.into_iter().map(|queue| (queue.service, queue.arrived)).collect();
        let mut admission = Admission::default();
        for (service, departed, capacity) in facts.queues {
            let Some(arrived) = next.get(&service) else { continue };
            admission.set_service(service, room(arrived - departed, capacity));
        }
        for (service, client, pending, capacity) in facts.shares {
            admission.set_client(service, client, room(pending, capacity));
        }
        let mut keys = Keys::new(facts.known);

        let mut answers = Vec::with_capacity(tasks.len());
        let mut inserted = Vec::with_capacity(tasks.len());
        let mut ledger = Ledger::default();
        for task in tasks {
            if let Some(answer) = keys.answer(&task) {
                answers.push(answer);
                continue;
            }
            let (service, client) = (task.service, task.client);
            answers.push(admission.admit(service, client).map(|position| {
                keys.remember(&task, position);
                ledger.arrived(service, client);
                let seq = next.entry(service).or_default();
                let submitted = Submitted { task_id: task.task_id, position, replayed: false };
                inserted.push(InsertedTask { task, seq: *seq, position, brokered: brokered.contains(&service) });
                *seq += 1;
                submitted
            }));
        }
        if inserted.is_empty() {
            // Nothing was written: a commit would only cost time.
            return Ok(answers);
        }
        session.insert_tasks(&inserted).await?;
        let wakeup = new_work(inserted.iter().map(|inserted| &inserted.task));
        self.finish(session, ledger, wakeup).await?;
        if self.wants_changes() {
            self.changed(&inserted.iter().map(|inserted| submitted(&inserted.task)).collect::<Vec<_>>());
        }
        Ok(answers)
    }

    /// Most batches are for one service that has no capacity to be counted: there is nothing to decide, and a database may
    /// take them in one statement.
    async fn submit_at_once(&self, tasks: &[NewTask]) -> Result<Option<Vec<Submission>>, StoreError> {
        let service = tasks[0].service;
        if tasks.iter().any(|task| task.service != service || task.idempotency.is_some()) {
            return Ok(None);
        }
        let wakeup = new_work(tasks);
        let Some(first) = self.database.submit_unlimited(tasks, &wakeup).await? else { return Ok(None) };
        self.wake(&wakeup);
        if self.wants_changes() {
            self.changed(&tasks.iter().map(submitted).collect::<Vec<_>>());
        }
        let answer =
            |(task, position): (&NewTask, u64)| Ok(Submitted { task_id: task.task_id, position, replayed: false });
        Ok(Some(tasks.iter().zip(first..).map(answer).collect()))
    }
}

/// Tasks that their caller does not dispatch are somebody else's, if they have to be dispatched at all.
fn new_work<'a>(tasks: impl IntoIterator<Item = &'a NewTask>) -> Wakeup {
    let (mut work, mut dispatch) = (BTreeSet::new(), BTreeSet::new());
    for task in tasks {
        work.insert(task.service);
        if task.dispatch.as_ref().is_some_and(|publisher| publisher.held.is_zero()) {
            dispatch.insert(task.service);
        }
    }
    Wakeup { work: work.into_iter().collect(), dispatch: dispatch.into_iter().collect(), ..Wakeup::default() }
}

/// A task that was just taken in.
fn submitted(task: &NewTask) -> TaskChange {
    TaskChange {
        task_id: task.task_id,
        service: task.service,
        client: task.client,
        milestone: Milestone::Submitted,
        state: State::pending(),
        submitted: None,
        correlation_id: task.correlation_id.clone(),
    }
}

fn room(pending: i64, capacity: Option<u32>) -> Room {
    Room { pending: u64::try_from(pending).unwrap_or(0), capacity: capacity.map(u64::from) }
}

/// The idempotency keys that are known: those of the store, and those of the batch itself so far.
struct Keys(HashMap<(ServiceKey, ClientKey, String), KnownKey>);

impl Keys {
    fn new(known: Vec<KnownKey>) -> Self {
        Self(known.into_iter().map(|known| ((known.service, known.client, known.key.clone()), known)).collect())
    }

    /// The first answer again, or a refusal, if the task's key is known.
    fn answer(&self, task: &NewTask) -> Option<Submission> {
        let given = task.idempotency.as_ref()?;
        let known = self.0.get(&(task.service, task.client, given.key.clone()))?;
        Some(if known.fingerprint == given.fingerprint {
            Ok(Submitted { task_id: known.task_id, position: known.position, replayed: true })
        } else {
            Err(Refusal::KeyReused)
        })
    }

    fn remember(&mut self, task: &NewTask, position: u64) {
        let Some(given) = &task.idempotency else { return };
        let known = KnownKey {
            service: task.service,
            client: task.client,
            key: given.key.clone(),
            fingerprint: given.fingerprint.clone(),
            task_id: task.task_id,
            position,
        };
        self.0.insert((task.service, task.client, given.key.clone()), known);
    }
}
