//! What a consumer knows of its partitions. Knows no client: it says what is to be done, and others do it.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{KafkaConsumerOptions, KafkaDelivery};
use crate::{
    kafka::KafkaRecord,
    offsets::{EntryId, Flow, FlowChange, Parked, ParkedKeys, Watermark},
};

/// A partition of a topic.
pub(super) type Place = (Arc<str>, i32);

/// What orders records of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    Key(Bytes),
    /// Nothing does: the record at this offset is for itself.
    Alone(i64),
}

/// A partition that is ours.
#[derive(Debug)]
pub(super) struct Assigned {
    pub(super) assignment: u64,
    pub(super) watermark: Watermark,
    pub(super) flow: Flow,
    pub(super) parked: ParkedKeys<Lane>,
    /// Received, not settled, and not parked: what has to be parked when its key fails.
    pub(super) in_flight: BTreeMap<i64, Arc<KafkaRecord>>,
    /// Parked records that an earlier owner has left, and where they are kept.
    pub(super) inherited: HashMap<i64, Vec<EntryId>>,
    /// The last offset that was sent to be committed.
    pub(super) requested: Option<i64>,
    /// The last one that is known to be committed.
    pub(super) committed: Option<i64>,
    /// Behind the last record that can be read, by the statistics.
    pub(super) end: Option<i64>,
}

/// Something to be written to the topic of parked records.
#[derive(Debug)]
pub(super) enum ParkingOrder {
    Keep { place: Place, id: EntryId, record: Arc<KafkaRecord> },
    Remove { place: Place, id: EntryId },
}

/// What `receive` gives out.
pub(super) enum Item {
    Delivery(KafkaDelivery),
    Revoked(HashSet<u64>, oneshot::Sender<()>),
    Lost(HashSet<u64>),
    Closed,
}

/// What is to be done after a change.
#[derive(Debug, Default)]
pub(super) struct Todo {
    pub(super) flow: Vec<(Place, FlowChange)>,
    pub(super) parking: Vec<ParkingOrder>,
    /// Records that are done and not committed.
    pub(super) done: usize,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) partitions: HashMap<Place, Assigned>,
    /// What was received and is not yet given out.
    pub(super) queue: VecDeque<Item>,
    /// How many deliveries of a topic wait: here and in the worker.
    pub(super) waiting: HashMap<Arc<str>, usize>,
    pub(super) stopping: bool,
    pub(super) closed: bool,
    /// Records that are done since the last commit.
    pub(super) uncommitted: usize,
    topics: HashMap<String, Arc<str>>,
}

impl State {
    /// One name for all records of a topic.
    pub(super) fn topic(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.topics.get(name) {
            return Arc::clone(known);
        }
        let topic: Arc<str> = name.into();
        self.topics.insert(name.to_owned(), Arc::clone(&topic));
        topic
    }

    /// A partition is ours from now on, from this offset on where that is known. `held`: until its parked records are loaded.
    pub(super) fn assign(&mut self, place: Place, assignment: u64, start: Option<i64>, committed: bool, held: bool) {
        let committed = start.filter(|_| committed);
        let assigned = Assigned {
            assignment,
            watermark: start.map(Watermark::from).unwrap_or_default(),
            flow: if held { Flow::held() } else { Flow::default() },
            parked: ParkedKeys::default(),
            in_flight: BTreeMap::new(),
            inherited: HashMap::new(),
            requested: committed,
            committed,
            end: None,
        };
        self.partitions.insert(place, assigned);
    }

    /// A record was read.
    pub(super) fn deliver(&mut self, record: KafkaRecord, options: &KafkaConsumerOptions) -> Todo {
        let mut todo = Todo::default();
        let place = (Arc::clone(&record.topic), record.partition);
        let Some(assigned) = self.partitions.get_mut(&place) else { return todo };
        // What is not delivered any more is not committed, and comes again.
        if self.stopping || !assigned.watermark.deliver(record.offset) {
            return todo;
        }
        let (record, assignment) = (Arc::new(record), assigned.assignment);
        if assigned.parked.contains(&lane(&record, options)) {
            assigned.park(&place, &record, options, &mut todo);
        } else {
            assigned.in_flight.insert(record.offset, Arc::clone(&record));
        }
        if let Some(change) = assigned.flow.look(&assigned.watermark, options.limits()) {
            todo.flow.push((place, change));
        }
        self.waits(&record.topic);
        self.queue.push_back(Item::Delivery(KafkaDelivery { record, assignment, retries: 0 }));
        todo
    }

    /// The parked records of a partition were read: they come before all others of it.
    pub(super) fn load(
        &mut self,
        place: &Place,
        assignment: u64,
        loaded: Vec<(KafkaRecord, Vec<(EntryId, i64)>)>,
        end: i64,
        options: &KafkaConsumerOptions,
    ) -> Todo {
        let mut todo = Todo::default();
        let Some(assigned) = self.partitions.get_mut(place).filter(|found| found.assignment == assignment) else {
            return todo;
        };
        assigned.parked.read_to(end);
        for (record, entries) in loaded {
            let lane = lane(&record, options);
            for (id, kept) in &entries {
                assigned.parked.insert(*id, lane.clone(), Parked::Kept(*kept));
            }
            assigned.inherited.insert(record.offset, entries.into_iter().map(|(id, _)| id).collect());
            let retries = record.retry_count;
            *self.waiting.entry(Arc::clone(&place.0)).or_default() += 1;
            let delivery = KafkaDelivery { record: Arc::new(record), assignment, retries };
            self.queue.push_back(Item::Delivery(delivery));
        }
        if let Some(change) = assigned.flow.release() {
            todo.flow.push((place.clone(), change));
        }
        todo
    }

    /// A record failed and is retried: from now on its key is parked.
    pub(super) fn park(&mut self, record: &Arc<KafkaRecord>, assignment: u64, options: &KafkaConsumerOptions) -> Todo {
        let mut todo = Todo::default();
        let place = (Arc::clone(&record.topic), record.partition);
        let Some(assigned) = self.partitions.get_mut(&place).filter(|found| found.assignment == assignment) else {
            return todo;
        };
        let id = EntryId { offset: record.offset, assignment };
        if assigned.parked.has(id) || assigned.inherited.contains_key(&record.offset) {
            return todo;
        }
        assigned.in_flight.remove(&record.offset);
        assigned.park(&place, record, options, &mut todo);
        // Those behind it too, which wait for it.
        let failed = lane(record, options);
        let behind: Vec<_> =
            assigned.in_flight.range(record.offset + 1..).map(|(_, record)| Arc::clone(record)).collect();
        for record in behind.iter().filter(|record| lane(record, options) == failed) {
            assigned.in_flight.remove(&record.offset);
            assigned.park(&place, record, options, &mut todo);
        }
        todo
    }

    /// A record is kept in the topic of parked records.
    pub(super) fn kept(&mut self, place: &Place, id: EntryId, kept: i64, options: &KafkaConsumerOptions) -> Todo {
        let mut todo = Todo::default();
        let Some(assigned) = self.partitions.get_mut(place).filter(|found| found.assignment == id.assignment) else {
            return todo;
        };
        assigned.parked.kept(id, kept);
        assigned.done(place, id.offset, options, &mut todo);
        self.uncommitted += todo.done;
        todo
    }

    /// A delivery was settled.
    pub(super) fn settle(
        &mut self,
        record: &KafkaRecord,
        assignment: u64,
        done: bool,
        options: &KafkaConsumerOptions,
    ) -> Todo {
        let mut todo = Todo::default();
        let place = (Arc::clone(&record.topic), record.partition);
        let Some(assigned) = self.partitions.get_mut(&place).filter(|found| found.assignment == assignment) else {
            return todo;
        };
        assigned.in_flight.remove(&record.offset);
        if done {
            let own = EntryId { offset: record.offset, assignment };
            let inherited = assigned.inherited.remove(&record.offset).unwrap_or_default();
            for id in inherited.into_iter().chain([own]) {
                if assigned.parked.remove(id) {
                    todo.parking.push(ParkingOrder::Remove { place: place.clone(), id });
                }
            }
            assigned.done(&place, record.offset, options, &mut todo);
            self.uncommitted += todo.done;
        }
        todo
    }

    /// Partitions are not ours any more. What waits of them here is taken out.
    pub(super) fn remove<'a>(&mut self, places: impl Iterator<Item = &'a Place>) -> HashSet<u64> {
        places.filter_map(|place| self.partitions.remove(place)).map(|assigned| assigned.assignment).collect()
    }

    /// Takes out what is not yet given out of these.
    pub(super) fn drop_waiting(&mut self, assignments: &HashSet<u64>) {
        let (waiting, queue) = (&mut self.waiting, &mut self.queue);
        queue.retain(|item| match item {
            Item::Delivery(delivery) if assignments.contains(&delivery.assignment) => {
                leave(waiting, &delivery.record.topic);
                false
            }
            _ => true,
        });
    }

    /// A delivery waits for its handler.
    pub(super) fn waits(&mut self, topic: &Arc<str>) {
        *self.waiting.entry(Arc::clone(topic)).or_default() += 1;
    }

    /// A delivery waits no longer.
    pub(super) fn waits_no_longer(&mut self, topic: &Arc<str>) {
        leave(&mut self.waiting, topic);
    }

    /// Which offsets are to be committed, of these places or of all: those that have moved.
    pub(super) fn commits<'a>(&'a mut self, only: Option<&'a [Place]>) -> Vec<(Place, i64, Option<i64>)> {
        let mut commits = Vec::new();
        for (place, assigned) in &mut self.partitions {
            if only.is_some_and(|only| !only.contains(place)) {
                continue;
            }
            let Some(next) = assigned.watermark.committable() else { continue };
            if assigned.requested != Some(next) {
                assigned.requested = Some(next);
                commits.push((place.clone(), next, Some(assigned.parked.read_from()).filter(|from| *from > 0)));
            }
        }
        if only.is_none() {
            self.uncommitted = 0;
        }
        commits
    }
}

impl Assigned {
    /// How many offsets are between the watermark and the end, as far as that is known.
    pub(super) fn lag(&self) -> Option<i64> {
        let next = self.watermark.committable().or(self.committed)?;
        Some((self.end? - next).max(0))
    }

    fn park(&mut self, place: &Place, record: &Arc<KafkaRecord>, options: &KafkaConsumerOptions, todo: &mut Todo) {
        if self.parked.len() >= options.max_parked {
            // It stays in flight, and the watermark stays in front of it.
            self.in_flight.insert(record.offset, Arc::clone(record));
            return;
        }
        let id = EntryId { offset: record.offset, assignment: self.assignment };
        self.parked.insert(id, lane(record, options), Parked::Writing);
        todo.parking.push(ParkingOrder::Keep { place: place.clone(), id, record: Arc::clone(record) });
    }

    fn done(&mut self, place: &Place, offset: i64, options: &KafkaConsumerOptions, todo: &mut Todo) {
        self.watermark.done(offset);
        todo.done += 1;
        if let Some(change) = self.flow.look(&self.watermark, options.limits()) {
            todo.flow.push((place.clone(), change));
        }
    }
}

fn leave(waiting: &mut HashMap<Arc<str>, usize>, topic: &Arc<str>) {
    if let Some(count) = waiting.get_mut(topic) {
        *count = count.saturating_sub(1);
    }
}

/// What orders a record.
pub(super) fn lane(record: &KafkaRecord, options: &KafkaConsumerOptions) -> Lane {
    let key = match &options.key {
        Some(key) => key(record).map(Bytes::from),
        None => record.key.clone(),
    };
    key.map_or(Lane::Alone(record.offset), Lane::Key)
}
