//! A browser that takes pushes for a user.

use std::fmt;

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use relais_core::NotAllowed;
use ring::{agreement, digest, rand::SystemRandom};
use uuid::Uuid;

/// base64url, as browsers write it, and with padding, as some libraries do.
const BASE64URL: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A point of P-256 that is not compressed.
const POINT_BYTES: usize = 65;
const AUTH_BYTES: usize = 16;

/// Where a browser's push service takes pushes, and the keys that they are encrypted with. The endpoint and `auth` are secrets
/// of the browser: neither is shown in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct PushSubscription {
    /// Whose messages are pushed there.
    pub user: String,
    /// The URL of the push service, for this browser.
    pub endpoint: String,
    p256dh: [u8; POINT_BYTES],
    auth: [u8; AUTH_BYTES],
}

/// Why a subscription is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSubscription {
    /// The endpoint may not be called.
    #[error("{0}")]
    Endpoint(NotAllowed),
    /// The browser's public key is none.
    #[error("it must be a public key of P-256, not compressed: {POINT_BYTES} bytes in base64url")]
    P256dh,
    /// The browser's secret is none.
    #[error("it must be {AUTH_BYTES} bytes in base64url")]
    Auth,
}

impl InvalidSubscription {
    /// The field that is wrong, as a JSON pointer.
    pub const fn field(&self) -> &'static str {
        match self {
            Self::Endpoint(_) => "/endpoint",
            Self::P256dh => "/keys/p256dh",
            Self::Auth => "/keys/auth",
        }
    }
}

impl PushSubscription {
    /// Reads the keys as browsers write them, and checks that they can be used. The endpoint is judged elsewhere.
    pub fn new(
        user: impl Into<String>,
        endpoint: impl Into<String>,
        p256dh: &str,
        auth: &str,
    ) -> Result<Self, InvalidSubscription> {
        let p256dh = BASE64URL.decode(p256dh).map_err(|_| InvalidSubscription::P256dh)?;
        let auth = BASE64URL.decode(auth).map_err(|_| InvalidSubscription::Auth)?;
        let auth: [u8; AUTH_BYTES] = auth.try_into().map_err(|_| InvalidSubscription::Auth)?;
        let p256dh: [u8; POINT_BYTES] = p256dh.try_into().map_err(|_| InvalidSubscription::P256dh)?;
        if !is_on_curve(&p256dh) {
            return Err(InvalidSubscription::P256dh);
        }
        Ok(Self { user: user.into(), endpoint: endpoint.into(), p256dh, auth })
    }

    /// One that was stored; none if the keys have other lengths.
    pub fn from_parts(user: String, endpoint: String, p256dh: &[u8], auth: &[u8]) -> Option<Self> {
        Some(Self { user, endpoint, p256dh: p256dh.try_into().ok()?, auth: auth.try_into().ok()? })
    }

    /// Made of the endpoint: the same browser has the same id.
    pub fn id(&self) -> Uuid {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest::digest(&digest::SHA256, self.endpoint.as_bytes()).as_ref()[..16]);
        uuid::Builder::from_custom_bytes(bytes).into_uuid()
    }

    /// The browser's public key.
    pub const fn p256dh(&self) -> &[u8; POINT_BYTES] {
        &self.p256dh
    }

    /// The secret that the browser shares with Relais.
    pub const fn auth(&self) -> &[u8; AUTH_BYTES] {
        &self.auth
    }

    /// Whether another one has the same keys: then it is of the same browser.
    pub fn has_keys_of(&self, other: &Self) -> bool {
        self.p256dh == other.p256dh && self.auth == other.auth
    }

    /// Scheme, host and port of the endpoint.
    pub fn origin(&self) -> &str {
        let host = self.endpoint.find("://").map_or(0, |at| at + 3);
        let end = self.endpoint[host..].find(['/', '?', '#']).map_or(self.endpoint.len(), |at| host + at);
        &self.endpoint[..end]
    }
}

impl fmt::Debug for PushSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushSubscription")
            .field("user", &self.user)
            .field("origin", &self.origin())
            .finish_non_exhaustive()
    }
}

/// Whether a key can be agreed with.
fn is_on_curve(point: &[u8]) -> bool {
    let random = SystemRandom::new();
    let Ok(ours) = agreement::EphemeralPrivateKey::generate(&agreement::ECDH_P256, &random) else { return false };
    let theirs = agreement::UnparsedPublicKey::new(&agreement::ECDH_P256, point);
    agreement::agree_ephemeral(ours, &theirs, |_| ()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const P256DH: &str = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
    const AUTH: &str = "BTBZMqHH6r4Tts7J_aSIgg";

    fn refused(p256dh: &str, auth: &str) -> Option<InvalidSubscription> {
        PushSubscription::new("ann", "https://push.example/1", p256dh, auth).err()
    }

    #[test]
    fn keys_are_read_as_browsers_write_them() {
        let one = PushSubscription::new("ann", "https://push.example:8443/a?b", P256DH, AUTH).unwrap();
        assert_eq!(one.origin(), "https://push.example:8443");
        let padded = PushSubscription::new("bob", "https://push.example:8443/a?b", P256DH, &format!("{AUTH}=="));
        let padded = padded.unwrap();
        assert!(one.id() == padded.id() && one.has_keys_of(&padded) && one != padded);
        let shown = format!("{one:?}");
        assert!(shown.contains("push.example") && !shown.contains("a?b"), "{shown}");
    }

    #[test]
    fn keys_that_are_none_are_refused() {
        let other_point = format!("{}A", &P256DH[..P256DH.len() - 1]);
        for bad in ["", "BCVx", &P256DH[..80], &other_point, &"A".repeat(87), "not base64!"] {
            assert_eq!(refused(bad, AUTH), Some(InvalidSubscription::P256dh), "{bad}");
        }
        for bad in ["", "BTBZ", &format!("{AUTH}AAAA"), "!"] {
            assert_eq!(refused(P256DH, bad), Some(InvalidSubscription::Auth), "{bad}");
        }
    }
}
