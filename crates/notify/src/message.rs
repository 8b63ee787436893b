//! The message as it is sent and received, and what is filled in where its emitter says nothing.
//!
//! Wire names are exact. The payload is carried as text: nothing here reads it.

use std::{collections::BTreeSet, fmt};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

/// A message expires so long after its timestamp, unless it says when.
pub const EXPIRES_AFTER: SignedDuration = SignedDuration::from_hours(10 * 24);

/// A message to an audience.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Notification {
    /// What is known about it.
    pub metadata: Metadata,
    /// What it says: any JSON.
    #[schema(value_type = Object)]
    pub payload: Box<RawValue>,
    /// Who gets it, and what happens until they have acknowledged it.
    pub routing: Routing,
}

/// What is known about a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Metadata {
    /// The same each time it is sent.
    pub id: Uuid,
    /// Who is served first under load. It never reorders a user's stream.
    pub priority: Priority,
    /// What it is for.
    #[serde(rename = "type")]
    pub kind: NotificationType,
    /// A program's name, or a user's id.
    pub emitter: String,
    /// What it is about, such as a table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The topic that it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// What happened to its source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<ChangeOperation>,
    /// When it was emitted.
    #[schema(value_type = String, format = DateTime)]
    pub timestamp: Timestamp,
    /// From when on it is not sent any more.
    #[schema(value_type = String, format = DateTime)]
    pub expiration: Timestamp,
}

/// What a message is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum NotificationType {
    /// Something that a page shows has changed.
    Realtime,
    /// A notice of the system, such as a right that has changed.
    System,
    /// A notification for a person to read.
    Notification,
}

/// Who is served first under load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Priority {
    /// After all others.
    Low,
    /// As most are.
    #[default]
    Normal,
    /// Before all others.
    High,
}

/// What happened to the source of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChangeOperation {
    /// It was created.
    Create,
    /// It was changed.
    Update,
    /// It was deleted.
    Delete,
}

/// Who gets a message, and what happens until they have acknowledged it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Routing {
    /// Who gets it.
    pub audience: Audience,
    /// Whether it must be acknowledged, and how it is sent again.
    pub retry: Retry,
}

/// Who gets a message: targets of one type.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Audience {
    /// `USER`, `GROUP`, `ROLE`, `STRUCTURE`, `FORMATION`, or any declared type.
    #[serde(rename = "type")]
    pub kind: String,
    /// The targets, each once.
    pub targets: BTreeSet<String>,
}

/// Whether a message must be acknowledged, and how it is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// Whether each member must acknowledge it.
    pub ack_required: bool,
    /// Whether it is sent again to those who have not.
    pub enabled: bool,
    /// How often it was sent again so far.
    pub attempts: u32,
    /// How often it is sent again before it goes to the error log.
    pub limit: u32,
    /// How the pauses between two sendings grow.
    pub backoff: Backoff,
}

impl Default for Retry {
    fn default() -> Self {
        Self { ack_required: false, enabled: true, attempts: 0, limit: 5, backoff: Backoff::default() }
    }
}

/// How the pauses between two sendings grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Backoff {
    /// All pauses are the same.
    Fixed,
    /// Each pause is longer than the one before by the first one.
    Linear,
    /// Each pause is twice the one before.
    #[default]
    Exponential,
}

/// What an emitter says. What it leaves out is filled in.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NotificationDraft {
    /// What it says about the message.
    #[serde(default)]
    pub metadata: MetadataDraft,
    /// The payload; null if it is left out.
    #[schema(value_type = Option<Object>)]
    pub payload: Option<Box<RawValue>>,
    /// Who gets it.
    pub routing: RoutingDraft,
}

/// What an emitter says about a message.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each is a field of `Metadata`")]
pub struct MetadataDraft {
    pub id: Option<Uuid>,
    pub priority: Priority,
    #[serde(rename = "type")]
    pub kind: Option<NotificationType>,
    pub emitter: Option<String>,
    pub source: Option<String>,
    pub topic: Option<String>,
    pub operation: Option<ChangeOperation>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub timestamp: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expiration: Option<Timestamp>,
}

/// Who gets a message, as its emitter says it.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RoutingDraft {
    /// Who gets it.
    pub audience: Audience,
    /// Not to be acknowledged, if it is left out.
    #[serde(default)]
    pub retry: Retry,
}

/// What the one who takes a message knows, and its emitter may leave out.
#[derive(Debug, Clone)]
pub struct FillIn<'a> {
    /// The database's time.
    pub now: Timestamp,
    /// The id of a message that has none.
    pub id: Uuid,
    /// Who sent it.
    pub emitter: &'a str,
}

/// What a message may be at most.
#[derive(Debug, Clone, Copy)]
pub struct NotificationLimits {
    /// So many targets.
    pub targets: usize,
    /// So many bytes of payload.
    pub payload_bytes: usize,
    /// A timestamp may be so far ahead of the database's time: clocks differ.
    pub clock_skew: SignedDuration,
}

impl Default for NotificationLimits {
    fn default() -> Self {
        Self { targets: 1000, payload_bytes: 64 * 1024, clock_skew: SignedDuration::from_mins(1) }
    }
}

/// A type of audience or a target is at most so long.
pub(crate) const LONGEST_NAME: usize = 200;

/// Why a message is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidNotification {
    /// It goes to nobody.
    #[error("routing.audience.targets is empty")]
    NoTargets,
    /// It has too many targets.
    #[error(
        "routing.audience has {found} targets, and at most {limit} are allowed; declare an audience with members instead"
    )]
    TooManyTargets {
        /// How many it has.
        found: usize,
        /// How many it may have.
        limit: usize,
    },
    /// It goes to an audience of a type that nobody has declared.
    #[error("routing.audience.type: {0}")]
    UnknownType(#[from] crate::UnknownAudienceType),
    /// A name is empty, too long, or has control characters.
    #[error("{field} must have 1 to {LONGEST_NAME} bytes and no control characters")]
    BadName {
        /// Where it is.
        field: &'static str,
    },
    /// The payload is too large.
    #[error("the payload has {found} bytes, and at most {limit} are allowed")]
    PayloadTooLarge {
        /// How many it has.
        found: usize,
        /// How many it may have.
        limit: usize,
    },
    /// It has expired already.
    #[error("metadata.expiration is in the past")]
    Expired,
    /// Its time has not come.
    #[error("metadata.timestamp is in the future")]
    FromTheFuture,
    /// An emitter does not count attempts.
    #[error("routing.retry.attempts must be 0 or be left out: Relais counts them")]
    AttemptsGiven,
}

impl NotificationDraft {
    /// Checks what the emitter has said, and fills in what it has not.
    pub fn fill(self, with: &FillIn<'_>, limits: &NotificationLimits) -> Result<Notification, InvalidNotification> {
        let Self { metadata, payload, routing } = self;
        let RoutingDraft { audience, retry } = routing;
        audience.check(limits)?;
        let payload = payload.unwrap_or_else(|| RawValue::NULL.to_owned());
        if payload.get().len() > limits.payload_bytes {
            return Err(InvalidNotification::PayloadTooLarge {
                found: payload.get().len(),
                limit: limits.payload_bytes,
            });
        }
        if retry.attempts > 0 {
            return Err(InvalidNotification::AttemptsGiven);
        }
        let timestamp = metadata.timestamp.unwrap_or(with.now);
        if timestamp > saturating_add(with.now, limits.clock_skew) {
            return Err(InvalidNotification::FromTheFuture);
        }
        let expiration = metadata.expiration.unwrap_or_else(|| saturating_add(timestamp, EXPIRES_AFTER));
        if expiration <= with.now {
            return Err(InvalidNotification::Expired);
        }
        let emitter = metadata.emitter.unwrap_or_else(|| with.emitter.to_owned());
        check_name("metadata.emitter", &emitter)?;
        for (field, name) in [("metadata.source", &metadata.source), ("metadata.topic", &metadata.topic)] {
            name.as_ref().map_or(Ok(()), |name| check_name(field, name))?;
        }
        let metadata = Metadata {
            id: metadata.id.unwrap_or(with.id),
            priority: metadata.priority,
            kind: metadata.kind.unwrap_or(NotificationType::Notification),
            emitter,
            source: metadata.source,
            topic: metadata.topic,
            operation: metadata.operation,
            timestamp,
            expiration,
        };
        Ok(Notification { metadata, payload, routing: Routing { audience, retry } })
    }
}

impl Audience {
    fn check(&self, limits: &NotificationLimits) -> Result<(), InvalidNotification> {
        check_name("routing.audience.type", &self.kind)?;
        if self.targets.is_empty() {
            return Err(InvalidNotification::NoTargets);
        }
        if self.targets.len() > limits.targets {
            return Err(InvalidNotification::TooManyTargets { found: self.targets.len(), limit: limits.targets });
        }
        self.targets.iter().try_for_each(|target| check_name("routing.audience.targets", target))
    }
}

impl fmt::Display for Audience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.kind)?;
        for (number, target) in self.targets.iter().enumerate() {
            write!(f, "{}{target}", if number > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

fn check_name(field: &'static str, name: &str) -> Result<(), InvalidNotification> {
    if is_name(name) { Ok(()) } else { Err(InvalidNotification::BadName { field }) }
}

/// Whether this can be the name of a user, of a type of audience, of a target.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len()) && !name.chars().any(char::is_control)
}

fn saturating_add(time: Timestamp, duration: SignedDuration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_741_178_096, 0);

    fn draft(json: &str) -> Result<NotificationDraft, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    fn fill(json: &str) -> Result<Notification, String> {
        let with = FillIn { now: NOW, id: Uuid::nil(), emitter: "shop" };
        draft(json)?.fill(&with, &NotificationLimits::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_the_emitter_leaves_out_is_filled_in() -> Result<(), String> {
        let filled = fill(r#"{"routing": {"audience": {"type": "USER", "targets": ["u1", "u1"]}}}"#)?;
        assert_eq!(
            serde_json::to_value(&filled).map_err(|error| error.to_string())?,
            serde_json::json!({
                "metadata": {
                    "id": Uuid::nil(), "priority": "NORMAL", "type": "NOTIFICATION", "emitter": "shop",
                    "timestamp": "2025-03-05T12:34:56Z", "expiration": "2025-03-15T12:34:56Z"
                },
                "payload": null,
                "routing": {
                    "audience": {"type": "USER", "targets": ["u1"]},
                    "retry": {
                        "ack_required": false, "enabled": true, "attempts": 0, "limit": 5, "backoff": "EXPONENTIAL"
                    }
                }
            })
        );
        Ok(())
    }

    #[test]
    fn what_was_sent_is_read_back_unchanged() -> Result<(), String> {
        let text = r#"{"metadata":{"id":"01957000-0000-7000-8000-000000000000","priority":"HIGH","type":"REALTIME","emitter":"DEBEZIUM","source":"assignments","topic":"srv.dev.assignments","operation":"create","timestamp":"2025-03-05T12:34:56Z","expiration":"2025-03-15T12:34:56Z"},"payload":{"before":{},  "after":{"n":12345678901234567890}},"routing":{"audience":{"type":"USER","targets":["a","b"]},"retry":{"ack_required":true,"enabled":true,"attempts":3,"limit":5,"backoff":"EXPONENTIAL"}}}"#;
        let read: Notification = serde_json::from_str(text).map_err(|error| error.to_string())?;
        assert_eq!(serde_json::to_string(&read).map_err(|error| error.to_string())?, text);
        Ok(())
    }

    #[test]
    fn what_can_not_be_sent_is_refused_with_the_field() {
        let to = |rest: &str| format!(r#"{{"routing": {{"audience": {{"type": "USER", "targets": ["u1"]}}}}{rest}}}"#);
        let many: Vec<String> = (0..1001).map(|number| format!("\"u{number}\"")).collect();
        let large = format!(r#", "payload": "{}""#, "x".repeat(64 * 1024));
        let refused = [
            (r#"{"routing": {"audience": {"type": "USER", "targets": []}}}"#.to_owned(), "targets is empty"),
            (r#"{"routing": {"audience": {"type": "", "targets": ["x"]}}}"#.to_owned(), "routing.audience.type"),
            (r#"{"routing": {"audience": {"type": "USER", "targets": ["a\nb"]}}}"#.to_owned(), "audience.targets must"),
            (
                format!(r#"{{"routing": {{"audience": {{"type": "USER", "targets": [{}]}}}}}}"#, many.join(",")),
                "1001 targets, and at most 1000",
            ),
            (to(&large), "the payload has 65538 bytes"),
            (to(r#", "metadata": {"expiration": "2025-03-05T12:34:56Z"}"#), "expiration is in the past"),
            (to(r#", "metadata": {"timestamp": "2025-03-05T12:36:00Z"}"#), "timestamp is in the future"),
            (to(r#", "metadata": {"timestamp": "2025-02-01T00:00:00Z"}"#), "expiration is in the past"),
            (to(r#", "metadata": {"prio": "HIGH"}"#), "unknown field `prio`"),
            (to(r#", "metadata": {"priority": "URGENT"}"#), "unknown variant `URGENT`"),
            (to(r#", "metadata": {"id": "seven"}"#), "UUID"),
            (
                r#"{"routing": {"audience": {"type": "USER", "targets": ["x"]}, "retry": {"attempts": 1}}}"#.to_owned(),
                "attempts must be 0",
            ),
            (r#"{"payload": {}}"#.to_owned(), "missing field `routing`"),
        ];
        for (json, why) in refused {
            let said = fill(&json).err().unwrap_or_default();
            assert!(said.contains(why), "{said:?} does not say {why:?}");
        }
    }
}
