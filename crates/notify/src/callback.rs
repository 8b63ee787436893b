//! The end of a task as a notification: a [`CallbackSender`] whose endpoint is an audience.

use async_trait::async_trait;
use relais_core::{
    CallbackDelivery, CallbackSender, CallbackType, Client, NotAllowed, Reply, ReplyOutcome, StoreError,
};
use serde_json::value::RawValue;

use crate::{
    Audience, NotificationDraft, NotificationType, Notifications, NotifyError, Retry,
    message::{MetadataDraft, RoutingDraft},
    service::id_of,
};

/// Emits callbacks of the type `notification`. The target is an audience, as JSON.
#[derive(Debug, Clone)]
pub struct NotificationCallbackSender(Notifications);

impl NotificationCallbackSender {
    /// One that emits by this service.
    pub fn new(notifications: Notifications) -> Self {
        Self(notifications)
    }
}

fn audience(target: &str, client: &Client) -> Result<Audience, NotAllowed> {
    let audience: Audience =
        serde_json::from_str(target).map_err(|error| NotAllowed(format!("the audience is not valid: {error}")))?;
    if audience.targets.is_empty() {
        return Err(NotAllowed("the audience has no targets".to_owned()));
    }
    match client.notifications.may_emit(&audience.kind) {
        true => Ok(audience),
        false => {
            Err(NotAllowed(format!("the client has not the right `emit` for audiences of type {}", audience.kind)))
        }
    }
}

#[async_trait]
impl CallbackSender for NotificationCallbackSender {
    fn judge(&self, kind: CallbackType, target: &str, client: &Client) -> Result<String, NotAllowed> {
        if kind != CallbackType::Notification {
            return Err(NotAllowed(format!("a callback of type {} is not a notification", kind.as_str())));
        }
        audience(target, client).map(|_| "notification".to_owned())
    }

    async fn send(&self, delivery: &CallbackDelivery) -> Reply {
        let reply = |outcome, error| Reply { outcome, status: None, error, answer: None };
        let audience = match audience(&delivery.target, &delivery.client) {
            Ok(audience) => audience,
            Err(NotAllowed(why)) => return reply(ReplyOutcome::Forbidden, Some(why)),
        };
        let client = delivery.client.client_id.as_str();
        let draft = NotificationDraft {
            metadata: MetadataDraft {
                // The same however often it is sent: it is stored once.
                id: Some(id_of(client, &delivery.id, 0)),
                kind: Some(NotificationType::Realtime),
                emitter: Some("relais".to_owned()),
                source: Some("tasks".to_owned()),
                ..MetadataDraft::default()
            },
            payload: RawValue::from_string(delivery.body.clone()).ok(),
            routing: RoutingDraft { audience, retry: Retry::default() },
        };
        match self.0.emit(vec![draft], Some(client), None).await {
            Ok(_) => reply(ReplyOutcome::Delivered, None),
            Err(error) => {
                let unwell = match &error {
                    NotifyError::Overloaded | NotifyError::Stopping => true,
                    NotifyError::Store(cause) => matches!(**cause, StoreError::Unavailable(_)),
                    _ => false,
                };
                let outcome = match unwell {
                    true => ReplyOutcome::Unwell { retry_after: None },
                    false => ReplyOutcome::Refused { retry_after: None },
                };
                reply(outcome, Some(error.to_string()))
            }
        }
    }
}
