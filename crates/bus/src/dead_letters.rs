//! Dead letters of the bus: events that failed for good, kept to be looked at and replayed.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use uuid::Uuid;

use crate::{BusError, Event, Metadata, Pattern, name};

/// An event that failed for good, on its channel `dlq.…`, with the reason in its metadata.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    event: Arc<Event>,
}

impl DeadLetter {
    /// A dead letter from the event that it is stored as.
    pub fn new(event: Arc<Event>) -> Self {
        Self { event }
    }

    /// Makes a dead letter of `event`, which failed at `failed_by` for this reason.
    pub(crate) fn of(event: &Event, error: &str, failed_by: &str, source: Arc<str>) -> Self {
        let mut metadata = event.metadata.clone();
        metadata.set(Metadata::ERROR, error);
        metadata.set(Metadata::FAILED_BY, failed_by);
        metadata.set(Metadata::ORIGINAL_CHANNEL, &*event.channel);
        metadata.set(Metadata::ORIGINAL_ID, event.id.to_string());
        metadata.set(Metadata::ORIGINAL_SOURCE, &*event.source);
        let channel = name::dead_letter_channel(&event.channel).into();
        Self { event: Arc::new(Event::new(channel, source, event.payload.clone(), metadata)) }
    }

    /// Its own id, to replay it by.
    pub fn id(&self) -> Uuid {
        self.event.id
    }

    /// The event as it was published on the channel of dead letters.
    pub fn event(&self) -> &Arc<Event> {
        &self.event
    }

    /// Where it was published before.
    pub fn original_channel(&self) -> &str {
        let named = self.event.metadata.get(Metadata::ORIGINAL_CHANNEL);
        named
            .unwrap_or_else(|| self.event.channel.strip_prefix(name::DEAD_LETTER_PREFIX).unwrap_or(&self.event.channel))
    }

    /// Why it failed.
    pub fn error(&self) -> &str {
        self.event.metadata.get(Metadata::ERROR).unwrap_or_default()
    }

    /// The original event, with its id and its metadata, as if never tried.
    pub(crate) fn revive(&self) -> Event {
        let mut event = Event::clone(&self.event);
        let original = self.original_channel().into();
        event.id = event.metadata.remove(Metadata::ORIGINAL_ID).and_then(|id| id.parse().ok()).unwrap_or(event.id);
        if let Some(source) = event.metadata.remove(Metadata::ORIGINAL_SOURCE) {
            event.source = source.into();
        }
        for name in [Metadata::ERROR, Metadata::FAILED_BY, Metadata::ORIGINAL_CHANNEL, Metadata::RETRY_COUNT] {
            event.metadata.remove(name);
        }
        event.channel = original;
        event
    }
}

/// Where dead letters are kept.
#[async_trait]
pub trait DeadLetterStore: Send + Sync {
    /// Keeps one. When it returns, the event may be acknowledged.
    async fn put(&self, letter: &DeadLetter) -> Result<(), BusError>;

    /// Those whose channel (`dlq.…`) matches, the oldest first.
    async fn list(&self, pattern: &Pattern, limit: usize) -> Result<Vec<DeadLetter>, BusError>;

    /// One of them.
    async fn get(&self, id: Uuid) -> Result<Option<DeadLetter>, BusError>;

    /// Discards one; whether it was there.
    async fn remove(&self, id: Uuid) -> Result<bool, BusError>;
}

/// In the memory of this process, up to a limit. The oldest make room, which is logged.
pub(crate) struct MemoryDeadLetters {
    letters: Mutex<VecDeque<DeadLetter>>,
    limit: usize,
}

impl MemoryDeadLetters {
    pub(crate) fn new(limit: usize) -> Self {
        Self { letters: Mutex::default(), limit: limit.max(1) }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<DeadLetter>> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl DeadLetterStore for MemoryDeadLetters {
    async fn put(&self, letter: &DeadLetter) -> Result<(), BusError> {
        let mut letters = self.lock();
        letters.push_back(letter.clone());
        let oldest = if letters.len() > self.limit { letters.pop_front() } else { None };
        drop(letters);
        if let Some(oldest) = oldest {
            tracing::warn!(id = %oldest.id(), channel = %oldest.event.channel, "too many dead letters; the oldest is gone");
        }
        Ok(())
    }

    async fn list(&self, pattern: &Pattern, limit: usize) -> Result<Vec<DeadLetter>, BusError> {
        Ok(self.lock().iter().filter(|letter| pattern.matches(&letter.event.channel)).take(limit).cloned().collect())
    }

    async fn get(&self, id: Uuid) -> Result<Option<DeadLetter>, BusError> {
        Ok(self.lock().iter().find(|letter| letter.id() == id).cloned())
    }

    async fn remove(&self, id: Uuid) -> Result<bool, BusError> {
        let mut letters = self.lock();
        let place = letters.iter().position(|letter| letter.id() == id);
        Ok(place.and_then(|place| letters.remove(place)).is_some())
    }
}
