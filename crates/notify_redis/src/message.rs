//! Messages as they are stored, and how they are read.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use redis::Pipeline;
use relais_core::StoreError;
use relais_notify::{
    AckPolicy, AckState, AckStatus, Audience, AudienceKey, LogPosition, Notification, StoredNotification, UserScope,
};
use uuid::Uuid;

use crate::{
    RedisNotifications,
    error::corrupt,
    keys::{Keys, encode},
};

/// What is read of a message, in this order.
const FIELDS: [&str; 11] = [
    "doc",
    "at",
    "client",
    "status",
    "attempts",
    "resent_at",
    "due",
    "revision",
    "outstanding",
    "replaced_by",
    "timeout",
];

/// So many messages are read in one round trip.
const READ_AT_ONCE: usize = 500;

/// A message with all that its rules need.
#[derive(Debug, Clone)]
pub(crate) struct MessageRow {
    pub(crate) stored: StoredNotification,
    pub(crate) policy: AckPolicy,
    pub(crate) state: AckState,
    /// At least how many must acknowledge it and have not. As it was read: a change may say that it must still be so.
    pub(crate) outstanding: String,
}

impl MessageRow {
    pub(crate) fn id(&self) -> Uuid {
        self.stored.notification.metadata.id
    }

    pub(crate) fn keys(&self) -> Vec<AudienceKey> {
        keys_of(&self.stored.notification.routing.audience)
    }

    pub(crate) fn client(&self) -> &str {
        self.stored.client.as_deref().unwrap_or_default()
    }

    pub(crate) fn is_required(&self) -> bool {
        self.policy.retry.ack_required
    }

    fn read(fields: Vec<Option<String>>) -> Result<Option<Self>, StoreError> {
        let Ok([doc, at, client, status, attempts, resent_at, due, revision, outstanding, replaced_by, timeout]) =
            <[Option<String>; FIELDS.len()]>::try_from(fields)
        else {
            return Err(corrupt("a message with other fields"));
        };
        let (Some(doc), Some(at)) = (doc, at) else { return Ok(None) };
        let notification: Notification = serde_json::from_str(&doc).map_err(corrupt)?;
        let stored = StoredNotification {
            position: number(&at)?,
            client,
            status: status_of(status.as_deref().unwrap_or_default())?,
            attempts: number(attempts.as_deref().unwrap_or_default())?,
            replaced_by: replaced_by.as_deref().map(uuid).transpose()?,
            notification,
        };
        let policy = AckPolicy {
            retry: stored.notification.routing.retry,
            ack_timeout: std::time::Duration::from_millis(number(timeout.as_deref().unwrap_or_default())?),
            expiration: in_millis(stored.notification.metadata.expiration),
        };
        let state = AckState {
            status: stored.status,
            attempts: stored.attempts,
            resent_at: number(resent_at.as_deref().unwrap_or_default())?,
            due: due.filter(|due| !due.is_empty()).as_deref().map(moment).transpose()?,
            revision: number(revision.as_deref().unwrap_or_default())?,
        };
        Ok(Some(Self { stored, policy, state, outstanding: outstanding.unwrap_or_default() }))
    }
}

/// A message as the indexes of a user's audience keys list it: all that counting needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LiveMessage {
    pub(crate) id: Uuid,
    pub(crate) position: LogPosition,
    pub(crate) expiration: Timestamp,
    /// Whether the user must acknowledge it.
    pub(crate) is_awaited: bool,
}

impl LiveMessage {
    /// What the index has for a message; it never changes.
    pub(crate) fn member(id: Uuid, expiration: Timestamp, is_required: bool) -> String {
        format!("{id} {} {}", expiration.as_millisecond(), u8::from(is_required))
    }

    /// Reads it, for who belongs to its audience since a position.
    fn read(member: &str, position: LogPosition, since: Option<LogPosition>) -> Result<Self, StoreError> {
        let mut parts = member.split(' ');
        let mut part = || parts.next().ok_or_else(|| corrupt(format!("`{member}` in an index of messages")));
        let (id, expiration, is_required) = (uuid(part()?)?, moment(part()?)?, part()? == "1");
        let is_awaited = is_required && since.is_some_and(|since| since <= position);
        Ok(Self { id, position, expiration, is_awaited })
    }
}

impl RedisNotifications {
    pub(crate) fn keys(&self) -> &Keys {
        &self.0.keys
    }

    pub(crate) async fn ask<T: redis::FromRedisValue>(&self, pipeline: &Pipeline) -> Result<T, StoreError> {
        self.0.connections.ask(pipeline).await
    }

    /// Messages by their ids; those that are not there are left out.
    pub(crate) async fn read_messages(&self, ids: &[Uuid]) -> Result<HashMap<Uuid, MessageRow>, StoreError> {
        let distinct: Vec<&Uuid> = ids.iter().collect::<BTreeSet<_>>().into_iter().collect();
        let mut found = HashMap::with_capacity(distinct.len());
        for some in distinct.chunks(READ_AT_ONCE) {
            let mut pipeline = redis::pipe();
            for id in some {
                pipeline.cmd("HMGET").arg(self.keys().message(id)).arg(&FIELDS);
            }
            let answers: Vec<Vec<Option<String>>> = self.ask(&pipeline).await?;
            for (id, fields) in some.iter().zip(answers) {
                if let Some(row) = MessageRow::read(fields)? {
                    found.insert(**id, row);
                }
            }
        }
        Ok(found)
    }

    /// Which messages are for a user, newest first and from so many on: those below `before`, with the position that the next
    /// ones are below, if there may be more.
    pub(crate) async fn read_live(
        &self,
        scope: &UserScope,
        before: Option<LogPosition>,
        limit: usize,
    ) -> Result<(Vec<LiveMessage>, Option<LogPosition>), StoreError> {
        let below = before.map_or("+inf".to_owned(), |before| format!("({before}"));
        let mut pipeline = redis::pipe();
        for key in scope.keys() {
            pipeline.cmd("ZREVRANGEBYSCORE").arg(self.keys().live(key)).arg(&below).arg("-inf").arg("WITHSCORES");
            pipeline.arg("LIMIT").arg(0).arg(limit);
        }
        let answers: Vec<Vec<(String, LogPosition)>> = self.ask(&pipeline).await?;
        // Below the highest end of a page that is full, other keys may have been read further than this one.
        let is_full = |answer: &&Vec<(String, LogPosition)>| answer.len() >= limit;
        let end =
            answers.iter().filter(is_full).filter_map(|answer| answer.last()).map(|(_, position)| *position).max();
        let mut found: BTreeMap<LogPosition, LiveMessage> = BTreeMap::new();
        for (belonging, answer) in scope.belongs.iter().zip(answers) {
            for (member, position) in answer.into_iter().filter(|(_, position)| end.is_none_or(|end| *position >= end))
            {
                let live = LiveMessage::read(&member, position, belonging.since)?;
                // A user who is awaited by one way is awaited.
                found.entry(position).or_insert(live).is_awaited |= live.is_awaited;
            }
        }
        Ok((found.into_values().rev().collect(), end))
    }
}

pub(crate) fn keys_of(audience: &Audience) -> Vec<AudienceKey> {
    audience.targets.iter().map(|target| AudienceKey::new(&audience.kind, target)).collect()
}

pub(crate) fn encoded(keys: &[AudienceKey]) -> Vec<String> {
    keys.iter().map(encode).collect()
}

pub(crate) fn number<T: std::str::FromStr>(text: &str) -> Result<T, StoreError>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.parse().map_err(corrupt)
}

pub(crate) fn uuid(text: &str) -> Result<Uuid, StoreError> {
    text.parse().map_err(corrupt)
}

pub(crate) fn moment(millis: &str) -> Result<Timestamp, StoreError> {
    Timestamp::from_millisecond(number(millis)?).map_err(corrupt)
}

/// As dates are stored.
pub(crate) fn in_millis(moment: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(moment.as_millisecond()).unwrap_or(moment)
}

pub(crate) const fn status_code(status: AckStatus) -> &'static str {
    match status {
        AckStatus::Open => "0",
        AckStatus::Acknowledged => "1",
        AckStatus::Failed => "2",
        AckStatus::Expired => "3",
        AckStatus::Withdrawn => "4",
    }
}

fn status_of(code: &str) -> Result<AckStatus, StoreError> {
    Ok(match code {
        "0" => AckStatus::Open,
        "1" => AckStatus::Acknowledged,
        "2" => AckStatus::Failed,
        "3" => AckStatus::Expired,
        "4" => AckStatus::Withdrawn,
        _ => return Err(corrupt(format!("status `{code}` of a message"))),
    })
}
