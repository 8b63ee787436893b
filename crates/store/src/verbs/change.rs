//! Changing tasks: claims, worker messages, heartbeats, returns, cancels, leases that expire. All by [`relais_core::apply`].

use std::collections::{BTreeMap, BTreeSet, HashMap};

use relais_core::{
    CallbackEvent, ClaimRequest, Event, IdsChanged, Outcome, ServiceKey, State, Status, StoreError, Task, TaskEvent,
    TaskId, Timestamp, Wakeup, apply,
};

use super::{Verbs, ledger::Ledger, plain};
use crate::{
    dispatch::Dispatch as _,
    outbox::NewCallback,
    session::{Database, LockedTask, Session, WrittenTask},
};

/// The tasks that one transaction changes, and what follows from it.
#[derive(Default)]
struct Changes {
    ledger: Ledger,
    written: BTreeMap<i64, WrittenTask>,
    changed: Vec<i64>,
    work: BTreeSet<ServiceKey>,
    /// Came back to their queue, and not by way of a broker.
    back: BTreeSet<(ServiceKey, TaskId)>,
    /// What is to be told, in the order in which it happened.
    told: Vec<NewCallback>,
}

impl Changes {
    /// Applies an event to a locked task, which may have changed in this transaction before.
    fn apply(&mut self, task: &mut LockedTask, mut event: Event, now: Timestamp) -> Outcome {
        plain::event(&mut event);
        let state = match apply(&task.state, &event, now) {
            Ok(state) => state,
            Err(ignored) => return Outcome::Ignored(ignored),
        };
        self.ledger.moved(task.service, task.client, task.seq, task.state.status, state.status);
        if state.revision != task.state.revision {
            self.changed.push(task.id);
        }
        if state.status == Status::Pending {
            self.work.insert(task.service);
            if !matches!(event, Event::GivenBack { .. }) {
                self.back.insert((task.service, task.task_id));
            }
        }
        if let Some(callback) = &task.callback
            && let Some(event) = what_to_tell(&task.state, &state)
            && callback.asks_for(event)
        {
            self.told.push(NewCallback {
                task: task.id,
                service: task.service,
                client: task.client,
                event,
                revision: state.revision,
                lane: callback.lane,
                chain: callback.is_chain(),
                due: Some(now),
                started: state.started.filter(|_| !event.is_end()),
                progress: (!event.is_end()).then_some(state.progress),
            });
        }
        let (response, error_message) = match event {
            Event::Succeeded { response, .. } => (Some(response), None),
            Event::Failed { error_message, .. } => (None, Some(error_message)),
            Event::LeaseExpired { .. } | Event::Delivered { .. } if state.status == Status::Failure => {
                (None, Some(lost(state.losses)))
            }
            _ => (None, None),
        };
        task.state = state.clone();
        self.written.insert(task.id, WrittenTask { id: task.id, state: state.clone(), response, error_message });
        Outcome::Applied(state)
    }
}

/// What whoever waits may want to be told of a change.
fn what_to_tell(before: &State, after: &State) -> Option<CallbackEvent> {
    if after.status != Status::InProgress {
        return CallbackEvent::of_end(after.status);
    }
    if before.status != Status::InProgress || before.started != after.started {
        return Some(CallbackEvent::Started);
    }
    (before.progress != after.progress).then_some(CallbackEvent::Progress)
}

/// Why a task failed whose workers fell silent.
fn lost(losses: u32) -> String {
    let times = if losses == 1 { "once".to_owned() } else { format!("{losses} times") };
    format!("Taken by a worker that was not heard of again, {times}.")
}

impl<D: Database> Verbs<D> {
    /// Writes what was changed, with all that follows from it.
    async fn write(&self, mut session: D::Session, changes: Changes) -> Result<(), StoreError> {
        let written: Vec<WrittenTask> = changes.written.into_values().collect();
        if !written.is_empty() {
            session.write_tasks(&written).await?;
        }
        let callbacks = Self::tell(&mut session, changes.told).await?;
        let mut dispatch = Vec::new();
        if !changes.back.is_empty() {
            dispatch = session.insert_dispatches(&changes.back.into_iter().collect::<Vec<_>>()).await?;
        }
        let tasks = IdsChanged::These(changes.changed);
        let wakeup = Wakeup { work: changes.work.into_iter().collect(), tasks, declared: false, callbacks, dispatch };
        self.finish(session, changes.ledger, wakeup).await
    }

    /// Hands out pending tasks. Each service is asked once, for all who wish.
    pub(super) async fn claim_tasks(&self, requests: Vec<ClaimRequest>) -> Result<Vec<Vec<Task>>, StoreError> {
        let mut wished: BTreeMap<ServiceKey, usize> = BTreeMap::new();
        for request in &requests {
            let wished = wished.entry(request.service).or_default();
            *wished = wished.saturating_add(request.max);
        }
        let mut session = self.database.begin().await?;
        let mut found = HashMap::new();
        for (service, limit) in wished {
            let locked = session.lock_pending(service, limit).await?;
            found.insert(service, (locked.now, locked.rows.into_iter()));
        }
        let mut changes = Changes::default();
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            let mut tasks = Vec::new();
            if let Some((now, rows)) = found.get_mut(&request.service) {
                for mut pending in rows.take(request.max) {
                    let event = Event::Claimed {
                        worker_host: request.worker_host.clone(),
                        lease: request.lease.unwrap_or(pending.lease),
                    };
                    if let Outcome::Applied(state) = changes.apply(&mut pending.locked, event, *now) {
                        tasks.push(Task { state, position: None, ..pending.task });
                    }
                }
            }
            answers.push(tasks);
        }
        self.write(session, changes).await?;
        Ok(answers)
    }

    /// Applies events in their order.
    pub(super) async fn record_events(&self, events: Vec<TaskEvent>) -> Result<Vec<Outcome>, StoreError> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let mut session = self.database.begin().await?;
        let names: Vec<TaskId> =
            events.iter().map(|event| event.task_id).collect::<BTreeSet<_>>().into_iter().collect();
        let locked = session.lock_tasks(&names).await?;
        let mut tasks: HashMap<TaskId, LockedTask> = locked.rows.into_iter().map(|task| (task.task_id, task)).collect();
        let mut changes = Changes::default();
        let outcomes = events
            .into_iter()
            .map(|TaskEvent { task_id, service, client, event }| match tasks.get_mut(&task_id) {
                Some(task) if task.service == service && client.is_none_or(|client| client == task.client) => {
                    changes.apply(task, event, locked.now)
                }
                _ => Outcome::NotFound,
            })
            .collect();
        self.write(session, changes).await?;
        Ok(outcomes)
    }

    /// Takes away what silent workers held.
    pub(super) async fn expire(&self, limit: usize) -> Result<usize, StoreError> {
        let mut session = self.database.begin().await?;
        let locked = session.lock_expired(limit).await?;
        let mut changes = Changes::default();
        let found = locked.rows.len();
        for mut task in locked.rows {
            let event = Event::LeaseExpired { delivery_limit: task.delivery_limit };
            changes.apply(&mut task, event, locked.now);
        }
        self.write(session, changes).await?;
        Ok(found)
    }
}
