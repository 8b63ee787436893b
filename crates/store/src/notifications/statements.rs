//! What the log and the ledger of notifications need of a database, and how the rows are read.

use std::{future::Future, time::Duration};

use relais_core::{StoreError, Timestamp};
use relais_notify::{
    AckPolicy, AckState, AckStatus, AudienceKey, Belonging, Counts, Delivery, EntryContent, EntryKind, LedgerLine,
    ListRequest, ListedNotification, LogEntry, LogHead, LogPosition, Member, Notification, NotificationFilter,
    NotificationsPurged, StoredNotification, UserScope,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    row::{Columns, corrupt, millis, narrow, unsigned},
    session::Result,
};

/// The kinds of entries, as numbers in the store.
pub(crate) const EMITTED: i16 = 0;
pub(crate) const REPLAYED: i16 = 1;
pub(crate) const WITHDRAWN: i16 = 2;
pub(crate) const ACKNOWLEDGED: i16 = 3;
pub(crate) const MEMBERS: i16 = 4;

/// A message with all that its rules need.
#[derive(Debug, Clone)]
pub(crate) struct NotificationRow {
    pub(crate) stored: StoredNotification,
    pub(crate) policy: AckPolicy,
    pub(crate) state: AckState,
    /// At least how many must acknowledge it and have not.
    pub(crate) outstanding: i64,
}

/// A message that is inserted.
#[derive(Debug)]
pub(crate) struct InsertedRow {
    pub(crate) id: Uuid,
    pub(crate) position: i64,
    pub(crate) client: Option<String>,
    pub(crate) message: String,
    pub(crate) ack_required: bool,
    pub(crate) ack_timeout_ms: i64,
    pub(crate) expiration: Timestamp,
    pub(crate) due: Option<Timestamp>,
    pub(crate) outstanding: i64,
}

/// The new state of a message, and the revision that it was made of.
#[derive(Debug)]
pub(crate) struct ChangedState {
    pub(crate) id: Uuid,
    pub(crate) state: AckState,
    pub(crate) before: u64,
    pub(crate) outstanding: i64,
    pub(crate) replaced_by: Option<Uuid>,
}

/// An entry that is appended.
#[derive(Debug)]
pub(crate) struct AppendedEntry {
    pub(crate) position: i64,
    pub(crate) kind: i16,
    pub(crate) notification: Option<Uuid>,
    pub(crate) attempts: u32,
    pub(crate) detail: Option<String>,
    pub(crate) keys: Vec<AudienceKey>,
}

/// The detail of an entry of acknowledgement.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AcknowledgedDetail {
    pub(crate) user: String,
    pub(crate) ids: Vec<Uuid>,
}

/// The detail of an entry of changed members. Each key is a type and a target.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MembersDetail {
    pub(crate) key: (String, String),
    pub(crate) changed: Vec<(String, String)>,
}

/// Reads of the log and the ledger, which need no transaction.
pub(crate) trait NotificationReader: Send + Sync {
    fn read_head(&self) -> impl Future<Output = Result<LogHead>> + Send;

    fn read_entries(&self, after: i64, limit: i64) -> impl Future<Output = Result<Vec<LogEntry>>> + Send;

    fn read_entries_of(
        &self,
        keys: &[&AudienceKey],
        after: i64,
        up_to: i64,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<LogEntry>>> + Send;

    /// What these users belong to, without themselves: user, target, since when.
    fn read_scopes(&self, users: &[String]) -> impl Future<Output = Result<Vec<(String, Belonging)>>> + Send;

    fn acknowledged_by(&self, id: Uuid, users: &[String]) -> impl Future<Output = Result<Vec<String>>> + Send;

    fn acknowledged_of(&self, user: &str, ids: &[Uuid]) -> impl Future<Output = Result<Vec<Uuid>>> + Send;

    fn list_of_user(&self, request: &ListRequest) -> impl Future<Output = Result<Vec<ListedNotification>>> + Send;

    fn count_of_user(&self, scope: &UserScope) -> impl Future<Output = Result<Counts>> + Send;

    /// How long until the next timer; none if there is none.
    fn next_notification_due(&self) -> impl Future<Output = Result<Option<Duration>>> + Send;

    fn list_members(
        &self,
        key: &AudienceKey,
        after: Option<&AudienceKey>,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<Member>>> + Send;

    fn list_notifications(
        &self,
        filter: &NotificationFilter,
    ) -> impl Future<Output = Result<Vec<StoredNotification>>> + Send;

    fn find_notification(&self, id: Uuid) -> impl Future<Output = Result<Option<StoredNotification>>> + Send;

    /// Users who are awaited for a message or have been sent it: first those who are awaited and have not acknowledged.
    fn read_ledger(
        &self,
        id: Uuid,
        keys: &[AudienceKey],
        emitted_at: i64,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<LedgerLine>>> + Send;
}

/// The log and the ledger within a transaction. Messages that exist are locked before the head, which is locked last.
pub(crate) trait NotificationRows: Send {
    /// Locks the end of the log until the commit.
    fn lock_head(&mut self) -> impl Future<Output = Result<LogHead>> + Send;

    fn advance_head(&mut self, position: i64) -> impl Future<Output = Result<()>> + Send;

    /// Which of these messages are stored.
    fn known_notifications(&mut self, ids: &[Uuid]) -> impl Future<Output = Result<Vec<Uuid>>> + Send;

    fn insert_notifications(&mut self, rows: &[InsertedRow]) -> impl Future<Output = Result<()>> + Send;

    fn append_entries(&mut self, entries: &[AppendedEntry]) -> impl Future<Output = Result<()>> + Send;

    /// How many users must acknowledge a message that was emitted there, and have not.
    fn count_awaited(
        &mut self,
        keys: &[AudienceKey],
        emitted_at: i64,
        id: Uuid,
    ) -> impl Future<Output = Result<i64>> + Send;

    /// Locks messages, in the order of their ids.
    fn lock_notifications(&mut self, ids: &[Uuid]) -> impl Future<Output = Result<Vec<NotificationRow>>> + Send;

    /// Locks messages that are due and that nobody else has locked, with the database's time.
    fn lock_due(&mut self, limit: i64) -> impl Future<Output = Result<(Vec<NotificationRow>, Timestamp)>> + Send;

    fn write_states(&mut self, changes: &[ChangedState]) -> impl Future<Output = Result<()>> + Send;

    /// Which of these messages are for one of these keys and not over.
    fn visible_notifications(
        &mut self,
        keys: &[&AudienceKey],
        ids: &[Uuid],
    ) -> impl Future<Output = Result<Vec<Uuid>>> + Send;

    /// Messages for these keys that are not over and that the user has not acknowledged.
    fn unread_notifications(
        &mut self,
        user: &str,
        keys: &[&AudienceKey],
        limit: i64,
    ) -> impl Future<Output = Result<Vec<Uuid>>> + Send;

    /// Writes that users have acknowledged messages; answers the pairs that were not there before. Each pair is there once, in
    /// their order, which is that of [`write_deliveries`](Self::write_deliveries): both write the same rows.
    fn write_acknowledgements(
        &mut self,
        pairs: &[(Uuid, &str)],
    ) -> impl Future<Output = Result<Vec<(Uuid, String)>>> + Send;

    /// The direct members of a target.
    fn members_of(&mut self, key: &AudienceKey) -> impl Future<Output = Result<Vec<AudienceKey>>> + Send;

    /// Which of these contain a target, directly or not.
    fn which_contain(
        &mut self,
        wholes: &[AudienceKey],
        part: &AudienceKey,
    ) -> impl Future<Output = Result<Vec<AudienceKey>>> + Send;

    fn insert_members(
        &mut self,
        key: &AudienceKey,
        members: &[AudienceKey],
        since: i64,
    ) -> impl Future<Output = Result<()>> + Send;

    fn delete_members(&mut self, key: &AudienceKey, members: &[AudienceKey])
    -> impl Future<Output = Result<()>> + Send;

    /// Open messages that must be acknowledged and are for a target, or for one that contains it, with their positions; those
    /// after a position, in their order.
    fn open_notifications(
        &mut self,
        key: &AudienceKey,
        after: i64,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<(Uuid, i64)>>> + Send;

    /// Adds to how often messages were sent to users. Each pair is there once, in their order.
    fn write_deliveries(&mut self, deliveries: &[(Delivery, i32)]) -> impl Future<Output = Result<()>> + Send;

    fn purge_entries(&mut self, age: Duration, limit: i64) -> impl Future<Output = Result<u64>> + Send;

    fn purge_notifications(&mut self, age: Duration, limit: i64) -> impl Future<Output = Result<u64>> + Send;

    /// The key that signs tickets; this one, if there is none.
    fn ticket_key(&mut self, new: &[u8; 32]) -> impl Future<Output = Result<Vec<u8>>> + Send;
}

pub(crate) fn status_code(status: AckStatus) -> i16 {
    match status {
        AckStatus::Open => 0,
        AckStatus::Acknowledged => 1,
        AckStatus::Failed => 2,
        AckStatus::Expired => 3,
        AckStatus::Withdrawn => 4,
    }
}

fn status(code: i16) -> Result<AckStatus> {
    Ok(match code {
        0 => AckStatus::Open,
        1 => AckStatus::Acknowledged,
        2 => AckStatus::Failed,
        3 => AckStatus::Expired,
        4 => AckStatus::Withdrawn,
        _ => return Err(corrupt(format!("status {code} of a notification"))),
    })
}

pub(crate) fn to_jiff(moment: Timestamp) -> jiff::Timestamp {
    jiff::Timestamp::from_millisecond(moment.as_millis()).unwrap_or(jiff::Timestamp::MAX)
}

pub(crate) fn from_jiff(moment: jiff::Timestamp) -> Timestamp {
    Timestamp::from_millis(moment.as_millisecond())
}

fn uuid(text: &str) -> Result<Uuid> {
    text.parse().map_err(corrupt)
}

fn uuid_if_any(row: &impl Columns, column: &str) -> Result<Option<Uuid>> {
    row.text_if_any(column)?.as_deref().map(uuid).transpose()
}

/// Ids are read as texts in both dialects.
pub(crate) fn ids(rows: &[impl Columns]) -> Result<Vec<Uuid>> {
    rows.iter().map(|row| uuid(&row.text("id")?)).collect()
}

pub(crate) fn head(row: &impl Columns) -> Result<LogHead> {
    Ok(LogHead {
        epoch: row.text("epoch")?,
        position: unsigned(row.big("position")?),
        floor: unsigned(row.big("floor")?),
        now: to_jiff(row.moment("now")?),
    })
}

/// A message and a user who has acknowledged it.
pub(crate) fn acknowledged_pair(row: &impl Columns) -> Result<(Uuid, String)> {
    Ok((uuid(&row.text("id")?)?, row.text("user_id")?))
}

fn message(row: &impl Columns) -> Result<Notification> {
    serde_json::from_str(&row.text("message")?).map_err(corrupt)
}

pub(crate) fn stored(row: &impl Columns) -> Result<StoredNotification> {
    Ok(StoredNotification {
        notification: message(row)?,
        position: unsigned(row.big("emitted_at")?),
        client: row.text_if_any("client")?,
        status: status(row.small("status")?)?,
        attempts: narrow(row.int("attempts")?),
        replaced_by: uuid_if_any(row, "replaced_by")?,
    })
}

pub(crate) fn notification_row(row: &impl Columns) -> Result<NotificationRow> {
    let stored = stored(row)?;
    let policy = AckPolicy {
        retry: stored.notification.routing.retry,
        ack_timeout: millis(row.big("ack_timeout_ms")?),
        expiration: to_jiff(row.moment("expiration")?),
    };
    let state = AckState {
        status: stored.status,
        attempts: stored.attempts,
        resent_at: narrow(row.int("resent_at")?),
        due: row.moment_if_any("due")?.map(to_jiff),
        revision: unsigned(row.big("revision")?),
    };
    Ok(NotificationRow { stored, policy, state, outstanding: row.big("outstanding")? })
}

/// An entry with the message that it is about.
pub(crate) fn entry(row: &impl Columns) -> Result<LogEntry> {
    let position = unsigned(row.big("position")?);
    let kind = row.small("kind")?;
    let content = match kind {
        ACKNOWLEDGED => {
            let AcknowledgedDetail { user, ids } = detail(row)?;
            EntryContent::Acknowledged { user, ids }
        }
        MEMBERS => {
            let MembersDetail { key: (kind, target), changed } = detail(row)?;
            let changed = changed.into_iter().map(|(kind, target)| AudienceKey { kind, target }).collect();
            EntryContent::Members { key: AudienceKey { kind, target }, changed }
        }
        EMITTED | REPLAYED | WITHDRAWN if row.text_if_any("message")?.is_none() => EntryContent::Gone,
        EMITTED | REPLAYED | WITHDRAWN => {
            let kind = match kind {
                EMITTED => EntryKind::Emitted,
                REPLAYED => EntryKind::Replayed { attempts: narrow(row.int("entry_attempts")?) },
                _ => EntryKind::Withdrawn,
            };
            EntryContent::Message(kind, Box::new(stored(row)?))
        }
        _ => return Err(corrupt(format!("kind {kind} of an entry of the log"))),
    };
    Ok(LogEntry { position, appended: to_jiff(row.moment("at")?), content })
}

pub(crate) fn entries(rows: &[impl Columns]) -> Result<Vec<LogEntry>> {
    rows.iter().map(entry).collect()
}

fn detail<T: for<'a> Deserialize<'a>>(row: &impl Columns) -> Result<T> {
    serde_json::from_str(&row.text("detail")?).map_err(corrupt)
}

pub(crate) fn listed(row: &impl Columns) -> Result<ListedNotification> {
    Ok(ListedNotification { stored: stored(row)?, acknowledged: row.moment_if_any("acknowledged")?.map(to_jiff) })
}

pub(crate) fn counts(row: &impl Columns) -> Result<Counts> {
    Ok(Counts {
        unread: unsigned(row.big("unread")?),
        unacknowledged: unsigned(row.big("unacknowledged")?),
        all: unsigned(row.big("every")?),
    })
}

pub(crate) fn scope(row: &impl Columns) -> Result<(String, Belonging)> {
    let since: Option<LogPosition> = Some(unsigned(row.big("since")?));
    Ok((row.text("user_id")?, Belonging { key: key(row)?, since }))
}

pub(crate) fn key(row: &impl Columns) -> Result<AudienceKey> {
    Ok(AudienceKey { kind: row.text("type")?, target: row.text("target")? })
}

pub(crate) fn member(row: &impl Columns) -> Result<Member> {
    Ok(Member { key: key(row)?, since: unsigned(row.big("since")?) })
}

pub(crate) fn ledger_line(row: &impl Columns) -> Result<LedgerLine> {
    Ok(LedgerLine {
        user: row.text("user_id")?,
        awaited: row.flag("awaited")?,
        deliveries: narrow(row.int("deliveries")?),
        delivered: row.moment_if_any("delivered")?.map(to_jiff),
        acknowledged: row.moment_if_any("acknowledged")?.map(to_jiff),
    })
}

/// What is to be done after a purge.
pub(crate) const fn purged(entries: u64, notifications: u64) -> NotificationsPurged {
    NotificationsPurged { entries, notifications }
}

/// The refusal of a state that somebody else has changed meanwhile.
pub(crate) fn changed_meanwhile() -> StoreError {
    StoreError::Unavailable("a notification was changed by somebody else meanwhile".into())
}
