//! Keys of a partition that failed, and the records of theirs that are kept elsewhere.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

/// The name of a kept record: its offset in its own partition, and the assignment in which it was kept. An owner that has lost
/// the partition must not be able to remove what the next owner keeps of the same record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct EntryId {
    pub(crate) offset: i64,
    pub(crate) assignment: u64,
}

impl EntryId {
    pub(crate) fn to_key(self) -> String {
        format!("{}:{:016x}", self.offset, self.assignment)
    }

    pub(crate) fn from_key(key: &[u8]) -> Option<Self> {
        let (offset, assignment) = std::str::from_utf8(key).ok()?.split_once(':')?;
        Some(Self { offset: offset.parse().ok()?, assignment: u64::from_str_radix(assignment, 16).ok()? })
    }
}

/// Where a record is that is to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parked {
    /// On its way.
    Writing,
    /// Kept, at this place.
    Kept(i64),
}

#[derive(Debug)]
struct Entry<K> {
    key: K,
    state: Parked,
}

/// The parked keys of a partition. A key is parked as long as a record of it is.
#[derive(Debug)]
pub(crate) struct ParkedKeys<K> {
    entries: BTreeMap<EntryId, Entry<K>>,
    keys: HashMap<K, usize>,
    /// Everything that is kept is here or behind it.
    end: i64,
}

impl<K> Default for ParkedKeys<K> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), keys: HashMap::new(), end: 0 }
    }
}

impl<K: Clone + Eq + Hash> ParkedKeys<K> {
    pub(crate) fn contains(&self, key: &K) -> bool {
        self.keys.contains_key(key)
    }

    /// Whether this record is parked, or is about to be.
    pub(crate) fn has(&self, id: EntryId) -> bool {
        self.entries.contains_key(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// A record of this key is to be kept, or was found where it is.
    pub(crate) fn insert(&mut self, id: EntryId, key: K, state: Parked) {
        if self.entries.insert(id, Entry { key: key.clone(), state }).is_none() {
            *self.keys.entry(key).or_default() += 1;
        }
        self.note_end(state);
    }

    /// A record is kept.
    pub(crate) fn kept(&mut self, id: EntryId, place: i64) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.state = Parked::Kept(place);
        }
        self.note_end(Parked::Kept(place));
    }

    /// A record is done. Whether it was parked here.
    pub(crate) fn remove(&mut self, id: EntryId) -> bool {
        let Some(entry) = self.entries.remove(&id) else { return false };
        if let Some(count) = self.keys.get_mut(&entry.key) {
            *count -= 1;
            if *count == 0 {
                self.keys.remove(&entry.key);
            }
        }
        true
    }

    /// Nothing that is kept and not done is in front of this place: the next owner begins to read there.
    pub(crate) fn read_from(&self) -> i64 {
        let kept = self.entries.values().filter_map(|entry| match entry.state {
            Parked::Kept(place) => Some(place),
            // It comes behind all others.
            Parked::Writing => None,
        });
        kept.min().unwrap_or(self.end)
    }

    /// What was read up to here is known.
    pub(crate) fn read_to(&mut self, end: i64) {
        self.end = self.end.max(end);
    }

    fn note_end(&mut self, state: Parked) {
        if let Parked::Kept(place) = state {
            self.read_to(place + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(offset: i64) -> EntryId {
        EntryId { offset, assignment: 7 }
    }

    #[test]
    fn a_key_is_parked_as_long_as_a_record_of_it_is() {
        let mut parked = ParkedKeys::default();
        parked.insert(id(3), "a", Parked::Writing);
        parked.insert(id(5), "a", Parked::Writing);
        parked.insert(id(4), "b", Parked::Writing);
        assert_eq!((parked.len(), parked.keys()), (3, 2));
        assert!(parked.remove(id(3)) && parked.contains(&"a"));
        assert!(parked.remove(id(5)) && !parked.contains(&"a"));
        assert!(!parked.remove(id(5)) && parked.has(id(4)) && parked.contains(&"b"));
    }

    #[test]
    fn the_next_owner_reads_from_the_first_record_that_is_not_done() {
        let mut parked = ParkedKeys::default();
        assert_eq!(parked.read_from(), 0);
        parked.read_to(20);
        assert_eq!(parked.read_from(), 20, "nothing is kept");
        for (offset, place) in [(3, 20), (4, 22), (5, 23)] {
            parked.insert(id(offset), "a", Parked::Writing);
            parked.kept(id(offset), place);
        }
        parked.insert(id(6), "a", Parked::Writing);
        assert_eq!(parked.read_from(), 20);
        parked.remove(id(3));
        assert_eq!(parked.read_from(), 22);
        parked.remove(id(5));
        parked.remove(id(4));
        assert_eq!(parked.read_from(), 24, "what is on its way comes behind all others");
    }

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let name = EntryId { offset: 42, assignment: u64::MAX - 1 };
        assert_eq!(EntryId::from_key(name.to_key().as_bytes()), Some(name));
        for wrong in ["", "42", "42:", "x:1", "42:zz", "42:1:2"] {
            assert_eq!(EntryId::from_key(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
