//! [`WebPush`]: the use cases of subscriptions, and what runs in the background.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use relais_core::{PushSender, StoreError, Wakeup, WakeupListener};
use tokio::sync::{Notify, Semaphore};
use uuid::Uuid;

use super::{
    AckTokenRefused, AckTokens, InvalidSubscription, PushCursor, PushStore, PushSubscription, StoredPushSubscription,
    Subscribed, VapidKey,
};
use crate::{AckChoice, Identity, NotificationType, Notifications, NotifyError, service::no_keys};

/// Users of at most so many pushes are looked at together.
const ASKED: usize = 10_000;

/// What another process has locked is looked at again so soon.
const SOON: Duration = Duration::from_millis(50);

/// So many pushes are purged in one transaction.
const PURGED: usize = 500;

/// How messages are pushed.
#[derive(Debug)]
pub struct PushOptions {
    /// Whom the operators of a push service may write to: `mailto:` or `https:`.
    pub contact: String,
    /// Messages of these types are pushed.
    pub types: Vec<NotificationType>,
    /// How long a push waits before it is asked whose page is open.
    pub delay: Duration,
    /// How long processes have to answer that.
    pub window: Duration,
    /// A user has so many subscriptions.
    pub per_user: usize,
    /// The key pair, if it is not the one that lies in the store.
    pub key: Option<Arc<VapidKey>>,
    /// Whether this process plans and sends pushes.
    pub sends: bool,
    /// So many pushes are sent at once.
    pub at_once: usize,
    /// How long a process has a push for itself: longer than a try may take.
    pub lease: Duration,
    /// The pause after the first try; later ones double.
    pub first_pause: Duration,
    /// How often expired pushes are purged.
    pub purge_every: Duration,
}

impl Default for PushOptions {
    fn default() -> Self {
        Self {
            contact: String::new(),
            types: vec![NotificationType::Notification],
            delay: Duration::from_secs(2),
            window: Duration::from_secs(1),
            per_user: 20,
            key: None,
            sends: true,
            at_once: 64,
            lease: Duration::from_secs(60),
            first_pause: Duration::from_secs(30),
            purge_every: Duration::from_secs(600),
        }
    }
}

/// Why a use case of subscriptions failed.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The subscription is not valid.
    #[error(transparent)]
    Invalid(#[from] InvalidSubscription),
    /// The user has as many as they may have.
    #[error("the user has {0} push subscriptions, and may not have more")]
    TooMany(usize),
    /// The endpoint is another user's, with other keys.
    #[error("the endpoint belongs to another subscription")]
    Taken,
    /// The user has no such subscription.
    #[error("push subscription not found")]
    NotFound,
    /// The token that acknowledges is refused.
    #[error(transparent)]
    Token(#[from] AckTokenRefused),
    /// The token that acknowledges was used, or the message was acknowledged otherwise.
    #[error("the message is acknowledged already")]
    Spent,
    /// Something else failed.
    #[error(transparent)]
    Notify(#[from] NotifyError),
}

impl From<StoreError> for PushError {
    fn from(error: StoreError) -> Self {
        Self::Notify(error.into())
    }
}

type Result<T> = std::result::Result<T, PushError>;

/// What pushes are signed with, and the tokens in them.
#[derive(Debug)]
pub(super) struct PushKeys {
    pub(super) vapid: Arc<VapidKey>,
    pub(super) acks: AckTokens,
}

struct Inner {
    notifications: Notifications,
    store: Arc<dyn PushStore>,
    sender: Arc<dyn PushSender>,
    options: PushOptions,
    keys: OnceLock<PushKeys>,
    sending: Arc<Semaphore>,
    /// Between the cursor and this position of the log there is nothing to push.
    seen: Mutex<Option<PushCursor>>,
    /// Pushes were asked about, by whichever process.
    asked_bell: Notify,
    /// There is something to plan or to send.
    work_bell: Notify,
}

/// Web Push of one process. Cheap to clone.
#[derive(Clone)]
pub struct WebPush(Arc<Inner>);

impl std::fmt::Debug for WebPush {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebPush").finish_non_exhaustive()
    }
}

impl WebPush {
    /// Starts the service, which stops with the notifications. It must be told of wake-ups ([`relais_core::Store::listen`]);
    /// without those of other processes, it does not hear in time that a page is open there.
    pub fn start(
        notifications: Notifications,
        store: Arc<dyn PushStore>,
        sender: Arc<dyn PushSender>,
        options: PushOptions,
    ) -> Self {
        // An alert asks for its increase, which a counter has that begins at zero.
        metrics::counter!("relais_notification_push_failures_total").increment(0);
        let sending = Arc::new(Semaphore::new(options.at_once));
        let (asked_bell, work_bell) = (Notify::new(), Notify::new());
        let this = Self(Arc::new(Inner {
            notifications,
            store,
            sender,
            options,
            keys: OnceLock::new(),
            sending,
            seen: Mutex::default(),
            asked_bell,
            work_bell,
        }));
        this.notifications().spawn(this.clone().load_keys());
        this.notifications().spawn(this.clone().answer());
        if this.options().sends {
            this.notifications().spawn(this.clone().work());
            this.notifications().spawn(this.clone().purge());
        }
        this
    }

    pub(super) fn notifications(&self) -> &Notifications {
        &self.0.notifications
    }

    pub(super) fn store(&self) -> &dyn PushStore {
        self.0.store.as_ref()
    }

    pub(super) fn sender(&self) -> &dyn PushSender {
        self.0.sender.as_ref()
    }

    pub(super) fn options(&self) -> &PushOptions {
        &self.0.options
    }

    pub(super) fn sending(&self) -> &Arc<Semaphore> {
        &self.0.sending
    }

    pub(super) fn keys(&self) -> Option<&PushKeys> {
        self.0.keys.get()
    }

    pub(super) fn seen(&self) -> Option<PushCursor> {
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_seen(&self, seen: PushCursor) {
        *self.0.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
    }

    pub(super) fn ring(&self) {
        self.0.work_bell.notify_one();
    }

    /// The public key that browsers are told when they subscribe, in base64url.
    pub fn public_key(&self) -> Result<&str> {
        Ok(self.keys().ok_or_else(no_keys)?.vapid.public())
    }

    /// Subscribes a browser for a user. The same again changes nothing.
    pub async fn subscribe(&self, identity: &Identity, endpoint: &str, p256dh: &str, auth: &str) -> Result<Uuid> {
        self.sender().judge(endpoint).map_err(InvalidSubscription::Endpoint)?;
        let subscription = PushSubscription::new(&identity.user, endpoint, p256dh, auth)?;
        let head = self.notifications().store().log_head().await?;
        let head = PushCursor { epoch: head.epoch, position: head.position };
        match self.store().subscribe(subscription, self.options().per_user, head).await? {
            Subscribed::New(id) | Subscribed::Known(id) => Ok(id),
            Subscribed::TooMany => Err(PushError::TooMany(self.options().per_user)),
            Subscribed::Taken => Err(PushError::Taken),
        }
    }

    /// The browsers that take pushes for a user, the oldest first.
    pub async fn subscriptions(&self, identity: &Identity) -> Result<Vec<StoredPushSubscription>> {
        Ok(self.store().subscriptions_of(&identity.user).await?)
    }

    /// Forgets a browser of a user.
    pub async fn unsubscribe(&self, identity: &Identity, id: Uuid) -> Result<()> {
        match self.store().unsubscribe(id, Some(&identity.user)).await? {
            true => Ok(()),
            false => Err(PushError::NotFound),
        }
    }

    /// Acknowledges the message of a push by the token that was in it.
    pub async fn acknowledge(&self, token: &str) -> Result<Uuid> {
        let keys = self.keys().ok_or_else(no_keys)?;
        let (user, id) = keys.acks.verify(token, self.notifications().now())?;
        let identity = Identity { user, audiences: Vec::new(), expires: None };
        let (acknowledged, _) = self.notifications().acknowledge(&identity, AckChoice::These(vec![id])).await?;
        match (acknowledged.new.is_empty(), acknowledged.known.is_empty()) {
            (false, _) => Ok(id),
            (true, false) => Err(PushError::Spent),
            (true, true) => Err(NotifyError::NotFound.into()),
        }
    }

    /// The keys are those of all processes.
    async fn load_keys(self) {
        loop {
            match self.read_keys().await {
                Ok(keys) => {
                    let _ = self.0.keys.set(keys);
                    return self.ring();
                }
                Err(error) => tracing::debug!(%error, "the keys of pushes could not be read yet"),
            }
            tokio::time::sleep(self.notifications().sweep()).await;
        }
    }

    async fn read_keys(&self) -> std::result::Result<PushKeys, StoreError> {
        let failed = |error: &dyn std::fmt::Display| StoreError::Failed(error.to_string().into());
        let acks = AckTokens::new(&self.notifications().store().ticket_key().await?);
        if let Some(given) = &self.options().key {
            return Ok(PushKeys { vapid: Arc::clone(given), acks });
        }
        let new = VapidKey::generate().map_err(|error| failed(&error))?;
        let pair = self.store().push_key(new).await?;
        let vapid = VapidKey::from_pkcs8(&pair).map_err(|error| failed(&error))?;
        Ok(PushKeys { vapid: Arc::new(vapid), acks })
    }

    /// Cancels pushes to users who have a page open with this process, whenever it is asked.
    async fn answer(self) {
        loop {
            self.0.asked_bell.notified().await;
            if self.notifications().link_count() == 0 {
                continue;
            }
            if let Err(error) = self.cancel_for_open_pages().await {
                tracing::debug!(%error, "whose pages are open could not be said; they are pushed to");
            }
        }
    }

    async fn cancel_for_open_pages(&self) -> std::result::Result<(), StoreError> {
        let mut users = self.store().users_asked(ASKED).await?;
        users.retain(|user| self.notifications().has_link_of(user));
        if !users.is_empty() {
            self.store().cancel_pushes(users).await?;
        }
        Ok(())
    }

    /// Plans and sends pushes, and sleeps until there is something to do. While nobody subscribes, the log is not read.
    async fn work(self) {
        let mut position = self.notifications().follow_log_position();
        loop {
            position.mark_unchanged();
            let sweep = self.notifications().sweep();
            let (subscribed, sleep) = match self.round().await {
                Ok(round) => round,
                Err(error) => {
                    tracing::debug!(%error, "pushes could not be planned or sent");
                    (false, sweep)
                }
            };
            tokio::select! {
                // What is due in a fraction of a millisecond is not due yet.
                () = tokio::time::sleep(sleep.min(sweep) + Duration::from_millis(1)) => {}
                () = self.0.work_bell.notified() => {}
                Ok(()) = position.changed(), if subscribed => {}
            }
        }
    }

    /// Whether anybody subscribes, and how long until something is due.
    async fn round(&self) -> std::result::Result<(bool, Duration), StoreError> {
        let sweep = self.notifications().sweep();
        if self.keys().is_none() || !self.plan().await? {
            return Ok((false, sweep));
        }
        loop {
            match self.store().next_push_due().await? {
                None => return Ok((true, sweep)),
                Some(pause) if !pause.is_zero() => return Ok((true, pause)),
                // A push that has ended rings.
                Some(_) if self.sending().available_permits() == 0 => return Ok((true, sweep)),
                Some(_) if self.send_due().await? => {}
                // Another process has it in hand.
                Some(_) => return Ok((true, SOON)),
            }
        }
    }

    async fn purge(self) {
        let mut tick = tokio::time::interval(self.options().purge_every);
        loop {
            tick.tick().await;
            loop {
                match self.store().purge_pushes(PURGED).await {
                    Ok(purged) if purged >= PURGED as u64 => {}
                    Ok(_) => break,
                    Err(error) => {
                        tracing::debug!(%error, "expired pushes could not be purged");
                        break;
                    }
                }
            }
        }
    }
}

impl WakeupListener for WebPush {
    fn wake(&self, wakeup: &Wakeup) {
        if wakeup.pushes {
            self.0.asked_bell.notify_one();
            self.0.work_bell.notify_one();
        }
    }
}
