//! The port: what a store of claims and marks does.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::DedupError;

/// The longest id of a message, in bytes.
pub(crate) const LONGEST_ID: usize = 1024;

/// The longest name of a consumer, in bytes.
pub(crate) const LONGEST_CONSUMER: usize = 255;

/// The id of a message, for one consumer: each consumer processes it for itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DedupKey {
    consumer: Arc<str>,
    id: Arc<str>,
}

impl DedupKey {
    /// A consumer without a name has the name ``.
    ///
    /// # Errors
    ///
    /// If the id or the name can not be stored.
    pub fn new(consumer: impl Into<Arc<str>>, id: &str) -> Result<Self, DedupError> {
        let consumer = consumer.into();
        if !fits(&consumer, LONGEST_CONSUMER) {
            return Err(DedupError::Consumer { longest: LONGEST_CONSUMER });
        }
        if id.is_empty() || !fits(id, LONGEST_ID) {
            return Err(DedupError::Id { longest: LONGEST_ID });
        }
        Ok(Self { consumer, id: id.into() })
    }

    /// The consumer's name; empty if it has none.
    pub fn consumer(&self) -> &str {
        &self.consumer
    }

    /// The message's id.
    pub fn id(&self) -> &str {
        &self.id
    }
}

fn fits(text: &str, longest: usize) -> bool {
    text.len() <= longest && !text.contains('\0')
}

/// Tells one claim from all others: who has lost a claim can not touch the next one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ClaimToken(Arc<str>);

impl ClaimToken {
    /// A new one.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers.
    pub fn generate() -> Result<Self, DedupError> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| DedupError::store(error.to_string()))?;
        Ok(Self(format!("{:032x}", u128::from_be_bytes(bytes)).into()))
    }

    /// As it is stored: 32 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ClaimToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClaimToken({})", self.0)
    }
}

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// It is the caller's.
    Claimed,
    /// The message was processed within the window.
    AlreadyDone,
    /// Somebody else has claimed it.
    Busy {
        /// After this time it may be asked for again: the claim is over then unless it was extended.
        wait: Duration,
    },
}

/// Whether a claim is still the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// It is.
    Held,
    /// It has expired, and somebody else has claimed or marked the message since.
    Lost,
}

/// Where claims and marks are kept.
///
/// A claim or a mark whose time is over counts as absent, whether or not it was removed. Times are the store's own: a
/// database's or server's clock, never those of the processes that use it.
#[async_trait]
pub trait DedupStore: Send + Sync + 'static {
    /// Claims a message for `claim`, unless it is marked or claimed. This is one step: of many callers one gets it.
    async fn claim(&self, key: &DedupKey, token: &ClaimToken, claim: Duration) -> Result<ClaimOutcome, DedupError>;

    /// Lets a claim last for `claim` from now. One that has expired comes back if nobody else has the message.
    async fn extend(&self, key: &DedupKey, token: &ClaimToken, claim: Duration) -> Result<Hold, DedupError>;

    /// Turns a claim into a mark that lasts for `window` from now. One that has expired can be turned if nobody else has the
    /// message.
    async fn mark(&self, key: &DedupKey, token: &ClaimToken, window: Duration) -> Result<Hold, DedupError>;

    /// Removes a claim, if it is still the caller's.
    async fn release(&self, key: &DedupKey, token: &ClaimToken) -> Result<(), DedupError>;

    /// Whether a message is marked. Changes nothing, and says nothing about claims.
    async fn is_marked(&self, key: &DedupKey) -> Result<bool, DedupError>;

    /// For how long a mark can last, where that is limited.
    fn longest_window(&self) -> Option<Duration> {
        None
    }
}

#[async_trait]
impl<S: DedupStore + ?Sized> DedupStore for Arc<S> {
    async fn claim(&self, key: &DedupKey, token: &ClaimToken, claim: Duration) -> Result<ClaimOutcome, DedupError> {
        (**self).claim(key, token, claim).await
    }

    async fn extend(&self, key: &DedupKey, token: &ClaimToken, claim: Duration) -> Result<Hold, DedupError> {
        (**self).extend(key, token, claim).await
    }

    async fn mark(&self, key: &DedupKey, token: &ClaimToken, window: Duration) -> Result<Hold, DedupError> {
        (**self).mark(key, token, window).await
    }

    async fn release(&self, key: &DedupKey, token: &ClaimToken) -> Result<(), DedupError> {
        (**self).release(key, token).await
    }

    async fn is_marked(&self, key: &DedupKey) -> Result<bool, DedupError> {
        (**self).is_marked(key).await
    }

    fn longest_window(&self) -> Option<Duration> {
        (**self).longest_window()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_or_a_name_that_can_not_be_stored_is_refused() {
        assert!(DedupKey::new("", "order-7").is_ok(), "a consumer need not have a name");
        assert!(DedupKey::new("é".repeat(127), &"é".repeat(512)).is_ok());
        for id in ["", "a\0b", &"x".repeat(1025)] {
            assert!(matches!(DedupKey::new("billing", id), Err(DedupError::Id { .. })), "{id:?}");
        }
        for name in ["a\0b", &"x".repeat(256)] {
            assert!(matches!(DedupKey::new(name, "7"), Err(DedupError::Consumer { .. })), "{name:?}");
        }
    }

    #[test]
    fn no_two_claims_have_the_same_token() {
        let (one, other) = (ClaimToken::generate().unwrap(), ClaimToken::generate().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.as_str().len(), 32);
    }
}
