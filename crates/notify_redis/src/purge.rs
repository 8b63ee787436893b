//! Removing what is old, in steps that are small for the server.

use std::time::Duration;

use relais_core::StoreError;
use relais_notify::NotificationsPurged;
use serde::Serialize;
use uuid::Uuid;

use crate::{
    RedisNotifications,
    error::corrupt,
    message::{LiveMessage, MessageRow, encoded},
    scripts,
};

/// A script writes as many indexes before others have their turn.
const WEIGHT_AT_ONCE: usize = 5000;

/// So many users are looked at together.
const USERS_AT_ONCE: usize = 1000;

#[derive(Debug, Serialize)]
struct Forgotten {
    id: Uuid,
    client: String,
    keys: Vec<String>,
    live: String,
}

impl RedisNotifications {
    pub(crate) async fn purge(
        &self,
        log_age: Duration,
        age: Duration,
        limit: usize,
    ) -> Result<NotificationsPurged, StoreError> {
        let notifications = self.purge_messages(age, limit).await?;
        let arguments = [log_age.as_millis().to_string(), limit.to_string()];
        let entries: u64 = self.0.connections.run(&scripts::PURGE_LOG, &arguments).await?;
        let at_once = limit.max(1);
        while self.0.connections.run::<usize>(&scripts::PURGE_KEYS, &[at_once.to_string()]).await? >= at_once {}
        Ok(NotificationsPurged { entries, notifications })
    }

    async fn purge_messages(&self, age: Duration, limit: usize) -> Result<u64, StoreError> {
        let (_, ids) = self.read_due("expirations", age, limit, false).await?;
        let rows = self.read_messages(&ids).await?;
        let (mut purged, mut plan, mut weight) = (0, Vec::new(), 0);
        for (number, id) in ids.iter().enumerate() {
            self.forget_readers(id).await?;
            let forgotten = Forgotten::new(*id, rows.get(id));
            weight += forgotten.keys.len() + 10;
            plan.push(forgotten);
            if weight >= WEIGHT_AT_ONCE || number + 1 == ids.len() {
                let text = serde_json::to_string(&std::mem::take(&mut plan)).map_err(corrupt)?;
                purged += self.0.connections.run::<u64>(&scripts::FORGET, &[text]).await?;
                weight = 0;
            }
        }
        Ok(purged)
    }

    /// Takes a message out of what its users have acknowledged. It has expired: nobody acknowledges it now, and if this is done
    /// in part, it is done again.
    async fn forget_readers(&self, id: &Uuid) -> Result<(), StoreError> {
        let mut cursor = "0".to_owned();
        loop {
            let mut pipeline = redis::pipe();
            pipeline.cmd("HSCAN").arg(self.keys().acknowledged(id)).arg(&cursor).arg("COUNT").arg(USERS_AT_ONCE);
            let ((next, readers),): ((String, Vec<(String, String)>),) = self.ask(&pipeline).await?;
            if !readers.is_empty() {
                let mut pipeline = redis::pipe();
                for (user, _) in &readers {
                    pipeline.cmd("ZREM").arg(self.keys().read(user)).arg(id.to_string()).ignore();
                }
                self.ask::<()>(&pipeline).await?;
            }
            if next == "0" {
                return Ok(());
            }
            cursor = next;
        }
    }
}

impl Forgotten {
    /// Also of one that is gone already: then only its place among those that have expired is left.
    fn new(id: Uuid, row: Option<&MessageRow>) -> Self {
        let Some(row) = row else {
            return Self { id, client: String::new(), keys: Vec::new(), live: String::new() };
        };
        Self {
            id,
            client: row.client().to_owned(),
            keys: encoded(&row.keys()),
            live: LiveMessage::member(id, row.policy.expiration, row.is_required()),
        }
    }
}
