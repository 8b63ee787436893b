//! Notifications in the server: where they are kept, their options, and the keys that their users' tokens are verified with.

use std::{fs, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use relais_callback::{DocumentFetcher, HttpPushSender};
use relais_engine::{Engine, chain};
use relais_message::Durability;
use relais_notify::{
    ClaimRules, HubOptions, Identities, NotificationLimits, NotificationOptions, NotificationStore, Notifications,
    PushOptions, PushStore, TokenKeys, TokenVerifier, VapidKey, VerifierOptions, WebPush,
};
use relais_notify_redis::{Fsync, RedisNotificationOptions, RedisNotifications};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::install_tls_provider,
    config::{Config, NotificationsConfig, NotificationsStore, Role},
};

/// A JWKS is read anew this often although no token asked for it: keys may be taken out of it.
const REFRESH: Duration = Duration::from_secs(15 * 60);

/// When a JWKS that could not be read is asked for again.
const AGAIN: Duration = Duration::from_secs(10);

/// A process has a push for itself so much longer than a try may take: others must not take one that is being written.
const LEASE_MARGIN: Duration = Duration::from_secs(10);

/// The largest JWKS, in bytes.
const LARGEST_JWKS: usize = 1 << 20;

/// Where notifications are kept.
pub(crate) enum Kept {
    /// In the database.
    InDatabase(Arc<dyn NotificationStore>),
    /// In Redis, and whether each change is on its disk.
    InRedis(RedisNotifications, Durability),
}

impl Kept {
    /// As the configuration says. A Redis that is away does not keep the server from starting, as a PostgreSQL does not; one
    /// that refuses does.
    pub(crate) async fn open(config: &Config, in_database: Arc<dyn NotificationStore>) -> anyhow::Result<Self> {
        if config.notifications.store == NotificationsStore::Database {
            return Ok(Self::InDatabase(in_database));
        }
        install_tls_provider();
        let url = config.notifications_redis().map_err(anyhow::Error::msg)?;
        let options = RedisNotificationOptions {
            prefix: config.notifications.redis_prefix.clone(),
            ..RedisNotificationOptions::default()
        };
        let redis = RedisNotifications::new(url.expose(), options)
            .with_context(|| format!("notifications can not be kept on the Redis {url}"))?;
        let durability = match redis.inspect().await {
            Ok(safety) => {
                tracing::info!(redis = %url, "notifications are kept on {safety}");
                safety.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
                if safety.fsync == Fsync::Always { Durability::Disk } else { Durability::HandedOver }
            }
            Err(error) if RedisNotifications::is_refused(&error) => {
                bail!("notifications can not be kept on the Redis {url}: {}", chain(&error))
            }
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(redis = %url, error, "notifications are answered with 503 until Redis is there");
                Durability::HandedOver
            }
        };
        Ok(Self::InRedis(redis, durability))
    }

    pub(crate) fn store(&self) -> Arc<dyn NotificationStore> {
        match self {
            Self::InDatabase(store) => Arc::clone(store),
            Self::InRedis(redis, _) => Arc::new(redis.clone()),
        }
    }

    /// What it means for an outbox or a capture that a notification is stored.
    pub(crate) const fn durability(&self) -> Durability {
        match self {
            Self::InDatabase(_) => Durability::Disk,
            Self::InRedis(_, durability) => *durability,
        }
    }

    /// Tells the service of new entries, and an operator of trouble, until the server stops.
    pub(crate) fn attend(self, notifications: &Notifications, engine: &Engine, stop: &CancellationToken) {
        let listener = Arc::new(notifications.clone());
        let following = async move {
            match self {
                // The store says so with the wake-ups of tasks.
                Self::InDatabase(_) => std::future::pending().await,
                Self::InRedis(redis, _) => redis.follow(listener).await,
            }
        };
        let telling = tell_trouble(notifications.clone(), engine.clone());
        let stop = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = following => {}
                () = telling => {}
                () = stop.cancelled() => {}
            }
        });
    }
}

/// Says in the readiness and in the overview why the log can not be read.
async fn tell_trouble(notifications: Notifications, engine: Engine) {
    let mut trouble = notifications.follow_trouble();
    loop {
        let why = trouble.borrow_and_update().clone();
        let told = why.map(|why| engine.in_trouble("notifications", why));
        if trouble.changed().await.is_err() {
            return;
        }
        drop(told);
    }
}

/// Starts the service.
pub(crate) fn start(
    config: &Config,
    store: Arc<dyn NotificationStore>,
    stop: &CancellationToken,
) -> anyhow::Result<Notifications> {
    let settings = &config.notifications;
    let (verifier, jwks) = verifier(settings)?;
    let options = NotificationOptions {
        hub: HubOptions {
            links_per_user: settings.links_per_user,
            links_per_address: settings.links_per_address,
            record_all: settings.record_all_deliveries,
            ..HubOptions::default()
        },
        limits: NotificationLimits {
            targets: settings.max_targets,
            payload_bytes: settings.max_payload_bytes,
            ..NotificationLimits::default()
        },
        ack_timeout: settings.ack_timeout.0,
        timers: config.server.has(Role::Notifications),
        log_age: settings.log_age.0,
        age: settings.age.0,
        ..NotificationOptions::default()
    };
    let notifications = Notifications::start(store, Identities::new(verifier, None), options);
    if let Some(url) = jwks {
        let fetcher =
            DocumentFetcher::new(crate::serve::http_sender_options(config)).context("notifications.token_jwks")?;
        let (notifications, stop) = (notifications.clone(), stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = keep_jwks(notifications, fetcher, url) => {}
                () = stop.cancelled() => {}
            }
        });
    }
    Ok(notifications)
}

/// Starts Web Push, if it is enabled.
pub(crate) fn start_push(
    config: &Config,
    notifications: &Notifications,
    store: Arc<dyn PushStore>,
) -> anyhow::Result<Option<WebPush>> {
    let settings = &config.notifications;
    let (public, private) = (&settings.push_public_key, &settings.push_private_key);
    let key = match (public.is_empty(), private.is_empty()) {
        (true, true) => None,
        (false, false) => Some(Arc::new(
            VapidKey::from_base64(public, private.expose())
                .context("notifications.push_public_key and push_private_key can not be used")?,
        )),
        _ => bail!("set both or none of notifications.push_public_key and push_private_key"),
    };
    if settings.push_contact.is_empty() {
        return Ok(None);
    }
    let sender = HttpPushSender::new(crate::serve::http_sender_options(config)).context("pushes can not be sent")?;
    let options = PushOptions {
        contact: settings.push_contact.clone(),
        types: settings.push_types.clone(),
        delay: settings.push_delay.0,
        per_user: settings.push_subscriptions_per_user,
        key,
        sends: config.server.has(Role::Notifications),
        lease: config.callbacks.timeout.0 + LEASE_MARGIN,
        ..PushOptions::default()
    };
    Ok(Some(WebPush::start(notifications.clone(), store, Arc::new(sender), options)))
}

/// What verifies tokens; and the URL of their JWKS, if it has one.
fn verifier(settings: &NotificationsConfig) -> anyhow::Result<(Option<TokenVerifier>, Option<String>)> {
    let given =
        [!settings.token_secret.is_empty(), !settings.token_keys_file.is_empty(), !settings.token_jwks.is_empty()];
    if given.iter().filter(|given| **given).count() > 1 {
        bail!("set one of notifications.token_secret, token_keys_file and token_jwks");
    }
    let read = |path: &str| fs::read_to_string(path).with_context(|| format!("notifications: failed to read {path}"));
    let mut jwks = None;
    let keys = if given[0] {
        TokenKeys::Secrets(vec![settings.token_secret.expose().as_bytes().to_vec()])
    } else if given[1] {
        TokenKeys::PublicKeys(read(&settings.token_keys_file)?)
    } else if settings.token_jwks.contains("://") {
        jwks = Some(settings.token_jwks.clone());
        TokenKeys::JwksToCome
    } else if given[2] {
        TokenKeys::Jwks(read(&settings.token_jwks)?)
    } else {
        return Ok((None, None));
    };
    let claims = ClaimRules {
        user_claim: settings.token_user_claim.clone(),
        audiences_claim: (!settings.token_audiences_claim.is_empty()).then(|| settings.token_audiences_claim.clone()),
        iss: settings.token_issuers.clone(),
        aud: settings.token_audiences.clone(),
        ..ClaimRules::default()
    };
    let options = VerifierOptions { claims, ..VerifierOptions::new(keys) };
    Ok((Some(TokenVerifier::new(options).context("the keys of notifications' tokens can not be used")?), jwks))
}

/// Reads a JWKS at the start, when a token names a key that is not known, and every now and then.
async fn keep_jwks(notifications: Notifications, fetcher: DocumentFetcher, url: String) {
    let mut told = false;
    loop {
        let Some(verifier) = notifications.identities().tokens() else { return };
        let read = match fetcher.get(&url, LARGEST_JWKS).await {
            Ok(text) => verifier.replace_jwks(&text).map_err(|refused| refused.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let pause = match read {
            Ok(found) => {
                tracing::debug!(
                    usable = found.usable,
                    skipped = found.skipped,
                    "read the JWKS of notifications' tokens"
                );
                told = false;
                REFRESH
            }
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(error, url, "the JWKS of notifications' tokens could not be read");
                }
                AGAIN
            }
        };
        let asked = async {
            loop {
                notifications.until_key_is_unknown().await;
                if verifier.claim_jwks_refresh(notifications.now()) {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(pause, asked).await;
    }
}
