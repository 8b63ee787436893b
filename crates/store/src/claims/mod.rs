//! Claims: workers take pending tasks, and the claim starts them.
//!
//! Claims on services whose flow is limited are in `flow/`, claims of instances in `instances/`.

pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use std::{
    collections::{BTreeMap, HashMap},
    sync::PoisonError,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use relais_core::{
    ClaimRequest, ClaimStore, Claimed, Event, NewTask, Outcome, ServiceKey, State, StoreError, Submission, Task,
    TaskStore as _, Timestamp,
};

use crate::{
    claims::statements::{ClaimRows as _, LockedPending, UnlockedTask},
    counters::ledger::Ledger,
    session::Database,
    submit::statements::{InsertedTask, SubmitRows as _},
    submit::{are_plain, in_a_row, new_work, submitted},
    tasks::changes::{Changes, Plain},
    text,
    verbs::Verbs,
};

/// Claims of up to this many tasks do not lock them first. For larger claims the round trips do not matter.
const FEW: usize = 16;

/// For this long after a conflict with another claim, tasks are locked first, passing over locked ones.
const CROWDED: Duration = Duration::from_secs(1);

/// Pending tasks that a claim has found, by service, in the order in which claims get them.
pub(crate) type Found = HashMap<ServiceKey, (Timestamp, std::vec::IntoIter<LockedPending>)>;

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

impl<D: Database> Verbs<D> {
    /// Claims pending tasks. Each service is asked once, for all requests together.
    pub(crate) async fn claim_tasks(&self, mut requests: Vec<ClaimRequest>) -> Result<Claimed, StoreError> {
        if requests.iter().any(|request| request.instance.is_some()) {
            let mut all = Claimed::default();
            for request in requests.drain(..) {
                let claimed = match request.instance {
                    Some(instance) => self.claim_for_instance(request, instance).await?,
                    None => Box::pin(self.claim_tasks(vec![request])).await?,
                };
                all.tasks.extend(claimed.tasks);
                all.again = all.again.into_iter().chain(claimed.again).min();
            }
            return Ok(all);
        }
        let mut wished: BTreeMap<ServiceKey, usize> = BTreeMap::new();
        for request in &requests {
            let wished = wished.entry(request.service).or_default();
            *wished = wished.saturating_add(request.max);
        }
        if let [(&service, &limit)] = wished.iter().collect::<Vec<_>>()[..]
            && limit <= FEW
            && let Some(claimed) = self.claim_unlocked(&requests, service, limit).await?
        {
            return Ok(claimed);
        }
        let mut session = self.database.begin().await?;
        let mut found = HashMap::new();
        let mut again = None;
        for (service, limit) in wished {
            let (now, rows) = match session.lock_pending(service, limit, false).await? {
                Some(locked) => (locked.now, locked.rows),
                None => {
                    let flowing = Self::lock_flowing(&mut session, service, limit).await?;
                    again = again.into_iter().chain(flowing.again).min();
                    (flowing.now, flowing.rows)
                }
            };
            found.insert(service, (now, rows.into_iter()));
        }
        let mut changes = Changes::new(self.wants_changes(), self.limited());
        let answers = assign(&requests, &mut found, &mut changes)?;
        self.write(session, changes).await?;
        Ok(Claimed { tasks: answers, again })
    }

    /// Claims a few pending tasks of a service without locking them first: reads them, and writes them if they have not
    /// changed. That is two round trips instead of five. None if another claim was faster, or if more than the tasks
    /// must be written; then nothing was done.
    async fn claim_unlocked(
        &self,
        requests: &[ClaimRequest],
        service: ServiceKey,
        limit: usize,
    ) -> Result<Option<Claimed>, StoreError> {
        if self.is_crowded(service) {
            return Ok(None);
        }
        let Some(pending) = self.database.pending_unlocked(service, limit).await? else { return Ok(None) };
        if pending.rows.is_empty() {
            return Ok(Some(Claimed { tasks: vec![Vec::new(); requests.len()], again: None }));
        }
        let known: HashMap<i64, u64> =
            pending.rows.iter().map(|row| (row.locked.id, row.locked.state.revision)).collect();
        let mut found = HashMap::from([(service, (pending.now, pending.rows.into_iter()))]);
        let mut changes = Changes::new(self.wants_changes(), self.limited());
        let tasks = assign(requests, &mut found, &mut changes)?;
        let Some(Plain { written, accounts, wakeup, heard }) = changes.plain() else { return Ok(None) };
        let written: Vec<UnlockedTask> = written
            .into_values()
            .filter_map(|written| Some(UnlockedTask { known: *known.get(&written.id)?, written }))
            .collect();
        if !self.database.write_unlocked(service, &written, &accounts, &wakeup).await? {
            self.note_crowded(service);
            return Ok(None);
        }
        self.wake(&wakeup);
        self.changed(&heard);
        Ok(Some(Claimed { tasks, again: None }))
    }

    /// Whether a claim on this service has met another one a moment ago.
    fn is_crowded(&self, service: ServiceKey) -> bool {
        let crowded = self.crowded.lock().unwrap_or_else(PoisonError::into_inner);
        crowded.get(&service).is_some_and(|since| since.elapsed() < CROWDED)
    }

    fn note_crowded(&self, service: ServiceKey) {
        self.crowded.lock().unwrap_or_else(PoisonError::into_inner).insert(service, Instant::now());
    }

    /// Submits tasks while a worker waits for some, and claims tasks for it in the same transaction.
    pub(crate) async fn submit_and_claim(
        &self,
        mut tasks: Vec<NewTask>,
        request: ClaimRequest,
    ) -> Result<(Vec<Submission>, Vec<Task>), StoreError> {
        tasks.iter_mut().for_each(text::submission);
        let mut changes = Changes::new(self.wants_changes(), self.limited());
        let mut session = self.database.begin().await?;
        let first = match are_plain(&tasks) {
            true => session.insert_unlimited(&tasks).await?,
            false => None,
        };
        let answers = match first {
            Some(first) => {
                let heard = tasks.iter().map(|task| submitted(task, State::pending()));
                changes.arrived(Ledger::default(), new_work(&tasks), heard);
                in_a_row(&tasks, first)
            }
            None => {
                let taken = Self::take_in(&mut session, tasks).await?;
                if taken.inserted.is_empty() {
                    return Ok((taken.answers, Vec::new()));
                }
                let wakeup = taken.wakeup();
                changes.arrived(taken.ledger, wakeup, taken.inserted.iter().map(InsertedTask::submitted));
                taken.answers
            }
        };
        let mut claimed = Vec::new();
        if let Some(pending) = session.lock_pending(request.service, request.max, false).await? {
            let mut found = HashMap::from([(request.service, (pending.now, pending.rows.into_iter()))]);
            claimed = assign(&[request], &mut found, &mut changes)?;
        }
        self.write(session, changes).await?;
        Ok((answers, claimed.pop().unwrap_or_default()))
    }
}

/// Assigns the tasks that were found to the requests, and starts them.
pub(crate) fn assign(
    requests: &[ClaimRequest],
    found: &mut Found,
    changes: &mut Changes,
) -> Result<Vec<Vec<Task>>, StoreError> {
    let mut answers = Vec::with_capacity(requests.len());
    for request in requests {
        let mut tasks = Vec::new();
        if let Some((now, rows)) = found.get_mut(&request.service) {
            for mut pending in rows.take(request.max) {
                let event = Event::Claimed {
                    worker_host: request.worker_host.clone(),
                    lease: request.lease.unwrap_or(pending.lease),
                };
                if let Outcome::Applied(state) = changes.apply(&mut pending.locked, event, *now)? {
                    tasks.push(Task { state, position: None, ..pending.task });
                }
            }
        }
        answers.push(tasks);
    }
    Ok(answers)
}
