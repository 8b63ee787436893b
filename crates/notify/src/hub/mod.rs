//! The hub: the links of this process, and the one reader of the log that serves them.
//!
//! The log is read once for all links. An entry becomes one frame, and an index from audience keys to links says who gets
//! it. A link that comes back reads what it missed from the end of the log in memory ([`tail`]), and from the store only if it
//! was away for longer. So a storm of links that reconnect costs no queries.

pub(crate) mod link;
mod state;
pub(crate) mod summary;
pub(crate) mod tail;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use relais_core::StoreError;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

use self::{
    link::{Link, MissedPage, OpenLink},
    state::{HubState, Place, decrease},
    tail::{Outgoing, SentMessage, Tail},
};
use crate::{
    AckStatus, AudienceKey, Belonging, Cursor, Delivery, EntryContent, EntryKind, Gap, Identity, LogEntry, LogHead,
    LogPosition, NotificationStore, StoredNotification, UserScope,
    frame::{Bye, Frame},
};

/// A link waits so long until this process has read what its cursor says.
const PATIENCE: Duration = Duration::from_secs(5);

/// As many deliveries wait to be written to the ledger; more are counted and forgotten.
const MOST_DELIVERIES: usize = 200_000;

/// How links are served.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// So many entries of the log are kept in memory.
    pub tail_entries: usize,
    /// So many bytes of them.
    pub tail_bytes: usize,
    /// So many frames wait for a slow reader.
    pub queue_frames: usize,
    /// So many bytes of them.
    pub queue_bytes: usize,
    /// A user has so many links at once.
    pub links_per_user: usize,
    /// An address has so many links at once.
    pub links_per_address: usize,
    /// Whether the ledger says of all messages who was sent them; else of those that must be acknowledged.
    pub record_all: bool,
}

impl Default for HubOptions {
    fn default() -> Self {
        Self {
            tail_entries: 10_000,
            tail_bytes: 32 << 20,
            queue_frames: 500,
            queue_bytes: 1 << 20,
            links_per_user: 50,
            links_per_address: 2_000,
            record_all: false,
        }
    }
}

/// Why a link is not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooManyLinks {
    /// The user has as many as they may have.
    #[error("the user has too many links")]
    OfUser,
    /// The address has as many as it may have.
    #[error("the address has too many links")]
    OfAddress,
}

/// A link, for operators.
#[derive(Debug, Clone)]
pub struct LinkGlance {
    /// Its id.
    pub id: Uuid,
    /// Its user.
    pub user: String,
    /// What the user belongs to.
    pub audiences: Vec<AudienceKey>,
}

/// The links of this process.
pub(crate) struct Hub {
    store: Arc<dyn NotificationStore>,
    options: HubOptions,
    state: Mutex<HubState>,
    deliveries: Mutex<Vec<Delivery>>,
    pub(crate) deliveries_bell: Notify,
    /// How far the log was read.
    read: watch::Sender<LogPosition>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").finish_non_exhaustive()
    }
}

impl Hub {
    pub(crate) fn new(store: Arc<dyn NotificationStore>, options: HubOptions) -> Self {
        let (state, deliveries) = (Mutex::default(), Mutex::default());
        let read = watch::channel(0).0;
        // An alert asks for its increase, which a counter has that begins at zero.
        metrics::counter!("relais_notification_unrecorded_total").increment(0);
        Self { store, options, state, deliveries, deliveries_bell: Notify::new(), read }
    }

    fn state(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database's time, as far as it is known.
    pub(crate) fn now(&self) -> Timestamp {
        self.state().now()
    }

    /// The end of the log as far as this process has read it. None before it was read for the first time.
    pub(crate) fn head(&self) -> Option<LogHead> {
        let state = self.state();
        let (epoch, now) = (state.epoch.clone(), state.now());
        let head = LogHead { epoch, position: state.position, floor: state.floor, now };
        state.clock.map(|_| head)
    }

    pub(crate) fn glances(&self) -> Vec<LinkGlance> {
        let state = self.state();
        let glance = |place: &Place| LinkGlance {
            id: place.link.id,
            user: place.link.user.clone(),
            audiences: place.link.scope().keys().cloned().collect(),
        };
        state.links.values().map(glance).collect()
    }

    /// How far the log was read, as it changes.
    pub(crate) fn follow_position(&self) -> watch::Receiver<LogPosition> {
        self.read.subscribe()
    }

    pub(crate) fn has_link_of(&self, user: &str) -> bool {
        self.state().per_user.contains_key(user)
    }

    /// Waits until this process has read as far as a cursor that another one gave, if it is one of this log.
    pub(crate) async fn read_ahead(&self, log_bell: &Notify, cursor: Option<&str>) -> Result<(), StoreError> {
        let wanted = cursor.and_then(|cursor| cursor.parse::<Cursor>().ok());
        let is_there = |head: &LogHead| {
            wanted.as_ref().is_none_or(|wanted| wanted.epoch != head.epoch || wanted.position <= head.position)
        };
        if self.head().as_ref().is_some_and(is_there) {
            return Ok(());
        }
        // A position that the log does not have is a forged one.
        let real = self.store.log_head().await?;
        if self.head().is_some() && !is_there(&real) {
            return Ok(());
        }
        let mut read = self.read.subscribe();
        log_bell.notify_one();
        let until_read = async { while !self.head().as_ref().is_some_and(is_there) && read.changed().await.is_ok() {} };
        let late = |late: tokio::time::error::Elapsed| StoreError::Unavailable(late.into());
        tokio::time::timeout(PATIENCE, until_read).await.map_err(late)
    }

    /// Reads the log to its end and passes everything on. Tells whether there was something.
    pub(crate) async fn read_on(&self) -> Result<bool, StoreError> {
        const PAGE: usize = 1000;
        let head = self.store.log_head().await?;
        let after = {
            let mut state = self.state();
            state.clock = Some((head.now, Instant::now()));
            state.floor = head.floor;
            if state.epoch != head.epoch {
                // The first time, or another log: a restored backup. Links of the old one learn it when they come back.
                state.epoch.clone_from(&head.epoch);
                state.position = head.position;
                state.tail = Tail::starting_at(head.position);
                state.links.values().for_each(|place| place.link.end(Bye::Stopping));
            }
            state.position
        };
        let behind = |after: LogPosition| {
            metrics::gauge!("relais_notification_log_behind").set(head.position.saturating_sub(after) as f64);
        };
        behind(after);
        if after >= head.position {
            self.read.send_replace(after);
            return Ok(false);
        }
        let mut after = after;
        loop {
            let entries = self.store.read_log(after, PAGE).await?;
            let Some(last) = entries.last().map(|entry| entry.position) else { break };
            for entry in entries {
                self.pass_on(entry).await?;
            }
            after = last;
            behind(after);
            if after >= head.position {
                break;
            }
        }
        behind(head.position);
        let mut state = self.state();
        state.position = state.position.max(after).max(head.position);
        self.read.send_replace(state.position);
        Ok(true)
    }

    /// Passes an entry to all links that it is for.
    async fn pass_on(&self, entry: LogEntry) -> Result<(), StoreError> {
        let LogEntry { position, appended, content } = entry;
        if let EntryContent::Members { key, changed } = &content {
            self.members_changed(position, key, changed).await?;
            return Ok(());
        }
        let cursor = self.state().cursor(position);
        let Some(outgoing) = outgoing(&cursor, position, content, self.now()) else {
            self.state().position = position;
            return Ok(());
        };
        let (mut asked, mut acknowledged) = (HashSet::new(), HashSet::new());
        // Links may come while the store is asked who has acknowledged.
        let sent = loop {
            match self.queue_entry(&outgoing, &asked, &acknowledged) {
                Ok(sent) => break sent,
                Err((id, new)) => {
                    asked.extend(new.iter().cloned());
                    acknowledged.extend(self.store.acknowledged_by(id, new).await?);
                }
            }
        };
        let kind = outgoing.message.as_ref().map(|message| message.kind);
        if sent > 0 && matches!(kind, Some(EntryKind::Emitted | EntryKind::Replayed { .. })) {
            // Both clocks are the database's; this process knows the one of now to within a round trip.
            let took = self.now().duration_since(appended);
            metrics::histogram!("relais_notification_delivery_seconds").record(took.as_secs_f64().max(0.0));
        }
        Ok(())
    }

    /// Queues an entry for all links that it is for; tells for how many. Of one that is sent again, it must be known who has acknowledged it: an
    /// error names users who must be asked for first.
    fn queue_entry(
        &self,
        outgoing: &Outgoing,
        asked: &HashSet<String>,
        acknowledged: &HashSet<String>,
    ) -> Result<u64, (Uuid, Vec<String>)> {
        let mut state = self.state();
        let links = state.links_for(outgoing);
        if let Some(SentMessage { id, kind: EntryKind::Replayed { .. }, .. }) = outgoing.message {
            let new: HashSet<&String> =
                links.iter().map(|link| &link.user).filter(|user| !asked.contains(*user)).collect();
            if !new.is_empty() {
                return Err((id, new.into_iter().cloned().collect()));
            }
        }
        let mut deliveries = Vec::new();
        let mut sent = 0_u64;
        for link in links.into_iter().filter(|link| !acknowledged.contains(&link.user)) {
            let HubOptions { queue_frames, queue_bytes, record_all, .. } = self.options;
            if link.queue(outgoing.position, &outgoing.frame, queue_frames, queue_bytes) {
                sent += 1;
                deliveries.extend(outgoing.delivery(&link.user, record_all));
            }
        }
        state.position = outgoing.position;
        if let Some((id, EntryKind::Withdrawn)) = outgoing.message.as_ref().map(|message| (message.id, message.kind)) {
            state.tail.forget_message(id);
        }
        state.tail.push(outgoing.clone(), self.options.tail_entries, self.options.tail_bytes);
        drop(state);
        metrics::counter!("relais_notification_sent_total").increment(sent);
        self.record(deliveries);
        Ok(sent)
    }

    /// The audiences of users have changed: their links get what is for them from now on.
    async fn members_changed(
        &self,
        position: LogPosition,
        key: &AudienceKey,
        changed: &[AudienceKey],
    ) -> Result<(), StoreError> {
        let users: Vec<String> = {
            let mut state = self.state();
            // Who has read what a user belongs to before this reads it again.
            state.members_at = position;
            let links = state.links_with(changed);
            links.into_iter().map(|link| link.user.clone()).collect::<BTreeSet<_>>().into_iter().collect()
        };
        let scopes = if users.is_empty() { HashMap::new() } else { self.store.scopes_of(users).await? };
        let mut state = self.state();
        state.position = position;
        let frame = Frame::audiences(Some(state.cursor(position)));
        let outgoing =
            Outgoing { position, keys: changed.into(), frame: Arc::clone(&frame), message: None, is_withdrawn: false };
        for link in state.links_with(changed) {
            let Some(scope) = scopes.get(&link.user) else { continue };
            state.change_scope(&link, with_claims(scope.clone(), &link.claims()));
            if state.catching_up.contains_key(&link.id) {
                // It finds this entry in the tail.
                continue;
            }
            link.queue(position, &frame, self.options.queue_frames, self.options.queue_bytes);
        }
        state.tail.push(outgoing, self.options.tail_entries, self.options.tail_bytes);
        tracing::debug!(%key, changed = changed.len(), "members of an audience have changed");
        Ok(())
    }

    /// How far the log was passed on.
    pub(crate) fn position(&self) -> LogPosition {
        self.state().position
    }

    /// Opens a link that goes on from a cursor, or from now on. None if members have changed since `as_of`, the position before
    /// the scope was read: then it may be an old one.
    pub(crate) fn open(
        self: &Arc<Self>,
        identity: &Identity,
        scope: UserScope,
        as_of: LogPosition,
        cursor: Option<&str>,
        address: Option<IpAddr>,
    ) -> Result<Option<OpenLink>, TooManyLinks> {
        let Identity { user, audiences, expires } = identity.clone();
        let scope = with_claims(scope, &audiences);
        let link = Arc::new(Link::new(user.clone(), audiences, scope));
        let mut state = self.state();
        if state.members_at > as_of {
            return Ok(None);
        }
        if state.per_user.get(&user).is_some_and(|links| *links >= self.options.links_per_user) {
            return Err(TooManyLinks::OfUser);
        }
        if address
            .and_then(|address| state.per_address.get(&address))
            .is_some_and(|links| *links >= self.options.links_per_address)
        {
            return Err(TooManyLinks::OfAddress);
        }
        let head = LogHead {
            epoch: state.epoch.clone(),
            position: state.position,
            floor: state.floor,
            now: Timestamp::UNIX_EPOCH,
        };
        let from = cursor.map(|cursor| Cursor::position_in(cursor, &head));
        let after = from.and_then(Result::ok);
        let begin = state.cursor(after.unwrap_or(head.position));
        let mut first = vec![Frame::hello(link.id, &user, begin.clone())];
        if let Some(Err(gap)) = from {
            first.push(Frame::gap(gap, begin));
        }
        // Who is up to date needs not catch up.
        let after = after.filter(|after| *after < head.position);
        *state.per_user.entry(user).or_default() += 1;
        if let Some(address) = address {
            *state.per_address.entry(address).or_default() += 1;
        }
        if let Some(expires) = expires {
            state.expiries.insert((expires, link.id));
        }
        if state.stopping {
            link.end(Bye::Stopping);
        }
        let place = Place { link: Arc::clone(&link), address, expires, live: after.is_none() };
        if place.live {
            state.index(&link);
        } else {
            state.catching_up.insert(link.id, Arc::clone(&link));
        }
        state.links.insert(link.id, place);
        metrics::gauge!("relais_notification_links").set(state.links.len() as f64);
        drop(state);
        Ok(Some(OpenLink::new(Arc::clone(self), link, after, first)))
    }

    pub(crate) fn close(&self, link: &Arc<Link>) {
        let mut state = self.state();
        let Some(Place { address, expires, live, .. }) = state.links.remove(&link.id) else { return };
        state.catching_up.remove(&link.id);
        if live {
            state.unindex(link);
        }
        if let Some(expires) = expires {
            state.expiries.remove(&(expires, link.id));
        }
        decrease(&mut state.per_user, &link.user);
        if let Some(address) = address {
            decrease(&mut state.per_address, &address);
        }
        metrics::gauge!("relais_notification_links").set(state.links.len() as f64);
    }

    /// A page of what a link has missed. The last one makes it live: nothing is awaited after that.
    pub(crate) async fn read_missed(
        &self,
        link: &Arc<Link>,
        after: LogPosition,
        limit: usize,
    ) -> Result<MissedPage, StoreError> {
        let tail_from = match self.read_tail(link, after, limit) {
            Ok(page) => return Ok(page),
            Err(tail_from) => tail_from,
        };
        // Read as who the user is now: perhaps not who they were when the link was opened.
        let scope = link.scope();
        let found = self.store.read_log_of(&scope, after, tail_from, limit).await?;
        // What was purged since the cursor was looked at is not there, and nothing else says so.
        if self.store.log_head().await?.floor > after {
            let frame = Frame::gap(Gap::Purged, self.state().cursor(tail_from));
            let gap = Outgoing { position: tail_from, keys: Arc::from([]), frame, message: None, is_withdrawn: false };
            return Ok(MissedPage { entries: vec![gap], next: Some(tail_from) });
        }
        let next = if found.len() < limit { tail_from } else { found.last().map_or(tail_from, |last| last.position) };
        let now = self.now();
        let entries = found.into_iter().filter_map(|entry| {
            let LogEntry { position, content, .. } = entry;
            outgoing(&self.state().cursor(position), position, content, now).filter(|entry| entry.is_for(&scope))
        });
        Ok(MissedPage { entries: entries.collect(), next: Some(next) })
    }

    /// The page from memory; or from where on memory has the log.
    fn read_tail(&self, link: &Arc<Link>, after: LogPosition, limit: usize) -> Result<MissedPage, LogPosition> {
        let mut state = self.state();
        if after < state.tail.from {
            return Err(state.tail.from);
        }
        let (entries, next) = state.tail.read(&link.scope(), after, limit);
        if next.is_none() {
            state.go_live(link);
        }
        Ok(MissedPage { entries, next })
    }

    /// Which messages that are sent again a user has acknowledged.
    pub(crate) async fn acknowledged_among(&self, user: &str, entries: &[Outgoing]) -> Result<Vec<Uuid>, StoreError> {
        let ids: Vec<Uuid> = entries.iter().filter_map(Outgoing::replayed).collect();
        if ids.is_empty() { Ok(ids) } else { self.store.acknowledged_of(user, ids).await }
    }

    /// A message that is sent again is for those who have not acknowledged it; one that has expired is not sent.
    pub(crate) fn is_still_sent(&self, entry: &Outgoing, acknowledged: &[Uuid]) -> bool {
        let now = self.now();
        entry.message.as_ref().is_none_or(|message| message.expiration > now)
            && entry.replayed().is_none_or(|id| !acknowledged.contains(&id))
    }

    /// A link lives on under a new token, with the audiences that this one names; false if there is no such link of this user.
    pub(crate) fn renew(&self, id: Uuid, identity: &Identity) -> bool {
        let mut state = self.state();
        let is_theirs = |place: &&mut Place| place.link.user == identity.user && !place.link.has_ended();
        let Some(place) = state.links.get_mut(&id).filter(is_theirs) else {
            return false;
        };
        let link = Arc::clone(&place.link);
        let before = std::mem::replace(&mut place.expires, identity.expires);
        if let Some(before) = before {
            state.expiries.remove(&(before, id));
        }
        if let Some(expires) = identity.expires {
            state.expiries.insert((expires, id));
        }
        let UserScope { user, mut belongs } = UserScope::clone(&link.scope());
        belongs.retain(|belonging| belonging.since.is_some());
        link.set_claims(&identity.audiences);
        if state.change_scope(&link, with_claims(UserScope { user, belongs }, &identity.audiences)) {
            link.tell(Frame::audiences(None));
        }
        true
    }

    /// Ends links whose tokens have expired.
    pub(crate) fn expire(&self) {
        let mut state = self.state();
        let now = state.now();
        while let Some((expires, id)) = state.expiries.first().copied().filter(|(expires, _)| *expires <= now) {
            state.expiries.remove(&(expires, id));
            if let Some(place) = state.links.get_mut(&id) {
                place.expires = None;
                place.link.end(Bye::Expired);
            }
        }
    }

    /// Ends all links; new ones end at once.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        state.stopping = true;
        state.links.values().for_each(|place| place.link.end(Bye::Stopping));
    }

    /// Notes for the ledger that a link has sent these.
    pub(crate) fn note_sent(&self, user: &str, entries: &[Outgoing]) {
        let messages = entries.iter().filter(|entry| entry.message.is_some()).count();
        metrics::counter!("relais_notification_sent_total").increment(messages as u64);
        self.record(entries.iter().filter_map(|entry| entry.delivery(user, self.options.record_all)).collect());
    }

    /// Notes for the ledger that a message was pushed to a user.
    pub(crate) fn note_pushed(&self, user: &str, stored: &StoredNotification) {
        if self.options.record_all || stored.notification.routing.retry.ack_required {
            self.record(vec![Delivery { id: stored.notification.metadata.id, user: user.to_owned() }]);
        }
    }

    fn record(&self, deliveries: Vec<Delivery>) {
        if deliveries.is_empty() {
            return;
        }
        let mut waiting = self.deliveries.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() + deliveries.len() > MOST_DELIVERIES {
            metrics::counter!("relais_notification_unrecorded_total").increment(deliveries.len() as u64);
            return;
        }
        waiting.extend(deliveries);
        drop(waiting);
        self.deliveries_bell.notify_one();
    }

    /// What is to be written to the ledger.
    pub(crate) fn take_deliveries(&self) -> Vec<Delivery> {
        std::mem::take(&mut *self.deliveries.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What is declared of a user, and what the user's token says.
pub(crate) fn with_claims(mut scope: UserScope, claims: &[AudienceKey]) -> UserScope {
    for key in claims {
        if !scope.keys().any(|known| known == key) {
            scope.belongs.push(Belonging { key: key.clone(), since: None });
        }
    }
    // It is kept for as long as its link.
    scope.belongs.shrink_to_fit();
    scope
}

/// What links send of an entry; none if it is not sent any more.
fn outgoing(cursor: &str, position: LogPosition, content: EntryContent, now: Timestamp) -> Option<Outgoing> {
    let (keys, frame, message) = match content {
        EntryContent::Message(kind, stored) => {
            let metadata = &stored.notification.metadata;
            let is_over =
                matches!(stored.status, AckStatus::Expired | AckStatus::Withdrawn) || metadata.expiration <= now;
            let frame = match kind {
                EntryKind::Withdrawn => Frame::withdrawn(metadata.id, stored.replaced_by, cursor.to_owned()),
                _ if is_over => return None,
                _ => Frame::notification(&stored.as_sent(kind), cursor.to_owned()),
            };
            let routing = &stored.notification.routing;
            let keys = routing.audience.targets.iter().map(|target| AudienceKey::new(&routing.audience.kind, target));
            let message = SentMessage {
                id: metadata.id,
                kind,
                emitted_at: stored.position,
                // That a message was withdrawn is told as long as the log is.
                expiration: if kind == EntryKind::Withdrawn { Timestamp::MAX } else { metadata.expiration },
                ack_required: routing.retry.ack_required && kind != EntryKind::Withdrawn,
            };
            (keys.collect::<Vec<_>>(), frame, Some(message))
        }
        EntryContent::Acknowledged { user, ids } => {
            (vec![AudienceKey::user(user)], Frame::acknowledged(&ids, cursor.to_owned()), None)
        }
        EntryContent::Gone => return None,
        EntryContent::Members { changed, .. } => (changed, Frame::audiences(Some(cursor.to_owned())), None),
    };
    Some(Outgoing { position, keys: keys.into(), frame, message, is_withdrawn: false })
}
