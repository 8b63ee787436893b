//! Who the user of a web page is: by a token of the application's own identity provider ([`TokenVerifier`]), or by a
//! ticket that a backend has asked for ([`Tickets`]). [`Identities`] takes either.
//!
//! Everything here is pure: the caller says what time it is, reads files and fetches URLs. What a refused user is told
//! is decided elsewhere too; [`TokenRefused`] is for logs and tests. No token and no secret is ever part of a message
//! or of `Debug` output.
//!
//! ring verifies all signatures. The crate jsonwebtoken 11 was considered and does not fit: it has no backend for ring,
//! its backend of pure Rust adds 33 crates (among them `rsa`, with RUSTSEC-2023-0071 open), it reads the clock by
//! itself, and it accepts critical header parameters that it does not know.

mod claims;
mod jwks;
mod keys;
mod object;
mod refused;
mod ticket;
mod token;

use std::{collections::BTreeSet, sync::OnceLock};

use jiff::Timestamp;

use crate::{
    AudienceKey, USER,
    message::{LONGEST_NAME, is_name},
};

pub use claims::ClaimRules;
pub use jwks::JwksKeys;
pub use keys::{LEAST_SECRET_BYTES, TokenKeys};
pub use refused::{KeysRefused, TicketRefused, TokenRefused};
pub use ticket::{DEFAULT_TICKET_TTL, LONGEST_TICKET_TTL, TICKET_PREFIX, Tickets};
pub use token::{TokenVerifier, VerifierOptions};

/// A token or a ticket has at most so many bytes, unless an option says otherwise.
pub const LONGEST_TOKEN: usize = 8 * 1024;

/// An identity has at most so many audiences of its own.
pub const MOST_AUDIENCES: usize = 1000;

/// A user who has proved who they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub user: String,
    /// The audiences that the proof says the user belongs to, beside those with declared members. Each once, in order.
    pub audiences: Vec<AudienceKey>,
    /// From when on the proof is not accepted any more.
    pub expires: Option<Timestamp>,
}

impl Identity {
    /// Checks the names. A user is only themself, so an audience of the type [`USER`] is refused.
    pub fn new(
        user: impl Into<String>,
        audiences: impl IntoIterator<Item = AudienceKey>,
        expires: Option<Timestamp>,
    ) -> Result<Self, InvalidIdentity> {
        let audiences: BTreeSet<AudienceKey> = audiences.into_iter().collect();
        let identity = Self { user: user.into(), audiences: audiences.into_iter().collect(), expires };
        identity.check()?;
        Ok(identity)
    }

    fn check(&self) -> Result<(), InvalidIdentity> {
        if !is_name(&self.user) {
            return Err(InvalidIdentity::BadUser);
        }
        if self.audiences.iter().any(|key| key.kind == USER) {
            return Err(InvalidIdentity::UserInAudiences);
        }
        if !self.audiences.iter().all(|key| is_name(&key.kind) && is_name(&key.target)) {
            return Err(InvalidIdentity::BadAudience);
        }
        let found = self.audiences.len();
        if found > MOST_AUDIENCES { Err(InvalidIdentity::TooManyAudiences { found }) } else { Ok(()) }
    }
}

/// Why an identity is refused, whoever vouches for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidIdentity {
    /// The user's name is empty, too long, or has control characters.
    #[error("the user must have 1 to {LONGEST_NAME} bytes and no control characters")]
    BadUser,
    /// A type or a target is empty, too long, or has control characters.
    #[error("each type and target of the audiences must have 1 to {LONGEST_NAME} bytes and no control characters")]
    BadAudience,
    /// It would be another user.
    #[error("the audiences have the type {USER}, and a user is only themself")]
    UserInAudiences,
    /// It has too many audiences.
    #[error(
        "there are {found} audiences, and at most {MOST_AUDIENCES} are allowed; declare audiences with members instead"
    )]
    TooManyAudiences {
        /// How many it has.
        found: usize,
    },
}

/// All the ways to prove who one is.
///
/// ```
/// use relais_notify::{Identities, Identity, Tickets};
///
/// let now = "2025-03-05T12:00:00Z".parse()?;
/// let tickets = Tickets::new([7; 32]); // From a secret of the server's configuration.
/// let (ticket, expires) = tickets.issue(&Identity::new("ann", [], None)?, now, None)?;
///
/// let identities = Identities::new(None, Some(tickets));
/// let ann = identities.verify(&ticket, now)?;
/// assert_eq!((ann.user.as_str(), ann.expires), ("ann", Some(expires)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Identities {
    tokens: Option<TokenVerifier>,
    /// Their key may be known later.
    tickets: OnceLock<Tickets>,
}

impl Identities {
    /// Accepts what there is a verifier for.
    pub fn new(tokens: Option<TokenVerifier>, tickets: Option<Tickets>) -> Self {
        Self { tokens, tickets: tickets.map_or_else(OnceLock::new, OnceLock::from) }
    }

    /// Who proves by this token, or by this ticket, who they are.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<Identity, TokenRefused> {
        if token.starts_with(TICKET_PREFIX) {
            self.tickets.get().ok_or(TokenRefused::NoTickets)?.verify(token, now)
        } else {
            self.tokens.as_ref().ok_or(TokenRefused::NoTokens)?.verify(token, now)
        }
    }

    /// The verifier of tokens, whose JWKS is to be replaced now and then.
    pub fn tokens(&self) -> Option<&TokenVerifier> {
        self.tokens.as_ref()
    }

    /// The tickets, which a backend asks for.
    pub fn tickets(&self) -> Option<&Tickets> {
        self.tickets.get()
    }

    /// From now on tickets are accepted; once.
    pub fn set_tickets(&self, tickets: Tickets) {
        let _ = self.tickets.set(tickets);
    }
}
