//! The ledger: who was sent a message, and who has acknowledged it.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
};

use relais_core::StoreError;
use relais_notify::{Delivery, LedgerLine, StoredNotification};
use serde::Serialize;
use uuid::Uuid;

use crate::{
    RedisNotifications,
    error::corrupt,
    message::{moment, number},
    scripts,
};

/// A script writes so many before others have their turn.
const WRITTEN_AT_ONCE: usize = 1000;

#[derive(Serialize)]
struct Sent {
    id: Uuid,
    user: String,
    count: u32,
}

impl RedisNotifications {
    pub(crate) async fn who_acknowledged(&self, id: Uuid, users: Vec<String>) -> Result<Vec<String>, StoreError> {
        if users.is_empty() {
            return Ok(users);
        }
        let mut pipeline = redis::pipe();
        pipeline.cmd("HMGET").arg(self.keys().acknowledged(&id)).arg(&users);
        let (moments,): (Vec<Option<String>>,) = self.ask(&pipeline).await?;
        Ok(users.into_iter().zip(moments).filter(|(_, moment)| moment.is_some()).map(|(user, _)| user).collect())
    }

    pub(crate) async fn what_acknowledged(&self, user: &str, ids: Vec<Uuid>) -> Result<Vec<Uuid>, StoreError> {
        if ids.is_empty() {
            return Ok(ids);
        }
        let mut pipeline = redis::pipe();
        for id in &ids {
            pipeline.cmd("HEXISTS").arg(self.keys().acknowledged(id)).arg(user);
        }
        let found: Vec<bool> = self.ask(&pipeline).await?;
        Ok(ids.into_iter().zip(found).filter(|(_, found)| *found).map(|(id, _)| id).collect())
    }

    pub(crate) async fn write_deliveries(&self, deliveries: Vec<Delivery>) -> Result<(), StoreError> {
        let mut counted: BTreeMap<(Uuid, String), u32> = BTreeMap::new();
        for Delivery { id, user } in deliveries {
            *counted.entry((id, user)).or_default() += 1;
        }
        let sent: Vec<Sent> = counted.into_iter().map(|((id, user), count)| Sent { id, user, count }).collect();
        for some in sent.chunks(WRITTEN_AT_ONCE) {
            let plan = serde_json::to_string(some).map_err(corrupt)?;
            self.0.connections.run::<()>(&scripts::DELIVER, &[plan]).await?;
        }
        Ok(())
    }

    pub(crate) async fn read_ledger(
        &self,
        id: Uuid,
        limit: usize,
    ) -> Result<Option<(StoredNotification, Vec<LedgerLine>)>, StoreError> {
        let Some(row) = self.read_messages(&[id]).await?.remove(&id) else { return Ok(None) };
        if limit == 0 {
            return Ok(Some((row.stored, Vec::new())));
        }
        // Without a need to acknowledge, nobody is awaited.
        let awaited = if row.is_required() { self.read_awaited(&row).await? } else { BTreeSet::new() };
        let mut pipeline = redis::pipe();
        pipeline.cmd("HGETALL").arg(self.keys().acknowledged(&id)).cmd("HGETALL").arg(self.keys().sent(&id));
        type Texts = HashMap<String, String>;
        let (acknowledged, sent): (Texts, Texts) = self.ask(&pipeline).await?;
        let users: BTreeSet<&String> = awaited.iter().chain(acknowledged.keys()).chain(sent.keys()).collect();
        let mut users: Vec<&String> = users.into_iter().collect();
        // A stable order: those with the same need stay in the order of their names.
        users.sort_by_key(|user| Reverse(awaited.contains(*user) && !acknowledged.contains_key(*user)));
        let line = |user: &String| {
            let (deliveries, delivered) = match sent.get(user).and_then(|text| text.split_once(' ')) {
                Some((count, at)) => (number(count)?, Some(moment(at)?)),
                None => (0, None),
            };
            let at = acknowledged.get(user).map(|at| moment(at)).transpose()?;
            let awaited = awaited.contains(user);
            Ok(LedgerLine { user: user.clone(), awaited, deliveries, delivered, acknowledged: at })
        };
        let lines = users.into_iter().take(limit).map(line).collect::<Result<Vec<_>, StoreError>>()?;
        Ok(Some((row.stored, lines)))
    }
}
