//! A tree of segments that finds the subscribers of a channel.
//!
//! A lookup goes down the channel's own segments and, beside them, the wildcards: what it costs depends on the depth of
//! the channel and on what matches, not on how many other subscriptions there are. Knows nothing of what it holds but
//! that it is found by an id.

use std::collections::HashMap;

/// Values by pattern. The same id may be held under several patterns, and is then found once.
#[derive(Debug)]
pub(crate) struct Trie<V> {
    root: Node<V>,
}

#[derive(Debug)]
struct Node<V> {
    children: HashMap<Box<str>, Node<V>>,
    /// The child `*`, which a lookup visits beside the named one.
    any: Option<Box<Node<V>>>,
    /// Patterns that end here.
    exact: Vec<(u64, V)>,
    /// Patterns that end here with `>`.
    rest: Vec<(u64, V)>,
}

impl<V> Default for Node<V> {
    fn default() -> Self {
        Self { children: HashMap::new(), any: None, exact: Vec::new(), rest: Vec::new() }
    }
}

impl<V> Node<V> {
    fn is_empty(&self) -> bool {
        self.children.is_empty() && self.any.is_none() && self.exact.is_empty() && self.rest.is_empty()
    }

    /// Returns whether something was there to remove. Branches that hold nothing any more go with it.
    fn remove(&mut self, segments: &mut dyn Iterator<Item = &str>, id: u64) -> bool {
        let take = |held: &mut Vec<(u64, V)>| {
            let place = held.iter().position(|(other, _)| *other == id);
            place.map(|place| held.swap_remove(place)).is_some()
        };
        match segments.next() {
            None => take(&mut self.exact),
            Some(">") => take(&mut self.rest),
            Some("*") => {
                let Some(child) = &mut self.any else { return false };
                let removed = child.remove(segments, id);
                if child.is_empty() {
                    self.any = None;
                }
                removed
            }
            Some(segment) => {
                let Some(child) = self.children.get_mut(segment) else { return false };
                let removed = child.remove(segments, id);
                if child.is_empty() {
                    self.children.remove(segment);
                    // A map keeps its room; thousands of passing subscriptions should leave none behind.
                    if self.children.len() < self.children.capacity() / 8 {
                        self.children.shrink_to_fit();
                    }
                }
                removed
            }
        }
    }
}

impl<V: Clone> Trie<V> {
    pub(crate) fn new() -> Self {
        Self { root: Node::default() }
    }

    pub(crate) fn insert<'a>(&mut self, segments: impl Iterator<Item = &'a str>, id: u64, value: V) {
        let mut node = &mut self.root;
        for segment in segments {
            node = match segment {
                // The last one, as patterns are checked before they come here.
                ">" => {
                    node.rest.push((id, value));
                    return;
                }
                "*" => node.any.get_or_insert_default(),
                _ => node.children.entry(segment.into()).or_default(),
            };
        }
        node.exact.push((id, value));
    }

    pub(crate) fn remove<'a>(&mut self, mut segments: impl Iterator<Item = &'a str>, id: u64) -> bool {
        self.root.remove(&mut segments, id)
    }

    /// Everything whose pattern matches, once each, in the order of their ids. A `reserved` channel is not matched by
    /// patterns that begin with a wildcard.
    pub(crate) fn find(&self, channel: &str, reserved: bool) -> Vec<(u64, V)> {
        let mut found = Vec::new();
        if reserved {
            let (first, rest) = channel.split_once('.').map_or((channel, None), |(first, rest)| (first, Some(rest)));
            if let Some(child) = self.root.children.get(first) {
                collect(child, rest, &mut found);
            }
        } else {
            collect(&self.root, Some(channel), &mut found);
        }
        found.sort_unstable_by_key(|(id, _)| *id);
        found.dedup_by_key(|(id, _)| *id);
        found
    }
}

/// `left` is what of the channel is not yet matched; `None` at its end.
fn collect<V: Clone>(node: &Node<V>, left: Option<&str>, found: &mut Vec<(u64, V)>) {
    let Some(left) = left else {
        found.extend(node.exact.iter().cloned());
        return;
    };
    found.extend(node.rest.iter().cloned());
    let (segment, left) = left.split_once('.').map_or((left, None), |(segment, left)| (segment, Some(left)));
    if let Some(child) = node.children.get(segment) {
        collect(child, left, found);
    }
    if let Some(child) = &node.any {
        collect(child, left, found);
    }
}
