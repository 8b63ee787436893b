//! Messages of outboxes and captures as notifications: a [`Sink`].
//!
//! A mapping makes an audience of each message: templates of targets, from the message's fields and its payload. Without a
//! mapping, the payload is a whole notification. The id comes from the message's, so a message that is sent again is stored
//! once.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use relais_core::StoreError;
use relais_message::{Durability, PublishOutcome, RoutedMessage, Sink, Template, in_waves};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout;
use uuid::Uuid;

use crate::{
    Audience, ChangeOperation, NotificationDraft, NotificationType, Notifications, NotifyError, Retry,
    message::{MetadataDraft, RoutingDraft},
    service::id_of,
};

/// How messages become notifications.
#[derive(Debug, Clone)]
pub struct NotificationSinkOptions {
    /// What is read, such as the name of the outbox: the emitter, and a part of each id.
    pub source: String,
    /// Who gets them; none if each message says it itself.
    pub audience: Option<AudienceMapping>,
    /// What they are for.
    pub kind: NotificationType,
    /// How long a batch may take.
    pub timeout: Duration,
    /// What it means that a notification is stored: on disk in a database, perhaps less elsewhere.
    pub durability: Durability,
}

/// The audience of a message.
#[derive(Debug, Clone)]
pub struct AudienceMapping {
    /// The type of audience.
    pub kind: String,
    /// Templates of targets. One whose value is missing names nobody; one whose value is a JSON array names several.
    pub targets: Vec<Template>,
}

/// Emits messages as notifications.
#[derive(Debug)]
pub struct NotificationSink {
    notifications: Notifications,
    options: NotificationSinkOptions,
    closed: AtomicBool,
}

/// What Debezium's envelope says of a row, where it is one.
#[derive(Deserialize)]
struct Envelope {
    op: Option<String>,
    source: Option<EnvelopeSource>,
}

#[derive(Deserialize)]
struct EnvelopeSource {
    table: Option<String>,
}

impl NotificationSink {
    /// A sink that emits by this service.
    pub fn new(notifications: Notifications, options: NotificationSinkOptions) -> Self {
        Self { notifications, options, closed: AtomicBool::new(false) }
    }

    /// The notification of a message: none if it is for nobody.
    fn draft(&self, outgoing: &RoutedMessage) -> Result<Option<NotificationDraft>, String> {
        let RoutedMessage { destination, message, .. } = outgoing;
        // A tombstone says nothing to a page.
        let Some(payload) = &message.payload else { return Ok(None) };
        let id = || message.id.parse::<Uuid>().unwrap_or_else(|_| id_of(&self.options.source, &message.id, 0));
        let Some(mapping) = &self.options.audience else {
            let mut draft: NotificationDraft = serde_json::from_slice(payload)
                .map_err(|error| format!("the payload is not a notification: {error}"))?;
            draft.metadata.id.get_or_insert_with(id);
            draft.metadata.emitter.get_or_insert_with(|| self.options.source.clone());
            // Who sends a message on has not sent it again to anybody.
            draft.routing.retry.attempts = 0;
            return Ok(Some(draft));
        };
        let targets = mapping.targets.iter().filter_map(|template| template.render(message).ok()).flat_map(several);
        let targets: std::collections::BTreeSet<String> = targets.filter(|target| !target.is_empty()).collect();
        if targets.is_empty() {
            return Ok(None);
        }
        let raw: Box<RawValue> =
            serde_json::from_slice(payload).map_err(|error| format!("the payload is not JSON: {error}"))?;
        let envelope: Option<Envelope> = serde_json::from_str(raw.get()).ok();
        let operation = match envelope.as_ref().and_then(|envelope| envelope.op.as_deref()) {
            Some("c" | "r") => Some(ChangeOperation::Create),
            Some("u") => Some(ChangeOperation::Update),
            Some("d") => Some(ChangeOperation::Delete),
            _ => None,
        };
        let table = envelope.and_then(|envelope| envelope.source).and_then(|source| source.table);
        let metadata = MetadataDraft {
            id: Some(id()),
            kind: Some(self.options.kind),
            emitter: Some(self.options.source.clone()),
            source: table.or_else(|| Some(message.event_type.clone()).filter(|name| !name.is_empty())),
            topic: Some(destination.clone()).filter(|topic| !topic.is_empty()),
            operation,
            ..MetadataDraft::default()
        };
        let audience = Audience { kind: mapping.kind.clone(), targets };
        let routing = RoutingDraft { audience, retry: Retry::default() };
        Ok(Some(NotificationDraft { metadata, payload: Some(raw), routing }))
    }

    async fn wave(&self, wave: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        let (mut outcomes, mut places, mut drafts) = (vec![PublishOutcome::Confirmed; wave.len()], vec![], vec![]);
        for (place, outgoing) in wave.iter().enumerate() {
            match self.draft(outgoing) {
                Ok(Some(draft)) => {
                    places.push((place, draft.metadata.id));
                    drafts.push(draft);
                }
                Ok(None) => {
                    tracing::debug!(source = self.options.source, id = outgoing.message.id, "a message is for nobody");
                    metrics::counter!("relais_notification_unrouted_total").increment(1);
                }
                Err(why) => outcomes[place] = PublishOutcome::Refused(why),
            }
        }
        let limit = self.options.timeout;
        let Ok(answers) = timeout(limit, self.notifications.emit_each(drafts)).await else {
            let late = format!("the store did not answer within {limit:?}");
            places.into_iter().for_each(|(place, _)| outcomes[place] = PublishOutcome::Unknown(late.clone()));
            return outcomes;
        };
        for ((place, id), answer) in places.into_iter().zip(answers) {
            outcomes[place] = match answer {
                Ok(_) => PublishOutcome::Confirmed,
                Err(NotifyError::IdTaken(_)) if self.is_ours(id).await => PublishOutcome::Confirmed,
                Err(error) => outcome(&error),
            };
        }
        outcomes
    }

    /// Whether a message was mapped and stored before. What is read again from a log may say otherwise when it was read.
    async fn is_ours(&self, id: Option<Uuid>) -> bool {
        let (Some(id), Some(_)) = (id, &self.options.audience) else { return false };
        let stored = self.notifications.find_notification(id).await;
        stored.is_ok_and(|(stored, _)| {
            stored.client.is_none() && stored.notification.metadata.emitter == self.options.source
        })
    }
}

/// A JSON array of texts or numbers, or one text.
fn several(text: String) -> Vec<String> {
    match serde_json::from_str::<Vec<serde_json::Value>>(&text) {
        Ok(values) => values
            .into_iter()
            .filter_map(|value| match value {
                serde_json::Value::String(text) => Some(text),
                serde_json::Value::Number(number) => Some(number.to_string()),
                _ => None,
            })
            .collect(),
        Err(_) => vec![text],
    }
}

fn outcome(error: &NotifyError) -> PublishOutcome {
    match error {
        NotifyError::Overloaded | NotifyError::Stopping => PublishOutcome::Refused(error.to_string()),
        NotifyError::Store(cause) if matches!(**cause, StoreError::Unavailable(_)) => {
            PublishOutcome::Unknown(error.to_string())
        }
        _ => PublishOutcome::Refused(error.to_string()),
    }
}

#[async_trait]
impl Sink for NotificationSink {
    fn durability(&self) -> Durability {
        self.options.durability
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        if self.closed.load(Ordering::Relaxed) {
            return vec![PublishOutcome::Refused("the sink is closed".to_owned()); batch.len()];
        }
        in_waves(batch, self.options.timeout, |wave| self.wave(wave)).await
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}
