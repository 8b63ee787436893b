//! The settings of a bus.

use std::{sync::Arc, time::Duration};

use crate::{
    Backpressure, Bus, BusError, Transport,
    hub::{Hub, Settings},
};

/// The settings of a [`Bus`]. Every one has a default; without a transport the bus is in memory.
#[derive(Debug)]
#[must_use]
pub struct BusBuilder {
    settings: Settings,
    transport: Option<Arc<dyn Transport>>,
}

impl Default for BusBuilder {
    fn default() -> Self {
        Self {
            settings: Settings {
                source: format!("{}:{}", host(), std::process::id()).into(),
                queue_capacity: 10_000,
                offer_timeout: Duration::from_millis(100),
                backpressure: None,
                metrics_prefix: String::new(),
                max_channels: 10_000,
                max_dead_letters: 10_000,
                stop_timeout: Duration::from_secs(30),
            },
            transport: None,
        }
    }
}

impl BusBuilder {
    /// What carries events to other instances.
    pub fn transport(mut self, transport: impl Transport) -> Self {
        self.transport = Some(Arc::new(transport));
        self
    }

    /// Who publishes, in each event; the host and the process number unless set.
    pub fn source(mut self, source: impl Into<Arc<str>>) -> Self {
        self.settings.source = source.into();
        self
    }

    /// How many events can wait for each subscriber; 10,000 unless set, here or by the subscriber.
    pub fn queue_capacity(mut self, events: usize) -> Self {
        self.settings.queue_capacity = events.max(1);
        self
    }

    /// How long a full queue is waited for; 100 ms unless set.
    pub fn offer_timeout(mut self, timeout: Duration) -> Self {
        self.settings.offer_timeout = timeout;
        self
    }

    /// What happens then; dropped and counted unless set, here or by the subscriber. On a transport that delivers at
    /// least once, the default is to block: the events wait where they are kept.
    pub fn backpressure(mut self, policy: Backpressure) -> Self {
        self.settings.backpressure = Some(policy);
        self
    }

    /// What the names of the metrics begin with; nothing unless set. A separator is part of it: `"relais_"`.
    pub fn metrics_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.metrics_prefix = prefix.into();
        self
    }

    /// How many channels have their own counts and labels; 10,000 unless set. The others are counted together.
    pub fn max_channels(mut self, channels: usize) -> Self {
        self.settings.max_channels = channels;
        self
    }

    /// How many dead letters are kept in memory, where the transport does not keep them; 10,000 unless set.
    pub fn max_dead_letters(mut self, letters: usize) -> Self {
        self.settings.max_dead_letters = letters;
        self
    }

    /// How long [`Bus::stop`] waits for handlers and workers; 30 s unless set.
    pub fn stop_timeout(mut self, timeout: Duration) -> Self {
        self.settings.stop_timeout = timeout;
        self
    }

    /// A bus that is not started yet.
    pub fn build(self) -> Bus {
        Bus::new(Hub::new(self.settings, self.transport))
    }

    /// Builds the bus and starts it.
    ///
    /// # Errors
    ///
    /// As for [`Bus::start`].
    pub async fn start(self) -> Result<Bus, BusError> {
        let bus = self.build();
        bus.start().await?;
        Ok(bus)
    }
}

/// The host's or pod's name, as Kubernetes or Linux gives it.
pub(crate) fn host() -> String {
    let name = std::env::var("HOSTNAME").ok().or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok());
    name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}
