//! The position of a task in its queue, at a cost that does not grow with the queue.
//!
//! Each service numbers its tasks 0, 1, 2… in commit order (`seq`). So `seq` tasks were submitted before a task, and
//! only those of them that left the queue have to be counted. They are counted in a tree: level 0 has a node for every
//! 16 numbers, and each higher level a node for every 16 nodes of the level below. A task that leaves adds one to its
//! node on each level. A position is found by adding up the full nodes before it, at most 15 per level, and by looking
//! at the fewer than 16 tasks in its smallest node.
//!
//! A submission writes nothing here: a new task is behind all pending ones.

/// How many bits of a number each level drops.
pub const LEVELS: [u32; 6] = [4, 8, 12, 16, 20, 24];

/// A node of the tree of one service: how many of its tasks have left the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node {
    /// An index into [`LEVELS`].
    pub level: i16,
    /// Which of the level's nodes.
    pub slot: i64,
}

/// The nodes that count a task with this number when it leaves the queue.
pub fn nodes(seq: i64) -> [Node; LEVELS.len()] {
    std::array::from_fn(|level| Node { level: level as i16, slot: seq >> LEVELS[level] })
}

/// The nodes to add up for the position of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// For each level, the first slot that counts and the one after the last.
    pub slots: [(i64, i64); LEVELS.len()],
    /// The first number of the smallest node that the task is in: from there on, pending tasks are looked at one by
    /// one.
    pub first: i64,
}

/// The nodes to add up for the position of the task with this number.
pub fn span(seq: i64) -> Span {
    let slots = std::array::from_fn(|level| {
        let first = match LEVELS.get(level + 1) {
            Some(above) => (seq >> above) << (above - LEVELS[level]),
            None => 0,
        };
        (first, seq >> LEVELS[level])
    });
    Span { slots, first: (seq >> LEVELS[0]) << LEVELS[0] }
}

/// For each level, the first slot that still matters when all tasks before `floor` have left for good.
pub fn first_needed(floor: i64) -> [i64; LEVELS.len()] {
    span(floor).slots.map(|(first, _)| first)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use proptest::prelude::*;

    use super::*;

    /// Places a task by the tree, from a set of departed numbers.
    fn by_tree(departed: &BTreeSet<i64>, floor: i64, seq: i64) -> u64 {
        let mut counts: HashMap<Node, i64> = HashMap::new();
        for &gone in departed {
            for node in nodes(gone) {
                *counts.entry(node).or_default() += 1;
            }
        }
        let needed = first_needed(floor);
        counts.retain(|node, _| node.slot >= needed[node.level as usize]);
        let span = span(seq);
        let sum: i64 = span
            .slots
            .iter()
            .enumerate()
            .flat_map(|(level, &(from, to))| (from..to).map(move |slot| Node { level: level as i16, slot }))
            .filter_map(|node| counts.get(&node))
            .sum();
        let neighbours = (span.first..seq).filter(|other| !departed.contains(other)).count() as i64;
        u64::try_from(span.first - sum + neighbours).unwrap() + 1
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn the_tree_agrees_with_counting(
            gone in proptest::collection::btree_set(0i64..40_000, 0..400),
            head in 0i64..20_000,
            seq in 0i64..40_000,
        ) {
            // Everything before `head` is gone, some more here and there; the task itself is pending.
            let mut departed: BTreeSet<i64> = (0..head.min(seq)).collect();
            departed.extend(gone.iter().filter(|&&other| other != seq));
            let counted = (0..seq).filter(|other| !departed.contains(other)).count() as u64 + 1;
            prop_assert_eq!(by_tree(&departed, 0, seq), counted);
            prop_assert_eq!(by_tree(&departed, head.min(seq), seq), counted, "after old nodes were dropped");
        }
    }

    #[test]
    fn no_level_has_more_than_15_slots_to_add_up() {
        for seq in [0, 15, 16, 255, 256, 4_095, 4_096, 1_048_575, 16_777_216, 200_000_000] {
            for (from, to) in span(seq).slots {
                assert!(to - from < 16, "{seq}: {from}..{to}");
            }
            assert!(seq - span(seq).first < 16);
        }
    }
}
