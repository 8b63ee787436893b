//! Purges: remove what is too old, in transactions so short that nobody waits for them.

pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use std::{
    collections::{HashMap, HashSet},
    pin::Pin,
    time::Duration,
};

use relais_core::{PurgeReport, PurgeRule, Status, StoreError, Wakeup, position};

use crate::{
    batches::statements::Batches as _,
    callbacks::statements::CallbackQueue as _,
    counters::ledger::Ledger,
    history::statements::History as _,
    purge::statements::{PurgeCandidate, PurgeRows as _, PurgeScan},
    session::{Database, Session as _},
    submissions::statements::SubmissionRows as _,
    verbs::Verbs,
};

/// How many keys one transaction removes: few enough that submissions do not wait.
const KEYS: usize = 2_000;

/// A parked lane to which nothing was sent for this long is removed.
const FORGET_LANES: Duration = Duration::from_secs(7 * 86_400);

/// Refused transactional submissions are kept for this long.
const REFUSED: Duration = Duration::from_secs(30 * 86_400);

/// A statement that removes rows and tells how many.
pub(crate) type Removal<'s> = Pin<Box<dyn Future<Output = Result<u64, StoreError>> + Send + 's>>;

/// The order in which a purge goes through the statuses. A cursor says where the last call stopped.
const ORDER: [Status; 6] =
    [Status::Success, Status::Failure, Status::Cancelled, Status::InProgress, Status::Waiting, Status::Pending];

impl<D: Database> Verbs<D> {
    /// Purges one batch of tasks of one service in one status.
    pub(crate) async fn purge_tasks(&self, rule: PurgeRule) -> Result<PurgeReport, StoreError> {
        let (status, after_id) = rule.cursor.unwrap_or((ORDER[0], 0));
        let mut session = self.database.begin().await?;
        let scan = PurgeScan {
            service: rule.service,
            status,
            after_id,
            finished: rule.finished,
            any: rule.any,
            batch: rule.batch,
        };
        let candidates = session.scan_for_purge(&scan).await?;
        let mut old: HashMap<i64, PurgeCandidate> = candidates
            .iter()
            .filter(|candidate| candidate.too_old)
            .map(|candidate| (candidate.id, *candidate))
            .collect();
        if !rule.dry_run && !old.is_empty() {
            // Nothing was locked so far. What moved on in the meantime, or is being changed, is left for the next time.
            let mut ids: Vec<i64> = old.keys().copied().collect();
            ids.sort_unstable();
            let deleted: HashSet<i64> = session.delete_tasks(&ids, status).await?.into_iter().collect();
            old.retain(|id, _| deleted.contains(id));
        }
        let mut ledger = Ledger::default();
        if !rule.dry_run {
            for candidate in old.values() {
                ledger.removed(rule.service, candidate.client, candidate.seq, status);
                if !status.is_final() {
                    // It will not end any more: to its batch, that is as if it had been given up.
                    ledger.moved_in_batch(candidate.batch, Some(status), Status::Cancelled);
                }
            }
        }
        // Whoever watches a task that is purged finds out by itself; whoever waits for one to end does not.
        let (makes_room, limited) = (!rule.dry_run && !status.is_final() && !old.is_empty(), self.limited());
        let woken = |wanted: bool| if makes_room && wanted { vec![rule.service] } else { Vec::new() };
        let work = woken(status == Status::InProgress && limited.running.contains(&rule.service));
        let dispatch = woken(limited.windows.contains(&rule.service));
        self.finish(session, ledger, Wakeup { work, dispatch, ..Wakeup::default() }).await?;
        let cursor = match candidates.last() {
            Some(last) if candidates.len() >= rule.batch => Some((status, last.id)),
            _ => ORDER.iter().skip_while(|&&s| s != status).nth(1).map(|&next| (next, 0)),
        };
        Ok(PurgeReport { purged: old.len() as u64, cursor })
    }

    /// Removes old idempotency keys and unique keys, refused transactional submissions, old lanes, and nodes of
    /// position trees that no position depends on.
    pub(crate) async fn purge_keys(&self, idempotency_age: Duration) -> Result<u64, StoreError> {
        let limit = KEYS as u64;
        let of_tasks = self.purge_rows(limit, |session| Box::pin(session.forget_keys(idempotency_age, KEYS))).await?;
        let of_batches =
            self.purge_rows(limit, |session| Box::pin(session.forget_batch_keys(idempotency_age, KEYS))).await?;
        self.purge_rows(limit, |session| Box::pin(session.forget_unique(KEYS))).await?;
        let mut session = self.database.begin().await?;
        session.purge_submissions(REFUSED, KEYS).await?;
        session.forget_lanes(FORGET_LANES).await?;
        let floors = session.queue_floors().await?;
        session.commit().await?;
        for (service, floor) in floors {
            for (level, before_slot) in position::first_needed(floor).into_iter().enumerate() {
                // Slots that were never written are among those that are looked at: only none at all is the end.
                self.purge_rows(1, |session| {
                    Box::pin(session.drop_departures(service, level as i16, before_slot, KEYS))
                })
                .await?;
            }
        }
        Ok(of_tasks + of_batches)
    }

    /// Removes rows, a few in each transaction, until one removes fewer than `enough`; tells how many were removed in
    /// all.
    pub(crate) async fn purge_rows<F>(&self, enough: u64, remove: F) -> Result<u64, StoreError>
    where
        F: for<'s> Fn(&'s mut D::Session) -> Removal<'s> + Send + Sync,
    {
        let mut removed = 0;
        loop {
            let mut session = self.database.begin().await?;
            let some = remove(&mut session).await?;
            session.commit().await?;
            removed += some;
            if some < enough {
                return Ok(removed);
            }
        }
    }
}
