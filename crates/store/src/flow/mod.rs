//! Claims on services whose flow is limited: lock the flow, count, ask [`relais_core::Flow`], claim what it allows.

pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, PoisonError},
    time::Duration,
};

use relais_core::{ClientKey, Declared, Flow, Pick, ServiceKey, StoreError, Timestamp};

use crate::{
    claims::statements::{ClaimRows as _, LockedPending},
    flow::statements::Flows as _,
    instances::statements::InstanceRows as _,
    session::Database,
    verbs::Verbs,
};

/// The services whose flow is limited, as far as this process knows. When a task of them ends, those who wait for room
/// are woken. This is a hint, like all wake-ups.
#[derive(Debug, Default)]
pub(crate) struct Limited {
    /// Services with a limit on running tasks, and no broker.
    pub(crate) running: HashSet<ServiceKey>,
    /// Services with a window on tasks at their broker.
    pub(crate) windows: HashSet<ServiceKey>,
}

/// How long to wait for tasks that others have locked.
const SOON: Duration = Duration::from_millis(20);

/// What a claim on a limited service found.
pub(crate) struct Flowing {
    /// Tasks that may be claimed, and are locked.
    pub(crate) rows: Vec<LockedPending>,
    /// The time at which they start, by which the rate is counted.
    pub(crate) now: Timestamp,
    /// When to look again.
    pub(crate) again: Option<Duration>,
}

impl Flowing {
    /// Nothing that could be claimed.
    const NOTHING: Self = Self { rows: Vec::new(), now: Timestamp::from_millis(0), again: None };
}

impl<D: Database> Verbs<D> {
    /// Locks pending tasks of a service whose flow is limited, as many as may run.
    pub(crate) async fn lock_flowing(
        session: &mut D::Session,
        service: ServiceKey,
        wanted: usize,
    ) -> Result<Flowing, StoreError> {
        let Some(state) = session.lock_flow(service).await? else { return Ok(Flowing::NOTHING) };
        // A second statement on purpose: it sees what was committed while the first one waited for the lock. What ends
        // meanwhile only makes room.
        let Some((mut facts, may_be_leased)) = session.flow_facts(service, state).await? else {
            return Ok(Flowing::NOTHING);
        };
        let leased = if may_be_leased { session.leased(service).await? } else { HashSet::new() };
        let passed_over: Vec<i64> = leased.iter().copied().collect();
        if let Some(clients) = facts.clients.as_mut().filter(|_| !leased.is_empty()) {
            // A leased task waits for nobody, though it may not be written that it has begun. No turn is spent on it.
            let held = session.waiting_leased(&passed_over).await?;
            for client in clients {
                client.pending = client.pending.saturating_sub(held.get(&client.client).copied().unwrap_or(0));
            }
        }
        let now = Timestamp::from_millis(facts.now / 1_000_000);
        let mut flow = Flow::new(facts);
        let mut rows: Vec<LockedPending> = Vec::new();
        let mut short = false;
        let asked = match flow.pick(wanted) {
            Pick::Any(most) => {
                if most > 0
                    && let Some(locked) = session.lock_pending(service, most + leased.len(), true).await?
                {
                    // Leased tasks may be the first of the queue.
                    rows = locked.rows.into_iter().filter(|row| !leased.contains(&row.locked.id)).take(most).collect();
                    flow.took_any(rows.len());
                }
                Vec::new()
            }
            Pick::Each(shares) => shares,
            Pick::First(shares, most) if shares.is_empty() || most == 0 => Vec::new(),
            Pick::First(shares, most) => {
                Flow::first_of(session.pending_places(service, &shares, &passed_over).await?, most)
            }
        };
        if !asked.is_empty() {
            rows = session.lock_shares(service, &asked, &passed_over).await?.rows;
            let mut got: BTreeMap<ClientKey, usize> = BTreeMap::new();
            for row in &rows {
                *got.entry(row.locked.client).or_default() += 1;
            }
            // Others have some of them locked. The rest is not asked for in their stead: a second look would find those
            // that were just locked here as well.
            short = asked.iter().map(|(_, most)| most).sum::<usize>() > rows.len();
            flow.took(&asked, &got);
        }
        // Also where nothing was taken: a rate that was changed may have brought the flow nearer.
        if flow.state() != state {
            session.write_flow(service, flow.state(), &flow.changed()).await?;
        }
        rows.sort_unstable_by_key(|row| (row.rank, row.locked.id));
        let again = flow.again(wanted - rows.len()).into_iter().chain(short.then_some(SOON)).min();
        Ok(Flowing { rows, now, again })
    }

    /// The services whose flow is limited.
    pub(crate) fn limited(&self) -> Arc<Limited> {
        Arc::clone(&self.limited.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes which services those are.
    pub(crate) fn note_limited(&self, declared: &Declared) {
        let windows = declared.services.values().filter(|service| service.limits.flow.dispatch_window.is_some());
        let windows: HashSet<ServiceKey> = windows.map(|service| service.key).collect();
        let services = declared.services.values().filter(|service| {
            let flow = &service.limits.flow;
            flow.max_running.is_some() || flow.max_running_per_client.is_some()
        });
        let clients = declared.authorizations.values().filter(|authorization| authorization.flow.max_running.is_some());
        let running = services.map(|service| service.key).chain(clients.map(|authorization| authorization.service));
        let running = running.filter(|service| !windows.contains(service)).collect();
        let limited = Limited { running, windows };
        *self.limited.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(limited);
    }
}
