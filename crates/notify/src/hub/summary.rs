//! How many links there are, and of whom: for operators.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use crate::{
    UserScope,
    hub::{Hub, link::Link},
};

/// The links of a process, counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkSummary {
    /// How many are open.
    pub links: usize,
    /// By type of audience, the type with the most links first.
    pub types: Vec<LinksOfType>,
}

/// The links whose users belong to audiences of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinksOfType {
    /// The type; `USER` has all links.
    pub kind: String,
    /// How many links, each once.
    pub links: usize,
    /// How many targets have a link.
    pub targets: usize,
    /// The targets with the most links, with how many these are.
    pub largest: Vec<(String, usize)>,
}

impl Hub {
    /// Counts the links, and names up to `most` targets of each type.
    pub(crate) fn summary(&self, most: usize) -> LinkSummary {
        // Links are served meanwhile: the hub is locked only while their pointers are copied.
        let links: Vec<Arc<Link>> = self.state().links.values().map(|place| Arc::clone(&place.link)).collect();
        let scopes: Vec<Arc<UserScope>> = links.iter().map(|link| link.scope()).collect();
        let mut types: HashMap<&str, (usize, HashMap<&str, usize>)> = HashMap::new();
        for scope in &scopes {
            let kinds: BTreeSet<&str> = scope.keys().map(|key| key.kind.as_str()).collect();
            for kind in kinds {
                types.entry(kind).or_default().0 += 1;
            }
            for key in scope.keys() {
                *types.entry(&key.kind).or_default().1.entry(&key.target).or_default() += 1;
            }
        }
        let of_type = |(kind, (links, targets)): (&str, (usize, HashMap<&str, usize>))| {
            let count = targets.len();
            let mut largest: Vec<(&str, usize)> = targets.into_iter().collect();
            largest.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
            largest.truncate(most);
            let largest = largest.into_iter().map(|(target, links)| (target.to_owned(), links)).collect();
            LinksOfType { kind: kind.to_owned(), links, targets: count, largest }
        };
        let mut types: Vec<LinksOfType> = types.into_iter().map(of_type).collect();
        types.sort_unstable_by(|a, b| b.links.cmp(&a.links).then_with(|| a.kind.cmp(&b.kind)));
        LinkSummary { links: scopes.len(), types }
    }

    pub(crate) fn link_count(&self) -> usize {
        self.state().links.len()
    }
}
