//! The keys that verify tokens. Each is for one algorithm, whatever the header of a token says.

use std::fmt;

use ring::{
    hmac,
    signature::{
        ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
    },
};
use rustls_pki_types::{
    alg_id,
    pem::{PemObject as _, SectionKind},
};

use super::KeysRefused;

/// A secret with fewer bytes can be guessed by who has one token.
pub const LEAST_SECRET_BYTES: usize = 32;

/// What verifies tokens.
#[derive(Clone)]
pub enum TokenKeys {
    /// Secrets for HS256: usually one, two while it is being changed.
    Secrets(Vec<Vec<u8>>),
    /// Public keys as PEM text, for RS256, ES256 or EdDSA. The ids of keys do not matter.
    PublicKeys(String),
    /// The text of a JWKS. Its public keys are taken, and found by their ids; symmetric keys are not.
    Jwks(String),
    /// A JWKS that comes later: until then all tokens are refused.
    JwksToCome,
}

impl fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Secrets(_) => "Secrets(..)",
            Self::PublicKeys(_) => "PublicKeys(..)",
            Self::Jwks(_) => "Jwks(..)",
            Self::JwksToCome => "JwksToCome",
        })
    }
}

/// How a token is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    Hs256,
    Rs256,
    Es256,
    EdDsa,
}

impl Algorithm {
    /// By the name in a header or in a JWKS.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "HS256" => Some(Self::Hs256),
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            // RFC 9864 gives the second name to the only curve that is supported.
            "EdDSA" | "Ed25519" => Some(Self::EdDsa),
            _ => None,
        }
    }
}

/// A key for one algorithm.
pub(super) enum Key {
    Hs256(hmac::Key),
    Rs256(RsaPublicKeyComponents<Vec<u8>>),
    /// An uncompressed point.
    Es256(Vec<u8>),
    EdDsa(Vec<u8>),
}

impl Key {
    pub fn secret(secret: &[u8]) -> Result<Self, KeysRefused> {
        if secret.trim_ascii_start().starts_with(b"-----BEGIN ") {
            return Err(KeysRefused::SecretIsPem);
        }
        if secret.len() < LEAST_SECRET_BYTES {
            return Err(KeysRefused::WeakSecret { found: secret.len() });
        }
        Ok(Self::Hs256(hmac::Key::new(hmac::HMAC_SHA256, secret)))
    }

    /// By modulus and exponent, as big-endian numbers.
    pub fn rsa(modulus: &[u8], exponent: &[u8]) -> Option<Self> {
        let trimmed = |number: &[u8]| number.iter().copied().skip_while(|byte| *byte == 0).collect::<Vec<u8>>();
        let (n, e) = (trimmed(modulus), trimmed(exponent));
        let is_odd = |number: &[u8]| number.last().is_some_and(|last| last % 2 == 1);
        let is_good = (256..=1024).contains(&n.len()) && is_odd(&n) && (1..=4).contains(&e.len()) && is_odd(&e);
        (is_good && e != [1]).then_some(Self::Rs256(RsaPublicKeyComponents { n, e }))
    }

    /// By the coordinates of a point on the curve P-256.
    pub fn p256(x: &[u8], y: &[u8]) -> Option<Self> {
        (x.len() == 32 && y.len() == 32).then(|| Self::Es256([&[4], x, y].concat()))
    }

    pub fn ed25519(key: &[u8]) -> Option<Self> {
        (key.len() == 32).then(|| Self::EdDsa(key.to_vec()))
    }

    pub fn algorithm(&self) -> Algorithm {
        match self {
            Self::Hs256(_) => Algorithm::Hs256,
            Self::Rs256(_) => Algorithm::Rs256,
            Self::Es256(_) => Algorithm::Es256,
            Self::EdDsa(_) => Algorithm::EdDsa,
        }
    }

    /// Whether this key has signed the message.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Hs256(key) => hmac::verify(key, message, signature).is_ok(),
            Self::Rs256(key) => key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature).is_ok(),
            Self::Es256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature).is_ok()
            }
            Self::EdDsa(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature).is_ok(),
        }
    }
}

/// All public keys of a PEM text.
pub(super) fn public_keys(pem: &str) -> Result<Vec<Key>, KeysRefused> {
    let mut keys = Vec::new();
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem.as_bytes()) {
        // The source is left out: it quotes the text, which may be a private key.
        match section.map_err(|_| KeysRefused::NoPublicKey)? {
            (SectionKind::PublicKey, der) => keys.push(public_key(&der).ok_or(KeysRefused::UnsupportedPublicKey)?),
            (SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey, _) => {
                return Err(KeysRefused::PrivateKey);
            }
            _ => {}
        }
    }
    if keys.is_empty() { Err(KeysRefused::NoPublicKey) } else { Ok(keys) }
}

/// The key of a `SubjectPublicKeyInfo`, if its kind is supported.
fn public_key(der: &[u8]) -> Option<Key> {
    const INTEGER: u8 = 0x02;
    const BIT_STRING: u8 = 0x03;
    const SEQUENCE: u8 = 0x30;

    let (info, []) = value(SEQUENCE, der)? else { return None };
    let (algorithm, rest) = value(SEQUENCE, info)?;
    let (bits, []) = value(BIT_STRING, rest)? else { return None };
    let (0, key) = bits.split_first()? else { return None };
    if algorithm == &*alg_id::RSA_ENCRYPTION {
        let (numbers, []) = value(SEQUENCE, key)? else { return None };
        let (modulus, rest) = value(INTEGER, numbers)?;
        let (exponent, []) = value(INTEGER, rest)? else { return None };
        Key::rsa(modulus, exponent)
    } else if algorithm == &*alg_id::ECDSA_P256 {
        let (4, point) = key.split_first()? else { return None };
        let (x, y) = point.split_at_checked(32)?;
        Key::p256(x, y)
    } else if algorithm == &*alg_id::ED25519 {
        Key::ed25519(key)
    } else {
        None
    }
}

/// The content of a DER value with this tag, and what follows it.
fn value(tag: u8, der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&[found, length], rest) = der.split_first_chunk()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        0x81 => rest.split_first().map(|(length, rest)| (usize::from(*length), rest))?,
        0x82 => rest.split_first_chunk().map(|(length, rest)| (usize::from(u16::from_be_bytes(*length)), rest))?,
        _ => return None,
    };
    if found == tag { rest.split_at_checked(length) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rsa_keys_that_are_too_small_or_trivial_are_not_usable() {
        let modulus = |bytes: usize| [&vec![0xc1; bytes][..], &[0]].concat().into_iter().rev().collect::<Vec<u8>>();
        assert!(Key::rsa(&modulus(256), &[1, 0, 1]).is_some());
        assert!(Key::rsa(&modulus(256), &[0, 3]).is_some());
        for (bytes, exponent) in [(128, &[1, 0, 1][..]), (2048, &[1, 0, 1]), (256, &[1]), (256, &[2]), (256, &[])] {
            assert!(Key::rsa(&modulus(bytes), exponent).is_none(), "{bytes} {exponent:?}");
        }
        assert!(Key::rsa(&[0; 256], &[3]).is_none());
    }

    #[test]
    fn cut_der_is_not_read() {
        let key = [&[0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00][..], &[7; 32]].concat();
        assert!(public_key(&key).is_some());
        for length in 0..key.len() {
            assert!(public_key(&key[..length]).is_none(), "{length}");
        }
        assert!(public_key(&[&key[..], &[0]].concat()).is_none());
    }
}
