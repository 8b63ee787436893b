//! The public keys of a JWKS (RFC 7517). A key that is not understood is skipped:
//! an identity provider may have others too.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    KeysRefused,
    keys::{Algorithm, Key},
};

/// A JWKS has at most so many keys.
const MOST_KEYS: usize = 100;

/// What was found in a JWKS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JwksKeys {
    /// So many keys can verify tokens.
    pub usable: usize,
    /// So many are of another kind, for another use, or wrong.
    pub skipped: usize,
}

/// A key, and the name that tokens call it by.
pub(super) struct NamedKey {
    pub kid: Option<String>,
    pub key: Key,
}

#[derive(Deserialize)]
struct Document<'a> {
    #[serde(borrow)]
    keys: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(rename = "use")]
    used_for: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    kid: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

/// The usable keys, and how many are not.
pub(super) fn parse(text: &str) -> Result<(Vec<NamedKey>, JwksKeys), KeysRefused> {
    // The source is left out: it quotes the text, which may have secrets in it by mistake.
    let document: Document<'_> = serde_json::from_str(text).map_err(|_| KeysRefused::NotJwks)?;
    let found = document.keys.len();
    if found > MOST_KEYS {
        return Err(KeysRefused::TooManyKeys { found, limit: MOST_KEYS });
    }
    let keys: Vec<NamedKey> = document.keys.into_iter().filter_map(named_key).collect();
    let counts = JwksKeys { usable: keys.len(), skipped: found - keys.len() };
    if keys.is_empty() { Err(KeysRefused::NoUsableKey { skipped: found }) } else { Ok((keys, counts)) }
}

fn named_key(text: &RawValue) -> Option<NamedKey> {
    let jwk: Jwk = serde_json::from_str(text.get()).ok()?;
    let is_to_verify = jwk.used_for.is_none_or(|used_for| used_for == "sig")
        && jwk.key_ops.is_none_or(|operations| operations.iter().any(|operation| operation == "verify"));
    if !is_to_verify {
        return None;
    }
    let bytes = |text: Option<String>| URL_SAFE_NO_PAD.decode(text?).ok();
    // Symmetric keys (`oct`) are not taken: who may read the set could sign.
    let key = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
        ("RSA", _) => Key::rsa(&bytes(jwk.n)?, &bytes(jwk.e)?),
        ("EC", Some("P-256")) => Key::p256(&bytes(jwk.x)?, &bytes(jwk.y)?),
        ("OKP", Some("Ed25519")) => Key::ed25519(&bytes(jwk.x)?),
        _ => None,
    }?;
    let is_for_it = jwk.alg.is_none_or(|alg| Algorithm::named(&alg) == Some(key.algorithm()));
    is_for_it.then_some(NamedKey { kid: jwk.kid, key })
}
