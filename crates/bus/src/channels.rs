//! The channels that are in use: their routes and their counts.
//!
//! Channels come into being by being published to, and a name may hold an id, so their number is limited. Beyond the
//! limit a channel works like any other but is not remembered: its route is found anew for each event, and it is
//! counted with the bus only, under the label `other`.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock, PoisonError, RwLock,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use jiff::Timestamp;
use serde::Serialize;

use crate::{
    NameError, name,
    router::RouteCell,
    subscriber::{Counts, Subscriber},
    telemetry::{ChannelMetrics, OTHER, Telemetry},
};

/// One channel.
pub(crate) struct Channel {
    pub(crate) name: Arc<str>,
    /// Whether it is one of ours, which leading wildcards do not match.
    pub(crate) reserved: bool,
    pub(crate) route: RouteCell<Arc<Subscriber>>,
    pub(crate) published: AtomicU64,
    pub(crate) counts: Counts,
    /// When the last event was published, in milliseconds; 0 for never.
    last: AtomicI64,
    pub(crate) metrics: ChannelMetrics,
}

impl Channel {
    fn new(name: &str, metrics: ChannelMetrics) -> Self {
        Self {
            name: name.into(),
            reserved: name::is_reserved(name.split('.').next().unwrap_or_default()),
            route: RouteCell::new(),
            published: AtomicU64::new(0),
            counts: Counts::default(),
            last: AtomicI64::new(0),
            metrics,
        }
    }

    pub(crate) fn published(&self, at: Timestamp) {
        self.published.fetch_add(1, Ordering::Relaxed);
        self.last.store(at.as_millisecond(), Ordering::Relaxed);
        self.metrics.published.increment(1);
    }

    fn stats(&self) -> ChannelStats {
        let last = self.last.load(Ordering::Relaxed);
        ChannelStats {
            channel: self.name.to_string(),
            published: self.published.load(Ordering::Relaxed),
            delivered: self.counts.delivered.load(Ordering::Relaxed),
            failed: self.counts.failed.load(Ordering::Relaxed),
            dropped: self.counts.dropped.load(Ordering::Relaxed),
            dead_lettered: self.counts.dead_lettered.load(Ordering::Relaxed),
            last_published: (last != 0).then(|| Timestamp::from_millisecond(last).ok()).flatten().map(rfc3339),
        }
    }
}

pub(crate) struct Channels {
    known: RwLock<HashMap<Arc<str>, Arc<Channel>>>,
    limit: usize,
    /// Of those that are not remembered, made once: registering is slower than publishing.
    others: OnceLock<ChannelMetrics>,
}

impl Channels {
    pub(crate) fn new(limit: usize) -> Self {
        Self { known: RwLock::new(HashMap::new()), limit, others: OnceLock::new() }
    }

    /// The channel of that name, which is checked only when it is new.
    pub(crate) fn get(&self, name: &str, telemetry: &Telemetry) -> Result<Arc<Channel>, NameError> {
        if let Some(channel) = self.known.read().unwrap_or_else(PoisonError::into_inner).get(name) {
            return Ok(Arc::clone(channel));
        }
        name::check_channel(name)?;
        // The number only grows, so that those who come too late need not wait for each other.
        if self.len() >= self.limit {
            let metrics = self.others.get_or_init(|| telemetry.channel(OTHER)).clone();
            return Ok(Arc::new(Channel::new(name, metrics)));
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = known.get(name) {
            return Ok(Arc::clone(channel));
        }
        let channel = Arc::new(Channel::new(name, telemetry.channel(name)));
        known.insert(Arc::clone(&channel.name), Arc::clone(&channel));
        Ok(channel)
    }

    pub(crate) fn len(&self) -> usize {
        self.known.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(crate) fn stats(&self) -> Vec<ChannelStats> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = known.values().map(|channel| channel.stats()).collect();
        all.sort_unstable_by(|a, b| a.channel.cmp(&b.channel));
        all
    }
}

/// Milliseconds, UTC.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    format!("{at:.3}")
}

/// One channel, as [`Bus::channel_stats`](crate::Bus::channel_stats) shows it.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ChannelStats {
    /// Its name.
    pub channel: String,
    /// Events published on it by this instance.
    pub published: u64,
    /// Times that one of them was put into a subscriber's queue.
    pub delivered: u64,
    /// Times that a handler failed on one of them.
    pub failed: u64,
    /// Times that one of them was lost to a subscriber.
    pub dropped: u64,
    /// Times that one of them went to the dead letters.
    pub dead_lettered: u64,
    /// When the last one was published.
    pub last_published: Option<String>,
}
