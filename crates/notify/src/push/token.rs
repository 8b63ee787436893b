//! Tokens that acknowledge: each is good for one user and one message, once.
//!
//! A push carries one, so that a click on it acknowledges although the service worker has no token of the user. A token is `rp_`
//! and base64url of three things: a version (1), `[user, id, expires]` as JSON, and the HMAC-SHA256 of both. It is spent as soon
//! as the user has acknowledged the message, by whichever way: the ledger says so, and nothing else has to be stored.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use ring::hmac;
use uuid::Uuid;

/// Tokens that acknowledge begin with it.
const PREFIX: &str = "rp_";
const VERSION: u8 = 1;
const TAG_BYTES: usize = 32;

/// A token is at most so long.
const LONGEST: usize = 1024;

/// Issues tokens that acknowledge, and verifies them.
pub struct AckTokens(hmac::Key);

/// Why a token that acknowledges is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AckTokenRefused {
    /// It was not issued here.
    #[error("the token was not issued by this server")]
    Forged,
    /// The message has expired.
    #[error("the message of the token has expired")]
    Expired,
}

impl AckTokens {
    /// Signs with a key that is made of the key of tickets, so that neither is good for the other.
    pub fn new(ticket_key: &[u8; 32]) -> Self {
        let root = hmac::Key::new(hmac::HMAC_SHA256, ticket_key);
        let key = hmac::sign(&root, b"relais: tokens that acknowledge pushes");
        Self(hmac::Key::new(hmac::HMAC_SHA256, key.as_ref()))
    }

    /// A token of a user for a message that expires then.
    pub fn issue(&self, user: &str, id: Uuid, expires: Timestamp) -> String {
        let payload = serde_json::json!([user, id, expires.as_second()]).to_string();
        let mut signed = [&[VERSION], payload.as_bytes()].concat();
        let tag = hmac::sign(&self.0, &signed);
        signed.extend_from_slice(tag.as_ref());
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(signed))
    }

    /// The user and the message of a token.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<(String, Uuid), AckTokenRefused> {
        let forged = AckTokenRefused::Forged;
        let encoded = token.strip_prefix(PREFIX).filter(|_| token.len() <= LONGEST).ok_or(forged)?;
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| forged)?;
        let parts = bytes.len().checked_sub(TAG_BYTES).and_then(|length| bytes.split_at_checked(length));
        let (signed, tag) = parts.ok_or(forged)?;
        hmac::verify(&self.0, signed, tag).map_err(|_| forged)?;
        let Some((&VERSION, payload)) = signed.split_first() else { return Err(forged) };
        let (user, id, expires): (String, Uuid, i64) = serde_json::from_slice(payload).map_err(|_| forged)?;
        match now.as_second() < expires {
            true => Ok((user, id)),
            false => Err(AckTokenRefused::Expired),
        }
    }
}

impl fmt::Debug for AckTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AckTokens").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Identity, Tickets};

    #[test]
    fn no_bit_of_a_token_can_be_changed() {
        let (tokens, id) = (AckTokens::new(&[7; 32]), Uuid::now_v7());
        let (now, later) = (Timestamp::from_second(1000).unwrap(), Timestamp::from_second(2000).unwrap());
        let token = tokens.issue("ann", id, later);
        assert_eq!(tokens.verify(&token, now), Ok(("ann".to_owned(), id)));
        assert_eq!(tokens.verify(&token, later), Err(AckTokenRefused::Expired));
        let bytes = URL_SAFE_NO_PAD.decode(token.strip_prefix(PREFIX).unwrap()).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut forged = bytes.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            let forged = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(forged));
            assert_eq!(tokens.verify(&forged, now), Err(AckTokenRefused::Forged), "bit {bit}");
        }
    }

    #[test]
    fn neither_other_keys_nor_tickets_sign_a_token() {
        let (tokens, now) = (AckTokens::new(&[7; 32]), Timestamp::from_second(1000).unwrap());
        let other = AckTokens::new(&[8; 32]).issue("ann", Uuid::now_v7(), Timestamp::MAX);
        let identity = Identity::new("ann", [], None).unwrap();
        let (ticket, _) = Tickets::new([7; 32]).issue(&identity, now, None).unwrap();
        let disguised = ticket.replacen("rt_", PREFIX, 1);
        for forged in [other.as_str(), &ticket, &disguised, "", "rp_", "rp_AAAA", &format!("rp_{}", "A".repeat(2000))] {
            assert_eq!(tokens.verify(forged, now), Err(AckTokenRefused::Forged), "{forged}");
        }
    }
}
