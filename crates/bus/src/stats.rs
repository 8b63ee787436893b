//! What can be asked of a running bus: counts, channels, subscriptions, health.

use std::{
    sync::{PoisonError, atomic::Ordering},
    time::Instant,
};

use serde::Serialize;

use crate::{
    Bus, ChannelStats, SubscriptionStats,
    channels::rfc3339,
    hub::{RUNNING, STOPPING},
};

/// Whether a bus runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BusState {
    /// It takes events.
    Running,
    /// It takes no more and finishes what it has.
    Stopping,
    /// It was not started, or is stopped.
    Stopped,
}

/// The bus as a whole.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct BusStats {
    /// Whether it runs.
    pub state: BusState,
    /// What carries its events.
    pub transport: &'static str,
    /// Since it was started.
    pub uptime_ms: u64,
    /// Events published by this instance.
    pub published: u64,
    /// Times that an event was put into a subscriber's queue.
    pub delivered: u64,
    /// Times that a handler or worker failed on an event.
    pub failed: u64,
    /// Times that an event was lost to a subscriber.
    pub dropped: u64,
    /// Events that went to the dead letters.
    pub dead_lettered: u64,
    /// Subscriptions.
    pub subscriptions: usize,
    /// Channels that are remembered.
    pub channels: usize,
    /// Events that wait in subscribers' queues.
    pub queue_size: usize,
    /// Events that can wait in subscribers' queues.
    pub queue_capacity: usize,
}

/// Whether the bus does its work.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct BusHealth {
    /// It runs, and the transport is connected.
    pub healthy: bool,
    /// Whether it runs.
    pub state: BusState,
    /// Whether the transport is connected; in memory, always.
    pub connected: bool,
    /// Since when it is not, RFC 3339.
    pub disconnected_since: Option<String>,
    /// Why it is not.
    pub error: Option<String>,
    /// How often the connection was lost.
    pub outages: u64,
}

impl Bus {
    /// Whether it runs.
    pub fn state(&self) -> BusState {
        match self.hub.state.load(Ordering::Acquire) {
            RUNNING => BusState::Running,
            STOPPING => BusState::Stopping,
            _ => BusState::Stopped,
        }
    }

    /// Counts since the bus was built. Walks the subscriptions, not the events.
    pub fn stats(&self) -> BusStats {
        let (subscriptions, queue_size, queue_capacity) = {
            let subscribers = self.hub.subscribers();
            let size = subscribers.values().map(|subscriber| subscriber.queue.len()).sum();
            let capacity = subscribers.values().map(|subscriber| subscriber.queue.capacity()).sum();
            (subscribers.len(), size, capacity)
        };
        let started = *self.hub.started.lock().unwrap_or_else(PoisonError::into_inner);
        let totals = &self.hub.totals;
        BusStats {
            state: self.state(),
            transport: self.hub.transport.as_ref().map_or("memory", |transport| transport.name()),
            uptime_ms: started.map_or(0, elapsed_ms),
            published: totals.published.load(Ordering::Relaxed),
            delivered: totals.delivered.load(Ordering::Relaxed),
            failed: totals.failed.load(Ordering::Relaxed),
            dropped: totals.dropped.load(Ordering::Relaxed),
            dead_lettered: totals.dead_lettered.load(Ordering::Relaxed),
            subscriptions,
            channels: self.hub.channels.len(),
            queue_size,
            queue_capacity,
        }
    }

    /// Every channel that is remembered, by name.
    pub fn channel_stats(&self) -> Vec<ChannelStats> {
        self.hub.channels.stats()
    }

    /// Every subscription, the oldest first.
    pub fn subscriptions(&self) -> Vec<SubscriptionStats> {
        self.hub.subscribers().values().map(|subscriber| subscriber.stats()).collect()
    }

    /// Whether it does its work. Asks nobody: the transport tells when its connection is lost.
    pub fn health(&self) -> BusHealth {
        let link = self.hub.link.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let state = self.state();
        let connected = link.down.is_none();
        BusHealth {
            healthy: connected && state == BusState::Running,
            state,
            connected,
            disconnected_since: link.down.as_ref().map(|(_, since, _)| rfc3339(*since)),
            error: link.down.map(|(_, _, error)| error),
            outages: link.outages,
        }
    }
}

pub(crate) fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
