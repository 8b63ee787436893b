//! Events as notifications: what a declared source does with each event that it hears.
//!
//! An event becomes one notification however many processes hear it, and however often it is tried: the id comes from the
//! source's name and the event's id.

use std::borrow::Cow;

use relais_core::StoreError;
use relais_message::TemplateFields;
use serde_json::Value;
use uuid::Uuid;

use crate::{
    Emitted, NotificationMapping, Notifications, NotifyError,
    mapping::{Mapped, MappingError, part_as_text},
    service::id_of,
};

/// What templates may name of an event, beside `headers.NAME` and `payload.NAME`.
pub const EVENT_FIELDS: [&str; 5] = ["id", "channel", "source", "key", "timestamp"];

/// An event, as a source hears it.
#[derive(Debug, Clone, Copy)]
pub struct SourceEvent<'a> {
    /// Its id, the same for everybody who hears it.
    pub id: Uuid,
    /// Where it was published.
    pub channel: &'a str,
    /// Who published it.
    pub publisher: &'a str,
    /// When.
    pub timestamp: &'a str,
    /// What keeps it in order with others.
    pub key: Option<&'a str>,
    /// What was said beside it.
    pub metadata: &'a [(&'a str, &'a str)],
    /// What it says, as JSON.
    pub payload: &'a str,
}

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceOutcome {
    /// It is a notification.
    Emitted,
    /// It was one already: another process was faster, or it was tried before.
    Known,
    /// It is for nobody, or the source does not mean it.
    PassedOver,
}

/// Why an event could not become a notification.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The event does not fit the declaration.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// It was refused.
    #[error(transparent)]
    Refused(#[from] NotifyError),
}

impl SourceError {
    /// Whether it may go better in a moment.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Refused(NotifyError::Overloaded | NotifyError::Stopping) => true,
            Self::Refused(NotifyError::Store(cause)) => matches!(**cause, StoreError::Unavailable(_)),
            Self::Mapping(_) | Self::Refused(_) => false,
        }
    }
}

/// A declared source of notifications.
#[derive(Debug)]
pub struct NotificationSource {
    notifications: Notifications,
    name: String,
    mapping: NotificationMapping,
}

impl NotificationSource {
    /// One that emits by this service. The name is the emitter, and a part of each id.
    pub fn new(notifications: Notifications, name: impl Into<String>, mapping: NotificationMapping) -> Self {
        Self { notifications, name: name.into(), mapping }
    }

    /// Emits the notification of an event.
    pub async fn hear(&self, event: &SourceEvent<'_>) -> Result<SourceOutcome, SourceError> {
        let payload: Option<Value> = serde_json::from_str(event.payload).ok();
        let draft = self.mapping.draft(Mapped {
            fields: &EventValues { event, payload },
            id: id_of(&format!("source/{}", self.name), &event.id.to_string(), 0),
            emitter: &self.name,
            source: None,
            topic: Some(event.channel.to_owned()),
            payload: Some(event.payload.as_bytes()),
        })?;
        let Some(draft) = draft else { return Ok(SourceOutcome::PassedOver) };
        Ok(match self.notifications.emit_once(draft).await? {
            Emitted::Stored => SourceOutcome::Emitted,
            Emitted::Known | Emitted::NoMembers => SourceOutcome::Known,
        })
    }
}

/// The fields of an event, read once.
struct EventValues<'a> {
    event: &'a SourceEvent<'a>,
    payload: Option<Value>,
}

impl TemplateFields for EventValues<'_> {
    fn named(&self, name: &str) -> Option<Cow<'_, str>> {
        let event = self.event;
        match name {
            "id" => Some(event.id.to_string().into()),
            "channel" => Some(event.channel.into()),
            "source" => Some(event.publisher.into()),
            "key" => event.key.map(Cow::Borrowed),
            "timestamp" => Some(event.timestamp.into()),
            _ => None,
        }
    }

    fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut metadata = self.event.metadata.iter();
        metadata.find(|(known, _)| *known == name).map(|(_, value)| Cow::Borrowed(*value))
    }

    fn payload(&self, path: &[String]) -> Option<String> {
        part_as_text(self.payload.as_ref()?, path)
    }
}
