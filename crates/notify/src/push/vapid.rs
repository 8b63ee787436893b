//! VAPID (RFC 8292): pushes are signed with a key that the browser was told when it subscribed.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use ring::{
    error::Unspecified,
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _},
};

/// A signature is good for so long; push services take at most 24 h.
const GOOD_FOR: SignedDuration = SignedDuration::from_hours(12);

/// The key pair of the server (ES256).
pub struct VapidKey {
    pair: EcdsaKeyPair,
    random: SystemRandom,
    /// The public key in base64url, as pages pass it to `pushManager.subscribe`.
    public: String,
}

/// Why a key pair can not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VapidKeyRefused {
    /// They are no base64url.
    #[error("the keys of pushes must be base64url")]
    NotBase64,
    /// They are none of P-256, or not a pair.
    #[error("the keys of pushes must be a pair of P-256: 65 bytes the public one, 32 bytes the private one")]
    NotAPair,
}

impl VapidKey {
    /// A new key pair, PKCS #8.
    pub fn generate() -> Result<Vec<u8>, Unspecified> {
        let pair = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())?;
        Ok(pair.as_ref().to_vec())
    }

    /// One that was generated.
    pub fn from_pkcs8(bytes: &[u8]) -> Result<Self, VapidKeyRefused> {
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, bytes, &random);
        Ok(Self::of(pair.map_err(|_| VapidKeyRefused::NotAPair)?, random))
    }

    /// One in base64url, as the common tools for Web Push write it.
    pub fn from_base64(public: &str, private: &str) -> Result<Self, VapidKeyRefused> {
        let read =
            |text: &str| URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).map_err(|_| VapidKeyRefused::NotBase64);
        let (public, private, random) = (read(public)?, read(private)?, SystemRandom::new());
        let pair =
            EcdsaKeyPair::from_private_key_and_public_key(&ECDSA_P256_SHA256_FIXED_SIGNING, &private, &public, &random);
        Ok(Self::of(pair.map_err(|_| VapidKeyRefused::NotAPair)?, random))
    }

    fn of(pair: EcdsaKeyPair, random: SystemRandom) -> Self {
        let public = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
        Self { pair, random, public }
    }

    /// The public key, in base64url.
    pub fn public(&self) -> &str {
        &self.public
    }

    /// The header `Authorization` of a push to a push service of this origin. `contact` is whom its operators may write to.
    pub fn authorization(&self, origin: &str, contact: &str, now: Timestamp) -> Result<String, Unspecified> {
        let expires = now.as_second().saturating_add(GOOD_FOR.as_secs());
        let claims = serde_json::json!({"aud": origin, "exp": expires, "sub": contact});
        let header = URL_SAFE_NO_PAD.encode(br#"{"typ":"JWT","alg":"ES256"}"#);
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = self.pair.sign(&self.random, signed.as_bytes())?;
        Ok(format!("vapid t={signed}.{}, k={}", URL_SAFE_NO_PAD.encode(signature), self.public))
    }
}

impl fmt::Debug for VapidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VapidKey").field("public", &self.public).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

    use super::*;

    #[test]
    fn whoever_knows_the_public_key_can_verify_the_signature() {
        let key = VapidKey::from_pkcs8(&VapidKey::generate().unwrap()).unwrap();
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let header = key.authorization("https://push.example", "mailto:ops@shop.example", now).unwrap();
        let (token, public) = header.strip_prefix("vapid t=").unwrap().split_once(", k=").unwrap();
        assert_eq!(public, key.public());
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let public = URL_SAFE_NO_PAD.decode(public).unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, public).verify(signed.as_bytes(), &signature).unwrap();
        let claims = URL_SAFE_NO_PAD.decode(signed.split_once('.').unwrap().1).unwrap();
        let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
        let expected =
            serde_json::json!({"aud": "https://push.example", "exp": 1_700_043_200, "sub": "mailto:ops@shop.example"});
        assert_eq!(claims, expected);
    }

    #[test]
    fn a_pair_of_the_common_tools_is_read_and_another_one_is_refused() {
        // RFC 8291, appendix A: the keys of the user agent.
        let (public, private) = (
            "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
            "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94",
        );
        assert_eq!(VapidKey::from_base64(public, private).unwrap().public(), public);
        let other = VapidKey::from_pkcs8(&VapidKey::generate().unwrap()).unwrap();
        assert_eq!(VapidKey::from_base64(other.public(), private).err(), Some(VapidKeyRefused::NotAPair));
        assert_eq!(VapidKey::from_base64(public, "+/").err(), Some(VapidKeyRefused::NotBase64));
        assert_eq!(VapidKey::from_base64("", "").err(), Some(VapidKeyRefused::NotAPair));
    }
}
