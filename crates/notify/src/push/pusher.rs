//! Sends pushes whose time has come, if they are still to be sent.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use relais_core::{PushRequest, StoreError, Timestamp};
use uuid::Uuid;

use super::{
    ClaimedPush, PushEnd, WebPush, encrypt,
    outcome::{Outcome, outcome},
    payload,
};
use crate::{AckStatus, EntryKind, StoredNotification, UserScope};

/// So many pushes are asked about in one transaction.
const ASKED: usize = 1000;

/// What is known of pushes that were claimed together.
struct Known {
    messages: HashMap<Uuid, StoredNotification>,
    acknowledged: BTreeSet<(Uuid, String)>,
    scopes: HashMap<String, UserScope>,
}

impl Known {
    /// The message of a push that is still to be sent.
    fn message_of(&self, push: &ClaimedPush, now: jiff::Timestamp) -> Option<&StoredNotification> {
        let stored = self.messages.get(&push.notification)?;
        let user = &push.subscription.user;
        let is_read = self.acknowledged.contains(&(push.notification, user.clone()));
        // Who has left the audience sees the message no more.
        let sees = self.scopes.get(user).is_some_and(|scope| scope.sees(&stored.notification.routing.audience));
        let is_over = stored.notification.metadata.expiration <= now
            || matches!(stored.status, AckStatus::Expired | AckStatus::Withdrawn);
        (!is_read && sees && (push.withdrawn || !is_over)).then_some(stored)
    }
}

impl WebPush {
    /// Asks about pushes that are due, and begins to send those that nobody has cancelled. Tells whether there were any.
    pub(super) async fn send_due(&self) -> Result<bool, StoreError> {
        let asked = self.store().ask_pushes(ASKED, self.options().window).await?;
        let free = self.sending().available_permits();
        let claimed = match free {
            0 => Vec::new(),
            free => self.store().claim_pushes(free, self.options().lease).await?,
        };
        if claimed.is_empty() {
            return Ok(asked > 0);
        }
        let known = self.look_up(&claimed).await?;
        let now = self.notifications().now();
        for push in claimed {
            let Some(stored) = known.message_of(&push, now).cloned() else {
                self.store().finish_push(push, PushEnd::Dropped).await?;
                continue;
            };
            let Ok(permit) = Arc::clone(self.sending()).acquire_owned().await else { return Ok(true) };
            let this = self.clone();
            // To its end, also while the process stops: else it would be pushed twice.
            self.notifications().spawn_to_the_end(async move {
                this.send(push, &stored).await;
                drop(permit);
                this.ring();
            });
        }
        Ok(true)
    }

    async fn look_up(&self, claimed: &[ClaimedPush]) -> Result<Known, StoreError> {
        let store = self.notifications().store();
        let mut users_of: BTreeMap<Uuid, BTreeSet<&str>> = BTreeMap::new();
        for push in claimed {
            users_of.entry(push.notification).or_default().insert(&push.subscription.user);
        }
        let all: BTreeSet<&str> = users_of.values().flatten().copied().collect();
        let scopes = store.scopes_of(all.into_iter().map(str::to_owned).collect()).await?;
        let (mut messages, mut acknowledged) = (HashMap::new(), BTreeSet::new());
        for (id, users) in users_of {
            let Some((stored, _)) = store.find_notification(id, 0).await? else { continue };
            messages.insert(id, stored);
            let users = users.into_iter().map(str::to_owned).collect();
            acknowledged.extend(store.acknowledged_by(id, users).await?.into_iter().map(|user| (id, user)));
        }
        Ok(Known { messages, acknowledged, scopes })
    }

    /// Sends a push, and notes how that ended.
    async fn send(&self, push: ClaimedPush, stored: &StoredNotification) {
        let Some(request) = self.request(&push, stored) else {
            tracing::error!(?push, "a push could not be encrypted or signed");
            metrics::counter!("relais_notification_push_failures_total").increment(1);
            return self.note(push, PushEnd::Dropped).await;
        };
        let reply = self.sender().push(request).await;
        let error = reply.error.as_deref().unwrap_or_default();
        let (id, to) = (push.notification, push.subscription.origin().to_owned());
        let count = |name: &'static str| metrics::counter!(name).increment(1);
        match outcome(&reply, push.tries, self.options().first_pause) {
            Outcome::Pushed => {
                count("relais_notification_pushed_total");
                if !push.withdrawn {
                    self.notifications().note_pushed(&push.subscription.user, stored);
                }
                self.note(push, PushEnd::Pushed).await;
            }
            Outcome::Gone => {
                count("relais_notification_push_subscriptions_gone_total");
                tracing::debug!(%id, to, error, "a push subscription is gone, and is forgotten");
                if let Err(error) = self.store().unsubscribe(push.subscription_id, None).await {
                    // The next push to it finds out again.
                    tracing::debug!(%error, "a push subscription that is gone could not be forgotten");
                }
            }
            Outcome::Retry(pause) => {
                tracing::debug!(%id, to, error, ?pause, "a push is tried again");
                self.note(push, PushEnd::Retry(pause)).await;
            }
            Outcome::Failed => {
                count("relais_notification_push_failures_total");
                tracing::debug!(%id, to, error, answer = reply.answer, "a push is given up");
                self.note(push, PushEnd::Dropped).await;
            }
        }
    }

    /// Notes how a try has ended.
    async fn note(&self, push: ClaimedPush, end: PushEnd) {
        let id = push.notification;
        if let Err(error) = self.store().finish_push(push, end).await {
            // Its lease ends, and then it is sent again.
            tracing::debug!(%error, %id, "how a push ended could not be written");
        }
    }

    fn request(&self, push: &ClaimedPush, stored: &StoredNotification) -> Option<PushRequest> {
        let keys = self.keys()?;
        let now = self.notifications().now();
        let message = stored.as_sent(EntryKind::Replayed { attempts: stored.attempts });
        let metadata = &message.metadata;
        let text = match push.withdrawn {
            true => payload::withdrawal(metadata.id, stored.replaced_by),
            false => {
                let ack = keys.acks.issue(&push.subscription.user, metadata.id, metadata.expiration);
                payload::message(&message, &ack)
            }
        };
        let mut headers = payload::headers(&message, now);
        let signed = keys.vapid.authorization(push.subscription.origin(), &self.options().contact, now).ok()?;
        headers.push(("authorization", signed));
        let body = encrypt(&text, &push.subscription).ok()?;
        let now = Timestamp::from_millis(now.as_millisecond());
        Some(PushRequest { endpoint: push.subscription.endpoint.clone(), headers, body, now })
    }
}
