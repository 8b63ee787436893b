//! What the parts of a consumer share: the bookkeeping, the client, and how changes of the one are carried out by the other.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, CommitMode, Consumer as _},
};
use tokio::sync::{Notify, mpsc, oneshot};

use super::{
    CommitPolicy, KafkaConsumerOptions,
    context::GroupContext,
    metrics::ConsumerMetrics,
    state::{Item, ParkingOrder, Place, State, Todo},
};
use crate::{
    kafka::client::{blocking, lock},
    offsets::FlowChange,
};

/// What the metadata of a committed offset begins with, where records are parked.
const PARKED_FROM: &str = "relais:parked-from=";

pub(super) type Client = BaseConsumer<GroupContext>;

pub(super) struct Shared {
    pub(super) options: KafkaConsumerOptions,
    pub(super) state: Mutex<State>,
    /// There is something to receive.
    pub(super) arrived: Notify,
    /// There while the consumer runs.
    pub(super) client: Mutex<Option<Arc<Client>>>,
    pub(super) parking: mpsc::UnboundedSender<ParkingOrder>,
    /// Parking orders that are not yet carried out.
    pub(super) parking_open: AtomicU64,
    /// It is to end.
    pub(super) closing: AtomicBool,
    /// What is wrong for now.
    pub(super) trouble: Mutex<Option<String>>,
    pub(super) metrics: ConsumerMetrics,
    pub(super) runtime: tokio::runtime::Handle,
    /// How many partitions topics had when this consumer first saw them.
    pub(super) partition_counts: Mutex<HashMap<String, usize>>,
    pub(super) last_commit: Mutex<Instant>,
    /// It is time to commit.
    pub(super) commit_due: Notify,
    /// Held while partitions are taken over, and by transactions.
    pub(super) assigning: tokio::sync::Mutex<()>,
    /// Held by whoever commits.
    pub(super) committing: Mutex<()>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn client(&self) -> Option<Arc<Client>> {
        lock(&self.client).clone()
    }

    /// Changes the bookkeeping, and does what follows. Pausing and resuming is done under the lock: two of them that cross
    /// each other would leave a partition paused.
    pub(super) fn change(&self, change: impl FnOnce(&mut State, &KafkaConsumerOptions) -> Todo) {
        let mut commit = false;
        {
            let mut state = lock(&self.state);
            let todo = change(&mut state, &self.options);
            if !todo.flow.is_empty()
                && let Some(client) = self.client()
            {
                apply_flow(&client, &todo.flow, state.stopping);
            }
            for order in todo.parking {
                self.parking_open.fetch_add(1, Ordering::AcqRel);
                // Whoever carries them out ends last.
                let _ = self.parking.send(order);
            }
            if todo.done > 0 {
                commit = match self.options.commit {
                    CommitPolicy::Each => true,
                    CommitPolicy::ByHand | CommitPolicy::ByTransaction => false,
                    CommitPolicy::Batched { records, .. } => state.uncommitted >= records,
                };
            }
        }
        if commit {
            self.commit_due.notify_one();
        }
        self.arrived.notify_one();
    }

    /// Commits the watermarks that have moved, and waits for the answer: of these partitions, or of all.
    pub(super) fn commit(&self, only: Option<&[Place]>) {
        if self.options.commit == CommitPolicy::ByTransaction {
            return;
        }
        // One after the other: an older commit that is late must not undo a newer one.
        let _turn = lock(&self.committing);
        let Some(client) = self.client() else { return };
        let commits = lock(&self.state).commits(only);
        *lock(&self.last_commit) = Instant::now();
        if commits.is_empty() {
            return;
        }
        let mut list = TopicPartitionList::new();
        for ((topic, partition), next, parked_from) in &commits {
            let mut element = list.add_partition(topic, *partition);
            // An offset that is not negative is one.
            let _ = element.set_offset(Offset::Offset(*next));
            if let Some(from) = parked_from {
                element.set_metadata(format!("{PARKED_FROM}{from}"));
            }
        }
        // A commit in the background would not say how it ended.
        let result = client.commit(&list, CommitMode::Sync);
        let mut state = lock(&self.state);
        for (place, next, _) in &commits {
            let Some(assigned) = state.partitions.get_mut(place) else { continue };
            match result {
                Ok(()) => assigned.committed = assigned.committed.max(Some(*next)),
                // It is tried again with the next one.
                Err(_) => assigned.requested = assigned.committed,
            }
        }
        drop(state);
        match result {
            Ok(()) => self.metrics.commits.increment(1),
            Err(error) => {
                self.metrics.commit_errors.increment(1);
                let group = &*self.options.group;
                tracing::warn!(group, %error, "offsets could not be committed; they are committed later");
            }
        }
    }

    /// Has it committed in time what is done.
    pub(super) fn commit_if_due(&self) {
        let after = match self.options.commit {
            CommitPolicy::ByHand | CommitPolicy::ByTransaction => return,
            CommitPolicy::Each => Duration::from_millis(100),
            CommitPolicy::Batched { after, .. } => after,
        };
        if lock(&self.last_commit).elapsed() >= after {
            self.commit_due.notify_one();
        }
    }

    /// Partitions are to be handed over: waits until nothing of them runs, up to the limit, and commits what is done.
    pub(super) fn hand_over(&self, places: &[Place]) {
        let (done, told) = oneshot::channel();
        let assignments = {
            let mut state = lock(&self.state);
            let assignments: HashSet<u64> =
                places.iter().filter_map(|place| state.partitions.get(place)).map(|found| found.assignment).collect();
            state.drop_waiting(&assignments);
            if !state.closed && !assignments.is_empty() {
                state.queue.push_back(Item::Revoked(assignments.clone(), done));
            }
            assignments
        };
        self.arrived.notify_one();
        if !self.closing.load(Ordering::Acquire) && !assignments.is_empty() {
            let deadline = Instant::now() + self.options.revoke_timeout;
            let (tell, wait) = std::sync::mpsc::channel();
            self.runtime.spawn(async move {
                // A worker that is gone has nothing running.
                let _ = told.await;
                let _ = tell.send(());
            });
            if wait.recv_timeout(self.options.revoke_timeout).is_err() {
                let group = &*self.options.group;
                tracing::warn!(
                    group,
                    "handlers still run while their partitions are handed over; the next owner repeats their records"
                );
            }
            // What is on its way to the parked records lets the watermark pass.
            while self.parking_open.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        self.commit(Some(places));
        lock(&self.state).remove(places.iter());
    }

    /// Waits for a transaction that is being committed, before partitions are taken over. That has a limit of its own.
    pub(super) fn begin_assigning(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        while !self.closing.load(Ordering::Acquire) {
            if let Ok(turn) = self.assigning.try_lock() {
                return Some(turn);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }

    /// Partitions are lost: others may have them already, and nothing of them may be committed.
    pub(super) fn lose(&self, places: &[Place]) {
        let group = &*self.options.group;
        tracing::warn!(group, ?places, "partitions were lost; their next owner repeats what was not committed");
        {
            let mut state = lock(&self.state);
            let assignments = state.remove(places.iter());
            state.drop_waiting(&assignments);
            if !assignments.is_empty() {
                state.queue.push_back(Item::Lost(assignments));
            }
        }
        self.arrived.notify_one();
    }

    /// Says what is wrong, once, or that it is over.
    pub(super) fn trouble(&self, trouble: Option<String>) {
        let mut current = lock(&self.trouble);
        if *current == trouble {
            return;
        }
        let group = &*self.options.group;
        match &trouble {
            Some(trouble) => tracing::warn!(group, trouble, "the Kafka consumer can not go on for now"),
            None => tracing::info!(group, "the Kafka consumer goes on"),
        }
        *current = trouble;
    }

    /// There will never be more.
    pub(super) fn close(&self) {
        {
            let mut state = lock(&self.state);
            if !state.closed {
                state.closed = true;
                state.queue.push_back(Item::Closed);
            }
        }
        self.arrived.notify_one();
    }
}

/// Commits whenever it is time, until the consumer is gone.
pub(super) async fn commit_in_time(shared: Weak<Shared>) {
    loop {
        let Some(consumer) = shared.upgrade() else { return };
        if consumer.closing.load(Ordering::Acquire) {
            return;
        }
        // The thread that polls tells it every now and then.
        consumer.commit_due.notified().await;
        let committed = blocking(move || {
            consumer.commit(None);
            Ok(())
        });
        // What fails is logged, and committed later.
        let _ = committed.await;
    }
}

/// From where parked records are read, by the metadata of a committed offset.
pub(super) fn parked_from(metadata: &str) -> Option<i64> {
    metadata.strip_prefix(PARKED_FROM)?.parse().ok()
}

fn apply_flow(client: &Client, changes: &[(Place, FlowChange)], stopping: bool) {
    for ((topic, partition), change) in changes {
        let mut list = TopicPartitionList::new();
        list.add_partition(topic, *partition);
        let applied = match change {
            FlowChange::Pause => client.pause(&list),
            FlowChange::Resume if stopping => Ok(()),
            FlowChange::Resume => client.resume(&list),
        };
        if let Err(error) = applied {
            // It was taken away meanwhile.
            tracing::debug!(%topic, partition, %error, "a partition was neither paused nor resumed");
        }
    }
}
