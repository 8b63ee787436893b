//! A sink that does what a test says.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use anyhow::{Result, ensure};
use async_trait::async_trait;
use relais_message::{Durability, Message, PublishOutcome, RoutedMessage, Sink, in_waves};
use tokio::sync::Notify;

use super::{DEADLINE, field, is_of, number};

type Refuse = Box<dyn Fn(&RoutedMessage) -> bool + Send + Sync>;

#[derive(Default)]
pub struct TestSink {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    arrived: Vec<RoutedMessage>,
    refuse: Option<Refuse>,
    /// What it does not survive.
    dies: Option<Refuse>,
    away: bool,
    /// The chance that a message fails, and what the next one is decided by.
    chance: f64,
    seed: u64,
    calls: usize,
    failures: usize,
    largest_batch: usize,
}

impl TestSink {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses such messages from now on.
    pub fn refuse(&self, which: impl Fn(&RoutedMessage) -> bool + Send + Sync + 'static) {
        self.state().refuse = Some(Box::new(which));
    }

    /// Refuses the next message of this kind, once.
    pub fn refuse_once(&self, which: impl Fn(&RoutedMessage) -> bool + Send + Sync + 'static) {
        let done = AtomicBool::new(false);
        self.refuse(move |outgoing| which(outgoing) && !done.swap(true, Ordering::Relaxed));
    }

    /// Answers nothing at all of a batch with such a message.
    pub fn die_of(&self, which: impl Fn(&RoutedMessage) -> bool + Send + Sync + 'static) {
        self.state().dies = Some(Box::new(which));
    }

    /// Answers nothing from now on, or again.
    pub fn away(&self, away: bool) {
        self.state().away = away;
    }

    /// Fails by chance: some messages are refused, some arrive and are not confirmed.
    pub fn chance_of_failure(&self, chance: f64) {
        self.state().chance = chance;
    }

    /// All that arrived, in the order of arrival.
    pub fn arrived(&self) -> Vec<RoutedMessage> {
        self.state().arrived.clone()
    }

    /// How many different messages arrived.
    pub fn distinct(&self) -> usize {
        let state = self.state();
        state.arrived.iter().map(|outgoing| outgoing.message.id.as_str()).collect::<HashSet<_>>().len()
    }

    /// How often it was called.
    pub fn calls(&self) -> usize {
        self.state().calls
    }

    pub fn failures(&self) -> usize {
        self.state().failures
    }

    /// The bytes of the largest batch.
    pub fn largest_batch(&self) -> usize {
        self.state().largest_batch
    }

    /// Waits until so many different messages arrived.
    pub async fn until(&self, count: usize) -> Result<Vec<RoutedMessage>> {
        self.wait(&format!("{count} messages arrive"), || self.distinct() >= count).await?;
        Ok(self.arrived())
    }

    /// Waits until this message of a key arrived.
    pub async fn until_arrived(&self, key: &str, number: usize) -> Result<()> {
        let is_it = |outgoing: &RoutedMessage| is_of(outgoing, key) && super::number(outgoing) == number;
        self.wait(&format!("message {number} of {key} arrives"), || self.state().arrived.iter().any(is_it)).await
    }

    /// Waits until it was called so many times.
    pub async fn until_calls(&self, count: usize) -> Result<()> {
        self.wait(&format!("{count} calls"), || self.state().calls >= count).await
    }

    async fn wait(&self, what: &str, done: impl Fn() -> bool) -> Result<()> {
        let begun = Instant::now();
        loop {
            let changed = self.changed.notified();
            if done() {
                return Ok(());
            }
            let left = DEADLINE.saturating_sub(begun.elapsed());
            let waited = tokio::time::timeout(left, changed).await;
            ensure!(waited.is_ok(), "{what} in time; there are {}", self.distinct());
        }
    }

    /// Whether all of these arrived.
    pub fn has_all(&self, ids: &HashSet<String>) -> bool {
        let state = self.state();
        let arrived: HashSet<&str> = state.arrived.iter().map(|outgoing| outgoing.message.id.as_str()).collect();
        ids.iter().all(|id| arrived.contains(id.as_str()))
    }

    /// How many first arrivals came after a later one of their key.
    pub fn out_of_order(&self) -> usize {
        let (mut last, mut seen, mut wrong) = (HashMap::<String, usize>::new(), HashSet::new(), 0);
        for outgoing in self.arrived() {
            if seen.insert(outgoing.message.id.clone()) {
                let (key, number) = (field(&outgoing, "key"), number(&outgoing));
                let before = last.entry(key).or_insert(number);
                wrong += usize::from(*before > number);
                *before = number.max(*before);
            }
        }
        wrong
    }

    /// Checks that the first arrivals of each key are in order.
    pub fn check_order(&self) -> Result<()> {
        let (mut last, mut seen) = (HashMap::<String, usize>::new(), HashSet::new());
        for outgoing in self.arrived() {
            if seen.insert(outgoing.message.id.clone()) {
                let (key, number) = (field(&outgoing, "key"), number(&outgoing));
                let before = last.insert(key.clone(), number);
                ensure!(before.is_none_or(|before| before < number), "{key}: {number} arrived after {before:?}");
            }
        }
        Ok(())
    }

    fn take(&self, outgoing: RoutedMessage) -> PublishOutcome {
        let mut state = self.state();
        if state.away {
            return PublishOutcome::Unknown("the sink of the test is away".to_owned());
        }
        if state.refuse.as_ref().is_some_and(|refuse| refuse(&outgoing)) {
            return PublishOutcome::Refused("refused by the test".to_owned());
        }
        state.seed = state.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let chance = (state.seed >> 33) as f64 / (1_u64 << 31) as f64;
        if chance < state.chance {
            state.failures += 1;
            // Half of them have arrived all the same.
            if state.seed & (1 << 40) != 0 {
                state.arrived.push(outgoing);
                return PublishOutcome::Unknown("the confirmation was lost".to_owned());
            }
            return PublishOutcome::Refused("refused by chance".to_owned());
        }
        state.arrived.push(outgoing);
        PublishOutcome::Confirmed
    }
}

#[async_trait]
impl Sink for TestSink {
    fn durability(&self) -> Durability {
        Durability::HandedOver
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        {
            let mut state = self.state();
            state.calls += 1;
            let bytes = batch.iter().map(|outgoing: &RoutedMessage| Message::size(&outgoing.message)).sum();
            state.largest_batch = state.largest_batch.max(bytes);
        }
        if let Some(dies) = &self.state().dies
            && batch.iter().any(dies)
        {
            return vec![PublishOutcome::Unknown("the sink died of it".to_owned()); batch.len()];
        }
        let outcomes = in_waves(batch, DEADLINE, |wave| async {
            // Others get their turn, so that a kill finds something half done.
            tokio::task::yield_now().await;
            wave.into_iter().map(|outgoing| self.take(outgoing)).collect()
        });
        let outcomes = outcomes.await;
        self.changed.notify_waiters();
        outcomes
    }

    async fn close(&self) {}
}
