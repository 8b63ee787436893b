//! Who is calling? bcrypt, off the async threads, a few at a time; what was verified is remembered for a while.
//!
//! What is remembered is a keyed hash of the pair, under a key that lives and dies with the process. An unknown client
//! costs as much as a wrong secret, so that neither can be told from the time it takes.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use hmac::{Hmac, KeyInit, Mac};
use relais_core::{Client, Declared};
use sha2::Sha256;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::EngineError;

/// bcrypt looks at no more than this.
const MAX_SECRET: usize = 72;

/// How many callers may wait for their secret to be checked; a flood of guesses is turned away.
const MAX_WAITING: usize = 1_000;

/// How long a pair that was refused is refused again without another look.
const REFUSED_TTL: Duration = Duration::from_secs(5);

/// How secrets are checked.
#[derive(Debug, Clone, Copy)]
pub struct AuthOptions {
    /// How many pairs are remembered.
    pub cache_size: usize,
    /// For how long.
    pub cache_ttl: Duration,
    /// bcrypt's cost, for secrets that are set from now on.
    pub bcrypt_cost: u32,
    /// How many secrets are checked at once.
    pub bcrypt_parallel: usize,
}

impl Default for AuthOptions {
    fn default() -> Self {
        Self { cache_size: 10_000, cache_ttl: Duration::from_secs(300), bcrypt_cost: 10, bcrypt_parallel: 1 }
    }
}

/// A secret that nobody can guess, to be shown once.
pub fn generate_secret() -> Result<String, EngineError> {
    let mut bytes = [0u8; 24];
    getrandom::fill(&mut bytes).map_err(|error| EngineError::Conflict(format!("no randomness: {error}")))?;
    Ok(base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, bytes))
}

/// A secret to sign callbacks with, as Standard Webhooks writes it.
pub(crate) fn generate_signing_secret() -> Result<String, EngineError> {
    let mut bytes = [0u8; 24];
    getrandom::fill(&mut bytes).map_err(|error| EngineError::Conflict(format!("no randomness: {error}")))?;
    Ok(format!("{SIGNING_PREFIX}{}", base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes)))
}

/// Whether a text can be a secret to sign callbacks with; why not, if not.
pub(crate) fn check_signing_secret(secret: &str) -> Result<(), String> {
    let bytes = secret
        .strip_prefix(SIGNING_PREFIX)
        .and_then(|text| base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text).ok());
    match bytes {
        Some(bytes) if (24..=64).contains(&bytes.len()) => Ok(()),
        _ => Err(format!("must be {SIGNING_PREFIX} and the base64 of 24 to 64 bytes")),
    }
}

const SIGNING_PREFIX: &str = "whsec_";

/// What is stored of a secret. Takes a while, on purpose: not for an async thread.
pub fn hash_secret(secret: &str, cost: u32) -> Result<String, EngineError> {
    if secret.is_empty() || secret.len() > MAX_SECRET || secret.contains('\0') {
        return Err(EngineError::Conflict(format!("a secret has 1 to {MAX_SECRET} bytes, and no NUL")));
    }
    bcrypt::hash(secret, cost).map_err(|error| EngineError::Conflict(error.to_string()))
}

type Digest = [u8; 32];

struct Remembered {
    /// What the pair was checked against, none where there was no such client: when that changes, this is worth nothing.
    secret_hash: Option<String>,
    verified: bool,
    until: Instant,
}

/// Checks pairs of client and secret.
pub(crate) struct Authenticator {
    options: AuthOptions,
    key: Digest,
    remembered: Mutex<HashMap<Digest, Remembered>>,
    checks: Arc<Semaphore>,
    /// How many may wait for their turn.
    waiting: Semaphore,
    /// Stands in for the hash of a client that does not exist.
    nobody: String,
}

impl Authenticator {
    pub(crate) fn new(options: AuthOptions) -> Result<Self, EngineError> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(|error| EngineError::Conflict(format!("no randomness: {error}")))?;
        Ok(Self {
            key,
            remembered: Mutex::default(),
            checks: Arc::new(Semaphore::new(options.bcrypt_parallel.max(1))),
            waiting: Semaphore::new(MAX_WAITING),
            nobody: hash_secret(&generate_secret()?, options.bcrypt_cost)?,
            options,
        })
    }

    /// The client that this pair belongs to.
    pub(crate) async fn authenticate(
        &self,
        declared: &Declared,
        client_id: &str,
        secret: &str,
    ) -> Result<Arc<Client>, EngineError> {
        let client = declared.clients.get(client_id);
        let secret_hash = client.map(|client| client.secret_hash.clone());
        let digest = self.digest(client_id, secret)?;
        match self.recall(&digest, secret_hash.as_deref()) {
            Some(true) => return client.map(Arc::clone).ok_or(EngineError::Forbidden),
            Some(false) => return Err(EngineError::Forbidden),
            None => {}
        }
        let _waiting = self.waiting.try_acquire().map_err(|_| EngineError::Overloaded)?;
        let turn = Arc::clone(&self.checks).acquire_owned().await.map_err(|_| EngineError::Stopping)?;
        // Whoever waited for a turn may find that somebody with the same pair had it.
        let verified = match self.recall(&digest, secret_hash.as_deref()) {
            Some(verified) => verified,
            None => {
                let hash = secret_hash.clone().unwrap_or_else(|| self.nobody.clone());
                let verified = verify(secret.to_owned(), hash, turn).await?;
                self.remember(digest, secret_hash, verified);
                verified
            }
        };
        client.filter(|_| verified).map(Arc::clone).ok_or(EngineError::Forbidden)
    }

    fn digest(&self, client_id: &str, secret: &str) -> Result<Digest, EngineError> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).map_err(|_| EngineError::Forbidden)?;
        mac.update(&(client_id.len() as u64).to_le_bytes());
        mac.update(client_id.as_bytes());
        mac.update(secret.as_bytes());
        Ok(mac.finalize().into_bytes().into())
    }

    /// What is remembered of a pair: right, wrong, or nothing.
    fn recall(&self, digest: &Digest, secret_hash: Option<&str>) -> Option<bool> {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = remembered.get(digest).filter(|entry| entry.until > Instant::now())?;
        (entry.secret_hash.as_deref() == secret_hash).then_some(entry.verified)
    }

    fn remember(&self, digest: Digest, secret_hash: Option<String>, verified: bool) {
        let now = Instant::now();
        let ttl = if verified { self.options.cache_ttl } else { REFUSED_TTL };
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= self.options.cache_size {
            remembered.retain(|_, entry| entry.until > now);
        }
        if remembered.len() >= self.options.cache_size {
            // Guesses must not push out those who know their secret.
            remembered.retain(|_, entry| entry.verified);
        }
        if remembered.len() >= self.options.cache_size {
            remembered.clear();
        }
        remembered.insert(digest, Remembered { secret_hash, verified, until: now + ttl });
    }
}

/// The turn goes with the work: a caller that hangs up does not make room for another check beside its own.
async fn verify(secret: String, hash: String, turn: OwnedSemaphorePermit) -> Result<bool, EngineError> {
    let check = move || {
        let _turn = turn;
        secret.len() <= MAX_SECRET && bcrypt::verify(&secret, &hash).unwrap_or(false)
    };
    tokio::task::spawn_blocking(check).await.map_err(|_| EngineError::Stopping)
}

#[cfg(test)]
mod tests {
    use relais_core::{ClientId, ClientKey};

    use super::*;

    fn declared(secret: &str) -> Declared {
        let client = Client {
            signing_secrets: Vec::new(),
            destinations: Vec::new(),
            key: ClientKey(1),
            client_id: ClientId::new("acme").unwrap(),
            secret_hash: hash_secret(secret, 4).unwrap(),
        };
        Declared::new(1, Vec::new(), vec![client], Vec::new())
    }

    #[tokio::test]
    async fn a_changed_secret_counts_at_once_whatever_was_remembered() {
        let auth = Authenticator::new(AuthOptions { bcrypt_cost: 4, ..AuthOptions::default() }).unwrap();
        let old = declared("first");
        assert!(auth.authenticate(&old, "acme", "first").await.is_ok());
        assert!(auth.authenticate(&old, "acme", "first").await.is_ok(), "remembered");
        assert!(matches!(auth.authenticate(&old, "acme", "guess").await, Err(EngineError::Forbidden)));
        assert!(matches!(auth.authenticate(&old, "nobody", "first").await, Err(EngineError::Forbidden)));
        assert!(auth.authenticate(&old, "acme", "second").await.is_err());
        let new = declared("second");
        assert!(auth.authenticate(&new, "acme", "first").await.is_err());
        assert!(auth.authenticate(&new, "acme", "second").await.is_ok());
        assert!(auth.authenticate(&Declared::default(), "acme", "second").await.is_err(), "the client is gone");
    }

    #[tokio::test]
    async fn what_is_remembered_is_bounded() {
        let options = AuthOptions { bcrypt_cost: 4, cache_size: 8, ..AuthOptions::default() };
        let (auth, declared) = (Authenticator::new(options).unwrap(), declared("right"));
        auth.authenticate(&declared, "acme", "right").await.unwrap();
        for guess in 0..30 {
            let _ = auth.authenticate(&declared, "acme", &format!("guess {guess}")).await;
        }
        assert!(auth.remembered.lock().unwrap().len() <= 8);
    }

    #[test]
    fn secrets_that_bcrypt_would_cut_are_refused() {
        assert!(hash_secret(&"x".repeat(73), 4).is_err());
        assert!(hash_secret("", 4).is_err());
        assert!(hash_secret("a\0b", 4).is_err());
        assert_eq!(generate_secret().unwrap().len(), 32);
    }
}
