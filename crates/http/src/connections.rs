//! Connection limits: in total, and per address.
//!
//! When the limit is reached, a new connection replaces the one that has kept the server waiting longest, of the
//! address with the most connections. A connection whose client waits for the server is never closed for that.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

use crate::{peer::Peer, state::State};

/// Whoever has kept us waiting for less than this keeps its place.
const PATIENCE: Duration = Duration::from_secs(1);

/// All connections that are served.
pub(crate) struct Connections {
    most: usize,
    most_per_peer: usize,
    entries: Mutex<Entries>,
    /// Told when a place is free.
    freed: Notify,
}

#[derive(Default)]
struct Entries {
    next: u64,
    by_id: HashMap<u64, Entry>,
    /// How many each address has.
    counts: HashMap<Peer, usize>,
}

struct Entry {
    peer: Peer,
    state: Arc<State>,
}

/// A connection's place, until it is dropped.
pub(crate) struct Place {
    id: u64,
    connections: Arc<Connections>,
    pub(crate) state: Arc<State>,
}

impl Connections {
    pub(crate) fn new(most: usize, most_per_peer: usize) -> Arc<Self> {
        Arc::new(Self { most, most_per_peer, entries: Mutex::default(), freed: Notify::new() })
    }

    /// A place for a connection, as soon as there is one; none if its address has as many as it may have, and all of
    /// them are in use. A trusted proxy (`is_limited` is false) may have as many as it likes.
    pub(crate) async fn admit(self: &Arc<Self>, peer: Peer, is_limited: bool) -> Option<Place> {
        loop {
            let freed = self.freed.notified();
            {
                let mut entries = self.entries();
                if is_limited
                    && entries.counts.get(&peer).copied().unwrap_or_default() >= self.most_per_peer
                    && !entries.make_room(Some(peer))
                {
                    return None;
                }
                if entries.by_id.len() < self.most || entries.make_room(None) {
                    return Some(self.place(&mut entries, peer));
                }
            }
            // Somebody may have begun to keep us waiting meanwhile.
            let _ = tokio::time::timeout(PATIENCE, freed).await;
        }
    }

    fn place(self: &Arc<Self>, entries: &mut Entries, peer: Peer) -> Place {
        let (id, state) = (entries.next, Arc::new(State::new()));
        entries.next += 1;
        entries.by_id.insert(id, Entry { peer, state: Arc::clone(&state) });
        *entries.counts.entry(peer).or_default() += 1;
        metrics::gauge!("relais_http_connections").set(entries.by_id.len() as f64);
        Place { id, connections: Arc::clone(self), state }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.entries().remove(self.id);
        self.connections.freed.notify_one();
    }
}

impl Entries {
    /// Closes a connection that keeps us waiting, of this address or of any, if there is one.
    fn make_room(&mut self, of: Option<Peer>) -> bool {
        let waiting = self.by_id.iter().filter(|(_, entry)| of.is_none_or(|peer| peer == entry.peer));
        let waiting = waiting.filter_map(|(id, entry)| {
            let kept = entry.state.kept_waiting().filter(|kept| *kept >= PATIENCE)?;
            Some((self.counts.get(&entry.peer).copied().unwrap_or_default(), kept, *id))
        });
        let Some((.., id)) = waiting.max() else { return false };
        if let Some(entry) = self.remove(id) {
            entry.state.close.notify_one();
            metrics::counter!("relais_http_connections_closed_total", "reason" => "no_room").increment(1);
        }
        true
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.by_id.remove(&id)?;
        if let Some(count) = self.counts.get_mut(&entry.peer) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&entry.peer);
            }
        }
        metrics::gauge!("relais_http_connections").set(self.by_id.len() as f64);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use tokio::time::advance;

    use super::*;
    use crate::state::Phase;

    fn peer(number: u8) -> Peer {
        Peer::of(IpAddr::from([192, 0, 2, number]))
    }

    async fn is_closed(place: &Place) -> bool {
        tokio::time::timeout(Duration::ZERO, place.state.close.notified()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_slowest_connection_of_the_busiest_address_is_closed_first() {
        let connections = Connections::new(3, 10);
        let old = connections.admit(peer(1), true).await.unwrap();
        advance(PATIENCE * 2).await;
        let flood = connections.admit(peer(2), true).await.unwrap();
        let second = connections.admit(peer(2), true).await.unwrap();
        second.state.enter(Phase::Answering);
        advance(PATIENCE * 2).await;
        let third = connections.admit(peer(3), true).await.unwrap();
        assert!(is_closed(&flood).await && !is_closed(&old).await && !is_closed(&second).await);
        assert_eq!(connections.entries().by_id.len(), 3);
        drop((flood, third));
        assert_eq!(connections.entries().by_id.len(), 2, "a place is given back once");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_limited_per_address() {
        let connections = Connections::new(10, 2);
        let other = connections.admit(peer(9), true).await.unwrap();
        let first = connections.admit(peer(1), true).await.unwrap();
        let second = connections.admit(peer(1), true).await.unwrap();
        first.state.enter(Phase::Answering);
        assert!(connections.admit(peer(1), true).await.is_none(), "nobody keeps us waiting long enough");
        assert!(connections.admit(peer(1), false).await.is_some(), "a trusted proxy has no limit");
        advance(PATIENCE).await;
        assert!(connections.admit(peer(1), true).await.is_some());
        assert!(is_closed(&second).await && !is_closed(&first).await && !is_closed(&other).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_waits_while_all_others_wait_for_an_answer() {
        let connections = Connections::new(1, 1);
        let only = connections.admit(peer(1), true).await.unwrap();
        only.state.enter(Phase::Answering);
        let next = tokio::spawn({
            let connections = Arc::clone(&connections);
            async move { connections.admit(peer(2), true).await.is_some() }
        });
        tokio::task::yield_now().await;
        assert!(!next.is_finished());
        drop(only);
        assert!(next.await.unwrap());
    }
}
