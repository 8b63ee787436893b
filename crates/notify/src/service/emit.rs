//! Emitting: messages are judged, filled in, and stored together with those of others.

use std::collections::HashMap;

use jiff::Timestamp;
use uuid::Uuid;

use super::{Notifications, NotifyError, Result, id_of};
use crate::{Emitted, FillIn, InvalidNotification, Metadata, NewNotification, Notification, NotificationDraft};

impl Notifications {
    /// Emits messages for a client, or for Relais itself; answers their ids. All of them are checked before any is stored.
    /// With an idempotency key, the same call has the same effect once.
    pub async fn emit(
        &self,
        drafts: Vec<NotificationDraft>,
        client: Option<&str>,
        idempotency_key: Option<&str>,
    ) -> Result<Vec<Uuid>> {
        let now = self.now_in_millis();
        let mut messages = Vec::with_capacity(drafts.len());
        for (number, draft) in drafts.into_iter().enumerate() {
            let id = idempotency_key.map_or_else(Uuid::now_v7, |key| id_of(client.unwrap_or_default(), key, number));
            let filled = self.fill(draft, client, id, now).await?;
            messages.push(filled.map_err(|why| NotifyError::Invalid(number, why))?);
        }
        if messages.len() > 1 {
            self.check_all(&messages).await?;
        }
        let sent = messages.clone();
        let answers = self.0.emissions.put_all(messages).await?;
        for (number, (new, answer)) in sent.iter().zip(answers).enumerate() {
            self.accept(number, new, answer).await?;
        }
        metrics::counter!("relais_notification_emitted_total").increment(sent.len() as u64);
        Ok(sent.into_iter().map(|new| new.notification.metadata.id).collect())
    }

    /// Looks before anything is stored whether all messages of a list can be.
    async fn check_all(&self, messages: &[NewNotification]) -> Result<()> {
        let answers = self.0.store.check_notifications(messages).await?;
        let mut seen: HashMap<Uuid, &NewNotification> = HashMap::new();
        for (number, (new, answer)) in messages.iter().zip(answers).enumerate() {
            self.accept(number, new, answer).await?;
            let first = seen.entry(new.notification.metadata.id).or_insert(new);
            if !says_the_same(&first.notification, &new.notification) {
                return Err(NotifyError::IdTaken(number));
            }
        }
        Ok(())
    }

    /// What an answer of the store means for a message.
    async fn accept(&self, number: usize, new: &NewNotification, answer: Emitted) -> Result<()> {
        match answer {
            Emitted::Stored => Ok(()),
            Emitted::Known if self.is_same(new).await? => Ok(()),
            Emitted::Known => Err(NotifyError::IdTaken(number)),
            Emitted::NoMembers => Err(NotifyError::NoMembers(number)),
        }
    }

    /// Emits messages for Relais itself. Each has its own answer: one that is refused does not hold up the others.
    pub(crate) async fn emit_each(&self, drafts: Vec<NotificationDraft>) -> Vec<Result<Uuid>> {
        let now = self.now_in_millis();
        let mut answers: Vec<Result<Uuid>> = Vec::with_capacity(drafts.len());
        let mut messages = Vec::with_capacity(drafts.len());
        for (number, draft) in drafts.into_iter().enumerate() {
            answers.push(match self.fill(draft, None, Uuid::now_v7(), now).await {
                Ok(Ok(new)) => {
                    let id = new.notification.metadata.id;
                    messages.push((number, new));
                    Ok(id)
                }
                Ok(Err(why)) => Err(NotifyError::Invalid(number, why)),
                Err(error) => Err(error),
            });
        }
        let sent = messages.iter().map(|(_, new)| new.clone()).collect();
        for ((number, new), emitted) in messages.into_iter().zip(self.0.emissions.put_each(sent).await) {
            let accepted = match emitted {
                Ok(answer) => self.accept(number, &new, answer).await,
                Err(error) => Err(error),
            };
            if let Err(refused) = accepted {
                answers[number] = Err(refused);
            }
        }
        metrics::counter!("relais_notification_emitted_total")
            .increment(answers.iter().filter(|answer| answer.is_ok()).count() as u64);
        answers
    }

    /// Emits a message of Relais itself whose id says what it is about. If there is one with this id, it is known.
    pub(crate) async fn emit_once(&self, draft: NotificationDraft) -> Result<Emitted> {
        let new = self.fill(draft, None, Uuid::now_v7(), self.now_in_millis()).await?;
        let new = new.map_err(|why| NotifyError::Invalid(0, why))?;
        match self.0.emissions.put(new).await? {
            Emitted::Stored => metrics::counter!("relais_notification_emitted_total").increment(1),
            Emitted::Known => return Ok(Emitted::Known),
            Emitted::NoMembers => return Err(NotifyError::NoMembers(0)),
        }
        Ok(Emitted::Stored)
    }

    /// Puts another message in the place of one; answers its id.
    pub async fn replace(&self, id: Uuid, client: Option<&str>, draft: NotificationDraft) -> Result<Uuid> {
        let new = self.fill(draft, client, Uuid::now_v7(), self.now_in_millis()).await?;
        let new = new.map_err(|why| NotifyError::Invalid(0, why))?;
        let new_id = new.notification.metadata.id;
        self.0.store.withdraw(id, client.map(str::to_owned), Some(new)).await?;
        Ok(new_id)
    }

    /// Judges a message, and fills in what its emitter has not said. The outer error is that of the store.
    async fn fill(
        &self,
        draft: NotificationDraft,
        client: Option<&str>,
        id: Uuid,
        now: Timestamp,
    ) -> Result<std::result::Result<NewNotification, InvalidNotification>> {
        if let Err(unknown) = self.judge_type(&draft.routing.audience.kind).await? {
            return Ok(Err(unknown));
        }
        let with = FillIn { now, id, emitter: client.unwrap_or("relais") };
        let filled = draft.fill(&with, &self.0.options.limits);
        let (client, ack_timeout) = (client.map(str::to_owned), self.0.options.ack_timeout);
        Ok(filled.map(|notification| NewNotification { notification, client, ack_timeout }))
    }

    /// Whether the message with this id is the same one: of the same client, and it says the same.
    async fn is_same(&self, new: &NewNotification) -> Result<bool> {
        let Some((stored, _)) = self.0.store.find_notification(new.notification.metadata.id, 0).await? else {
            return Ok(true);
        };
        Ok(stored.client == new.client && says_the_same(&stored.notification, &new.notification))
    }
}

/// Whether two messages are the same, but for their dates, which may have been filled in.
fn says_the_same(one: &Notification, other: &Notification) -> bool {
    let what = |notification: &Notification| {
        let Metadata { priority, kind, emitter, source, topic, operation, .. } = notification.metadata.clone();
        (priority, kind, emitter, source, topic, operation)
    };
    what(one) == what(other) && one.payload.get() == other.payload.get() && one.routing == other.routing
}
