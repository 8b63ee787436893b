//! What a worker has taken and not yet done, in the order in which it may be done.
//!
//! Messages of the same key are in one lane, and only the first of a lane is ever ready. One that failed is parked until
//! its next try, and its lane waits with it, while other lanes go on. Knows no clock: it is told what time it is.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use tokio::time::Instant;

/// The name of a lane; messages without one have no order.
pub(crate) type Lane = Option<Arc<str>>;

/// Something to do.
#[derive(Debug)]
pub(crate) struct Job<T> {
    pub(crate) what: T,
    pub(crate) lane: Lane,
    /// How often it was tried again.
    pub(crate) retries: u32,
}

#[derive(Debug)]
pub(crate) struct Lanes<T> {
    ready: VecDeque<Job<T>>,
    /// Lanes whose first message is ready, parked or being done, with those that come after it and how often each was
    /// retried.
    busy: HashMap<Arc<str>, VecDeque<(T, u32)>>,
    /// By due time; the number keeps those of the same time apart, and in order.
    parked: BTreeMap<(Instant, u64), Job<T>>,
    next_number: u64,
}

impl<T> Lanes<T> {
    pub(crate) fn new() -> Self {
        Self { ready: VecDeque::new(), busy: HashMap::new(), parked: BTreeMap::new(), next_number: 0 }
    }

    pub(crate) fn add(&mut self, what: T, lane: Lane, retries: u32) {
        if let Some(name) = &lane {
            if let Some(behind) = self.busy.get_mut(name) {
                behind.push_back((what, retries));
                return;
            }
            self.busy.insert(Arc::clone(name), VecDeque::new());
        }
        self.ready.push_back(Job { what, lane, retries });
    }

    /// The next that can be done. Its lane waits until it is [finished](Self::finished) or parked and done again.
    pub(crate) fn next(&mut self) -> Option<Job<T>> {
        self.ready.pop_front()
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The first of a lane is done with: the next one is ready, behind those of other lanes.
    pub(crate) fn finished(&mut self, lane: Lane) {
        let Some(name) = lane else { return };
        let Some(behind) = self.busy.get_mut(&name) else { return };
        match behind.pop_front() {
            Some((what, retries)) => self.ready.push_back(Job { what, lane: Some(name), retries }),
            None => {
                self.busy.remove(&name);
            }
        }
    }

    /// Keeps a job until `due`.
    pub(crate) fn park(&mut self, job: Job<T>, due: Instant) {
        self.next_number += 1;
        self.parked.insert((due, self.next_number), job);
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.parked.first_key_value().map(|((due, _), _)| *due)
    }

    /// Makes ready what is due.
    pub(crate) fn wake(&mut self, now: Instant) {
        while let Some(first) = self.parked.first_entry()
            && first.key().0 <= now
        {
            // In front: it has waited the longest.
            self.ready.push_front(first.remove());
        }
    }

    /// Everything that is here, by lane in order.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        let mut all: Vec<T> = std::mem::take(&mut self.parked).into_values().map(|job| job.what).collect();
        all.extend(self.ready.drain(..).map(|job| job.what));
        all.extend(self.busy.drain().flat_map(|(_, behind)| behind).map(|(what, _)| what));
        all
    }

    /// Takes out what `taken` says. Lanes whose first message is being done stay busy; others go on with what is left.
    pub(crate) fn remove(&mut self, taken: impl Fn(&T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        for behind in self.busy.values_mut() {
            removed.extend(extract(behind, |(what, _)| taken(what)).map(|(what, _)| what));
        }
        let mut freed: Vec<Job<T>> = extract(&mut self.ready, |job| taken(&job.what)).collect();
        freed.extend(self.parked.extract_if(.., |_, job| taken(&job.what)).map(|(_, job)| job));
        for job in freed {
            removed.push(job.what);
            self.finished(job.lane);
        }
        removed
    }
}

/// Takes out of a queue what `taken` says; the others stay in their order.
fn extract<T>(queue: &mut VecDeque<T>, taken: impl Fn(&T) -> bool) -> impl Iterator<Item = T> {
    let (out, stay): (VecDeque<T>, VecDeque<T>) = std::mem::take(queue).into_iter().partition(taken);
    *queue = stay;
    out.into_iter()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn lane(name: &str) -> Lane {
        Some(name.into())
    }

    impl<T> Lanes<T> {
        /// How many are here, whatever they wait for.
        fn len(&self) -> usize {
            self.ready.len() + self.parked.len() + self.busy.values().map(VecDeque::len).sum::<usize>()
        }
    }

    #[test]
    fn a_lane_runs_one_message_at_a_time_and_lanes_take_turns() {
        let mut lanes = Lanes::new();
        for (what, name) in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b")] {
            lanes.add(what, lane(name), 0);
        }
        let (a, b) = (lanes.next().unwrap(), lanes.next().unwrap());
        assert_eq!((a.what, b.what), ("a1", "b1"));
        assert!(lanes.next().is_none());
        lanes.finished(a.lane);
        assert_eq!(lanes.next().unwrap().what, "a2");
        lanes.finished(b.lane);
        assert_eq!((lanes.next().unwrap().what, lanes.len()), ("b2", 1));
    }

    #[test]
    fn a_parked_lane_keeps_its_order_while_other_lanes_run() {
        let (mut lanes, now) = (Lanes::new(), Instant::now());
        for (what, name) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
            lanes.add(what, lane(name), 0);
        }
        let failed = lanes.next().unwrap();
        lanes.park(Job { retries: 1, ..failed }, now + Duration::from_secs(1));
        lanes.add("a3", lane("a"), 0);
        let other = lanes.next().unwrap();
        assert_eq!(other.what, "b1");
        lanes.finished(other.lane);
        assert!(lanes.next().is_none(), "a2 and a3 follow a1");
        lanes.wake(now);
        assert!(lanes.next().is_none(), "not yet due");
        lanes.wake(lanes.next_due().unwrap());
        let again = lanes.next().unwrap();
        assert_eq!((again.what, again.retries), ("a1", 1));
        lanes.finished(again.lane);
        let mut order = Vec::new();
        while let Some(job) = lanes.next() {
            order.push(job.what);
            lanes.finished(job.lane);
        }
        assert_eq!(order, ["a2", "a3"]);
        assert!(lanes.busy.is_empty() && lanes.len() == 0, "nothing is remembered of idle lanes");
    }

    #[test]
    fn messages_without_a_lane_run_concurrently() {
        let mut lanes = Lanes::new();
        lanes.add(1, None, 0);
        lanes.add(2, None, 0);
        let first = lanes.next().unwrap();
        lanes.park(first, Instant::now() + Duration::from_secs(9));
        assert_eq!(lanes.next().unwrap().what, 2);
        assert_eq!(lanes.drain(), [1]);
    }

    #[test]
    fn what_is_removed_makes_way_in_its_lane() {
        let (mut lanes, now) = (Lanes::new(), Instant::now());
        for (what, name) in [("x1", "a"), ("y1", "a"), ("x2", "b"), ("y2", "b"), ("x3", "c"), ("y3", "c"), ("x4", "d")]
        {
            lanes.add(what, lane(name), 0);
        }
        lanes.add("x5", None, 0);
        // One runs, one is parked, the others are ready.
        let (running, parked) = (lanes.next().unwrap(), lanes.next().unwrap());
        lanes.park(Job { retries: 1, ..parked }, now);
        let mut removed = lanes.remove(|what| what.starts_with('x'));
        removed.sort_unstable();
        assert_eq!((removed.as_slice(), lanes.len()), (&["x2", "x3", "x4", "x5"][..], 3));
        assert!(lanes.next_due().is_none());
        let (c, b) = (lanes.next().unwrap(), lanes.next().unwrap());
        assert_eq!((b.what, c.what), ("y2", "y3"));
        assert!(lanes.next().is_none(), "y1 follows x1, which runs");
        for lane in [running.lane, b.lane, c.lane] {
            lanes.finished(lane);
        }
        let last = lanes.next().unwrap();
        assert_eq!(last.what, "y1");
        lanes.finished(last.lane);
        assert!(lanes.busy.is_empty() && lanes.len() == 0);
    }
}
