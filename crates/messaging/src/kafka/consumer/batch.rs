//! Batches by hand: a handler gets records of one partition together, and says of each when it is done.

use std::{
    collections::{HashSet, VecDeque},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{KafkaConsumer, KafkaDelivery, KafkaEvent, Partitions};
use crate::kafka::{KafkaRecord, client::lock};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The pauses before a batch that failed comes again.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Records of one partition, in their order.
#[derive(Debug)]
pub struct KafkaBatch<'a> {
    consumer: &'a KafkaConsumer,
    deliveries: Vec<KafkaDelivery>,
    resolved: Mutex<HashSet<i64>>,
    stale: AtomicBool,
}

/// The partition of a batch was taken away: its next owner repeats what was not resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the partition of the batch was taken away")]
pub struct StaleBatch;

impl KafkaBatch<'_> {
    /// The records, in their order.
    pub fn records(&self) -> impl Iterator<Item = &Arc<KafkaRecord>> {
        self.deliveries.iter().map(KafkaDelivery::record)
    }

    /// This record is done: it may be committed, with all that are done in front of it.
    pub fn resolve(&self, record: &KafkaRecord) {
        let delivery = self.deliveries.iter().find(|delivery| delivery.record().offset == record.offset);
        if let Some(delivery) = delivery.filter(|_| lock(&self.resolved).insert(record.offset)) {
            self.consumer.settle(delivery, true);
        }
    }

    /// Says whether it is of use to go on. The member stays alive without it: for a long batch, ask between records.
    ///
    /// # Errors
    ///
    /// If the partition was taken away.
    pub async fn heartbeat(&self) -> Result<(), StaleBatch> {
        tokio::task::yield_now().await;
        if self.stale.load(Ordering::Acquire) { Err(StaleBatch) } else { Ok(()) }
    }
}

impl KafkaConsumer {
    /// Handles records in batches of one partition, at most `max` each, one batch after the other, until the consumer is
    /// [told to stop](Self::stop_receiving). What a handler has not resolved is resolved when it succeeds, and comes again when it
    /// fails, after 1 s, 2 s and so on, at most 30 s: a record that can never be handled is for the handler to make a
    /// [dead letter](Self::dead_letter).
    pub async fn each_batch(&self, max: usize, mut handle: impl AsyncFnMut(&KafkaBatch<'_>) -> Result<(), BoxError>) {
        let mut waiting = VecDeque::new();
        let mut pause = PAUSES.0;
        loop {
            if waiting.is_empty() {
                if !self.receive_event(&mut waiting, None).await {
                    return;
                }
                continue;
            }
            let batch = KafkaBatch {
                consumer: self,
                deliveries: take_batch(&mut waiting, max.max(1)),
                resolved: Mutex::default(),
                stale: AtomicBool::new(false),
            };
            batch.deliveries.iter().for_each(|delivery| self.leave_queue(delivery));
            let (result, open) = self.handle_batch(&batch, &mut waiting, &mut handle).await;
            let failed = result.err();
            if failed.is_none() {
                batch.records().for_each(|record| batch.resolve(record));
            }
            let (resolved, stale) = (lock(&batch.resolved).clone(), batch.stale.load(Ordering::Acquire));
            // Whoever takes over waits for that.
            for done in open {
                // It may have lost patience.
                let _ = done.send(());
            }
            let Some(error) = failed else {
                pause = PAUSES.0;
                continue;
            };
            let left = batch.deliveries.into_iter().filter(|left| !stale && !resolved.contains(&left.record().offset));
            let left: Vec<_> = left.collect();
            let (group, count) = (&*self.options().group, left.len());
            tracing::warn!(group, %error, count, "a batch failed; what is left of it comes again");
            for delivery in left.into_iter().rev() {
                lock(&self.shared.state).waits(&delivery.record.topic);
                waiting.push_front(delivery);
            }
            self.pause(pause, &mut waiting).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Runs the handler and hears what happens meanwhile. Also, who waits for the end of this batch.
    async fn handle_batch(
        &self,
        batch: &KafkaBatch<'_>,
        waiting: &mut VecDeque<KafkaDelivery>,
        handle: &mut impl AsyncFnMut(&KafkaBatch<'_>) -> Result<(), BoxError>,
    ) -> (Result<(), BoxError>, Vec<tokio::sync::oneshot::Sender<()>>) {
        let mut open = Vec::new();
        let mut closed = false;
        let mut handling = pin!(handle(batch));
        loop {
            tokio::select! {
                result = &mut handling => return (result, open),
                event = self.receive(waiting), if !closed => match event {
                    KafkaEvent::Records => {}
                    KafkaEvent::Revoked(partitions, done) => {
                        self.forget(waiting, &partitions);
                        if batch.deliveries.iter().any(|delivery| partitions.cover(delivery)) {
                            batch.stale.store(true, Ordering::Release);
                            open.push(done);
                        } else {
                            let _ = done.send(());
                        }
                    }
                    KafkaEvent::Lost(partitions) => {
                        self.forget(waiting, &partitions);
                        if batch.deliveries.iter().any(|delivery| partitions.cover(delivery)) {
                            batch.stale.store(true, Ordering::Release);
                        }
                    }
                    KafkaEvent::Closed => closed = true,
                },
            }
        }
    }

    /// The next event while no batch is handled. False at the end.
    async fn receive_event(&self, waiting: &mut VecDeque<KafkaDelivery>, limit: Option<Duration>) -> bool {
        let receive = self.receive(waiting);
        let event = match limit {
            None => receive.await,
            Some(limit) => match tokio::time::timeout(limit, receive).await {
                Ok(event) => event,
                Err(_) => return true,
            },
        };
        match event {
            KafkaEvent::Records => {}
            KafkaEvent::Revoked(partitions, done) => {
                self.forget(waiting, &partitions);
                let _ = done.send(());
            }
            KafkaEvent::Lost(partitions) => self.forget(waiting, &partitions),
            KafkaEvent::Closed => return false,
        }
        true
    }

    async fn pause(&self, pause: Duration, waiting: &mut VecDeque<KafkaDelivery>) {
        let end = tokio::time::Instant::now() + pause;
        while tokio::time::Instant::now() < end {
            let left = end.saturating_duration_since(tokio::time::Instant::now());
            if !self.receive_event(waiting, Some(left)).await {
                return;
            }
        }
    }

    fn forget(&self, waiting: &mut VecDeque<KafkaDelivery>, partitions: &Partitions) {
        waiting.retain(|delivery| {
            let forgotten = partitions.cover(delivery);
            if forgotten {
                self.leave_queue(delivery);
            }
            !forgotten
        });
    }
}

/// The first records that are of the same partition as the first one.
fn take_batch(waiting: &mut VecDeque<KafkaDelivery>, max: usize) -> Vec<KafkaDelivery> {
    let Some(assignment) = waiting.front().map(|first| first.assignment) else { return Vec::new() };
    let (mut batch, mut others) = (Vec::new(), VecDeque::with_capacity(waiting.len()));
    for delivery in waiting.drain(..) {
        if delivery.assignment == assignment && batch.len() < max {
            batch.push(delivery);
        } else {
            others.push_back(delivery);
        }
    }
    *waiting = others;
    batch
}
