//! What the hub knows: its links by their keys, and how far it has read.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
    time::Instant,
};

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::{
    link::Link,
    tail::{Outgoing, SentMessage, Tail},
};
use crate::{AudienceKey, Cursor, EntryKind, LogPosition, UserScope};

#[derive(Default)]
pub(super) struct HubState {
    pub(super) epoch: String,
    pub(super) floor: LogPosition,
    /// All entries up to here were passed on.
    pub(super) position: LogPosition,
    pub(super) tail: Tail,
    pub(super) links: HashMap<Uuid, Place>,
    /// Those that read what they have missed. The index does not have them yet.
    pub(super) catching_up: HashMap<Uuid, Arc<Link>>,
    /// The last change of members that was read.
    pub(super) members_at: LogPosition,
    /// The links of a key, by their ids: those are in the order in which links were made, so that new ones come last.
    pub(super) by_key: HashMap<AudienceKey, Vec<Arc<Link>>>,
    pub(super) per_user: HashMap<String, usize>,
    pub(super) per_address: HashMap<IpAddr, usize>,
    pub(super) expiries: BTreeSet<(Timestamp, Uuid)>,
    pub(super) clock: Option<(Timestamp, Instant)>,
    pub(super) stopping: bool,
}

pub(super) struct Place {
    pub(super) link: Arc<Link>,
    pub(super) address: Option<IpAddr>,
    pub(super) expires: Option<Timestamp>,
    /// Whether the index has it.
    pub(super) live: bool,
}

impl HubState {
    pub(super) fn now(&self) -> Timestamp {
        let (read, at) = self.clock.unwrap_or_else(|| (Timestamp::now(), Instant::now()));
        read.checked_add(SignedDuration::try_from(at.elapsed()).unwrap_or(SignedDuration::MAX))
            .unwrap_or(Timestamp::MAX)
    }

    pub(super) fn cursor(&self, position: LogPosition) -> String {
        Cursor { epoch: self.epoch.clone(), position }.to_string()
    }

    /// The links that an entry is for, but for what their users have acknowledged.
    pub(super) fn links_for(&self, outgoing: &Outgoing) -> Vec<Arc<Link>> {
        let is_replay = matches!(outgoing.message, Some(SentMessage { kind: EntryKind::Replayed { .. }, .. }));
        let links = outgoing.keys.iter().filter_map(|key| self.by_key.get(key)).flatten();
        links.filter(|link| !is_replay || outgoing.is_for(&link.scope())).cloned().collect()
    }

    pub(super) fn go_live(&mut self, link: &Arc<Link>) {
        if let Some(place) = self.links.get_mut(&link.id)
            && !std::mem::replace(&mut place.live, true)
        {
            self.catching_up.remove(&link.id);
            self.index(link);
        }
    }

    /// The links, live or not, whose users belong to one of these.
    pub(super) fn links_with(&self, keys: &[AudienceKey]) -> Vec<Arc<Link>> {
        let live = keys.iter().filter_map(|key| self.by_key.get(key)).flatten();
        let set: HashSet<&AudienceKey> = keys.iter().collect();
        let others = self.catching_up.values().filter(|link| link.scope().keys().any(|key| set.contains(key)));
        live.chain(others).cloned().collect()
    }

    /// Changes what a link's user belongs to. Whether it was something else before.
    pub(super) fn change_scope(&mut self, link: &Arc<Link>, scope: UserScope) -> bool {
        if *link.scope() == scope {
            return false;
        }
        let is_live = self.links.get(&link.id).is_some_and(|place| place.live);
        if is_live {
            self.unindex(link);
        }
        link.set_scope(Arc::new(scope));
        if is_live {
            self.index(link);
        }
        true
    }

    pub(super) fn index(&mut self, link: &Arc<Link>) {
        for key in link.scope().keys() {
            let links = self.by_key.entry(key.clone()).or_default();
            let at = links.partition_point(|other| other.id < link.id);
            links.insert(at, Arc::clone(link));
        }
    }

    pub(super) fn unindex(&mut self, link: &Arc<Link>) {
        for key in link.scope().keys() {
            if let Some(links) = self.by_key.get_mut(key) {
                if let Ok(at) = links.binary_search_by_key(&link.id, |other| other.id) {
                    links.remove(at);
                }
                if links.is_empty() {
                    self.by_key.remove(key);
                }
            }
        }
    }
}

pub(super) fn decrease<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
