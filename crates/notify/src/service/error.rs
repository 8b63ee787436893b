//! Why a use case of notifications failed.

use std::sync::Arc;

use relais_core::StoreError;
use relais_group_commit::BatchError;

use crate::{
    AckRefused, ChangeRefused, InvalidNotification, MembersRefused, MembershipRefused, TicketRefused, TokenRefused,
    hub::TooManyLinks,
};

/// Why a use case failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NotifyError {
    /// The token or ticket is not accepted.
    #[error("the token is not valid")]
    Unauthorized(#[source] TokenRefused),
    /// The message is not valid; its number in the list.
    #[error("message {0}: {1}")]
    Invalid(usize, InvalidNotification),
    /// A message must be acknowledged, and its audience has no declared members; its number in the list.
    #[error("message {0} must be acknowledged, and its audience has no members")]
    NoMembers(usize),
    /// The id, or the idempotency key, belongs to another message; its number in the list.
    #[error("message {0} has the id of another one")]
    IdTaken(usize),
    /// There is no such message, or the caller does not see it.
    #[error("notification not found")]
    NotFound,
    /// The message's state does not allow it.
    #[error("{0}")]
    State(AckRefused),
    /// The members can not be changed.
    #[error("{0}")]
    Members(MembershipRefused),
    /// The target is declared: its declaration says who its members are.
    #[error("{0} is declared, and has the members of its declaration; change that instead")]
    Declared(crate::AudienceKey),
    /// The ticket can not be issued.
    #[error("{0}")]
    Ticket(#[from] TicketRefused),
    /// No more links.
    #[error("{0}")]
    TooManyLinks(#[from] TooManyLinks),
    /// Too much waits to be stored.
    #[error("too much waits to be stored")]
    Overloaded,
    /// The process stops.
    #[error("the server is stopping")]
    Stopping,
    /// The store failed.
    #[error(transparent)]
    Store(Arc<StoreError>),
}

impl From<StoreError> for NotifyError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

/// The process has just started, or where the keys are is away: nobody can tell yet whether a token is good.
pub(crate) fn no_keys() -> NotifyError {
    StoreError::Unavailable("the keys of tokens could not be read yet".into()).into()
}

impl BatchError for NotifyError {
    fn overloaded() -> Self {
        Self::Overloaded
    }

    fn stopping() -> Self {
        Self::Stopping
    }
}

impl From<ChangeRefused> for NotifyError {
    fn from(refused: ChangeRefused) -> Self {
        match refused {
            ChangeRefused::NotFound => Self::NotFound,
            ChangeRefused::State(refused) => Self::State(refused),
            ChangeRefused::IdTaken => Self::IdTaken(0),
            ChangeRefused::NoMembers => Self::NoMembers(0),
            ChangeRefused::Store(error) => error.into(),
        }
    }
}

impl From<MembersRefused> for NotifyError {
    fn from(refused: MembersRefused) -> Self {
        match refused {
            MembersRefused::Membership(refused) => Self::Members(refused),
            MembersRefused::Store(error) => error.into(),
        }
    }
}
