//! The port to subscriptions and to the queue of pushes: what a store must promise.
//!
//! The queue has a row for each message and subscription. It is filled from the log of notifications: [`PushStore::plan_pushes`]
//! adds what a stretch of the log asks for and moves the cursor, in one transaction, so each entry is looked at once by any
//! number of processes. A push waits, is asked about, is claimed under a lease, and ends. The suite is in
//! `testkit/src/push_suite.rs`.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use relais_core::StoreError;
use uuid::Uuid;

use super::PushSubscription;
use crate::LogPosition;

/// How far the log was looked through for messages to push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushCursor {
    /// The log that it is of.
    pub epoch: String,
    /// The last entry that was looked at.
    pub position: LogPosition,
}

/// A subscription as it is stored.
#[derive(Debug, Clone)]
pub struct StoredPushSubscription {
    /// Made of the endpoint.
    pub id: Uuid,
    /// The subscription.
    pub subscription: PushSubscription,
    /// Since when.
    pub created: Timestamp,
    /// When the push service took a push for the last time.
    pub pushed: Option<Timestamp>,
}

/// What became of a subscription that was to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subscribed {
    /// It is stored. If the browser was another user's before, it is this one's now.
    New(Uuid),
    /// It was there.
    Known(Uuid),
    /// The user has as many as they may have.
    TooMany,
    /// The endpoint is another user's, with other keys.
    Taken,
}

/// What an entry of the log asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlannedPush {
    /// To push a message to those of these users who subscribe; once more if it was pushed before.
    Message {
        /// The message.
        id: Uuid,
        /// Its users, each once.
        users: Vec<String>,
        /// When it expires.
        expiration: Timestamp,
    },
    /// Not to push a message; and to tell those whom it was pushed to that it was withdrawn.
    Withdrawal {
        /// The message.
        id: Uuid,
    },
}

/// A push that a process has taken. No other one takes it until the lease ends.
#[derive(Debug, Clone)]
pub struct ClaimedPush {
    /// The message.
    pub notification: Uuid,
    /// The subscription's id.
    pub subscription_id: Uuid,
    /// Where to.
    pub subscription: PushSubscription,
    /// Whether it tells that the message was withdrawn.
    pub withdrawn: bool,
    /// The number of this try, from 1.
    pub tries: u32,
    /// Changes whenever somebody takes it, or it is planned anew.
    pub claim: u64,
}

/// How a try has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushEnd {
    /// The push service has taken it.
    Pushed,
    /// It is not pushed any more.
    Dropped,
    /// It is tried again after a pause.
    Retry(Duration),
}

/// Subscriptions and the queue of pushes. Each method is one transaction, or a read.
#[async_trait]
pub trait PushStore: Send + Sync {
    /// The key pair that pushes are signed with, the same for all processes: this one, if there is none yet.
    async fn push_key(&self, new: Vec<u8>) -> Result<Vec<u8>, StoreError>;

    /// Stores a subscription; a user has at most `most`. If nobody subscribed before, pushes begin after `head`, the end of the
    /// log. Who has the endpoint of another user and not its keys changes nothing. Wakes who plans pushes.
    async fn subscribe(
        &self,
        subscription: PushSubscription,
        most: usize,
        head: PushCursor,
    ) -> Result<Subscribed, StoreError>;

    /// A user's subscriptions, the oldest first.
    async fn subscriptions_of(&self, user: &str) -> Result<Vec<StoredPushSubscription>, StoreError>;

    /// Removes a subscription with its pushes; with `user`, only one of that user. Whether it was there.
    async fn unsubscribe(&self, id: Uuid, user: Option<&str>) -> Result<bool, StoreError>;

    /// How far the log was looked through; none while nobody subscribes.
    async fn push_cursor(&self) -> Result<Option<PushCursor>, StoreError>;

    /// Plans pushes and moves the cursor; they are due after `delay`. None, and nothing is changed, if the cursor is not `from`
    /// any more. Tells how many pushes were planned.
    async fn plan_pushes(
        &self,
        from: &PushCursor,
        to: &PushCursor,
        planned: Vec<PlannedPush>,
        delay: Duration,
    ) -> Result<Option<u64>, StoreError>;

    /// Asks all processes whether pages are open of the users of pushes that are due: these can be claimed after `window`, and
    /// cancelled until then. Tells how many.
    async fn ask_pushes(&self, limit: usize, window: Duration) -> Result<u64, StoreError>;

    /// Users of pushes that were asked about: at most `limit`.
    async fn users_asked(&self, limit: usize) -> Result<Vec<String>, StoreError>;

    /// Removes pushes that were asked about, because a page of these users is open. What tells that a message was withdrawn stays.
    async fn cancel_pushes(&self, users: Vec<String>) -> Result<u64, StoreError>;

    /// Takes pushes whose window is over, and those whose lease has ended: at most `limit`.
    async fn claim_pushes(&self, limit: usize, lease: Duration) -> Result<Vec<ClaimedPush>, StoreError>;

    /// Notes how a try has ended, unless the push was taken or planned anew meanwhile.
    async fn finish_push(&self, push: ClaimedPush, end: PushEnd) -> Result<(), StoreError>;

    /// How long until something is due; none if nothing is.
    async fn next_push_due(&self) -> Result<Option<Duration>, StoreError>;

    /// Removes pushes of messages that have expired: at most `limit`.
    async fn purge_pushes(&self, limit: usize) -> Result<u64, StoreError>;
}
