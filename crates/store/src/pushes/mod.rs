//! Pushes: the subscriptions of browsers, and the queue of what is pushed to them.
//!
//! Whoever plans pushes, or changes subscriptions, locks the head first ([`PushRows::lock_push_head`]); pushes are locked after
//! it, in the order of their keys, or passed over where somebody else has them.
//!
//! The states of a push, as numbers: 0 it waits, 1 it was asked about, 2 it is being sent, 3 it was pushed.

pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use std::time::Duration;

use async_trait::async_trait;
use relais_core::{StoreError, Wakeup};
use relais_notify::{
    ClaimedPush, PlannedPush, PushCursor, PushEnd, PushStore, PushSubscription, StoredPushSubscription, Subscribed,
};
use uuid::Uuid;

use self::statements::{PlannedRow, PushRows as _};
use crate::{
    counters::ledger::Ledger,
    notifications::statements::from_jiff,
    row::wide,
    session::{Database, Session as _},
    verbs::Verbs,
};

/// Something that other processes are to look at.
fn told() -> Wakeup {
    Wakeup { pushes: true, ..Wakeup::default() }
}

#[async_trait]
impl<D: Database> PushStore for Verbs<D> {
    async fn push_key(&self, new: Vec<u8>) -> Result<Vec<u8>, StoreError> {
        let mut session = self.database.begin().await?;
        let key = session.push_key(&new).await?;
        session.commit().await?;
        Ok(key)
    }

    async fn subscribe(
        &self,
        subscription: PushSubscription,
        most: usize,
        head: PushCursor,
    ) -> Result<Subscribed, StoreError> {
        let mut session = self.database.begin().await?;
        let cursor = session.lock_push_head().await?;
        let id = subscription.id();
        let known = session.find_subscription(id).await?;
        let is_theirs = known.as_ref().is_some_and(|known| known.subscription.user == subscription.user);
        let has_moved = known.is_some() && !is_theirs;
        let answer = match &known {
            // Who has the endpoint and not its keys is not the browser.
            Some(known) if has_moved && !known.subscription.has_keys_of(&subscription) => Subscribed::Taken,
            Some(known) if known.subscription == subscription => Subscribed::Known(id),
            _ if !is_theirs && session.count_subscriptions(&subscription.user).await? >= wide(most) => {
                Subscribed::TooMany
            }
            _ => Subscribed::New(id),
        };
        if !matches!(answer, Subscribed::New(_)) {
            session.commit().await?;
            return Ok(answer);
        }
        if has_moved {
            // What waits is for whoever used the browser before.
            session.delete_pushes_of(id).await?;
        }
        session.put_subscription(id, &subscription).await?;
        if cursor.is_none() {
            session.set_push_cursor(Some(&head)).await?;
        }
        self.finish(session, Ledger::default(), told()).await?;
        Ok(answer)
    }

    async fn subscriptions_of(&self, user: &str) -> Result<Vec<StoredPushSubscription>, StoreError> {
        self.database.subscriptions_of(user).await
    }

    async fn unsubscribe(&self, id: Uuid, user: Option<&str>) -> Result<bool, StoreError> {
        let mut session = self.database.begin().await?;
        session.lock_push_head().await?;
        let known = session.find_subscription(id).await?;
        let is_theirs = known.is_some_and(|known| user.is_none_or(|user| known.subscription.user == user));
        if is_theirs {
            session.delete_subscription(id).await?;
            if !session.has_subscriptions().await? {
                session.set_push_cursor(None).await?;
            }
        }
        session.commit().await?;
        Ok(is_theirs)
    }

    async fn push_cursor(&self) -> Result<Option<PushCursor>, StoreError> {
        self.database.read_push_cursor().await
    }

    async fn plan_pushes(
        &self,
        from: &PushCursor,
        to: &PushCursor,
        planned: Vec<PlannedPush>,
        delay: Duration,
    ) -> Result<Option<u64>, StoreError> {
        let mut session = self.database.begin().await?;
        if session.lock_push_head().await?.as_ref() != Some(from) {
            session.commit().await?;
            return Ok(None);
        }
        let mut count = 0;
        // In their order: a message may be withdrawn after it was sent, and never the other way round.
        for push in &planned {
            count += match push {
                PlannedPush::Message { id, users, expiration } => {
                    let row = PlannedRow { id: *id, users, expiration: from_jiff(*expiration) };
                    session.plan_messages(&[row], delay).await?
                }
                PlannedPush::Withdrawal { id } => session.plan_withdrawals(&[*id], delay).await?,
            };
        }
        session.set_push_cursor(Some(to)).await?;
        session.commit().await?;
        Ok(Some(count))
    }

    async fn ask_pushes(&self, limit: usize, window: Duration) -> Result<u64, StoreError> {
        let mut session = self.database.begin().await?;
        let asked = session.ask_pushes(wide(limit), window).await?;
        let wakeup = if asked > 0 { told() } else { Wakeup::default() };
        self.finish(session, Ledger::default(), wakeup).await?;
        Ok(asked)
    }

    async fn users_asked(&self, limit: usize) -> Result<Vec<String>, StoreError> {
        self.database.users_asked(wide(limit)).await
    }

    async fn cancel_pushes(&self, users: Vec<String>) -> Result<u64, StoreError> {
        let mut session = self.database.begin().await?;
        let cancelled = session.cancel_pushes(&users).await?;
        session.commit().await?;
        Ok(cancelled)
    }

    async fn claim_pushes(&self, limit: usize, lease: Duration) -> Result<Vec<ClaimedPush>, StoreError> {
        let mut session = self.database.begin().await?;
        let claimed = session.claim_pushes(wide(limit), lease).await?;
        session.commit().await?;
        Ok(claimed)
    }

    async fn finish_push(&self, push: ClaimedPush, end: PushEnd) -> Result<(), StoreError> {
        let mut session = self.database.begin().await?;
        match end {
            PushEnd::Pushed => session.end_pushes(&[push]).await?,
            PushEnd::Dropped => session.drop_pushes(&[push]).await?,
            PushEnd::Retry(pause) => session.retry_push(&push, pause).await?,
        }
        session.commit().await
    }

    async fn next_push_due(&self) -> Result<Option<Duration>, StoreError> {
        self.database.next_push_due().await
    }

    async fn purge_pushes(&self, limit: usize) -> Result<u64, StoreError> {
        let mut session = self.database.begin().await?;
        let purged = session.purge_pushes(wide(limit)).await?;
        session.commit().await?;
        Ok(purged)
    }
}
