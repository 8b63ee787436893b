//! New messages.

use std::collections::HashSet;

use relais_core::StoreError;
use relais_notify::{Emitted, NewNotification};
use uuid::Uuid;

use crate::{
    RedisNotifications,
    change::{Changed, Plan},
    error::corrupt,
    members::Graph,
};

/// A script writes as many indexes, about, before others have their turn: a server does one thing at a time.
const WEIGHT_AT_ONCE: usize = 5000;

fn id(new: &NewNotification) -> Uuid {
    new.notification.metadata.id
}

fn has_nobody(new: &NewNotification, graph: &Graph) -> bool {
    new.notification.routing.retry.ack_required && graph.count(new) == 0
}

impl RedisNotifications {
    /// The server's time.
    pub(crate) async fn now(&self) -> Result<jiff::Timestamp, StoreError> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("TIME");
        let ((seconds, micros),): ((i64, i64),) = self.ask(&pipeline).await?;
        jiff::Timestamp::from_millisecond(seconds * 1000 + micros / 1000).map_err(corrupt)
    }

    /// Which of these are stored.
    async fn known_among(&self, ids: &[Uuid]) -> Result<HashSet<Uuid>, StoreError> {
        if ids.is_empty() {
            return Ok(HashSet::new());
        }
        let mut pipeline = redis::pipe();
        for id in ids {
            pipeline.cmd("EXISTS").arg(self.keys().message(id));
        }
        let found: Vec<bool> = self.ask(&pipeline).await?;
        Ok(ids.iter().zip(found).filter(|(_, found)| *found).map(|(id, _)| *id).collect())
    }

    pub(crate) async fn emit(&self, messages: &[NewNotification]) -> Result<Vec<Emitted>, StoreError> {
        let (members, graph) = self.read_members_of(messages).await?;
        let must_be_acknowledged = messages.iter().any(|new| new.notification.routing.retry.ack_required);
        // Else nothing depends on it.
        let now = if must_be_acknowledged { self.now().await? } else { jiff::Timestamp::UNIX_EPOCH };
        let nobody: Vec<Uuid> = messages.iter().filter(|new| has_nobody(new, &graph)).map(id).collect();
        let known = self.known_among(&nobody).await?;
        let mut answers = vec![Emitted::NoMembers; messages.len()];
        let (mut plan, mut places) = (Plan::of_new(&members), Vec::new());
        for (place, new) in messages.iter().enumerate() {
            if known.contains(&id(new)) {
                answers[place] = Emitted::Known;
            } else if !has_nobody(new, &graph) {
                plan.insert(new, graph.count(new), now)?;
                places.push(place);
            }
            if plan.weight >= WEIGHT_AT_ONCE || place + 1 == messages.len() {
                let full = std::mem::replace(&mut plan, Plan::of_new(&members));
                let Changed::Done { stored, .. } = self.change(&full).await? else {
                    return Err(corrupt("new messages can not be stale"));
                };
                for (place, stored) in places.drain(..).zip(stored) {
                    answers[place] = if stored { Emitted::Stored } else { Emitted::Known };
                }
            }
        }
        Ok(answers)
    }

    pub(crate) async fn check(&self, messages: &[NewNotification]) -> Result<Vec<Emitted>, StoreError> {
        let (_, graph) = self.read_members_of(messages).await?;
        let known = self.known_among(&messages.iter().map(id).collect::<Vec<_>>()).await?;
        let answer = |new: &NewNotification| match known.contains(&id(new)) {
            true => Emitted::Known,
            false if has_nobody(new, &graph) => Emitted::NoMembers,
            false => Emitted::Stored,
        };
        Ok(messages.iter().map(answer).collect())
    }
}
