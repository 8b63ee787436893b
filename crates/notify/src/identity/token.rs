//! Tokens of an identity provider: JWTs (RFC 7519), signed with HS256, RS256, ES256 or EdDSA.
//!
//! A token chooses neither its algorithm nor its key: each key is for one algorithm, and a header that names another is
//! refused. Encrypted tokens are not supported. Keys inside of tokens (`jwk`, `x5c`) and addresses inside of tokens
//! (`jku`, `x5u`) are ignored.

use std::{
    fmt,
    sync::atomic::{AtomicBool, AtomicI64, Ordering},
    time::Duration,
};

use arc_swap::ArcSwap;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;

use super::{
    ClaimRules, Identity, JwksKeys, KeysRefused, LONGEST_TOKEN, TokenKeys, TokenRefused,
    jwks::{self, NamedKey},
    keys::{self, Algorithm, Key},
    object::{NotObject, Object},
    refused::shortened,
};

/// How tokens are verified.
#[derive(Debug, Clone)]
pub struct VerifierOptions {
    /// What verifies their signatures.
    pub keys: TokenKeys,
    /// What is demanded of their claims.
    pub claims: ClaimRules,
    /// The longest token, in bytes.
    pub longest_token: usize,
    /// The shortest time from one fetch of the JWKS to the next, whatever ids of keys tokens have.
    pub refresh_pause: Duration,
}

impl VerifierOptions {
    /// The defaults, with these keys.
    pub fn new(keys: TokenKeys) -> Self {
        let refresh_pause = Duration::from_secs(60);
        Self { keys, claims: ClaimRules::default(), longest_token: LONGEST_TOKEN, refresh_pause }
    }
}

/// Verifies tokens.
///
/// With a JWKS that is fetched, the caller does this when a token is refused:
///
/// ```
/// # use relais_notify::{TokenKeys, TokenVerifier, VerifierOptions};
/// # let now = jiff::Timestamp::UNIX_EPOCH;
/// # let key = r#"{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#;
/// # let fetch = || format!(r#"{{"keys": [{key}]}}"#);
/// let verifier = TokenVerifier::new(VerifierOptions::new(TokenKeys::JwksToCome))?;
/// if verifier.claim_jwks_refresh(now) {
///     let found = verifier.replace_jwks(&fetch())?;
///     assert_eq!((found.usable, found.skipped), (1, 0));
/// }
/// assert!(!verifier.claim_jwks_refresh(now));
/// # Ok::<(), relais_notify::KeysRefused>(())
/// ```
pub struct TokenVerifier {
    keys: ArcSwap<Vec<NamedKey>>,
    is_jwks: bool,
    claims: ClaimRules,
    longest_token: usize,
    refresh_pause: Duration,
    /// Whether a token has named a key that is not there, since the last time that somebody took it upon them to fetch.
    is_refresh_due: AtomicBool,
    /// When that was, in seconds.
    refreshed: AtomicI64,
}

impl TokenVerifier {
    /// Refuses keys that can not keep anybody out.
    pub fn new(options: VerifierOptions) -> Result<Self, KeysRefused> {
        let VerifierOptions { keys, claims, longest_token, refresh_pause } = options;
        let is_to_come = matches!(keys, TokenKeys::JwksToCome);
        let unnamed = |keys: Vec<Key>| keys.into_iter().map(|key| NamedKey { kid: None, key }).collect();
        let (keys, is_jwks) = match keys {
            TokenKeys::Secrets(secrets) if secrets.is_empty() => return Err(KeysRefused::NoSecret),
            TokenKeys::Secrets(secrets) => {
                let keys = secrets.iter().map(|secret| Key::secret(secret)).collect::<Result<_, _>>()?;
                (unnamed(keys), false)
            }
            TokenKeys::PublicKeys(pem) => (unnamed(keys::public_keys(&pem)?), false),
            TokenKeys::Jwks(text) => (jwks::parse(&text)?.0, true),
            TokenKeys::JwksToCome => (Vec::new(), true),
        };
        Ok(Self {
            keys: ArcSwap::from_pointee(keys),
            is_jwks,
            claims,
            longest_token,
            refresh_pause,
            is_refresh_due: AtomicBool::new(is_to_come),
            refreshed: AtomicI64::new(i64::MIN),
        })
    }

    /// Who proves by this token who they are.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<Identity, TokenRefused> {
        if token.len() > self.longest_token {
            return Err(TokenRefused::TooLong { found: token.len(), limit: self.longest_token });
        }
        const NOT_THREE: TokenRefused = TokenRefused::Malformed("it does not have three parts");
        let (signed, signature) = token.rsplit_once('.').ok_or(NOT_THREE)?;
        let (header, claims) = signed.split_once('.').ok_or(NOT_THREE)?;
        let header = Header::read(header)?;
        let signature = decoded(signature, "the signature is not base64url")?;
        self.check_signature(&header, signed.as_bytes(), &signature)?;
        self.claims.identity(&text(claims, "the claims are not base64url", "the claims are not text")?, now)
    }

    fn check_signature(&self, header: &Header, signed: &[u8], signature: &[u8]) -> Result<(), TokenRefused> {
        let keys = self.keys.load();
        if keys.is_empty() {
            self.is_refresh_due.store(true, Ordering::Relaxed);
            return Err(TokenRefused::NoKeys);
        }
        // Who gives keys without a set says that these are the keys, whatever they are called.
        let kid = header.kid.as_ref().filter(|_| self.is_jwks);
        let named = || keys.iter().filter(|key| kid.is_none() || key.kid.as_ref() == kid).map(|named| &named.key);
        if let Some(kid) = kid
            && named().next().is_none()
        {
            self.is_refresh_due.store(true, Ordering::Relaxed);
            return Err(TokenRefused::UnknownKid { kid: shortened(kid) });
        }
        let mut bound = named().filter(|key| key.algorithm() == header.algorithm).peekable();
        if bound.peek().is_none() {
            return Err(TokenRefused::WrongAlgorithm);
        }
        if bound.any(|key| key.verifies(signed, signature)) { Ok(()) } else { Err(TokenRefused::BadSignature) }
    }

    /// Whether the caller should fetch the JWKS now: a token has named a key that is not there, and the last claim is
    /// longer ago than the pause. It is true once: whoever gets it fetches, and the others do not.
    pub fn claim_jwks_refresh(&self, now: Timestamp) -> bool {
        if !self.is_refresh_due.load(Ordering::Relaxed) {
            return false;
        }
        let (now, last) = (now.as_second(), self.refreshed.load(Ordering::Relaxed));
        let pause = i64::try_from(self.refresh_pause.as_secs()).unwrap_or(i64::MAX);
        // A clock that was set back does not put the next fetch off.
        if (last..last.saturating_add(pause)).contains(&now)
            || self.refreshed.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return false;
        }
        self.is_refresh_due.store(false, Ordering::Relaxed);
        true
    }

    /// Puts the keys of a JWKS in the place of those before. If it is refused, those before stay.
    pub fn replace_jwks(&self, text: &str) -> Result<JwksKeys, KeysRefused> {
        if !self.is_jwks {
            return Err(KeysRefused::NotFromJwks);
        }
        let (keys, found) = jwks::parse(text)?;
        self.keys.store(keys.into());
        Ok(found)
    }
}

impl fmt::Debug for TokenVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.keys.load().len();
        f.debug_struct("TokenVerifier").field("keys", &keys).field("claims", &self.claims).finish_non_exhaustive()
    }
}

/// What matters of the header of a token.
struct Header {
    algorithm: Algorithm,
    kid: Option<String>,
}

impl Header {
    fn read(part: &str) -> Result<Self, TokenRefused> {
        const NOT_OBJECT: TokenRefused = TokenRefused::Malformed("the header is not a JSON object");
        let header = text(part, "the header is not base64url", "the header is not text")?;
        let header = Object::parse(&header).map_err(|why| match why {
            NotObject::Duplicate => TokenRefused::Duplicate("header"),
            NotObject::Other => NOT_OBJECT,
        })?;
        let field = |name: &str| header.get(name).map(serde_json::from_str::<String>).transpose();
        let alg = field("alg").ok().flatten().ok_or(TokenRefused::Malformed("the header has no algorithm"))?;
        let unsupported = || TokenRefused::UnsupportedAlgorithm { alg: shortened(&alg) };
        let algorithm = Algorithm::named(&alg).ok_or_else(unsupported)?;
        if header.has("crit") {
            return Err(TokenRefused::CriticalHeader);
        }
        let kid = field("kid").map_err(|_| TokenRefused::Malformed("the id of the key is not text"))?;
        Ok(Self { algorithm, kid })
    }
}

fn decoded(part: &str, why: &'static str) -> Result<Vec<u8>, TokenRefused> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenRefused::Malformed(why))
}

fn text(part: &str, not_base64: &'static str, not_text: &'static str) -> Result<String, TokenRefused> {
    String::from_utf8(decoded(part, not_base64)?).map_err(|_| TokenRefused::Malformed(not_text))
}
