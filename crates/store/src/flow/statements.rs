//! What limited flows need of a database, and how the rows are read.
//!
//! A service with a limited flow has a row of its own, which claims lock: they take turns, and each sees in its next
//! statement what the one before has done. Services without limits have no such row.

use std::{collections::HashMap, future::Future};

use relais_core::{
    ClientFlow, ClientKey, FlowClient, FlowFacts, FlowLimits, FlowState, RateLimit, ServiceKey, Standing,
};

use crate::{
    claims::statements::LockedPending,
    row::{Columns, client_key, corrupt, millis, narrow, unsigned},
    session::Result,
    tasks::statements::Locked,
};

/// How a service's flow is limited, as its row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlowKind {
    /// Not at all.
    Free = 0,
    /// For all clients together.
    Any = 1,
    /// By client.
    ByClient = 2,
    /// Not at all, but some of its tasks may be leased to instances.
    InstanceLeases = 3,
}

/// Flows within a transaction.
pub(crate) trait Flows: Send {
    /// Locks a service's flow against other claims; tells what it remembers. None if it never had a limit.
    fn lock_flow(&mut self, service: ServiceKey) -> impl Future<Output = Result<Option<FlowState>>> + Send;

    /// Reads what a claim has to know, after the flow was locked, since only then is it final. None if there is nothing
    /// to claim: the service is paused, deleted, or has a broker. Tells also whether some of its tasks may be leased.
    fn flow_facts(
        &mut self,
        service: ServiceKey,
        state: FlowState,
    ) -> impl Future<Output = Result<Option<(FlowFacts, bool)>>> + Send;

    /// How many of these leased tasks are pending as far as the counters know, by client.
    fn waiting_leased(&mut self, leased: &[i64]) -> impl Future<Output = Result<HashMap<ClientKey, u64>>> + Send;

    /// The places in the queue of the first pending tasks of these clients, rank and `id`, at most so many of each;
    /// without those that are leased.
    fn pending_places(
        &mut self,
        service: ServiceKey,
        most: &[(ClientKey, usize)],
        leased: &[i64],
    ) -> impl Future<Output = Result<Vec<(ClientKey, (i64, i64))>>> + Send;

    /// Locks the first pending tasks of these clients, so many of each, passing over those that others have locked, and
    /// those that are leased.
    fn lock_shares(
        &mut self,
        service: ServiceKey,
        shares: &[(ClientKey, usize)],
        leased: &[i64],
    ) -> impl Future<Output = Result<Locked<LockedPending>>> + Send;

    /// Writes the state of a flow, and the standing of clients that have had a turn.
    fn write_flow(
        &mut self,
        service: ServiceKey,
        state: FlowState,
        clients: &[(ClientKey, Standing)],
    ) -> impl Future<Output = Result<()>> + Send;

    /// Notes on each service how its flow is limited, after all changes to what is declared were made.
    fn note_flows(&mut self) -> impl Future<Output = Result<()>> + Send;
}

pub(crate) fn flow_kind(row: &impl Columns) -> Result<FlowKind> {
    match row.small("flow")? {
        0 => Ok(FlowKind::Free),
        1 => Ok(FlowKind::Any),
        2 => Ok(FlowKind::ByClient),
        3 => Ok(FlowKind::InstanceLeases),
        code => Err(corrupt(format!("flow {code}"))),
    }
}

pub(crate) fn flow_limits(row: &impl Columns) -> Result<FlowLimits> {
    let rate = match (row.int_if_any("rate_count")?, row.big_if_any("rate_per_ms")?, row.int_if_any("rate_burst")?) {
        (Some(count), Some(per), Some(burst)) => {
            Some(RateLimit { count: narrow(count), per: millis(per), burst: narrow(burst) })
        }
        _ => None,
    };
    Ok(FlowLimits {
        max_running: row.int_if_any("max_running")?.map(narrow),
        max_running_per_client: row.int_if_any("max_running_per_client")?.map(narrow),
        rate,
        fair_share: row.flag("fair_share")?,
        dispatch_window: row.int_if_any("dispatch_window")?.map(narrow),
    })
}

pub(crate) fn client_flow(row: &impl Columns) -> Result<ClientFlow> {
    Ok(ClientFlow { max_running: row.int_if_any("max_running")?.map(narrow), share: narrow(row.int("share")?) })
}

pub(crate) fn flow_state(row: &impl Columns) -> Result<FlowState> {
    Ok(FlowState { ahead_until: row.big("ahead_until")?, time: row.big("time")?, turns: row.big("turns")? })
}

/// Reads one row of a service; its clients are read elsewhere.
pub(crate) fn flow_facts(row: &impl Columns, state: FlowState) -> Result<FlowFacts> {
    Ok(FlowFacts {
        limits: match flow_kind(row)? {
            FlowKind::Free | FlowKind::InstanceLeases => FlowLimits::default(),
            FlowKind::Any | FlowKind::ByClient => flow_limits(row)?,
        },
        state,
        now: row.big("now_nanos")?,
        pending: unsigned(row.big("pending")?),
        running: unsigned(row.big("running")?),
        clients: None,
    })
}

/// A client with tasks that wait. It may have no authorization any more, and have had no turn yet.
pub(crate) fn flow_client(row: &impl Columns) -> Result<FlowClient> {
    Ok(FlowClient {
        client: client_key(row)?,
        pending: unsigned(row.big("pending")?),
        running: unsigned(row.big("running")?),
        max_running: row.int_if_any("max_running")?.map(narrow),
        share: row.int_if_any("share")?.map_or(1, narrow),
        standing: Standing { time: row.big_if_any("time")?.unwrap_or(0), turn: row.big_if_any("turn")?.unwrap_or(0) },
    })
}
