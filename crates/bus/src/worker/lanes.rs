//! What a worker has taken and not yet done, in the order in which it may be done.
//!
//! Events of the same key are in one lane, and only the first of a lane is ever ready. One that failed is parked until
//! its next try, and its lane waits with it, while other lanes go on. Knows no clock: it is told what time it is.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use tokio::time::Instant;

/// The name of a lane; events without one have no order.
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
    /// Lanes whose first event is ready, parked or being done, with those that come after it.
    busy: HashMap<Arc<str>, VecDeque<T>>,
    /// By due time; the number keeps those of the same time apart, and in order.
    parked: BTreeMap<(Instant, u64), Job<T>>,
    next_number: u64,
    len: usize,
}

impl<T> Lanes<T> {
    pub(crate) fn new() -> Self {
        Self { ready: VecDeque::new(), busy: HashMap::new(), parked: BTreeMap::new(), next_number: 0, len: 0 }
    }

    /// How many are here, whatever they wait for.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn add(&mut self, what: T, lane: Lane) {
        self.len += 1;
        if let Some(name) = &lane {
            if let Some(behind) = self.busy.get_mut(name) {
                behind.push_back(what);
                return;
            }
            self.busy.insert(Arc::clone(name), VecDeque::new());
        }
        self.ready.push_back(Job { what, lane, retries: 0 });
    }

    /// The next that can be done. Its lane waits until it is [finished](Self::finished) or parked and done again.
    pub(crate) fn next(&mut self) -> Option<Job<T>> {
        let job = self.ready.pop_front()?;
        self.len -= 1;
        Some(job)
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The first of a lane is done with: the next one is ready, behind those of other lanes.
    pub(crate) fn finished(&mut self, lane: Lane) {
        let Some(name) = lane else { return };
        let Some(behind) = self.busy.get_mut(&name) else { return };
        match behind.pop_front() {
            Some(what) => self.ready.push_back(Job { what, lane: Some(name), retries: 0 }),
            None => {
                self.busy.remove(&name);
            }
        }
    }

    /// Keeps a job until `due`.
    pub(crate) fn park(&mut self, job: Job<T>, due: Instant) {
        self.len += 1;
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
        all.extend(self.busy.drain().flat_map(|(_, behind)| behind));
        self.len = 0;
        all
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn lane(name: &str) -> Lane {
        Some(name.into())
    }

    #[test]
    fn a_lane_runs_one_event_at_a_time_and_lanes_take_turns() {
        let mut lanes = Lanes::new();
        for (what, name) in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b")] {
            lanes.add(what, lane(name));
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
            lanes.add(what, lane(name));
        }
        let failed = lanes.next().unwrap();
        lanes.park(Job { retries: 1, ..failed }, now + Duration::from_secs(1));
        lanes.add("a3", lane("a"));
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
    fn events_without_a_lane_run_concurrently() {
        let mut lanes = Lanes::new();
        lanes.add(1, None);
        lanes.add(2, None);
        let first = lanes.next().unwrap();
        lanes.park(first, Instant::now() + Duration::from_secs(9));
        assert_eq!(lanes.next().unwrap().what, 2);
        assert_eq!(lanes.drain(), [1]);
    }
}
