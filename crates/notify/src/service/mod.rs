//! [`Notifications`]: the use cases of notifications, and what runs in the background.

mod background;
mod declared;
mod emit;
mod error;

use self::declared::DeclaredCache;
pub use self::error::NotifyError;
pub(crate) use self::error::no_keys;

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use relais_core::{AudienceDeclarations, Wakeup, WakeupListener};
use relais_group_commit::{BatchOptions, Batcher, Weigh};
use ring::digest;
use tokio::sync::{Notify, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use crate::{
    AckChoice, Acknowledged, Acknowledgement, AudienceKey, Counts, Emitted, Identities, Identity, LedgerLine,
    ListFilter, ListRequest, ListedNotification, LogPosition, Member, MembersChange, MembersChanged, MembershipRefused,
    NewNotification, NotificationFilter, NotificationLimits, NotificationStore, StoredNotification, TicketRefused,
    TokenRefused, UserScope,
    frame::Frame,
    hub::{Hub, HubOptions, LinkGlance, link::OpenLink, summary::LinkSummary, with_claims},
};

/// So many messages are settled, replayed or purged in one transaction.
const AT_ONCE: usize = 500;

/// A page of a ledger.
const LEDGER_LINES: usize = 1000;

/// How notifications are treated.
#[derive(Debug, Clone)]
pub struct NotificationOptions {
    /// Links.
    pub hub: HubOptions,
    /// Group commit.
    pub batching: BatchOptions,
    /// What a message may be at most.
    pub limits: NotificationLimits,
    /// How long a user has to acknowledge a message before it is sent again.
    pub ack_timeout: Duration,
    /// How often the log is read although nobody announced an entry.
    pub sweep: Duration,
    /// Whether this process sends messages again and purges.
    pub timers: bool,
    /// How long entries of the log are kept: a link that was away for longer is told of a gap.
    pub log_age: Duration,
    /// How long messages are kept after they have expired.
    pub age: Duration,
    /// How often old ones are purged.
    pub purge_every: Duration,
}

impl Default for NotificationOptions {
    fn default() -> Self {
        Self {
            hub: HubOptions::default(),
            batching: BatchOptions::default(),
            limits: NotificationLimits::default(),
            ack_timeout: Duration::from_secs(30),
            sweep: Duration::from_secs(5),
            timers: true,
            log_age: Duration::from_secs(11 * 86_400),
            age: Duration::from_secs(30 * 86_400),
            purge_every: Duration::from_secs(600),
        }
    }
}

impl Weigh for NewNotification {
    fn bytes(&self) -> usize {
        self.notification.payload.get().len()
    }
}

/// A user whose scope is wanted.
struct ScopeOf(String);

impl Weigh for ScopeOf {
    fn bytes(&self) -> usize {
        self.0.len()
    }
}

impl Weigh for Acknowledgement {
    fn bytes(&self) -> usize {
        match &self.choice {
            AckChoice::These(ids) => ids.len() * 16,
            AckChoice::All => 0,
        }
    }
}

type Result<T> = std::result::Result<T, NotifyError>;

struct Inner {
    store: Arc<dyn NotificationStore>,
    hub: Arc<Hub>,
    identities: Identities,
    options: NotificationOptions,
    emissions: Batcher<NewNotification, Emitted, NotifyError>,
    acknowledgements: Batcher<Acknowledgement, Acknowledged, NotifyError>,
    /// Pages that come back all at once share reads.
    scopes: Batcher<ScopeOf, UserScope, NotifyError>,
    /// What is declared of audiences; none where every type is accepted.
    declared: OnceLock<Arc<dyn AudienceDeclarations>>,
    declared_cache: DeclaredCache,
    log_bell: Notify,
    timer_bell: Notify,
    keys_bell: Notify,
    /// Why the log can not be read, if it can not.
    trouble: watch::Sender<Option<String>>,
    stopping: CancellationToken,
    tracker: TaskTracker,
}

/// Notifications of one process. Cheap to clone.
#[derive(Clone)]
pub struct Notifications(Arc<Inner>);

impl std::fmt::Debug for Notifications {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notifications").finish_non_exhaustive()
    }
}

/// A page of a user's messages.
#[derive(Debug, Clone)]
pub struct UserPage {
    /// The messages, the newest first.
    pub notifications: Vec<ListedNotification>,
    /// How many there are.
    pub counts: Counts,
    /// Where a link goes on, so that nothing is missed between the list and the link.
    pub cursor: String,
    /// What to give as `before` for the next page.
    pub next: Option<LogPosition>,
}

impl Notifications {
    /// Starts the service on a store whose tables exist or will exist. It must be told of wake-ups
    /// ([`relais_core::Store::listen`]); without them it reads the log every [`NotificationOptions::sweep`].
    pub fn start(store: Arc<dyn NotificationStore>, identities: Identities, options: NotificationOptions) -> Self {
        let (tracker, stopping) = (TaskTracker::new(), CancellationToken::new());
        let emissions = {
            let store = Arc::clone(&store);
            let write = move |messages| {
                let store = Arc::clone(&store);
                Box::pin(async move { store.emit_notifications(messages).await }) as _
            };
            Batcher::start("notifications", options.batching, &tracker, stopping.clone(), Arc::new(write))
        };
        let acknowledgements = {
            let store = Arc::clone(&store);
            let write = move |acknowledgements| {
                let store = Arc::clone(&store);
                Box::pin(async move { store.acknowledge(acknowledgements).await }) as _
            };
            Batcher::start("acknowledgements", options.batching, &tracker, stopping.clone(), Arc::new(write))
        };
        let scopes = {
            let store = Arc::clone(&store);
            let read = move |users: Vec<ScopeOf>| {
                let store = Arc::clone(&store);
                Box::pin(async move {
                    let users: Vec<String> = users.into_iter().map(|ScopeOf(user)| user).collect();
                    let distinct: BTreeSet<String> = users.iter().cloned().collect();
                    let scopes = store.scopes_of(distinct.into_iter().collect()).await?;
                    let found = |user: String| match scopes.get(&user) {
                        Some(scope) => scope.clone(),
                        None => UserScope { user, belongs: Vec::new() },
                    };
                    Ok(users.into_iter().map(found).collect())
                }) as _
            };
            Batcher::start("scopes", options.batching, &tracker, stopping.clone(), Arc::new(read))
        };
        let hub = Arc::new(Hub::new(Arc::clone(&store), options.hub.clone()));
        let inner = Inner {
            store,
            hub,
            identities,
            options,
            emissions,
            acknowledgements,
            scopes,
            declared: OnceLock::new(),
            declared_cache: DeclaredCache::default(),
            log_bell: Notify::new(),
            timer_bell: Notify::new(),
            keys_bell: Notify::new(),
            trouble: watch::channel(None).0,
            stopping,
            tracker,
        };
        let notifications = Self(Arc::new(inner));
        notifications.spawn(notifications.clone().follow_log());
        notifications.spawn(notifications.clone().load_tickets());
        notifications.spawn(notifications.clone().expire_links());
        notifications.spawn(notifications.clone().record_deliveries());
        if notifications.0.options.timers {
            notifications.spawn(notifications.clone().fire_timers());
            notifications.spawn(notifications.clone().purge());
        }
        notifications
    }

    /// Ends all links, and refuses what comes from now on.
    pub fn begin_stop(&self) {
        self.0.hub.stop();
        self.0.stopping.cancel();
    }

    /// Stops: what was accepted is written.
    pub async fn stop(self) {
        self.begin_stop();
        self.0.tracker.close();
        self.0.tracker.wait().await;
    }

    pub(crate) fn store(&self) -> &Arc<dyn NotificationStore> {
        &self.0.store
    }

    /// How often it is looked for what nobody announced.
    pub(crate) fn sweep(&self) -> Duration {
        self.0.options.sweep
    }

    /// Notes for the ledger that a message was pushed to a user.
    pub(crate) fn note_pushed(&self, user: &str, stored: &StoredNotification) {
        self.0.hub.note_pushed(user, stored);
    }

    /// Runs something to its end, also while the process stops.
    pub(crate) fn spawn_to_the_end(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.tracker.spawn(task);
    }

    pub(crate) fn spawn(&self, service: impl Future<Output = ()> + Send + 'static) {
        let stopping = self.0.stopping.clone();
        self.0.tracker.spawn(async move {
            tokio::select! {
                () = service => {}
                () = stopping.cancelled() => {}
            }
        });
    }

    /// Why the log can not be read at present, as that changes.
    pub fn follow_trouble(&self) -> watch::Receiver<Option<String>> {
        self.0.trouble.subscribe()
    }

    /// The database's time, as far as this process knows it.
    pub fn now(&self) -> Timestamp {
        self.0.hub.now()
    }

    /// The same, as dates are written.
    fn now_in_millis(&self) -> Timestamp {
        let now = self.now();
        Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
    }

    /// Who has this token or ticket.
    pub async fn identify(&self, token: &str) -> Result<Identity> {
        let identity = self.0.identities.verify(token, self.now()).map_err(|refused| {
            if matches!(refused, TokenRefused::UnknownKid { .. } | TokenRefused::NoKeys) {
                self.0.keys_bell.notify_one();
            }
            match refused {
                // It may well be good: whoever has it must not throw it away.
                TokenRefused::NoTickets | TokenRefused::NoKeys => no_keys(),
                refused => NotifyError::Unauthorized(refused),
            }
        })?;
        self.judge_claims::<TokenRefused>(&identity).await?.map_err(NotifyError::Unauthorized)?;
        Ok(identity)
    }

    /// What tokens and tickets are verified with.
    pub fn identities(&self) -> &Identities {
        &self.0.identities
    }

    /// Waits until a token names a key that is not known: then the JWKS should be read anew.
    pub async fn until_key_is_unknown(&self) {
        self.0.keys_bell.notified().await;
    }

    /// A ticket for a user.
    pub async fn issue_ticket(&self, identity: &Identity, ttl: Option<Duration>) -> Result<(String, Timestamp)> {
        self.judge_claims::<TicketRefused>(identity).await??;
        let tickets = self.0.identities.tickets().ok_or_else(no_keys)?;
        Ok(tickets.issue(identity, self.now(), ttl)?)
    }

    /// Takes a message back. With `client`, only a message of that client.
    pub async fn withdraw(&self, id: Uuid, client: Option<&str>) -> Result<()> {
        Ok(self.0.store.withdraw(id, client.map(str::to_owned), None).await?)
    }

    /// Sends a message of the error log again.
    pub async fn resend(&self, id: Uuid, client: Option<&str>) -> Result<()> {
        Ok(self.0.store.resend(id, client.map(str::to_owned)).await?)
    }

    /// Messages for operators and emitters.
    pub async fn list_notifications(&self, filter: NotificationFilter) -> Result<Vec<StoredNotification>> {
        Ok(self.0.store.list_notifications(filter).await?)
    }

    /// A message with its ledger.
    pub async fn find_notification(&self, id: Uuid) -> Result<(StoredNotification, Vec<LedgerLine>)> {
        self.0.store.find_notification(id, LEDGER_LINES).await?.ok_or(NotifyError::NotFound)
    }

    /// The same with at most so many lines: first those who are awaited and have not acknowledged.
    pub async fn find_with_lines(&self, id: Uuid, lines: usize) -> Result<(StoredNotification, Vec<LedgerLine>)> {
        self.0.store.find_notification(id, lines.min(LEDGER_LINES)).await?.ok_or(NotifyError::NotFound)
    }

    /// Changes the members of a target.
    pub async fn change_members(&self, key: AudienceKey, change: MembersChange) -> Result<MembersChanged> {
        self.judge_owner(&key).await?;
        if let MembersChange::Set(members) | MembersChange::Add(members) = &change {
            for key in members.iter().chain([&key]) {
                self.judge_type::<MembershipRefused>(&key.kind).await?.map_err(NotifyError::Members)?;
            }
        }
        Ok(self.0.store.change_members(key, change).await?)
    }

    /// The members of a target, after one of them.
    pub async fn list_members(
        &self,
        key: &AudienceKey,
        after: Option<AudienceKey>,
        limit: usize,
    ) -> Result<Vec<Member>> {
        Ok(self.0.store.list_members(key, after, limit).await?)
    }

    /// The links of this process.
    pub fn links(&self) -> Vec<LinkGlance> {
        self.0.hub.glances()
    }

    /// The links of this process, counted; of each type of audience, the `most` targets with the most links.
    pub fn count_links(&self, most: usize) -> LinkSummary {
        self.0.hub.summary(most)
    }

    /// How many links this process has.
    pub fn link_count(&self) -> usize {
        self.0.hub.link_count()
    }

    /// How far this process has read the log; changes when it has read on.
    pub fn follow_log_position(&self) -> watch::Receiver<LogPosition> {
        self.0.hub.follow_position()
    }

    /// Returns when the process stops.
    pub async fn stopped(&self) {
        self.0.stopping.cancelled().await;
    }

    /// Whether a user has a link to this process.
    pub fn has_link_of(&self, user: &str) -> bool {
        self.0.hub.has_link_of(user)
    }

    /// Opens a link that goes on from a cursor, or from now on.
    pub async fn open_link(
        &self,
        identity: Identity,
        cursor: Option<&str>,
        address: Option<IpAddr>,
    ) -> Result<OpenLink> {
        // A cursor that another process gave may be ahead of what this one has read.
        if self.0.hub.head().is_none() || cursor.is_some() {
            self.0.hub.read_ahead(&self.0.log_bell, cursor).await?;
        }
        loop {
            let as_of = self.0.hub.position();
            let scope = self.declared_scope(&identity.user).await?;
            if let Some(link) = self.0.hub.open(&identity, scope, as_of, cursor, address)? {
                return Ok(link);
            }
        }
    }

    /// A link lives on under a new token.
    pub fn renew_link(&self, link: Uuid, identity: &Identity) -> Result<()> {
        if self.0.hub.renew(link, identity) { Ok(()) } else { Err(NotifyError::NotFound) }
    }

    /// What has come since a cursor, and the cursor to go on from; waits for something if there is nothing.
    pub async fn poll(
        &self,
        identity: Identity,
        cursor: Option<&str>,
        wait: Duration,
        address: Option<IpAddr>,
    ) -> Result<(Vec<Arc<Frame>>, String)> {
        let until = Instant::now() + wait;
        let mut link = self.open_link(identity, cursor, address).await?;
        // Hello, and perhaps a gap.
        let mut frames = link.next().await.unwrap_or_default();
        let mut position = frames.iter().rev().find_map(|frame| frame.cursor.clone()).unwrap_or_default();
        frames.remove(0);
        if cursor.is_some() && frames.is_empty() {
            // However short the wait is: what was missed may have to be read from the store.
            frames = link.missed().await;
        }
        if cursor.is_some() && frames.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if let Ok(Some(more)) = tokio::time::timeout(left, link.next()).await {
                frames = more;
            }
        }
        position = frames.iter().rev().find_map(|frame| frame.cursor.clone()).unwrap_or(position);
        Ok((frames, position))
    }

    async fn declared_scope(&self, user: &str) -> Result<UserScope> {
        self.0.scopes.put(ScopeOf(user.to_owned())).await
    }

    async fn scope(&self, identity: &Identity) -> Result<UserScope> {
        Ok(with_claims(self.declared_scope(&identity.user).await?, &identity.audiences))
    }

    /// A page of a user's messages.
    pub async fn list(
        &self,
        identity: &Identity,
        filter: ListFilter,
        before: Option<LogPosition>,
        limit: usize,
    ) -> Result<UserPage> {
        let scope = self.scope(identity).await?;
        // Before the list: what comes in between is sent as well, and pages know messages by their ids.
        let head = self.0.store.log_head().await?;
        let cursor = crate::Cursor { epoch: head.epoch, position: head.position }.to_string();
        let counts = self.0.store.count_of_user(&scope).await?;
        let request = ListRequest { scope, filter, before, limit: limit + 1 };
        let mut notifications = self.0.store.list_of_user(request).await?;
        let more = notifications.len() > limit;
        notifications.truncate(limit);
        let next = notifications.last().filter(|_| more).map(|last| last.stored.position);
        Ok(UserPage { notifications, counts, cursor, next })
    }

    /// How many messages a user has.
    pub async fn counts(&self, identity: &Identity) -> Result<Counts> {
        Ok(self.0.store.count_of_user(&self.scope(identity).await?).await?)
    }

    /// Acknowledges messages of a user; with the counts afterwards.
    pub async fn acknowledge(&self, identity: &Identity, choice: AckChoice) -> Result<(Acknowledged, Counts)> {
        let scope = self.scope(identity).await?;
        let acknowledged = self.0.acknowledgements.put(Acknowledgement { scope: scope.clone(), choice }).await?;
        metrics::counter!("relais_notification_acknowledged_total").increment(acknowledged.new.len() as u64);
        Ok((acknowledged, self.0.store.count_of_user(&scope).await?))
    }
}

impl WakeupListener for Notifications {
    fn wake(&self, wakeup: &Wakeup) {
        if wakeup.declared {
            self.0.declared_cache.forget();
        }
        if wakeup.notifications {
            self.0.log_bell.notify_one();
            self.0.timer_bell.notify_one();
        }
    }
}

/// The id of a message that an idempotency key names, within one client.
pub(crate) fn id_of(client: &str, key: &str, number: usize) -> Uuid {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in [client, "\0", key, "\0", &number.to_string()] {
        context.update(part.as_bytes());
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&context.finish().as_ref()[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}
