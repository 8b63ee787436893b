//! Authentication of clients: bcrypt in a bounded pool of threads, with a cache of verified credentials.
//!
//! The cache has a keyed hash of the credential, under a key of this process. An unknown client costs as much as a
//! wrong secret, so that the time of an answer reveals neither.
//!
//! Wrong secrets do not lock out clients with the right one: a credential that was valid before is checked in a pool of
//! its own, and in the other pool addresses and clients take turns ([`crate::pool`]).

mod memory;

use std::{
    collections::HashMap,
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use hmac::{Hmac, KeyInit, Mac};
use relais_core::{Client, ClientId, Declared};
use sha2::Sha256;
use tokio::sync::OnceCell;

use self::memory::{CachedCheck, Memory};
use crate::{
    EngineError,
    pool::{Pool, PoolError, PoolOptions, Requester},
};

/// bcrypt reads no more bytes than this.
const MAX_SECRET: usize = 72;

/// How many credentials may wait for a check; more are refused.
const WAITING: usize = 1_000;

/// How many of those for one client from one address. Callers with the same credential share one check.
const WAITING_PER_CLIENT: usize = 16;

/// How many of those from one address.
const WAITING_PER_PEER: usize = 250;

/// The timeout of a check, including the wait for its turn.
const PATIENCE: Duration = Duration::from_secs(20);

/// How secrets are checked.
#[derive(Debug, Clone, Copy)]
pub struct AuthOptions {
    /// How many credentials are cached.
    pub cache_size: usize,
    /// How long after their last use.
    pub cache_ttl: Duration,
    /// How long at most.
    pub cache_max_age: Duration,
    /// bcrypt's cost, for secrets that are set from now on.
    pub bcrypt_cost: u32,
    /// How many secrets are checked at once: so many that were never valid, and as many that were.
    pub bcrypt_parallel: usize,
}

impl Default for AuthOptions {
    fn default() -> Self {
        Self {
            cache_size: 10_000,
            cache_ttl: Duration::from_secs(300),
            cache_max_age: Duration::from_secs(3_600),
            bcrypt_cost: 10,
            bcrypt_parallel: 1,
        }
    }
}

/// A random secret, to be shown once.
pub fn generate_secret() -> Result<String, EngineError> {
    let mut bytes = [0u8; 24];
    getrandom::fill(&mut bytes).map_err(|error| EngineError::Conflict(format!("no randomness: {error}")))?;
    Ok(base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, bytes))
}

/// A random signing secret, as Standard Webhooks writes it.
pub(crate) fn generate_signing_secret() -> Result<String, EngineError> {
    let mut bytes = [0u8; 24];
    getrandom::fill(&mut bytes).map_err(|error| EngineError::Conflict(format!("no randomness: {error}")))?;
    Ok(format!("{SIGNING_PREFIX}{}", base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes)))
}

/// Checks that a text can be a signing secret.
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

/// The bcrypt hash of a secret. Slow on purpose: not for an async thread.
pub fn hash_secret(secret: &str, cost: u32) -> Result<String, EngineError> {
    if secret.is_empty() || secret.len() > MAX_SECRET || secret.contains('\0') {
        return Err(EngineError::Conflict(format!("a secret has 1 to {MAX_SECRET} bytes, and no NUL")));
    }
    bcrypt::hash(secret, cost).map_err(|error| EngineError::Conflict(error.to_string()))
}

/// The credentials of a caller.
#[derive(Clone)]
pub struct ClientCredentials {
    client_id: String,
    secret: String,
    peer: Option<IpAddr>,
}

impl ClientCredentials {
    /// A client's id and its secret.
    pub fn new(client_id: impl Into<String>, secret: impl Into<String>) -> Self {
        Self { client_id: client_id.into(), secret: secret.into(), peer: None }
    }

    /// Sets the address of the caller. Addresses take turns.
    pub fn sent_from(self, peer: IpAddr) -> Self {
        Self { peer: Some(peer), ..self }
    }
}

impl fmt::Debug for ClientCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientCredentials({:?})", self.client_id)
    }
}

type Digest = [u8; 32];

/// A check that is running. Callers with the same credential wait for it too; if its caller disconnects, the next one
/// goes on.
type Check = OnceCell<Result<bool, PoolError>>;

/// Checks pairs of client and secret.
pub(crate) struct Authenticator {
    key: Digest,
    memory: Arc<Memory>,
    under_way: Mutex<HashMap<Digest, Weak<Check>>>,
    /// Checks credentials that were valid at their last check.
    verified_before: Pool,
    /// Checks all others.
    guesses: Pool,
    /// The hash to check against for a client that does not exist.
    nobody: String,
}

impl Authenticator {
    pub(crate) fn new(options: AuthOptions) -> Result<Self, EngineError> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(|error| EngineError::Conflict(format!("no randomness: {error}")))?;
        let lane = |name, stands_back| {
            Pool::new(PoolOptions {
                name,
                threads: options.bcrypt_parallel,
                stands_back,
                waiting: WAITING,
                waiting_per_client: WAITING_PER_CLIENT,
                waiting_per_peer: WAITING_PER_PEER,
            })
        };
        Ok(Self {
            key,
            memory: Arc::new(Memory::new(options.cache_size, options.cache_ttl, options.cache_max_age)),
            under_way: Mutex::default(),
            verified_before: lane("relais-secret", false),
            guesses: lane("relais-guess", true),
            nobody: hash_secret(&generate_secret()?, options.bcrypt_cost)?,
        })
    }

    /// The client with these credentials.
    pub(crate) async fn authenticate(
        &self,
        declared: &Declared,
        given: &ClientCredentials,
    ) -> Result<Arc<Client>, EngineError> {
        // Credentials that no client can have are refused without a check. That depends only on what was sent.
        if given.secret.len() > MAX_SECRET || ClientId::new(given.client_id.as_str()).is_err() {
            return Err(EngineError::Forbidden);
        }
        let client = declared.clients.get(given.client_id.as_str());
        let hash = client.map(|client| client.secret_hash.as_str());
        let digest = self.digest(given, hash)?;
        let verified = match self.memory.recall(&digest) {
            CachedCheck::Verified => true,
            CachedCheck::Refused => false,
            CachedCheck::VerifiedBefore => self.check(&self.verified_before, digest, given, hash).await?,
            CachedCheck::Nothing => self.check(&self.guesses, digest, given, hash).await?,
        };
        client.filter(|_| verified).map(Arc::clone).ok_or(EngineError::Forbidden)
    }

    /// Checks a credential, or waits for the check that is running.
    async fn check(
        &self,
        lane: &Pool,
        digest: Digest,
        given: &ClientCredentials,
        hash: Option<&str>,
    ) -> Result<bool, EngineError> {
        let check = self.join(digest);
        let verified = check.get_or_init(|| {
            let requester = Requester { client: given.client_id.as_str().into(), peer: given.peer };
            let (secret, hash) = (given.secret.clone(), hash.unwrap_or(&self.nobody).to_owned());
            // Stored in the cache by the job itself, so that the check is not lost if the caller disconnects.
            let memory = Arc::clone(&self.memory);
            lane.run(requester, PATIENCE, move |_| {
                let verified = bcrypt::verify(&secret, &hash).unwrap_or(false);
                memory.remember(digest, verified);
                verified
            })
        });
        // Also for those who wait for somebody else's check: whoever had to begin anew would wait once more.
        let verified = tokio::time::timeout(PATIENCE, verified).await.map_or(Err(PoolError::NotEnded), |done| *done);
        verified.map_err(|error| match error {
            PoolError::Full | PoolError::NotBegun | PoolError::NotEnded => EngineError::TooManyChecks,
            PoolError::Failed => EngineError::Stopping,
        })
    }

    fn join(&self, digest: Digest) -> Arc<Check> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(check) = under_way.get(&digest).and_then(Weak::upgrade) {
            return check;
        }
        // As many as wait, and those that have ended since somebody last looked.
        if under_way.len() >= 2 * WAITING {
            under_way.retain(|_, check| check.strong_count() > 0);
        }
        let check = Arc::new(Check::new());
        under_way.insert(digest, Arc::downgrade(&check));
        check
    }

    /// Of a pair and what it is checked against: once that is another, what was known of the pair is worth nothing.
    fn digest(&self, given: &ClientCredentials, hash: Option<&str>) -> Result<Digest, EngineError> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).map_err(|_| EngineError::Forbidden)?;
        for part in [given.client_id.as_str(), given.secret.as_str(), hash.unwrap_or_default()] {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part.as_bytes());
        }
        Ok(mac.finalize().into_bytes().into())
    }
}

#[cfg(test)]
mod tests {
    use relais_core::{ClientId, ClientKey, NotificationRights};

    use super::*;

    fn declared(secret: &str) -> Declared {
        let client = |key, id: &str| Client {
            signing_secrets: Vec::new(),
            destinations: Vec::new(),
            notifications: NotificationRights::default(),
            key: ClientKey(key),
            client_id: ClientId::new(id).unwrap(),
            secret_hash: hash_secret(secret, 4).unwrap(),
        };
        Declared::new(1, Vec::new(), vec![client(1, "acme"), client(2, "other")], Vec::new())
    }

    fn authenticator(change: impl FnOnce(&mut AuthOptions)) -> Arc<Authenticator> {
        let mut options = AuthOptions { bcrypt_cost: 4, ..AuthOptions::default() };
        change(&mut options);
        Arc::new(Authenticator::new(options).unwrap())
    }

    fn pair(client_id: &str, secret: &str) -> ClientCredentials {
        ClientCredentials::new(client_id, secret).sent_from(IpAddr::from([192, 0, 2, 1]))
    }

    #[tokio::test]
    async fn a_changed_secret_takes_effect_at_once_despite_the_cache() {
        let auth = authenticator(|_| {});
        let old = declared("first");
        assert!(auth.authenticate(&old, &pair("acme", "first")).await.is_ok());
        assert!(auth.authenticate(&old, &pair("acme", "first")).await.is_ok(), "remembered");
        assert!(matches!(auth.authenticate(&old, &pair("acme", "guess")).await, Err(EngineError::Forbidden)));
        assert!(matches!(auth.authenticate(&old, &pair("nobody", "first")).await, Err(EngineError::Forbidden)));
        assert!(auth.authenticate(&old, &pair("acme", "second")).await.is_err());
        let new = declared("second");
        assert!(auth.authenticate(&new, &pair("acme", "first")).await.is_err());
        assert!(auth.authenticate(&new, &pair("acme", "second")).await.is_ok());
        let gone = auth.authenticate(&Declared::default(), &pair("acme", "second")).await;
        assert!(gone.is_err(), "the client is gone");
    }

    /// Guesses that are never checked: the lane's thread has something else to do until this is dropped.
    async fn flooded(auth: &Arc<Authenticator>, guesses: usize) -> std::sync::mpsc::Sender<()> {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let busy = Arc::clone(auth);
        let requester = Requester { client: "busy".into(), peer: None };
        tokio::spawn(async move {
            let work = move |_: &crate::pool::JobCaller<'_>| {
                let _ = begun.send(());
                let _ = wait.recv();
            };
            busy.guesses.run(requester, PATIENCE, work).await
        });
        has_begun.await.unwrap();
        for guess in 0..guesses {
            let auth = Arc::clone(auth);
            tokio::spawn(async move {
                let declared = declared("right");
                auth.authenticate(&declared, &pair("acme", &format!("guess {guess}"))).await
            });
        }
        tokio::task::yield_now().await;
        go
    }

    #[tokio::test]
    async fn a_known_credential_is_checked_before_waiting_guesses() {
        // Nothing is remembered for long enough to be used again.
        let auth = authenticator(|options| options.cache_ttl = Duration::ZERO);
        let declared = declared("right");
        assert!(auth.authenticate(&declared, &pair("acme", "right")).await.is_ok());
        let _go = flooded(&auth, 1_000).await;
        assert!(auth.authenticate(&declared, &pair("acme", "right")).await.is_ok(), "in a lane of its own");
    }

    #[tokio::test]
    async fn guesses_at_one_client_leave_room_for_another_and_for_other_addresses() {
        let auth = authenticator(|_| {});
        let declared = declared("right");
        let go = flooded(&auth, 1_000).await;
        let refused = auth.authenticate(&declared, &pair("acme", "one more")).await;
        assert!(matches!(refused, Err(EngineError::TooManyChecks)), "{refused:?}");
        let (right, far) = (pair("other", "right"), pair("other", "right").sent_from(IpAddr::from([192, 0, 2, 2])));
        let waiting = auth.authenticate(&declared, &right);
        let also = auth.authenticate(&declared, &far);
        drop(go);
        let (here, there) = tokio::join!(waiting, also);
        assert!(here.is_ok() && there.is_ok());
    }

    #[tokio::test]
    async fn an_impossible_credential_is_refused_without_waiting() {
        let auth = authenticator(|_| {});
        let _go = flooded(&auth, 0).await;
        let (long_id, long_secret) = (pair(&"x".repeat(300_000), "guess"), pair("acme", &"x".repeat(73)));
        for given in [long_id, long_secret, pair("", "guess")] {
            assert!(matches!(auth.authenticate(&declared("right"), &given).await, Err(EngineError::Forbidden)));
        }
    }

    #[tokio::test]
    async fn a_thousand_calls_with_one_credential_share_one_check() {
        let auth = authenticator(|_| {});
        let go = flooded(&auth, 0).await;
        let declared = Arc::new(declared("right"));
        let callers: Vec<_> = (0..1_000)
            .map(|_| {
                let (auth, declared) = (Arc::clone(&auth), Arc::clone(&declared));
                tokio::spawn(async move { auth.authenticate(&declared, &pair("acme", "right")).await.is_ok() })
            })
            .collect();
        drop(go);
        assert!(futures::future::join_all(callers).await.into_iter().all(|verified| verified.unwrap()));
    }

    #[test]
    fn secrets_that_bcrypt_would_cut_are_refused() {
        assert!(hash_secret(&"x".repeat(73), 4).is_err());
        assert!(hash_secret("", 4).is_err());
        assert!(hash_secret("a\0b", 4).is_err());
        assert_eq!(generate_secret().unwrap().len(), 32);
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert!(!format!("{:?}", pair("acme", "hidden")).contains("hidden"));
    }
}
