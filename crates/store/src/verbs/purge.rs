//! Removing what is too old, in batches so small that nobody notices.

use std::time::Duration;

use relais_core::{IdsChanged, PurgeReport, PurgeRule, Status, StoreError, Wakeup, position};

use super::{Verbs, ledger::Ledger};
use crate::session::{Database, PurgeScan, Session};

/// Whoever watches a task that is purged finds out by itself.
const NOBODY_WAITS: Wakeup = Wakeup { work: Vec::new(), tasks: IdsChanged::These(Vec::new()), declared: false };

/// Statuses are gone through in this order; a cursor says where in it the last call stopped.
const ORDER: [Status; 5] = [Status::Success, Status::Failure, Status::Cancelled, Status::InProgress, Status::Pending];

impl<D: Database> Verbs<D> {
    /// Looks at one batch of one status of one service.
    pub(super) async fn purge_batch(&self, rule: PurgeRule) -> Result<PurgeReport, StoreError> {
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
        let candidates = session.lock_for_purge(&scan).await?;
        let mut ledger = Ledger::default();
        let mut ids = Vec::new();
        for candidate in candidates.iter().filter(|candidate| candidate.too_old) {
            ids.push(candidate.id);
            ledger.removed(rule.service, candidate.client, candidate.seq, status);
        }
        if rule.dry_run {
            ledger = Ledger::default();
        } else if !ids.is_empty() {
            session.delete_tasks(&ids).await?;
        }
        // In a dry run too: the locks must go before the next call.
        self.finish(session, ledger, NOBODY_WAITS).await?;
        let cursor = match candidates.last() {
            Some(last) if candidates.len() >= rule.batch => Some((status, last.id)),
            _ => ORDER.iter().skip_while(|&&s| s != status).nth(1).map(|&next| (next, 0)),
        };
        Ok(PurgeReport { purged: ids.len() as u64, cursor })
    }

    /// Forgets old idempotency keys, and nodes of trees that no place depends on.
    pub(super) async fn tidy_up(&self, idempotency_age: Duration) -> Result<u64, StoreError> {
        let mut session = self.database.begin().await?;
        let forgotten = session.forget_keys(idempotency_age).await?;
        for (service, floor) in session.queue_floors().await? {
            for (level, before_slot) in position::first_needed(floor).into_iter().enumerate() {
                session.drop_departures(service, level as i16, before_slot).await?;
            }
        }
        session.commit().await?;
        Ok(forgotten)
    }
}
