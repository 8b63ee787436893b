//! A sink that remembers what arrived, for tests of what publishes.
//!
//! Does not fail message by message: tests of retries bring a sink of their own.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use relais_message::{Durability, PublishOutcome, RoutedMessage, Sink};
use tokio::{sync::Notify, time::timeout};

/// For whatever should happen soon, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Remembers what arrived.
#[derive(Default)]
pub struct MemorySink {
    arrived: Mutex<Vec<RoutedMessage>>,
    away: Mutex<bool>,
    changed: Notify,
}

impl MemorySink {
    /// What arrived, in its order.
    pub fn arrived(&self) -> MutexGuard<'_, Vec<RoutedMessage>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// While it is away it takes nothing.
    pub fn away(&self, away: bool) {
        *self.away.lock().unwrap_or_else(PoisonError::into_inner) = away;
    }

    /// Waits until what arrived is as wanted.
    pub async fn until(&self, what: &str, done: impl Fn(&[RoutedMessage]) -> bool) -> Result<()> {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                if done(&self.arrived()) {
                    return;
                }
                changed.await;
            }
        };
        timeout(DEADLINE, waiting).await.with_context(|| format!("{what}: {} arrived", self.arrived().len()))
    }
}

#[async_trait]
impl Sink for MemorySink {
    fn durability(&self) -> Durability {
        Durability::HandedOver
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        let away = *self.away.lock().unwrap_or_else(PoisonError::into_inner);
        let outcomes = batch.iter().map(|_| match away {
            true => PublishOutcome::Unknown("away".to_owned()),
            false => PublishOutcome::Confirmed,
        });
        let outcomes = outcomes.collect();
        if !away {
            self.arrived().extend(batch);
        }
        self.changed.notify_waiters();
        outcomes
    }

    async fn close(&self) {}
}
