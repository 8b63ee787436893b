//! What pushes need of a database, and how the rows are read.

use std::{future::Future, time::Duration};

use relais_core::Timestamp;
use relais_notify::{ClaimedPush, PushCursor, PushSubscription, StoredPushSubscription};
use uuid::Uuid;

use crate::{
    notifications::statements::to_jiff,
    row::{Columns, corrupt, narrow, unsigned},
    session::Result,
};

/// A message to users of whom some subscribe.
#[derive(Debug)]
pub(crate) struct PlannedRow<'a> {
    pub(crate) id: Uuid,
    pub(crate) users: &'a [String],
    pub(crate) expiration: Timestamp,
}

/// Reads of subscriptions and pushes, which need no transaction.
pub(crate) trait PushReader: Send + Sync {
    fn read_push_cursor(&self) -> impl Future<Output = Result<Option<PushCursor>>> + Send;

    fn subscriptions_of(&self, user: &str) -> impl Future<Output = Result<Vec<StoredPushSubscription>>> + Send;

    /// Users of pushes that were asked about.
    fn users_asked(&self, limit: i64) -> impl Future<Output = Result<Vec<String>>> + Send;

    /// How long until something is due; none if nothing is.
    fn next_push_due(&self) -> impl Future<Output = Result<Option<Duration>>> + Send;
}

/// Subscriptions and pushes within a transaction.
pub(crate) trait PushRows: Send {
    /// Locks the head: how far the log was looked through.
    fn lock_push_head(&mut self) -> impl Future<Output = Result<Option<PushCursor>>> + Send;

    fn set_push_cursor(&mut self, cursor: Option<&PushCursor>) -> impl Future<Output = Result<()>> + Send;

    /// The key pair; this one, if there is none.
    fn push_key(&mut self, new: &[u8]) -> impl Future<Output = Result<Vec<u8>>> + Send;

    fn find_subscription(&mut self, id: Uuid) -> impl Future<Output = Result<Option<StoredPushSubscription>>> + Send;

    fn count_subscriptions(&mut self, user: &str) -> impl Future<Output = Result<i64>> + Send;

    fn has_subscriptions(&mut self) -> impl Future<Output = Result<bool>> + Send;

    /// Inserts a subscription, or gives the one that is there to this user with these keys.
    fn put_subscription(
        &mut self,
        id: Uuid,
        subscription: &PushSubscription,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Removes a subscription and its pushes. Whether it was there.
    fn delete_subscription(&mut self, id: Uuid) -> impl Future<Output = Result<bool>> + Send;

    /// Removes the pushes of a subscription.
    fn delete_pushes_of(&mut self, subscription: Uuid) -> impl Future<Output = Result<()>> + Send;

    /// Adds a push for each subscription of each user, or lets the one that is there wait anew. Tells how many.
    fn plan_messages(&mut self, rows: &[PlannedRow<'_>], delay: Duration) -> impl Future<Output = Result<u64>> + Send;

    /// Removes pushes of messages that were not sent yet; where they were, it is pushed that the messages were withdrawn.
    fn plan_withdrawals(&mut self, ids: &[Uuid], delay: Duration) -> impl Future<Output = Result<u64>> + Send;

    /// Asks about pushes that are due. Tells how many.
    fn ask_pushes(&mut self, limit: i64, window: Duration) -> impl Future<Output = Result<u64>> + Send;

    /// Removes pushes that were asked about.
    fn cancel_pushes(&mut self, users: &[String]) -> impl Future<Output = Result<u64>> + Send;

    /// Takes pushes whose time to answer is over, and those whose lease has ended.
    fn claim_pushes(&mut self, limit: i64, lease: Duration) -> impl Future<Output = Result<Vec<ClaimedPush>>> + Send;

    /// Notes that pushes were sent.
    fn end_pushes(&mut self, sent: &[ClaimedPush]) -> impl Future<Output = Result<()>> + Send;

    /// Removes pushes that are not sent.
    fn drop_pushes(&mut self, dropped: &[ClaimedPush]) -> impl Future<Output = Result<()>> + Send;

    /// Lets a push wait for its next try.
    fn retry_push(&mut self, push: &ClaimedPush, pause: Duration) -> impl Future<Output = Result<()>> + Send;

    fn purge_pushes(&mut self, limit: i64) -> impl Future<Output = Result<u64>> + Send;
}

fn uuid(row: &impl Columns, column: &str) -> Result<Uuid> {
    row.text(column)?.parse().map_err(corrupt)
}

pub(crate) fn cursor(row: &impl Columns) -> Result<Option<PushCursor>> {
    let Some(epoch) = row.text_if_any("epoch")? else { return Ok(None) };
    Ok(Some(PushCursor { epoch, position: unsigned(row.big("position")?) }))
}

fn subscription(row: &impl Columns) -> Result<PushSubscription> {
    let subscription = PushSubscription::from_parts(
        row.text("user_id")?,
        row.text("endpoint")?,
        &row.bytes("p256dh")?,
        &row.bytes("auth")?,
    );
    subscription.ok_or_else(|| corrupt("the keys of a push subscription have another length"))
}

pub(crate) fn stored(row: &impl Columns) -> Result<StoredPushSubscription> {
    Ok(StoredPushSubscription {
        id: uuid(row, "id")?,
        subscription: subscription(row)?,
        created: to_jiff(row.moment("created")?),
        pushed: row.moment_if_any("pushed")?.map(to_jiff),
    })
}

pub(crate) fn claimed(row: &impl Columns) -> Result<ClaimedPush> {
    Ok(ClaimedPush {
        notification: uuid(row, "notification")?,
        subscription_id: uuid(row, "id")?,
        subscription: subscription(row)?,
        withdrawn: row.flag("withdrawn")?,
        tries: narrow(row.int("tries")?),
        claim: unsigned(row.big("claim")?),
    })
}
