//! Submissions: lock the queues, check the capacity, insert the tasks, add to the counters.
//!
//! Where nothing has to be decided, a driver may do all of it in one statement (`submit_unlimited` in `postgres.rs`).

pub(crate) mod keys;
pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use std::collections::{BTreeSet, HashMap};

use relais_core::{
    Admission, Gate, Milestone, NewTask, Refusal, Room, ServiceKey, State, Status, StoreError, Submission, Submitted,
    TaskChange, Timestamp, Wakeup,
};

use crate::{
    counters::ledger::Ledger,
    history::statements::History as _,
    instances::statements::{InstanceRows as _, Leased, Lessee},
    row::unsigned,
    session::Database,
    submit::keys::Keys,
    submit::statements::{InsertedTask, SubmitRows as _},
    text,
    verbs::Verbs,
};

/// A batch of submissions within a transaction that is not committed yet.
#[derive(Default)]
pub(crate) struct Taken {
    /// One answer for each task.
    pub(crate) answers: Vec<Submission>,
    pub(crate) inserted: Vec<InsertedTask>,
    pub(crate) ledger: Ledger,
    /// The earliest timer of the tasks.
    timer: Option<Timestamp>,
    /// The lanes in which a callback may be due.
    pub(crate) callbacks: Vec<i64>,
}

impl Taken {
    /// The first task that was refused, and why.
    pub(crate) fn refusal(&self) -> Option<(usize, Refusal)> {
        let refused = |(place, answer): (usize, &Submission)| Some((place, (*answer).err()?));
        self.answers.iter().enumerate().find_map(refused)
    }

    /// Who is to be woken.
    pub(crate) fn wakeup(&self) -> Wakeup {
        let at_once = self.inserted.iter().filter(|inserted| inserted.state.status == Status::Pending);
        let (timer, callbacks) = (self.timer, self.callbacks.clone());
        Wakeup { timer, callbacks, ..new_work(at_once.map(|inserted| &inserted.task)) }
    }
}

impl InsertedTask {
    pub(crate) fn submitted(&self) -> TaskChange {
        submitted(&self.task, self.state.clone())
    }
}

impl<D: Database> Verbs<D> {
    /// Submits tasks in one transaction. Tells also which of them the instance has leased that waits for tasks.
    pub(crate) async fn submit(
        &self,
        mut tasks: Vec<NewTask>,
        lessee: Option<&Lessee>,
    ) -> Result<(Vec<Submission>, Option<Leased>), StoreError> {
        let Some(service) = tasks.first().map(|task| task.service) else { return Ok((Vec::new(), None)) };
        tasks.iter_mut().for_each(text::submission);
        if let Some(taken) = self.submit_unlimited(&tasks, lessee).await? {
            return Ok(taken);
        }
        let mut session = self.database.begin().await?;
        let mut taken = Self::take_in(&mut session, tasks).await?;
        let answers = std::mem::take(&mut taken.answers);
        let mut leased = None;
        if !taken.inserted.is_empty() {
            // Others lock what a process answers for before queues.
            if let Some(lessee) = lessee.filter(|_| D::ONE_WRITER)
                && session.lock_claims(service, lessee.instance, &lessee.done_with).await? == Some(true)
            {
                leased = Some(session.lease_tasks(service, lessee).await?);
            }
            self.finish_taken(session, taken).await?;
        }
        // Where nothing was written, a commit would only cost time.
        Ok((answers, leased))
    }

    /// Submits tasks within a transaction.
    pub(crate) async fn take_in(session: &mut D::Session, tasks: Vec<NewTask>) -> Result<Taken, StoreError> {
        // First, as everybody locks: tasks, batches, queues.
        let mut ties = Self::lock_ties(session, &tasks).await?;
        let services: Vec<ServiceKey> =
            tasks.iter().map(|task| task.service).collect::<BTreeSet<_>>().into_iter().collect();
        let queues = session.lock_queues(&services).await?;
        let now = queues.last().map_or(Timestamp::from_millis(0), |queue| queue.now);
        // A second statement on purpose: it sees what was committed while the first one waited for the locks.
        let facts = session.queue_facts(&tasks).await?;

        let brokered: BTreeSet<ServiceKey> =
            queues.iter().filter(|queue| queue.brokered).map(|queue| queue.service).collect();
        let mut next: HashMap<ServiceKey, i64> =
            queues.into_iter().map(|queue| (queue.service, queue.arrived)).collect();
        let mut admission = Admission::default();
        for (service, departed, room) in facts.queues {
            let Some(arrived) = next.get(&service) else { continue };
            admission.set_service(service, Room { pending: unsigned(arrived - departed), ..room });
        }
        for (service, client, room) in facts.shares {
            admission.set_client(service, client, room);
        }
        let mut keys = Keys::new(facts.known);
        let mut unique = Keys::new(session.known_unique(&tasks).await?);

        let mut answers = Vec::with_capacity(tasks.len());
        let mut inserted = Vec::with_capacity(tasks.len());
        let mut ledger = Ledger::default();
        let mut timer = None;
        for mut task in tasks {
            if let Some(answer) = keys.answer(&task).or_else(|| unique.twin(&task).map(Ok)) {
                ties.stands_for(&task, &answer);
                answers.push(answer);
                continue;
            }
            let tie = match ties.judge(&mut task) {
                Ok(tie) => tie,
                Err(refusal) => {
                    answers.push(Err(refusal));
                    continue;
                }
            };
            let (service, client) = (task.service, task.client);
            let (state, scheduled) = first_state(&task, tie.gate, now);
            let waits = state.status == Status::Waiting;
            let admitted = match task.terms.promised {
                true => admission.admit_anyway(service, client, waits),
                false => admission.admit(service, client, waits),
            };
            answers.push(admitted.map(|position| {
                keys.remember(&task, position);
                unique.remember_unique(&task, position);
                let seq = next.entry(service).or_default();
                ledger.arrived(service, client);
                ledger.moved(service, client, *seq, Status::Pending, state.status);
                ledger.moved_in_batch(task.links.batch, None, state.status);
                ties.took(&task, tie);
                timer = timer.into_iter().chain(state.timer()).min();
                let submitted = Submitted { task_id: task.task_id, position, replayed: false, duplicate: false };
                let brokered = !waits && brokered.contains(&service);
                inserted.push(InsertedTask { task, seq: *seq, position, brokered, state, scheduled });
                *seq += 1;
                submitted
            }));
        }
        if !inserted.is_empty() {
            session.insert_tasks(&inserted).await?;
            if ties.write(session).await? {
                timer = Some(now);
            }
        }
        Ok(Taken { answers, inserted, ledger, timer, callbacks: Vec::new() })
    }

    /// Ends a transaction in which tasks may have been submitted: adds to the counters, commits, wakes those who wait.
    pub(crate) async fn finish_taken(&self, session: D::Session, taken: Taken) -> Result<(), StoreError> {
        let wakeup = taken.wakeup();
        self.finish(session, taken.ledger, wakeup).await?;
        if self.wants_changes() {
            self.changed(&taken.inserted.iter().map(InsertedTask::submitted).collect::<Vec<_>>());
        }
        Ok(())
    }

    /// Submits tasks in one statement, if nothing has to be decided and the database can do that. Most batches are for
    /// one service without a capacity.
    async fn submit_unlimited(
        &self,
        tasks: &[NewTask],
        lessee: Option<&Lessee>,
    ) -> Result<Option<(Vec<Submission>, Option<Leased>)>, StoreError> {
        if !are_plain(tasks) {
            return Ok(None);
        }
        let wakeup = new_work(tasks);
        let lessee = lessee.filter(|lessee| tasks.len() <= lessee.limit);
        let Some((first, taken)) = self.database.submit_unlimited(tasks, &wakeup, lessee).await? else {
            return Ok(None);
        };
        self.wake(&wakeup);
        if self.wants_changes() {
            self.changed(&tasks.iter().map(|task| submitted(task, State::pending())).collect::<Vec<_>>());
        }
        Ok(Some((in_a_row(tasks, first), taken)))
    }
}

/// Whether nothing has to be decided about these tasks: all are for one service, and none has a key, waits or expires.
pub(crate) fn are_plain(tasks: &[NewTask]) -> bool {
    let service = tasks.first().map(|task| task.service);
    tasks.iter().all(|task| {
        let terms = &task.terms;
        Some(task.service) == service
            && task.idempotency.is_none()
            && terms.due.is_none()
            && terms.expires.is_none()
            && terms.unique.is_none()
            && task.links.after.is_none()
            && task.links.batch.is_none()
    })
}

/// The answers to tasks that got consecutive positions.
pub(crate) fn in_a_row(tasks: &[NewTask], first: u64) -> Vec<Submission> {
    let answer = |(task, position): (&NewTask, u64)| {
        Ok(Submitted { task_id: task.task_id, position, replayed: false, duplicate: false })
    };
    tasks.iter().zip(first..).map(answer).collect()
}

/// Whom new tasks wake: claims, and publishers of tasks that their caller does not publish itself.
pub(crate) fn new_work<'a>(tasks: impl IntoIterator<Item = &'a NewTask>) -> Wakeup {
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
pub(crate) fn submitted(task: &NewTask, state: State) -> TaskChange {
    TaskChange {
        task_id: task.task_id,
        service: task.service,
        client: task.client,
        milestone: Milestone::Submitted,
        state,
        submitted: None,
        correlation_id: task.correlation_id.clone(),
        over: None,
        failure: None,
    }
}

/// The first state of a task: pending, or waiting for its time or for other tasks. Also the time for which it was
/// asked.
fn first_state(task: &NewTask, gate: Gate, now: Timestamp) -> (State, Option<Timestamp>) {
    let due = task.terms.due.map(|when| when.moment(now)).filter(|due| *due > now);
    let expires = task.terms.expires.map(|wait| due.unwrap_or(now).after(wait));
    let state = match (gate, due) {
        (Gate::Open, None) => State::pending(),
        (Gate::Open, Some(due)) => State::waiting(due),
        // One that is barred fails like those that are barred later: with all that follows from it.
        (Gate::Closed | Gate::Barred(..), _) => State::blocked(),
    };
    (State { expires, ..state }, due)
}
