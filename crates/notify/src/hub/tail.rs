//! The end of the log in memory, so that links which come back soon need no database.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use jiff::Timestamp;
use uuid::Uuid;

use crate::{AudienceKey, EntryKind, LogPosition, UserScope, frame::Frame};

/// An entry that links may send.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    pub(crate) position: LogPosition,
    /// For whom.
    pub(crate) keys: Arc<[AudienceKey]>,
    pub(crate) frame: Arc<Frame>,
    /// The message that it sends, if it sends one.
    pub(crate) message: Option<SentMessage>,
    /// Its message was withdrawn since.
    pub(crate) is_withdrawn: bool,
}

/// What is known about a message that is sent.
#[derive(Debug, Clone)]
pub(crate) struct SentMessage {
    pub(crate) id: Uuid,
    pub(crate) kind: EntryKind,
    pub(crate) emitted_at: LogPosition,
    pub(crate) expiration: Timestamp,
    pub(crate) ack_required: bool,
}

impl Outgoing {
    /// Whether it is for this user, but for what the user has acknowledged.
    pub(crate) fn is_for(&self, scope: &UserScope) -> bool {
        let Some(SentMessage { kind: EntryKind::Replayed { .. }, emitted_at, .. }) = &self.message else {
            return scope.keys().any(|key| self.keys.contains(key));
        };
        scope.belongs.iter().any(|belonging| {
            belonging.since.is_some_and(|since| since <= *emitted_at) && self.keys.contains(&belonging.key)
        })
    }

    /// The message that it sends again.
    pub(crate) fn replayed(&self) -> Option<Uuid> {
        let message = self.message.as_ref()?;
        matches!(message.kind, EntryKind::Replayed { .. }).then_some(message.id)
    }

    fn bytes(&self) -> usize {
        self.frame.data.len() + 200 + 100 * self.keys.len()
    }
}

/// The last entries.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    entries: VecDeque<Outgoing>,
    by_key: HashMap<AudienceKey, VecDeque<LogPosition>>,
    /// All entries after this position are here.
    pub(crate) from: LogPosition,
    bytes: usize,
}

impl Tail {
    /// An empty one.
    pub(crate) fn starting_at(from: LogPosition) -> Self {
        Self { from, ..Self::default() }
    }

    /// Adds the next entry, and forgets the oldest ones above these limits.
    pub(crate) fn push(&mut self, outgoing: Outgoing, most: usize, most_bytes: usize) {
        for key in outgoing.keys.iter() {
            self.by_key.entry(key.clone()).or_default().push_back(outgoing.position);
        }
        self.bytes += outgoing.bytes();
        self.entries.push_back(outgoing);
        while self.entries.len() > most || self.bytes > most_bytes {
            let Some(oldest) = self.entries.pop_front() else { break };
            self.bytes -= oldest.bytes();
            self.from = oldest.position;
            for key in oldest.keys.iter() {
                if let Some(positions) = self.by_key.get_mut(key) {
                    positions.pop_front();
                    if positions.is_empty() {
                        self.by_key.remove(key);
                    }
                }
            }
        }
    }

    /// A message is not sent any more.
    pub(crate) fn forget_message(&mut self, id: Uuid) {
        for entry in &mut self.entries {
            if entry.message.as_ref().is_some_and(|message| message.id == id) {
                // Its keys stay: they say where the index has it, and what it weighs.
                entry.is_withdrawn = true;
            }
        }
    }

    /// The first entries for a user after a position; and where to go on, if these are not all.
    pub(crate) fn read(
        &self,
        scope: &UserScope,
        after: LogPosition,
        limit: usize,
    ) -> (Vec<Outgoing>, Option<LogPosition>) {
        let mut positions: Vec<LogPosition> = Vec::new();
        for key in scope.keys() {
            let Some(of_key) = self.by_key.get(key) else { continue };
            let first = of_key.partition_point(|position| *position <= after);
            positions.extend(of_key.range(first..).take(limit + 1));
        }
        positions.sort_unstable();
        positions.dedup();
        let more = positions.len() > limit;
        positions.truncate(limit);
        let next = positions.last().copied().filter(|_| more);
        let found = positions.into_iter().filter_map(|position| {
            let at = self.entries.binary_search_by_key(&position, |entry| entry.position).ok()?;
            self.entries.get(at).filter(|entry| !entry.is_withdrawn && entry.is_for(scope)).cloned()
        });
        (found.collect(), next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_withdrawn_leaves_nothing_behind() {
        let mut tail = Tail::starting_at(0);
        let scope = UserScope {
            user: "ann".to_owned(),
            belongs: vec![crate::Belonging { key: AudienceKey::user("ann"), since: Some(0) }],
        };
        for position in 1..=10 {
            let id = Uuid::from_u128(position.into());
            let expiration = Timestamp::MAX;
            let message =
                SentMessage { id, kind: EntryKind::Emitted, emitted_at: position, expiration, ack_required: false };
            let keys = Arc::from([AudienceKey::user("ann"), AudienceKey::user(format!("u{position}"))]);
            let frame = Frame::audiences(None);
            tail.push(Outgoing { position, keys, frame, message: Some(message), is_withdrawn: false }, 4, usize::MAX);
            tail.forget_message(id);
        }
        assert_eq!(tail.read(&scope, 6, 10).0.len(), 0, "it is not sent");
        assert_eq!((tail.from, tail.entries.len(), tail.by_key.len()), (6, 4, 5));
        assert_eq!(tail.by_key[&AudienceKey::user("ann")].len(), 4);
        assert_eq!(tail.bytes, tail.entries.iter().map(Outgoing::bytes).sum::<usize>());
    }
}
