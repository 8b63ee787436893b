//! Callbacks: what is to be told is written with the change that it tells of, claimed lane by lane, and settled.

pub(crate) mod postgres;
pub(crate) mod rows;
pub(crate) mod sqlite;
pub(crate) mod statements;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::Duration,
};

use async_trait::async_trait;
use relais_core::{
    CallbackAttempt, CallbackEvent, CallbackFilter, CallbackLanePage, CallbackOutcome, CallbackPage, CallbackStore,
    CallbackVerdict, DueCallback, IdsChanged, LaneChange, Resend, Resent, StoreError, Wakeup,
};

use crate::{
    callbacks::statements::{CallbackQueue, NewCallback},
    counters::ledger::Ledger,
    session::{Database, Session as _},
    verbs::Verbs,
};

/// Progress is told this long after it was first heard of, with what is known by then: so often, and not more.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// A page of callbacks looks at so many rows at most.
const LOOK: usize = 5_000;

/// So many are sent again in one transaction.
const RESEND: usize = 500;

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

    /// Writes what became of tries.
    async fn complete_callbacks(
        &self,
        outcomes: Vec<CallbackOutcome>,
        mut lanes: Vec<(i64, LaneChange)>,
    ) -> Result<(), StoreError> {
        let mut session = self.database.begin().await?;
        let chains: Vec<i64> = outcomes.iter().filter(|one| one.chain).map(|one| one.row).collect();
        if !chains.is_empty() {
            session.lock_chains(&chains).await?;
        }
        let mut wakeup = Wakeup::default();
        if !outcomes.is_empty() {
            let settled: HashSet<i64> = session.complete_callbacks(&outcomes).await?.into_iter().collect();
            let ours = |wanted: fn(CallbackVerdict) -> bool| -> Vec<i64> {
                let wanted = outcomes.iter().filter(|one| one.chain && wanted(one.verdict));
                wanted.map(|one| one.row).filter(|row| settled.contains(row)).collect()
            };
            let gone = ours(|verdict| verdict == CallbackVerdict::Gone);
            if !gone.is_empty() {
                session.stop_chains(&gone, "nothing else is told: nobody lives there any more (410)").await?;
            }
            let ended = ours(|verdict| matches!(verdict, CallbackVerdict::Delivered | CallbackVerdict::GivenUp));
            if !ended.is_empty() {
                wakeup.callbacks = session.release_next(&ended, PROGRESS_EVERY).await?;
            }
        }
        lanes.sort_unstable_by_key(|(lane, _)| *lane);
        session.change_lanes(&lanes).await?;
        self.finish(session, Ledger::default(), wakeup).await
    }

    /// Gives up what has been due for too long.
    async fn expire_callbacks(&self, lane: i64, older_than: Duration, limit: usize) -> Result<u64, StoreError> {
        let mut session = self.database.begin().await?;
        let rows = session.overdue(lane, older_than, limit).await?;
        let mut wakeup = Wakeup::default();
        if !rows.is_empty() {
            session.lock_chains(&rows).await?;
            session.expire_callbacks(&rows, "given up: its endpoint did not answer for too long").await?;
            wakeup.callbacks = session.release_next(&rows, PROGRESS_EVERY).await?;
        }
        self.finish(session, Ledger::default(), wakeup).await?;
        Ok(rows.len() as u64)
    }

    /// One page, and where the next one begins.
    async fn list_callbacks(&self, filter: CallbackFilter) -> Result<CallbackPage, StoreError> {
        if filter.task.is_some() {
            let records = self.database.list_callbacks(&filter, 0).await?;
            let next_before = records.last().filter(|_| records.len() == filter.limit).map(|last| last.row);
            return Ok(CallbackPage { records, next_before });
        }
        let Some(floor) = self.database.callback_floor(&filter, LOOK).await? else {
            return Ok(CallbackPage::default());
        };
        let records = self.database.list_callbacks(&filter, floor.row).await?;
        let next_before = match records.last() {
            Some(last) if records.len() == filter.limit => Some(last.row),
            _ if floor.looked < LOOK as u64 => None,
            // What is further back came to be earlier still.
            _ => Some(floor.row).filter(|_| filter.from.is_none_or(|from| floor.created >= from)),
        };
        Ok(CallbackPage { records, next_before })
    }

    async fn list_callback_attempts(&self, rows: Vec<i64>) -> Result<HashMap<i64, Vec<CallbackAttempt>>, StoreError> {
        let mut attempts: HashMap<i64, Vec<CallbackAttempt>> = HashMap::new();
        for (row, attempt) in self.database.list_callback_attempts(&rows).await? {
            attempts.entry(row).or_default().push(attempt);
        }
        Ok(attempts)
    }

    /// Makes callbacks due again.
    async fn resend_callbacks(&self, resend: Resend) -> Result<Resent, StoreError> {
        let mut session = self.database.begin().await?;
        let found = session.resend_callbacks(&resend, RESEND).await?;
        let lanes: BTreeSet<i64> = found.iter().map(|(_, lane)| *lane).collect();
        let mut wakeup = Wakeup { callbacks: lanes.into_iter().collect(), ..Wakeup::default() };
        if matches!(resend, Resend::One(_)) {
            // Whoever asks for one wants to see its endpoint tried, parked or not.
            let changes: Vec<_> = wakeup.callbacks.iter().map(|&lane| (lane, LaneChange::Try)).collect();
            session.change_lanes(&changes).await?;
            wakeup.tasks = IdsChanged::Perhaps;
        }
        self.finish(session, Ledger::default(), wakeup).await?;
        let next_after = match (&resend, found.last()) {
            (Resend::Failed { .. }, Some((last, _))) if found.len() == RESEND => Some(*last),
            _ => None,
        };
        Ok(Resent { count: found.len() as u64, next_after })
    }
}

impl<D: Database> Verbs<D> {
    /// Keeps what is to be told; says in which lanes something may be due now.
    pub(crate) async fn tell(session: &mut D::Session, told: Vec<NewCallback>) -> Result<Vec<i64>, StoreError> {
        if told.is_empty() {
            return Ok(Vec::new());
        }
        let lanes: BTreeSet<i64> = told.iter().map(|callback| callback.lane).collect();
        if told.iter().any(|callback| callback.chain) {
            let (told, superseded) = in_order(session, told).await?;
            session.insert_callbacks(&told).await?;
            // What was taken back may have been what others waited for.
            session.release_heads(&superseded).await?;
        } else {
            session.insert_callbacks(&told).await?;
        }
        Ok(lanes.into_iter().collect())
    }
}

/// Puts callbacks of chains in their order: of each task only the first can be due, and progress that something newer
/// is told after is not told any more. Also tells of which tasks something was taken back.
async fn in_order(
    session: &mut impl CallbackQueue,
    told: Vec<NewCallback>,
) -> Result<(Vec<NewCallback>, Vec<i64>), StoreError> {
    let mut newest: BTreeMap<i64, usize> = BTreeMap::new();
    for (i, callback) in told.iter().enumerate().filter(|(_, callback)| callback.chain) {
        if callback.event != CallbackEvent::Started {
            newest.insert(callback.task, i);
        }
    }
    let superseded: Vec<i64> = newest.keys().copied().collect();
    let due_before: BTreeMap<i64, _> = session.supersede_progress(&superseded).await?.into_iter().collect();
    let superseded: Vec<i64> = due_before.keys().copied().collect();
    let mut first: HashSet<i64> = HashSet::new();
    let mut ordered = Vec::with_capacity(told.len());
    for (i, mut callback) in told.into_iter().enumerate() {
        if callback.event == CallbackEvent::Progress && newest.get(&callback.task) != Some(&i) {
            continue;
        }
        if callback.chain {
            if callback.event == CallbackEvent::Progress {
                let later = callback.due.map(|now| now.after(PROGRESS_EVERY));
                callback.due = due_before.get(&callback.task).copied().flatten().or(later);
            }
            if !first.insert(callback.task) {
                callback.due = None;
            }
        }
        ordered.push(callback);
    }
    Ok((ordered, superseded))
}
