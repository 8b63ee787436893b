//! The port to the log and the ledger of notifications: what a store must promise.
//!
//! The log is one sequence of entries with positions. An entry becomes visible in the order of positions: who has read up to
//! a position never finds an entry before it later. The ledger says who has been sent and who has acknowledged what. The
//! suite is in `testkit/src/notification_suite/`.

use std::{collections::HashMap, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use relais_core::StoreError;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{AckStatus, Audience, AudienceKey, EntryKind, LogPosition, Notification, Retry};

/// The end and the beginning of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogHead {
    /// Names this log. A cursor of another log means nothing.
    pub epoch: String,
    /// The position of the last entry.
    pub position: LogPosition,
    /// Entries up to here were purged.
    pub floor: LogPosition,
    /// The database's time.
    pub now: Timestamp,
}

/// A message to be stored.
#[derive(Debug, Clone)]
pub struct NewNotification {
    /// The message.
    pub notification: Notification,
    /// The client that emitted it; none if Relais did.
    pub client: Option<String>,
    /// How long a user has to acknowledge before it is sent again.
    pub ack_timeout: Duration,
}

/// What became of a message that was to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emitted {
    /// It is stored.
    Stored,
    /// There is one with its id already, which stays as it is.
    Known,
    /// It must be acknowledged, and nobody is known who could.
    NoMembers,
}

/// A message as it is stored.
#[derive(Debug, Clone)]
pub struct StoredNotification {
    /// The message, with the attempts of its first sending.
    pub notification: Notification,
    /// The position at which it was emitted.
    pub position: LogPosition,
    /// Who emitted it; none if Relais did.
    pub client: Option<String>,
    /// How it stands.
    pub status: AckStatus,
    /// How often it was sent again.
    pub attempts: u32,
    /// The message that took its place.
    pub replaced_by: Option<Uuid>,
}

/// An entry of the log.
#[derive(Debug, Clone)]
pub struct LogEntry {
    /// Its position.
    pub position: LogPosition,
    /// When it was appended, by the database's clock, in milliseconds: shortly before its transaction ended.
    pub appended: Timestamp,
    /// What it says.
    pub content: EntryContent,
}

/// What an entry of the log says.
#[derive(Debug, Clone)]
pub enum EntryContent {
    /// A message is sent, sent again, or withdrawn.
    Message(EntryKind, Box<StoredNotification>),
    /// A user has acknowledged messages.
    Acknowledged {
        /// Who.
        user: String,
        /// What.
        ids: Vec<Uuid>,
    },
    /// What it said is not known any more: its message was purged.
    Gone,
    /// Members of a target have joined or left.
    Members {
        /// The target.
        key: AudienceKey,
        /// Its parts that have changed.
        changed: Vec<AudienceKey>,
    },
}

/// What a user belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Belonging {
    /// The target.
    pub key: AudienceKey,
    /// Since which position, as it is declared. A user is not awaited for what only a token says.
    pub since: Option<LogPosition>,
}

/// A user, with all targets that the user belongs to: the user's own key too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserScope {
    /// The user.
    pub user: String,
    /// The user's audience keys, each once.
    pub belongs: Vec<Belonging>,
}

impl UserScope {
    /// The keys alone.
    pub fn keys(&self) -> impl Iterator<Item = &AudienceKey> {
        self.belongs.iter().map(|belonging| &belonging.key)
    }

    /// Whether the user must acknowledge a message that was emitted there.
    pub fn is_awaited(&self, audience: &Audience, emitted_at: LogPosition) -> bool {
        self.belongs.iter().any(|belonging| {
            belonging.since.is_some_and(|since| since <= emitted_at)
                && belonging.key.kind == audience.kind
                && audience.targets.contains(&belonging.key.target)
        })
    }

    /// Whether the user sees the messages of an audience.
    pub fn sees(&self, audience: &Audience) -> bool {
        self.keys().any(|key| key.kind == audience.kind && audience.targets.contains(&key.target))
    }
}

/// What a user acknowledges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AckChoice {
    /// These messages.
    These(Vec<Uuid>),
    /// All that the user has not acknowledged.
    All,
}

/// An acknowledgement.
#[derive(Debug, Clone)]
pub struct Acknowledgement {
    /// Whose, with what the user belongs to.
    pub scope: UserScope,
    /// Of what.
    pub choice: AckChoice,
}

/// What an acknowledgement came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Acknowledged {
    /// What the user had not acknowledged before.
    pub new: Vec<Uuid>,
    /// What the user sees and had acknowledged before, among the messages that were named.
    pub known: Vec<Uuid>,
}

/// How many messages a user has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// The user has not acknowledged them.
    pub unread: u64,
    /// The user must acknowledge them, and has not.
    pub unacknowledged: u64,
    /// All that the user sees.
    pub all: u64,
}

/// Which of a user's messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ListFilter {
    /// Those that the user has not acknowledged.
    Unread,
    /// Those that the user must acknowledge, and has not.
    Unacknowledged,
    /// All that the user sees.
    #[default]
    All,
}

/// A page of a user's messages, the newest first.
#[derive(Debug, Clone)]
pub struct ListRequest {
    /// Whose.
    pub scope: UserScope,
    /// Which.
    pub filter: ListFilter,
    /// Only those that were emitted before this position.
    pub before: Option<LogPosition>,
    /// So many.
    pub limit: usize,
}

/// A message in a user's list.
#[derive(Debug, Clone)]
pub struct ListedNotification {
    /// The message.
    pub stored: StoredNotification,
    /// When the user acknowledged it.
    pub acknowledged: Option<Timestamp>,
}

/// What timers came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fired {
    /// How many messages were sent again.
    pub replayed: usize,
    /// How many went to the error log.
    pub failed: usize,
    /// How many have expired.
    pub expired: usize,
    /// How long to wait for the next one; none if there is none.
    pub again: Option<Duration>,
    /// Whether more are due already.
    pub more: bool,
}

/// Why a message can not be changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeRefused {
    /// There is no such message, or it is another client's.
    #[error("notification not found")]
    NotFound,
    /// Its state does not allow it.
    #[error("{0}")]
    State(#[from] crate::AckRefused),
    /// The message that is to take its place can not be stored.
    #[error("the new message has the id of another one")]
    IdTaken,
    /// The message that is to take its place must be acknowledged, and nobody is known who could.
    #[error("the new message must be acknowledged, and its audience has no members")]
    NoMembers,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How the members of a target are changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembersChange {
    /// It has exactly these.
    Set(Vec<AudienceKey>),
    /// It has these too.
    Add(Vec<AudienceKey>),
    /// It does not have these.
    Remove(Vec<AudienceKey>),
}

/// What a change of members came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MembersChanged {
    /// How many joined.
    pub joined: usize,
    /// How many left.
    pub left: usize,
}

/// Why members can not be changed.
#[derive(Debug, thiserror::Error)]
pub enum MembersRefused {
    /// It would contain itself, or is a user.
    #[error(transparent)]
    Membership(#[from] crate::MembershipRefused),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A member of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The user, or another target.
    pub key: AudienceKey,
    /// Since which position.
    pub since: LogPosition,
}

/// That a message was sent to a user.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Delivery {
    /// The message.
    pub id: Uuid,
    /// The user.
    pub user: String,
}

/// A line of the ledger: a message and a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerLine {
    /// The user.
    pub user: String,
    /// Whether the user must acknowledge it.
    pub awaited: bool,
    /// How often it was sent to the user.
    pub deliveries: u32,
    /// When it was sent to the user for the last time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivered: Option<Timestamp>,
    /// When the user acknowledged it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<Timestamp>,
}

/// Which messages an operator, or the client that emitted them, looks at.
#[derive(Debug, Clone, Default)]
pub struct NotificationFilter {
    /// Those of this client.
    pub client: Option<String>,
    /// Those that stand like this.
    pub status: Option<AckStatus>,
    /// Those that were emitted before this position.
    pub before: Option<LogPosition>,
    /// So many.
    pub limit: usize,
}

/// What was removed because it is old.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NotificationsPurged {
    /// Entries of the log.
    pub entries: u64,
    /// Messages, with their ledgers.
    pub notifications: u64,
}

/// The log and the ledger. Each method is one transaction, or a read.
#[async_trait]
pub trait NotificationStore: Send + Sync {
    /// Where the log begins and ends, and what time it is.
    async fn log_head(&self) -> Result<LogHead, StoreError>;

    /// Stores messages and appends an entry for each, in their order. A message whose id is known changes nothing.
    async fn emit_notifications(&self, messages: Vec<NewNotification>) -> Result<Vec<Emitted>, StoreError>;

    /// What would become of messages if they were stored, as far as that is known before.
    async fn check_notifications(&self, messages: &[NewNotification]) -> Result<Vec<Emitted>, StoreError>;

    /// The entries after a position, in their order: at most `limit`.
    async fn read_log(&self, after: LogPosition, limit: usize) -> Result<Vec<LogEntry>, StoreError>;

    /// The entries after a position up to another that are for a user, in their order: at most `limit`. The cost is that of the
    /// user's own entries.
    async fn read_log_of(
        &self,
        scope: &UserScope,
        after: LogPosition,
        up_to: LogPosition,
        limit: usize,
    ) -> Result<Vec<LogEntry>, StoreError>;

    /// What users belong to, as it is declared; their own keys too.
    async fn scopes_of(&self, users: Vec<String>) -> Result<HashMap<String, UserScope>, StoreError>;

    /// Which of these users have acknowledged a message.
    async fn acknowledged_by(&self, id: Uuid, users: Vec<String>) -> Result<Vec<String>, StoreError>;

    /// Which of these messages a user has acknowledged.
    async fn acknowledged_of(&self, user: &str, ids: Vec<Uuid>) -> Result<Vec<Uuid>, StoreError>;

    /// Writes acknowledgements, and what follows from them. What a user does not see is passed over. An entry of the log tells
    /// the user's other links.
    async fn acknowledge(&self, acknowledgements: Vec<Acknowledgement>) -> Result<Vec<Acknowledged>, StoreError>;

    /// A page of a user's messages, the newest first. What has expired or was withdrawn is not there.
    async fn list_of_user(&self, request: ListRequest) -> Result<Vec<ListedNotification>, StoreError>;

    /// How many messages a user has.
    async fn count_of_user(&self, scope: &UserScope) -> Result<Counts, StoreError>;

    /// Does what is due by the clock, to at most `limit` messages. Whoever calls it, each message is sent again once.
    async fn fire_notification_timers(&self, limit: usize) -> Result<Fired, StoreError>;

    /// Withdraws a message; with `replacement`, another one takes its place in the same transaction. With `client`, only a
    /// message of that client.
    async fn withdraw(
        &self,
        id: Uuid,
        client: Option<String>,
        replacement: Option<NewNotification>,
    ) -> Result<(), ChangeRefused>;

    /// Sends a message of the error log again.
    async fn resend(&self, id: Uuid, client: Option<String>) -> Result<(), ChangeRefused>;

    /// Changes the members of a target. An entry of the log tells it.
    async fn change_members(&self, key: AudienceKey, change: MembersChange) -> Result<MembersChanged, MembersRefused>;

    /// The members of a target in the order of their names, after one of them: at most `limit`.
    async fn list_members(
        &self,
        key: &AudienceKey,
        after: Option<AudienceKey>,
        limit: usize,
    ) -> Result<Vec<Member>, StoreError>;

    /// Writes to the ledger that messages were sent to users.
    async fn record_deliveries(&self, deliveries: Vec<Delivery>) -> Result<(), StoreError>;

    /// Messages for operators and emitters, the newest first.
    async fn list_notifications(&self, filter: NotificationFilter) -> Result<Vec<StoredNotification>, StoreError>;

    /// A message, with up to `limit` lines of its ledger: first those who are awaited and have not acknowledged.
    async fn find_notification(
        &self,
        id: Uuid,
        limit: usize,
    ) -> Result<Option<(StoredNotification, Vec<LedgerLine>)>, StoreError>;

    /// Removes entries that were appended longer ago than `log_age`, and messages that expired longer ago than `age`: at most
    /// `limit` of each.
    async fn purge_notifications(
        &self,
        log_age: Duration,
        age: Duration,
        limit: usize,
    ) -> Result<NotificationsPurged, StoreError>;

    /// The key that signs tickets, the same for all processes. The first call makes it.
    async fn ticket_key(&self) -> Result<[u8; 32], StoreError>;
}

impl StoredNotification {
    /// The message as an entry of this kind sends it.
    pub fn as_sent(&self, kind: EntryKind) -> Notification {
        let mut sent = self.notification.clone();
        if let EntryKind::Replayed { attempts } = kind {
            sent.routing.retry = Retry { attempts, ..sent.routing.retry };
        }
        sent
    }
}
