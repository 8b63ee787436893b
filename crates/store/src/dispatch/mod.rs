//! Dispatching tasks to a broker: what is still to be published, and by whom.

pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use async_trait::async_trait;
use relais_core::{
    ClaimedDispatches, ClientKey, DispatchName, DispatchStore, Dispatched, DueDispatch, Flow, Pick, PublishedTask,
    ServiceKey, StoreError, TaskId, Wakeup,
};

use crate::{
    counters::ledger::Ledger,
    dispatch::statements::{Dispatch as _, Window},
    flow::statements::{FlowKind, Flows as _},
    session::{Database, Session},
    verbs::Verbs,
};

/// What may be published of one service.
#[derive(Default)]
struct Held {
    tasks: Vec<DueDispatch>,
    /// When to look again.
    again: Option<Duration>,
}

#[async_trait]
impl<D: Database> DispatchStore for Verbs<D> {
    async fn claim_dispatches(
        &self,
        services: Vec<ServiceKey>,
        each: usize,
        lease: Duration,
    ) -> Result<ClaimedDispatches, StoreError> {
        let limited = self.limited();
        let (mut windowed, mut free): (Vec<ServiceKey>, Vec<ServiceKey>) =
            services.iter().partition(|service| limited.windows.contains(service));
        let mut session = self.database.begin().await?;
        let mut claimed = ClaimedDispatches::default();
        // In the order of their keys, so that two sessions never wait for each other in a circle.
        windowed.sort_unstable();
        for service in windowed {
            let Some(window) = session.lock_window(service).await? else {
                free.push(service);
                continue;
            };
            let held = match window.kind {
                FlowKind::Free | FlowKind::InstanceLeases => {
                    Self::hold_first(&mut session, service, window, each, lease).await?
                }
                FlowKind::Any | FlowKind::ByClient => {
                    Self::hold_flowing(&mut session, service, window, each, lease).await?
                }
            };
            claimed.tasks.extend(held.tasks);
            claimed.again = claimed.again.into_iter().chain(held.again).min();
        }
        if !free.is_empty() {
            claimed.tasks.extend(session.claim_dispatches(&free, each, lease).await?);
        }
        session.commit().await?;
        Ok(claimed)
    }

    async fn complete_dispatches(&self, mut tasks: Vec<DispatchName>, outcome: Dispatched) -> Result<(), StoreError> {
        if tasks.is_empty() {
            return Ok(());
        }
        // In the order of their keys, so that two sessions never wait for each other in a circle.
        tasks.sort_unstable();
        let mut session = self.database.begin().await?;
        session.complete_dispatches(&tasks, outcome).await?;
        session.commit().await
    }

    async fn lease_orphans(&self, limit: usize) -> Result<usize, StoreError> {
        let mut session = self.database.begin().await?;
        let found = session.lease_orphans(limit).await?;
        session.commit().await?;
        Ok(found)
    }

    async fn redispatch_service(&self, service: ServiceKey) -> Result<(), StoreError> {
        let mut session = self.database.begin().await?;
        session.redispatch_service(service, true).await?;
        let wakeup = Wakeup { dispatch: vec![service], ..Wakeup::default() };
        self.finish(session, Ledger::default(), wakeup).await
    }

    async fn refill_dispatches(&self, limit: usize) -> Result<bool, StoreError> {
        let mut session = self.database.begin().await?;
        let service = session.refill_dispatches(limit).await?;
        let wakeup = Wakeup { dispatch: service.into_iter().collect(), ..Wakeup::default() };
        self.finish(session, Ledger::default(), wakeup).await?;
        Ok(service.is_some())
    }

    async fn oldest_published(&self, service: ServiceKey) -> Result<Option<PublishedTask>, StoreError> {
        self.database.oldest_published(service).await
    }
}

impl<D: Database> Verbs<D> {
    /// Takes what is first in the queue of a service that has nothing but a window.
    async fn hold_first(
        session: &mut D::Session,
        service: ServiceKey,
        window: Window,
        most: usize,
        lease: Duration,
    ) -> Result<Held, StoreError> {
        let mut tasks = session.hold_placed(service, most, lease).await?;
        let most = window.room.min(most - tasks.len());
        if most > 0 {
            let next = session.hold_next(service, most, lease).await?;
            if next.len() < most {
                session.forget_ended(service, most).await?;
            }
            tasks.extend(next);
        }
        Ok(Held { tasks, again: None })
    }

    /// Takes what the limits of a service's flow allow besides its window.
    async fn hold_flowing(
        session: &mut D::Session,
        service: ServiceKey,
        window: Window,
        most: usize,
        lease: Duration,
    ) -> Result<Held, StoreError> {
        let mut tasks = session.hold_placed(service, most, lease).await?;
        let Some(facts) = session.window_facts(service, window).await? else { return Ok(Held { tasks, again: None }) };
        let mut flow = Flow::new(facts);
        loop {
            let wanted = most - tasks.len();
            let (candidates, asked, turns) = match flow.pick(wanted) {
                Pick::Any(0) => break,
                Pick::Any(most) => {
                    let next = session.hold_next(service, most, lease).await?;
                    flow.took_any(next.len());
                    if next.len() < most {
                        flow.found_no_more();
                    }
                    tasks.extend(next);
                    break;
                }
                Pick::First(shares, _) if shares.is_empty() => break,
                Pick::First(shares, most) => {
                    let mut first = session.candidates(service, &shares).await?;
                    first.sort_unstable_by_key(|candidate| candidate.place);
                    first.truncate(most);
                    let asked = Flow::first_of(first.iter().map(|one| (one.client, one.place)).collect(), most);
                    (first, asked, None)
                }
                Pick::Each(asked) if asked.is_empty() => break,
                Pick::Each(asked) => (session.candidates(service, &asked).await?, asked, Some(flow.turns(wanted))),
            };
            if asked.is_empty() {
                break;
            }
            let names: Vec<TaskId> = candidates.iter().map(|candidate| candidate.task_id).collect();
            let held = if names.is_empty() { Vec::new() } else { session.hold_these(service, &names, lease).await? };
            let owners: HashMap<TaskId, ClientKey> =
                candidates.into_iter().map(|candidate| (candidate.task_id, candidate.client)).collect();
            let (mut shares, mut by_rank) = (BTreeMap::<ClientKey, VecDeque<DueDispatch>>::new(), Vec::new());
            for task in held {
                let Some(&client) = owners.get(&task.name.task_id) else { continue };
                by_rank.push(client);
                shares.entry(client).or_default().push_back(task);
            }
            let got: BTreeMap<ClientKey, usize> = shares.iter().map(|(&client, tasks)| (client, tasks.len())).collect();
            // The broker delivers them in the order in which it gets them.
            let order = turns.unwrap_or(by_rank);
            tasks.extend(order.iter().filter_map(|client| shares.get_mut(client)?.pop_front()));
            // Whoever had fewer than it seemed has no more now, and others are asked in its stead.
            flow.took(&asked, &got);
        }
        if flow.nothing_waits() && tasks.len() < most {
            session.forget_ended(service, most).await?;
        }
        // Also where nothing was taken: a rate that was changed may have brought the flow nearer.
        if flow.state() != window.state {
            session.write_flow(service, flow.state(), &flow.changed()).await?;
        }
        Ok(Held { again: flow.again(most - tasks.len()), tasks })
    }
}
