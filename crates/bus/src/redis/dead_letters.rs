//! Dead letters in Redis: a hash of what they say, and a sorted set of when they came.

use async_trait::async_trait;
use redis::AsyncCommands;
use std::sync::Arc;
use uuid::Uuid;

use super::{Server, log_garbage};
use crate::{BusError, DeadLetter, DeadLetterStore, Event, Pattern};

/// How many are looked at in one round trip.
const CHUNK: isize = 200;

pub(super) struct RedisDeadLetters {
    server: Server,
}

impl RedisDeadLetters {
    pub(super) fn new(server: Server) -> Self {
        Self { server }
    }

    fn keys(&self) -> (String, String) {
        (self.server.key("dead_letters"), self.server.key("dead_letters_by_time"))
    }
}

fn failed(error: redis::RedisError) -> BusError {
    BusError::transport("use the dead letters", error)
}

#[async_trait]
impl DeadLetterStore for RedisDeadLetters {
    async fn put(&self, letter: &DeadLetter) -> Result<(), BusError> {
        let (said, when) = self.keys();
        let (id, event) = (letter.id().to_string(), letter.event());
        let text = event.to_json()?;
        let mut connection = self.server.commands().await?;
        let mut both = redis::pipe();
        both.atomic().hset(said, &id, text).ignore().zadd(when, &id, event.timestamp.as_microsecond()).ignore();
        both.query_async(&mut connection).await.map_err(failed)
    }

    async fn list(&self, pattern: &Pattern, limit: usize) -> Result<Vec<DeadLetter>, BusError> {
        let (said, when) = self.keys();
        let mut connection = self.server.commands().await?;
        let (mut letters, mut from) = (Vec::new(), 0);
        while letters.len() < limit {
            let ids: Vec<String> = connection.zrange(&when, from, from + CHUNK - 1).await.map_err(failed)?;
            if ids.is_empty() {
                break;
            }
            let mut ask = redis::cmd("HMGET");
            ask.arg(&said).arg(&ids);
            let texts: Vec<Option<String>> = ask.query_async(&mut connection).await.map_err(failed)?;
            let found = texts.into_iter().flatten().filter_map(|text| read(&text));
            letters.extend(found.filter(|letter| pattern.matches(&letter.event().channel)));
            from += CHUNK;
        }
        letters.truncate(limit);
        Ok(letters)
    }

    async fn get(&self, id: Uuid) -> Result<Option<DeadLetter>, BusError> {
        let mut connection = self.server.commands().await?;
        let text: Option<String> = connection.hget(self.keys().0, id.to_string()).await.map_err(failed)?;
        Ok(text.as_deref().and_then(read))
    }

    async fn remove(&self, id: Uuid) -> Result<bool, BusError> {
        let ((said, when), id) = (self.keys(), id.to_string());
        let mut connection = self.server.commands().await?;
        let mut both = redis::pipe();
        both.atomic().hdel(said, &id).zrem(when, &id).ignore();
        let (removed,): (u64,) = both.query_async(&mut connection).await.map_err(failed)?;
        Ok(removed > 0)
    }
}

fn read(text: &str) -> Option<DeadLetter> {
    let event = Event::from_json(text).inspect_err(log_garbage).ok()?;
    Some(DeadLetter::new(Arc::new(event)))
}
