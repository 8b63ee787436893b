//! Tickets: what a backend asks for on behalf of a user, for pages that have no token of an identity provider.
//!
//! A ticket is `rt_` and base64url of three things: a version (1), `[user, expires, {TYPE: [target, …]}]` as JSON,
//! and the HMAC-SHA256 of both. It fits into an address (`?ticket=`), and can be used again until it expires. Nothing
//! is stored about it, so it can not be taken back: keep its life short.

use std::{collections::BTreeMap, fmt, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use ring::hmac;
use serde_json::value::RawValue;

use super::{Identity, LONGEST_TOKEN, TicketRefused, TokenRefused, claims};

/// Tickets begin with it, and tokens do not.
pub const TICKET_PREFIX: &str = "rt_";

/// A ticket is valid for so long, if whoever asks for it does not say.
pub const DEFAULT_TICKET_TTL: Duration = Duration::from_secs(60 * 60);

/// A ticket is valid for at most so long, unless an option says otherwise.
pub const LONGEST_TICKET_TTL: Duration = Duration::from_secs(24 * 60 * 60);

const VERSION: u8 = 1;
const TAG_BYTES: usize = 32;

/// Issues tickets, and verifies them.
#[derive(Clone)]
pub struct Tickets {
    signing: hmac::Key,
    others: Vec<hmac::Key>,
    longest_ttl: Duration,
}

impl Tickets {
    /// Signs with this key.
    pub fn new(key: [u8; 32]) -> Self {
        Self { signing: hmac_key(&key), others: Vec::new(), longest_ttl: LONGEST_TICKET_TTL }
    }

    /// Accepts tickets of these keys too: those that signed before, and the one that will sign next.
    pub fn with_other_keys(mut self, keys: impl IntoIterator<Item = [u8; 32]>) -> Self {
        self.others.extend(keys.into_iter().map(|key| hmac_key(&key)));
        self
    }

    /// Tickets are valid for at most so long.
    pub fn with_longest_ttl(self, longest_ttl: Duration) -> Self {
        Self { longest_ttl, ..self }
    }

    /// A ticket for a user, and when it expires. It does not outlive the identity that it is issued for.
    pub fn issue(
        &self,
        identity: &Identity,
        now: Timestamp,
        ttl: Option<Duration>,
    ) -> Result<(String, Timestamp), TicketRefused> {
        identity.check()?;
        let ttl = ttl.unwrap_or(DEFAULT_TICKET_TTL.min(self.longest_ttl));
        if !(Duration::from_secs(1)..=self.longest_ttl).contains(&ttl) {
            return Err(TicketRefused::BadTtl { longest: self.longest_ttl });
        }
        let latest = identity.expires.unwrap_or(Timestamp::MAX);
        let expires = whole_seconds(now.checked_add(ttl).unwrap_or(Timestamp::MAX).min(latest));
        if expires <= now {
            return Err(TicketRefused::Expired);
        }
        let mut audiences: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for key in &identity.audiences {
            audiences.entry(&key.kind).or_default().push(&key.target);
        }
        let payload = serde_json::json!([identity.user, expires.as_second(), audiences]).to_string();
        let mut signed = [&[VERSION], payload.as_bytes()].concat();
        let tag = hmac::sign(&self.signing, &signed);
        signed.extend_from_slice(tag.as_ref());
        let ticket = format!("{TICKET_PREFIX}{}", URL_SAFE_NO_PAD.encode(signed));
        if ticket.len() > LONGEST_TOKEN {
            return Err(TicketRefused::TooLong { found: ticket.len(), limit: LONGEST_TOKEN });
        }
        Ok((ticket, expires))
    }

    /// Who proves by this ticket who they are.
    pub fn verify(&self, ticket: &str, now: Timestamp) -> Result<Identity, TokenRefused> {
        if ticket.len() > LONGEST_TOKEN {
            return Err(TokenRefused::TooLong { found: ticket.len(), limit: LONGEST_TOKEN });
        }
        let encoded = ticket.strip_prefix(TICKET_PREFIX).ok_or(TokenRefused::Malformed("it is not a ticket"))?;
        let bytes = URL_SAFE_NO_PAD.decode(encoded);
        let bytes = bytes.map_err(|_| TokenRefused::Malformed("the ticket is not base64url"))?;
        let signed = bytes.len().checked_sub(TAG_BYTES).and_then(|length| bytes.split_at_checked(length));
        let (signed, tag) = signed.ok_or(TokenRefused::Malformed("the ticket is too short"))?;
        let mut keys = std::iter::once(&self.signing).chain(&self.others);
        if !keys.any(|key| hmac::verify(key, signed, tag).is_ok()) {
            return Err(TokenRefused::BadSignature);
        }
        let unknown = TokenRefused::Malformed("the ticket has another version");
        let Some((&VERSION, payload)) = signed.split_first() else { return Err(unknown) };
        let (user, expires, audiences): (String, i64, &RawValue) =
            serde_json::from_slice(payload).map_err(|_| TokenRefused::Malformed("the ticket has another content"))?;
        let expires = Timestamp::from_second(expires)
            .map_err(|_| TokenRefused::Malformed("the ticket expires when there is no time"))?;
        if now >= expires {
            return Err(TokenRefused::Expired);
        }
        Ok(Identity::new(user, claims::audiences("audiences", audiences.get())?, Some(expires))?)
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets").field("longest_ttl", &self.longest_ttl).finish_non_exhaustive()
    }
}

fn hmac_key(key: &[u8; 32]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, key)
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
