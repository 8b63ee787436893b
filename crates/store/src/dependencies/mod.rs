//! Tasks that wait for others: what a submission has to know of those, and what their ends do.
//!
//! Everybody locks tasks in the order of their rows, then batches, then counters. A transaction that ends a task has
//! locked other tasks already, so it does not go on to those that wait: it notes the end, and another transaction,
//! which has locked nothing yet, tells them ([`Verbs::resolve_dependencies`]). So a long chain is a long row of short
//! transactions.

pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use relais_core::{
    BatchId, ClientKey, DependenciesResolved, Event, Gate, NewTask, Prerequisite, Refusal, Status, StoreError,
    Submission, TaskId, TraceContext, barred,
};

use crate::{
    batches::statements::{Batches as _, LockedBatch},
    dependencies::statements::{Dependencies as _, LockedPrerequisite, NewDependency},
    history::statements::History as _,
    session::{Database, Session as _},
    tasks::changes::Changes,
    verbs::Verbs,
};

/// So many ends are resolved in one transaction.
const ENDINGS: usize = 100;

/// What ties the tasks of one transaction to others, and what is to be written of it.
#[derive(Default)]
pub(crate) struct Ties {
    /// Tasks that were there before.
    known: HashMap<TaskId, LockedPrerequisite>,
    /// Tasks that this transaction takes in, as far as others can wait for them.
    new: HashMap<TaskId, New>,
    /// The names of tasks that were not taken in, because there are others in their stead.
    stand_ins: HashMap<TaskId, TaskId>,
    batches: HashMap<BatchId, LockedBatch>,
    /// Those of which it is worth remembering that they were taken in.
    named: HashSet<TaskId>,
    edges: Vec<NewDependency>,
    followed: BTreeSet<TaskId>,
    endings: BTreeMap<i64, Status>,
}

struct New {
    client: ClientKey,
    correlation_id: Option<String>,
    trace: Option<TraceContext>,
}

/// What ties one task to others.
pub(crate) struct Tie {
    /// Whether it may go on.
    pub(crate) gate: Gate,
    after: Vec<Prerequisite>,
}

impl Ties {
    /// Another task is the answer to this one: whoever waits for this one waits for that.
    pub(crate) fn stands_for(&mut self, task: &NewTask, answer: &Submission) {
        if let Ok(submitted) = answer
            && self.named.contains(&task.task_id)
        {
            self.stand_ins.insert(task.task_id, submitted.task_id);
        }
    }

    /// Judges whether a task may be tied to what it says. Where it has no correlation id or no trace, it gets those of
    /// its batch, or else of the first task that it waits for.
    pub(crate) fn judge(&self, task: &mut NewTask) -> Result<Tie, Refusal> {
        if let Some(batch) = task.links.batch {
            let batch = self.batches.get(&batch).filter(|batch| batch.client == task.client);
            let batch = batch.ok_or(Refusal::BatchNotFound)?;
            if !batch.open {
                return Err(Refusal::BatchClosed);
            }
            inherit(task, &batch.correlation_id, &batch.trace);
        }
        let Some(after) = task.links.after.clone() else { return Ok(Tie { gate: Gate::Open, after: Vec::new() }) };
        let mut prerequisites: Vec<Prerequisite> = Vec::with_capacity(after.tasks.len());
        let mut inherited: Option<(&Option<String>, &Option<TraceContext>)> = None;
        for name in &after.tasks {
            let name = self.stand_ins.get(name).unwrap_or(name);
            let (ended, first) = if let Some(new) = self.new.get(name).filter(|new| new.client == task.client) {
                (None, (&new.correlation_id, &new.trace))
            } else {
                let known = self.known.get(name).filter(|known| known.client == task.client);
                let known = known.ok_or(Refusal::PrerequisiteNotFound)?;
                (Some(known.status).filter(|status| status.is_final()), (&known.correlation_id, &known.trace))
            };
            inherited.get_or_insert(first);
            if !prerequisites.iter().any(|one| one.task_id == *name) {
                prerequisites.push(Prerequisite { task_id: *name, ended });
            }
        }
        let gate = after.when.gate(&prerequisites);
        if let Some((correlation_id, trace)) = inherited {
            inherit(task, correlation_id, trace);
        }
        Ok(Tie { gate, after: prerequisites })
    }

    /// A task was taken in.
    pub(crate) fn took(&mut self, task: &NewTask, tie: Tie) {
        if self.named.contains(&task.task_id) {
            let (correlation_id, trace) = (task.correlation_id.clone(), task.links.trace.clone());
            self.new.insert(task.task_id, New { client: task.client, correlation_id, trace });
        }
        for Prerequisite { task_id, ended } in tie.after {
            let known = self.known.get(&task_id);
            let outcome = match (tie.gate, ended, known) {
                // What bars it is told like an end that comes later.
                (Gate::Barred(..), Some(status), Some(known)) if status != Status::Success => {
                    self.endings.insert(known.id, status);
                    None
                }
                (_, ended, _) => ended,
            };
            if ended.is_none() && tie.gate == Gate::Closed && known.is_none_or(|known| !known.followed) {
                self.followed.insert(task_id);
            }
            self.edges.push(NewDependency { task: task.task_id, prerequisite: task_id, outcome });
        }
    }

    /// Writes what was noted, after the tasks; tells whether there is something to be told at once.
    pub(crate) async fn write(
        &self,
        session: &mut impl crate::dependencies::statements::Dependencies,
    ) -> Result<bool, StoreError> {
        if !self.edges.is_empty() {
            session.insert_dependencies(&self.edges).await?;
        }
        if !self.followed.is_empty() {
            session.follow(&self.followed.iter().copied().collect::<Vec<_>>()).await?;
        }
        if !self.endings.is_empty() {
            let endings: Vec<_> = self.endings.iter().map(|(&task, &status)| (task, status)).collect();
            session.note_endings(&endings).await?;
        }
        Ok(!self.endings.is_empty())
    }
}

fn inherit(task: &mut NewTask, correlation_id: &Option<String>, trace: &Option<TraceContext>) {
    task.correlation_id = task.correlation_id.take().or_else(|| correlation_id.clone());
    task.links.trace = task.links.trace.take().or_else(|| trace.clone());
}

impl<D: Database> Verbs<D> {
    /// Locks what these submissions say that they have to do with. Most have to do with nothing, and ask nothing.
    pub(crate) async fn lock_ties(session: &mut D::Session, tasks: &[NewTask]) -> Result<Ties, StoreError> {
        let mut ties = Ties::default();
        let mut names: BTreeSet<TaskId> =
            tasks.iter().filter_map(|task| task.links.after.as_ref()).flat_map(|after| &after.tasks).copied().collect();
        if !names.is_empty() {
            ties.named = names.iter().copied().collect();
            let twins = |task: &NewTask| task.terms.unique.is_some() && names.contains(&task.task_id);
            if tasks.iter().any(twins) {
                // What may stand in for one of them is to be locked with the others.
                names.extend(session.known_unique(tasks).await?.into_iter().map(|known| known.task_id));
            }
            let clients: BTreeSet<ClientKey> = tasks.iter().map(|task| task.client).collect();
            let (names, clients): (Vec<_>, Vec<_>) = (names.into_iter().collect(), clients.into_iter().collect());
            let known = session.lock_prerequisites(&names, &clients).await?;
            ties.known = known.into_iter().map(|known| (known.task_id, known)).collect();
        }
        let batches: BTreeSet<BatchId> = tasks.iter().filter_map(|task| task.links.batch).collect();
        if !batches.is_empty() {
            let batches = session.lock_batches(&batches.into_iter().collect::<Vec<_>>()).await?;
            ties.batches = batches.into_iter().map(|batch| (batch.batch_id, batch)).collect();
        }
        Ok(ties)
    }

    /// Tells those who wait for what has ended.
    pub(crate) async fn resolve_dependencies(&self, limit: usize) -> Result<DependenciesResolved, StoreError> {
        let mut session = self.database.begin().await?;
        let endings: BTreeMap<i64, Status> = session.hold_endings(ENDINGS).await?.into_iter().collect();
        if endings.is_empty() {
            session.commit().await?;
            return Ok(DependenciesResolved::default());
        }
        let ended: Vec<i64> = endings.keys().copied().collect();
        let edges = session.open_edges(&ended, limit).await?;
        let waiting: BTreeSet<i64> = edges.iter().map(|edge| edge.task).collect();
        let waiting: Vec<i64> = waiting.into_iter().collect();
        let mut changes = Changes::new(self.wants_changes(), self.limited());
        if !edges.is_empty() {
            // First those who wait, then what they wait for: whoever removes them does it in this order.
            let locked = session.lock_rows(&waiting).await?;
            let told: Vec<_> =
                edges.iter().filter_map(|edge| Some((*edge, *endings.get(&edge.prerequisite)?))).collect();
            session.close_edges(&told).await?;
            let mut after: HashMap<i64, Vec<Prerequisite>> = HashMap::new();
            for (task, prerequisite) in session.prerequisites_of(&waiting).await? {
                after.entry(task).or_default().push(prerequisite);
            }
            for mut task in locked.rows {
                let after = after.remove(&task.id).unwrap_or_default();
                let event = match task.when.unwrap_or_default().gate(&after) {
                    Gate::Closed => continue,
                    Gate::Open => Event::Released { due: task.scheduled },
                    Gate::Barred(task_id, status) => Event::Barred(barred(task_id, status)),
                };
                changes.apply(&mut task, event, locked.now)?;
            }
        }
        let (changed, full) = (changes.written.len(), edges.len() == limit);
        if !full {
            changes.settled = ended;
        }
        self.write(session, changes).await?;
        Ok(DependenciesResolved { changed, more: full || endings.len() == ENDINGS || changed > 0 })
    }

    /// Notes ends that nobody has noted.
    pub(crate) async fn recheck_dependencies(&self, after: i64, limit: usize) -> Result<Option<i64>, StoreError> {
        let mut session = self.database.begin().await?;
        let last = session.find_endings(after, limit).await?;
        session.commit().await?;
        Ok(last.map(|last| last + 1))
    }
}
