//! Who gets an entry of the log.
//!
//! A message is stored once. Whether a user gets an entry is decided when it is delivered, by what is known then: so a replay
//! reaches exactly those who have not acknowledged, however many do while it is on its way.

use crate::AckStatus;

/// What an entry of the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A message, for the first time.
    Emitted,
    /// A message once more.
    Replayed {
        /// How often it was sent again, with this time.
        attempts: u32,
    },
    /// The message was withdrawn or replaced.
    Withdrawn,
}

/// What a user is to a message, at the moment of delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Recipient {
    /// Whether the user belongs to its audience now. Who has left sees it no more; who has joined since sees it.
    pub is_member: bool,
    /// Whether the user must acknowledge it.
    pub is_awaited: bool,
    /// Whether the user has acknowledged it.
    pub has_acknowledged: bool,
}

impl EntryKind {
    /// Whether a user gets this entry of a message that stands like this.
    pub fn reaches(self, recipient: Recipient, status: AckStatus) -> bool {
        let is_sent = !matches!(status, AckStatus::Expired | AckStatus::Withdrawn);
        recipient.is_member
            && match self {
                Self::Emitted => is_sent,
                Self::Replayed { .. } => is_sent && recipient.is_awaited && !recipient.has_acknowledged,
                Self::Withdrawn => true,
            }
    }
}
