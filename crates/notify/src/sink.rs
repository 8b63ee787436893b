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
use relais_message::{Durability, PublishOutcome, RoutedMessage, Sink, in_waves};
use tokio::time::timeout;
use uuid::Uuid;

use crate::{
    AudienceMapping, MappingError, NotificationDraft, NotificationMapping, NotificationType, Notifications,
    NotifyError, Said, mapping::Mapped, service::id_of,
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

/// Emits messages as notifications.
#[derive(Debug)]
pub struct NotificationSink {
    notifications: Notifications,
    source: String,
    mapping: NotificationMapping,
    timeout: Duration,
    durability: Durability,
    closed: AtomicBool,
}

impl NotificationSink {
    /// A sink that emits by this service.
    pub fn new(notifications: Notifications, options: NotificationSinkOptions) -> Self {
        let NotificationSinkOptions { source, audience, kind, timeout, durability } = options;
        let mapping =
            NotificationMapping { audience, kind: Some(Said::Always(kind)), ..NotificationMapping::default() };
        Self { notifications, source, mapping, timeout, durability, closed: AtomicBool::new(false) }
    }

    /// The notification of a message: none if it is for nobody.
    fn draft(&self, outgoing: &RoutedMessage) -> Result<Option<NotificationDraft>, MappingError> {
        let RoutedMessage { destination, message, .. } = outgoing;
        self.mapping.draft(Mapped {
            fields: message,
            id: message.id.parse().unwrap_or_else(|_| id_of(&self.source, &message.id, 0)),
            emitter: &self.source,
            source: Some(message.event_type.clone()).filter(|name| !name.is_empty()),
            topic: Some(destination.clone()).filter(|topic| !topic.is_empty()),
            payload: message.payload.as_deref(),
        })
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
                    tracing::debug!(source = self.source, id = outgoing.message.id, "a message is for nobody");
                    metrics::counter!("relais_notification_unrouted_total").increment(1);
                }
                Err(why) => outcomes[place] = PublishOutcome::Refused(why.to_string()),
            }
        }
        let limit = self.timeout;
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
        let (Some(id), Some(_)) = (id, &self.mapping.audience) else { return false };
        let stored = self.notifications.find_notification(id).await;
        stored.is_ok_and(|(stored, _)| stored.client.is_none() && stored.notification.metadata.emitter == self.source)
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
        self.durability
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        if self.closed.load(Ordering::Relaxed) {
            return vec![PublishOutcome::Refused("the sink is closed".to_owned()); batch.len()];
        }
        in_waves(batch, self.timeout, |wave| self.wave(wave)).await
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}
